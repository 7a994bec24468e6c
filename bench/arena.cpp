#include "bench/arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "bench/machine.hpp"
#include "bench/threads.hpp"
#include "reference/inputs.hpp"

namespace kvroof::bench {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::int64_t kReserve = std::int64_t{512} << 20;  // left to the rest of the system
constexpr std::size_t kAddressSpace = std::size_t{1} << 40;

std::string gib(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

// Reserves addresses only; pages come with the first touch. A system that refuses to overcommit gets the exact size.
std::byte* reserve(std::size_t& bytes, std::size_t least) {
  for (std::size_t size : {bytes, (least + kHugePage) / kHugePage * kHugePage + kHugePage}) {
    void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) continue;
    bytes = size;
    return static_cast<std::byte*>(at);
  }
  return nullptr;
}

}  // namespace

std::int64_t cache_copies(bool cold, std::size_t bytes, std::int64_t last_level_bytes) {
  if (!cold || bytes == 0) return 1;
  const std::int64_t size = static_cast<std::int64_t>(bytes);
  const std::int64_t enough = (4 * last_level_bytes + size - 1) / size;
  return std::max<std::int64_t>(enough, size >= 8 * last_level_bytes ? 1 : 2);
}

Arena::Arena(std::optional<std::int64_t> memory_limit, std::int64_t numa_nodes, Isa isa)
    : limit_(memory_limit), nodes_(numa_nodes), isa_(isa) {}

Arena::~Arena() {
  for (Region& region : regions_)
    if (region.base != nullptr) munmap(region.base, region.reserved);
  for (Region& region : scratch_)
    if (region.base != nullptr) munmap(region.base, region.reserved);
  if (scales_.base != nullptr) munmap(scales_.base, scales_.reserved);
}

std::int64_t Arena::held_bytes() const {
  std::size_t bytes = 0;
  for (const Region& region : regions_) bytes += region.used;
  for (const Region& region : scratch_) bytes += region.used;
  bytes += scales_.used;
  return static_cast<std::int64_t>(bytes);
}

std::int64_t Arena::room_bytes() const {
  std::int64_t room = memory_available_now() - kReserve;
  if (limit_) room = std::min(room, *limit_ - held_bytes());
  return std::max<std::int64_t>(room, 0);
}

bool Arena::grow(Region& region, std::size_t bytes, std::string& reason) {
  if (bytes <= region.used) return true;
  const std::int64_t more = static_cast<std::int64_t>(bytes - region.used);
  const std::int64_t room = room_bytes();
  if (more > room) {
    reason = "needs " + gib(static_cast<std::int64_t>(bytes)) + ", " +
             gib(room + static_cast<std::int64_t>(region.used)) + (limit_ ? " within the memory limit" : " free");
    return false;
  }
  if (bytes + kHugePage > region.reserved) {
    if (region.base != nullptr) munmap(region.base, region.reserved);
    region = {};
    region.reserved = kAddressSpace;
    region.base = reserve(region.reserved, bytes);
    if (region.base == nullptr) {
      region = {};
      reason = "needs " + gib(static_cast<std::int64_t>(bytes)) + ", the system refuses the mapping";
      return false;
    }
    madvise(region.base, region.reserved, MADV_HUGEPAGE);  // what was got is measured, not assumed
  }
  return true;
}

// Elements of bytes [begin, end) of a region; begin and end lie at multiples of 64.
void Arena::fill(Storage storage, std::byte* base, std::size_t begin, std::size_t end) const {
  constexpr std::size_t kBlock = 4096;
  float values[kBlock];
  const std::uint64_t seed = 100 + static_cast<std::uint64_t>(storage);
  const std::size_t width = storage_bytes(storage);
  for (std::size_t at = begin; at < end;) {
    const std::size_t n = std::min(kBlock, (end - at) / width);
    if (n == 0) break;
    for (std::size_t i = 0; i < n; ++i) values[i] = reference::uniform(seed, at / width + i);
    switch (storage) {
      case Storage::f32: std::memcpy(base + at, values, n * 4); break;
      case Storage::f16: convert_to_f16(values, reinterpret_cast<std::uint16_t*>(base + at), n, isa_); break;
      case Storage::bf16: convert_to_bf16(values, reinterpret_cast<std::uint16_t*>(base + at), n, isa_); break;
      case Storage::int8:
        for (std::size_t i = 0; i < n; ++i)
          base[at + i] = static_cast<std::byte>(static_cast<std::int8_t>(values[i] * 127.0f));
        break;
    }
    at += n * width;
  }
}

