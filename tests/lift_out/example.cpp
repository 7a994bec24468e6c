// One token attends over the same 100 tokens in a contiguous, a ring and a paged cache, windowed: the same bits. With
// q = 0 the output is the mean of the visible values, here of 92 ... 99.
#include <cstdio>
#include <vector>

#include "kernels/cache/contiguous.hpp"
#include "kernels/cache/paged.hpp"
#include "kernels/cache/ring.hpp"

int main() {
  const kvroof::CacheShape shape{2, 64, 64, kvroof::Storage::f16, kvroof::Storage::f16, 0};  // KV heads, Dk, Dv
  kvroof::ContiguousCache contiguous(shape);
  kvroof::RingCache ring(shape, {.capacity = 8, .window = 8});
  kvroof::PagedCache pool(shape, {.page_rows = 16, .page_count = 32});
  const kvroof::SequenceId sequence = pool.create();
  for (int t = 0; t < 100; ++t) {
    const std::vector<float> k(2 * 64, 0.01f * static_cast<float>(t)), v(2 * 64, static_cast<float>(t));
    const kvroof::NewRows token = kvroof::packed_rows(shape, 1, k.data(), v.data());
    contiguous.append(token);
    ring.append(token);
    pool.append(sequence, token);
  }

  const std::vector<float> q(8 * 64, 0.0f);  // 8 query heads, 4 for each KV head
  std::vector<float> out[3];
  const kvroof::KvView views[3] = {contiguous.view(), ring.view(), pool.view(sequence)};
  for (int i = 0; i < 3; ++i) {
    out[i].resize(8 * 64);
    // q, its row and head stride; n; rows; out, its row and head stride; lse
    const kvroof::AttentionSequence one{q.data(), 8 * 64, 64, 1, views[i], out[i].data(), 8 * 64, 64, nullptr};
    const kvroof::AttentionArgs args{{8, 2, 64, 64}, {.scale = 0.125f, .window = 8}, {&one, 1}};
    const std::size_t bytes = kvroof::attention_workspace_bytes(args, 2);
    const kvroof::CacheMemory workspace = kvroof::CacheMemory::allocate(static_cast<std::int64_t>(bytes));
    kvroof::decode_attention(args, {workspace.data(), bytes}, 2);
  }
  const bool right = out[0] == out[1] && out[0] == out[2] && out[0][0] == 95.5f;
  std::printf("C++: %g, expected 95.5 from all three caches\n", static_cast<double>(out[0][0]));
  return right ? 0 : 1;
}
