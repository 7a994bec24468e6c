// The oracle: attention in float64, written as the definition says it, and how far reproducible mode may be from it.
//
//   visible(i, j)   problem.visible
//   s_j             dot(q, k_j) [* row scale] * scale, soft-cap, + slope * (j - i)
//   out             sum over visible j of exp(s_j - lse) * v_j,  lse = log(sum exp(s_j) [+ exp(sink)])
//
// Inputs are taken as stored (f16, bf16 and int8 rows are exact numbers); the bound covers arithmetic only.
//
// Bound. u = 2^-24, g(k) = k*u / (1 - k*u): k roundings in a row (Higham, "Accuracy and Stability of Numerical
// Algorithms", section 3.1). Relative errors of the twin's functions, measured over dense samples of their domains and
// rounded up: exp 1.5 u, tanh 2.5 u, log 3 u. All quantities on the right are the oracle's own: the bound belongs to
// one input. P_j = exp(s_j - lse); t, P_t the sink and its share; h = ceil(log2(segments)) merge levels.
//
//   score    d_j = g(ceil(Dk/16) + 4 + 1 [+ 1 int8]) * sum_d |q_d k_jd| [* |row scale|] * |scale|
//              (a stripe's chain, the tree, the products with the scales)
//            soft-cap: + (2 u + 2.5 u) |s_j|   (tanh contracts, and x tanh'(x) <= tanh(x): a relative error of the
//              argument costs at most the same relative error of the result)
//            ALiBi: + u |slope (j - i)| + u |s_j|
//   weight   M is the largest of scores and sink. The distances that go through exp on the way from s_j to M add up to
//            M - s_j, each rounded once, and each exp adds its own error:
//            r_j = expm1(d_j + u (M - s_j + 2 max d) + 1.5 u (1 + h [+ 1 sink])); r_t = expm1(u (M - t) + 1.5 u)
//   l        e = g(32 + 4 + 2 h [+ 1 sink])
//   acc      c_j roundings for term j: the rows from j to the end of its segment, [1 int8], 2 h, [1 sink]
//   result   E = sum P_j r_j + P_t r_t + e
//            |out - o| <= (sum P_j r_j |v_j - o| + P_t r_t |o| + sum P_j (1 + r_j) g(c_j) |v_j| + e |o|) / (1 - E)
//                         + u |out|   (weights p(1+x) move a quotient by exactly sum P x (v - o) / (1 + sum P x))
//            |lse - L| <= -log(1 - E) + 3 u log(sum of exp(s - M)) + u |lse|
//   underflow adds rows * 2^-126 (max |v| + |o|) for weights flushed to 0 and multiples of 2^-149 for the rest.
// So it grows with Dk/16 and the scores' magnitude, with at most 512 rows and log2(T/512) levels, never with T itself.
// It says nothing (infinite) where a quantity may overflow float or E >= 1/2.
#pragma once

#include <vector>

#include "reference/problem.hpp"

namespace kvroof::reference {

struct OracleAnswer {
  std::vector<double> out, out_bound;  // [n][Hq][Dv]
  std::vector<double> lse, lse_bound;  // [n][Hq]
};

// A query that sees nothing, or only scores of -inf: out 0, lse the sink's logit if there is one, else -inf. NaN and
// inf take their natural course: a weight of 0 is multiplied, not skipped.
OracleAnswer oracle_attention(const AttentionProblem& problem);

// Largest |result - oracle| / bound over out and lse; at most 1 where the promise holds. Elements whose oracle is NaN
// or infinite must be NaN or that infinity too, else the ratio is infinite.
double worst_error_over_bound(const OracleAnswer& answer, const std::vector<float>& out, const std::vector<float>& lse);

}  // namespace kvroof::reference
