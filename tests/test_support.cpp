// Tests of what the other tests rely on: the comparers can fail, the guard pages are where they should be, the layouts
// describe the rows that they store, and the instruction sets that ought to run do run.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>

#include "reference/inputs.hpp"
#include "tests/support/attend.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

bool passes(float actual, float expected, Nan nan = Nan::refused) {
  return static_cast<bool>(same_bits(std::vector<float>{actual}, std::vector<float>{expected}, "self-test", nan));
}

TEST(Comparer, NanAndInfinityAreNeverEqualByAccident) {
  EXPECT_FALSE(passes(kNaN, 1.0f));
  EXPECT_FALSE(passes(1.0f, kNaN));
  EXPECT_FALSE(passes(kInf, -kInf));
  EXPECT_FALSE(passes(kNaN, kNaN));
  EXPECT_TRUE(passes(kNaN, kNaN, Nan::allowed));
  EXPECT_FALSE(passes(kNaN, 1.0f, Nan::allowed));
  EXPECT_FALSE(passes(kNaN, bits_float(0x7fc00001u), Nan::allowed)) << "another NaN is another result";
  EXPECT_FALSE(passes(0.0f, -0.0f));
  EXPECT_TRUE(passes(kInf, kInf));
  EXPECT_TRUE(passes(1.5f, 1.5f));
}

TEST(Comparer, EveryCorruptedElementIsCounted) {
  std::vector<float> good(100), bad(100);
  for (int i = 0; i < 100; ++i)
    good[static_cast<std::size_t>(i)] = bad[static_cast<std::size_t>(i)] = static_cast<float>(i);
  for (std::size_t i = 0; i < 100; i += 2) bad[i] = i % 4 == 0 ? kNaN : kInf;
  const testing::AssertionResult result = same_bits(bad, good, "self-test");
  EXPECT_FALSE(result);
  EXPECT_NE(std::string(result.message()).find("50 of 100"), std::string::npos) << result.message();
}

