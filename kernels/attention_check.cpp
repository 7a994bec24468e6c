// Refusals of decode attention, all before anything is written, and the counts a caller needs beside it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/attention_split.hpp"
#include "kernels/kernels.hpp"

namespace kvroof {
namespace {

constexpr std::int64_t kMaxDim = std::int64_t{1} << 20;
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 20;
constexpr std::int64_t kMaxPosition = std::int64_t{1} << 48;  // segment indices keep to 40 levels of the merge tree

constexpr std::int64_t kMaxQueries = std::int64_t{1} << 40;  // n x heads of a group

std::string number(std::int64_t n) { return std::to_string(n); }

void check_shape(const AttentionShape& s) {
  const auto in_range = [](const char* name, std::int64_t value, std::int64_t limit) {
    if (value < 1 || value > limit)
      throw Error(ErrorCode::bad_shape, std::string(name) + " is " + number(value) + ": must be 1 to " + number(limit));
  };
  in_range("query_heads", s.query_heads, kMaxHeads);
  in_range("kv_heads", s.kv_heads, kMaxHeads);
  in_range("key_dim", s.key_dim, kMaxDim);
  in_range("value_dim", s.value_dim, kMaxDim);
  if (s.query_heads % s.kv_heads != 0)
    throw Error(ErrorCode::bad_shape, "query_heads " + number(s.query_heads) + " is not a multiple of kv_heads " +
                                          number(s.kv_heads) + ": every KV head serves the same number of query heads");
}

void check_options(const AttentionOptions& o) {
  if (!(std::fabs(o.scale) <= std::numeric_limits<float>::max()))
    throw Error(ErrorCode::bad_option,
                "scale is not set or not finite: pass it explicitly, for example 1/sqrt(key_dim)");
  if (o.window < 1)
    throw Error(ErrorCode::bad_option, "window is " + number(o.window) +
                                           ": must be at least 1 (it counts the query itself), or kUnlimitedWindow");
  if (o.kept_tokens < 0)
    throw Error(ErrorCode::bad_option, "kept_tokens is " + number(o.kept_tokens) + ": must be 0 or more");
  if (!(o.softcap > 0.0f)) throw Error(ErrorCode::bad_option, "softcap must be positive; infinity means none");
}

void check_count(std::int64_t n, const AttentionShape& shape, const std::string& where) {
  const std::int64_t limit = kMaxQueries / (shape.query_heads / shape.kv_heads);
  if (n < 0 || n > limit)
    throw Error(ErrorCode::bad_shape, where + ": n is " + number(n) + ": must be 0 to " + number(limit));
}

void check_runs(const KvView& kv, std::int64_t begin, std::int64_t end, const std::string& where) {
  std::int64_t at = begin;  // every position of [begin, end) must be there
  for (std::int64_t i = first_run_at(kv, begin); at < end; ++i) {
    if (i >= kv.run_count || kv.runs[i].first_position > at)
      throw Error(ErrorCode::bad_view, where + ": position " + number(at) + " is visible but no run holds it");
    at = kv.runs[i].first_position + kv.runs[i].rows;
  }
}

void check_latent(const AttentionArgs& args, const KvView& kv, const std::string& where) {
  const AttentionShape& s = args.shape;
  if (kv.k_storage != kv.v_storage || kv.k_row_stride != kv.v_row_stride)
    throw Error(ErrorCode::bad_view, where + ": V of a latent row is a part of the K row: same storage and stride");
  for (std::int64_t i = 0; i < kv.run_count; ++i)
    if (kv.runs[i].k != kv.runs[i].v)
      throw Error(ErrorCode::bad_view, where + ": V of a latent row starts where its K row does");
  if (args.expansion != nullptr) {
    const LatentExpansion& e = *args.expansion;
    if (s.kv_heads != s.query_heads)
      throw Error(ErrorCode::bad_shape, where + ": reconstruction gives every query head its own KV head");
    if (e.rope_dim < 0 || e.rope_dim % 2 != 0 || e.rope_dim >= s.key_dim)
      throw Error(ErrorCode::bad_shape,
                  where + ": rope_dim is " + number(e.rope_dim) + ": must be even, 0 or more and less than key_dim");
    if (e.w_uk == nullptr || e.w_uv == nullptr) throw Error(ErrorCode::bad_shape, where + ": w_uk or w_uv is null");
  } else if (s.kv_heads != 1 || s.value_dim != kv.latent_dim || s.key_dim < kv.latent_dim) {
    throw Error(ErrorCode::bad_shape,
                where + ": absorbed MLA has kv_heads 1, value_dim = latent_dim and key_dim = latent_dim + rope_dim");
  }
}

void check_view(const AttentionSequence& seq, const AttentionArgs& args, const std::string& where) {
  const KvView& kv = seq.kv;
  if (kv.end_position < seq.n || kv.end_position > kMaxPosition)
    throw Error(ErrorCode::bad_view, where + ": end_position " + number(kv.end_position) +
                                         " must be at least n = " + number(seq.n) + " and at most 2^48");
  const bool sliced = args.segment_begin > 0 || args.segment_end <= (kv.end_position - 1) / kSegmentRows;
  if (kv.run_count < (sliced ? 0 : 1) || (kv.run_count > 0 && kv.runs == nullptr))
    throw Error(ErrorCode::bad_view, where + ": no runs");
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < kv.run_count; ++i) {
    const RowRun& run = kv.runs[i];
    if (run.rows < 1 || run.first_position < end || run.rows > kv.end_position - run.first_position)
      throw Error(ErrorCode::bad_view, where + ": run " + number(i) +
                                           " is empty, out of order, overlaps the one before or passes end_position");
    const bool scales = kv.latent_dim == 0;
    if (run.k == nullptr || run.v == nullptr || (scales && kv.k_storage == Storage::int8 && run.k_scale == nullptr) ||
        (scales && kv.v_storage == Storage::int8 && run.v_scale == nullptr))
      throw Error(ErrorCode::bad_view,
                  where + ": run " + number(i) + " has a null pointer (int8 storage needs scales)");
    end = run.first_position + run.rows;
  }
  if (kv.latent_dim > 0)
    check_latent(args, kv, where);
  else if (args.expansion != nullptr)
    throw Error(ErrorCode::bad_view, where + ": reconstruction needs latent rows");
  const std::int64_t oldest = kv.end_position - seq.n;
  const std::int64_t begin = oldest < args.options.window ? 0 : oldest - args.options.window + 1;
  const std::int64_t slice_begin = std::min(args.segment_begin, kMaxPosition) * kSegmentRows;
  const std::int64_t slice_end = args.segment_end > kMaxPosition ? kv.end_position : args.segment_end * kSegmentRows;
  check_runs(kv, std::max(begin, slice_begin), std::min(kv.end_position, slice_end), where);
  check_runs(kv, slice_begin, std::min(std::min(args.options.kept_tokens, kv.end_position), slice_end), where);
}

}  // namespace

