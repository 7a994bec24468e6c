// How far native mode may be from the oracle. Its products round queries and weights to bf16; sums stay f32.
#pragma once

#include "reference/oracle.hpp"

namespace kvroof::bench {

// The oracle's answer to a problem of one query and one head without options, with native mode's bound.
//
// b = 2^-9 is the rounding of one bf16, u = 2^-24, g(k) = k u / (1 - k u); P_j the oracle's weights, o its output.
//   score   d_j = (b + g(Dk + 8)) |scale| sum_d |q_d k_jd|: the query's rounding and one chain over Dk
//   weight  r_j = expm1(d_j + max d + 2^-20) (1 + b) + b: its score, the largest score, exp and merging, its own
//   rounding
//           (the sum adds rounded weights, so numerator and denominator are off by the same)
//   result  E = sum P_j r_j + g(600)
//           |out - o| <= (sum P_j r_j |v_j - o| + g(600) sum P_j (1 + r_j) |v_j|) / (1 - E)
//           |lse - L| <= -log(1 - E) + 2^-20 (1 + |L|)
// g(600): one chain over a segment's 512 rows, merging, and the f32 sums of the weights.
reference::OracleAnswer native_answer(const reference::AttentionProblem& p);

}  // namespace kvroof::bench
