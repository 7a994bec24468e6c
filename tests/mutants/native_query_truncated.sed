# file: kernels/native/decode_attention.cpp
# breaks: queries lose the lower half of their bits instead of being rounded
s/store_bf16\(narrow, load_partial\(q \+ d, count\)\);/for (int i = 0; i < kLanes; ++i) __builtin_memcpy(narrow + i, i < count ? reinterpret_cast<const char*>(q + d + i) + 2 : "\\0", 2);/
