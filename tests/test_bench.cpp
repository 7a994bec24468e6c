// The benchmark's own arithmetic: counters against hand-computed numbers, pairing, roofs, the journal.
#ifdef KVROOF_TEST_BENCH

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "bench/arena.hpp"
#include "bench/cache_views.hpp"
#include "bench/cases.hpp"
#include "bench/journal.hpp"
#include "bench/machine.hpp"
#include "bench/mla_run.hpp"
#include "bench/options.hpp"
#include "bench/pairing.hpp"
#include "bench/result_rows.hpp"
#include "bench/rivals/rival.hpp"
#include "bench/roofs.hpp"
#include "bench/statistics.hpp"
#include "bench/sweep.hpp"

namespace kvroof::bench {
namespace {

DecodeCase gqa_case() {
  DecodeCase c;
  c.shape = {"GQA", 32, 8, 128, 128};
  c.T = 4096;
  c.storage = Storage::f16;
  c.all_threads = true;
  c.threads = 2;
  c.isa = Isa::portable;
  return c;
}

TEST(BenchCases, BytesAndFlopsByHand) {
  const DecodeCase c = gqa_case();
  EXPECT_EQ(c.k_bytes(), 4096u * 8 * 128 * 2);
  EXPECT_EQ(c.bytes(), 16u << 20);
  EXPECT_EQ(c.flops(), std::int64_t{32} * 4096 * (2 * 128 + 2 * 128));
  DecodeCase chunk = c;
  chunk.n = 3;  // visible: 4094 + 4095 + 4096
  EXPECT_EQ(chunk.flops(), std::int64_t{32} * (4094 + 4095 + 4096) * 512);
}

TEST(BenchCases, NamesFollowTheGrammar) {
  EXPECT_EQ(row_name(gqa_case(), "kvroof"),
            "decode/shape:GQA/layout:contiguous/order:head/storage:f16/Hq:32/Hkv:8/Dk:128/Dv:128/B:1/n:1/T:4096/W:all/"
            "cache:cold/impl:kvroof/mode:reproducible/threads:all/isa:portable");
  EXPECT_EQ(join_key(row_name(gqa_case(), "onednn")),
            "decode/shape:GQA/layout:contiguous/order:head/storage:f16/Hq:32/Hkv:8/Dk:128/Dv:128/B:1/n:1/T:4096/W:all/"
            "cache:cold/impl:onednn/threads:all");
}

TEST(BenchCases, PresetsHoldWhatTheyPromise) {
  PresetSizes sizes;
  sizes.last_level_bytes = 32 << 20;
  sizes.threads_all = 2;
  for (Preset preset : {Preset::quick, Preset::full, Preset::ci}) {
    std::set<std::string> names;
    for (const DecodeCase& c : decode_cases(preset, sizes)) {
      EXPECT_TRUE(names.insert(row_name(c, "kvroof")).second) << row_name(c, "kvroof");
      if (!c.cold) {
        EXPECT_LE(c.bytes(), 24u << 20) << row_name(c, "kvroof");
      }
    }
    for (const RoofCase& c : roof_cases(preset, sizes)) EXPECT_TRUE(names.insert(row_name(c)).second) << row_name(c);
  }
  std::set<std::int64_t> quick, full;
  for (const DecodeCase& c : decode_cases(Preset::quick, sizes)) quick.insert(c.T);
  for (const DecodeCase& c : decode_cases(Preset::full, sizes)) full.insert(c.T);
  EXPECT_EQ(quick, (std::set<std::int64_t>{512, 4096, 32768}));
  EXPECT_EQ(full.size(), 11u);
  EXPECT_EQ(*full.begin(), 128);
  EXPECT_EQ(*full.rbegin(), 131072);
}

TEST(BenchCases, AnUnknownCacheGivesNoWarmRow) {
  for (const DecodeCase& c : decode_cases(Preset::full, PresetSizes{})) EXPECT_TRUE(c.cold);
}

TEST(BenchCases, ColdSetsAreFourTimesTheLastLevelCache) {
  const std::int64_t llc = 32 << 20;
  EXPECT_EQ(cache_copies(false, 1 << 20, llc), 1);
  for (std::size_t bytes : {std::size_t{1000}, std::size_t{1} << 20, std::size_t{100} << 20, std::size_t{1} << 30}) {
    const std::int64_t copies = cache_copies(true, bytes, llc);
    EXPECT_GE(copies * static_cast<std::int64_t>(bytes), 4 * llc);
    if (static_cast<std::int64_t>(bytes) < 8 * llc) {
      EXPECT_GE(copies, 2);
    }
  }
  EXPECT_EQ(cache_copies(true, std::size_t{1} << 30, llc), 1);
}

TEST(BenchStatistics, QuartilesInterpolate) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(quantile({0, 1, 2, 3, 4}, 0.25), 1);
  EXPECT_EQ(quantile({0, 1, 2, 3}, 0.75), 2.25);
  EXPECT_TRUE(std::isnan(median({})));
  EXPECT_EQ(pair_ratios({2, 0, 9}, {1, 5, 3}), (std::vector<double>{2, 3}));  // 0: took no part
  EXPECT_EQ(summarize({}).n, 0);
}

void spin(std::int64_t ns) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns);
  while (std::chrono::steady_clock::now() < end) {
  }
}

