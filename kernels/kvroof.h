/* kvroof for C and for languages that call C: the kernels and caches of kernels.hpp and kernels/cache/ behind opaque
 * handles and plain structs. What a call does, its exact rules and its bits are those of the C++ headers, to which each
 * section points; this file says only what differs.
 *
 * Every call that can be refused returns a kvroof_status; KVROOF_OK is 0. After a refusal nothing was changed, and
 * kvroof_last_error() tells the calling thread what was wrong. No exception leaves the library. A null handle is
 * KVROOF_BAD_HANDLE, a null pointer to a result KVROOF_BAD_VIEW. */
#ifndef KVROOF_KVROOF_H
#define KVROOF_KVROOF_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors and instruction sets (error.hpp, kernels.hpp) ----------------------------------------------------------
 */
typedef enum kvroof_status {
  KVROOF_OK = 0,
  KVROOF_BAD_SHAPE,
  KVROOF_BAD_OPTION,
  KVROOF_BAD_VIEW,
  KVROOF_BAD_WORKSPACE,
  KVROOF_BAD_ISA,
  KVROOF_NO_CAPACITY,
  KVROOF_BAD_POSITION,
  KVROOF_BAD_HANDLE,
  KVROOF_OUT_OF_MEMORY,
  KVROOF_INTERNAL /* a fault of the library itself */
} kvroof_status;

const char* kvroof_status_name(kvroof_status status); /* "ok", "bad_shape", ... */
const char* kvroof_last_error(void); /* of this thread, "" if none; valid until its next refused call */

int kvroof_definition(void); /* number of the numerics definition */
/* The instruction set that is used: "avx2", ... (KVROOF_BAD_ISA where the environment's KVROOF_ISA cannot run here.)
 * Calls that take `isa` want such a name, or NULL for the default. */
kvroof_status kvroof_default_isa(const char** name);

/* ---- rows (storage.hpp, views.hpp, cache/rows.hpp) -----------------------------------------------------------------
 */
enum { KVROOF_F32 = 0, KVROOF_F16 = 1, KVROOF_BF16 = 2, KVROOF_INT8 = 3 }; /* kvroof_storage */
enum { KVROOF_HEAD_MAJOR = 0, KVROOF_TOKEN_MAJOR = 1 };                    /* kvroof_row_order */
typedef uint8_t kvroof_storage;
typedef uint8_t kvroof_row_order;

typedef struct kvroof_cache_shape {
  int64_t kv_heads, key_dim, value_dim;
  kvroof_storage k_storage, v_storage;
  int64_t latent_dim; /* 0, or rows of multi-head latent attention: see CacheShape::latent_dim */
} kvroof_cache_shape;

typedef struct kvroof_rows { /* n new tokens in f32; strides in floats */
  int64_t n;
  const float* k;
  const float* v;
  int64_t k_row_stride, k_head_stride;
  int64_t v_row_stride, v_head_stride;
} kvroof_rows;
/* k is [n][Hkv][Dk] and v is [n][Hkv][Dv] without gaps. */
kvroof_rows kvroof_packed_rows(kvroof_cache_shape shape, int64_t n, const float* k, const float* v);

typedef struct kvroof_row_run {
  const void* k;
  const void* v;
  const float* k_scale;
  const float* v_scale;
  int64_t first_position;
  int64_t rows;
} kvroof_row_run;

typedef struct kvroof_view {
  const kvroof_row_run* runs;
  int64_t run_count;
  int64_t end_position;
  kvroof_storage k_storage, v_storage;
  int64_t k_row_stride, k_head_stride; /* bytes */
  int64_t v_row_stride, v_head_stride;
  int64_t k_scale_row_stride, k_scale_head_stride; /* floats */
  int64_t v_scale_row_stride, v_scale_head_stride;
  int64_t latent_dim; /* > 0: rows of multi-head latent attention, see views.hpp; else 0 */
} kvroof_view;

