# file: kernels/ops/weigh_segment.hpp
# breaks: every panel of V after the first is added to the columns of the first
s/at\.head \* group\.queries \* pad \+ at\.column/at.head * group.queries * pad/
