# file: kernels/ops/decode_attention.cpp
# breaks: a second block of 16 queries is packed over the first
s/\(head \* forms\.lane_blocks \+ query \/ kLanes\)/(head * forms.lane_blocks)/
