# file: kernels/ops/shared_prefix.hpp
# breaks: every sharer of a prefix takes the first one's results
s/group\.sharer \* G \+ group\.query0/group.query0/