typedef struct kvroof_bytes {
  int64_t used, reserved;
} kvroof_bytes;

typedef struct kvroof_row_slot { /* where one row of one head lies, to read or write in place */
  void* k;
  void* v;
  float* k_scale; /* NULL unless that side is int8 */
  float* v_scale;
} kvroof_row_slot;

/* One row of d values to a storage and back; `scale` receives or gives the row's int8 scale, else unused. A null `from`
 * or `to` is KVROOF_BAD_VIEW, whatever d. */
kvroof_status kvroof_store_row(kvroof_storage storage, const float* from, size_t d, void* to, float* scale,
                               const char* isa);
kvroof_status kvroof_load_row(kvroof_storage storage, const void* from, const float* scale, size_t d, float* to,
                              const char* isa);
/* n rows at once: row r is from + r*from_stride, its scale scales[r]. Strides are in floats on the f32 side and in
 * bytes on the other, and free where rows do not overlap. n below 0 is KVROOF_BAD_SHAPE; with n = 0 nothing is looked
 * at. */
kvroof_status kvroof_store_rows(kvroof_storage storage, const float* from, int64_t from_stride, int64_t n, size_t d,
                                void* to, int64_t to_stride, float* scales, const char* isa);
kvroof_status kvroof_load_rows(kvroof_storage storage, const void* from, int64_t from_stride, const float* scales,
                               int64_t n, size_t d, float* to, int64_t to_stride, const char* isa);

/* ---- contiguous and ring cache (cache/contiguous.hpp, cache/ring.hpp) ----------------------------------------------
 */
typedef struct kvroof_cache kvroof_cache;

typedef struct kvroof_ring_options {
  kvroof_row_order order;
  int64_t capacity, window, kept_tokens;
} kvroof_ring_options;

/* `memory` NULL: the cache's own. Else at least kvroof_*_bytes_needed bytes, 64-byte aligned, that outlive the cache.
 */
kvroof_status kvroof_contiguous_create(kvroof_cache_shape shape, kvroof_row_order order, int64_t capacity, void* memory,
                                       size_t memory_bytes, kvroof_cache** cache);
kvroof_status kvroof_contiguous_bytes_needed(kvroof_cache_shape shape, kvroof_row_order order, int64_t capacity,
                                             int64_t* bytes);
kvroof_status kvroof_ring_create(kvroof_cache_shape shape, kvroof_ring_options options, void* memory,
                                 size_t memory_bytes, kvroof_cache** cache);
kvroof_status kvroof_ring_bytes_needed(kvroof_cache_shape shape, kvroof_ring_options options, int64_t* bytes);
void kvroof_cache_destroy(kvroof_cache* cache); /* NULL is allowed */

kvroof_status kvroof_cache_append(kvroof_cache* cache, kvroof_rows rows);
kvroof_status kvroof_cache_append_tail(kvroof_cache* cache, kvroof_rows rows); /* rings only, else KVROOF_BAD_OPTION */
/* Adds n tokens by the rule of append, whose rows the caller then writes itself through kvroof_cache_slot; until then
 * they hold anything. */
kvroof_status kvroof_cache_extend(kvroof_cache* cache, int64_t n);
/* Unlike the C++ call this one is checked: a position that the view does not have is KVROOF_BAD_POSITION, a head out of
 * range KVROOF_BAD_SHAPE. Valid as long as the view is. */
