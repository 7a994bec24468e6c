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

// What a kernel reads of one cache, in its order: segment s of head (or run of heads) h is pieces [segments[s],
// segments[s + 1]), moved by h times the head strides. Listed once for all heads, so that the list is a small part of
// what is read.
struct PieceWalk {
  std::vector<Piece> pieces;
  std::vector<std::size_t> segments;  // one more than there are
  std::int64_t heads = 0, k_head_stride = 0, v_head_stride = 0;
};

class Roofs {
 public:
  explicit Roofs(Isa isa);
  Isa isa() const { return table_.isa; }

  // The variant for caches of this size read by this many threads: chosen once by the median of a few passes over
  // different caches of `set`, then kept for the whole sweep.
  const ReadVariant& read_variant(const CacheSet& set, int threads, bool cold);

  // Reads cache `slot` of the set once, thread p its share of K and of V. Returns the sum of all words.
  std::uint64_t read(const CacheSet& set, std::int64_t slot, int threads, const ReadVariant& variant) const;

  // The same for the pieces of a walk; thread p reads its share of the line of all heads' segments.
  const PieceVariant& piece_variant(const std::vector<PieceWalk>& walks, int threads) const;
  std::uint64_t read(const PieceWalk& walk, int threads, const PieceVariant& variant) const;

  // About `ns` of the operation on every thread at once, in slices that each thread times itself. The rate is the sum
  // over threads of the median slice's: waking the team, waiting for its last thread, and slices in which a thread had
  // to leave its core to another process are not the core's speed, and on a busy machine are most of the time.
  struct Compute {
    double flops = 0;   // done by all threads
    double gflops = 0;  // rate of all threads
  };
  static constexpr int kComputeSlices = 7;
  Compute compute(const ComputeOp& op, int threads, double ns);

 private:
  const ProbeTable& table_;
  std::vector<std::byte> blocks_[4];  // by storage: small values of both signs, in L1
  std::map<std::tuple<std::size_t, int, bool>, const ReadVariant*> variants_;
  std::map<std::string, double> flops_per_ns_;  // of one thread: the fastest seen, which sets the length of slices only
};

}  // namespace kvroof::bench
