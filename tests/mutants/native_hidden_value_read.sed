# file: kernels/native/decode_attention.cpp
# breaks: hidden rows keep their values and are multiplied by zero
s/shown\[row\] = zeros;/shown[row] = rows[row] + offset;/
