// The roof probes of one instruction set: its widest loads, and the kernels' own FMA and widening loads, with no data
// dependence but the accumulators'.
#include "bench/probe.hpp"
#include "kernels/simd/lanes.hpp"

namespace kvroof::bench::KVROOF_NS {
namespace {

using namespace kvroof::KVROOF_NS;

#if KVROOF_ROW == KVROOF_ROW_avx512
using Words = __m512i;
constexpr int kChains = 16;  // of 16 floats. Latency 4 x 2 ports = 8; 32 registers leave room for cores with more
inline Words load_words(const std::byte* p) { return _mm512_loadu_si512(p); }
inline Words add_words(Words a, Words b) { return _mm512_add_epi64(a, b); }
inline Words zero_words() { return _mm512_setzero_si512(); }
#elif KVROOF_ROW == KVROOF_ROW_avx2
using Words = __m256i;
constexpr int kChains = 4;  // two registers each: latency 4 x 2 ports; 16 registers allow no 16
inline Words load_words(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Words add_words(Words a, Words b) { return _mm256_add_epi64(a, b); }
inline Words zero_words() { return _mm256_setzero_si256(); }
#elif KVROOF_ROW == KVROOF_ROW_neon
using Words = uint64x2_t;
constexpr int kChains = 4;  // four registers each: latency 4 x 4 ports on wide cores
inline Words load_words(const std::byte* p) { return vld1q_u64(reinterpret_cast<const std::uint64_t*>(p)); }
inline Words add_words(Words a, Words b) { return vaddq_u64(a, b); }
inline Words zero_words() { return vdupq_n_u64(0); }
#else  // portable: loads are what the compiler makes of plain vectors for the baseline; FMA is the C library's
typedef std::uint64_t Words __attribute__((vector_size(16)));
constexpr int kChains = 2;  // of 16 floats each
inline Words load_words(const std::byte* p) {
  Words w;
  __builtin_memcpy(&w, p, sizeof w);
  return w;
}
inline Words add_words(Words a, Words b) { return a + b; }
inline Words zero_words() { return Words{0, 0}; }
#endif

constexpr std::size_t kWordBytes = sizeof(Words);
constexpr int kUnroll = 8;

std::uint64_t sum_of(Words w) {
  std::uint64_t parts[kWordBytes / 8], sum = 0;
  __builtin_memcpy(parts, &w, sizeof parts);
  for (std::uint64_t part : parts) sum += part;
  return sum;
}

std::uint64_t tail_sum(const std::byte* p, std::size_t bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
    std::uint64_t word;
    __builtin_memcpy(&word, p + i, 8);
    sum += word;
  }
  return sum;
}

// kStreams pieces side by side, `bytes` of each, a cache line or more from each in turn.
template <int kStreams, bool kPrefetch>
std::uint64_t read_streams(const std::byte* const (&pieces)[kStreams], std::size_t bytes, std::size_t ahead) {
  constexpr int kPer = kUnroll / kStreams < 1 ? 1 : kUnroll / kStreams;  // loads of one stream per round
  constexpr std::size_t kStep = (kPer * kWordBytes < 64 ? 64 : kPer * kWordBytes);
  constexpr int kLoads = static_cast<int>(kStep / kWordBytes);
  Words sums[kUnroll];
  for (Words& s : sums) s = zero_words();
  std::size_t at = 0;
  for (; at + kStep <= bytes; at += kStep) {
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; ++s) {
      if constexpr (kPrefetch)
        for (std::size_t line = 0; line < kStep; line += 64) __builtin_prefetch(pieces[s] + at + ahead + line);
#pragma GCC unroll 8
      for (int i = 0; i < kLoads; ++i) {
        Words& sum = sums[(s * kLoads + i) % kUnroll];
        sum = add_words(sum, load_words(pieces[s] + at + static_cast<std::size_t>(i) * kWordBytes));
      }
    }
  }
  std::uint64_t total = 0;
  for (const Words& s : sums) total += sum_of(s);
  for (const std::byte* piece : pieces) total += tail_sum(piece + at, bytes - at);
  return total;
}

template <int kStreams>
std::uint64_t read_pieces(const std::byte* const (&pieces)[kStreams], std::size_t bytes, int prefetch) {
  return prefetch > 0 ? read_streams<kStreams, true>(pieces, bytes, static_cast<std::size_t>(prefetch))
                      : read_streams<kStreams, false>(pieces, bytes, 0);
}

template <int kHalf>  // pieces per range
std::uint64_t read_both(const ReadShare& share, int prefetch) {
  const std::size_t common = share.k_bytes < share.v_bytes ? share.k_bytes : share.v_bytes;
  const std::size_t piece = common / kHalf / 64 * 64;
  const std::byte* pieces[2 * kHalf];
  for (int i = 0; i < kHalf; ++i) {
    pieces[2 * i] = share.k + static_cast<std::size_t>(i) * piece;
    pieces[2 * i + 1] = share.v + static_cast<std::size_t>(i) * piece;
  }
  std::uint64_t total = read_pieces<2 * kHalf>(pieces, piece, prefetch);
  const std::size_t done = piece * kHalf;
  const std::byte* const rest_k[1] = {share.k + done};
  const std::byte* const rest_v[1] = {share.v + done};
  total += read_pieces<1>(rest_k, share.k_bytes - done, prefetch);
  total += read_pieces<1>(rest_v, share.v_bytes - done, prefetch);
  return total;
}

constexpr int kBlockStreams = 8;

// Whole blocks of a range; what follows the last one: `then`.
std::uint64_t read_blocks(const std::byte* data, std::size_t bytes, const std::byte* then) {
  constexpr std::size_t kStep = 256, kStream = kFetchBlockBytes / kBlockStreams;
  constexpr std::size_t kLoads = kStep / kWordBytes;
  Words sums[kUnroll];
  for (Words& s : sums) s = zero_words();
  std::size_t block = 0;
  for (; block + kFetchBlockBytes <= bytes; block += kFetchBlockBytes) {
    const std::byte* now = data + block;
    const std::byte* next = block + 2 * kFetchBlockBytes <= bytes ? now + kFetchBlockBytes : then;
    for (std::size_t at = 0; at < kStream; at += kStep) {
      for (std::size_t stream = 0; stream < kBlockStreams; ++stream, now += kStep) {
#pragma GCC unroll 4
        for (std::size_t line = 0; line < kStep; line += 64) __builtin_prefetch(next + stream * kStream + at + line);
#pragma GCC unroll 16
        for (std::size_t i = 0; i < kLoads; ++i) {
          Words& sum = sums[i % kUnroll];
          sum = add_words(sum, load_words(now + i * kWordBytes));
        }
      }
    }
  }
  std::uint64_t total = 0;
  for (const Words& s : sums) total += sum_of(s);
  const std::byte* const rest[1] = {data + block};
  return total + read_pieces<1>(rest, bytes - block, 0);
}

std::uint64_t read(const ReadShare& share, const ReadVariant& variant) {
  switch (variant.streams) {
    case kBlocks: return read_blocks(share.k, share.k_bytes, share.v) + read_blocks(share.v, share.v_bytes, share.v);
    case 2: return read_both<1>(share, variant.prefetch_bytes);
    case 4: return read_both<2>(share, variant.prefetch_bytes);
    case 8: return read_both<4>(share, variant.prefetch_bytes);
    default: {
      const std::byte* const k[1] = {share.k};
      const std::byte* const v[1] = {share.v};
      return read_pieces<1>(k, share.k_bytes, variant.prefetch_bytes) +
             read_pieces<1>(v, share.v_bytes, variant.prefetch_bytes);
    }
  }
}

// A place further down a list of pieces, which moves on line by line and stays in the last piece.
struct LineAhead {
  const Piece* piece;
  const Piece* end;
  const std::ptrdiff_t* offsets;
  std::size_t at = 0;

