# file: kernels/ops/merge_partials.hpp
# breaks: product and sum are rounded apart: other last bits
s/fma\(load\(to \+ d\), wa, load\(from \+ d\) \* wb\)/load(to + d) * wa + load(from + d) * wb/