kvroof_status kvroof_cache_slot(kvroof_cache* cache, int64_t position, int64_t head, kvroof_row_slot* slot);
/* *allowed is 1 where append (extend) of n rows would not be refused for want of room, else 0. */
kvroof_status kvroof_cache_can_append(const kvroof_cache* cache, int64_t n, int* allowed);
kvroof_status kvroof_cache_can_truncate_to(const kvroof_cache* cache, int64_t length, int* allowed);
kvroof_status kvroof_cache_reserve(kvroof_cache* cache, int64_t rows); /* contiguous only, else KVROOF_BAD_OPTION */
kvroof_status kvroof_cache_truncate_to(kvroof_cache* cache, int64_t length);
kvroof_status kvroof_cache_drop_last(kvroof_cache* cache, int64_t n);
kvroof_status kvroof_cache_fork(const kvroof_cache* cache, kvroof_cache** copy);
kvroof_status kvroof_cache_length(const kvroof_cache* cache, int64_t* length);        /* also the next position */
kvroof_status kvroof_cache_oldest_live(const kvroof_cache* cache, int64_t* position); /* 0 in a contiguous cache */
kvroof_status kvroof_cache_live_rows(const kvroof_cache* cache, int64_t* rows);       /* rows in the view */
kvroof_status kvroof_cache_capacity(const kvroof_cache* cache, int64_t* rows);        /* before it grows; a ring's C */
kvroof_status kvroof_cache_bytes(const kvroof_cache* cache, kvroof_bytes* bytes);
/* Valid until the next call that changes the cache. */
kvroof_status kvroof_cache_view(const kvroof_cache* cache, kvroof_view* view);

/* ---- paged cache (cache/paged.hpp, cache/page_table.hpp) -----------------------------------------------------------
 */
typedef struct kvroof_pool kvroof_pool;

typedef struct kvroof_sequence_id { /* {0, 0} names nothing */
  uint32_t index, generation;
} kvroof_sequence_id;

typedef struct kvroof_pool_options {
  kvroof_row_order order;
  int64_t page_rows, page_count;
  const int64_t* page_order; /* or NULL: 0, 1, 2, ... */
  size_t page_order_count;
} kvroof_pool_options;

typedef struct kvroof_occupancy {
  int64_t sequences, tokens, pages_total, pages_used, pages_shared, pages_free;
} kvroof_occupancy;

kvroof_status kvroof_pool_create(kvroof_cache_shape shape, kvroof_pool_options options, void* memory,
                                 size_t memory_bytes, kvroof_pool** pool);
kvroof_status kvroof_pool_bytes_needed(kvroof_cache_shape shape, kvroof_pool_options options, int64_t* bytes);
void kvroof_pool_destroy(kvroof_pool* pool); /* NULL is allowed; its sequences go with it */

kvroof_status kvroof_sequence_create(kvroof_pool* pool, kvroof_sequence_id* sequence);
kvroof_status kvroof_sequence_fork(kvroof_pool* pool, kvroof_sequence_id from, kvroof_sequence_id* sequence);
kvroof_status kvroof_sequence_release(kvroof_pool* pool, kvroof_sequence_id sequence);
kvroof_status kvroof_sequence_append(kvroof_pool* pool, kvroof_sequence_id sequence, kvroof_rows rows);
/* As kvroof_cache_extend and kvroof_cache_slot. Rows of shared pages belong to every sharer: only the ones a sequence
 * has just been extended by are surely its own. */
kvroof_status kvroof_sequence_extend(kvroof_pool* pool, kvroof_sequence_id sequence, int64_t n);
kvroof_status kvroof_sequence_slot(kvroof_pool* pool, kvroof_sequence_id sequence, int64_t position, int64_t head,
                                   kvroof_row_slot* slot);
kvroof_status kvroof_sequence_truncate_to(kvroof_pool* pool, kvroof_sequence_id sequence, int64_t length);
kvroof_status kvroof_sequence_drop_last(kvroof_pool* pool, kvroof_sequence_id sequence, int64_t n);
kvroof_status kvroof_sequence_length(const kvroof_pool* pool, kvroof_sequence_id sequence, int64_t* length);
kvroof_status kvroof_sequence_pages_needed(const kvroof_pool* pool, kvroof_sequence_id sequence, int64_t n,
                                           int64_t* pages);
/* Page ids in order of position; valid until the next change of this sequence. */
kvroof_status kvroof_sequence_pages(const kvroof_pool* pool, kvroof_sequence_id sequence, const int64_t** pages,
                                    size_t* count);
