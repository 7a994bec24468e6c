// Layouts over the arena's memory, and the kernel over them with its check.
#ifdef KVROOF_TEST_BENCH

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "bench/arena.hpp"
#include "bench/cache_views.hpp"
#include "bench/kernel_run.hpp"
#include "bench/rivals/rival.hpp"
#include "reference/half.hpp"
#include "reference/inputs.hpp"
#include "tests/test_bench_cases.hpp"

namespace kvroof::bench {
namespace {

// Rows of a view as (position, address of the K row of head h).
std::vector<std::pair<std::int64_t, const std::byte*>> rows_of(const CallViews& call, std::int64_t head) {
  std::vector<std::pair<std::int64_t, const std::byte*>> rows;
  for (const RowRun& run : call.runs[0])
    for (std::int64_t t = 0; t < run.rows; ++t)
      rows.push_back(
          {run.first_position + t, run.k + t * call.views[0].k_row_stride + head * call.views[0].k_head_stride});
  return rows;
}

CacheSet one_cache(Arena& arena, const DecodeCase& c) {
  CacheSet set;
  set.k_bytes = c.k_bytes();
  set.v_bytes = c.v_bytes();
  set.count = 1;
  EXPECT_EQ(arena.prepare(c.storage, set, 1), "");
  return set;
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
  c.order = RowOrder::token_major;
  covers(contiguous_views(c, set, 0), 0);
  const auto by_token = rows_of(contiguous_views(c, set, 0), 1);
  EXPECT_EQ(by_token[0].second, base + 64);           // head 1 of token 0 follows head 0
  EXPECT_EQ(by_token[1].second, base + 2 * 64 + 64);  // two heads a token
  c.order = RowOrder::head_major;
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

// The page-order probe reads what the kernel reads, in its order: of every segment K before V, rows in ascending
// position, heads that lie side by side together, every byte of the cache once, for any number of threads.
TEST(BenchViews, PiecesAreThePagesInTheKernelsOrder) {
  DecodeCase c = small_case();
  c.shape = {"MHA", 4, 4, 32, 32};
  c.T = 2 * kSegmentRows + 40;
  c.layout = "paged";
  c.pages = "shuffled";
  std::vector<std::uint64_t> words(c.bytes() / 8 * 2);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i * i + 1;
  const auto* memory = reinterpret_cast<const std::byte*>(words.data());
  const Roofs roofs(default_isa());
  for (const RowOrder order : {RowOrder::head_major, RowOrder::token_major}) {
    for (const std::int64_t page : {1, 16, 48, 1024}) {  // 48: pages that a segment's end cuts in two
      c.order = order;
      c.page_size = page;
      std::vector<CallViews> calls = {paged_views(c, memory)};
      const CallViews call = calls[0];
      const KernelRun kernel(c, std::move(calls));
      const PieceWalk walk = piece_walk(kernel.args(0), 2);
      ASSERT_EQ(walk.segments.size(), 4u);
      // Heads that lie side by side, or one after another in a page of 16: two threads take two of the four at a time.
      const bool side_by_side = page == 1 || order == RowOrder::token_major, by_page = !side_by_side && page == 16;
      EXPECT_EQ(walk.heads, side_by_side || by_page ? 2 : 4);
      if (order == RowOrder::head_major) {
        EXPECT_EQ(walk.segments[1], static_cast<std::size_t>(2 * ((kSegmentRows + page - 1) / page)));
      }
      // Position by position from the runs themselves.
      std::vector<std::pair<const std::byte*, std::uint32_t>> rows, expected;
      for (const Piece& piece : walk.pieces)
        for (std::uint32_t at = 0; at < piece.bytes; at += 64) rows.push_back({piece.data + at, piece.value});
      for (std::int64_t begin = 0; begin < c.T; begin += kSegmentRows)
        for (const std::uint32_t value : {0u, 1u})
          for (const RowRun& run : call.runs[0])
            for (std::int64_t head = 0; head < (by_page ? 2 : 1); ++head)
              for (std::int64_t t = 0; t < run.rows; ++t) {
                const std::int64_t position = run.first_position + t;
                if (position < begin || position >= begin + kSegmentRows) continue;
                const KvView& view = call.views[0];
                const std::byte* row = value == 0 ? run.k + t * view.k_row_stride + head * view.k_head_stride
                                                  : run.v + t * view.v_row_stride + head * view.v_head_stride;
                expected.push_back({row, value});
                if (side_by_side) expected.push_back({row + 64, value});
              }
      EXPECT_EQ(rows, expected) << page;
      std::uint64_t sum = 0;
      for (const auto& [row, value] : expected)
        for (std::int64_t head = 0; head < walk.heads; ++head)
          for (std::int64_t w = 0; w < 8; ++w) {
            const std::int64_t stride = (side_by_side || by_page ? 2 : 1) *
                                        (value == 0 ? call.views[0].k_head_stride : call.views[0].v_head_stride);
            sum += words[static_cast<std::size_t>(row + head * stride - memory) / 8 + static_cast<std::size_t>(w)];
          }
      for (int threads : {1, 2, 5})
        for (const PieceVariant& variant : kPieceVariants)
          EXPECT_EQ(roofs.read(walk, threads, variant), sum) << page << " " << threads << " " << variant.name;
    }
  }
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
  const CacheSet set = one_cache(arena, c);
  calls[0] = shared_prefix_views(c, set.k(0));
  KernelRun run(c, std::move(calls));
  EXPECT_EQ(run.bytes(), static_cast<std::int64_t>(c.bytes()));  // every sequence's visible rows
  run.call(0);
  EXPECT_TRUE(run.check(run.oracle_samples()).passed);
}

TEST(BenchViews, AKernelRunCountsBytesAndChecksItsResult) {
  DecodeCase c = small_case();
  c.threads = 2;
  Arena arena(std::nullopt, 1, c.isa);
  const CacheSet set = one_cache(arena, c);
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
  DecodeCase token = c;
  token.order = RowOrder::token_major;
  const auto whole = one(c, contiguous_views(c, set, 0));
  const auto by_token = one(token, contiguous_views(token, set, 0));
  const auto around = one(ring, ring_views(ring, set.k(0), 21));
  const auto last = one(window, windowed_views(window, set.k(0), 64, 50));
  const auto five = one(chunk, contiguous_views(chunk, set, 0));
  EXPECT_EQ(whole->bytes(), static_cast<std::int64_t>(c.bytes()));
  EXPECT_EQ(around->bytes(), static_cast<std::int64_t>(c.bytes()));
  EXPECT_EQ(last->bytes(), static_cast<std::int64_t>(c.bytes()) * 10 / 64);
  EXPECT_EQ(five->bytes(), static_cast<std::int64_t>(c.bytes()));
  EXPECT_EQ(whole->flops(), c.flops());
  EXPECT_EQ(five->flops(), chunk.flops());
  EXPECT_EQ(by_token->bytes(), static_cast<std::int64_t>(c.bytes()));
  for (KernelRun* run : {whole.get(), by_token.get(), around.get(), last.get(), five.get()}) {
    run->call(0);
    const Check good = run->check(run->oracle_samples());
    EXPECT_TRUE(good.passed) << good.max_error;
  }
  // And the check can fail: answers of another problem are none of this one.
  EXPECT_FALSE(whole->check(last->oracle_samples()).passed);
}

// Rivals and native mode read either order of rows: what they make of it is right, or they say what they lack.
TEST(BenchViews, EveryImplementationReadsBothOrders) {
  for (const RowOrder order : {RowOrder::head_major, RowOrder::token_major}) {
    for (const Storage storage : kStorages) {
      DecodeSetup setup;
      setup.c = small_case();
      setup.c.storage = storage;
      setup.c.order = order;
      setup.c.isa = default_isa();
      setup.scale = 1.0f / std::sqrt(32.0f);
      setup.q = query_values(4 * 32);
      Arena arena(std::nullopt, 1, setup.c.isa);
      setup.caches.k_bytes = setup.c.k_bytes();
      setup.caches.v_bytes = setup.c.v_bytes();
      if (storage == Storage::int8) setup.caches.scale_count = 2 * 64;
      setup.caches.count = 2;
      ASSERT_EQ(arena.prepare(storage, setup.caches, 1), "");
      KernelRun own(setup.c, contiguous_views(setup.c, setup.caches));
      own.call(0);
      const std::vector<DecodeSetup::Sample> samples = own.oracle_samples();
      setup.samples = &samples;
      const std::string what = std::string(storage_name(storage)) + " " + row_order_name(order);
      EXPECT_TRUE(own.check(samples).passed) << what;
      const DecodeCase native = native_case(setup.c);
      if (native_missing(native.isa, storage, storage).empty()) {
        KernelRun run(native, contiguous_views(native, setup.caches));
        run.call(0);
        std::vector<DecodeSetup::Sample> own_bound = run.oracle_samples();
        const Check check = run.check(own_bound);
        EXPECT_TRUE(check.passed) << what << " " << check.max_error;
        EXPECT_FALSE(run.check(samples).passed) << what << ": it is not the reproducible mode";
        own_bound[0].answer.out[3] += 0.05;
        EXPECT_FALSE(run.check(own_bound).passed);
      }
      const auto no_f32 = [](std::string& reason) -> const DecodeSetup* {
        reason = "not in this test";
        return nullptr;
      };
      std::vector<Rival> rivals = onednn_rivals(setup, arena, no_f32);
      for (Rival& rival : scalar_rivals(setup)) {
        check_first_call(rival, setup);
        EXPECT_EQ(rival.status, "ok") << what << " " << rival.reason;
        rivals.push_back(rival);
      }
#if defined(__x86_64__)  // elsewhere oneDNN may have no fast implementation
      if (!onednn_version().empty() && storage == Storage::f32) {
        for (const Rival& rival : rivals) EXPECT_EQ(rival.status, "ok") << what << " " << rival.impl << rival.reason;
      }
#endif
      for (const Rival& rival : rivals)
        EXPECT_EQ((rival.reason + rival.tried).find("wrong result"), std::string::npos)
            << what << " " << rival.reason << rival.tried;
    }
  }
}

// Attention in double with the queries rounded as native mode rounds them lies within its bound, and not a hundred
// times within; with queries that are plainly off it does not.
TEST(BenchViews, TheNativeBoundIsNeitherTooTightNorLoose) {
  reference::AttentionProblem p;
  p.query_heads = p.kv_heads = p.n = 1;
  p.key_dim = 64;
  p.value_dim = 8;
  p.T = 40;
  p.scale = 0.5f;
  const auto value = [](std::uint64_t i) { return reference::uniform(5, i); };
  std::uint64_t at = 0;
  for (int i = 0; i < 64; ++i) p.q.push_back(value(at++));
  for (int i = 0; i < 40 * 64; ++i) p.k.push_back(reference::bf16_to_f32(reference::f32_to_bf16(value(at++))));
  for (int i = 0; i < 40 * 8; ++i) p.v.push_back(reference::bf16_to_f32(reference::f32_to_bf16(value(at++))));
  const reference::OracleAnswer bound = reference::oracle_attention(p, reference::kNativeBf16Arithmetic);
  const auto ratio = [&](auto round) {
    reference::AttentionProblem other = p;
    for (float& q : other.q) q = round(q);
    const reference::OracleAnswer got = reference::oracle_attention(other);
    double worst = 0;
    for (std::size_t d = 0; d < got.out.size(); ++d)
      worst = std::max(worst, std::abs(got.out[d] - bound.out[d]) / bound.out_bound[d]);
    return worst;
  };
  const double nearest = ratio([](float q) { return reference::bf16_to_f32(reference::f32_to_bf16(q)); });
  EXPECT_LT(nearest, 1);
  EXPECT_GT(nearest, 0.01);
  EXPECT_GT(ratio([](float q) { return q * 1.2f; }), 1);  // a fifth is no rounding
}

TEST(BenchViews, BytesOfATokenComeFromTheCacheItself) {
  DecodeCase c = gqa_case();
  EXPECT_EQ(measured_token_bytes(c), 8 * 2 * 128 * 2);
  c.storage = Storage::int8;
  c.order = RowOrder::token_major;
  EXPECT_EQ(measured_token_bytes(c), 8 * (2 * 128 + 2 * 4));
}

}  // namespace
}  // namespace kvroof::bench

#endif  // KVROOF_TEST_BENCH