TEST(BenchPairing, TakesTurnsOnDifferentCachesAndReversesEverySecondTime) {
  std::vector<std::pair<int, std::int64_t>> log;
  std::vector<Contender> contenders;
  for (int c = 0; c < 3; ++c)
    contenders.push_back({std::to_string(c), [&log, c](std::int64_t visit) {
                            log.push_back({c, visit});
                            spin(20000);
                          }});
  PairingOptions options;
  options.budget_s = 0;
  options.min_repetitions = 4;
  options.max_repetitions = 4;
  options.min_sample_ns = 1;
  const PairingResult result = run_paired(contenders, options);
  EXPECT_EQ(result.repetitions, 4);
  std::vector<int> order;
  for (std::size_t i = 6; i < log.size(); ++i) order.push_back(log[i].first);  // six calls find out the pace
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0}));
  for (std::size_t i = 1; i < log.size(); ++i) EXPECT_EQ(log[i].second, log[i - 1].second + 1);
  for (const auto& times : result.time_ns) {
    ASSERT_EQ(times.size(), 4u);
    for (double ns : times) EXPECT_GE(ns, 20000);
  }
}

TEST(BenchPairing, ASlowContenderTakesPartAtLeastOnceAndSeldom) {
  int slow_calls = 0;
  std::vector<Contender> contenders;
  contenders.push_back({"fast", [](std::int64_t) { spin(100000); }});
  contenders.push_back({"slow",
                        [&](std::int64_t) {
                          ++slow_calls;
                          spin(20000000);
                        },
                        0.1, 20e6});
  PairingOptions options;
  options.budget_s = 0.02;
  options.min_repetitions = 10;
  options.max_repetitions = 10;
  options.min_sample_ns = 1;
  const PairingResult result = run_paired(contenders, options);
  EXPECT_EQ(slow_calls, 1);
  EXPECT_EQ(std::count_if(result.time_ns[1].begin(), result.time_ns[1].end(), [](double ns) { return ns > 0; }), 1);
  EXPECT_EQ(pair_ratios(result.time_ns[1], result.time_ns[0]).size(), 1u);
}

TEST(BenchPairing, ShortCallsAreRepeatedUntilTheSampleIsLongEnough) {
  std::vector<Contender> contenders;
  contenders.push_back({"short", [](std::int64_t) { spin(10000); }});
  PairingOptions options;
  options.budget_s = 0;
  options.min_repetitions = options.max_repetitions = 1;
  options.min_sample_ns = 1e6;
  PairingResult result = run_paired(contenders, options);
  // An interruption during the one call that sets the pace would make it look long; it does not strike five times.
  for (int again = 0; again < 5 && result.calls[0] < 2; ++again) result = run_paired(contenders, options);
  EXPECT_GE(result.calls[0], 2);
  EXPECT_LE(result.calls[0], 100);
  EXPECT_LT(result.time_ns[0][0], 1e6);  // of one call, not of the sample
}

