// kvroof.h over the C++ interface: errors, attention, RoPE and projection. The caches are in c_api_caches.cpp.
#include "kernels/c_api.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "kernels/rope.hpp"

using namespace kvroof;
using namespace kvroof::c_api;

namespace {

// Arrays of these are handed through without copying, so both sides must agree on every byte.
#define SAME_FIELD(c, cpp, field) \
  static_assert(offsetof(c, field) == offsetof(cpp, field) && sizeof(c::field) == sizeof(cpp::field), #field)
#define SAME_SIZE(c, cpp) static_assert(sizeof(c) == sizeof(cpp) && alignof(c) == alignof(cpp), #c)
SAME_SIZE(kvroof_row_run, RowRun);
SAME_FIELD(kvroof_row_run, RowRun, k);
SAME_FIELD(kvroof_row_run, RowRun, v);
SAME_FIELD(kvroof_row_run, RowRun, k_scale);
SAME_FIELD(kvroof_row_run, RowRun, v_scale);
SAME_FIELD(kvroof_row_run, RowRun, first_position);
SAME_FIELD(kvroof_row_run, RowRun, rows);
SAME_SIZE(kvroof_view, KvView);
SAME_FIELD(kvroof_view, KvView, runs);
SAME_FIELD(kvroof_view, KvView, run_count);
SAME_FIELD(kvroof_view, KvView, end_position);
SAME_FIELD(kvroof_view, KvView, k_storage);
SAME_FIELD(kvroof_view, KvView, v_storage);
SAME_FIELD(kvroof_view, KvView, k_row_stride);
SAME_FIELD(kvroof_view, KvView, k_head_stride);
SAME_FIELD(kvroof_view, KvView, v_row_stride);
SAME_FIELD(kvroof_view, KvView, v_head_stride);
SAME_FIELD(kvroof_view, KvView, k_scale_row_stride);
SAME_FIELD(kvroof_view, KvView, k_scale_head_stride);
SAME_FIELD(kvroof_view, KvView, v_scale_row_stride);
SAME_FIELD(kvroof_view, KvView, v_scale_head_stride);
SAME_FIELD(kvroof_view, KvView, latent_dim);
SAME_SIZE(kvroof_attention_sequence, AttentionSequence);
SAME_FIELD(kvroof_attention_sequence, AttentionSequence, q);
SAME_FIELD(kvroof_attention_sequence, AttentionSequence, q_row_stride);
SAME_FIELD(kvroof_attention_sequence, AttentionSequence, q_head_stride);
SAME_FIELD(kvroof_attention_sequence, AttentionSequence, n);
SAME_FIELD(kvroof_attention_sequence, AttentionSequence, kv);
SAME_FIELD(kvroof_attention_sequence, AttentionSequence, out);
SAME_FIELD(kvroof_attention_sequence, AttentionSequence, out_row_stride);
SAME_FIELD(kvroof_attention_sequence, AttentionSequence, out_head_stride);
SAME_FIELD(kvroof_attention_sequence, AttentionSequence, lse);
static_assert(kUnlimitedWindow == KVROOF_UNLIMITED_WINDOW);
static_assert(static_cast<int>(Storage::f16) == KVROOF_F16 && static_cast<int>(Storage::bf16) == KVROOF_BF16 &&
              static_cast<int>(Storage::int8) == KVROOF_INT8);
static_assert(static_cast<int>(Mode::reproducible) == KVROOF_REPRODUCIBLE &&
              static_cast<int>(Mode::native) == KVROOF_NATIVE);
static_assert(static_cast<int>(ErrorCode::out_of_memory) + 1 == KVROOF_OUT_OF_MEMORY);

// A fixed buffer, so that reporting that memory has run out needs none.
thread_local char last_error[512] = "";

AttentionArgs args_of(const kvroof_attention_args* source) {
  const kvroof_attention_args& a = need(source, "args");
  AttentionArgs args;
  args.shape = {a.shape.query_heads, a.shape.kv_heads, a.shape.key_dim, a.shape.value_dim};
  args.options = {a.options.scale,   a.options.window,       a.options.kept_tokens,
                  a.options.softcap, a.options.alibi_slopes, a.options.sink_logits};
  if (a.sequence_count > 0) need(a.sequences, "sequences");
  args.sequences = {reinterpret_cast<const AttentionSequence*>(a.sequences), a.sequence_count};
  args.mode = static_cast<Mode>(a.mode);
  return args;
}

// Storages and mode are enums on the other side, where an unknown value must not arrive.
AttentionArgs known(const kvroof_attention_args* source) {
  const AttentionArgs args = args_of(source);
  mode_of(source->mode);
  for (std::size_t i = 0; i < source->sequence_count; ++i) {
    storage(source->sequences[i].kv.k_storage);
    storage(source->sequences[i].kv.v_storage);
  }
  return args;
}

AttentionArgs checked(const kvroof_attention_args* source) {
  const AttentionArgs args = known(source);
  attention_check(args);
  return args;
}

AttentionArgs slice_of(const kvroof_attention_args* source, std::int64_t begin, std::int64_t end) {
  AttentionArgs args = known(source);
  args.segment_begin = begin;
  args.segment_end = end;
  return args;
}

// The scale of row r of a bulk conversion; null where there is none.
template <typename T>
T* scale_at(T* scales, std::int64_t r) {
  return scales == nullptr ? nullptr : scales + r;
}

void require_rows(std::int64_t n, Storage s, const float* scales) {
  if (n < 0) {
    throw Error(ErrorCode::bad_shape, "kvroof: " + std::to_string(n) + " rows to convert, must be at least 0");
  }
  if (n > 0 && s == Storage::int8) need(scales, "scales");
}

void require_parts(int parts) {
  if (parts < 1) {
    throw Error(ErrorCode::bad_shape, "kvroof: parts is " + std::to_string(parts) + ", must be at least 1");
  }
}

void require_part(int parts, int part) {
  require_parts(parts);
  if (part < 0 || part >= parts) {
    throw Error(ErrorCode::bad_shape,
                "kvroof: part is " + std::to_string(part) + ", must be from 0 to " + std::to_string(parts - 1));
  }
}

void require_rope(std::int64_t heads, std::int64_t d, std::int64_t position, const double* inv_freq) {
  if (heads < 0 || d < 2 || d % 2 != 0) {
    throw Error(ErrorCode::bad_shape, "kvroof: rope of " + std::to_string(heads) + " heads of " + std::to_string(d) +
                                          " values, must be at least 0 heads of an even number of at least 2");
  }
  if (position < 0) {
    throw Error(ErrorCode::bad_position, "kvroof: position is " + std::to_string(position) + ", must be at least 0");
  }
  for (std::int64_t i = 0; i < d / 2; ++i) {
    if (!(std::fabs(static_cast<double>(position) * inv_freq[i]) < 2147483648.0)) {
      throw Error(ErrorCode::bad_position, "kvroof: position " + std::to_string(position) + " times inv_freq[" +
                                               std::to_string(i) + "] must be below 2^31");
    }
  }
}

// False where a size is negative or the packed weights, padded to whole lanes, exceed 2^63 - 1 bytes.
bool weights_fit(std::int64_t outputs, std::int64_t inputs) {
  std::int64_t padded = 0, floats = 0, bytes = 0;
  return outputs >= 0 && inputs >= 0 && !__builtin_add_overflow(outputs, kLanes - 1, &padded) &&
         !__builtin_mul_overflow(padded / kLanes * kLanes, inputs, &floats) &&
         !__builtin_mul_overflow(floats, std::int64_t{sizeof(float)}, &bytes);
}

void require_weights(std::int64_t outputs, std::int64_t inputs) {
  if (!weights_fit(outputs, inputs)) {
    throw Error(ErrorCode::bad_shape, "kvroof: weights of " + std::to_string(outputs) + " outputs and " +
                                          std::to_string(inputs) +
                                          " inputs, must be at least 0 and below 2^63 bytes in all");
  }
}

}  // namespace

kvroof_status kvroof::c_api::refuse(kvroof_status status, const char* text) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s", text);
  return status;
}

