# file: kernels/native/score_tile_bf16.hpp
# breaks: the last, short vector of a K row is read whole
s/= load_pairs_partial\(row \+ whole \* 64, tail\)/= load_pairs(row + whole * 64)/