TEST(BenchRows, RatesAndFractionsByHand) {
  Json row = decode_row(gqa_case(), "kvroof", "t");
  const double bytes = 16 << 20, flops = 32.0 * 4096 * 512;
  const std::vector<double> time = {2e6, 4e6, 2e6}, probe = {1e6, 3e6, 1e6}, compute = {1e3, 1e3, 1e3};
  Timed timed;
  timed.time_ns = &time;
  timed.probe_ns = &probe;
  timed.probe_bytes = 16 << 20;
  timed.compute_gflops = &compute;
  set_times(row, timed);
  EXPECT_EQ(row["real_time"], 2e6);
  EXPECT_DOUBLE_EQ(row["gb_per_s"].get<double>(), bytes / 2e6);
  EXPECT_DOUBLE_EQ(row["gflops"].get<double>(), flops / 2e6);
  EXPECT_DOUBLE_EQ(row["intensity"].get<double>(), flops / bytes);
  EXPECT_DOUBLE_EQ(row["read_roof_gb_per_s"].get<double>(), bytes / 1e6);
  EXPECT_DOUBLE_EQ(row["read_fraction"].get<double>(), 0.5);  // of the pairs .5, .75, .5, not of medians
  EXPECT_DOUBLE_EQ(row["attainable_gflops"].get<double>(), flops / bytes * bytes / 1e6);
  EXPECT_DOUBLE_EQ(row["attainable_fraction"].get<double>(), 0.5);
  EXPECT_EQ(row["spread"]["n"], 3);
  EXPECT_EQ(row["above_roof"], false);
}

TEST(BenchRows, TheComputeRoofBindsWhereItIsLower) {
  Json row = decode_row(gqa_case(), "kvroof", "t");
  const double flops = 32.0 * 4096 * 512;
  const std::vector<double> time = {1e6}, probe = {1e5}, compute = {100};
  Timed timed;
  timed.time_ns = &time;
  timed.probe_ns = &probe;
  timed.probe_bytes = 16 << 20;
  timed.compute_gflops = &compute;
  set_times(row, timed);
  EXPECT_DOUBLE_EQ(row["attainable_gflops"].get<double>(), 100);
  EXPECT_DOUBLE_EQ(row["attainable_fraction"].get<double>(), flops / 1e6 / 100);
}

TEST(BenchRows, ARowAboveItsRoofByMoreThanTheSpreadIsMarked) {
  const auto marked = [](const std::vector<double>& time, const std::vector<double>& probe) {
    Json row = decode_row(gqa_case(), "kvroof", "t");
    Timed timed;
    timed.time_ns = &time;
    timed.probe_ns = &probe;
    timed.probe_bytes = 16 << 20;
    set_times(row, timed);
    return row["above_roof"].get<bool>();
  };
  EXPECT_TRUE(marked({100, 100, 100}, {110, 110, 110}));
  EXPECT_FALSE(marked({100, 100, 100}, {101, 101, 101}));           // within what a median can tell
  EXPECT_FALSE(marked({100, 100, 100, 100}, {80, 105, 107, 140}));  // within the spread
  EXPECT_FALSE(marked({100, 100, 100}, {90, 90, 90}));
}

TEST(BenchRows, ARowAboveItsComputeRoofIsMarkedToo) {
  const auto marked = [](const std::vector<double>& compute, std::int64_t unique_bytes,
                         const std::string& impl = "kvroof") {
    Json row = decode_row(gqa_case(), impl, "t");
    if (unique_bytes > 0) row["unique_bytes"] = unique_bytes;
    const std::vector<double> time(compute.size(), 1e6), probe(compute.size(), 0.9e6);
    Timed timed;
    timed.time_ns = &time;
    timed.probe_ns = &probe;
    timed.probe_bytes = 16 << 20;
    timed.compute_gflops = &compute;
    set_times(row, timed);
    return row.value("above_roof_of", row["above_roof"] == true ? "?" : "");
  };
  // 32 * 4096 * 512 flops in a millisecond are 67.1 GFLOP/s.
  EXPECT_EQ(marked({50, 50, 50}, 0), "compute");
  EXPECT_EQ(marked({67, 67, 67}, 0), "");            // within what a median can tell
  EXPECT_EQ(marked({30, 60, 66, 120}, 0), "");       // within the spread
  EXPECT_EQ(marked({1000, 1000, 1000}, 0), "");      // the read roof binds, at 0.9
  EXPECT_EQ(marked({50, 50, 50}, 8 << 20), "");      // shared rows
  EXPECT_EQ(marked({50, 50, 50}, 0, "onednn"), "");  // which may have tile instructions
}

