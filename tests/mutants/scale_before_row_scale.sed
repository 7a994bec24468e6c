# file: kernels/ops/softmax_segment.hpp
# breaks: the row scale of int8 comes after the scale: other last bits
/x = x \* load\(options\.k_scale/d
s/^( *)x = x \* scale;/\1x = x * scale;\n\1if (options.k_scale != nullptr) x = x * load(options.k_scale + row);/
