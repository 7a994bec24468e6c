# file: kernels/ops/convert_rows.cpp
# breaks: bf16 is cut off instead of rounded
s/\(u\[i\] \+ 0x7fffu \+ \(\(u\[i\] >> 16\) & 1u\)\) >> 16/u[i] >> 16/
