// The paged cache and views over foreign page tables: named cases beside the model test. P is the page size.
#include "kernels/cache/paged.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/cache/contiguous.hpp"
#include "kernels/cache/page_table.hpp"
#include "tests/support/guarded_buffer.hpp"
#include "tests/test_cache_attend.hpp"
#include "tests/test_cache_models.hpp"

namespace kvroof::test_cache {
namespace {

constexpr CacheShape kShape{.kv_heads = 2, .key_dim = 6, .value_dim = 5};

PagedCache pool(std::int64_t page_rows, std::int64_t pages, std::span<const PageId> order = {},
                const CacheShape& shape = kShape, RowOrder row_order = RowOrder::head_major) {
  return PagedCache(shape, {.order = row_order, .page_rows = page_rows, .page_count = pages, .page_order = order});
}

std::vector<PageId> pages(const PagedCache& cache, SequenceId id) {
  const std::span<const PageId> list = cache.pages(id);
  return {list.begin(), list.end()};
}

// The output of the newest token's random query over a view.
std::vector<float> answer(const KvView& view, const CacheShape& shape = kShape) {
  return attend(view, shape, 4, 1, {}, random_queries(shape, 4, 1));
}

// Three continuations of one prefix of 21 with P = 16: page 0 is shared by three, page 1 copied by the first two
// writers.
TEST(CachePaged, ForksOfAHalfFilledPageDoNotTearIt) {
  for (const bool interleaved : {false, true}) {
    PagedCache cache = pool(16, 32);
    const std::int64_t free_at_start = cache.free_pages();
    SequenceId ids[3];
    ids[0] = cache.create();
    cache.append(ids[0], RandomRows(kShape, 1, 0, 21));
    ids[1] = cache.fork(ids[0]);
    ids[2] = cache.fork(ids[0]);
    EXPECT_EQ(cache.occupancy().pages_used, 2);
    EXPECT_EQ(cache.references(pages(cache, ids[0])[0]), 3);

    ContiguousCache alone[3] = {ContiguousCache(kShape), ContiguousCache(kShape), ContiguousCache(kShape)};
    for (ContiguousCache& each : alone) each.append(RandomRows(kShape, 1, 0, 21));
    const auto step = [&](std::size_t who, std::int64_t t) {
      const RandomRows row(kShape, 10 + who, t, 1);
      cache.append(ids[who], row);
      alone[who].append(row);
    };
    if (interleaved) {
      for (std::int64_t t = 21; t < 40; ++t) {
        for (std::size_t who = 0; who < 3; ++who) step(who, t);
        if (t == 21) {
          EXPECT_EQ(cache.occupancy().pages_used, 4) << "page 0, page 1 and two copies of it";
        }
      }
    } else {
      for (std::size_t who = 0; who < 3; ++who) {
        for (std::int64_t t = 21; t < 40; ++t) step(who, t);
      }
    }
    for (std::size_t who = 0; who < 3; ++who) {
      EXPECT_TRUE(same_bits(answer(cache.view(ids[who])), answer(alone[who].view()))) << who << interleaved;
      EXPECT_EQ(pages(cache, ids[who])[0], pages(cache, ids[0])[0]);
    }
    EXPECT_EQ(cache.references(pages(cache, ids[0])[0]), 3);
    EXPECT_EQ(cache.occupancy().pages_shared, 1);
    for (const SequenceId id : {ids[1], ids[0], ids[2]}) cache.release(id);  // not in the order of the forks
    EXPECT_EQ(cache.free_pages(), free_at_start);
  }
}

TEST(CachePaged, HandlesAreCheckedByGeneration) {
  PagedCache cache = pool(4, 8);
  const SequenceId first = cache.create();
  cache.append(first, RandomRows(kShape, 1, 0, 9));
  cache.release(first);
  require_error(ErrorCode::bad_handle, "double release", [&] { cache.release(first); });
  const SequenceId second = cache.create();  // the same place, another generation
  EXPECT_EQ(second.index, first.index);
  EXPECT_FALSE(second == first);
  cache.append(second, RandomRows(kShape, 2, 0, 3));
  require_error(ErrorCode::bad_handle, "old handle", [&] { cache.append(first, RandomRows(kShape, 3, 0, 1)); });
  require_error(ErrorCode::bad_handle, "old handle", [&] { cache.view(first); });
  require_error(ErrorCode::bad_handle, "a handle of nothing", [&] { cache.length(SequenceId{}); });
  require_error(ErrorCode::bad_handle, "an index beyond", [&] { cache.length(SequenceId{77, 1}); });
  EXPECT_EQ(cache.length(second), 3);
  EXPECT_EQ(cache.view(second).runs[0].rows, 3) << "rows of the page's former owner";
  EXPECT_EQ(cache.free_pages(), 7);
}

TEST(CachePaged, AnExhaustedPoolRefusesAndChangesNothing) {
  PagedCache cache = pool(4, 4);
  const SequenceId a = cache.create();
  cache.append(a, CountingRows(kShape, 0, 10));  // 3 pages, the last half full
  const SequenceId b = cache.fork(a);
  const std::vector<float> before = answer(cache.view(a));
  require_error(ErrorCode::no_capacity, "7 rows", [&] { cache.append(a, CountingRows(kShape, 10, 7)); });
  require_error(ErrorCode::no_capacity, "copy and one more page",
                [&] { cache.append(a, CountingRows(kShape, 10, 3)); });
  EXPECT_EQ(cache.length(a), 10);
  EXPECT_EQ(cache.free_pages(), 1);
  EXPECT_TRUE(same_bits(answer(cache.view(a)), before));
  cache.append(a, CountingRows(kShape, 10, 2));  // the copy alone fits
  EXPECT_EQ(cache.free_pages(), 0);
  cache.append(b, CountingRows(kShape, 10, 2));  // the last owner writes in place
  require_error(ErrorCode::no_capacity, "no page left", [&] { cache.append(b, CountingRows(kShape, 12, 1)); });
  cache.truncate_to(a, 8);
  cache.append(b, CountingRows(kShape, 12, 1));
  EXPECT_EQ(cache.length(b), 13);
}

TEST(CachePaged, ATruncatedSharerCopiesBeforeItWrites) {
  PagedCache cache = pool(8, 8);
  const SequenceId a = cache.create();
  cache.append(a, RandomRows(kShape, 1, 0, 8));  // a full page
  const SequenceId b = cache.fork(a);
  const std::vector<float> before = answer(cache.view(b));
  cache.truncate_to(a, 5);
  cache.append(a, RandomRows(kShape, 2, 5, 1));
  EXPECT_NE(pages(cache, a)[0], pages(cache, b)[0]);
  EXPECT_TRUE(same_bits(answer(cache.view(b)), before));
}

// Unused slots of the last page, foreign pages and recycled pages that were never cleared.
TEST(CachePaged, NothingBeyondTheLengthIsRead) {
  struct Sizes {
    std::int64_t page_rows, length;
  };
  for (const Sizes s : {Sizes{4, 13}, Sizes{16, 1}, Sizes{16, 15}, Sizes{16, 16}, Sizes{16, 17}}) {
    for (const Storage storage : kStorages) {
      CacheShape shape = kShape;
      shape.k_storage = shape.v_storage = storage;
      const PagedOptions options{.order = RowOrder::head_major, .page_rows = s.page_rows, .page_count = 24};
      CacheMemory arena = CacheMemory::allocate(PagedCache::bytes_needed(shape, options));
      std::memset(arena.data(), 0xff,
                  static_cast<std::size_t>(arena.bytes()));  // NaN in every storage; int8: its scales
      PagedCache cache(shape, options, {arena.data(), static_cast<std::size_t>(arena.bytes())});
      ContiguousCache clean(shape);
      clean.append(RandomRows(shape, 1, 0, s.length));
      const std::vector<float> expected = answer(clean.view(), shape);
      for (int round = 0; round < 4; ++round) {  // three times over recycled pages
        const SequenceId other = cache.create();
        RandomRows nan_rows(shape, 2, 0, 3 * s.page_rows);
        std::fill(nan_rows.k.begin(), nan_rows.k.end(), std::numeric_limits<float>::quiet_NaN());
        std::fill(nan_rows.v.begin(), nan_rows.v.end(), std::numeric_limits<float>::quiet_NaN());
        cache.append(other, nan_rows);
        const SequenceId mine = cache.create();
        if (round % 2 == 1) {  // the same length by way of rows taken back
          cache.append(mine, RandomRows(shape, 1, 0, s.length));
          cache.append(mine, nan_rows);
          cache.truncate_to(mine, s.length);
        } else {
          cache.append(mine, RandomRows(shape, 1, 0, s.length));
        }
        EXPECT_TRUE(same_bits(answer(cache.view(mine), shape), expected))
            << "P = " << s.page_rows << ", T = " << s.length << ", " << storage_name(storage) << ", round " << round;
        cache.release(other);
        cache.release(mine);
      }
    }
  }
}

TEST(CachePaged, AnyPageOrderGivesTheBitsOfTheContiguousCache) {
  const CacheShape shape{
      .kv_heads = 2, .key_dim = 20, .value_dim = 17, .k_storage = Storage::bf16, .v_storage = Storage::f16};
  const std::int64_t length = 600;  // more than a segment
  ContiguousCache clean(shape);
  clean.append(RandomRows(shape, 1, 0, length));
  const std::vector<float> q = random_queries(shape, 4, 3), expected = attend(clean.view(), shape, 4, 3, {}, q);
  for (const std::int64_t page_rows : {1, 2, 7, 16, 64, 512, 1000}) {
    const std::int64_t count = pages_of(length, page_rows);
    std::vector<PageId> order(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) order[static_cast<std::size_t>(i)] = count - 1 - i;
    SeededOps shuffle(static_cast<std::uint64_t>(page_rows), 0);
    for (const bool shuffled : {false, true}) {
      if (shuffled) {
        for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[shuffle.next(i)]);
      }
      for (const RowOrder row_order : {RowOrder::head_major, RowOrder::token_major}) {
        PagedCache cache = pool(page_rows, count, order, shape, row_order);
        const SequenceId id = cache.create();
        for (std::int64_t t = 0; t < length; t += 50) cache.append(id, RandomRows(shape, 1, t, 50));
        EXPECT_EQ(pages(cache, id), order);
        EXPECT_TRUE(same_bits(attend(cache.view(id), shape, 4, 3, {}, q), expected))
            << "P = " << page_rows << (shuffled ? ", shuffled" : ", reversed") << ", " << row_order_name(row_order);
      }
    }
  }
}

// Pages that the kernel reads across all heads, with windows and lengths that begin and end inside a page.
TEST(CachePaged, WindowsInsidePagesOfManyHeads) {
  for (const auto& [k_storage, v_storage] :
       {std::pair{Storage::f32, Storage::f32}, std::pair{Storage::f16, Storage::int8},
        std::pair{Storage::bf16, Storage::bf16}}) {
    const CacheShape shape{
        .kv_heads = 6, .key_dim = 24, .value_dim = 40, .k_storage = k_storage, .v_storage = v_storage};
    const std::int64_t length = 677;
    ContiguousCache clean(shape);
    clean.append(RandomRows(shape, 1, 0, length));
    for (const std::int64_t page_rows : {16, 32, 64, 128, 256}) {
      PagedCache cache = pool(page_rows, pages_of(length, page_rows), {}, shape);
      const SequenceId id = cache.create();
      cache.append(id, RandomRows(shape, 1, 0, length));
      for (const std::int64_t group : {1, 2, 9, 13}) {
        for (const std::int64_t window : {std::int64_t{1}, std::int64_t{21}, std::int64_t{150}, std::int64_t{213},
                                          std::int64_t{600}, kUnlimitedWindow}) {
          AttentionOptions options;
          options.window = window;
          options.kept_tokens = window == 213 ? 37 : 0;
          const std::int64_t heads = group * shape.kv_heads, n = window == 150 ? 3 : 1;
          const std::vector<float> q = random_queries(shape, heads, n);
          EXPECT_TRUE(same_bits(attend(cache.view(id), shape, heads, n, options, q),
                                attend(clean.view(), shape, heads, n, options, q)))
              << "P = " << page_rows << ", " << group << " queries a head, W = " << window << ", "
              << storage_name(k_storage);
        }
      }
    }
  }
}

// Pages of 4 rows in memory of their own: page p holds the random tokens 4p ... 4p+3.
struct ForeignPages {
  static constexpr std::int64_t kPageRows = 4;
  RowLayout layout;
  CacheMemory memory;
  PageGeometry geometry;
  ForeignPages(std::int64_t pages, RowOrder order)
      : layout(row_layout(kShape, order, kPageRows)), memory(CacheMemory::allocate(pages * layout.bytes)) {
    for (std::int64_t page = 0; page < pages; ++page) {
      store_rows(layout, memory.data() + page * layout.bytes, 0, RandomRows(kShape, 1, page * kPageRows, kPageRows), 0,
                 kPageRows, default_row_converter());
    }
    geometry.k = memory.data();
    geometry.v = memory.data() + layout.v_offset;
    geometry.k_page_stride = geometry.v_page_stride = layout.bytes;
    geometry.page_rows = kPageRows;
    geometry.page_count = pages;
    geometry.strides = layout.strides;
  }
};

// A foreign table over a pool of ours: shuffled, reversed, with a page that appears twice.
TEST(CachePageTable, RepeatedPagesAreReadWhereTheTableSays) {
  const ForeignPages foreign(8, RowOrder::head_major);
  const PageGeometry& geometry = foreign.geometry;
  const std::int64_t page_rows = ForeignPages::kPageRows;

  // What stands behind the used entries must not be looked at; entries and runs are exactly as many as needed.
  const std::vector<std::int32_t> table = {6, 1, 1, 7, 0};
  const std::int64_t length = 18;
  ContiguousCache clean(kShape);
  for (std::size_t i = 0; i < table.size(); ++i) {
    clean.append(RandomRows(kShape, 1, table[i] * page_rows, std::min(page_rows, length - clean.length())));
  }
  std::vector<RowRun> runs(5);
  EXPECT_TRUE(same_bits(answer(page_table_view(geometry, table, length, runs)), answer(clean.view())));

  const std::vector<std::int32_t> wild = {6, 1, 1, 7, 0, -1, 1 << 30};
  EXPECT_TRUE(same_bits(answer(page_table_view(geometry, wild, length, runs)), answer(clean.view())));
  require_error(ErrorCode::bad_view, "a used entry of -1", [&] {
    std::vector<RowRun> more(6);
    page_table_view(geometry, wild, 21, more);
  });
  require_error(ErrorCode::bad_view, "a used entry of 8",
                [&] { page_table_view(geometry, std::vector<std::int32_t>{8}, 1, runs); });
  require_error(ErrorCode::bad_view, "a table too short",
                [&] { page_table_view(geometry, std::vector<std::int32_t>{1}, 5, runs); });
  require_error(ErrorCode::bad_workspace, "too few runs",
                [&] { page_table_view(geometry, table, length, std::span(runs).first(4)); });
  EXPECT_EQ(page_table_view(geometry, {}, 0, {}).run_count, 0);
}

// Exactly ceil(T/P) entries and runs, each list against a memory page that cannot be touched, for every length.
TEST(CachePageTable, NothingAfterTheUsedEntriesIsReadOrWritten) {
  const std::int64_t page_rows = ForeignPages::kPageRows, pages = 6;
  const ForeignPages foreign(pages, RowOrder::token_major);
  const PageGeometry& geometry = foreign.geometry;
  ContiguousCache clean(kShape);
  for (std::int64_t length = 1; length <= pages * page_rows; ++length) {
    clean.append(RandomRows(kShape, 1, length - 1, 1));
    const auto used = static_cast<std::size_t>(pages_of(length, page_rows));
    for (const test::Edge edge : {test::Edge::end, test::Edge::start}) {
      test::GuardedBuffer table(used * sizeof(std::int32_t), edge, alignof(std::int32_t));
      test::GuardedBuffer runs(used * sizeof(RowRun), edge, alignof(RowRun));
      for (std::size_t i = 0; i < used; ++i) table.as<std::int32_t>()[i] = static_cast<std::int32_t>(i);
      table.read_only();
      const KvView view =
          page_table_view(geometry, {table.as<std::int32_t>(), used}, length, {runs.as<RowRun>(), used});
      ASSERT_TRUE(same_bits(answer(view), answer(clean.view()))) << length;
      EXPECT_TRUE(runs.intact());
    }
  }
}

TEST(CachePaged, RefusesWhatIsNoPool) {
  require_error(ErrorCode::bad_shape, "P = 0", [] { pool(0, 4); });
  require_error(ErrorCode::bad_shape, "no pages", [] { pool(4, 0); });
  require_error(ErrorCode::bad_shape, "2^62 pages", [] { pool(4, std::int64_t{1} << 62); });
  require_error(ErrorCode::out_of_memory, "2^42 pages", [] { pool(4, std::int64_t{1} << 42); });
  require_error(ErrorCode::bad_option, "a page twice", [] { pool(4, 4, std::vector<PageId>{1, 2, 1}); });
  require_error(ErrorCode::bad_option, "page 4 of 4", [] { pool(4, 4, std::vector<PageId>{1, 4}); });
  require_error(ErrorCode::bad_option, "page -1", [] { pool(4, 4, std::vector<PageId>{-1}); });
}

TEST(CachePaged, PagesStartAtMultiplesOf64Bytes) {
  const CacheShape odd{
      .kv_heads = 1, .key_dim = 3, .value_dim = 1, .k_storage = Storage::int8, .v_storage = Storage::f16};
  PagedCache cache = pool(3, 8, {}, odd);
  const SequenceId id = cache.create();
  cache.append(id, RandomRows(odd, 1, 0, 20));
  const KvView view = cache.view(id);
  ASSERT_EQ(view.run_count, 7);
  for (std::int64_t i = 0; i < view.run_count; ++i) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.runs[i].k) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.runs[i].v) % 64, 0u);
  }
}

}  // namespace
}  // namespace kvroof::test_cache