  // Past the lines that lie before `bytes`.
  void skip(std::size_t bytes) {
    for (; bytes >= 64 && piece + 1 < end; ++piece, at = 0) {
      const std::size_t left = piece->bytes - at;
      if (bytes < left) break;
      bytes -= left;
    }
    at += bytes / 64 * 64;
  }
  // The next line, and whether the hardware has a new beginning there.
  const std::byte* next(bool* fresh = nullptr) {
    if (at >= piece->bytes) {
      if (piece + 1 < end) ++piece;
      at = 0;
    }
    const std::byte* line = piece->data + offsets[piece->value] + at;
    if (fresh != nullptr) *fresh = at == 0 || reinterpret_cast<std::uintptr_t>(line) % 4096 < 64;
    at += 64;
    return line;
  }
};

// The next block of a list of pieces, line by line, as kBlockStreams streams that take turns.
struct BlockAhead {
  static constexpr std::size_t kLines = kFetchBlockBytes / 64;
  LineAhead streams[kBlockStreams];
  std::size_t turn = 0;

  explicit BlockAhead(const LineAhead& first) {
    for (std::size_t s = 0; s < kBlockStreams; ++s) {
      streams[s] = first;
      streams[s].skip(kFetchBlockBytes + s * (kFetchBlockBytes / kBlockStreams));
    }
  }
  const std::byte* next() {
    const std::byte* line = streams[turn % kBlockStreams].next();
    if (++turn % kLines == 0)
      for (LineAhead& s : streams) s.skip(kFetchBlockBytes - kFetchBlockBytes / kBlockStreams);
    return line;
  }
};

template <bool kPrefetch, bool kWake, bool kBlockwise>
std::uint64_t read_each_piece(const Piece* pieces, std::size_t count, const std::ptrdiff_t (&offsets)[2],
                              const PieceVariant& variant) {
  constexpr int kLoads = static_cast<int>(64 / kWordBytes);
  constexpr std::size_t kLines = 4;
  LineAhead near{pieces, pieces + count, offsets}, far = near;
  if constexpr (kPrefetch) near.skip(static_cast<std::size_t>(variant.prefetch_bytes));
  if constexpr (kWake) far.skip(static_cast<std::size_t>(variant.wake_bytes));
  BlockAhead block(LineAhead{pieces, pieces + count, offsets});
  Words sums[kLines * kLoads];
  for (Words& s : sums) s = zero_words();
  std::uint64_t total = 0;
  const auto look_ahead = [&] {
    if constexpr (kPrefetch) __builtin_prefetch(near.next());
    if constexpr (kBlockwise) __builtin_prefetch(block.next());
    if constexpr (kWake) {
      bool fresh;
      const std::byte* line = far.next(&fresh);
      if (fresh)
        for (int i = 0; i < 3; ++i) __builtin_prefetch(line + 64 * i, 0, 2);
    }
  };
  const auto read_line = [&](const std::byte* line, std::size_t number) {
    look_ahead();
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kLoads; ++i) {
      Words& sum = sums[number * kLoads + i];
      sum = add_words(sum, load_words(line + i * kWordBytes));
    }
  };
  for (const Piece* piece = pieces; piece != pieces + count; ++piece) {
    const std::byte* data = piece->data + offsets[piece->value];
    std::size_t at = 0;
    for (; at + 64 * kLines <= piece->bytes; at += 64 * kLines) {
#pragma GCC unroll 4
      for (std::size_t number = 0; number < kLines; ++number) read_line(data + at + 64 * number, number);
    }
    for (; at + 64 <= piece->bytes; at += 64) read_line(data + at, 0);
    if (at == piece->bytes) continue;
    look_ahead();
    total += tail_sum(data + at, piece->bytes - at);
  }
  for (const Words& s : sums) total += sum_of(s);
  return total;
}