void attention_check(const AttentionArgs& args) {
  check_shape(args.shape);
  check_options(args.options);
  if (args.mode != Mode::reproducible && args.mode != Mode::native)
    throw Error(ErrorCode::bad_option,
                "mode is " + number(static_cast<std::int64_t>(args.mode)) + ": must be reproducible or native");
  if (args.mode == Mode::native && args.expansion != nullptr)
    throw Error(ErrorCode::bad_isa,
                "mode native cannot reconstruct from latent rows: no native kernel for it; use the "
                "absorbed form or mode reproducible");
  if (args.segment_begin < 0 || args.segment_end < args.segment_begin)
    throw Error(ErrorCode::bad_option,
                "segments [" + number(args.segment_begin) + ", " + number(args.segment_end) + ") are no range");
  if (args.sequences.empty()) return;
  const KvView& first = args.sequences[0].kv;
  for (std::size_t i = 0; i < args.sequences.size(); ++i) {
    const AttentionSequence& seq = args.sequences[i];
    const std::string where = "sequence " + std::to_string(i);
    check_count(seq.n, args.shape, where);
    if (seq.kv.k_storage > Storage::int8 || seq.kv.v_storage > Storage::int8)
      throw Error(ErrorCode::bad_view, where + ": storage is none of f32, f16, bf16, int8");
    if (seq.kv.k_storage != first.k_storage || seq.kv.v_storage != first.v_storage ||
        seq.kv.latent_dim != first.latent_dim)
      throw Error(ErrorCode::bad_view, where + ": all sequences of a call have the same storage types");
    if (seq.n == 0) continue;
    if (seq.q == nullptr || seq.out == nullptr) throw Error(ErrorCode::bad_view, where + ": q or out is null");
    check_view(seq, args, where);
  }
}

