# file: kernels/ops/attention_part.hpp
# breaks: the window holds W+1 rows
s/i < window \? 0 : i - window \+ 1/i <= window ? 0 : i - window/
