# file: kernels/simd/float_environment.hpp
# breaks: the caller's rounding mode does not come back
s/_mm_setcsr\(saved_\)/_mm_setcsr(0x1f80)/; s/(msr fpcr, %0" ::"r")\(saved_\)/\1(std::uint64_t{0})/