TEST(BenchRows, SharedRowsAreJudgedByTheirUniqueBytes) {
  for (const auto& [unique, marked] : {std::pair{8 << 20, false}, {15 << 20, true}}) {
    Json row = decode_row(gqa_case(), "kvroof", "t");
    row["unique_bytes"] = unique;
    const std::vector<double> time(3, 1e6), probe(3, 1.5e6);
    Timed timed;
    timed.time_ns = &time;
    timed.probe_ns = &probe;
    timed.probe_bytes = 16 << 20;
    set_times(row, timed);
    EXPECT_DOUBLE_EQ(row["read_fraction"].get<double>(), 1.5);
    EXPECT_EQ(row["above_roof"].get<bool>(), marked) << unique;
  }
}

TEST(BenchPairing, MediansOfACallsOwnFiguresPerRepetition) {
  // Two calls before the first repetition, then two repetitions of three.
  EXPECT_EQ(repetition_medians({9, 9, 1, 2, 30, 4, 5, 60}, 2, 3), (std::vector<double>{2, 5}));
  EXPECT_EQ(repetition_medians({7, 8}, 2, 1), (std::vector<double>{7, 8}));
}

TEST(BenchRows, ARowThatDidNotRunHasNoTime) {
  Json row = decode_row(gqa_case(), "onednn", "t");
  set_not_run(row, "unsupported", "avx2: unimplemented");
  EXPECT_FALSE(row.contains("real_time"));
  EXPECT_FALSE(row.contains("time_unit"));
  EXPECT_EQ(row["error_occurred"], true);
  EXPECT_EQ(row["error_message"], "unsupported: avx2: unimplemented");
  EXPECT_TRUE(row["gb_per_s"].is_null());
}

TEST(BenchRows, ThrottlingAndAChangingClockMakeARowUnstable) {
  const std::vector<double> time = {1e6};
  Timed timed;
  timed.time_ns = &time;
  Json row = decode_row(gqa_case(), "scalar", "t");
  set_times(row, timed);
  set_conditions(row, {4000.0, 3950.0, 0});
  EXPECT_EQ(row["status"], "ok");
  set_conditions(row, {4000.0, 3800.0, 0});
  EXPECT_EQ(row["status"], "unstable");
  Json throttled = decode_row(gqa_case(), "scalar", "t");
  set_times(throttled, timed);
  set_conditions(throttled, {4000.0, 4000.0, 2});
  EXPECT_EQ(throttled["status"], "unstable");
}

class EachProbe : public ::testing::TestWithParam<Isa> {};

