# file: kernels/ops/segment_rows.hpp
# breaks: KV heads are read in pairs from the first of the two
s/k_head = group\.head0 \*/k_head = group.head0 \/ 2 * 2 */