TEST(Comparer, MessageNamesIndexValuesUlpAndCommand) {
  const testing::AssertionResult result =
      same_bits(std::vector<float>{0.0f, 1.0f}, std::vector<float>{0.0f, 0x1.000004p+0f}, "case-name");
  const std::string message = result.message();
  for (const char* part : {"[1]", "0x1p+0", "0x1.000004p+0", "2 ULP", "case-name",
                           "--gtest_filter='Comparer.MessageNamesIndexValuesUlpAndCommand'"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " missing in: " << message;
  }
}

TEST(Comparer, LengthsMustAgree) {
  EXPECT_FALSE(same_bits(std::vector<float>{1.0f}, std::vector<float>{1.0f, 2.0f}, "self-test"));
  EXPECT_FALSE(within(std::vector<float>{1.0f}, {1.0, 2.0}, {1.0, 1.0}, "1", "self-test"));
  EXPECT_FALSE(within(std::vector<float>{1.0f}, {1.0}, {}, "1", "self-test"));
}

TEST(Comparer, StridesAreFollowed) {
  const float padded[] = {1, 2, 99, 3, 4, 98};  // [2][2], row stride 3
  const float turned[] = {1, 3, 97, 2, 4};      // the same block, column stride 3
  EXPECT_TRUE(same_bits(Strided(padded, 2, 2, 3), Strided(turned, 2, 2, 1, 3), "self-test"));
  EXPECT_FALSE(same_bits(Strided(padded, 2, 2, 3), Strided(turned, 2, 2, 2), "self-test"));
}

TEST(Comparer, BoundIsABoundAndNanMissesIt) {
  const auto check = [](float a, double e, double b) {
    return static_cast<bool>(within(std::vector<float>{a}, {e}, {b}, "self-test", "self-test"));
  };
  EXPECT_TRUE(check(1.0f, 1.25, 0.25));
  EXPECT_FALSE(check(1.0f, 1.25, 0.24));
  EXPECT_FALSE(check(kNaN, 1.0, 10.0));
  EXPECT_FALSE(check(1.0f, std::nan(""), 10.0));
  EXPECT_FALSE(check(1.0f, 2.0, std::nan("")));
  EXPECT_FALSE(check(1.0f, 2.0, std::numeric_limits<double>::infinity())) << "an infinite bound allows everything";
  EXPECT_FALSE(check(kInf, -static_cast<double>(kInf), 10.0));
  EXPECT_TRUE(check(-kInf, -static_cast<double>(kInf), 0.0));
}

TEST(Comparer, ExactComparesNumbers) {
  EXPECT_TRUE(exact(std::vector<float>{0.0f}, std::vector<float>{-0.0f}, "self-test"));
  EXPECT_FALSE(exact(std::vector<float>{kNaN}, std::vector<float>{kNaN}, "self-test"));
}

TEST(Comparer, UlpDistanceCrossesZero) {
  EXPECT_EQ(ulp_distance(1.0f, 1.0f), 0u);
  EXPECT_EQ(ulp_distance(0x1p-149f, -0x1p-149f), 2u);
  EXPECT_EQ(ulp_distance(kNaN, 1.0f), UINT64_MAX);
}

// The guard pages only help if a write one byte beyond the array is a fault. Sanitizers report it in their own words.
TEST(GuardedBufferDeathTest, OneByteBeyondIsAFault) {
  GuardedBuffer end(100, Edge::end), start(100, Edge::start), none(0, Edge::end);
  volatile std::byte* beyond = end.data() + 100;
  volatile std::byte* before = start.data() - 1;
  volatile std::byte* nothing = none.data();
  EXPECT_DEATH(*beyond = std::byte{1}, "");
  EXPECT_DEATH(*before = std::byte{1}, "");
  EXPECT_DEATH(*nothing = std::byte{1}, "");
}

TEST(GuardedBuffer, CanariesAndAlignment) {
  for (const std::size_t bytes : {1u, 63u, 64u, 100u, 4096u, 5000u}) {
    GuardedBuffer end(bytes, Edge::end, 64), start(bytes, Edge::start, 64);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(end.data()) % 64, 0u);
    EXPECT_TRUE(end.intact() && start.intact());
    start.fill(0);
    end.fill(0);
    EXPECT_TRUE(end.intact() && start.intact());
    if (bytes % 64 != 0) {
      end.data()[bytes] = std::byte{0};
      EXPECT_FALSE(end.intact());
      start.data()[bytes] = std::byte{0};
      EXPECT_FALSE(start.intact());
    }
  }
}

TEST(GuardedBuffer, HashSeesEveryByte) {
  GuardedBuffer buffer(77, Edge::end);
  buffer.fill(0);
  const std::uint64_t before = buffer.hash();
  for (std::size_t i = 0; i < buffer.size(); ++i) {
    buffer.data()[i] = std::byte{1};
    EXPECT_NE(buffer.hash(), before) << i;
    buffer.data()[i] = std::byte{0};
  }
  EXPECT_EQ(buffer.hash(), before);
}

