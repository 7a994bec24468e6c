# file: kernels/ops/weigh_segment.hpp
# breaks: queries of a chunk that are weighed together all see the rows of the first of them
s/if \(!same\(spans, /if (false \&\& !same(spans, /
