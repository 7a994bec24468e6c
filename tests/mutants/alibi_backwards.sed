# file: kernels/ops/softmax_scores.hpp
# breaks: near rows are punished instead of far ones
s/rows\.base\(\) \+ row - i\)/i - rows.base() - row)/