kvroof_status kvroof_sequence_view(const kvroof_pool* pool, kvroof_sequence_id sequence, kvroof_view* view);
kvroof_status kvroof_pool_occupancy(const kvroof_pool* pool, kvroof_occupancy* occupancy);
/* Sequences that hold the page; 0 for a free or unknown one. */
kvroof_status kvroof_pool_references(const kvroof_pool* pool, int64_t page, int64_t* references);
kvroof_status kvroof_pool_bytes(const kvroof_pool* pool, kvroof_bytes* bytes);

/* An engine's own pages and block tables. */
typedef struct kvroof_page_geometry {
  const void* k;
  const void* v;
  const float* k_scale;
  const float* v_scale;
  int64_t k_page_stride, v_page_stride;             /* bytes */
  int64_t k_scale_page_stride, v_scale_page_stride; /* floats */
  int64_t page_rows, page_count;
  kvroof_view strides; /* storages and strides of rows and heads; runs ignored */
} kvroof_page_geometry;
/* Writes one run a page to runs[0 ... run_capacity-1] and the view over them to *view. */
kvroof_status kvroof_page_table_view(const kvroof_page_geometry* pages, const int32_t* table, size_t table_entries,
                                     int64_t length, kvroof_row_run* runs, size_t run_capacity, kvroof_view* view);

/* ---- decode attention (kernels.hpp) --------------------------------------------------------------------------------
 */
#define KVROOF_UNLIMITED_WINDOW INT64_MAX

typedef struct kvroof_attention_shape {
  int64_t query_heads, kv_heads, key_dim, value_dim;
} kvroof_attention_shape;

typedef struct kvroof_attention_options {
  float scale;
  int64_t window;
  int64_t kept_tokens;
  float softcap;
  const float* alibi_slopes;
  const float* sink_logits;
} kvroof_attention_options;
kvroof_attention_options kvroof_attention_defaults(float scale); /* no window, cap, ALiBi or sink */

typedef struct kvroof_attention_sequence {
  const float* q;
  int64_t q_row_stride, q_head_stride; /* floats */
  int64_t n;
  kvroof_view kv;
  float* out;
  int64_t out_row_stride, out_head_stride; /* floats */
  float* lse;                              /* or NULL */
} kvroof_attention_sequence;

enum { KVROOF_REPRODUCIBLE = 0, KVROOF_NATIVE = 1 };
/* KVROOF_OK where native mode can read these storages with this instruction set here, else KVROOF_BAD_ISA, and
 * kvroof_last_error() says why not. */
kvroof_status kvroof_native_check(const char* isa, kvroof_storage k_storage, kvroof_storage v_storage);

typedef struct kvroof_attention_args {
  kvroof_attention_shape shape;
  kvroof_attention_options options;
  const kvroof_attention_sequence* sequences;
  size_t sequence_count;
  int mode; /* KVROOF_REPRODUCIBLE (what is left out is 0) or KVROOF_NATIVE */
} kvroof_attention_args;

/* Checks everything, then says how many bytes of 64-byte aligned workspace `parts` parts need. */
kvroof_status kvroof_attention_workspace_bytes(const kvroof_attention_args* args, int parts, size_t* bytes);
/* With the library's own threads (OpenMP). */
kvroof_status kvroof_decode_attention(const kvroof_attention_args* args, void* workspace, size_t workspace_bytes,
                                      int threads, const char* isa);
/* On the caller's own threads: every part 0 ... parts-1 in any order, then, after all of them, every merge part.
 * Arguments must have passed kvroof_attention_workspace_bytes, and are not checked again, except that a part outside
 * [0, parts) is KVROOF_BAD_SHAPE. */
kvroof_status kvroof_attention_run_part(const kvroof_attention_args* args, int parts, int part, void* workspace,
                                        const char* isa);
kvroof_status kvroof_attention_merge_part(const kvroof_attention_args* args, int parts, int part, void* workspace,
                                          const char* isa);
