// One tuple while it is measured: its roofs, its contenders, and the rows that come out of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/kernel_run.hpp"
#include "bench/pairing.hpp"
#include "bench/result_rows.hpp"
#include "bench/sweep.hpp"

namespace kvroof::bench {

class TupleRun {
 public:
  static constexpr std::size_t kNone = SIZE_MAX;

  // `op`: of the compute roof, none: FMA on the case's storage for its query group. Reads the clock, chooses the
  // probe's variant for `caches`, and enters the two roofs as the first contenders.
  TupleRun(Sweep& sweep, const CacheSet& caches, const DecodeCase& c, std::optional<ComputeOp> op = std::nullopt);
  TupleRun(const TupleRun&) = delete;
  TupleRun& operator=(const TupleRun&) = delete;

  std::size_t add(Contender contender);

  // Calls the kernel once on call 0, fills in hash, bytes, flops and check, and enters it as a contender; kNone (and a
  // row that says why) if it throws or its result is wrong.
  std::size_t add_kernel(Kernel& kernel, const std::vector<DecodeSetup::Sample>& samples, Json& row,
                         double budget_share = 1.0);

  // `seconds`: for the pairs. At least `least_pairs` repetitions, 0: the preset's.
  void measure(double seconds, int least_pairs = 0);

  // To be called after measure. `kvroof_at`: the contender that time_ratio_to_kvroof refers to; kNone for our own rows.
  void set_measured(Json& row, std::size_t at, std::size_t kvroof_at) const;
  Json probe_row(const DecodeCase& c, const std::string& tuple, std::size_t kvroof_at) const;
  Ratio ratio(std::size_t a, std::size_t b) const;  // time of a over time of b, by pairs

 private:
  Sweep& sweep_;
  CacheSet caches_;
  DecodeCase c_;
  ComputeOp op_;
  const ReadVariant& variant_;
  std::vector<Contender> contenders_;
  std::size_t probe_at_ = 0, compute_at_ = 0;
  std::vector<double> call_gflops_;  // of every call of the compute probe
  std::vector<double> gflops_;       // per repetition
  PairingResult paired_;
  Conditions conditions_;
  std::optional<std::int64_t> throttled_before_;
};

// A row for each implementation of a decode entry that could not run at all.
std::vector<Json> rows_not_run(const DecodeCase& c, const std::vector<std::string>& impls, const std::string& status,
                               const std::string& reason);

}  // namespace kvroof::bench
