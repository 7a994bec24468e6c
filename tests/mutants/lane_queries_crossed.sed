# file: kernels/ops/attention_part.hpp
# breaks: a second block of 16 queries is packed with the queries of the first
s/block \* kLanes \+ i, last/i, last/
