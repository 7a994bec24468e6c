# file: kernels/ops/merge_partials.hpp
# breaks: the sum of the later span is lost when two are merged
s/(a\.sum\[i\] = __builtin_fmaf\(a\.sum\[i\], ea, )b\.sum\[i\] \* eb/\10.0f/
