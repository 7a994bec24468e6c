// Multi-head latent attention under measurement: its cases at DeepSeek-V3's dimensions, the weights, and one of three
// kernels over every cache of a rotation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/arena.hpp"
#include "bench/cases.hpp"
#include "bench/kernel_run.hpp"
#include "kernels/mla.hpp"

namespace kvroof::bench {

enum class MlaKind {
  absorbed,       // q' given: the attention over latent rows alone
  absorbed_step,  // with both folds, so that the weights are read too
  reconstruct,
};
const char* mla_kernel_name(MlaKind kind);  // mla_absorbed, ...

// Keys 128 + 64, values 128, latent 512, with DeepSeek-V3's 128 heads or DeepSeek-V2-Lite's 16.
MlaShape mla_bench_shape(std::int64_t heads = 128);

// A case without T, n, storage and threads. Hkv is 1: a token has one row for all heads. Dk and Dv are those of the
// query and the output of this kernel: 576 and 512 where q' is given, else 192 and 128.
DecodeCase mla_case(MlaKind kind, std::int64_t heads = 128);
// The cache that latent rows of the case replace: a K and a V row for every head.
DecodeCase mla_replaced_case(const DecodeCase& c);

// What the kernels' own counts must come to (kernels/mla.hpp has the rules); for rows that did not run too.
std::int64_t mla_case_bytes(MlaKind kind, const DecodeCase& c);
std::int64_t mla_case_flops(MlaKind kind, const DecodeCase& c);

// The weights, in as many equal copies as make a rotation over them cold. One object for all entries of a shape.
class MlaInputs {
 public:
  explicit MlaInputs(const MlaShape& shape) : shape_(shape) {}
  // "" or why there is no room. Made at first use, kept. `copies` 0: the plain matrices only.
  std::string make(std::int64_t copies, std::int64_t room_bytes);
  const MlaShape& shape() const { return shape_; }
  const MlaWeights& weights(std::int64_t visit) const {
    return *copies_[static_cast<std::size_t>(visit) % copies_.size()];
  }
  const std::vector<float>& w_uk() const { return w_uk_; }
  const std::vector<float>& w_uv() const { return w_uv_; }

 private:
  MlaShape shape_;
  std::vector<float> w_uk_, w_uv_;
  std::vector<std::unique_ptr<MlaWeights>> copies_;
};

// The latent rows of `c`: the arena's values as they are, or for int8 (whose rows hold scales and a bf16 key between
// the integers) rows encoded into scratch. Fills in `set`; "" or the reason.
std::string prepare_latents(Arena& arena, const DecodeCase& c, CacheSet& set);

class MlaRun : public Kernel {
 public:
  // Copies of the weights must have been made unless kind is absorbed.
  MlaRun(MlaKind kind, const DecodeCase& c, const MlaInputs& inputs, const CacheSet& set);

  void call(std::int64_t visit) override;
  std::int64_t bytes() const override;
  std::int64_t flops() const override;
  std::string hash() const override;
  Check check(const std::vector<DecodeSetup::Sample>& samples) const override;
  const std::vector<float>& q() const { return q_; }
  float scale() const { return options_.scale; }

  // The right answer to call 0 for the first and the last head and query. Up to kOracleRows rows the reference's oracle
  // with its bound for every element; beyond, float64 with W_UK folded into the query (the oracle writes out every
  // head's keys) and one bound relative to the largest output. mla_absorbed: always the oracle.
  static constexpr std::int64_t kOracleRows = 1024;
  std::vector<DecodeSetup::Sample> oracle_samples() const;

 private:
  MlaArgs args(std::int64_t visit) const;
  AttentionArgs absorbed_args(std::int64_t visit) const;
  reference::OracleAnswer answer(const float* q, const std::vector<float>& rows, std::int64_t head,
                                 std::int64_t visible) const;

  MlaKind kind_;
  DecodeCase c_;
  const MlaInputs& inputs_;
  AttentionOptions options_;
  std::vector<float> q_, out_, lse_;
  std::vector<RowRun> runs_;
  std::vector<AttentionSequence> sequences_;
  std::vector<std::byte> workspace_;
  std::span<std::byte> aligned_;
};

}  // namespace kvroof::bench
