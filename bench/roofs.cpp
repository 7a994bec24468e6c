#include "bench/roofs.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "bench/clock.hpp"
#include "bench/statistics.hpp"
#include "bench/threads.hpp"
#include "kernels/cpu.hpp"

namespace kvroof::bench {

#if defined(__x86_64__)
namespace isa_avx2 {
extern const ProbeTable probes;
}
namespace isa_avx512 {
extern const ProbeTable probes;
}
namespace isa_avx512_bf16 {
extern const NativeProbe native_probe;
}
#elif defined(__aarch64__)
namespace isa_neon {
extern const ProbeTable probes;
}
#endif
namespace isa_portable {
extern const ProbeTable probes;
}

const ProbeTable& probe_table(Isa isa) {
  if (!isa_supported(isa)) throw Error(ErrorCode::bad_isa, std::string(isa_name(isa)) + ": " + isa_missing(isa));
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx2: return isa_avx2::probes;
    case Isa::avx512: return isa_avx512::probes;
#elif defined(__aarch64__)
    case Isa::neon: return isa_neon::probes;
#endif
    default: return isa_portable::probes;
  }
}

const NativeProbe& native_probe(Isa isa) {
  if (const std::string missing = native_missing(isa, Storage::bf16, Storage::bf16); !missing.empty())
    throw Error(ErrorCode::bad_isa, "native mode: " + missing);
#if defined(__x86_64__)
  return isa_avx512_bf16::native_probe;
#else
  throw Error(ErrorCode::bad_isa, "native mode: not built");  // not reached: no other ISA has one
#endif
}

namespace {

constexpr std::size_t kBlockElements = 4096;  // at most 8 KiB: stays in any L1
// A pass of choosing reads at most this much; beyond it the walk is the same, only longer.
constexpr std::size_t kChoiceBytes = std::size_t{192} << 20;

std::vector<std::byte> block_of(Storage storage) {
  std::vector<std::byte> block(kBlockElements * storage_bytes(storage));
  for (std::size_t i = 0; i < kBlockElements; ++i) {
    const bool even = i % 2 == 0;  // 0.5 and -0.25; in int8 2 and -1
    const std::uint16_t code = storage == Storage::bf16 ? (even ? 0x3f00 : 0xbe80) : (even ? 0x3800 : 0xb400);
    if (storage == Storage::int8)
      block[i] = static_cast<std::byte>(even ? 2 : -1);
    else if (storage != Storage::f32)
      std::memcpy(&block[2 * i], &code, 2);
  }
  return block;
}

// The fastest of `variants` ways to read by the median of some passes, taking turns: a few of all of them, then more of
// the best three, since a neighbour's noise must not decide. `pass_bytes`: what one call of `read` reads.
template <class Read>
std::size_t fastest(std::size_t variants, std::size_t pass_bytes, Read read) {
  std::vector<std::vector<double>> times(variants);
  std::vector<std::size_t> order(variants);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::uint64_t sum = 0;
  const auto run = [&](int passes) {
    for (int pass = 0; pass < passes; ++pass) {
      for (std::size_t i : order) {
        const std::int64_t start = now_ns();
        sum += read(i);
        times[i].push_back(static_cast<double>(now_ns() - start));
      }
    }
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return median(times[a]) < median(times[b]); });
  };
  const bool beyond_caches = pass_bytes > kChoiceBytes / 4;  // such passes agree well, and take long
  run(beyond_caches ? 3 : 5);
  order.resize(std::min<std::size_t>(variants, 3));
  run(beyond_caches ? 4 : 16);
  return sum == 0 ? 0 : order[0];  // also keeps the sums alive
}

}  // namespace

Roofs::Roofs(Isa isa) : table_(probe_table(isa)) {
  for (Storage storage : kStorages) blocks_[static_cast<int>(storage)] = block_of(storage);
}

std::uint64_t Roofs::read(const CacheSet& set, std::int64_t slot, int threads, const ReadVariant& variant) const {
  std::atomic<std::uint64_t> sum{0};
  const std::byte* const k = set.k(slot);
  const std::byte* const v = set.v(slot);
  run_team(threads, [&](int p) {
    const std::size_t k0 = share_begin(set.k_bytes, threads, p), k1 = share_begin(set.k_bytes, threads, p + 1);
    const std::size_t v0 = share_begin(set.v_bytes, threads, p), v1 = share_begin(set.v_bytes, threads, p + 1);
    sum.fetch_add(table_.read({k + k0, k1 - k0, v + v0, v1 - v0}, variant), std::memory_order_relaxed);
  });
  return sum.load(std::memory_order_relaxed);
}

