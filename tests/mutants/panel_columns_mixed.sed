# file: kernels/ops/weigh_segment.hpp
# breaks: every panel of V after the first is added to the columns of the first
s/acc \+ head \* group\.queries \* pad \+ column, \{\}/acc + head * group.queries * pad, {}/
