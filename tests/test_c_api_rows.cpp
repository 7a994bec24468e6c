// Rows through the C interface: written in place, converted in bulk, asked about before an append; pages and their
// sharers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cache/contiguous.hpp"
#include "kernels/cache/memory.hpp"
#include "kernels/kvroof.h"
#include "tests/test_cache_attend.hpp"

namespace kvroof::test_c_api {
namespace {

using test_cache::RandomRows;

constexpr kvroof_cache_shape kShape = {2, 6, 5, KVROOF_F16, KVROOF_INT8, 0};
constexpr CacheShape kCppShape{2, 6, 5, Storage::f16, Storage::int8, 0};
constexpr kvroof_rows kNoRows = {0, nullptr, nullptr, 0, 0, 0, 0};

kvroof_rows c_rows(const RandomRows& rows) {
  return kvroof_packed_rows(kShape, rows.rows.n, rows.k.data(), rows.v.data());
}

// Writes the rows of tokens [first, first + n) where `slot` says.
template <typename Slot>
void write_in_place(std::int64_t first, std::int64_t n, const Slot& slot) {
  const RandomRows rows(kCppShape, 1, first, n);
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t h = 0; h < 2; ++h) {
      kvroof_row_slot at = {};
      ASSERT_EQ(slot(first + r, h, &at), KVROOF_OK) << kvroof_last_error();
      ASSERT_EQ(at.k_scale, nullptr);
      ASSERT_EQ(kvroof_store_row(KVROOF_F16, rows.k.data() + (r * 2 + h) * 6, 6, at.k, nullptr, nullptr), KVROOF_OK);
      ASSERT_EQ(kvroof_store_row(KVROOF_INT8, rows.v.data() + (r * 2 + h) * 5, 5, at.v, at.v_scale, nullptr),
                KVROOF_OK);
    }
  }
}

// The two views hold the same positions and the same bits.
void expect_same_rows(const kvroof_view& a, const kvroof_view& b) {
  ASSERT_EQ(a.end_position, b.end_position);
  const auto rows = [](const kvroof_view& view) {
    std::vector<std::pair<std::int64_t, std::string>> list;
    for (std::int64_t i = 0; i < view.run_count; ++i) {
      const kvroof_row_run& run = view.runs[i];
      for (std::int64_t r = 0; r < run.rows; ++r) {
        std::string bytes;
        for (std::int64_t h = 0; h < 2; ++h) {
          bytes.append(static_cast<const char*>(run.k) + r * view.k_row_stride + h * view.k_head_stride, 12);
          bytes.append(static_cast<const char*>(run.v) + r * view.v_row_stride + h * view.v_head_stride, 5);
          bytes.append(
              reinterpret_cast<const char*>(run.v_scale + r * view.v_scale_row_stride + h * view.v_scale_head_stride),
              4);
        }
        list.emplace_back(run.first_position + r, bytes);
      }
    }
    return list;
  };
  EXPECT_EQ(rows(a), rows(b));
}

TEST(CApiRows, CachesExtendedAndWrittenInPlaceHoldWhatAppendStores) {
  const kvroof_ring_options ring = {KVROOF_TOKEN_MAJOR, 9, 5, 2};
  for (const bool is_ring : {false, true}) {
    kvroof_cache *appended = nullptr, *written = nullptr;
    for (kvroof_cache** cache : {&appended, &written}) {
      ASSERT_EQ(is_ring ? kvroof_ring_create(kShape, ring, nullptr, 0, cache)
                        : kvroof_contiguous_create(kShape, KVROOF_HEAD_MAJOR, 0, nullptr, 0, cache),
                KVROOF_OK);
    }
    std::int64_t t = 0;
    for (const std::int64_t n : {1, 4, 0, 5, 3, 5, 2}) {
      ASSERT_EQ(kvroof_cache_append(appended, c_rows(RandomRows(kCppShape, 1, t, n))), KVROOF_OK);
      ASSERT_EQ(kvroof_cache_extend(written, n), KVROOF_OK) << kvroof_last_error();
      write_in_place(t, n, [&](std::int64_t position, std::int64_t head, kvroof_row_slot* at) {
        return kvroof_cache_slot(written, position, head, at);
      });
      t += n;
      kvroof_view a, b;
      ASSERT_EQ(kvroof_cache_view(appended, &a), KVROOF_OK);
      ASSERT_EQ(kvroof_cache_view(written, &b), KVROOF_OK);
      expect_same_rows(a, b);
    }
    kvroof_row_slot at = {};
    EXPECT_EQ(kvroof_cache_slot(written, t, 0, &at), KVROOF_BAD_POSITION);
    EXPECT_EQ(kvroof_cache_slot(written, -1, 0, &at), KVROOF_BAD_POSITION);
    EXPECT_EQ(kvroof_cache_slot(written, 0, 2, &at), KVROOF_BAD_SHAPE);
    EXPECT_EQ(kvroof_cache_slot(written, 0, -1, &at), KVROOF_BAD_SHAPE);
    EXPECT_EQ(kvroof_cache_slot(written, 0, 0, nullptr), KVROOF_BAD_VIEW);
    EXPECT_EQ(at.k, nullptr) << "a refused call writes nothing";
    EXPECT_EQ(kvroof_cache_slot(written, 1, 0, &at), KVROOF_OK) << "kept in the ring";
    EXPECT_EQ(kvroof_cache_slot(written, 5, 0, &at), is_ring ? KVROOF_BAD_POSITION : KVROOF_OK) << "overwritten there";
    EXPECT_EQ(kvroof_cache_extend(written, -1), KVROOF_BAD_SHAPE);
    EXPECT_EQ(kvroof_cache_extend(written, INT64_MAX), KVROOF_BAD_SHAPE);
    EXPECT_EQ(kvroof_cache_extend(written, 6), is_ring ? KVROOF_NO_CAPACITY : KVROOF_OK);
    EXPECT_EQ(kvroof_cache_extend(nullptr, 1), KVROOF_BAD_HANDLE);
    EXPECT_EQ(kvroof_cache_slot(nullptr, 0, 0, &at), KVROOF_BAD_HANDLE);
    kvroof_cache_destroy(appended);
    kvroof_cache_destroy(written);
  }
}

