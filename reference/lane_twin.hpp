// The numerics definition of reproducible mode, number 1, in words; lane_twin.cpp is its executable form: scalar code,
// std::fma, one operation at a time. Shares no code with kernels/. All arithmetic is IEEE binary32, round to nearest,
// ties to even, no flush to zero; fma(a,b,c) = a*b+c rounded once.
//
//  tree(x[0..15])  y[i] = x[i]+x[i+8] (i<8); z[i] = y[i]+y[i+4] (i<4); w[i] = z[i]+z[i+2] (i<2); w[0]+w[1].
//  dot(q,k)        16 stripes: a[s] starts at +0; for d = 0,1,.. ascending, a[d mod 16] = fma(q[d], k[d], a[d mod 16]);
//                  Dk is padded with zeros to a multiple of 16 (both operands +0). Result tree(a).
//  score           s = dot; int8: s = s * k_scale[row]; s = s * scale; soft-cap c: s = c * tanh(s / c);
//                  ALiBi: s = fma(slope, float(j - i), s), float() of the 64-bit difference rounded to nearest.
//                  A row that the mask hides has no score: it takes part in nothing below.
//  segment         positions [512*g, 512*g+512). Over the visible rows of one segment:
//                  m = max of the scores, a > b ? a : b with a the new score and b the running one, from -inf (so NaN
//                      never enters); then m = m + 0 (no -0).
//                  p[j] = exp(s[j] - (m == -inf ? 0 : m)).
//                  l: sixteen lane sums from +0, L[j mod 16] = L[j mod 16] + p[j], j ascending; l = tree(L).
//                  acc[d] from +0, j ascending: acc[d] = fma(w[j], v[j][d], acc[d]); w = p, int8: w = p * v_scale[row].
//  merge(a, b)     a before b. A partial with m == -inf and l == 0 is empty: the other one is returned as it is. Else
//                  m = a.m > b.m ? a.m : b.m; ea = exp(a.m - m'), eb = exp(b.m - m') with m' = (m == -inf ? 0 : m);
//                  l = fma(a.l, ea, b.l * eb); acc[d] = fma(a.acc[d], ea, b.acc[d] * eb).
//  segment tree    leaf g = segment g if it holds a visible row, else absent. Node (k+1, x) merges (k, 2x) and
//                  (k, 2x+1); with one child absent it is the other child as it is. The result is the root of a tree
//                  that covers all segments.
//  finish          no visible row, or m == -inf and l == 0: out = 0, lse = sink if given else -inf (a NaN sink: both
//                  are NaN).
//                  No sink: out[d] = acc[d] / l, lse = m + log(l).
//                  Sink t: M = m > t ? m : t; e = exp(m - M); L = fma(l, e, exp(t - M)); out[d] = (acc[d] * e) / L;
//                  lse = M + log(L).
//                  Every NaN written is 0x7fc00000 (outputs of projection and RoPE too; in between, any NaN will do).
//                  Consequences: the weight of a visible row with score -inf, or too far below the maximum, is +0
//                  and not skipped: v = NaN or inf there gives NaN. A segment whose visible scores are all -inf is
//                  an empty partial: what its v rows hold is not seen.
//
//  exp(x)          x <= 0 or NaN (also used up to 2*10 by tanh). NaN gives NaN; x < -0x1.5d589ep+6f gives 0. Else
//                  t = fma(x, 0x1.715476p+0f, 0x1.8p23f); n = t - 0x1.8p23f;
//                  r = fma(n, -0x1.62e43p-1f, x); r = fma(n, 0x1.05c61p-29f, r);
//                  q = 0x1.6a23ccp-10f; q = fma(q, r, 0x1.123a2p-7f); q = fma(q, r, 0x1.5558f2p-5f);
//                  q = fma(q, r, 0x1.555492p-3f); q = fma(q, r, 0x1.fffffcp-2f);
//                  y = fma(q, r * r, r) + 1; result: y with int(n) added to its exponent field. (The cut-off is
//                  ln(FLT_MIN): the smallest results are normal.)
//  tanh(x)         z = |x|. z < 0.625f: u = z*z; T = -0x1.768464p-8f; T = fma(T, u, 0x1.524e5cp-6f);
//                  T = fma(T, u, -0x1.b8430ep-5f); T = fma(T, u, 0x1.11076p-3f); T = fma(T, u, -0x1.555534p-2f);
//                  y = fma(z * u, T, z). Else c = z > 10 ? 10 : z; y = 1 - 2 / (exp(2 * c) + 1). Then the sign of x;
//                  NaN gives NaN.
//  log(x)          x > 0 normal (NaN gives NaN, +inf gives +inf, 0 gives -inf). i = bits(x) - 0x3f3504f3; k = i >> 23
//                  (arithmetic); f = float with bits (i & 0x7fffff) + 0x3f3504f3; s = (f - 1) / (f + 1); z = s * s;
//                  L = 0x1.e2fdd6p-3f; L = fma(L, z, 0x1.2438a8p-2f); L = fma(L, z, 0x1.999a7cp-2f);
//                  L = fma(L, z, 0x1.555554p-1f); r = fma(s * z, L, s + s);
//                  r = fma(float(k), -0x1.05c61p-29f, r); r = fma(float(k), 0x1.62e43p-1f, r).
//  int8 row        amax = max |x|; a NaN or inf anywhere: scale NaN, all q 0. scale = amax / 127; scale < FLT_MIN:
//                  scale 0, all q 0. Else q = round-to-nearest-even(x / scale) (never beyond +-127). Value: float(q)
//                  in dots, scale apart.
//  projection      y[o] = one chain from +0 over ascending k: y = fma(w[o][k], x[k], y).
//  RoPE            angle = double(position) * inv_freq[i] (one double multiply); c, s = float(cos(angle)),
//                  float(sin(angle)) by the double sincos below, rounded once.
//                  Pair (a, b) -> (fma(a, c, -(b*s)), fma(b, c, a*s)).
//                  interleaved pairing: (x[2i], x[2i+1]); half-split: (x[i], x[i+D/2]).
//  sincos(a)       double, a finite, |a| < 2^31: n = nearest-even integer of a * 0x1.45f306dc9c883p-1;
//                  r = fma(-n, 0x1.921fb544p+0, a); r = fma(-n, 0x1.0b4611a6p-34, r);
//                  r = fma(-n, 0x1.3198a2e037073p-69, r); z = r*r;
//                  S Horner in z by fma: 0x1.5e0a4fc16be59p-33, -0x1.ae6008d114485p-26, 0x1.71de37946ed6dp-19,
//                    -0x1.a01a019e820aep-13, 0x1.1111111110babp-7, -0x1.5555555555555p-3; sin = fma(r * z, S, r);
//                  C Horner in z by fma: -0x1.907cd8ff5ede7p-37, 0x1.1eeb67d026ec6p-29, -0x1.27e4fa16cc2d1p-22,
//                    0x1.a01a019f4ddfdp-16, -0x1.6c16c16c16963p-10, 0x1.5555555555555p-5;
//                    cos = fma(z * z, C, fma(z, -0.5, 1));
//                  quadrant n mod 4: 0 (sin, cos), 1 (cos, -sin), 2 (-sin, -cos), 3 (-cos, sin).
#pragma once

#include <cstdint>
#include <vector>

#include "reference/problem.hpp"

namespace kvroof::reference {

inline constexpr int kTwinDefinition = 1;
inline constexpr std::int64_t kTwinSegmentRows = 512;

// Reproducible mode, row by row. Same meaning of `problem` as the oracle's; out and lse are resized to n x Hq x Dv, n x
// Hq.
void lane_twin_attention(const AttentionProblem& problem, std::vector<float>& out, std::vector<float>& lse);

float twin_exp(float x);
float twin_tanh(float x);
float twin_log(float x);
void twin_sincos(double angle, double& sine, double& cosine);
// y[outputs] = W[outputs][inputs] x[inputs]
void twin_project(const float* w, const float* x, std::int64_t outputs, std::int64_t inputs, float* y);
// Rotates one head of d values (d even) in place.
void twin_rope(float* x, std::int64_t d, std::int64_t position, const double* inv_freq, bool interleaved);

}  // namespace kvroof::reference
