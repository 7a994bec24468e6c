# file: kernels/native/softmax_bf16.hpp
# breaks: the sum misses one of every 32 weights
s/sum = dot_pairs\(both, ones, sum\);/sum = dot_pairs({_mm512_maskz_mov_epi16(0xfffffffe, both.b)}, ones, sum);/
