# file: kernels/ops/segment_rows.hpp
# breaks: row offsets wrap at 2^31
s/run\.k \+ k_head \+ offset \* kv\.k_row_stride/run.k + k_head + static_cast<int>(offset * kv.k_row_stride)/
