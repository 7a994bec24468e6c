# file: kernels/ops/decode_attention.cpp
# breaks: lse leaves the sink out
s/top \+ log1\(total\)/top + log1(l)/
