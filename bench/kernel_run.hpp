// The kernel under test over every cache of a rotation, with all that a call needs made beforehand, and its check
// against the oracle whatever the layout of the rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/cases.hpp"
#include "bench/decode_setup.hpp"
#include "kernels/kernels.hpp"

namespace kvroof::bench {

// One call's sequences: their views and the runs behind them.
struct CallViews {
  std::vector<std::vector<RowRun>> runs;  // per sequence
  std::vector<KvView> views;              // `runs` pointers are set by KernelRun
};

// The one-run view of cache number `i` of the set, its rows in the case's order.
CallViews contiguous_views(const DecodeCase& c, const CacheSet& set, std::int64_t i);
// Those of all caches of the set.
std::vector<CallViews> contiguous_views(const DecodeCase& c, const CacheSet& set);

// A kernel of ours as a tuple sees it. hash() and check() are about the last call, which must have been call 0.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void call(std::int64_t visit) = 0;
  virtual std::int64_t bytes() const = 0;
  virtual std::int64_t flops() const = 0;
  virtual std::string hash() const = 0;
  virtual Check check(const std::vector<DecodeSetup::Sample>& samples) const = 0;
};

std::string hash_of(const std::vector<float>& out);

class KernelRun : public Kernel {
 public:
  // calls[i]: what call number i reads; the rotation goes through them. The window is unlimited for c.window == 0.
  KernelRun(const DecodeCase& c, std::vector<CallViews> calls);

  void call(std::int64_t visit) override;
  const float* out() const { return out_.data(); }
  const float* lse() const { return lse_.data(); }
  const AttentionArgs& args(std::int64_t i) const { return args_[static_cast<std::size_t>(i)]; }  // of call number i
  std::int64_t bytes() const override { return attention_bytes(args_[0]); }
  std::int64_t flops() const override { return attention_flops(args_[0]); }
  std::string hash() const override { return hash_of(out_); }

  // The oracle's answers to call 0: first and last sequence, query and head.
  std::vector<DecodeSetup::Sample> oracle_samples() const;
  Check check(const std::vector<DecodeSetup::Sample>& samples) const override;

 private:
  DecodeCase c_;
  std::vector<float> q_, out_, lse_;
  std::vector<CallViews> calls_;
  std::vector<std::vector<AttentionSequence>> sequences_;
  std::vector<AttentionArgs> args_;
  std::vector<std::byte> workspace_;
  std::span<std::byte> aligned_;
};

// Queries are the same for every row of a shape: element i of one stream.
std::vector<float> query_values(std::size_t count);

}  // namespace kvroof::bench
