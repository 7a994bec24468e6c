// Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1): what its two forms must give.
//
//   k_jh = W_UK_h c_j,   v_jh = W_UV_h c_j,   s_jh = (q_h . k_jh + q^R_h . k^R_j) * scale
//   out_h = sum over visible j of softmax(s_h)_j v_jh
// with c_j the cached latent of token j and k^R_j its cached key, rotated by position and shared by all heads. scale is
// given, never guessed; soft-cap, sink, window and kept tokens as in attention without a latent.
//
// Numerics definition of reproducible mode, number 1, in terms of lane_twin.hpp:
//   reconstruct  k_jh and v_jh by "projection" (one chain over ascending latent index per output), not rounded to
//                storage; then attention with Hkv = Hq, key [k_jh, k^R_j], value v_jh.
//   absorbed     q'_h[c] by "projection" of W_UK_h transposed (one chain over ascending key index); then attention with
//                Hkv = 1, query [q'_h, q^R_h], key [c_j, k^R_j], value c_j; out_h by "projection" of W_UV_h on the
//                result.
//   compress     c = W_DKV h and W_KR h by "projection", the latter through "RoPE"; then rounded to storage as
//                mla_row.hpp says.
// Each form has its own bits; both are within their own bound of the oracle.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "reference/oracle.hpp"
#include "reference/problem.hpp"

namespace kvroof::reference {

struct MlaShape {
  std::int64_t heads = 0;     // query heads; all share one latent row per token
  std::int64_t nope_dim = 0;  // of a key that comes from the latent (no position)
  std::int64_t rope_dim = 0;  // of the rotated key, even
  std::int64_t value_dim = 0;
  std::int64_t latent_dim = 0;  // d_c
};

enum class MlaForm : std::uint8_t { reconstruct, absorbed };

struct MlaProblem {
  MlaShape shape;
  std::int64_t n = 0, T = 0;    // query r has position T - n + r
  std::vector<float> q;         // [n][H][nope + rope], the rope part rotated
  std::vector<float> latent;    // [T][d_c], as stored
  std::vector<float> rope_key;  // [T][rope], rotated, as stored
  std::vector<float> w_uk;      // [H][nope][d_c]
  std::vector<float> w_uv;      // [H][value][d_c]
  float scale = std::numeric_limits<float>::quiet_NaN();
  std::int64_t window = std::numeric_limits<std::int64_t>::max();
  std::int64_t kept_tokens = 0;
  float softcap = std::numeric_limits<float>::infinity();
  std::vector<float> sink_logits;  // [H] or empty
};

// The attention problem inside a form, by the twin's arithmetic. mla_absorbed_problem(p).q is what a kernel that takes
// absorbed queries is given.
AttentionProblem mla_reconstructed_problem(const MlaProblem& p);
AttentionProblem mla_absorbed_problem(const MlaProblem& p);

// Reproducible mode, bit for bit: out [n][H][value], lse [n][H].
void mla_twin(MlaForm form, const MlaProblem& p, std::vector<float>& out, std::vector<float>& lse);

// Float64, by the equations above with k and v written out for every head. The values do not depend on the form, the
// bounds do. With the terms of oracle.hpp and, for row j, magnitude m_j = sum |q_d| |W_UK_dc| |c_jc| + sum |q^R k^R_j|:
//   reconstruct  d_j = g(d_c + ceil(Dk/16) + 5) m_j |scale|, Dk = nope + rope; a value carries
//                g(d_c) sum |W_UV_dc| |c_jc|
//   absorbed     d_j = g(nope + ceil(Dk/16) + 5) m_j |scale|, Dk = d_c + rope; with o_c, b_c the latent result and its
//                bound, |out_d - o_d| <= sum |W_UV_dc| (b_c (1 + g(d_c)) + g(d_c) |o_c|)
//                native mode: d_j = (b (1 + g(nope)) + g(nope + 2 ceil(Dk/2) + 5) (1 + b)) m_j |scale|
OracleAnswer mla_oracle(MlaForm form, const MlaProblem& p, const Arithmetic& arithmetic = kReproducibleArithmetic);

// Compression of one token's hidden state.
struct MlaCompressor {
  std::int64_t model_dim = 0, latent_dim = 0, rope_dim = 0;
  std::vector<float> w_dkv, w_kr;  // [d_c][model], [rope][model]
  std::vector<double> inv_freq;    // [rope/2]
  bool interleaved = true;
};
void mla_compress_twin(const MlaCompressor& m, const float* h, std::int64_t position, float* latent, float* rope_key);

// The best factors of rank d_c of a dense weight (all heads' K and V rows stacked, [outputs][model]): `up`
// [outputs][d_c] and `down` [d_c][model] with the least ||dense - up down|| there is (Eckart and Young 1936), from the
// eigenvectors of dense^T dense. Shows what a latent of that size loses, and that nothing is lost at full rank.
struct MlaFactors {
  std::vector<double> up, down;
};
MlaFactors mla_factorise(const std::vector<double>& dense, std::int64_t outputs, std::int64_t model_dim,
                         std::int64_t latent_dim);

}  // namespace kvroof::reference
