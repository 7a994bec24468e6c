# file: kernels/ops/score_tile.hpp
# breaks: the last, short vector of a K row is read whole
s/= load_partial_as<S>\(rows\[r\] \+ offset \+ whole \* kStep, tail\)/= load_as<S>(rows[r] + offset + whole * kStep)/
