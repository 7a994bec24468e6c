# file: kernels/native/decode_attention.cpp
# breaks: weights of a second head are looked for where whole blocks of 16 queries are not counted
s/\(head \* per_head \+ query\) \* kScoreStride;$/(head * group.queries + query) * kScoreStride;/
