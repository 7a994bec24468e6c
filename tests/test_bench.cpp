// What the benchmark measures: cases, names, presets; and its command line.
#ifdef KVROOF_TEST_BENCH

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/arena.hpp"
#include "bench/cases.hpp"
#include "bench/options.hpp"
#include "tests/test_bench_cases.hpp"

namespace kvroof::bench {
namespace {

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

TEST(BenchCases, TheNameSaysOrderModeAndInstructions) {
  const auto ends_with = [](const std::string& text, const std::string& end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
  };
  DecodeCase c = gqa_case();
  c.order = RowOrder::token_major;
  EXPECT_NE(row_name(c, "kvroof").find("/order:token/"), std::string::npos);
  EXPECT_TRUE(ends_with(row_name(native_case(c), "kvroof"), "/impl:kvroof/mode:native/threads:all/isa:portable"));
  EXPECT_EQ(row_name(native_case(c), "onednn"), row_name(c, "onednn"));  // others have no modes
  c.isa = Isa::avx512;
  const std::string isa = *native_isa_name(Isa::avx512) != '\0' ? native_isa_name(Isa::avx512) : "avx512";
  DecodeCase native = native_case(c);
  EXPECT_TRUE(ends_with(row_name(native, "kvroof"), "/mode:native/threads:all/isa:" + isa));
  native.native_isa = "amx";
  EXPECT_TRUE(ends_with(row_name(native, "kvroof"), "/isa:amx"));
  EXPECT_EQ(compute_op(c).name(), "f16_fma_G4");
  EXPECT_EQ(compute_op(native).name(), "f16_dot_G4");
  c.n = 100;
  EXPECT_EQ(compute_op(c).name(), "f16_fma_G32");
  c.storage = Storage::f32;
  EXPECT_EQ(compute_op(c).name(), "fma_f32");
}

TEST(BenchCases, TheDotRoofIsNamedAfterItsInstructions) {
  PresetSizes sizes;
  sizes.isa = Isa::avx512;
  int dots = 0;
  for (const RoofCase& c : roof_cases(Preset::full, sizes)) {
    if (c.mode != Mode::native) continue;
    ++dots;
    EXPECT_NE(row_name(c).find("/op:bf16_dot_G"), std::string::npos) << row_name(c);
    EXPECT_NE(row_name(c).find(std::string("/isa:") + native_isa_name(c.isa)), std::string::npos) << row_name(c);
  }
  EXPECT_EQ(dots, *native_isa_name(Isa::avx512) != '\0' ? 6 : 0);
  sizes.isa = Isa::portable;
  for (const RoofCase& c : roof_cases(Preset::full, sizes)) EXPECT_EQ(c.mode, Mode::reproducible);
}

TEST(BenchCases, PresetsHoldWhatTheyPromise) {
  PresetSizes sizes;
  sizes.last_level_bytes = 32 << 20;
  sizes.threads_all = 2;
  for (Preset preset : kPresets) {
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
  EXPECT_EQ(quick, (std::set<std::int64_t>{16, 128, 512, 4096, 32768}));
  EXPECT_EQ(full.size(), 12u);
  EXPECT_EQ(*full.begin(), 16);
  EXPECT_EQ(*full.rbegin(), 131072);
  // Families that the full sweep must hold in every storage, cold, from 128 tokens on.
  for (const char* shape : {"MHA", "GQA", "GQA8", "MQA", "MHA128", "GQA128"}) {
    for (RowOrder order : {RowOrder::head_major, RowOrder::token_major}) {
      if (order == RowOrder::token_major && std::string(shape) != "MHA") continue;
      std::set<std::pair<Storage, std::int64_t>> rows;
      for (const DecodeCase& c : decode_cases(Preset::full, sizes))
        if (c.shape.name == shape && c.order == order && c.cold && c.all_threads) rows.insert({c.storage, c.T});
      EXPECT_EQ(rows.size(), 4u * 11) << shape << " " << row_order_name(order);
    }
  }
}

TEST(BenchCases, PointsForPredictionsStandInNoOtherPreset) {
  PresetSizes sizes;
  sizes.last_level_bytes = 32 << 20;
  std::set<std::int64_t> known;
  for (Preset preset : {Preset::quick, Preset::full, Preset::ci})
    for (const DecodeCase& c : decode_cases(preset, sizes)) known.insert(c.T);
  const std::vector<DecodeCase> cases = decode_cases(Preset::check, sizes);
  EXPECT_FALSE(cases.empty());
  for (const DecodeCase& c : cases) EXPECT_EQ(known.count(c.T), 0u) << c.T;
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

TEST(BenchOptions, WrongUsageIsRefusedByName) {
  const auto parse = [](std::vector<std::string> words) {
    words.insert(words.begin(), "kvroof_bench");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    return parse_options(static_cast<int>(argv.size()), argv.data());
  };
  EXPECT_THROW(parse({"--preset=slow"}), UsageError);
  for (Preset preset : kPresets)
    EXPECT_EQ(parse({std::string("--preset=") + preset_name(preset)}).preset, preset) << preset_name(preset);
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
