#include "kernels/mla_project.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/kernel_table.hpp"

namespace kvroof {
namespace {

constexpr std::int64_t kBlock = 64;  // outputs: what project() keeps in flight

std::int64_t blocks_of(std::int64_t outputs) { return (outputs + kBlock - 1) / kBlock; }

struct Range {
  std::int64_t begin, end;
};

Range share(std::int64_t items, int parts, int part) {
  const auto cut = [&](int p) { return static_cast<std::int64_t>(static_cast<__int128>(items) * p / parts); };
  return {cut(part), cut(part + 1)};
}

// body(head, block, sequence, r, token) for this part's share of heads x blocks x tokens.
template <class Body>
void each_token(std::int64_t heads, std::int64_t blocks, std::span<const AttentionSequence> sequences,
                std::int64_t tokens, int parts, int part, const Body& body) {
  if (tokens == 0) return;
  Range items = share(heads * blocks * tokens, parts, part);
  while (items.begin < items.end) {
    const std::int64_t unit = items.begin / tokens, first = items.begin % tokens;
    const std::int64_t last = std::min(tokens, first + items.end - items.begin);
    std::int64_t token = 0;  // of the sequence's first row
    for (const AttentionSequence& sequence : sequences) {
      if (token >= last) break;
      const std::int64_t from = std::max<std::int64_t>(first - token, 0), to = std::min(last - token, sequence.n);
      for (std::int64_t r = from; r < to; ++r) body(unit / blocks, unit % blocks, sequence, r, token + r);
      token += sequence.n;
    }
    items.begin += last - first;
  }
}

template <class Body>
void on_threads(int threads, const Body& body) {
  if (threads == 1) return body(0);
#pragma omp parallel num_threads(threads)
  for (int part = omp_get_thread_num(); part < threads; part += omp_get_num_threads()) body(part);
}

}  // namespace

void mla_require_threads(int threads) {
  if (threads < 1)
    throw Error(ErrorCode::bad_shape, "mla: threads is " + std::to_string(threads) + ", must be at least 1");
}

void mla_fold_part(const MlaWeights& weights, std::span<const AttentionSequence> sequences, std::int64_t tokens,
                   float* absorbed, int parts, int part, Isa isa) {
  const MlaShape& s = weights.shape();
  const auto project = kernel_table(isa).project;
  each_token(s.heads, blocks_of(s.latent_dim), sequences, tokens, parts, part,
             [&](std::int64_t head, std::int64_t block, const AttentionSequence& sequence, std::int64_t r,
                 std::int64_t token) {
               const float* q = sequence.q + r * sequence.q_row_stride + head * sequence.q_head_stride;
               float* to = absorbed + (token * s.heads + head) * (s.latent_dim + s.rope_dim);
               const std::int64_t o = block * kBlock;
               project(weights.w_uk_transposed(head) + o * s.nope_dim, q, std::min(kBlock, s.latent_dim - o),
                       s.nope_dim, to + o);
               if (block == 0)
                 std::memcpy(to + s.latent_dim, q + s.nope_dim, static_cast<std::size_t>(s.rope_dim) * sizeof(float));
             });
}

void mla_expand_part(const MlaWeights& weights, std::span<const AttentionSequence> sequences, std::int64_t tokens,
                     const float* latents, int parts, int part, Isa isa) {
  const MlaShape& s = weights.shape();
  const auto project = kernel_table(isa).project;
  each_token(s.heads, blocks_of(s.value_dim), sequences, tokens, parts, part,
             [&](std::int64_t head, std::int64_t block, const AttentionSequence& sequence, std::int64_t r,
                 std::int64_t token) {
               const std::int64_t o = block * kBlock;
               project(weights.w_uv(head) + o * s.latent_dim, latents + (token * s.heads + head) * s.latent_dim,
                       std::min(kBlock, s.value_dim - o), s.latent_dim,
                       sequence.out + r * sequence.out_row_stride + head * sequence.out_head_stride + o);
             });
}

void mla_fold_queries(const MlaWeights& weights, const float* q, std::int64_t tokens, float* absorbed, int threads,
                      Isa isa) {
  mla_require_threads(threads);
  kernel_table(isa);  // refuses an instruction set that is not there
  const MlaShape& s = weights.shape();
  AttentionSequence dense;
  dense.q = q;
  dense.n = tokens;
  dense.q_head_stride = s.nope_dim + s.rope_dim;
  dense.q_row_stride = dense.q_head_stride * s.heads;
  on_threads(threads, [&](int part) { mla_fold_part(weights, {&dense, 1}, tokens, absorbed, threads, part, isa); });
}

void mla_expand_latents(const MlaWeights& weights, const float* latent, std::int64_t tokens, float* out, int threads,
                        Isa isa) {
  mla_require_threads(threads);
  kernel_table(isa);
  const MlaShape& s = weights.shape();
  AttentionSequence dense;
  dense.out = out;
  dense.n = tokens;
  dense.out_head_stride = s.value_dim;
  dense.out_row_stride = s.value_dim * s.heads;
  on_threads(threads, [&](int part) { mla_expand_part(weights, {&dense, 1}, tokens, latent, threads, part, isa); });
}

// ---- compress ----
void mla_check_tokens(const MlaWeights& weights, const MlaTokens& tokens, const float* rows) {
  const MlaShape& s = weights.shape();
  if (!weights.compresses())
    throw Error(ErrorCode::bad_shape,
                "mla_compress: these weights have model_dim 0, give w_dkv and w_kr when making them");
  if (tokens.n < 0)
    throw Error(ErrorCode::bad_shape, "mla_compress: n is " + std::to_string(tokens.n) + ", must be 0 or more");
  if (static_cast<std::int64_t>(tokens.inv_freq.size()) != s.rope_dim / 2)
    throw Error(ErrorCode::bad_shape, "mla_compress: inv_freq has " + std::to_string(tokens.inv_freq.size()) +
                                          " entries, needs rope_dim / 2 = " + std::to_string(s.rope_dim / 2));
  std::int64_t end = 0;
  if (tokens.first_position < 0 || __builtin_add_overflow(tokens.first_position, tokens.n, &end))
    throw Error(ErrorCode::bad_position, "mla_compress: first_position is " + std::to_string(tokens.first_position) +
                                             ", must be 0 or more and leave room for n in 63 bits");
  for (const double f : tokens.inv_freq) {
    if (!std::isfinite(f)) throw Error(ErrorCode::bad_option, "mla_compress: inv_freq must be finite");
    if (!(std::fabs(f) * static_cast<double>(end) < 0x1p31))
      throw Error(ErrorCode::bad_position, "mla_compress: position " + std::to_string(end) + " x inv_freq " +
                                               std::to_string(f) + " is beyond the 2^31 radians that RoPE covers");
  }
  if (tokens.n > 0 && (tokens.x == nullptr || rows == nullptr))
    throw Error(ErrorCode::bad_view, std::string("mla_compress: ") + (rows == nullptr ? "rows" : "x") + " is null");
}

void mla_compress_part(const MlaWeights& weights, const MlaTokens& tokens, float* rows, int parts, int part, Isa isa) {
  const MlaShape& s = weights.shape();
  const KernelTable& table = kernel_table(isa);
  const std::int64_t row = s.latent_dim + s.rope_dim;
  // The rotated key is one unit of work, because RoPE needs all of it; with few tokens the latent goes in smaller ones.
  const std::int64_t block = blocks_of(s.latent_dim) * tokens.n >= 4 * parts ? kBlock : kLanes;
  const std::int64_t latent_units = (s.latent_dim + block - 1) / block, units = latent_units + (s.rope_dim > 0 ? 1 : 0);
  const Range items = share(units * tokens.n, parts, part);
  for (std::int64_t i = items.begin; i < items.end; ++i) {
    const std::int64_t unit = i / tokens.n, r = i % tokens.n;
    const float* x = tokens.x + r * tokens.row_stride;
    float* to = rows + r * row;
    if (unit < latent_units) {
      const std::int64_t o = unit * block;
      table.project(weights.w_dkv() + o * s.model_dim, x, std::min(block, s.latent_dim - o), s.model_dim, to + o);
    } else {
      float* key = to + s.latent_dim;
      table.project(weights.w_kr(), x, s.rope_dim, s.model_dim, key);
      table.rope(key, 1, s.rope_dim, s.rope_dim, tokens.first_position + r, tokens.inv_freq.data(),
                 tokens.pairing == RopePairing::interleaved);
    }
  }
}

void mla_compress(const MlaWeights& weights, const MlaTokens& tokens, float* rows, int threads) {
  mla_compress(weights, tokens, rows, threads, default_isa());
}

void mla_compress(const MlaWeights& weights, const MlaTokens& tokens, float* rows, int threads, Isa isa) {
  mla_require_threads(threads);
  kernel_table(isa);
  mla_check_tokens(weights, tokens, rows);
  on_threads(threads, [&](int part) { mla_compress_part(weights, tokens, rows, threads, part, isa); });
}

}  // namespace kvroof
