// The roofs: how fast these threads can read these bytes, and how many FMA they can do. Measured beside every row.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "bench/arena.hpp"
#include "bench/cases.hpp"
#include "bench/probe.hpp"

namespace kvroof::bench {

class Roofs {
 public:
  explicit Roofs(Isa isa);
  Isa isa() const { return table_.isa; }

  // The variant for caches of this size read by this many threads: chosen once by the median of a few passes over
  // different caches of `set`, then kept for the whole sweep.
  const ReadVariant& read_variant(const CacheSet& set, int threads, bool cold);

  // Reads cache `slot` of the set once, thread p its share of K and of V. Returns the sum of all words.
  std::uint64_t read(const CacheSet& set, std::int64_t slot, int threads, const ReadVariant& variant) const;

  // About `ns` of the operation on every thread; returns the operations done by all of them.
  double compute(const ComputeOp& op, int threads, double ns);

 private:
  const ProbeTable& table_;
  std::vector<std::byte> blocks_[4];  // by storage: small values of both signs, in L1
  std::map<std::tuple<std::size_t, int, bool>, const ReadVariant*> variants_;
  std::map<std::string, double> flops_per_ns_;  // of one thread
};

}  // namespace kvroof::bench
