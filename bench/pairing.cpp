#include "bench/pairing.hpp"

#include <algorithm>
#include <cmath>

#include "bench/clock.hpp"
#include "bench/statistics.hpp"

namespace kvroof::bench {

PairingResult run_paired(const std::vector<Contender>& contenders, const PairingOptions& options) {
  const std::size_t n = contenders.size();
  PairingResult result;
  result.time_ns.resize(n);
  result.calls.assign(n, 1);
  const double budget_ns = options.budget_s * 1e9;

  std::int64_t visit = 0;
  std::vector<double> estimate(n, 0);
  for (std::size_t c = 0; c < n; ++c) {
    estimate[c] = contenders[c].first_call_ns;
    if (estimate[c] > budget_ns * 0.1) continue;  // long enough to be told from one call
    // The second call is the estimate: the first one wakes threads and touches code for the first time.
    for (int i = 0; i < 2; ++i) {
      const std::int64_t start = now_ns();
      contenders[c].call(visit++);
      estimate[c] = static_cast<double>(std::max<std::int64_t>(1, now_ns() - start));
    }
  }
  for (std::size_t c = 0; c < n; ++c)
    result.calls[c] =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(options.min_sample_ns / estimate[c])), 1, 10000);

  // How often each takes part: every `stride`-th repetition.
  double fast_ns = 0;
  for (std::size_t c = 0; c < n; ++c)
    if (contenders[c].budget_share >= 1.0) fast_ns += estimate[c] * static_cast<double>(result.calls[c]);
  const double expected =
      std::clamp(fast_ns > 0 ? budget_ns / fast_ns : 1.0, static_cast<double>(options.min_repetitions),
                 static_cast<double>(options.max_repetitions));
  std::vector<int> stride(n, 1);
  for (std::size_t c = 0; c < n; ++c) {
    if (contenders[c].budget_share >= 1.0) continue;
    const double sample = estimate[c] * static_cast<double>(result.calls[c]);
    const double affordable = std::max(1.0, contenders[c].budget_share * budget_ns / sample);
    stride[c] = static_cast<int>(std::ceil(std::max(1.0, expected / affordable)));
  }

  const std::int64_t start = now_ns();
  for (int r = 0; r < options.max_repetitions; ++r) {
    if (r >= options.min_repetitions && static_cast<double>(now_ns() - start) > budget_ns) break;
    for (std::size_t c = 0; c < n; ++c) result.time_ns[c].push_back(0);
    for (std::size_t turn = 0; turn < n; ++turn) {
      const std::size_t c = r % 2 == 0 ? turn : n - 1 - turn;
      if (r % stride[c] != 0) continue;
      const std::int64_t calls = result.calls[c];
      const std::int64_t begin = now_ns();
      for (std::int64_t i = 0; i < calls; ++i) contenders[c].call(visit + i);
      const std::int64_t end = now_ns();
      visit += calls;
      result.time_ns[c].back() =
          static_cast<double>(std::max<std::int64_t>(1, end - begin)) / static_cast<double>(calls);
    }
    ++result.repetitions;
  }
  return result;
}

std::vector<double> repetition_medians(const std::vector<double>& values, int repetitions, std::int64_t calls) {
  const std::ptrdiff_t each = static_cast<std::ptrdiff_t>(calls);
  std::vector<double> medians;
  for (int r = 0; r < repetitions; ++r) {
    const auto first = values.end() - (repetitions - r) * each;
    medians.push_back(median(std::vector<double>(first, first + each)));
  }
  return medians;
}

}  // namespace kvroof::bench
