// The model tests of test_cache_models.hpp over many seeds: 1.4 * 10^5 operations on each cache alone together, and
// 10^5 over all of them at once, every one followed by attention.
#include "tests/test_cache_models.hpp"

#include <gtest/gtest.h>

#include "tests/support/sanitized.hpp"

namespace kvroof::test_cache {
namespace {

// Fails with the seed and the number of the operation, which is the shortest failing prefix of that seed.
void run_model(void (*model)(OpSource&), std::uint64_t first_seed, std::uint64_t seeds, std::int64_t ops_each) {
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    SeededOps ops(seed, ops_each);
    try {
      model(ops);
    } catch (const std::exception& mismatch) {
      FAIL() << "seed " << seed << ", operation " << ops.asked() << ": " << mismatch.what();
    }
  }
}

TEST(CacheModel, Contiguous) { run_model(contiguous_model, 1, 300, 120); }
TEST(CacheModel, Ring) { run_model(ring_model, 1, 500, 100); }
TEST(CacheModel, Paged) { run_model(paged_model, 1, 250, 200); }
TEST(CacheModelAttention, EveryCacheInOneBatch) {
  run_model(attention_model, 1, KVROOF_TEST_SANITIZED ? 50 : 1000, 100);
}

}  // namespace
}  // namespace kvroof::test_cache
