// The probes, the roofs made of them, and the memory that they read.
#ifdef KVROOF_TEST_BENCH

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bench/arena.hpp"
#include "bench/node_roofs.hpp"
#include "bench/probe.hpp"
#include "bench/roofs.hpp"

namespace kvroof::bench {
namespace {

class EachProbe : public ::testing::TestWithParam<Isa> {};

TEST_P(EachProbe, ReadsEveryByteInEveryVariant) {
  if (!isa_supported(GetParam())) GTEST_SKIP() << isa_missing(GetParam());
  const ProbeTable& table = probe_table(GetParam());
  constexpr std::size_t kHalf = 40000;  // several blocks of 64 KiB
  std::vector<std::uint64_t> words(2 * kHalf);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = std::uint64_t{1} << (i % 40);
  const auto* base = reinterpret_cast<const std::byte*>(words.data());
  for (std::size_t k_words :
       {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{64}, std::size_t{777}, std::size_t{1500}, kHalf}) {
    for (std::size_t v_words : {std::size_t{0}, std::size_t{5}, std::size_t{64}, std::size_t{1024}, std::size_t{1500},
                                std::size_t{8192}, kHalf}) {
      std::uint64_t sum = 0;
      for (std::size_t i = 0; i < k_words; ++i) sum += words[i];
      for (std::size_t i = 0; i < v_words; ++i) sum += words[kHalf + i];
      for (const ReadVariant& variant : kReadVariants)
        EXPECT_EQ(table.read({base, k_words * 8, base + kHalf * 8, v_words * 8}, variant), sum)
            << variant.name << " " << k_words << " " << v_words;
    }
  }
}

TEST_P(EachProbe, ReadsEveryPieceInEveryVariant) {
  if (!isa_supported(GetParam())) GTEST_SKIP() << isa_missing(GetParam());
  const ProbeTable& table = probe_table(GetParam());
  std::vector<std::uint64_t> words(20000);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i * i + 1;
  const auto* base = reinterpret_cast<const std::byte*>(words.data());
  // Of one line and less to more than a page of memory, far apart and backwards; V moved by another offset than K.
  for (std::uint32_t piece_words : {1u, 8u, 13u, 20u, 32u, 71u, 600u, 2400u}) {
    std::vector<Piece> pieces;
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < 12; ++i) {
      const std::size_t first = (11 - i) * 1000, moved = first + (i % 2 == 0 ? 3 : 400);
      pieces.push_back({base + first * 8, (piece_words + i) * 8, i % 2});
      for (std::uint32_t w = 0; w < piece_words + i; ++w) sum += words[moved + w];
    }
    for (const PieceVariant& variant : kPieceVariants) {
      EXPECT_EQ(table.read_pieces(pieces.data(), pieces.size(), {3 * 8, 400 * 8}, variant), sum)
          << variant.name << " " << piece_words;
      EXPECT_EQ(table.read_pieces(pieces.data(), 0, {0, 0}, variant), 0u);
    }
  }
}

TEST_P(EachProbe, ComputeProbesDoAtLeastWhatIsAsked) {
  if (!isa_supported(GetParam())) GTEST_SKIP() << isa_missing(GetParam());
  const ProbeTable& table = probe_table(GetParam());
  EXPECT_GE(table.fma_f32(1e5), 1e5);
  const std::vector<std::byte> block(1024, std::byte{0x38});
  for (Storage storage : {Storage::f16, Storage::bf16, Storage::int8})
    for (int group : {1, 3, 8, 32, 71}) EXPECT_GE(table.convert_fma(storage, group, block.data(), 512, 1e5), 1e5);
}

TEST(BenchRoofs, TheDotProbeDoesAtLeastWhatIsAskedOrSaysWhyNot) {
  const std::string missing = native_missing(default_isa(), Storage::bf16, Storage::bf16);
  if (!missing.empty()) {
    EXPECT_THROW(native_probe(default_isa()), Error);
    GTEST_SKIP() << missing;
  }
  const NativeProbe& probe = native_probe(default_isa());
  const std::vector<std::byte> block(1024, std::byte{0x3e});
  for (int group : {1, 3, 8, 32, 71}) {
    const double done = probe.dot(group, block.data(), 512, 1e5);
    EXPECT_GE(done, 1e5);
    EXPECT_LE(done, 1e5 + 2.0 * 512 * 32);  // a pass more at most
  }
}

INSTANTIATE_TEST_SUITE_P(BenchProbe, EachProbe, ::testing::Values(Isa::portable, Isa::avx2, Isa::avx512, Isa::neon),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

TEST(BenchRoofs, TheTeamReadsTheWholeCache) {
  Roofs roofs(default_isa());
  std::vector<std::uint64_t> words(5000);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i * i + 1;
  CacheSet set;
  set.base = reinterpret_cast<const std::byte*>(words.data());
  set.k_bytes = 8 * 1001;
  set.v_bytes = 8 * 1499;
  set.count = 2;
  for (std::int64_t slot : {0, 1, 2}) {
    std::uint64_t sum = 0;
    const std::size_t first = static_cast<std::size_t>(slot % 2) * 2500;
    for (std::size_t i = first; i < first + 2500; ++i) sum += words[i];
    for (int threads : {1, 2, 3}) EXPECT_EQ(roofs.read(set, slot, threads, kReadVariants[1]), sum);
  }
}

TEST(BenchRoofs, TheComputeRoofCountsAllThreads) {
  Roofs roofs(default_isa());
  for (const Storage storage : kStorages) {
    const ComputeOp op{storage, 4};
    const Roofs::Compute one = roofs.compute(op, 1, 2e5), three = roofs.compute(op, 3, 2e5);
    for (const Roofs::Compute& c : {one, three}) {
      EXPECT_GT(c.flops, 0);
      EXPECT_GT(c.gflops, 0);
      EXPECT_LT(c.gflops, 1e5);
    }
    // The pace only ever rises, so three threads do at least three times the operations.
    EXPECT_GE(three.flops, 2.9 * one.flops) << storage_name(storage);
  }
}

TEST(BenchRoofs, EveryNodeHasARoofOrAReason) {
  const std::vector<NodeRoof> roofs = measure_node_roofs(machine_facts(), default_isa(), 1 << 20);
  ASSERT_FALSE(roofs.empty());
  for (const NodeRoof& roof : roofs) {
    EXPECT_EQ(roof.gb_per_s.has_value(), roof.reason.empty()) << roof.reason;
    EXPECT_FALSE(roof.node.source.empty());
    if (!roof.gb_per_s) continue;
    EXPECT_GE(roof.threads, 1);
    EXPECT_GT(*roof.gb_per_s, 0.01);
    EXPECT_LT(*roof.gb_per_s, 1e5);
  }
  EXPECT_FALSE(measure_node_roofs(machine_facts(), default_isa(), 0)[0].reason.empty());
}

TEST(BenchArena, TheSameValuesForAnyThreadCountAndNoZeroPages) {
  std::vector<std::byte> first;
  for (int threads : {1, 3}) {
    Arena arena(std::nullopt, 1, default_isa());
    CacheSet set;
    set.k_bytes = set.v_bytes = 100 * 64;
    set.count = 3;
    ASSERT_EQ(arena.prepare(Storage::f16, set, threads), "");
    const std::vector<std::byte> bytes(set.base, set.base + set.total_bytes());
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
    EXPECT_GT(std::count_if(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; }),
              static_cast<std::ptrdiff_t>(bytes.size() / 2));
    // Growing keeps what is there, in place.
    CacheSet larger = set;
    larger.count = 30;
    ASSERT_EQ(arena.prepare(Storage::f16, larger, threads), "");
    EXPECT_EQ(larger.base, set.base);
    EXPECT_TRUE(std::equal(first.begin(), first.end(), larger.base));
  }
}

TEST(BenchArena, PlacementForSeveralNodesHoldsTheSameValues) {
  Arena one(std::nullopt, 1, default_isa()), two(std::nullopt, 2, default_isa());
  CacheSet a;
  a.k_bytes = 64 * 77;
  a.v_bytes = 64 * 33;
  a.count = 5;
  CacheSet b = a;
  ASSERT_EQ(one.prepare(Storage::bf16, a, 2), "");
  ASSERT_EQ(two.prepare(Storage::bf16, b, 2), "");
  EXPECT_EQ(std::memcmp(a.base, b.base, a.total_bytes()), 0);
}

TEST(BenchArena, ARowTooLargeSaysWhatItNeeds) {
  Arena arena(std::int64_t{1} << 20, 1, default_isa());
  CacheSet set;
  set.k_bytes = set.v_bytes = std::size_t{1} << 30;
  set.count = 2;
  EXPECT_EQ(arena.prepare(Storage::f32, set, 1), "needs 4.00 GiB, 0.00 GiB within the memory limit");
  EXPECT_EQ(arena.held_bytes(), 0);
}

}  // namespace
}  // namespace kvroof::bench

#endif  // KVROOF_TEST_BENCH
