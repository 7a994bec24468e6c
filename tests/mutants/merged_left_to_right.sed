# file: kernels/ops/merge_partials.hpp
# breaks: segments are merged in the order in which they come, not in the tree: other last bits
s/if \(left\.level != right\.level.*break;/;/
