# file: kernels/ops/decode_attention.cpp
# breaks: int8 values take the scales of the run's first head
s/fill_scales\(group, rows, group\.head0 \+ head, false/fill_scales(group, rows, group.head0, false/
