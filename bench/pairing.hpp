// Paired measurement. On a shared machine an absolute time means little and drifts while one looks; what holds is the
// ratio of two times taken one right after the other. So all contenders of a tuple take turns, repetition by
// repetition, on the same threads and the same kind of bytes, and every claim is made from ratios within one
// repetition.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvroof::bench {

struct Contender {
  std::string role;
  // One call on cache number `visit` of the rotation (any non-negative number; the callee reduces it).
  std::function<void(std::int64_t visit)> call;
  // A contender far slower than the rest takes part in as few repetitions as keep it within this share of the budget,
  // but in at least one.
  double budget_share = 1.0;
  double first_call_ns = 0;  // if it was already called for its check: saves the call that finds out how long it takes
};

struct PairingOptions {
  double budget_s = 1.0;  // for the timed part
  int min_repetitions = 5;
  int max_repetitions = 41;
  double min_sample_ns = 1e6;  // calls are repeated until a sample lasts this long
  std::int64_t caches = 1;     // in rotation
};

struct PairingResult {
  // time[c][r]: ns of one call of contender c in repetition r; 0 where it did not take part
  std::vector<std::vector<double>> time_ns;
  std::vector<std::int64_t> calls;  // per sample
  int repetitions = 0;
};

// Each contender works on the caches that follow the ones the previous contender visited, so that all of them find
// equally cold (or, with one cache, equally warm) data. Every second repetition goes through the contenders backwards:
// a drift of the machine then pushes ratios up and down in turn instead of one way.
PairingResult run_paired(const std::vector<Contender>& contenders, const PairingOptions& options);

// For a contender that took part in every repetition and measured each of its calls itself: the median per repetition.
// `values` may begin with those of calls made before the first repetition.
std::vector<double> repetition_medians(const std::vector<double>& values, int repetitions, std::int64_t calls);

}  // namespace kvroof::bench
