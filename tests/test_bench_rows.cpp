// Rows of the result file: rates, fractions, marks, by hand.
#ifdef KVROOF_TEST_BENCH

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "bench/result_rows.hpp"
#include "bench/statistics.hpp"
#include "bench/tuple.hpp"
#include "tests/test_bench_cases.hpp"

namespace kvroof::bench {
namespace {

Json plain_row(const std::string& impl = "kvroof", std::int64_t unique_bytes = 0) {
  Json row = decode_row(gqa_case(), impl, "t");
  if (unique_bytes > 0) row["unique_bytes"] = unique_bytes;
  return row;
}

// The row after samples of these times; probe and compute roof may be left out.
Json timed(Json row, const std::vector<double>& time, const std::vector<double>& probe = {},
           const std::vector<double>& compute = {}) {
  Timed samples;
  samples.time_ns = &time;
  if (!probe.empty()) samples.probe_ns = &probe;
  samples.probe_bytes = 16 << 20;
  if (!compute.empty()) samples.compute_gflops = &compute;
  set_times(row, samples);
  return row;
}

TEST(BenchRows, RatesAndFractionsByHand) {
  const double bytes = 16 << 20, flops = 32.0 * 4096 * 512;
  const Json row = timed(plain_row(), {2e6, 4e6, 2e6}, {1e6, 3e6, 1e6}, {1e3, 1e3, 1e3});
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
  const double flops = 32.0 * 4096 * 512;
  const Json row = timed(plain_row(), {1e6}, {1e5}, {100});
  EXPECT_DOUBLE_EQ(row["attainable_gflops"].get<double>(), 100);
  EXPECT_DOUBLE_EQ(row["attainable_fraction"].get<double>(), flops / 1e6 / 100);
}

TEST(BenchRows, ARowAboveItsRoofByMoreThanTheSpreadIsMarked) {
  const auto marked = [](const std::vector<double>& time, const std::vector<double>& probe) {
    return timed(plain_row(), time, probe)["above_roof"].get<bool>();
  };
  EXPECT_TRUE(marked({100, 100, 100}, {110, 110, 110}));
  EXPECT_FALSE(marked({100, 100, 100}, {101, 101, 101}));           // within what a median can tell
  EXPECT_FALSE(marked({100, 100, 100, 100}, {80, 105, 107, 140}));  // within the spread
  EXPECT_FALSE(marked({100, 100, 100}, {90, 90, 90}));
}

TEST(BenchRows, ARowAboveItsComputeRoofIsMarkedToo) {
  const auto marked = [](const std::vector<double>& compute, std::int64_t unique_bytes,
                         const std::string& impl = "kvroof") {
    const std::vector<double> time(compute.size(), 1e6), probe(compute.size(), 0.9e6);
    const Json row = timed(plain_row(impl, unique_bytes), time, probe, compute);
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

TEST(BenchRows, TheSelfTestFailsAboveTenPerCentOnly) {
  const auto fails = [](double probe_ns, std::size_t pairs, double slow_quarter = 0, const std::string& impl = "kvroof",
                        std::int64_t unique_bytes = 0) {
    std::vector<double> probe(pairs, probe_ns);
    const std::vector<double> time(pairs, 1e6), compute(pairs, 1e6);
    for (std::size_t i = 0; slow_quarter > 0 && i < (pairs + 2) / 3; ++i) probe[i] = slow_quarter;
    return fails_roof(timed(plain_row(impl, unique_bytes), time, probe, compute));
  };
  EXPECT_TRUE(fails(1.11e6, 5));
  EXPECT_FALSE(fails(1.09e6, 5));  // marked, not failed
  EXPECT_FALSE(fails(1.2e6, 4));   // too few pairs to say so
  EXPECT_FALSE(fails(1.2e6, 9, 1.05e6));
  EXPECT_FALSE(fails(1.2e6, 9, 0, "onednn"));
  EXPECT_FALSE(fails(1.5e6, 9, 0, "kvroof", 8 << 20));  // shared rows: half of them come from a cache
}

TEST(BenchRows, TheSelfTestKnowsTheComputeRoofToo) {
  const std::vector<double> time(6, 1e6), probe(6, 0.9e6), compute(6, 50);  // the row does 67 GFLOP/s
  Json row = timed(plain_row(), time, probe, compute);
  EXPECT_EQ(row["above_roof_of"], "compute");
  EXPECT_TRUE(fails_roof(row));
  row["status"] = "unstable";  // proves nothing
  EXPECT_FALSE(fails_roof(row));
}

TEST(BenchRows, NativeModeHasARowWhetherItRunsOrNot) {
  for (const Isa isa : {Isa::portable, default_isa()}) {
    for (const Storage storage : kStorages) {
      DecodeCase c = gqa_case();
      c.isa = isa;
      c.storage = storage;
      const Json row = native_row(native_case(c), "t");
      EXPECT_EQ(row["mode"], "native");
      EXPECT_EQ(row["tuple"], "t");
      const std::string missing = native_missing(isa, storage, storage);
      if (missing.empty()) {
        EXPECT_TRUE(row["status"].is_null());
        continue;
      }
      EXPECT_EQ(row["status"], "unsupported");
      EXPECT_EQ(row["error_message"], "unsupported: " + missing);
    }
  }
}

TEST(BenchRows, SharedRowsAreJudgedByTheirUniqueBytes) {
  for (const auto& [unique, marked] : {std::pair{8 << 20, false}, {15 << 20, true}}) {
    const Json row = timed(plain_row("kvroof", unique), {1e6, 1e6, 1e6}, {1.5e6, 1.5e6, 1.5e6});
    EXPECT_DOUBLE_EQ(row["read_fraction"].get<double>(), 1.5);
    EXPECT_EQ(row["above_roof"].get<bool>(), marked) << unique;
  }
}

TEST(BenchRows, ARowOfMoreBytesThanTheTuplesHasAReadRoofOfItsOwn) {
  Sweep sweep(Options{}, machine_facts(), default_isa());
  const DecodeCase c = small_case();
  std::vector<std::byte> memory(std::size_t{4} << 20);
  CacheSet few, many;
  few.base = many.base = memory.data();
  few.count = many.count = 1;
  few.k_bytes = 4096;
  many.k_bytes = memory.size();
  TupleRun run(sweep, few, c);
  const std::size_t read = run.add_read(many);
  const std::size_t at = run.add({"kernel", [](std::int64_t) {}});
  run.measure(0.01);
  const auto roof_bytes = [&](std::size_t roof) {  // what the probe read while the row was measured
    Json row = plain_row();
    run.set_measured(row, at, TupleRun::kNone, 0, roof);
    std::vector<double> times = row["samples"]["probe_ns"].get<std::vector<double>>();
    return row["read_roof_gb_per_s"].get<double>() * median(times);
  };
  EXPECT_NEAR(roof_bytes(0), 4096, 1);
  EXPECT_NEAR(roof_bytes(read), static_cast<double>(memory.size()), 100);
}

TEST(BenchRows, ARowThatDidNotRunHasNoTime) {
  Json row = plain_row("onednn");
  set_not_run(row, "unsupported", "avx2: unimplemented");
  EXPECT_FALSE(row.contains("real_time"));
  EXPECT_FALSE(row.contains("time_unit"));
  EXPECT_EQ(row["error_occurred"], true);
  EXPECT_EQ(row["error_message"], "unsupported: avx2: unimplemented");
  EXPECT_TRUE(row["gb_per_s"].is_null());
}

TEST(BenchRows, ThrottlingAndAChangingClockMakeARowUnstable) {
  Json row = timed(plain_row("scalar"), {1e6});
  set_conditions(row, {4000.0, 3950.0, 0});
  EXPECT_EQ(row["status"], "ok");
  set_conditions(row, {4000.0, 3800.0, 0});
  EXPECT_EQ(row["status"], "unstable");
  Json throttled = timed(plain_row("scalar"), {1e6});
  set_conditions(throttled, {4000.0, 4000.0, 2});
  EXPECT_EQ(throttled["status"], "unstable");
}

}  // namespace
}  // namespace kvroof::bench

#endif  // KVROOF_TEST_BENCH
