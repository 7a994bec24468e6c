// Latent attention in the benchmark: counts, checks, rivals.
#ifdef KVROOF_TEST_BENCH

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/arena.hpp"
#include "bench/cache_views.hpp"
#include "bench/mla_run.hpp"
#include "bench/rivals/rival.hpp"
#include "bench/sweep.hpp"

namespace kvroof::bench {
namespace {

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
  // One latent row for the K and V rows of 128 heads, as cache objects count them.
  EXPECT_EQ(mla_replaced_case(c).shape.name, "MHA128");
  EXPECT_NEAR(
      static_cast<double>(measured_token_bytes(mla_replaced_case(c))) / static_cast<double>(measured_token_bytes(c)),
      56.9, 0.05);
  EXPECT_EQ(mla_case(MlaKind::absorbed, 16).shape.name, "MLA16");
  // A chunk: every query sees the rows up to its own.
  c.n = 3;
  const std::int64_t pairs = std::int64_t{128} * (62 + 63 + 64), weights = std::int64_t{128} * 2 * 512 * 256;
  EXPECT_EQ(mla_case_flops(MlaKind::absorbed_step, c), pairs * 2 * (576 + 512) + 3 * weights);
  EXPECT_EQ(mla_case_flops(MlaKind::reconstruct, c), pairs * 2 * (192 + 128) + 64 * weights);
}

TEST(BenchMla, ChunksAreCountedAndChecked) {
  Arena arena(std::nullopt, 1, default_isa());
  MlaInputs inputs(mla_bench_shape(16));
  ASSERT_EQ(inputs.make(1, std::int64_t{1} << 40), "");
  for (const MlaKind kind : {MlaKind::absorbed, MlaKind::absorbed_step, MlaKind::reconstruct}) {
    DecodeCase c = mla_case(kind, 16);
    c.T = 20;
    c.n = 5;
    c.storage = Storage::bf16;
    c.threads = 2;
    c.isa = default_isa();
    CacheSet set;
    set.count = 1;
    ASSERT_EQ(prepare_latents(arena, c, set), "");
    MlaRun run(kind, c, inputs, set);
    EXPECT_EQ(run.bytes(), mla_case_bytes(kind, c)) << c.kernel;
    EXPECT_EQ(run.flops(), mla_case_flops(kind, c)) << c.kernel;
    run.call(0);
    std::vector<DecodeSetup::Sample> samples = run.oracle_samples();
    ASSERT_EQ(samples.size(), 4u);  // first and last query and head
    EXPECT_TRUE(run.check(samples).passed) << c.kernel << " " << run.check(samples).max_error;
    std::swap(samples[0].answer, samples[2].answer);  // the first query's for the last
    EXPECT_FALSE(run.check(samples).passed) << c.kernel;
  }
}

TEST(BenchMla, OneDnnMultipliesWithTheWeightsRightly) {
  Arena arena(std::nullopt, 1, default_isa());
  MlaInputs inputs(mla_bench_shape(16));
  ASSERT_EQ(inputs.make(1, std::int64_t{1} << 40), "");
  for (const MlaKind kind : {MlaKind::absorbed_step, MlaKind::reconstruct}) {
    for (const Storage storage : kStorages) {
      DecodeSetup setup;
      setup.c = mla_case(kind, 16);
      setup.c.T = 40;
      setup.c.storage = storage;
      setup.c.isa = default_isa();
      setup.caches.count = 3;
      ASSERT_EQ(prepare_latents(arena, setup.c, setup.caches), "");
      MlaRun run(kind, setup.c, inputs, setup.caches);
      const std::vector<DecodeSetup::Sample> samples = run.oracle_samples();
      setup.samples = &samples;
      setup.q = run.q();
      setup.scale = run.scale();
      const auto no_f32 = [](std::string& reason) -> const DecodeSetup* {
        reason = "not in this test";
        return nullptr;
      };
      for (const Rival& rival :
           onednn_mla_rivals(setup, kind == MlaKind::reconstruct, inputs.w_uk(), inputs.w_uv(), arena, no_f32)) {
        EXPECT_EQ((rival.reason + rival.tried).find("wrong result"), std::string::npos)
            << setup.c.kernel << " " << rival.reason << rival.tried;
        if (onednn_version().empty() || storage != Storage::f32) continue;
#if defined(__x86_64__)  // elsewhere oneDNN may have no fast implementation
        EXPECT_EQ(rival.status, "ok") << setup.c.kernel << " " << rival.reason;
#endif
        if (rival.status != "ok") continue;
        // Every cache of the rotation is read, not the first one again.
        for (std::int64_t i : {1, 2, 3}) {
          CacheSet alone = setup.caches;
          alone.base = setup.caches.k(i);
          alone.count = 1;
          const std::vector<DecodeSetup::Sample> answers = MlaRun(kind, setup.c, inputs, alone).oracle_samples();
          DecodeSetup other = setup;
          other.samples = &answers;
          rival.call(i);
          const Check check = check_rival(other, rival.out(), rival.precision);
          EXPECT_TRUE(check.passed) << setup.c.kernel << " cache " << i << " " << check.max_error;
        }
      }
    }
  }
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
  for (const auto& [preset, count] : {std::pair{Preset::quick, 20u}, {Preset::ci, 6u}, {Preset::full, 305u}}) {
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

}  // namespace
}  // namespace kvroof::bench

#endif  // KVROOF_TEST_BENCH