std::uint64_t read_pieces_in_order(const Piece* pieces, std::size_t count, const std::ptrdiff_t (&offsets)[2],
                                   const PieceVariant& variant) {
  if (count == 0) return 0;
  if (variant.blocks) return read_each_piece<false, false, true>(pieces, count, offsets, variant);
  if (variant.wake_bytes > 0) return read_each_piece<true, true, false>(pieces, count, offsets, variant);
  if (variant.prefetch_bytes > 0) return read_each_piece<true, false, false>(pieces, count, offsets, variant);
  return read_each_piece<false, false, false>(pieces, count, offsets, variant);
}

// Keeps the accumulators alive without storing them in the timed loop.
volatile float sink;

void keep(const Vec16* chains) {
  float sum = 0;
  for (int c = 0; c < kChains; ++c) sum += tree_sum(chains[c]);
  sink = sum;
}

double fma_f32(double flops) {
  constexpr int kDepth = 8;
  const double per_round = 2.0 * kLanes * kChains * kDepth;
  const std::int64_t rounds = static_cast<std::int64_t>(flops / per_round) + 1;
  Vec16 chains[kChains];
  for (int c = 0; c < kChains; ++c) chains[c] = broadcast(static_cast<float>(c));
  // |multiplier| < 1: the chains settle at a finite value and never become subnormal.
  const Vec16 multiplier = broadcast(0.5f), addend = broadcast(1.0f);
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 8
    for (int d = 0; d < kDepth; ++d)
#pragma GCC unroll 16
      for (int c = 0; c < kChains; ++c) chains[c] = fma(chains[c], multiplier, addend);
  }
  keep(chains);
  return per_round * static_cast<double>(rounds);
}

