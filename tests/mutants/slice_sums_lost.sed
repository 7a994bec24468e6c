# file: kernels/ops/finish_group.hpp
# breaks: partials leave for another process without their maxima and sums
s/results \* \(pad \+ 2\)\) \* sizeof/results * pad) * sizeof/