extern "C" {

// ---- errors and instruction sets ------------------------------------------------------------------------------------

const char* kvroof_status_name(kvroof_status status) {
  if (status == KVROOF_OK) return "ok";
  if (status < KVROOF_OK || status >= KVROOF_INTERNAL) return "internal";
  return error_name(static_cast<ErrorCode>(static_cast<int>(status) - 1));
}

const char* kvroof_last_error(void) { return last_error; }

int kvroof_definition(void) { return kDefinition; }

kvroof_status kvroof_default_isa(const char** name) {
  return guarded([&] { need(name, "name") = isa_name(default_isa()); });
}

// ---- rows -----------------------------------------------------------------------------------------------------------

kvroof_status kvroof_store_row(kvroof_storage to_storage, const float* from, size_t d, void* to, float* scale,
                               const char* isa) {
  return guarded([&] {
    const Storage s = storage(to_storage);
    if (s == Storage::int8) need(scale, "scale");
    store_row(s, &need(from, "from"), d, &need(static_cast<std::byte*>(to), "to"), scale, isa_of(isa));
  });
}

kvroof_status kvroof_load_row(kvroof_storage from_storage, const void* from, const float* scale, size_t d, float* to,
                              const char* isa) {
  return guarded([&] {
    const Storage s = storage(from_storage);
    if (s == Storage::int8) need(scale, "scale");
    load_row(s, &need(static_cast<const std::byte*>(from), "from"), scale, d, &need(to, "to"), isa_of(isa));
  });
}

kvroof_status kvroof_store_rows(kvroof_storage to_storage, const float* from, int64_t from_stride, int64_t n, size_t d,
                                void* to, int64_t to_stride, float* scales, const char* isa) {
  return guarded([&] {
    const Storage s = storage(to_storage);
    require_rows(n, s, scales);
    const Isa with = isa_of(isa);
    if (n == 0) return;
    need(from, "from");
    std::byte* rows = &need(static_cast<std::byte*>(to), "to");
    for (std::int64_t r = 0; r < n; ++r) {
      store_row(s, from + r * from_stride, d, rows + r * to_stride, scale_at(scales, r), with);
    }
  });
}

kvroof_status kvroof_load_rows(kvroof_storage from_storage, const void* from, int64_t from_stride, const float* scales,
                               int64_t n, size_t d, float* to, int64_t to_stride, const char* isa) {
  return guarded([&] {
    const Storage s = storage(from_storage);
    require_rows(n, s, scales);
    const Isa with = isa_of(isa);
    if (n == 0) return;
    const std::byte* rows = &need(static_cast<const std::byte*>(from), "from");
    need(to, "to");
    for (std::int64_t r = 0; r < n; ++r) {
      load_row(s, rows + r * from_stride, scale_at(scales, r), d, to + r * to_stride, with);
    }
  });
}

// ---- decode attention -----------------------------------------------------------------------------------------------

kvroof_attention_options kvroof_attention_defaults(float scale) {
  const AttentionOptions o;
  return {scale, o.window, o.kept_tokens, o.softcap, o.alibi_slopes, o.sink_logits};
}

kvroof_status kvroof_native_check(const char* isa, kvroof_storage k_storage, kvroof_storage v_storage) {
  return guarded([&] {
    const std::string missing = native_missing(isa_of(isa), storage(k_storage), storage(v_storage));
    if (!missing.empty()) throw Error(ErrorCode::bad_isa, "kvroof: " + missing);
  });
}

kvroof_status kvroof_attention_workspace_bytes(const kvroof_attention_args* args, int parts, size_t* bytes) {
  return guarded([&] {
    require_parts(parts);
    need(bytes, "bytes") = attention_workspace_bytes(checked(args), parts);
  });
}

kvroof_status kvroof_decode_attention(const kvroof_attention_args* args, void* workspace, size_t workspace_bytes,
                                      int threads, const char* isa) {
  return guarded([&] {
    require_parts(threads);
    decode_attention(checked(args), lent(workspace, workspace_bytes), threads, isa_of(isa));
  });
}

kvroof_status kvroof_attention_run_part(const kvroof_attention_args* args, int parts, int part, void* workspace,
                                        const char* isa) {
  return guarded([&] {
    require_part(parts, part);
    attention_run_part(args_of(args), parts, part, static_cast<std::byte*>(workspace), isa_of(isa));
  });
}

kvroof_status kvroof_attention_merge_part(const kvroof_attention_args* args, int parts, int part, void* workspace,
                                          const char* isa) {
  return guarded([&] {
    require_part(parts, part);
    attention_merge_part(args_of(args), parts, part, static_cast<std::byte*>(workspace), isa_of(isa));
  });
}

kvroof_status kvroof_attention_bytes(const kvroof_attention_args* args, int64_t* bytes) {
  return guarded([&] { need(bytes, "bytes") = attention_bytes(checked(args)); });
}

kvroof_status kvroof_attention_flops(const kvroof_attention_args* args, int64_t* flops) {
  return guarded([&] { need(flops, "flops") = attention_flops(checked(args)); });
}

int64_t kvroof_segment_rows(void) { return kSegmentRows; }

kvroof_status kvroof_attention_partials_needed(const kvroof_attention_args* args, int64_t segment_begin,
                                               int64_t segment_end, int threads, size_t* workspace_bytes,
                                               size_t* partials_bytes) {
  return guarded([&] {
    require_parts(threads);
    const AttentionArgs slice = slice_of(args, segment_begin, segment_end);
    attention_check(slice);
    std::size_t& workspace = need(workspace_bytes, "workspace_bytes");
    need(partials_bytes, "partials_bytes") = attention_partials_bytes(slice);
    workspace = attention_workspace_bytes(slice, threads);
  });
}

kvroof_status kvroof_attention_partials(const kvroof_attention_args* args, int64_t segment_begin, int64_t segment_end,
                                        void* workspace, size_t workspace_bytes, int threads, void* partials,
                                        size_t partials_bytes, const char* isa) {
  return guarded([&] {
    require_parts(threads);
    attention_partials(slice_of(args, segment_begin, segment_end), lent(workspace, workspace_bytes), threads,
                       lent(partials, partials_bytes), isa_of(isa));
  });
}

kvroof_status kvroof_attention_finish_partials(const kvroof_attention_args* args, void* const* blocks,
                                               size_t block_count, const char* isa) {
  return guarded([&] {
    const AttentionArgs whole = known(args);
    std::vector<std::byte*> list;
    list.reserve(block_count);
    for (std::size_t b = 0; b < block_count; ++b) list.push_back(static_cast<std::byte*>((&need(blocks, "blocks"))[b]));
    attention_finish_partials(whole, list, isa_of(isa));
  });
}

// ---- RoPE, ALiBi, projection ----------------------------------------------------------------------------------------

kvroof_status kvroof_rope_inv_freq(int64_t d, double base, double factor, double* inv_freq) {
  return guarded([&] {
    need(inv_freq, "inv_freq");
    const std::vector<double> values = rope_inv_freq(d, base, factor);
    std::copy(values.begin(), values.end(), inv_freq);
  });
}

kvroof_status kvroof_rope(float* x, int64_t heads, int64_t head_stride, int64_t d, int64_t position,
                          const double* inv_freq, int interleaved, const char* isa) {
  return guarded([&] {
    need(x, "x");
    need(inv_freq, "inv_freq");
    require_rope(heads, d, position, inv_freq);
    rope(x, heads, head_stride, d, position, inv_freq,
         interleaved != 0 ? RopePairing::interleaved : RopePairing::half_split, isa_of(isa));
  });
}

kvroof_status kvroof_alibi_slopes(int64_t heads, int geometric, float* slopes) {
  return guarded([&] {
    need(slopes, "slopes");
    const std::vector<float> values =
        alibi_slopes(heads, geometric != 0 ? AlibiRule::geometric : AlibiRule::interleaved);
    std::copy(values.begin(), values.end(), slopes);
  });
}

size_t kvroof_packed_weight_floats(int64_t outputs, int64_t inputs) {
  return weights_fit(outputs, inputs) ? packed_weight_floats(outputs, inputs) : 0;
}

kvroof_status kvroof_pack_weights(const float* w, int64_t outputs, int64_t inputs, float* packed) {
  return guarded([&] {
    need(w, "w");
    need(packed, "packed");
    require_weights(outputs, inputs);
    pack_weights(w, outputs, inputs, packed);
  });
}

kvroof_status kvroof_project(const float* packed, const float* x, int64_t outputs, int64_t inputs, float* y,
                             const char* isa) {
  return guarded([&] {
    need(packed, "packed");
    need(x, "x");
    need(y, "y");
    require_weights(outputs, inputs);
    project(packed, x, outputs, inputs, y, isa_of(isa));
  });
}

}  // extern "C"