kvroof_status kvroof_attention_bytes(const kvroof_attention_args* args, int64_t* bytes);
kvroof_status kvroof_attention_flops(const kvroof_attention_args* args, int64_t* flops);

/* One context over several processes: each computes a block of partials from the rows of a range of whole segments, one
 * joins the blocks of all. Which arguments must agree, and when blocks may travel, is said in kernels.hpp. */
int64_t kvroof_segment_rows(void); /* positions of one segment */
/* Checks everything, then says what kvroof_attention_partials needs, 64-byte aligned both. */
kvroof_status kvroof_attention_partials_needed(const kvroof_attention_args* args, int64_t segment_begin,
                                               int64_t segment_end, int threads, size_t* workspace_bytes,
                                               size_t* partials_bytes);
kvroof_status kvroof_attention_partials(const kvroof_attention_args* args, int64_t segment_begin, int64_t segment_end,
                                        void* workspace, size_t workspace_bytes, int threads, void* partials,
                                        size_t partials_bytes, const char* isa);
/* Blocks in ascending order of their segments; they are used up. */
kvroof_status kvroof_attention_finish_partials(const kvroof_attention_args* args, void* const* blocks,
                                               size_t block_count, const char* isa);

/* ---- RoPE, ALiBi, projection (rope.hpp) ----------------------------------------------------------------------------
 */
kvroof_status kvroof_rope_inv_freq(int64_t d, double base, double factor, double* inv_freq); /* [d/2] */
/* d odd or below 2, or heads below 0: KVROOF_BAD_SHAPE. A position below 0, or one that times an inv_freq is not below
 * 2^31: KVROOF_BAD_POSITION. */
kvroof_status kvroof_rope(float* x, int64_t heads, int64_t head_stride, int64_t d, int64_t position,
                          const double* inv_freq, int interleaved, const char* isa);
kvroof_status kvroof_alibi_slopes(int64_t heads, int geometric, float* slopes); /* [heads] */
/* 0 where a size is below 1 or the packed weights would exceed 2^63 - 1 bytes. The calls below refuse a size below 0
 * and such an excess with KVROOF_BAD_SHAPE, a null pointer with KVROOF_BAD_VIEW. */
size_t kvroof_packed_weight_floats(int64_t outputs, int64_t inputs);
kvroof_status kvroof_pack_weights(const float* w, int64_t outputs, int64_t inputs, float* packed);
kvroof_status kvroof_project(const float* packed, const float* x, int64_t outputs, int64_t inputs, float* y,
                             const char* isa);

/* ---- multi-head latent attention (mla.hpp) -------------------------------------------------------------------------
 * Rows are kept by the caches above, of the shape that kvroof_mla_cache_shape gives; a sequence's `k` is what
 * kvroof_mla_compress wrote, `v` is not looked at. */
typedef struct kvroof_mla_shape {
  int64_t heads, nope_dim, rope_dim, value_dim, latent_dim;
  int64_t model_dim; /* 0: no compression */
} kvroof_mla_shape;

kvroof_status kvroof_mla_cache_shape(kvroof_mla_shape shape, kvroof_storage storage, kvroof_cache_shape* cache);

typedef struct kvroof_mla_matrix { /* row-major floats, and how many there are */
  const float* data;
  size_t floats;
} kvroof_mla_matrix;

typedef struct kvroof_mla_weights kvroof_mla_weights;
/* Copies w_uk [heads][nope][latent], w_uv [heads][value][latent] and, where model_dim is not 0, w_dkv [latent][model]
 * and w_kr [rope][model]. */
kvroof_status kvroof_mla_weights_create(kvroof_mla_shape shape, kvroof_mla_matrix w_uk, kvroof_mla_matrix w_uv,
                                        kvroof_mla_matrix w_dkv, kvroof_mla_matrix w_kr, kvroof_mla_weights** weights);
void kvroof_mla_weights_destroy(kvroof_mla_weights* weights); /* NULL is allowed */

