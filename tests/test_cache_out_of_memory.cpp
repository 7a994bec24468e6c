// What happens where memory runs out: in a child process whose address space is limited, every call that allocates is
// refused as out_of_memory, changes nothing, and succeeds once there is memory again.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include "kernels/cache/contiguous.hpp"
#include "kernels/cache/paged.hpp"
#include "kernels/cache/ring.hpp"
#include "kernels/decoder.hpp"
#include "kernels/kvroof.h"
#include "tests/support/sanitized.hpp"
#include "tests/test_cache_attend.hpp"
#include "tests/test_cache_models.hpp"

namespace kvroof::test_cache {
namespace {

constexpr CacheShape kShape{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
constexpr std::int64_t kRows = 40000;  // 40 MiB

void set_limit(rlim_t bytes) {
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = bytes;
  require(::setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
}

// Runs `call` with a few MiB to spare, so that small things still work and large ones do not.
template <typename Call>
void with_little_memory(const Call& call) {
  ::malloc_trim(0);  // else free memory of earlier tests would be found
  long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  require(file != nullptr && std::fscanf(file, "%ld", &pages) == 1, "/proc/self/statm");
  std::fclose(file);
  set_limit(static_cast<rlim_t>(pages) * 4096 + (rlim_t{4} << 20));
  call();
  set_limit(RLIM_INFINITY);
}

template <typename Call>
void require_out_of_memory(const std::string& what, const Call& call) {
  with_little_memory([&] { require_error(ErrorCode::out_of_memory, what, call); });
}

std::vector<float> newest(const KvView& view, std::int64_t window = kUnlimitedWindow) {
  AttentionOptions options;
  options.window = window;
  return attend(view, kShape, 2, 1, options, random_queries(kShape, 2, 1));
}

void contiguous() {
  ContiguousCache cache(kShape, RowOrder::head_major, kRows);
  cache.append(RandomRows(kShape, 1, 0, kRows));
  const std::vector<float> before = newest(cache.view());
  const RandomRows more(kShape, 1, kRows, 1);
  const auto unchanged = [&] {
    require(cache.length() == kRows && cache.capacity() == kRows && same_bits(newest(cache.view()), before),
            "a refused call changed the cache");
  };
  require_out_of_memory("fork", [&] { cache.fork(); });
  unchanged();
  require_out_of_memory("append", [&] { cache.append(more); });
  require_out_of_memory("extend", [&] { cache.extend(1); });
  require_out_of_memory("reserve", [&] { cache.reserve(kRows + 1); });
  unchanged();
  require(same_bits(newest(cache.fork().view()), before), "fork with memory again");
  cache.append(more);
  require(cache.length() == kRows + 1, "append with memory again");
}

void ring() {
  RingCache cache(kShape, {.order = RowOrder::head_major, .capacity = kRows, .window = kRows, .kept_tokens = 2});
  cache.append_tail(RandomRows(kShape, 1, 0, kRows + 100));
  const std::vector<float> before = newest(cache.view(), kRows);
  require_out_of_memory("fork", [&] { cache.fork(); });
  require(cache.length() == kRows + 100 && cache.oldest_live() == 100 && same_bits(newest(cache.view(), kRows), before),
          "a refused fork changed the ring");
  require(same_bits(newest(cache.fork().view(), kRows), before), "fork with memory again");
}

void paged() {  // its rows are there from the start; the tables of a long sequence are what grows
  constexpr std::int64_t kPages = 1000000;
  PagedCache cache({.kv_heads = 1, .key_dim = 1, .value_dim = 1}, {.page_rows = 1, .page_count = kPages});
  const SequenceId id = cache.create();
  cache.extend(id, kPages / 2);
  const auto unchanged = [&] {
    const PagedOccupancy now = cache.occupancy();
    require(now.sequences == 1 && now.tokens == kPages / 2 && now.pages_used == kPages / 2 && now.pages_shared == 0 &&
                cache.view(id).run_count == kPages / 2 && cache.references(cache.pages(id)[0]) == 1,
            "a refused call changed the pool");
  };
  require_out_of_memory("fork", [&] { cache.fork(id); });
  unchanged();
  require_out_of_memory("extend", [&] { cache.extend(id, kPages / 2); });
  unchanged();
  const SequenceId copy = cache.fork(id);
  require(cache.occupancy().pages_shared == kPages / 2, "fork with memory again");
  cache.release(copy);
  cache.extend(id, kPages / 2);
  require(cache.free_pages() == 0, "extend with memory again");
}

void c_interface() {
  kvroof_cache *cache = nullptr, *copy = nullptr;
  const kvroof_cache_shape shape = {2, 64, 64, KVROOF_F32, KVROOF_F32, 0};
  require(kvroof_contiguous_create(shape, KVROOF_HEAD_MAJOR, kRows, nullptr, 0, &cache) == KVROOF_OK, "create");
  require(kvroof_cache_extend(cache, kRows) == KVROOF_OK, "extend");
  with_little_memory([&] {
    require(kvroof_cache_fork(cache, &copy) == KVROOF_OUT_OF_MEMORY && copy == nullptr, "fork");
    require(std::string(kvroof_last_error()).find("cannot allocate") != std::string::npos, "the text");
    require(kvroof_cache_extend(cache, 1) == KVROOF_OUT_OF_MEMORY, "extend without memory");
  });
  std::int64_t length = 0;
  require(kvroof_cache_length(cache, &length) == KVROOF_OK && length == kRows, "length");
  require(kvroof_cache_fork(cache, &copy) == KVROOF_OK, "fork with memory again");
  kvroof_cache_destroy(copy);
  kvroof_cache_destroy(cache);
}

void decoder() {  // one layer whose cache has no room left, and one before it that has: both or none
  const std::vector<float> w(64 * 64, 0.01f);
  DecoderLayer layer;
  layer.shape = {1, 1, 64, 64};
  layer.options.scale = 0.125f;
  layer.options.window = 8;
  layer.wq = layer.wk = layer.wv = layer.wo = w.data();
  std::vector<DecoderLayer> layers(2, layer);
  layers[0].ring_capacity = 300;
  const Decoder model(64, layers);
  DecoderState state = model.start();
  std::vector<float> x(64 * 20000, 0.5f), y(x.size(), -1.0f), again(64);
  model.step(state, x.data(), 20000, y.data(), 1);
  y.assign(y.size(), -1.0f);
  require_out_of_memory("fork", [&] { state.fork(); });
  require_out_of_memory("step", [&] { model.step(state, x.data(), 20000, y.data(), 1); });
  require(state.length() == 20000 && state.view(0).end_position == 20000 && state.view(1).end_position == 20000,
          "a refused step changed the state");
  require(y[0] == -1.0f, "a refused step wrote an output");
  DecoderState copy = state.fork();
  model.step(state, x.data(), 1, y.data(), 1);
  model.step(copy, x.data(), 1, again.data(), 1);
  y.resize(64);
  require(same_bits(y, again), "fork with memory again");
}

using Body = void (*)();

class CacheOutOfMemoryDeathTest : public testing::TestWithParam<std::pair<const char*, Body>> {};

TEST_P(CacheOutOfMemoryDeathTest, IsRefusedAndChangesNothing) {
  if (KVROOF_TEST_SANITIZED) GTEST_SKIP() << "a sanitizer's own memory does not fit under any limit";
  const Body body = GetParam().second;
  EXPECT_EXIT(
      {
        try {
          body();
        } catch (const std::exception& error) {
          std::fprintf(stderr, "%s\n", error.what());
          std::_Exit(1);
        }
        std::fputs("done\n", stderr);
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "done");
}

INSTANTIATE_TEST_SUITE_P(All, CacheOutOfMemoryDeathTest,
                         testing::Values(std::pair<const char*, Body>{"contiguous", contiguous},
                                         std::pair<const char*, Body>{"ring", ring},
                                         std::pair<const char*, Body>{"paged", paged},
                                         std::pair<const char*, Body>{"c_interface", c_interface},
                                         std::pair<const char*, Body>{"decoder", decoder}),
                         [](const auto& each) { return std::string(each.param.first); });

}  // namespace
}  // namespace kvroof::test_cache