// Reads a stored cache back through its view, element by element, and finds the case's values where a query looks.
TEST(StoredCache, EveryLayoutDescribesTheRowsItStores) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const Case c = make_case(random_spec(seed, 40000));
    Layout layout = random_layout(seed);
    const StoredCache cache(c, layout);
    const KvView& view = cache.view();
    const std::vector<char> visible = visible_rows(c.problem);
    const std::string what = describe(c.spec) + " " + describe(layout);
    std::vector<char> covered(visible.size(), 0);
    std::int64_t next = 0;
    for (std::int64_t r = 0; r < view.run_count; ++r) {
      const RowRun& run = view.runs[r];
      ASSERT_GE(run.first_position, next) << what;
      ASSERT_GE(run.rows, 1) << what;
      next = run.first_position + run.rows;
      ASSERT_LE(next, c.problem.T) << what;
      for (std::int64_t t = 0; t < run.rows; ++t) {
        const std::int64_t position = run.first_position + t;
        covered[static_cast<std::size_t>(position)] = 1;
        if (!visible[static_cast<std::size_t>(position)]) continue;
        for (std::int64_t h = 0; h < c.problem.kv_heads; ++h) {
          const std::int64_t row = position * c.problem.kv_heads + h;
          const auto check = [&](const std::byte* first, Storage storage, std::int64_t d,
                                 const std::vector<float>& values) {
            for (std::int64_t i = 0; i < d; ++i) {
              std::uint32_t bits = 0;
              std::memcpy(&bits, first + i * static_cast<std::int64_t>(storage_bytes(storage)), storage_bytes(storage));
              ASSERT_EQ(bits, encode_element(storage, values[static_cast<std::size_t>(row * d + i)])) << what;
            }
          };
          check(run.k + t * view.k_row_stride + h * view.k_head_stride, view.k_storage, c.problem.key_dim, c.problem.k);
          check(run.v + t * view.v_row_stride + h * view.v_head_stride, view.v_storage, c.problem.value_dim,
                c.problem.v);
          if (view.k_storage == Storage::int8) {
            ASSERT_EQ(run.k_scale[t * view.k_scale_row_stride + h * view.k_scale_head_stride],
                      c.problem.k_scale[static_cast<std::size_t>(row)])
                << what;
          }
          if (view.v_storage == Storage::int8) {
            ASSERT_EQ(run.v_scale[t * view.v_scale_row_stride + h * view.v_scale_head_stride],
                      c.problem.v_scale[static_cast<std::size_t>(row)])
                << what;
          }
        }
      }
    }
    for (std::size_t t = 0; t < visible.size(); ++t) ASSERT_TRUE(!visible[t] || covered[t]) << what << " row " << t;
  }
}

// The random cases are only worth their name if they reach the whole option space.
TEST(RandomCases, ReachEveryOption) {
  int windows = 0, kept = 0, caps = 0, alibi = 0, sinks = 0, chunks = 0, mixed = 0, wide_groups = 0, long_ones = 0,
      odd = 0;
  constexpr int kCount = 400;
  for (std::uint64_t seed = 0; seed < kCount; ++seed) {
    const CaseSpec s = random_spec(seed, 2000000);
    windows += s.window < s.T;
    kept += s.kept_tokens > 0 && s.window < s.T;
    caps += s.softcap != kInf;
    alibi += s.alibi;
    sinks += s.sink;
    chunks += s.n > 1;
    mixed += s.k_storage != s.v_storage;
    wide_groups += s.query_heads / s.kv_heads >= 16;
    long_ones += s.T > 1024;
    odd += s.key_dim % 16 != 0;
    ASSERT_GE(s.T, s.n);
    ASSERT_EQ(s.query_heads % s.kv_heads, 0);
  }
  for (const int count : {windows, kept, caps, alibi, sinks, chunks, mixed, wide_groups, long_ones, odd}) {
    EXPECT_GE(count, kCount / 20);
  }
}

// Inputs are a golden constant: any compiler, any standard library, any order of filling.
TEST(Inputs, AreTheSameOnEveryMachine) {
  reference::OutputHash hash;
  for (std::uint64_t i = 0; i < 100000; ++i) hash.add(float_bits(reference::uniform(42, i)));
  EXPECT_EQ(hash.value, 0xb5966b15562457d2u) << std::hex << hash.value;
}

TEST(EachIsaMeta, ExpectedInstructionSetsRun) {
  std::string ran;
  for (const Isa isa : built_isas()) {
    if (isa_supported(isa)) {
      EXPECT_EQ(isa_missing(isa), "");
      ran += std::string(isa_name(isa)) + ",";
    } else {
      EXPECT_NE(isa_missing(isa), "") << isa_name(isa);
    }
  }
  ASSERT_FALSE(ran.empty());
  std::istringstream rows(KVROOF_EXPECTED_ISAS);  // what the build was told to compile
  for (std::string name; std::getline(rows, name, ';');) EXPECT_TRUE(isa_built(isa_from_name(name))) << name;
  const char* expected = std::getenv("KVROOF_EXPECT_ISAS");
  if (expected == nullptr) return;
  std::istringstream names(expected);
  for (std::string name; std::getline(names, name, ',');) {
    const Isa isa = isa_from_name(name);
    EXPECT_TRUE(isa_supported(isa)) << "KVROOF_EXPECT_ISAS names " << name
                                    << ", which did not run: " << isa_missing(isa);
  }
}

}  // namespace
}  // namespace kvroof::test
