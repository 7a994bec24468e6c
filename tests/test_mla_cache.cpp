// Latent rows in the three caches: the stored bytes are the definition's, however they came there, and the operations
// of a cache (take back, fork, share pages, wrap) keep them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cache/contiguous.hpp"
#include "kernels/cache/paged.hpp"
#include "kernels/cache/ring.hpp"
#include "reference/inputs.hpp"
#include "reference/mla_row.hpp"
#include "tests/support/mla_call.hpp"
#include "tests/test_cache_attend.hpp"

namespace kvroof::test {
namespace {

struct Rows {
  std::int64_t latent, rope;
  Storage storage;
  CacheShape shape() const { return mla_cache_shape({1, 1, rope, 1, latent}, storage); }
  std::int64_t bytes() const {
    return reference::mla_row_bytes(static_cast<reference::StorageKind>(storage), latent, rope);
  }
  std::vector<float> values(std::int64_t token) const {
    std::vector<float> x(static_cast<std::size_t>(latent + rope));
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = 3.0f * reference::uniform(static_cast<std::uint64_t>(token) + 1, i);
    return x;
  }
  std::vector<float> values(std::int64_t first, std::int64_t n) const {
    std::vector<float> all;
    for (std::int64_t t = first; t < first + n; ++t) {
      const std::vector<float> one = values(t);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  // Positions of the view hold these tokens, as bytes.
  void expect(const KvView& view, const std::vector<std::int64_t>& tokens, const std::string& what) const {
    EXPECT_EQ(view.end_position, static_cast<std::int64_t>(tokens.size())) << what;
    EXPECT_EQ(view.latent_dim, latent);
    std::vector<std::byte> row(static_cast<std::size_t>(bytes()));
    for (std::int64_t r = 0; r < view.run_count; ++r) {
      const RowRun& run = view.runs[r];
      EXPECT_EQ(run.k, run.v) << "V is the beginning of the K row";
      for (std::int64_t t = 0; t < run.rows; ++t) {
        const std::int64_t position = run.first_position + t;
        reference::mla_encode_row(static_cast<reference::StorageKind>(storage),
                                  values(tokens[static_cast<std::size_t>(position)]).data(), latent, rope, row.data());
        ASSERT_EQ(std::memcmp(run.k + t * view.k_row_stride, row.data(), row.size()), 0)
            << what << " position " << position;
      }
    }
  }
};

const std::vector<Rows>& all_rows() {
  static const std::vector<Rows> rows = [] {
    std::vector<Rows> list;
    for (const Storage storage : kStorages)
      for (const auto& [latent, rope] : {std::pair{512, 64}, {16, 8}, {17, 6}, {129, 2}, {300, 0}, {1, 2}})
        list.push_back({latent, rope, storage});
    return list;
  }();
  return rows;
}

std::vector<std::int64_t> count_up(std::int64_t n) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t t = 0; t < n; ++t) tokens.push_back(t);
  return tokens;
}

template <class Cache>
void append(Cache& cache, const Rows& rows, std::int64_t first, std::int64_t n) {
  const std::vector<float> values = rows.values(first, n);
  cache.append(packed_rows(rows.shape(), n, values.data(), nullptr));
}

TEST(MlaCache, ContiguousKeepsTheBytesThroughGrowthRollbackAndFork) {
  for (const Rows& rows : all_rows()) {
    const std::string what = std::string(storage_name(rows.storage)) + " " + std::to_string(rows.latent);
    ContiguousCache cache(rows.shape());
    append(cache, rows, 0, 1);
    append(cache, rows, 1, 9);
    append(cache, rows, 10, 1);
    rows.expect(cache.view(), count_up(11), what);
    EXPECT_EQ(cache.bytes().used, 11 * rows.bytes());
    ContiguousCache fork = cache.fork();
    cache.drop_last(4);
    append(cache, rows, 100, 2);
    append(fork, rows, 200, 1);
    std::vector<std::int64_t> tokens = count_up(7), forked = count_up(11);
    tokens.insert(tokens.end(), {100, 101});
    forked.push_back(200);
    rows.expect(cache.view(), tokens, what + " taken back");
    rows.expect(fork.view(), forked, what + " forked");
  }
}

TEST(MlaCache, RingKeepsTheBytesWhereverItWraps) {
  for (const Rows& rows : all_rows()) {
    RingOptions options;
    options.window = 5;
    options.capacity = 7;
    options.kept_tokens = 2;
    RingCache cache(rows.shape(), options);
    std::int64_t length = 0;
    for (const std::int64_t n : {3, 1, 2, 3, 1, 1, 3, 1, 1, 1, 2, 3}) {
      append(cache, rows, length, n);
      length += n;
      rows.expect(cache.view(), count_up(length),
                  std::string(storage_name(rows.storage)) + " length " + std::to_string(length));
    }
    cache.drop_last(2);
    rows.expect(cache.view(), count_up(length - 2), "taken back");
    rows.expect(cache.fork().view(), count_up(length - 2), "forked");
    const std::vector<float> tail = rows.values(length - 2, 30);
    cache.append_tail(packed_rows(rows.shape(), 30, tail.data(), nullptr));
    rows.expect(cache.view(), count_up(length + 28), "tail");
    EXPECT_THROW(append(cache, rows, 0, 4), Error) << "would overwrite a row that is still visible";
    rows.expect(cache.view(), count_up(length + 28), "refused");
  }
}

TEST(MlaCache, PagesKeepTheBytesThroughSharingAndCopyOnWrite) {
  for (const Rows& rows : all_rows()) {
    for (const std::int64_t page_rows : {1, 4, 16}) {
      const std::string what = std::string(storage_name(rows.storage)) + " pages of " + std::to_string(page_rows);
      PagedCache cache(rows.shape(), {.page_rows = page_rows, .page_count = 100});
      const SequenceId a = cache.create();
      const std::vector<float> prefix = rows.values(0, 21);
      cache.append(a, packed_rows(rows.shape(), 21, prefix.data(), nullptr));
      const SequenceId b = cache.fork(a), c = cache.fork(a);
      std::vector<std::int64_t> tokens[3] = {count_up(21), count_up(21), count_up(21)};
      const SequenceId ids[3] = {a, b, c};
      for (std::int64_t step = 0; step < 6; ++step) {
        for (std::size_t who = 0; who < 3; ++who) {
          const std::int64_t token = 1000 * static_cast<std::int64_t>(who + 1) + step;
          const std::vector<float> row = rows.values(token);
          cache.append(ids[who], packed_rows(rows.shape(), 1, row.data(), nullptr));
          tokens[who].push_back(token);
        }
        for (std::size_t who = 0; who < 3; ++who) rows.expect(cache.view(ids[who]), tokens[who], what);
      }
      cache.truncate_to(b, 10);
      tokens[1].resize(10);
      cache.release(c);
      for (std::size_t who = 0; who < 2; ++who) rows.expect(cache.view(ids[who]), tokens[who], what + " taken back");
      cache.release(a);
      cache.release(b);
      EXPECT_EQ(cache.free_pages(), 100);
    }
  }
}

// Latents that are no multiple of 128: the last, short group of an int8 row has the scale of its own values, here a
// hundred thousand times smaller than the first group's. (Rows of plain attention have one scale whatever their size.)
TEST(MlaCache, TheShortLastGroupOfInt8HasItsOwnScale) {
  for (const std::int64_t latent : {72, 80, 100, 112, 129, 200, 228, 255, 300}) {
    const CacheShape shape = latent_shape(latent, 2, Storage::int8);
    std::vector<float> row(static_cast<std::size_t>(latent + 2));
    const std::int64_t last = (latent - 1) / 128 * 128;
    for (std::int64_t i = 0; i < latent + 2; ++i) {
      const float size = i < last ? 100.0f : 1e-3f;
      row[static_cast<std::size_t>(i)] = size * reference::uniform(8, static_cast<std::uint64_t>(i));
    }
    ContiguousCache cache(shape);
    cache.append(packed_rows(shape, 1, row.data(), nullptr));
    const std::vector<float> out = test_cache::attend(cache.view(), shape, 1, 1);  // one row: its own latent
    for (std::int64_t group = 0; group < latent; group += 128) {
      const std::int64_t end = std::min(group + 128, latent);
      float amax = 0;
      for (std::int64_t i = group; i < end; ++i) amax = std::max(amax, std::fabs(row[static_cast<std::size_t>(i)]));
      for (std::int64_t i = group; i < end; ++i) {  // half a step, and the rounding of scale and product
        const auto at = static_cast<std::size_t>(i);
        EXPECT_LE(std::fabs(out[at] - row[at]), amax * (0.5f / 127 + 0x1p-22f)) << latent << ", column " << i;
      }
    }
  }
}

TEST(MlaCache, ShapesThatAreNoLatentRowsAreRefused) {
  const CacheShape good = mla_cache_shape({1, 1, 8, 1, 16}, Storage::f16);
  EXPECT_NO_THROW(ContiguousCache{good});
  const auto refused = [&](void (*spoil)(CacheShape&)) {
    CacheShape shape = good;
    spoil(shape);
    EXPECT_THROW(ContiguousCache{shape}, Error);
    EXPECT_THROW(PagedCache(shape, {.page_rows = 4, .page_count = 4}), Error);
    EXPECT_THROW(RingCache(shape, {.capacity = 4, .window = 4}), Error);
  };
  refused([](CacheShape& s) { s.kv_heads = 2; });
  refused([](CacheShape& s) { s.value_dim = 8; });
  refused([](CacheShape& s) { s.key_dim = 15; });
  refused([](CacheShape& s) { s.v_storage = Storage::f32; });
  refused([](CacheShape& s) { s.latent_dim = -1; });
}

}  // namespace
}  // namespace kvroof::test