std::string Arena::prepare(Storage storage, CacheSet& set, int threads) {
  Region& region = regions_[static_cast<int>(storage)];
  const std::size_t bytes = (set.total_bytes() + 63) / 64 * 64;
  std::string reason;
  if (!grow(region, bytes, reason)) return reason;
  std::byte* const base = region.base;
  set.base = base;
  if (nodes_ <= 1) {
    const std::size_t old = region.used;
    if (bytes > old) {
      const int fillers = omp_get_num_procs() > threads ? omp_get_num_procs() : threads;
      run_team(fillers, [&](int p) {
        fill(storage, base, old + share_begin(bytes - old, fillers, p), old + share_begin(bytes - old, fillers, p + 1));
      });
    }
  } else if (bytes > region.used || region.placed_slot != set.slot_bytes() || region.placed_k != set.k_bytes ||
             region.placed_threads != threads) {
    madvise(base, std::max(bytes, region.used), MADV_DONTNEED);
    const auto place = [&](std::size_t begin, std::size_t length, int p) {
      const std::size_t first = begin + share_begin(length, threads, p),
                        last = begin + share_begin(length, threads, p + 1);
      fill(storage, base, first / 64 * 64, (last + 63) / 64 * 64);
    };
    run_team(threads, [&](int p) {
      for (std::int64_t i = 0; i < set.count; ++i) {
        const std::size_t slot = set.slot_bytes() * static_cast<std::size_t>(i);
        place(slot, set.k_bytes, p);
        place(slot + set.k_bytes, set.v_bytes, p);
      }
    });
    region.placed_slot = set.slot_bytes();
    region.placed_k = set.k_bytes;
    region.placed_threads = threads;
    region.used = 0;
  }
  region.used = std::max(region.used, bytes);
  return storage == Storage::int8 ? prepare_scales(set) : "";
}

std::string Arena::prepare_scales(CacheSet& set) {
  const std::size_t count = 2 * set.scale_count * static_cast<std::size_t>(set.count);
  std::string reason;
  if (!grow(scales_, count * sizeof(float), reason)) return reason;
  auto* const scales = reinterpret_cast<float*>(scales_.base);
  for (std::size_t i = scales_.used / sizeof(float); i < count; ++i)
    scales[i] = (reference::uniform(200, i) + 1.5f) / 127.0f;
  scales_.used = std::max(scales_.used, count * sizeof(float));
  set.scales = scales;
  return "";
}

std::byte* Arena::scratch(int slot, std::size_t bytes, std::string& reason) {
  Region& region = scratch_[slot];
  if (!grow(region, bytes, reason)) return nullptr;
  region.used = std::max(region.used, bytes);
  return region.base;
}

std::int64_t Arena::huge_bytes() const {
  std::ifstream in("/proc/self/smaps");
  std::string line;
  std::int64_t total = 0;
  bool ours = false;
  const auto overlaps = [](const Region& region, std::uintptr_t begin, std::uintptr_t end) {
    const auto at = reinterpret_cast<std::uintptr_t>(region.base);
    return region.base != nullptr && begin < at + region.used && at < end;
  };
  while (std::getline(in, line)) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      ours = false;
      for (const Region& region : regions_) ours = ours || overlaps(region, begin, end);
      for (const Region& region : scratch_) ours = ours || overlaps(region, begin, end);
      ours = ours || overlaps(scales_, begin, end);
      continue;
    }
    long long kilobytes = 0;
    if (ours && std::sscanf(line.c_str(), "AnonHugePages: %lld kB", &kilobytes) == 1) total += kilobytes * 1024;
  }
  return total;
}

}  // namespace kvroof::bench
