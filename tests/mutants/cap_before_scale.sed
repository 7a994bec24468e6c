# file: kernels/ops/softmax_segment.hpp
# breaks: the soft-cap is applied to the unscaled score
/^ *x = x \* scale;/d
s/^( *)(if \(capped\).*)$/\1\2\n\1x = x * scale;/
