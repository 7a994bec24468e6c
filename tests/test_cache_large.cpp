// Offsets beyond 2^31 and 2^32 elements and bytes, on the write path and on the read path, over sparse mappings:
// gigabytes of addresses of which a few rows are touched. Every case is compared with the same rows in a small cache.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cache/contiguous.hpp"
#include "kernels/cache/paged.hpp"
#include "kernels/cache/ring.hpp"
#include "tests/test_cache_attend.hpp"

namespace kvroof::test_cache {
namespace {

constexpr std::int64_t kTwo31 = std::int64_t{1} << 31, kTwo32 = std::int64_t{1} << 32;

class SparseMapping {
 public:
  explicit SparseMapping(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparseMapping() {
    if (ok()) ::munmap(data_, bytes_);
  }
  SparseMapping(const SparseMapping&) = delete;
  SparseMapping& operator=(const SparseMapping&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  std::span<std::byte> memory() const { return {static_cast<std::byte*>(data_), bytes_}; }
  std::size_t resident_bytes() const {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages((bytes_ + page - 1) / page);
    if (::mincore(data_, bytes_, pages.data()) != 0) return bytes_;
    std::size_t resident = 0;
    for (const unsigned char p : pages) resident += (p & 1u) * page;
    return resident;
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

#define KVROOF_SPARSE_OR_SKIP(mapping, bytes) \
  const SparseMapping mapping(bytes);         \
  if (!mapping.ok()) GTEST_SKIP() << "cannot map " << (bytes) << " bytes of addresses here"

constexpr std::size_t kFewMegabytes = std::size_t{64} << 20;  // leaves room for huge pages where the kernel gives them

std::vector<float> answer(const KvView& view, const CacheShape& shape, const AttentionOptions& options = {}) {
  const std::int64_t heads = 2 * shape.kv_heads;
  return attend(view, shape, heads, 2, options, random_queries(shape, heads, 2));
}

// `order` are pages of a large pool; the same sequence in a pool of just as many pages must give the same bits.
void expect_same_as_small_pool(const CacheShape& shape, std::int64_t page_rows, std::int64_t page_count,
                               const std::vector<PageId>& order) {
  const PagedOptions options{
      .order = RowOrder::head_major, .page_rows = page_rows, .page_count = page_count, .page_order = order};
  KVROOF_SPARSE_OR_SKIP(mapping, PagedCache::bytes_needed(shape, options));
  PagedCache large(shape, options, mapping.memory());
  const auto pages = static_cast<std::int64_t>(order.size());
  PagedCache small(shape, {.order = RowOrder::head_major, .page_rows = page_rows, .page_count = pages});
  const SequenceId a = large.create(), b = small.create();
  for (std::int64_t t = 0; t < pages * page_rows; ++t) {
    large.append(a, RandomRows(shape, 1, t, 1));
    small.append(b, RandomRows(shape, 1, t, 1));
  }
  EXPECT_TRUE(same_bits(answer(large.view(a), shape), answer(small.view(b), shape)));
  // Copy-on-write between far pages too.
  large.truncate_to(a, pages * page_rows - page_rows);
  small.truncate_to(b, pages * page_rows - page_rows);
  if (page_rows > 1) {
    large.drop_last(a, 1);
    small.drop_last(b, 1);
    const SequenceId a2 = large.fork(a), b2 = small.fork(b);
    large.append(a2, RandomRows(shape, 2, 0, 1));
    small.append(b2, RandomRows(shape, 2, 0, 1));
    EXPECT_TRUE(same_bits(answer(large.view(a2), shape), answer(small.view(b2), shape)));
    EXPECT_TRUE(same_bits(answer(large.view(a), shape), answer(small.view(b), shape)));
  }
  EXPECT_LT(mapping.resident_bytes(), kFewMegabytes);
}

TEST(CacheLarge, PageIdsAcross2To31And2To32Elements) {
  // A page holds 16 x 8 x 128 elements of K and as many of V: page 65536 starts at element 2^31, page 131072 at 2^32.
  const CacheShape shape{
      .kv_heads = 8, .key_dim = 128, .value_dim = 128, .k_storage = Storage::bf16, .v_storage = Storage::bf16};
  expect_same_as_small_pool(shape, 16, 131080, {0, 131071, 131072, 131079});
  expect_same_as_small_pool(shape, 16, 131080, {65536, 65535, 32768, 131072, 32767});
}

TEST(CacheLarge, MillionsOfPagesOfOneRow) {
  const CacheShape shape{
      .kv_heads = 8, .key_dim = 128, .value_dim = 128, .k_storage = Storage::bf16, .v_storage = Storage::f16};
  expect_same_as_small_pool(shape, 1, 8'400'000, {8'399'999, 0, 1 << 20, (1 << 20) - 1, 1 << 21, 4'200'000});
}

TEST(CacheLarge, LastRowsOfALongContiguousCache) {
  // One row of 576 less and one more than fit 2^31 elements (4 GiB in bf16).
  const CacheShape shape{
      .kv_heads = 1, .key_dim = 576, .value_dim = 576, .k_storage = Storage::bf16, .v_storage = Storage::bf16};
  for (const std::int64_t length : {3'728'270, 3'728'271}) {
    ASSERT_EQ(length * 576 > kTwo31, length == 3'728'271);
    KVROOF_SPARSE_OR_SKIP(mapping, ContiguousCache::bytes_needed(shape, RowOrder::head_major, length));
    ContiguousCache cache(shape, RowOrder::head_major, length, mapping.memory());
    cache.extend(length - 8);  // rows that nobody looks at
    for (std::int64_t t = 0; t < 8; ++t) cache.append(CountingRows(shape, t, 1));
    AttentionOptions options;
    options.window = 8;
    EXPECT_EQ(attend(cache.view(), shape, 1, 1, options)[575], 3.5f);
    options.window = 3;
    EXPECT_EQ(attend(cache.view(), shape, 1, 1, options)[0], 6.0f);
    EXPECT_LT(mapping.resident_bytes(), kFewMegabytes);
  }
}

TEST(CacheLarge, HeadsThatStartBeyond2To31And2To32Elements) {
  CacheShape shape{
      .kv_heads = 3, .key_dim = 64, .value_dim = 64, .k_storage = Storage::f16, .v_storage = Storage::int8};
  const std::int64_t capacity = kTwo31 / 64 + 5;
  ASSERT_GT(2 * capacity * 64, kTwo32);
  {
    KVROOF_SPARSE_OR_SKIP(mapping, ContiguousCache::bytes_needed(shape, RowOrder::head_major, capacity));
    ContiguousCache large(shape, RowOrder::head_major, capacity, mapping.memory()), small(shape);
    large.append(RandomRows(shape, 1, 0, 40));
    small.append(RandomRows(shape, 1, 0, 40));
    EXPECT_TRUE(same_bits(answer(large.view(), shape), answer(small.view(), shape)));
    EXPECT_LT(mapping.resident_bytes(), kFewMegabytes);
  }
  const RingOptions options{.order = RowOrder::head_major, .capacity = capacity, .window = 20, .kept_tokens = 2};
  KVROOF_SPARSE_OR_SKIP(mapping, RingCache::bytes_needed(shape, options));
  RingCache large(shape, options, mapping.memory());
  RingCache small(shape, {.order = RowOrder::head_major, .capacity = 21, .window = 20, .kept_tokens = 2});
  for (std::int64_t t = 0; t < 60; t += 2) {
    large.append(RandomRows(shape, 1, t, 2));
    small.append(RandomRows(shape, 1, t, 2));
  }
  AttentionOptions windowed;
  windowed.window = 20;
  windowed.kept_tokens = 2;
  EXPECT_TRUE(same_bits(answer(large.view(), shape, windowed), answer(small.view(), shape, windowed)));
  EXPECT_LT(mapping.resident_bytes(), kFewMegabytes);
}

}  // namespace
}  // namespace kvroof::test_cache
