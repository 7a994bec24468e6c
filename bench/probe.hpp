// The loops that measure roofs, compiled once per instruction set like the kernels (isa/probe.cpp): what the machine
// gives to the widest loads and to FMA with nothing else to do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.hpp"

namespace kvroof::bench {

// How the read probe walks its two ranges (a thread's share of K and of V). The pieces are read side by side.
struct ReadVariant {
  int streams;         // 1: K, then V. 2, 4, 8: that many pieces at once, half of them from each range
  int prefetch_bytes;  // software prefetch so far ahead in each piece; 0: none
  const char* name;
};

// K, then V, in blocks of so many bytes; while one is read, the next is fetched as 8 streams that take turns.
inline constexpr std::size_t kFetchBlockBytes = 65536;
inline constexpr int kBlocks = 0;  // instead of a number of streams

inline constexpr ReadVariant kReadVariants[] = {
    {1, 0, "streams1"}, {1, 1024, "streams1_pf1024"}, {1, 4096, "streams1_pf4096"},
    {2, 0, "streams2"}, {2, 1024, "streams2_pf1024"}, {2, 4096, "streams2_pf4096"},
    {4, 0, "streams4"}, {4, 1024, "streams4_pf1024"}, {4, 4096, "streams4_pf4096"},
    {8, 0, "streams8"}, {8, 2048, "streams8_pf2048"}, {kBlocks, 0, "blocks65536"},
};

struct ReadShare {
  const std::byte* k;
  std::size_t k_bytes;
  const std::byte* v;
  std::size_t v_bytes;
};

// Rows in one piece of memory, of KV head 0. Those of another head lie at an offset, one for K and one for V.
struct Piece {
  const std::byte* data;
  std::uint32_t bytes;
  std::uint32_t value;  // 1: of V
};

// How the page-order probe helps the hardware, whose prefetchers see a new beginning in every piece: distances down the
// list of pieces, 0: none.
struct PieceVariant {
  int prefetch_bytes;  // lines so far ahead into L1
  int wake_bytes;      // first three lines of a piece or a 4 KiB page of memory into L2: that sets the hardware going
  bool blocks;         // as the read probe does: the next kFetchBlockBytes as 8 streams
  const char* name;
};

inline constexpr PieceVariant kPieceVariants[] = {
    {0, 0, false, "pieces"},
    {5120, 0, false, "pieces_pf5120"},
    {8192, 0, false, "pieces_pf8192"},
    {8192, 16384, false, "pieces_pf8192_wake16384"},
    {0, 0, true, "pieces_blocks65536"},
};

// Query heads per key that the conversion probe knows; a group between two uses the lower one.
inline constexpr int kConvertGroups[] = {1, 2, 4, 8, 16, 32};

struct ProbeTable {
  Isa isa;
  // Every byte of the share once. Returns the sum of its 64-bit words (so that nothing can be left out, and a test can
  // tell), a tail below 8 bytes left aside.
  std::uint64_t (*read)(const ReadShare& share, const ReadVariant& variant);
  // The same for pieces one after the other, each at data + offsets[value].
  std::uint64_t (*read_pieces)(const Piece* pieces, std::size_t count, const std::ptrdiff_t (&offsets)[2],
                               const PieceVariant& variant);
  // At least `flops` operations of independent f32 FMA chains in registers; returns the number done.
  double (*fma_f32)(double flops);
  // The same with what narrow storage forces before the first FMA: load elements of f16, bf16 or int8 from `block` (in
  // L1), widen, and use each widened vector in `group` FMAs. `elements` a multiple of 512.
  double (*convert_fma)(Storage storage, int group, const std::byte* block, std::size_t elements, double flops);
};

const ProbeTable& probe_table(Isa isa);  // throws Error(bad_isa) if it is not built or cannot run here

// The instructions of native mode (isa/native/).
struct NativeProbe {
  // At least `flops` operations of the dot instruction on bf16 elements of `block`, each loaded vector used in `group`
  // of them. `elements` a multiple of 512.
  double (*dot)(int group, const std::byte* block, std::size_t elements, double flops);
};

const NativeProbe& native_probe(Isa isa);  // throws Error(bad_isa) where native_missing gives a reason for bf16

}  // namespace kvroof::bench
