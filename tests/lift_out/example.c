/* The C interface: append 100 tokens to a ring and to a paged cache, attend over both with a window of 8. With q = 0
 * the output is the mean of the visible values, here of 92 ... 99. */
#include <kernels/kvroof.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(kvroof_status status) {
  if (status == KVROOF_OK) return;
  fprintf(stderr, "%s: %s\n", kvroof_status_name(status), kvroof_last_error());
  exit(1);
}

int main(void) {
  const kvroof_cache_shape shape = {2, 64, 64, KVROOF_F16, KVROOF_F16, 0};  /* KV heads, Dk, Dv */
  const kvroof_ring_options ring_options = {KVROOF_HEAD_MAJOR, 8, 8, 0}; /* capacity, window, kept tokens */
  const kvroof_pool_options pool_options = {KVROOF_HEAD_MAJOR, 16, 32, NULL, 0};
  static float k[2 * 64], v[2 * 64], q[8 * 64], out[2][8 * 64];
  kvroof_cache* ring;
  kvroof_pool* pool;
  kvroof_sequence_id sequence;
  must(kvroof_ring_create(shape, ring_options, NULL, 0, &ring));
  must(kvroof_pool_create(shape, pool_options, NULL, 0, &pool));
  must(kvroof_sequence_create(pool, &sequence));
  for (int t = 0; t < 100; ++t) {
    for (int i = 0; i < 2 * 64; ++i) k[i] = 0.01f * (float)t, v[i] = (float)t;
    must(kvroof_cache_append(ring, kvroof_packed_rows(shape, 1, k, v)));
    must(kvroof_sequence_append(pool, sequence, kvroof_packed_rows(shape, 1, k, v)));
  }
  kvroof_view views[2];
  must(kvroof_cache_view(ring, &views[0]));
  must(kvroof_sequence_view(pool, sequence, &views[1]));
  for (int i = 0; i < 2; ++i) { /* 8 query heads, 4 for each KV head */
    const kvroof_attention_sequence one = {q, 8 * 64, 64, 1, views[i], out[i], 8 * 64, 64, NULL};
    kvroof_attention_args args = {{8, 2, 64, 64}, kvroof_attention_defaults(0.125f), &one, 1};
    args.options.window = 8;
    size_t bytes;
    must(kvroof_attention_workspace_bytes(&args, 2, &bytes));
    void* workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
    must(kvroof_decode_attention(&args, workspace, bytes, 2, NULL));
    free(workspace);
  }
  const int same = memcmp(out[0], out[1], sizeof out[0]) == 0;
  printf("C: %g (expected 95.5), %s\n", out[0][0], same ? "same bits" : "DIFFERENT");
  kvroof_cache_destroy(ring);
  kvroof_pool_destroy(pool);
  return same && out[0][0] == 95.5f ? 0 : 1;
}