TEST_P(EachProbe, ReadsEveryByteInEveryVariant) {
  if (!isa_supported(GetParam())) GTEST_SKIP() << isa_missing(GetParam());
  const ProbeTable& table = probe_table(GetParam());
  std::vector<std::uint64_t> words(3000);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = std::uint64_t{1} << (i % 48);
  const auto* base = reinterpret_cast<const std::byte*>(words.data());
  for (std::size_t k_words :
       {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{64}, std::size_t{777}, std::size_t{1500}}) {
    for (std::size_t v_words :
         {std::size_t{0}, std::size_t{5}, std::size_t{64}, std::size_t{1024}, std::size_t{1500}}) {
      std::uint64_t sum = 0;
      for (std::size_t i = 0; i < k_words; ++i) sum += words[i];
      for (std::size_t i = 0; i < v_words; ++i) sum += words[1500 + i];
      for (const ReadVariant& variant : kReadVariants)
        EXPECT_EQ(table.read({base, k_words * 8, base + 1500 * 8, v_words * 8}, variant), sum)
            << variant.name << " " << k_words << " " << v_words;
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

// Rows of a view as (position, address of the K row of head h).
std::vector<std::pair<std::int64_t, const std::byte*>> rows_of(const CallViews& call, std::int64_t head) {
  std::vector<std::pair<std::int64_t, const std::byte*>> rows;
  for (const RowRun& run : call.runs[0])
    for (std::int64_t t = 0; t < run.rows; ++t)
      rows.push_back(
          {run.first_position + t, run.k + t * call.views[0].k_row_stride + head * call.views[0].k_head_stride});
  return rows;
}

DecodeCase small_case() {
  DecodeCase c = gqa_case();
  c.shape = {"GQA", 4, 2, 32, 32};
  c.T = 64;
  return c;
}

TEST(BenchViews, EveryLayoutReadsAllOfTheSameMemory) {
  DecodeCase c = small_case();
  std::vector<std::byte> memory(c.bytes());
  const std::byte* base = memory.data();
  const auto covers = [&](const CallViews& call, std::int64_t first) {
    std::set<const std::byte*> rows;
    for (std::int64_t head : {0, 1}) {
      std::int64_t position = first;
      for (const auto& [at, row] : rows_of(call, head)) {
        EXPECT_EQ(at, position++);
        EXPECT_GE(row, base);
        EXPECT_LE(row + 64, base + memory.size());
        rows.insert(row);
      }
      EXPECT_EQ(position, call.views[0].end_position);
    }
    EXPECT_EQ(rows.size(), 2u * 64);
  };
  CacheSet set;
  set.base = base;
  set.k_bytes = c.k_bytes();
  set.v_bytes = c.v_bytes();
  set.count = 1;
  covers(contiguous_views(c, set, 0), 0);
  covers(ring_views(c, base, 21), 21);
  EXPECT_EQ(ring_views(c, base, 21).runs[0].size(), 2u);
  for (std::int64_t page : {1, 16, 64}) {
    for (const char* pages : {"ordered", "shuffled"}) {
      c.page_size = page;
      c.pages = pages;
      EXPECT_EQ(paged_bytes(c), c.bytes());
      covers(paged_views(c, base), 0);
    }
  }
  c.page_size = 1;
  c.pages = "ordered";
  const auto ordered = rows_of(paged_views(c, base), 0);
  c.pages = "shuffled";
  EXPECT_NE(rows_of(paged_views(c, base), 0), ordered);
}

TEST(BenchViews, BatchesHoldTheSameRowsHoweverSkewed) {
  DecodeCase c = small_case();
  for (std::int64_t batch : {1, 2, 7, 64}) {
    c.batch = batch;
    for (const char* lengths : {"equal", "skewed"}) {
      c.lengths = lengths;
      std::int64_t sum = 0;
      for (std::int64_t rows : batch_lengths(c)) {
        EXPECT_GE(rows, 1);
        sum += rows;
      }
      EXPECT_EQ(sum, batch * c.T);
    }
    if (batch > 1) {
      EXPECT_GT(batch_lengths(c)[0], 1.3 * static_cast<double>(c.T));
    }
  }
}

TEST(BenchViews, AForkedPrefixLiesInMemoryOnce) {
  DecodeCase c = small_case();
  c.kernel = "batch";
  c.layout = "paged";
  c.page_size = 16;
  c.pages = "ordered";
  c.batch = 3;
  c.prefix = 32;
  EXPECT_EQ(shared_prefix_bytes(c), c.bytes() / (3 * 64) * (32 + 3 * 32));
  EXPECT_NE(row_name(c, "kvroof").find("/prefix:32/"), std::string::npos);
  std::vector<std::byte> memory(c.bytes());
  const CallViews call = shared_prefix_views(c, memory.data());
  ASSERT_EQ(call.views.size(), 3u);
  std::set<const std::byte*> own;
  for (std::size_t b = 0; b < 3; ++b) {
    EXPECT_EQ(call.views[b].end_position, 64);
    ASSERT_EQ(call.runs[b].size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(call.runs[b][i].first_position, static_cast<std::int64_t>(16 * i));
      EXPECT_EQ(call.runs[b][i].rows, 16);
      EXPECT_LT(call.runs[b][i].v, memory.data() + shared_prefix_bytes(c));
      if (i < 2)
        EXPECT_EQ(call.runs[b][i].k, call.runs[0][i].k);
      else
        EXPECT_TRUE(own.insert(call.runs[b][i].k).second);
    }
  }
  std::vector<CallViews> calls = {call};
  Arena arena(std::nullopt, 1, c.isa);
  CacheSet set;
  set.k_bytes = c.k_bytes();
  set.v_bytes = c.v_bytes();
  set.count = 1;
  ASSERT_EQ(arena.prepare(c.storage, set, 1), "");
  calls[0] = shared_prefix_views(c, set.k(0));
  KernelRun run(c, std::move(calls));
  EXPECT_EQ(run.bytes(), static_cast<std::int64_t>(c.bytes()));  // every sequence's visible rows
  run.call(0);
  EXPECT_TRUE(run.check(run.oracle_samples()).passed);
}

TEST(BenchMla, CountsByHandAndByTheKernelsAgree) {
  DecodeCase c = mla_case(MlaKind::absorbed);
  c.T = 64;
  c.storage = Storage::int8;
  EXPECT_EQ(c.k_bytes(), 64u * 656);
  EXPECT_EQ(c.v_bytes(), 0u);
  c.storage = Storage::f32;
  EXPECT_EQ(mla_case_bytes(MlaKind::absorbed, c), 64 * 576 * 4);
  EXPECT_EQ(mla_case_bytes(MlaKind::absorbed_step, c), 64 * 576 * 4 + 2 * 128 * 128 * 512 * 4);
  EXPECT_EQ(mla_case_flops(MlaKind::absorbed, c), std::int64_t{128} * 64 * 2 * (576 + 512));
  // The cache that a latent row replaces: 128 heads of K and V of 128.
  DecodeCase mha;
  mha.shape = {"MHA128", 128, 128, 128, 128};
  mha.T = 64;
  EXPECT_NEAR(static_cast<double>(mha.bytes()) / static_cast<double>(c.bytes()), 56.9, 0.05);
}

TEST(BenchMla, EveryKernelIsCheckedAndSoAreItsRivals) {
  Arena arena(std::nullopt, 1, default_isa());
  MlaInputs inputs(mla_bench_shape());
  EXPECT_NE(inputs.make(1, 1 << 20), "");  // no room: says so, makes nothing
  EXPECT_TRUE(inputs.w_uk().empty());
  ASSERT_EQ(inputs.make(1, std::int64_t{1} << 40), "");
  for (const MlaKind kind : {MlaKind::absorbed, MlaKind::absorbed_step, MlaKind::reconstruct}) {
    for (const Storage storage : kStorages) {
      DecodeCase c = mla_case(kind);
      c.T = 12;
      c.storage = storage;
      c.threads = 2;
      c.isa = default_isa();
      DecodeSetup setup;
      setup.c = c;
      setup.caches.count = 2;
      ASSERT_EQ(prepare_latents(arena, c, setup.caches), "");
      MlaRun run(kind, c, inputs, setup.caches);
      EXPECT_EQ(run.bytes(), mla_case_bytes(kind, c)) << c.kernel;
      EXPECT_EQ(run.flops(), mla_case_flops(kind, c)) << c.kernel;
      run.call(0);
      const std::vector<DecodeSetup::Sample> samples = run.oracle_samples();
      const Check good = run.check(samples);
      EXPECT_TRUE(good.passed) << c.kernel << " " << storage_name(storage) << " " << good.max_error;
      std::vector<DecodeSetup::Sample> wrong = samples;
      wrong[1].answer.out[5] += 0.01;
      EXPECT_FALSE(run.check(wrong).passed);
      setup.q = run.q();
      setup.scale = run.scale();
      setup.samples = &samples;
      for (Rival& rival : scalar_mla_rivals(setup, c.kernel, inputs.w_uk(), inputs.w_uv())) {
        check_first_call(rival, setup);
        const bool none = kind == MlaKind::absorbed && storage == Storage::int8;
        EXPECT_EQ(rival.status, none ? "unsupported" : "ok")
            << c.kernel << " " << storage_name(storage) << " " << rival.reason;
      }
    }
  }
}

TEST(BenchMla, LongContextsAreCheckedAgainstFoldedFloat64) {
  Arena arena(std::nullopt, 1, default_isa());
  MlaInputs inputs(mla_bench_shape());
  ASSERT_EQ(inputs.make(1, std::int64_t{1} << 40), "");
  DecodeCase c = mla_case(MlaKind::absorbed_step);
  c.T = MlaRun::kOracleRows + 1;
  c.storage = Storage::bf16;
  c.isa = default_isa();
  CacheSet set;
  set.count = 1;
  ASSERT_EQ(prepare_latents(arena, c, set), "");
  MlaRun run(MlaKind::absorbed_step, c, inputs, set);
  run.call(0);
  std::vector<DecodeSetup::Sample> samples = run.oracle_samples();
  EXPECT_TRUE(run.check(samples).passed) << run.check(samples).max_error;
  samples[0].answer.out[0] += 1e-3;
  EXPECT_FALSE(run.check(samples).passed);
}

TEST(BenchMla, PresetsHoldWhatTheyPromise) {
  for (const auto& [preset, count] : {std::pair{Preset::quick, 16u}, {Preset::ci, 4u}, {Preset::full, 224u}}) {
    Options options;
    options.preset = preset;
    const Sweep sweep(options, machine_facts(), default_isa());
    std::set<std::string> names;
    for (const Entry& entry : mla_entries(sweep)) {
      EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
      EXPECT_EQ(entry.row_names.back(), entry.name);
    }
    EXPECT_EQ(names.size(), count) << preset_name(preset);
  }
}

TEST(BenchViews, AKernelRunCountsBytesAndChecksItsResult) {
  DecodeCase c = small_case();
  c.threads = 2;
  Arena arena(std::nullopt, 1, c.isa);
  CacheSet set;
  set.k_bytes = c.k_bytes();
  set.v_bytes = c.v_bytes();
  set.count = 1;
  ASSERT_EQ(arena.prepare(c.storage, set, 1), "");
  DecodeCase ring = c;
  ring.window = c.T;
  DecodeCase window = c;
  window.window = 10;
  DecodeCase chunk = c;
  chunk.n = 5;
  const auto one = [](const DecodeCase& of, CallViews call) {
    std::vector<CallViews> calls;
    calls.push_back(std::move(call));
    return std::make_unique<KernelRun>(of, std::move(calls));
  };
  const auto whole = one(c, contiguous_views(c, set, 0));
  const auto around = one(ring, ring_views(ring, set.k(0), 21));
  const auto last = one(window, windowed_views(window, set.k(0), 64, 50));
  const auto five = one(chunk, contiguous_views(chunk, set, 0));
  EXPECT_EQ(whole->bytes(), static_cast<std::int64_t>(c.bytes()));
  EXPECT_EQ(around->bytes(), static_cast<std::int64_t>(c.bytes()));
  EXPECT_EQ(last->bytes(), static_cast<std::int64_t>(c.bytes()) * 10 / 64);
  EXPECT_EQ(five->bytes(), static_cast<std::int64_t>(c.bytes()));
  EXPECT_EQ(whole->flops(), c.flops());
  EXPECT_EQ(five->flops(), chunk.flops());
  for (KernelRun* run : {whole.get(), around.get(), last.get(), five.get()}) {
    run->call(0);
    const Check good = run->check(run->oracle_samples());
    EXPECT_TRUE(good.passed) << good.max_error;
  }
  // And the check can fail: answers of another problem are none of this one.
  EXPECT_FALSE(whole->check(last->oracle_samples()).passed);
}

class JournalFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvroof-journal-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
    path = folder + "/j";
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  static Json row(const std::string& name, const std::string& tuple) { return {{"name", name}, {"tuple", tuple}}; }
  std::string text() const {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void fails(bool resume, const Json& now, const std::string& part) const {
    Journal journal;
    try {
      journal.open(path, resume, now);
      ADD_FAILURE() << "opened";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  std::string folder, path;
  const Json context = {{"definition", 1}, {"preset", "quick"}};
};

TEST_F(JournalFile, KeepsWholeEntriesAndCutsOffTheTornEnd) {
  {
    Journal journal;
    journal.open(path, false, context);
    journal.append({row("a1", "a"), row("a", "a")});
  }
  const std::string whole = text();
  // Killed within the second entry: one row of it whole, one torn.
  std::ofstream(path, std::ios::app) << row("b1", "b").dump() << "\n"
                                     << R"({"name":"b","tu)";
  Journal journal;
  journal.open(path, true, context);
  EXPECT_EQ(journal.entries(), (std::set<std::string>{"a"}));
  EXPECT_EQ(text(), whole);
  journal.append({row("b1", "b"), row("b", "b")});
  EXPECT_EQ(text(), whole + row("b1", "b").dump() + "\n" + row("b", "b").dump() + "\n");
}

TEST_F(JournalFile, RefusesWhatItMustNotTouch) {
  {
    Journal journal;
    journal.open(path, false, context);
  }
  const std::string before = text();
  fails(false, context, "exists already");
  Json other = context;
  other["preset"] = "full";
  fails(true, other, "preset was \"quick\" and is \"full\"");
  EXPECT_EQ(text(), before);
  std::ofstream(path, std::ios::app) << "garbage\n";
  fails(true, context, "line 2 is no JSON object");
  std::ofstream(path) << R"({"rows":1})"
                      << "\n";
  fails(true, context, "line 1 holds no context");
  EXPECT_EQ(text(), "{\"rows\":1}\n");
  path = folder + "/none/j";
  fails(false, context, "cannot be written");
}

TEST(BenchOptions, WrongUsageIsRefusedByName) {
  const auto parse = [](std::vector<std::string> words) {
    words.insert(words.begin(), "kvroof_bench");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    return parse_options(static_cast<int>(argv.size()), argv.data());
  };
  EXPECT_THROW(parse({"--preset=slow"}), UsageError);
  EXPECT_THROW(parse({"--journal="}), UsageError);
  EXPECT_THROW(parse({"--resume"}), UsageError);
  EXPECT_THROW(parse({"--memory-limit=-1"}), UsageError);
  EXPECT_THROW(parse({"--memory-limit=4X"}), UsageError);
  EXPECT_THROW(parse({"--benchmark_min_time=never"}), UsageError);
  EXPECT_THROW(parse({"--benchmark_fliter=x"}), UsageError);
  EXPECT_EQ(parse({"--memory-limit=1.5G"}).memory_limit, std::int64_t{3} << 29);
  EXPECT_EQ(parse({"--benchmark_min_time=0.5s"}).min_time_s, 0.5);
  EXPECT_EQ(parse({"--journal=/a/b/c"}).command_line, (std::vector<std::string>{"--journal=c"}));
  const Options options = parse({"--benchmark_repetitions=3", "--benchmark_filter=f16"});
  EXPECT_EQ(options.for_google.size(), 2u);
  EXPECT_EQ(options.filter, "f16");
}

TEST(BenchOptions, AFilterTakesAnEntryIfAnyOfItsRowsMatches) {
  const std::vector<std::string> rows = {"decode/impl:onednn", "decode/impl:kvroof"};
  EXPECT_TRUE(RowFilter("").takes(rows));
  EXPECT_TRUE(RowFilter("all").takes(rows));
  EXPECT_TRUE(RowFilter("onednn$").takes(rows));
  EXPECT_FALSE(RowFilter("scalar").takes(rows));
  EXPECT_TRUE(RowFilter("-scalar").takes(rows));
  EXPECT_FALSE(RowFilter("-onednn").takes(rows));
  EXPECT_THROW(RowFilter("("), UsageError);
}

}  // namespace
}  // namespace kvroof::bench

#endif  // KVROOF_TEST_BENCH
