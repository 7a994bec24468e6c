# file: kernels/ops/attention_part.hpp
# breaks: every query of a chunk sees the newest row
s/(i - window \+ 1), i \+ 1, base/\1, group.last_position + 1, base/
