# file: kernels/ops/attention_part.hpp
# breaks: the first tokens fall out of the window
s/cut_spans\(kept < i \+ 1 \? kept : i \+ 1/cut_spans(0 * kept/
