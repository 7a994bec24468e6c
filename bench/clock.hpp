// Time and the clock rate.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace kvroof::bench {

inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Clock rate of the calling thread's core by a loop of dependent one-cycle additions: the fastest of a few runs of
// about 0.2 ms, since a neighbour or an interrupt can only slow a run down. Nothing where the architecture has no such
// loop.
std::optional<double> measured_mhz();

}  // namespace kvroof::bench
