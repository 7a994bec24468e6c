# file: kernels/ops/decode_attention.cpp
# breaks: queries of a chunk that are weighed together all see the rows of the first of them
s/if \(!same\(spans, /if (false \&\& !same(spans, /