const ReadVariant& Roofs::read_variant(const CacheSet& set, int threads, bool cold) {
  const ReadVariant*& chosen = variants_[{set.slot_bytes(), threads, cold}];
  if (chosen != nullptr) return *chosen;
  CacheSet part = set;
  if (set.slot_bytes() > kChoiceBytes) {  // the first stretch of K and of as many bytes behind it
    part.k_bytes = part.v_bytes = kChoiceBytes / 2;
    part.count = static_cast<std::int64_t>(set.total_bytes() / part.slot_bytes());
  }
  // Enough calls per sample that starting the team is not what is compared.
  const std::int64_t calls =
      std::max<std::int64_t>(1, static_cast<std::int64_t>((std::size_t{4} << 20) / part.slot_bytes()));
  std::int64_t visit = 0;
  const std::size_t best =
      fastest(std::size(kReadVariants), part.slot_bytes() * static_cast<std::size_t>(calls), [&](std::size_t i) {
        std::uint64_t sum = 0;
        for (std::int64_t c = 0; c < calls; ++c) sum += read(part, visit++, threads, kReadVariants[i]);
        return sum;
      });
  chosen = &kReadVariants[best];
  return *chosen;
}

std::uint64_t Roofs::read(const PieceWalk& walk, int threads, const PieceVariant& variant) const {
  std::atomic<std::uint64_t> sum{0};
  const std::int64_t segments = static_cast<std::int64_t>(walk.segments.size()) - 1;
  run_team(threads, [&](int p) {
    const std::int64_t end = walk.heads * segments * (p + 1) / threads;
    std::uint64_t own = 0;
    for (std::int64_t unit = walk.heads * segments * p / threads; unit < end;) {
      const std::int64_t head = unit / segments, segment = unit % segments;
      const std::int64_t count = std::min(segments - segment, end - unit);  // of this head
      const std::size_t first = walk.segments[static_cast<std::size_t>(segment)];
      const std::size_t last = walk.segments[static_cast<std::size_t>(segment + count)];
      own += table_.read_pieces(walk.pieces.data() + first, last - first,
                                {head * walk.k_head_stride, head * walk.v_head_stride}, variant);
      unit += count;
    }
    sum.fetch_add(own, std::memory_order_relaxed);
  });
  return sum.load(std::memory_order_relaxed);
}

const PieceVariant& Roofs::piece_variant(const std::vector<PieceWalk>& walks, int threads) const {
  std::size_t bytes = 0, visit = 0;
  for (const Piece& piece : walks[0].pieces) bytes += piece.bytes * static_cast<std::size_t>(walks[0].heads);
  return kPieceVariants[fastest(std::size(kPieceVariants), bytes, [&](std::size_t i) {
    return read(walks[visit++ % walks.size()], threads, kPieceVariants[i]);
  })];
}

Roofs::Compute Roofs::compute(const ComputeOp& op, int threads, double ns) {
  const auto run = [&](double flops) {
    const std::byte* const block = blocks_[static_cast<int>(op.storage)].data();
    if (op.mode == Mode::native) return native_probe(isa()).dot(op.group, block, kBlockElements, flops);
    if (op.storage == Storage::f32) return table_.fma_f32(flops);
    return table_.convert_fma(op.storage, op.group, block, kBlockElements, flops);
  };
  double& pace = flops_per_ns_[op.name()];
  if (pace == 0) {
    double flops = 1e5;
    for (int i = 0; i < 8; ++i) {
      const std::int64_t start = now_ns();
      const double done = run(flops);
      pace = std::max(pace, done / static_cast<double>(std::max<std::int64_t>(1, now_ns() - start)));
      flops = pace * 5e4;  // 0.05 ms: most are not interrupted
    }
  }
  const double slice = pace * ns / kComputeSlices;
  struct alignas(64) Thread {
    double flops = 0, rate = 0, fastest = 0;
  };
  std::vector<Thread> team(static_cast<std::size_t>(threads));
  run_team(threads, [&](int p) {
    Thread& own = team[static_cast<std::size_t>(p)];
    std::vector<double> rates;
    rates.reserve(kComputeSlices);
    for (int i = 0; i < kComputeSlices; ++i) {
      const std::int64_t start = now_ns();
      const double done = run(slice);
      rates.push_back(done / static_cast<double>(std::max<std::int64_t>(1, now_ns() - start)));
      own.flops += done;
      own.fastest = std::max(own.fastest, rates.back());
    }
    own.rate = median(rates);
  });
  Compute result;
  for (const Thread& own : team) {
    result.flops += own.flops;
    result.gflops += own.rate;
    pace = std::max(pace, own.fastest);  // a first measurement that was always interrupted heals itself
  }
  return result;
}

}  // namespace kvroof::bench
