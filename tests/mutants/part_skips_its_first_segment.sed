# file: kernels/attention_split.cpp
# breaks: the segment at which a part begins is left out
s/if \(start >= begin_\)/if (start > begin_)/