TEST(CApiRows, WhatACacheTakesIsAskedBeforehand) {
  kvroof_cache* cache = nullptr;
  ASSERT_EQ(kvroof_ring_create(kShape, {KVROOF_HEAD_MAJOR, 8, 6, 1}, nullptr, 0, &cache), KVROOF_OK);
  ASSERT_EQ(kvroof_cache_append_tail(cache, c_rows(RandomRows(kCppShape, 1, 0, 20))), KVROOF_OK);
  std::int64_t value = -1;
  ASSERT_EQ(kvroof_cache_oldest_live(cache, &value), KVROOF_OK);
  EXPECT_EQ(value, 12);
  ASSERT_EQ(kvroof_cache_live_rows(cache, &value), KVROOF_OK);
  EXPECT_EQ(value, 9);
  ASSERT_EQ(kvroof_cache_capacity(cache, &value), KVROOF_OK);
  EXPECT_EQ(value, 8);
  const auto can_append = [&](std::int64_t n) {
    int allowed = -1;
    EXPECT_EQ(kvroof_cache_can_append(cache, n, &allowed), KVROOF_OK);
    return allowed;
  };
  const auto can_truncate = [&](std::int64_t length) {
    int allowed = -1;
    EXPECT_EQ(kvroof_cache_can_truncate_to(cache, length, &allowed), KVROOF_OK);
    return allowed;
  };
  EXPECT_EQ(can_append(3), 1);
  EXPECT_EQ(can_append(4), 0);
  EXPECT_EQ(can_append(-1), 0);
  EXPECT_EQ(can_truncate(17), 1);
  EXPECT_EQ(can_truncate(16), 0);
  EXPECT_EQ(can_truncate(0), 1);
  EXPECT_EQ(kvroof_cache_can_append(cache, 1, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_cache_can_append(nullptr, 1, nullptr), KVROOF_BAD_HANDLE);
  kvroof_cache_destroy(cache);

  std::int64_t needed = 0;
  ASSERT_EQ(kvroof_contiguous_bytes_needed(kShape, KVROOF_HEAD_MAJOR, 4, &needed), KVROOF_OK);
  CacheMemory lent = CacheMemory::allocate(needed);
  for (const bool own : {false, true}) {
    ASSERT_EQ(kvroof_contiguous_create(kShape, KVROOF_HEAD_MAJOR, 4, own ? nullptr : lent.data(),
                                       static_cast<std::size_t>(needed), &cache),
              KVROOF_OK);
    ASSERT_EQ(kvroof_cache_append(cache, c_rows(RandomRows(kCppShape, 1, 0, 3))), KVROOF_OK);
    EXPECT_EQ(can_append(1), 1);
    EXPECT_EQ(can_append(2), own ? 1 : 0) << "lent memory never grows";
    EXPECT_EQ(can_append(INT64_MAX), 0);
    EXPECT_EQ(can_truncate(3), 1);
    EXPECT_EQ(can_truncate(4), 0);
    ASSERT_EQ(kvroof_cache_oldest_live(cache, &value), KVROOF_OK);
    EXPECT_EQ(value, 0);
    ASSERT_EQ(kvroof_cache_live_rows(cache, &value), KVROOF_OK);
    EXPECT_EQ(value, 3);
    ASSERT_EQ(kvroof_cache_capacity(cache, &value), KVROOF_OK);
    EXPECT_EQ(value, 4);
    kvroof_cache_destroy(cache);
  }
}

TEST(CApiRows, PagesTheirSharersAndRowsInPlace) {
  kvroof_pool* pool = nullptr;
  ASSERT_EQ(kvroof_pool_create(kShape, {KVROOF_HEAD_MAJOR, 4, 8, nullptr, 0}, nullptr, 0, &pool), KVROOF_OK);
  kvroof_sequence_id a, b, c;
  ASSERT_EQ(kvroof_sequence_create(pool, &a), KVROOF_OK);
  ASSERT_EQ(kvroof_sequence_append(pool, a, c_rows(RandomRows(kCppShape, 1, 0, 6))), KVROOF_OK);
  ASSERT_EQ(kvroof_sequence_fork(pool, a, &b), KVROOF_OK);
  ASSERT_EQ(kvroof_sequence_fork(pool, a, &c), KVROOF_OK);
  ASSERT_EQ(kvroof_sequence_append(pool, a, c_rows(RandomRows(kCppShape, 1, 6, 5))), KVROOF_OK);
  ASSERT_EQ(kvroof_sequence_extend(pool, b, 5), KVROOF_OK);
  write_in_place(6, 5, [&](std::int64_t position, std::int64_t head, kvroof_row_slot* at) {
    return kvroof_sequence_slot(pool, b, position, head, at);
  });
  kvroof_view view_a, view_b;
  ASSERT_EQ(kvroof_sequence_view(pool, a, &view_a), KVROOF_OK);
  ASSERT_EQ(kvroof_sequence_view(pool, b, &view_b), KVROOF_OK);
  expect_same_rows(view_a, view_b);

  const std::int64_t *pages_a = nullptr, *pages_b = nullptr;
  std::size_t count_a = 0, count_b = 0;
  ASSERT_EQ(kvroof_sequence_pages(pool, a, &pages_a, &count_a), KVROOF_OK);
  ASSERT_EQ(kvroof_sequence_pages(pool, b, &pages_b, &count_b), KVROOF_OK);
  ASSERT_EQ(count_a, 3u);
  ASSERT_EQ(count_b, 3u);
  const auto references = [&](std::int64_t page) {
    std::int64_t found = -1;
    EXPECT_EQ(kvroof_pool_references(pool, page, &found), KVROOF_OK);
    return found;
  };
  EXPECT_EQ(pages_a[0], pages_b[0]);
  EXPECT_EQ(references(pages_a[0]), 3);
  EXPECT_NE(pages_a[1], pages_b[1]) << "copied by the first writer";
  EXPECT_EQ(references(pages_a[1]), 1);
  EXPECT_EQ(references(-1), 0);
  EXPECT_EQ(references(8), 0);
  kvroof_bytes bytes;
  ASSERT_EQ(kvroof_pool_bytes(pool, &bytes), KVROOF_OK);
  EXPECT_EQ(bytes.used, 6 * 4 * bytes_per_token(kCppShape)) << "page 0, three copies of page 1, two of page 2";

  kvroof_row_slot at = {};
  EXPECT_EQ(kvroof_sequence_slot(pool, b, 11, 0, &at), KVROOF_BAD_POSITION);
  EXPECT_EQ(kvroof_sequence_slot(pool, b, -1, 0, &at), KVROOF_BAD_POSITION);
  EXPECT_EQ(kvroof_sequence_slot(pool, b, 0, 2, &at), KVROOF_BAD_SHAPE);
  EXPECT_EQ(kvroof_sequence_extend(pool, b, 100), KVROOF_NO_CAPACITY);
  EXPECT_EQ(kvroof_sequence_extend(pool, b, -1), KVROOF_BAD_SHAPE);
  ASSERT_EQ(kvroof_sequence_release(pool, b), KVROOF_OK);
  EXPECT_EQ(kvroof_sequence_extend(pool, b, 1), KVROOF_BAD_HANDLE);
  EXPECT_EQ(kvroof_sequence_slot(pool, b, 0, 0, &at), KVROOF_BAD_HANDLE);
  EXPECT_EQ(kvroof_sequence_pages(pool, b, &pages_b, &count_b), KVROOF_BAD_HANDLE);
  EXPECT_EQ(at.k, nullptr);
  EXPECT_EQ(kvroof_sequence_pages(pool, a, nullptr, &count_a), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_pool_references(nullptr, 0, nullptr), KVROOF_BAD_HANDLE);
  kvroof_pool_destroy(pool);
}

TEST(CApiRows, BulkConversionsAreTheSingleOnes) {
  constexpr std::int64_t kRows = 5, kDim = 13, kFloatStride = 17;
  std::vector<float> from(kRows * kFloatStride);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = reference::uniform(3, i);
  for (const Storage storage : kStorages) {
    const auto s = static_cast<kvroof_storage>(storage);
    const std::int64_t row = kDim * static_cast<std::int64_t>(storage_bytes(storage)), stride = row + 8;
    std::vector<std::byte> bulk(static_cast<std::size_t>(kRows * stride)), single(bulk);
    std::vector<float> scales(kRows, -1.0f), single_scales(scales), back(kRows * kFloatStride, -1.0f), one(back);
    float* const no_scales = storage == Storage::int8 ? scales.data() : nullptr;
    ASSERT_EQ(kvroof_store_rows(s, from.data(), kFloatStride, kRows, kDim, bulk.data(), stride, no_scales, nullptr),
              KVROOF_OK);
    ASSERT_EQ(kvroof_load_rows(s, bulk.data(), stride, no_scales, kRows, kDim, back.data(), kFloatStride, nullptr),
              KVROOF_OK);
    for (std::int64_t r = 0; r < kRows; ++r) {
      float* const scale = storage == Storage::int8 ? &single_scales[static_cast<std::size_t>(r)] : nullptr;
      ASSERT_EQ(kvroof_store_row(s, from.data() + r * kFloatStride, kDim, single.data() + r * stride, scale, nullptr),
                KVROOF_OK);
      ASSERT_EQ(kvroof_load_row(s, single.data() + r * stride, scale, kDim, one.data() + r * kFloatStride, nullptr),
                KVROOF_OK);
    }
    EXPECT_EQ(bulk, single) << storage_name(storage) << ": gaps between rows are left alone too";
    EXPECT_EQ(scales, single_scales);
    EXPECT_TRUE(test_cache::same_bits(back, one));
  }
  float x[4] = {1, 2, 3, 4};
  EXPECT_EQ(kvroof_store_rows(KVROOF_F32, x, 1, -1, 1, x, 4, nullptr, nullptr), KVROOF_BAD_SHAPE);
  EXPECT_EQ(kvroof_store_rows(KVROOF_F32, nullptr, 1, 1, 1, x, 4, nullptr, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_store_rows(KVROOF_F32, x, 1, 1, 1, nullptr, 4, nullptr, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_store_rows(KVROOF_INT8, x, 1, 1, 1, x, 4, nullptr, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_load_rows(KVROOF_INT8, x, 1, nullptr, 1, 1, x, 1, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_load_rows(9, x, 1, nullptr, 1, 1, x, 1, nullptr), KVROOF_BAD_OPTION);
  EXPECT_EQ(kvroof_load_rows(KVROOF_F32, nullptr, 1, nullptr, 0, 1, nullptr, 1, nullptr), KVROOF_OK);
  EXPECT_EQ(kvroof_load_rows(KVROOF_F32, nullptr, 1, nullptr, 0, 1, nullptr, 1, "mmx"), KVROOF_BAD_ISA);
  EXPECT_EQ(x[0], 1.0f);
  kvroof_cache* cache = nullptr;
  ASSERT_EQ(kvroof_contiguous_create(kShape, KVROOF_HEAD_MAJOR, 0, nullptr, 0, &cache), KVROOF_OK);
  EXPECT_EQ(kvroof_cache_append(cache, kNoRows), KVROOF_OK) << "n = 0 is a no-op";
  kvroof_cache_destroy(cache);
}

// One context in three processes' worth of rows: the bits of one call over all of them.
TEST(CApiPartials, BlocksOfSegmentsJoinToTheWhole) {
  constexpr std::int64_t kLength = 1700, kHeads = 4;
  kvroof_cache* cache = nullptr;
  ASSERT_EQ(kvroof_contiguous_create(kShape, KVROOF_HEAD_MAJOR, 0, nullptr, 0, &cache), KVROOF_OK);
  ASSERT_EQ(kvroof_cache_append(cache, c_rows(RandomRows(kCppShape, 1, 0, kLength))), KVROOF_OK);
  kvroof_view view;
  ASSERT_EQ(kvroof_cache_view(cache, &view), KVROOF_OK);
  const std::vector<float> q = test_cache::random_queries(kCppShape, kHeads, 1);
  std::vector<float> out(kHeads * 5, -1.0f);
  kvroof_attention_sequence one = {q.data(), kHeads * 6, 6, 1, view, out.data(), kHeads * 5, 5, nullptr};
  kvroof_attention_args args = {{kHeads, 2, 6, 5}, kvroof_attention_defaults(1.0f), &one, 1, KVROOF_REPRODUCIBLE};
  ContiguousCache whole(kCppShape);
  whole.append(RandomRows(kCppShape, 1, 0, kLength));
  const std::vector<float> expected = test_cache::attend(whole.view(), kCppShape, kHeads, 1, {}, q);

  const std::int64_t rows = kvroof_segment_rows();
  EXPECT_EQ(rows, kSegmentRows);
  const std::int64_t cuts[] = {0, 1, 3, 4};
  std::vector<CacheMemory> blocks;
  std::vector<void*> places;
  for (std::size_t i = 0; i < 3; ++i) {
    kvroof_row_run run = view.runs[0];  // this process has these rows and no others
    run.first_position = cuts[i] * rows;
    run.rows = std::min(cuts[i + 1] * rows, kLength) - run.first_position;
    run.k = static_cast<const char*>(run.k) + run.first_position * view.k_row_stride;
    run.v = static_cast<const char*>(run.v) + run.first_position * view.v_row_stride;
    run.v_scale += run.first_position * view.v_scale_row_stride;
    one.kv.runs = &run;
    std::size_t workspace_bytes = 0, partials_bytes = 0;
    ASSERT_EQ(kvroof_attention_partials_needed(&args, cuts[i], cuts[i + 1], 2, &workspace_bytes, &partials_bytes),
              KVROOF_OK)
        << kvroof_last_error();
    const CacheMemory workspace = CacheMemory::allocate(static_cast<std::int64_t>(workspace_bytes));
    blocks.push_back(CacheMemory::allocate(static_cast<std::int64_t>(partials_bytes)));
    places.push_back(blocks.back().data());
    EXPECT_EQ(kvroof_attention_partials(&args, cuts[i], cuts[i + 1], workspace.data(), workspace_bytes, 2,
                                        places.back(), partials_bytes - 1, nullptr),
              KVROOF_BAD_WORKSPACE);
    EXPECT_EQ(kvroof_attention_partials(&args, cuts[i], cuts[i + 1], workspace.data(), workspace_bytes, 0,
                                        places.back(), partials_bytes, nullptr),
              KVROOF_BAD_SHAPE);
    ASSERT_EQ(kvroof_attention_partials(&args, cuts[i], cuts[i + 1], workspace.data(), workspace_bytes, 2,
                                        places.back(), partials_bytes, nullptr),
              KVROOF_OK)
        << kvroof_last_error();
    EXPECT_EQ(kvroof_attention_partials_needed(&args, 0, 4, 2, &workspace_bytes, &partials_bytes), KVROOF_BAD_VIEW)
        << "the rows of other segments are not here";
  }
  one.kv.runs = nullptr;
  one.kv.run_count = 0;
  EXPECT_EQ(out[0], -1.0f) << "partials do not touch out";
  EXPECT_EQ(kvroof_attention_finish_partials(&args, nullptr, 3, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_attention_finish_partials(&args, places.data(), 0, nullptr), KVROOF_BAD_VIEW);
  args.mode = 2;
  EXPECT_EQ(kvroof_attention_finish_partials(&args, places.data(), 3, nullptr), KVROOF_BAD_OPTION);
  args.mode = KVROOF_REPRODUCIBLE;
  ASSERT_EQ(kvroof_attention_finish_partials(&args, places.data(), 3, nullptr), KVROOF_OK) << kvroof_last_error();
  EXPECT_TRUE(test_cache::same_bits(out, expected));
  kvroof_cache_destroy(cache);
}

TEST(CApiModes, NativeIsRefusedWithTheReasonOrRuns) {
  EXPECT_EQ(kvroof_native_check("portable", KVROOF_F32, KVROOF_F32), KVROOF_BAD_ISA);
  EXPECT_FALSE(std::string(kvroof_last_error()).empty());
  EXPECT_EQ(kvroof_native_check(nullptr, 9, KVROOF_F32), KVROOF_BAD_OPTION);
  const std::string missing = native_missing(default_isa(), Storage::bf16, Storage::bf16);
  EXPECT_EQ(kvroof_native_check(nullptr, KVROOF_BF16, KVROOF_BF16), missing.empty() ? KVROOF_OK : KVROOF_BAD_ISA);
}

}  // namespace
}  // namespace kvroof::test_c_api