std::size_t attention_workspace_bytes(const AttentionArgs& args, int parts) {
  if (parts < 1) throw Error(ErrorCode::bad_shape, "parts is " + std::to_string(parts) + ": must be at least 1");
  check_shape(args.shape);
  for (const AttentionSequence& seq : args.sequences) check_count(seq.n, args.shape, "a sequence");
  if (args.sequences.empty()) return 0;
  const AttentionSplit split = make_attention_split(args, parts);
  return split.part_bytes * static_cast<std::size_t>(parts) + split.store_bytes;
}

namespace {

// Rows of one sequence that some query sees, and (query, row) pairs over its n queries.
struct Visible {
  std::int64_t rows = 0, pairs = 0;
};

Visible visible_rows(const AttentionSequence& seq, const AttentionOptions& options) {
  Visible v;
  if (seq.n == 0) return v;
  for (std::int64_t r = 0; r < seq.n; ++r) {
    const std::int64_t i = seq.kv.end_position - seq.n + r;
    const std::int64_t begin = i < options.window ? 0 : i - options.window + 1;
    const std::int64_t kept = std::min(options.kept_tokens, begin);
    v.pairs += kept + i + 1 - begin;
    if (r == 0) v.rows = kept + seq.kv.end_position - begin;
  }
  return v;
}

std::int64_t row_bytes(const AttentionArgs& args, const KvView& kv) {
  const AttentionShape& shape = args.shape;
  const auto one = [](Storage s, std::int64_t dim) {
    return dim * static_cast<std::int64_t>(storage_bytes(s)) + (s == Storage::int8 ? 4 : 0);
  };
  if (kv.latent_dim > 0) {
    const std::int64_t rope = args.expansion != nullptr ? args.expansion->rope_dim : shape.key_dim - kv.latent_dim;
    return latent_row_bytes(kv.k_storage, kv.latent_dim, rope);
  }
  return shape.kv_heads * (one(kv.k_storage, shape.key_dim) + one(kv.v_storage, shape.value_dim));
}

}  // namespace

std::int64_t latent_row_bytes(Storage storage, std::int64_t latent_dim, std::int64_t rope_dim) {
  if (storage == Storage::int8) return latent_dim + 4 * ((latent_dim + 127) / 128) + 2 * rope_dim;
  return static_cast<std::int64_t>(storage_bytes(storage)) * (latent_dim + rope_dim);
}

std::int64_t attention_bytes(const AttentionArgs& args) {
  std::int64_t bytes = 0;
  for (const AttentionSequence& seq : args.sequences)
    bytes += visible_rows(seq, args.options).rows * row_bytes(args, seq.kv);
  return bytes;
}

std::int64_t attention_flops(const AttentionArgs& args) {
  std::int64_t pairs = 0;
  for (const AttentionSequence& seq : args.sequences) pairs += visible_rows(seq, args.options).pairs;
  std::int64_t flops = pairs * args.shape.query_heads * 2 * (args.shape.key_dim + args.shape.value_dim);
  if (args.expansion != nullptr) {  // every row once per head
    for (const AttentionSequence& seq : args.sequences)
      flops += visible_rows(seq, args.options).rows * args.shape.query_heads * 2 * seq.kv.latent_dim *
               (args.shape.key_dim - args.expansion->rope_dim + args.shape.value_dim);
  }
  return flops;
}

}  // namespace kvroof
