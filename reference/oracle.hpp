// The oracle: attention in float64, written as the definition says it, and how far either mode may be from it.
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
//            r_j = expm1(d_j + u (M - s_j + 2 max d) + 1.5 u (1 + h [+ 1 sink])); r_t = expm1(u (M - t + 2 max d) +
//              1.5 u)
//   l        e = g(32 + 4 + 2 h [+ 1 sink])
//   acc      c_j roundings for term j: the rows from j to the end of its segment, [1 int8], 2 h, [1 sink]
//   result   E = sum P_j r_j + P_t r_t + e
//            |out - o| <= (sum P_j r_j |v_j - o| + P_t r_t |o| + sum P_j (1 + r_j) g(c_j) |v_j| + e |o|) / (1 - E)
//                         + u |out|   (weights p(1+x) move a quotient by exactly sum P x (v - o) / (1 + sum P x))
//            |lse - L| <= -log(1 - E) + 3 u log(sum of exp(s - M)) + u |lse|
//   underflow adds rows * 2^-126 (max |v| + |o|) for weights flushed to 0 and multiples of 2^-149 for the rest.
// So it grows with Dk/16 and the scores' magnitude, with at most 512 rows and log2(T/512) levels, never with T itself.
// It says nothing (infinite) where a quantity may overflow float or E >= 1/2.
//
// Native mode (AVX512-BF16; Arithmetic kNativeBf16Arithmetic). b = 2^-8: one rounding to bf16 (8 significant bits).
// What is different:
//
//   score    d_j = (b + g(2 ceil(Dk/2) + 4 + 1) (1 + b)) * sum_d |q_d k_jd| * |scale|
//              (the query is rounded; a dot step adds two products with a rounding each: a chain of Dk/2 steps, or 16
//              of Dk/32 and a tree)
//   weight   w = 2^((s - m) c), c = scale * log2(e), m the segment's largest score: the difference, the factor (2) and
//            the product make 4 roundings of the distance, m * scale one of m, and |m scale| <= |s_j| + (M - s_j); a
//            cubic for 2^f is off by x = 2^-13.69, its roundings included; then w is rounded to bf16:
//            1 + r_j = exp(d_j + 4 u (M - s_j + 2 max d) + u (|s_j| + M - s_j + 2 max d) + 1.5 u (1 + h [+ 1 sink]))
//                      * (1 + x) (1 + b)
//   l        adds the rounded weights, 16 dot steps: e as above
//   acc      c_j one more: the order of the two products of a step is the CPU's
//   underflow  inputs, products and sums below 2^-126 count as zero: 2^-126 takes the place of 2^-149, and
//            2^-126 (sum |q_d| + sum |k_jd|) joins the score's.
// So weights' errors of b dominate, and d_j where scores are large: out is off by some b of the values' spread.
#pragma once

#include <vector>

#include "reference/problem.hpp"
#include "reference/softmax_bound.hpp"

namespace kvroof::reference {

struct OracleAnswer {
  std::vector<double> out, out_bound;  // [n][Hq][Dv]
  std::vector<double> lse, lse_bound;  // [n][Hq]
};

// A query that sees nothing, or only scores of -inf: out 0, lse the sink's logit if there is one, else -inf. NaN and
// inf take their natural course: a weight of 0 is multiplied, not skipped.
OracleAnswer oracle_attention(const AttentionProblem& problem, const Arithmetic& arithmetic = kReproducibleArithmetic);

// Largest |result - oracle| / bound over out and lse; at most 1 where the promise holds. Elements whose oracle is NaN
// or infinite must be NaN or that infinity too, else the ratio is infinite.
double worst_error_over_bound(const OracleAnswer& answer, const std::vector<float>& out, const std::vector<float>& lse);

}  // namespace kvroof::reference
