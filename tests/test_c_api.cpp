// The C interface gives the bits of the C++ interface, and every refusal as a status with a text.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cache/contiguous.hpp"
#include "kernels/cache/rows.hpp"
#include "kernels/kvroof.h"
#include "kernels/rope.hpp"
#include "tests/test_cache_attend.hpp"

namespace kvroof::test_c_api {
namespace {

using test_cache::RandomRows;

constexpr kvroof_cache_shape kShape = {2, 20, 12, KVROOF_BF16, KVROOF_INT8, 0};
constexpr CacheShape kCppShape{2, 20, 12, Storage::bf16, Storage::int8, 0};
constexpr std::int64_t kHeads = 6;

kvroof_rows c_rows(const RandomRows& rows) {
  return kvroof_packed_rows(kShape, rows.rows.n, rows.k.data(), rows.v.data());
}

struct Workspace {
  explicit Workspace(std::size_t bytes) : data(std::aligned_alloc(64, (bytes + 127) / 64 * 64)) {}
  ~Workspace() { std::free(data); }
  void* data;
};

kvroof_attention_sequence sequence(const kvroof_view& view, const std::vector<float>& q, std::vector<float>& out) {
  return {q.data(), kHeads * 20, 20, 1, view, out.data(), kHeads * 12, 12, nullptr};
}

std::vector<float> attend(const kvroof_view& view, const std::vector<float>& q, std::int64_t window) {
  std::vector<float> out(kHeads * 12, -1.0f);
  const kvroof_attention_sequence one = sequence(view, q, out);
  kvroof_attention_args args = {{kHeads, 2, 20, 12}, kvroof_attention_defaults(1.0f), &one, 1, KVROOF_REPRODUCIBLE};
  args.options.window = window;
  std::size_t bytes = 0;
  EXPECT_EQ(kvroof_attention_workspace_bytes(&args, 1, &bytes), KVROOF_OK) << kvroof_last_error();
  const Workspace workspace(bytes);
  EXPECT_EQ(kvroof_decode_attention(&args, workspace.data, bytes, 1, nullptr), KVROOF_OK) << kvroof_last_error();
  return out;
}

std::vector<float> expected(std::int64_t length, std::int64_t window) {
  ContiguousCache cache(kCppShape);
  cache.append(RandomRows(kCppShape, 1, 0, length));
  AttentionOptions options;
  options.window = window;
  return test_cache::attend(cache.view(), kCppShape, kHeads, 1, options,
                            test_cache::random_queries(kCppShape, kHeads, 1));
}

const std::vector<float>& queries() {
  static const std::vector<float> q = test_cache::random_queries(kCppShape, kHeads, 1);
  return q;
}

TEST(CApi, ContiguousCacheHasTheBitsOfTheCppInterface) {
  kvroof_cache* cache = nullptr;
  ASSERT_EQ(kvroof_contiguous_create(kShape, KVROOF_TOKEN_MAJOR, 0, nullptr, 0, &cache), KVROOF_OK);
  for (std::int64_t t = 0; t < 600; t += 50) {
    ASSERT_EQ(kvroof_cache_append(cache, c_rows(RandomRows(kCppShape, 1, t, 50))), KVROOF_OK);
  }
  kvroof_cache* copy = nullptr;
  ASSERT_EQ(kvroof_cache_fork(cache, &copy), KVROOF_OK);
  ASSERT_EQ(kvroof_cache_truncate_to(cache, 590), KVROOF_OK);
  ASSERT_EQ(kvroof_cache_drop_last(cache, 10), KVROOF_OK);
  std::int64_t length = 0;
  ASSERT_EQ(kvroof_cache_length(cache, &length), KVROOF_OK);
  EXPECT_EQ(length, 580);
  kvroof_view view, copy_view;
  ASSERT_EQ(kvroof_cache_view(cache, &view), KVROOF_OK);
  ASSERT_EQ(kvroof_cache_view(copy, &copy_view), KVROOF_OK);
  EXPECT_TRUE(test_cache::same_bits(attend(view, queries(), KVROOF_UNLIMITED_WINDOW), expected(580, kUnlimitedWindow)));
  EXPECT_TRUE(test_cache::same_bits(attend(copy_view, queries(), 77), expected(600, 77)));
  kvroof_bytes bytes;
  ASSERT_EQ(kvroof_cache_bytes(cache, &bytes), KVROOF_OK);
  EXPECT_EQ(bytes.used, 580 * bytes_per_token(kCppShape));
  kvroof_cache_destroy(cache);
  kvroof_cache_destroy(copy);
  kvroof_cache_destroy(nullptr);
}

TEST(CApi, RingCacheInLentMemory) {
  const kvroof_ring_options options = {KVROOF_HEAD_MAJOR, 40, 33, 0};
  std::int64_t needed = 0;
  ASSERT_EQ(kvroof_ring_bytes_needed(kShape, options, &needed), KVROOF_OK);
  const Workspace memory(static_cast<std::size_t>(needed));
  kvroof_cache* cache = nullptr;
  ASSERT_EQ(kvroof_ring_create(kShape, options, memory.data, static_cast<std::size_t>(needed), &cache), KVROOF_OK);
  for (std::int64_t t = 0; t < 200; t += 8) {
    ASSERT_EQ(kvroof_cache_append(cache, c_rows(RandomRows(kCppShape, 1, t, 8))), KVROOF_OK) << kvroof_last_error();
  }
  EXPECT_EQ(kvroof_cache_append(cache, c_rows(RandomRows(kCppShape, 1, 200, 9))), KVROOF_NO_CAPACITY);
  EXPECT_NE(std::string(kvroof_last_error()).find("at most 8"), std::string::npos) << kvroof_last_error();
  EXPECT_EQ(kvroof_cache_reserve(cache, 5), KVROOF_BAD_OPTION);
  kvroof_view view;
  ASSERT_EQ(kvroof_cache_view(cache, &view), KVROOF_OK);
  EXPECT_EQ(view.end_position, 200);
  EXPECT_TRUE(test_cache::same_bits(attend(view, queries(), 33), expected(200, 33)));
  ASSERT_EQ(kvroof_cache_append_tail(cache, c_rows(RandomRows(kCppShape, 1, 200, 100))), KVROOF_OK);
  ASSERT_EQ(kvroof_cache_view(cache, &view), KVROOF_OK);
  EXPECT_TRUE(test_cache::same_bits(attend(view, queries(), 33), expected(300, 33)));
  kvroof_cache_destroy(cache);
}

TEST(CApi, PoolForksAndForeignPageTables) {
  const std::int64_t order[] = {5, 0, 3, 7, 1, 6};
  const kvroof_pool_options options = {KVROOF_HEAD_MAJOR, 16, 8, order, 6};
  kvroof_pool* pool = nullptr;
  ASSERT_EQ(kvroof_pool_create(kShape, options, nullptr, 0, &pool), KVROOF_OK);
  kvroof_sequence_id a, b;
  ASSERT_EQ(kvroof_sequence_create(pool, &a), KVROOF_OK);
  ASSERT_EQ(kvroof_sequence_append(pool, a, c_rows(RandomRows(kCppShape, 1, 0, 40))), KVROOF_OK);
  ASSERT_EQ(kvroof_sequence_fork(pool, a, &b), KVROOF_OK);
  std::int64_t pages = 0;
  ASSERT_EQ(kvroof_sequence_pages_needed(pool, b, 1, &pages), KVROOF_OK);
  EXPECT_EQ(pages, 1);
  ASSERT_EQ(kvroof_sequence_append(pool, b, c_rows(RandomRows(kCppShape, 2, 0, 3))), KVROOF_OK);
  ASSERT_EQ(kvroof_sequence_append(pool, a, c_rows(RandomRows(kCppShape, 1, 40, 10))), KVROOF_OK);
  kvroof_view view;
  ASSERT_EQ(kvroof_sequence_view(pool, a, &view), KVROOF_OK);
  EXPECT_TRUE(test_cache::same_bits(attend(view, queries(), KVROOF_UNLIMITED_WINDOW), expected(50, kUnlimitedWindow)));
  kvroof_occupancy now;
  ASSERT_EQ(kvroof_pool_occupancy(pool, &now), KVROOF_OK);
  EXPECT_EQ(now.sequences, 2);
  EXPECT_EQ(now.tokens, 93);
  EXPECT_EQ(now.pages_shared, 2);
  EXPECT_EQ(now.pages_free, 1);
  EXPECT_EQ(kvroof_sequence_append(pool, a, c_rows(RandomRows(kCppShape, 1, 50, 60))), KVROOF_NO_CAPACITY);
  ASSERT_EQ(kvroof_sequence_release(pool, b), KVROOF_OK);
  EXPECT_EQ(kvroof_sequence_release(pool, b), KVROOF_BAD_HANDLE);
  std::int64_t length = 0;
  EXPECT_EQ(kvroof_sequence_length(pool, b, &length), KVROOF_BAD_HANDLE);

  // The same pages by an engine's own table: ids in the order in which they were handed out.
  const std::int32_t table[] = {5, 0, 3, 1, -1};
  kvroof_page_geometry geometry = {};
  const kvroof_row_run first = view.runs[0], second = view.runs[1];
  geometry.strides = view;
  geometry.k_page_stride = geometry.v_page_stride =
      (static_cast<const char*>(first.k) - static_cast<const char*>(second.k)) / 5;
  geometry.v_scale_page_stride = geometry.v_page_stride / 4;
  geometry.k = second.k;
  geometry.v = second.v;
  geometry.v_scale = second.v_scale;
  geometry.page_rows = 16;
  geometry.page_count = 8;
  kvroof_row_run runs[4];
  kvroof_view foreign;
  ASSERT_EQ(kvroof_page_table_view(&geometry, table, 5, 40, runs, 4, &foreign), KVROOF_OK) << kvroof_last_error();
  EXPECT_TRUE(
      test_cache::same_bits(attend(foreign, queries(), KVROOF_UNLIMITED_WINDOW), expected(40, kUnlimitedWindow)));
  EXPECT_EQ(kvroof_page_table_view(&geometry, table, 5, 65, runs, 4, &foreign), KVROOF_BAD_WORKSPACE);
  EXPECT_EQ(kvroof_page_table_view(&geometry, table, 3, 49, runs, 4, &foreign), KVROOF_BAD_VIEW);
  kvroof_pool_destroy(pool);
}

TEST(CApi, PartsOnTheCallersThreads) {
  kvroof_cache* cache = nullptr;
  ASSERT_EQ(kvroof_contiguous_create(kShape, KVROOF_HEAD_MAJOR, 0, nullptr, 0, &cache), KVROOF_OK);
  ASSERT_EQ(kvroof_cache_append(cache, c_rows(RandomRows(kCppShape, 1, 0, 1600))), KVROOF_OK);
  kvroof_view view;
  ASSERT_EQ(kvroof_cache_view(cache, &view), KVROOF_OK);
  std::vector<float> out(kHeads * 12, -1.0f);
  const kvroof_attention_sequence one = sequence(view, queries(), out);
  const kvroof_attention_args args = {
      {kHeads, 2, 20, 12}, kvroof_attention_defaults(1.0f), &one, 1, KVROOF_REPRODUCIBLE};
  constexpr int kParts = 3;
  std::size_t bytes = 0;
  ASSERT_EQ(kvroof_attention_workspace_bytes(&args, kParts, &bytes), KVROOF_OK);
  const Workspace workspace(bytes);
  const auto run = [&](auto call) {
    std::vector<std::thread> threads;
    for (int part = 0; part < kParts; ++part) {
      threads.emplace_back([&, part] { EXPECT_EQ(call(&args, kParts, part, workspace.data, nullptr), KVROOF_OK); });
    }
    for (std::thread& thread : threads) thread.join();
  };
  run(kvroof_attention_run_part);
  run(kvroof_attention_merge_part);
  EXPECT_TRUE(test_cache::same_bits(out, expected(1600, kUnlimitedWindow)));
  std::int64_t read = 0, flops = 0;
  ASSERT_EQ(kvroof_attention_bytes(&args, &read), KVROOF_OK);
  EXPECT_EQ(read, 1600 * bytes_per_token(kCppShape));
  ASSERT_EQ(kvroof_attention_flops(&args, &flops), KVROOF_OK);
  EXPECT_EQ(flops, 1600 * kHeads * 2 * (20 + 12));
  kvroof_cache_destroy(cache);
}

TEST(CApi, RopeAlibiProjectionAndRows) {
  double inv_freq[4];
  ASSERT_EQ(kvroof_rope_inv_freq(8, 10000.0, 1.0, inv_freq), KVROOF_OK);
  EXPECT_EQ(std::vector<double>(inv_freq, inv_freq + 4), rope_inv_freq(8, 10000.0));
  std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8}, y = x;
  ASSERT_EQ(kvroof_rope(x.data(), 1, 8, 8, 12345, inv_freq, 0, nullptr), KVROOF_OK);
  rope(y.data(), 1, 8, 8, 12345, inv_freq, RopePairing::half_split, default_isa());
  EXPECT_TRUE(test_cache::same_bits(x, y));
  float slopes[12];
  ASSERT_EQ(kvroof_alibi_slopes(12, 0, slopes), KVROOF_OK);
  EXPECT_EQ(std::vector<float>(slopes, slopes + 12), alibi_slopes(12));
  EXPECT_EQ(kvroof_rope_inv_freq(7, 10000.0, 1.0, inv_freq), KVROOF_BAD_SHAPE);

