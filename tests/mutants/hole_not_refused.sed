# file: kernels/attention_check.cpp
# breaks: a missing visible row is not noticed
s/kv\.runs\[i\]\.first_position > at\)/false)/
