# file: kernels/ops/softmax_scores.hpp
# breaks: int8 values take the scales of the run's first head
s/fill_scales\(group, rows, group\.head0 \+ head, false/fill_scales(group, rows, group.head0, false/
