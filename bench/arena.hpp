// The memory that rows read: one region per storage type, used by all rows, plus scratch. Reserved once, backed by huge
// pages where the system gives them, filled with non-zero values before anything is timed.
//
// Element i of a region is uniform(seed of the storage, i) rounded to the storage type, so any stretch is a valid cache
// and the first cache of a row holds the same values on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/kernels.hpp"

namespace kvroof::bench {

// Cuts `bytes` into `parts` shares at cache lines; share p is [share_begin(p), share_begin(p+1)).
inline std::size_t share_begin(std::size_t bytes, int parts, int p) {
  if (p >= parts) return bytes;
  return bytes / static_cast<std::size_t>(parts) * static_cast<std::size_t>(p) / 64 * 64;
}

// The caches of one row: `count` of them side by side, each K (k_bytes) then V (v_bytes).
struct CacheSet {
  const std::byte* base = nullptr;
  std::size_t k_bytes = 0, v_bytes = 0;
  // int8 only: per cache, `scale_count` scales of K rows, then as many of V rows
  const float* scales = nullptr;
  std::size_t scale_count = 0;
  std::int64_t count = 0;
  std::size_t slot_bytes() const { return k_bytes + v_bytes; }
  std::size_t total_bytes() const { return slot_bytes() * static_cast<std::size_t>(count); }
  const std::byte* k(std::int64_t i) const { return base + slot_bytes() * static_cast<std::size_t>(i % count); }
  const std::byte* v(std::int64_t i) const { return k(i) + k_bytes; }
  const float* k_scale(std::int64_t i) const {
    return scales == nullptr ? nullptr : scales + 2 * scale_count * static_cast<std::size_t>(i % count);
  }
  const float* v_scale(std::int64_t i) const { return scales == nullptr ? nullptr : k_scale(i) + scale_count; }
};

// How many caches of `bytes` a row rotates over. Warm: one. Cold: their sum is at least 4 times the last-level cache,
// and there are two unless one alone is 8 times as large, so that what is read next is never what was read last.
std::int64_t cache_copies(bool cold, std::size_t bytes, std::int64_t last_level_bytes);

class Arena {
 public:
  // `memory_limit`: never hold more than this (bytes); none: what is free, less a reserve. `numa_nodes` above one makes
  // every row place its pages anew, first touched by the thread that reads them.
  Arena(std::optional<std::int64_t> memory_limit, std::int64_t numa_nodes, Isa isa);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // "" and `set.base` (for int8 `set.scales` too) filled in, or why it cannot be: "needs 8.0 GiB, 3.1 GiB are free".
  std::string prepare(Storage storage, CacheSet& set, int threads);
  // Scratch that belongs to the caller until the next call with the same slot number. Null if there is no room.
  // 0: a rival's own layout, 1: cache operations, 2: int8 latent rows, 3: a rival's copy of V, 4: keys and values that
  // a rival makes from latent rows
  static constexpr int kScratchSlots = 5;
  std::byte* scratch(int slot, std::size_t bytes, std::string& reason);

  std::int64_t held_bytes() const;  // filled or touched so far
  std::int64_t huge_bytes() const;  // of those, on huge pages, from /proc/self/smaps
  const std::string& huge_source() const { return huge_source_; }
  std::int64_t room_bytes() const;  // what may still be taken

 private:
  struct Region {
    std::byte* base = nullptr;
    std::size_t reserved = 0, used = 0;
    std::size_t placed_slot = 0, placed_k = 0;  // placement in force on machines with several nodes
    int placed_threads = 0;
  };
  bool grow(Region& region, std::size_t bytes, std::string& reason);
  void fill(Storage storage, std::byte* base, std::size_t begin, std::size_t end) const;
  std::string prepare_scales(CacheSet& set);

  std::optional<std::int64_t> limit_;
  std::int64_t nodes_;
  Isa isa_;
  Region regions_[4];
  Region scales_;  // of int8 rows: values that keep scores small
  Region scratch_[kScratchSlots];
  std::string huge_source_ = "/proc/self/smaps, AnonHugePages of the arena";
};

}  // namespace kvroof::bench
