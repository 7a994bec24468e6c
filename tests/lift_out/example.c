/* A batch of two: the same 100 tokens in a ring and in a paged cache, windowed. q = 0 gives the mean of 92 ... 99. */
#include <kernels/kvroof.h>
#include <stdio.h>
#include <stdlib.h>

static void must(kvroof_status status) {
  if (status != KVROOF_OK) exit(fprintf(stderr, "%s: %s\n", kvroof_status_name(status), kvroof_last_error()) != 0);
}

int main(void) {
  const kvroof_cache_shape shape = {2, 64, 64, KVROOF_F16, KVROOF_F16, 0}; /* KV heads, Dk, Dv */
  static float k[2 * 64], v[2 * 64], q[8 * 64], out[2][8 * 64];
  kvroof_cache* ring; /* capacity 8, window 8, no kept tokens */
  kvroof_pool* pool;  /* 32 pages of 16 rows */
  kvroof_sequence_id sequence;
  must(kvroof_ring_create(shape, (kvroof_ring_options){KVROOF_HEAD_MAJOR, 8, 8, 0}, NULL, 0, &ring));
  must(kvroof_pool_create(shape, (kvroof_pool_options){KVROOF_HEAD_MAJOR, 16, 32, NULL, 0}, NULL, 0, &pool));
  must(kvroof_sequence_create(pool, &sequence));
  for (int t = 0; t < 100; ++t) {
    for (int i = 0; i < 2 * 64; ++i) k[i] = 0.01f * (float)t, v[i] = (float)t;
    must(kvroof_cache_append(ring, kvroof_packed_rows(shape, 1, k, v)));
    must(kvroof_sequence_append(pool, sequence, kvroof_packed_rows(shape, 1, k, v)));
  }
  kvroof_attention_sequence batch[2] = {/* q, row and head stride; n; rows; out, row and head stride; lse */
                                        {q, 8 * 64, 64, 1, {0}, out[0], 8 * 64, 64, NULL},
                                        {q, 8 * 64, 64, 1, {0}, out[1], 8 * 64, 64, NULL}};
  must(kvroof_cache_view(ring, &batch[0].kv));
  must(kvroof_sequence_view(pool, sequence, &batch[1].kv));
  kvroof_attention_args args = {{8, 2, 64, 64}, kvroof_attention_defaults(0.125f), batch, 2, KVROOF_REPRODUCIBLE};
  args.options.window = 8; /* 8 query heads, 4 for each KV head */
  size_t bytes;
  must(kvroof_attention_workspace_bytes(&args, 2, &bytes));
  void* workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
  must(kvroof_decode_attention(&args, workspace, bytes, 2, NULL));
  printf("C: %g and %g, expected 95.5 twice\n", out[0][0], out[1][0]);
  free(workspace);
  kvroof_cache_destroy(ring);
  kvroof_pool_destroy(pool);
  return out[0][0] == 95.5f && out[1][0] == 95.5f ? 0 : 1;
}