  const std::vector<float> w = {1, 2, 3, 4, 5, 6};  // [3][2]
  std::vector<float> packed(kvroof_packed_weight_floats(3, 2));
  ASSERT_EQ(kvroof_pack_weights(w.data(), 3, 2, packed.data()), KVROOF_OK);
  const float in[] = {10, 1};
  float out[3];
  ASSERT_EQ(kvroof_project(packed.data(), in, 3, 2, out, nullptr), KVROOF_OK);
  EXPECT_EQ(std::vector<float>(out, out + 3), (std::vector<float>{12, 34, 56}));

  std::int8_t stored[3];
  float scale = 0, loaded[3];
  ASSERT_EQ(kvroof_store_row(KVROOF_INT8, out, 3, stored, &scale, "portable"), KVROOF_OK);
  EXPECT_EQ(scale, 56.0f / 127.0f);
  EXPECT_EQ(stored[2], 127);
  ASSERT_EQ(kvroof_load_row(KVROOF_INT8, stored, &scale, 3, loaded, nullptr), KVROOF_OK);
  EXPECT_EQ(loaded[2], 127 * scale);
}

TEST(CApi, RowsWeightsRopeAndPartsRefuseWhatTheyCannotUse) {
  float row[4] = {1, 2, 3, 4}, other[16] = {}, scale = 1;
  EXPECT_EQ(kvroof_store_row(KVROOF_F32, row, 4, nullptr, &scale, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_store_row(KVROOF_F32, nullptr, 4, other, &scale, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_load_row(KVROOF_F32, nullptr, &scale, 4, other, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_load_row(KVROOF_F32, row, &scale, 4, nullptr, nullptr), KVROOF_BAD_VIEW);

  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  EXPECT_EQ(kvroof_packed_weight_floats(kHuge, kHuge), 0u);
  EXPECT_EQ(kvroof_packed_weight_floats(INT64_MAX, 1), 0u);
  EXPECT_EQ(kvroof_packed_weight_floats(-20, 2), 0u);
  EXPECT_EQ(kvroof_packed_weight_floats(2, -20), 0u);
  EXPECT_EQ(kvroof_packed_weight_floats(3, 2), 32u);
  EXPECT_EQ(kvroof_pack_weights(nullptr, 1, 1, other), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_pack_weights(row, 1, 1, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_pack_weights(row, -1, 1, other), KVROOF_BAD_SHAPE);
  EXPECT_EQ(kvroof_pack_weights(row, kHuge, kHuge, other), KVROOF_BAD_SHAPE);
  EXPECT_EQ(kvroof_project(other, row, -1, 1, row, nullptr), KVROOF_BAD_SHAPE);
  EXPECT_EQ(kvroof_project(other, row, 1, -1, row, nullptr), KVROOF_BAD_SHAPE);

  const double inv_freq[] = {1.0, 0.01};
  EXPECT_EQ(kvroof_rope(row, 1, 4, 3, 0, inv_freq, 0, nullptr), KVROOF_BAD_SHAPE);
  EXPECT_EQ(kvroof_rope(row, -1, 4, 4, 0, inv_freq, 0, nullptr), KVROOF_BAD_SHAPE);
  EXPECT_EQ(kvroof_rope(row, 1, 4, 4, -1, inv_freq, 0, nullptr), KVROOF_BAD_POSITION);
  EXPECT_EQ(kvroof_rope(row, 1, 4, 4, std::int64_t{1} << 31, inv_freq, 0, nullptr), KVROOF_BAD_POSITION);
  EXPECT_EQ(row[0], 1.0f);
  EXPECT_EQ(kvroof_rope(row, 1, 4, 4, (std::int64_t{1} << 31) - 1, inv_freq, 0, nullptr), KVROOF_OK);

  const kvroof_attention_args args = {
      {kHeads, 2, 20, 12}, kvroof_attention_defaults(1.0f), nullptr, 0, KVROOF_REPRODUCIBLE};
  for (const auto call : {kvroof_attention_run_part, kvroof_attention_merge_part}) {
    EXPECT_EQ(call(&args, 2, 2, nullptr, nullptr), KVROOF_BAD_SHAPE);
    EXPECT_EQ(call(&args, 2, -1, nullptr, nullptr), KVROOF_BAD_SHAPE);
    EXPECT_EQ(call(&args, 0, 0, nullptr, nullptr), KVROOF_BAD_SHAPE);
  }
}

TEST(CApi, EveryRefusalIsAStatusWithAText) {
  kvroof_cache* cache = nullptr;
  kvroof_cache_shape bad = kShape;
  bad.kv_heads = 0;
  EXPECT_EQ(kvroof_contiguous_create(bad, KVROOF_HEAD_MAJOR, 0, nullptr, 0, &cache), KVROOF_BAD_SHAPE);
  EXPECT_NE(std::string(kvroof_last_error()).find("kv_heads"), std::string::npos);
  EXPECT_EQ(cache, nullptr);
  bad = kShape;
  bad.v_storage = 4;
  EXPECT_EQ(kvroof_contiguous_create(bad, KVROOF_HEAD_MAJOR, 0, nullptr, 0, &cache), KVROOF_BAD_OPTION);
  EXPECT_EQ(kvroof_contiguous_create(kShape, 2, 0, nullptr, 0, &cache), KVROOF_BAD_OPTION);
  EXPECT_EQ(kvroof_contiguous_create(kShape, KVROOF_HEAD_MAJOR, 0, nullptr, 0, nullptr), KVROOF_BAD_VIEW);
  EXPECT_EQ(kvroof_contiguous_create(kShape, KVROOF_HEAD_MAJOR, std::int64_t{1} << 44, nullptr, 0, &cache),
            KVROOF_OUT_OF_MEMORY);
  EXPECT_EQ(kvroof_ring_create(kShape, {KVROOF_HEAD_MAJOR, 7, 8, 0}, nullptr, 0, &cache), KVROOF_BAD_OPTION);
  EXPECT_EQ(kvroof_cache_append(nullptr, {}), KVROOF_BAD_HANDLE);
  EXPECT_EQ(kvroof_cache_view(nullptr, nullptr), KVROOF_BAD_HANDLE);
  kvroof_sequence_id id;
  EXPECT_EQ(kvroof_sequence_create(nullptr, &id), KVROOF_BAD_HANDLE);
  EXPECT_EQ(kvroof_attention_workspace_bytes(nullptr, 1, nullptr), KVROOF_BAD_VIEW);

  ASSERT_EQ(kvroof_contiguous_create(kShape, KVROOF_HEAD_MAJOR, 4, nullptr, 0, &cache), KVROOF_OK);
  EXPECT_EQ(kvroof_cache_append_tail(cache, {}), KVROOF_BAD_OPTION);
  EXPECT_EQ(kvroof_cache_truncate_to(cache, 1), KVROOF_BAD_POSITION);
  EXPECT_EQ(kvroof_cache_append(cache, {1, nullptr, nullptr, 0, 0, 0, 0}), KVROOF_BAD_VIEW);
  ASSERT_EQ(kvroof_cache_append(cache, c_rows(RandomRows(kCppShape, 1, 0, 3))), KVROOF_OK);
  kvroof_view view;
  ASSERT_EQ(kvroof_cache_view(cache, &view), KVROOF_OK);
  std::vector<float> out(kHeads * 12);
  kvroof_attention_sequence one = sequence(view, queries(), out);
  kvroof_attention_args args = {{kHeads, 2, 20, 12}, kvroof_attention_defaults(1.0f), &one, 1, KVROOF_REPRODUCIBLE};
  std::size_t bytes = 0;
  ASSERT_EQ(kvroof_attention_workspace_bytes(&args, 1, &bytes), KVROOF_OK);
  const Workspace workspace(bytes);
  EXPECT_EQ(kvroof_attention_workspace_bytes(&args, 0, &bytes), KVROOF_BAD_SHAPE);
  EXPECT_EQ(kvroof_decode_attention(&args, workspace.data, bytes, 0, nullptr), KVROOF_BAD_SHAPE);
  EXPECT_EQ(kvroof_decode_attention(&args, workspace.data, bytes - 1, 1, nullptr), KVROOF_BAD_WORKSPACE);
  EXPECT_EQ(kvroof_decode_attention(&args, workspace.data, bytes, 1, "mmx"), KVROOF_BAD_ISA);
  EXPECT_NE(std::string(kvroof_last_error()).find("mmx"), std::string::npos);
  args.options.window = 0;
  EXPECT_EQ(kvroof_decode_attention(&args, workspace.data, bytes, 1, nullptr), KVROOF_BAD_OPTION);
  args.options = kvroof_attention_defaults(1.0f);
  args.shape.query_heads = 5;
  EXPECT_EQ(kvroof_decode_attention(&args, workspace.data, bytes, 1, nullptr), KVROOF_BAD_SHAPE);
  args.shape.query_heads = kHeads;
  one.kv.k_storage = 9;
  EXPECT_EQ(kvroof_decode_attention(&args, workspace.data, bytes, 1, nullptr), KVROOF_BAD_OPTION);
  one.kv = view;
  args.mode = 7;
  EXPECT_EQ(kvroof_decode_attention(&args, workspace.data, bytes, 1, nullptr), KVROOF_BAD_OPTION);
  args.mode = KVROOF_REPRODUCIBLE;
  one.q = nullptr;
  EXPECT_EQ(kvroof_decode_attention(&args, workspace.data, bytes, 1, nullptr), KVROOF_BAD_VIEW);
  kvroof_cache_destroy(cache);

  std::thread([] { EXPECT_STREQ(kvroof_last_error(), ""); }).join();  // each thread has its own
  EXPECT_STREQ(kvroof_status_name(KVROOF_OK), "ok");
  EXPECT_STREQ(kvroof_status_name(KVROOF_OUT_OF_MEMORY), "out_of_memory");
  EXPECT_STREQ(kvroof_status_name(KVROOF_INTERNAL), "internal");
  EXPECT_EQ(kvroof_definition(), kDefinition);
  const char* isa = nullptr;
  ASSERT_EQ(kvroof_default_isa(&isa), KVROOF_OK);
  EXPECT_STREQ(isa, isa_name(default_isa()));
}

}  // namespace
}  // namespace kvroof::test_c_api
