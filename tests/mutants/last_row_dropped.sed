# file: kernels/ops/attention_part.hpp
# breaks: the query does not see its own row
s/(i - window \+ 1), i \+ 1, base/\1, i, base/
