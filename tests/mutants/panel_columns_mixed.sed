# file: kernels/ops/decode_attention.cpp
# breaks: every panel of V after the first is added to the columns of the first
s/acc \+ head \* group\.queries \* pad \+ column, nullptr/acc + head * group.queries * pad, nullptr/