template <Storage kStorage, int kGroup>
double convert_group(const std::byte* block, std::size_t elements, double flops) {
  // Vectors per round: enough that every chain is used at least once, so that no chain's latency shows.
  constexpr int kVectors = kGroup >= kChains ? 1 : kChains / kGroup;
  constexpr std::size_t kElements = static_cast<std::size_t>(kVectors) * kLanes;
  constexpr std::size_t kWidth = storage_bytes(kStorage);
  const std::size_t rounds = elements / kElements;
  const double per_pass = 2.0 * static_cast<double>(rounds * kElements) * kGroup;
  const std::int64_t passes = static_cast<std::int64_t>(flops / per_pass) + 1;
  Vec16 chains[kChains];
  for (int c = 0; c < kChains; ++c) chains[c] = broadcast(static_cast<float>(c));  // equal ones would be merged
  const Vec16 weight = broadcast(0.25f);
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    for (std::size_t r = 0; r < rounds; ++r) {
      const std::byte* p = block + r * kElements * kWidth;
#pragma GCC unroll 16
      for (std::size_t v = 0; v < kVectors; ++v) {
        const Vec16 x = load_as<kStorage>(p + v * kLanes * kWidth);
#pragma GCC unroll 32
        for (int g = 0; g < kGroup; ++g) {
          Vec16& chain = chains[(static_cast<int>(v) * kGroup + g) % kChains];
          chain = fma(x, weight, chain);
        }
      }
    }
  }
  keep(chains);
  return per_pass * static_cast<double>(passes);
}

template <Storage kStorage>
double convert_any(int group, const std::byte* block, std::size_t elements, double flops) {
  if (group >= 32) return convert_group<kStorage, 32>(block, elements, flops);
  if (group >= 16) return convert_group<kStorage, 16>(block, elements, flops);
  if (group >= 8) return convert_group<kStorage, 8>(block, elements, flops);
  if (group >= 4) return convert_group<kStorage, 4>(block, elements, flops);
  if (group >= 2) return convert_group<kStorage, 2>(block, elements, flops);
  return convert_group<kStorage, 1>(block, elements, flops);
}

double convert_fma(Storage storage, int group, const std::byte* block, std::size_t elements, double flops) {
  switch (storage) {
    case Storage::bf16: return convert_any<Storage::bf16>(group, block, elements, flops);
    case Storage::int8: return convert_any<Storage::int8>(group, block, elements, flops);
    default: return convert_any<Storage::f16>(group, block, elements, flops);
  }
}

constexpr Isa kIsa = Isa::KVROOF_ISA;

}  // namespace

extern const ProbeTable probes;
const ProbeTable probes = {kIsa, read, read_pieces_in_order, fma_f32, convert_fma};

}  // namespace kvroof::bench::KVROOF_NS
