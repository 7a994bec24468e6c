# file: kernels/ops/finish_group.hpp
# breaks: lse leaves the sink out
s/top \+ log1\(total\)/top + log1(l)/
