// The benchmark's turn-taking and its statistics.
#ifdef KVROOF_TEST_BENCH

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "bench/pairing.hpp"
#include "bench/statistics.hpp"

namespace kvroof::bench {
namespace {

TEST(BenchStatistics, QuartilesInterpolate) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(quantile({0, 1, 2, 3, 4}, 0.25), 1);
  EXPECT_EQ(quantile({0, 1, 2, 3}, 0.75), 2.25);
  EXPECT_TRUE(std::isnan(median({})));
  EXPECT_EQ(pair_ratios({2, 0, 9}, {1, 5, 3}), (std::vector<double>{2, 3}));  // 0: took no part
  EXPECT_EQ(summarize({}).n, 0);
}

void spin(std::int64_t ns) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns);
  while (std::chrono::steady_clock::now() < end) {
  }
}

TEST(BenchPairing, TakesTurnsOnDifferentCachesAndReversesEverySecondTime) {
  std::vector<std::pair<int, std::int64_t>> log;
  std::vector<Contender> contenders;
  for (int c = 0; c < 3; ++c)
    contenders.push_back({std::to_string(c), [&log, c](std::int64_t visit) {
                            log.push_back({c, visit});
                            spin(20000);
                          }});
  PairingOptions options;
  options.budget_s = 0;
  options.min_repetitions = 4;
  options.max_repetitions = 4;
  options.min_sample_ns = 1;
  const PairingResult result = run_paired(contenders, options);
  EXPECT_EQ(result.repetitions, 4);
  std::vector<int> order;
  for (std::size_t i = 6; i < log.size(); ++i) order.push_back(log[i].first);  // six calls find out the pace
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0}));
  for (std::size_t i = 1; i < log.size(); ++i) EXPECT_EQ(log[i].second, log[i - 1].second + 1);
  for (const auto& times : result.time_ns) {
    ASSERT_EQ(times.size(), 4u);
    for (double ns : times) EXPECT_GE(ns, 20000);
  }
}

TEST(BenchPairing, ASlowContenderTakesPartAtLeastOnceAndSeldom) {
  int slow_calls = 0;
  std::vector<Contender> contenders;
  contenders.push_back({"fast", [](std::int64_t) { spin(100000); }});
  contenders.push_back({"slow",
                        [&](std::int64_t) {
                          ++slow_calls;
                          spin(20000000);
                        },
                        0.1, 20e6});
  PairingOptions options;
  options.budget_s = 0.02;
  options.min_repetitions = 10;
  options.max_repetitions = 10;
  options.min_sample_ns = 1;
  const PairingResult result = run_paired(contenders, options);
  EXPECT_EQ(slow_calls, 1);
  EXPECT_EQ(std::count_if(result.time_ns[1].begin(), result.time_ns[1].end(), [](double ns) { return ns > 0; }), 1);
  EXPECT_EQ(pair_ratios(result.time_ns[1], result.time_ns[0]).size(), 1u);
}

TEST(BenchPairing, ShortCallsAreRepeatedUntilTheSampleIsLongEnough) {
  std::vector<Contender> contenders;
  contenders.push_back({"short", [](std::int64_t) { spin(10000); }});
  PairingOptions options;
  options.budget_s = 0;
  options.min_repetitions = options.max_repetitions = 1;
  options.min_sample_ns = 1e6;
  PairingResult result = run_paired(contenders, options);
  // An interruption during the one call that sets the pace would make it look long; it does not strike five times.
  for (int again = 0; again < 5 && result.calls[0] < 2; ++again) result = run_paired(contenders, options);
  EXPECT_GE(result.calls[0], 2);
  EXPECT_LE(result.calls[0], 100);
  EXPECT_LT(result.time_ns[0][0], 1e6);  // of one call, not of the sample
}

TEST(BenchPairing, MediansOfACallsOwnFiguresPerRepetition) {
  // Two calls before the first repetition, then two repetitions of three.
  EXPECT_EQ(repetition_medians({9, 9, 1, 2, 30, 4, 5, 60}, 2, 3), (std::vector<double>{2, 5}));
  EXPECT_EQ(repetition_medians({7, 8}, 2, 1), (std::vector<double>{7, 8}));
}

}  // namespace
}  // namespace kvroof::bench

#endif  // KVROOF_TEST_BENCH
