# file: kernels/ops/decode_attention.cpp
# breaks: near rows are punished instead of far ones
s/rows\.base\(\) \+ row - i\)/i - rows.base() - row)/
