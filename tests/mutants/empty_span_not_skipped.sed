# file: kernels/ops/merge_partials.hpp
# breaks: an empty span is merged instead of left out: NaN from -inf - -inf
/mb == -kInfinity && b\.sum/d
s/shift = m == -kInfinity \? 0\.0f : m/shift = m/
