# file: kernels/native/decode_attention.cpp
# breaks: whether a sum that underflowed is -0 depends on the hidden rows after it
s/store\(node.acc \+ i, load\(node.acc \+ i\) \+ zero\(\)\)/store(node.acc + i, load(node.acc + i))/
