// One tuple while it is measured: its roofs, its contenders, and the rows that come out of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernel_run.hpp"
#include "bench/pairing.hpp"
#include "bench/result_rows.hpp"
#include "bench/rivals/rival.hpp"
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

  // One more compute roof in the same turns; its number for add_kernel and set_measured. That of the tuple is 0.
  std::size_t add_compute(const ComputeOp& op);

  // One more read roof in the same turns, for a row that reads far more or less than the tuple's caches: scaled from
  // those, the start of a team would weigh wrongly. Its number for set_measured; that of the tuple is 0.
  std::size_t add_read(const CacheSet& caches);

  // The page-order roof of a paged row: a read of the same pieces in the kernel's order, one walk per cache. In the
  // same turns as all else; where it stands.
  std::size_t add_page_order(std::vector<PieceWalk> walks);

  // Calls the kernel once on call 0, fills in hash, bytes, flops and check, and enters it as a contender; kNone (and a
  // row that says why) if it throws or its result is wrong.
  std::size_t add_kernel(Kernel& kernel, const std::vector<DecodeSetup::Sample>& samples, Json& row,
                         double budget_share = 1.0, std::size_t compute = 0);

  // `seconds`: for the pairs. At least `least_pairs` repetitions, 0: the preset's.
  void measure(double seconds, int least_pairs = 0);

  // To be called after measure. `kvroof_at`: the contender that time_ratio_to_kvroof refers to; kNone for our own rows.
  void set_measured(Json& row, std::size_t at, std::size_t kvroof_at, std::size_t compute = 0,
                    std::size_t read = 0) const;
  // After set_measured: the row, measured at `at`, against the page-order roof at `roof_at`, and that against the read
  // roof of the tuple.
  void set_page_order(Json& row, std::size_t at, std::size_t roof_at) const;
  // Enters the rivals that can run; where each stands, kNone for the others.
  std::vector<std::size_t> add_rivals(const std::vector<Rival>& rivals);
  // set_measured for a rival's row; nothing for one that could not run.
  void set_rival(Json& row, std::size_t at, std::size_t kvroof_at) const;
  Json probe_row(const DecodeCase& c, const std::string& tuple, std::size_t kvroof_at) const;
  Ratio ratio(std::size_t a, std::size_t b) const;  // time of a over time of b, by pairs

 private:
  struct ComputeProbe {
    ComputeOp op;
    std::size_t at = 0;               // the contender
    std::vector<double> call_gflops;  // of every call
    std::vector<double> gflops;       // per repetition
  };

  struct ReadProbe {
    CacheSet caches;
    const ReadVariant* variant = nullptr;
    std::size_t at = 0;  // the contender
  };

  struct PageOrder {
    std::vector<PieceWalk> walks;
    const PieceVariant* variant = nullptr;
    std::size_t at = 0;  // the contender
  };

  Sweep& sweep_;
  DecodeCase c_;
  std::vector<Contender> contenders_;
  std::vector<std::unique_ptr<ReadProbe>> reads_;
  std::vector<std::unique_ptr<ComputeProbe>> compute_;
  std::vector<std::unique_ptr<PageOrder>> page_orders_;
  PairingResult paired_;
  Conditions conditions_;
  std::optional<std::int64_t> throttled_before_;
};

// The row of native mode in the tuple of the same case in reproducible mode. Its status is null where it can run, to be
// measured; else it says why not.
Json native_row(const DecodeCase& native, const std::string& tuple);

// A row for each implementation of a decode entry that was not measured at all, that of native mode before our own.
std::vector<Json> rows_not_run(const DecodeCase& c, const std::vector<std::string>& impls, const std::string& reason);

}  // namespace kvroof::bench
