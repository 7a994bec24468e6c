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
#include "bench/options.hpp"
#include "bench/pairing.hpp"
#include "bench/result_rows.hpp"
#include "bench/roofs.hpp"
#include "bench/statistics.hpp"

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
