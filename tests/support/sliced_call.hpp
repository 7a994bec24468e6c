// Attention over one context in slices of segments, as several processes hold it: partials of each, joined.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/attend.hpp"

namespace kvroof::test {

using Cuts = std::vector<std::int64_t>;               // segments at which the context is cut, ascending
inline constexpr std::int64_t kEndOfSegments = 1000;  // beyond the last segment of every case

class SlicedCall {
 public:
  SlicedCall(const std::vector<Case>& cases, std::uint64_t layout_seed, Mode mode = Mode::reproducible);

  // One block per call, from nothing but the rows of segments [begin, end).
  GuardedBuffer partials(std::int64_t begin, std::int64_t end, int threads, Isa isa);
  void finish(std::vector<GuardedBuffer>& blocks, Isa isa);
  bool nothing_written() const;
  void expect_results(const std::vector<Attention>& expected, const std::string& what) const;

 private:
  Sequences stored_;
  StoredCall call_;
};

// The cases in one call, cut, have the bits that each has alone and whole. how.parts is the number of threads.
void expect_slices_as_whole(const std::vector<Case>& cases, const Cuts& cuts, const How& how, const std::string& what);

}  // namespace kvroof::test
