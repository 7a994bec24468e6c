# file: kernels/simd/float_environment.hpp
# breaks: the kernels run with flush to zero
s/_mm_setcsr\(0x1f80\)/_mm_setcsr(0x9fc0)/; s/"r"\(std::uint64_t\{0\}\)/"r"(std::uint64_t{1} << 24)/