/* x [n][model_dim], inv_freq [rope_dim/2] -> rows [n][latent_dim + rope_dim], to be appended to a cache. */
kvroof_status kvroof_mla_compress(const kvroof_mla_weights* weights, const float* x, int64_t n, int64_t first_position,
                                  const double* inv_freq, int interleaved, float* rows, int threads, const char* isa);

enum { KVROOF_MLA_ABSORBED = 0, KVROOF_MLA_RECONSTRUCT = 1 }; /* `form` below */
typedef struct kvroof_mla_args {                              /* q [n][heads][nope + rope], out [n][heads][value] */
  const kvroof_mla_weights* weights;
  kvroof_attention_options options;
  const kvroof_attention_sequence* sequences;
  size_t sequence_count;
  int mode; /* KVROOF_REPRODUCIBLE, or KVROOF_NATIVE: the absorbed form alone */
} kvroof_mla_args;
kvroof_status kvroof_mla_workspace_bytes(const kvroof_mla_args* args, int form, int threads, size_t* bytes);
kvroof_status kvroof_mla_attention(const kvroof_mla_args* args, int form, void* workspace, size_t workspace_bytes,
                                   int threads, const char* isa);

/* On the caller's own threads: for every phase 0 ... KVROOF_MLA_PHASES - 1 in order all parts 0 ... parts-1 in any
 * order, the next phase after all of them. The sequences, the weights and the workspace must outlive the work; the
 * options' arrays too. A phase or part out of range is KVROOF_BAD_SHAPE. */
#define KVROOF_MLA_PHASES 4
typedef struct kvroof_mla_work kvroof_mla_work;
kvroof_status kvroof_mla_work_create(const kvroof_mla_args* args, int form, int parts, void* workspace,
                                     size_t workspace_bytes, const char* isa, kvroof_mla_work** work);
kvroof_status kvroof_mla_run_part(const kvroof_mla_work* work, int phase, int part);
void kvroof_mla_work_destroy(kvroof_mla_work* work); /* NULL is allowed */

/* The three steps of the absorbed form apart. Queries q [tokens][heads][nope + rope] -> absorbed
 * [tokens][heads][latent + rope]; attention over the latent rows, which is kvroof_decode_attention and the calls beside
 * it with shape {heads, 1, latent + rope, latent}; latent [tokens][heads][latent] -> out [tokens][heads][value]. */
kvroof_status kvroof_mla_fold_queries(const kvroof_mla_weights* weights, const float* q, int64_t tokens,
                                      float* absorbed, int threads, const char* isa);
kvroof_status kvroof_mla_expand_latents(const kvroof_mla_weights* weights, const float* latent, int64_t tokens,
                                        float* out, int threads, const char* isa);

kvroof_status kvroof_mla_cache_bytes(const kvroof_mla_args* args, int64_t* bytes);
kvroof_status kvroof_mla_weight_bytes(kvroof_mla_shape shape, int64_t* bytes);
kvroof_status kvroof_mla_flops(const kvroof_mla_args* args, int form, int64_t* flops);

typedef struct kvroof_mla_costs { /* seconds, see MlaCosts */
  double absorbed_pass, absorbed_pair, fold_call, fold_token, reconstruct_pass, reconstruct_pair;
  int threads;
} kvroof_mla_costs;
typedef struct kvroof_mla_plan {
  int form;
  double absorbed_seconds, reconstruct_seconds; /* predicted */
} kvroof_mla_plan;
/* Times small runs of both forms; once per machine, storage and thread count. */
kvroof_status kvroof_mla_measure_costs(const kvroof_mla_weights* weights, kvroof_storage storage, int threads,
                                       const char* isa, kvroof_mla_costs* costs);
/* The form that `costs` predict to be faster for this call. */
kvroof_status kvroof_mla_choose(const kvroof_mla_args* args, const kvroof_mla_costs* costs, kvroof_mla_plan* plan);

#ifdef __cplusplus
}
#endif

#endif /* KVROOF_KVROOF_H */
