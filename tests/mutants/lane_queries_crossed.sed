# file: kernels/ops/attention_part.hpp
# breaks: a second block of 16 queries is packed over the first
s/\(head \* forms\.lane_blocks \+ query \/ kLanes\)/(head * forms.lane_blocks)/
