#include "bench/mla_run.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>

#include "bench/rivals/scalar_storage.hpp"
#include "bench/threads.hpp"
#include "reference/inputs.hpp"
#include "reference/mla.hpp"
#include "reference/mla_row.hpp"

namespace kvroof::bench {
namespace {

constexpr std::uint64_t kWeightSeed = 300;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

std::int64_t row_bytes(const DecodeCase& c) { return latent_row_bytes(c.storage, c.latent_dim, c.rope_dim); }

MlaForm form_of(MlaKind kind) { return kind == MlaKind::reconstruct ? MlaForm::reconstruct : MlaForm::absorbed; }

// Float64 attention of one head with its key weights folded into the query: T rows of d_c + rope instead of a product
// with W_UK and W_UV for each.
reference::OracleAnswer folded_answer(const reference::MlaProblem& p) {
  const std::int64_t d_c = p.shape.latent_dim, rope = p.shape.rope_dim, nope = p.shape.nope_dim;
  std::vector<double> q(size(d_c), 0.0), sum(size(d_c), 0.0), scores(size(p.T));
  for (std::int64_t d = 0; d < nope; ++d)
    for (std::int64_t i = 0; i < d_c; ++i)
      q[size(i)] += static_cast<double>(p.q[size(d)]) * static_cast<double>(p.w_uk[size(d * d_c + i)]);
  double largest = -INFINITY, total = 0;
  for (std::int64_t t = 0; t < p.T; ++t) {
    double s = 0;
    for (std::int64_t i = 0; i < d_c; ++i) s += q[size(i)] * static_cast<double>(p.latent[size(t * d_c + i)]);
    for (std::int64_t i = 0; i < rope; ++i)
      s += static_cast<double>(p.q[size(nope + i)]) * static_cast<double>(p.rope_key[size(t * rope + i)]);
    scores[size(t)] = s * static_cast<double>(p.scale);
    largest = std::max(largest, scores[size(t)]);
  }
  for (std::int64_t t = 0; t < p.T; ++t) {
    const double weight = std::exp(scores[size(t)] - largest);
    total += weight;
    for (std::int64_t i = 0; i < d_c; ++i) sum[size(i)] += weight * static_cast<double>(p.latent[size(t * d_c + i)]);
  }
  reference::OracleAnswer answer;
  double peak = 0;
  for (std::int64_t d = 0; d < p.shape.value_dim; ++d) {
    double x = 0;
    for (std::int64_t i = 0; i < d_c; ++i) x += static_cast<double>(p.w_uv[size(d * d_c + i)]) * sum[size(i)];
    answer.out.push_back(x / total);
    peak = std::max(peak, std::abs(x / total));
  }
  // Of f32 with sums of T terms, as for the rivals (decode_setup.cpp).
  const double relative = 1e-5 + 8 * std::sqrt(static_cast<double>(p.T)) * 0x1p-24;
  answer.out_bound.assign(answer.out.size(), relative * peak);
  answer.lse = {largest + std::log(total)};
  answer.lse_bound = {1e-5 * (1 + std::abs(answer.lse[0]))};
  return answer;
}

// The same in native mode, where the folds are the twin's bit for bit: its bound of the latent result, through W_UV.
reference::OracleAnswer native_step_answer(const reference::MlaProblem& p) {
  const reference::OracleAnswer latent =
      reference::oracle_attention(reference::mla_absorbed_problem(p), reference::kNativeBf16Arithmetic);
  const double chain = reference::roundings(static_cast<double>(p.shape.latent_dim));
  reference::OracleAnswer answer;
  answer.lse = latent.lse;
  answer.lse_bound = latent.lse_bound;
  for (std::int64_t d = 0; d < p.shape.value_dim; ++d) {
    double out = 0, bound = 0;
    for (std::int64_t c = 0; c < p.shape.latent_dim; ++c) {
      const double w = static_cast<double>(p.w_uv[size(d * p.shape.latent_dim + c)]);
      out += w * latent.out[size(c)];
      bound += std::abs(w) * (latent.out_bound[size(c)] * (1 + chain) + chain * std::abs(latent.out[size(c)]));
    }
    answer.out.push_back(out);
    answer.out_bound.push_back(bound);
  }
  return answer;
}

}  // namespace

const char* mla_kernel_name(MlaKind kind) {
  return kind == MlaKind::absorbed        ? "mla_absorbed"
         : kind == MlaKind::absorbed_step ? "mla_absorbed_step"
                                          : "mla_reconstruct";
}

MlaShape mla_bench_shape(std::int64_t heads) {
  MlaShape shape;
  shape.heads = heads;
  shape.nope_dim = 128;
  shape.rope_dim = 64;
  shape.value_dim = 128;
  shape.latent_dim = 512;
  return shape;
}

DecodeCase mla_case(MlaKind kind, std::int64_t heads) {
  const MlaShape s = mla_bench_shape(heads);
  const std::string name = heads == 128 ? "MLA" : "MLA" + std::to_string(heads);
  DecodeCase c;
  c.kernel = mla_kernel_name(kind);
  c.latent_dim = s.latent_dim;
  c.rope_dim = s.rope_dim;
  c.shape = kind == MlaKind::absorbed ? ShapeCase{name, s.heads, 1, s.latent_dim + s.rope_dim, s.latent_dim}
                                      : ShapeCase{name, s.heads, 1, s.nope_dim + s.rope_dim, s.value_dim};
  return c;
}

DecodeCase mla_replaced_case(const DecodeCase& c) {
  const MlaShape s = mla_bench_shape(c.shape.query_heads);
  DecodeCase replaced;
  replaced.shape = {"MHA" + std::to_string(s.heads), s.heads, s.heads, s.nope_dim, s.value_dim};
  replaced.storage = c.storage;
  replaced.T = c.T;
  return replaced;
}

std::int64_t mla_case_bytes(MlaKind kind, const DecodeCase& c) {
  const std::int64_t cache = c.T * row_bytes(c);
  return kind == MlaKind::absorbed_step ? cache + mla_weight_bytes(mla_bench_shape(c.shape.query_heads)) : cache;
}

std::int64_t mla_case_flops(MlaKind kind, const DecodeCase& c) {
  const MlaShape s = mla_bench_shape(c.shape.query_heads);
  const std::int64_t pairs = s.heads * (c.n * c.T - c.n * (c.n - 1) / 2);  // (head, query, visible row)
  const std::int64_t absorbed = pairs * 2 * (2 * s.latent_dim + s.rope_dim);
  const std::int64_t weights = s.heads * 2 * s.latent_dim * (s.nope_dim + s.value_dim);  // one vector through both
  switch (kind) {
    case MlaKind::absorbed: return absorbed;
    case MlaKind::absorbed_step: return absorbed + c.n * weights;
    case MlaKind::reconstruct: break;
  }
  return c.T * weights + pairs * 2 * (s.nope_dim + s.rope_dim + s.value_dim);
}

std::string MlaInputs::make(std::int64_t copies, std::int64_t room_bytes) {
  const std::int64_t uk = shape_.heads * shape_.nope_dim * shape_.latent_dim;
  const std::int64_t uv = shape_.heads * shape_.value_dim * shape_.latent_dim;
  const std::int64_t more = std::max<std::int64_t>(0, copies - static_cast<std::int64_t>(copies_.size()));
  const std::int64_t needed = 4 * (more * (2 * uk + uv) + (w_uk_.empty() ? uk + uv : 0));
  if (needed > room_bytes) {
    char text[100];
    std::snprintf(text, sizeof text, "needs %.2f GiB for weights, %.2f GiB free",
                  static_cast<double>(needed) / (1 << 30), static_cast<double>(room_bytes) / (1 << 30));
    return text;
  }
  if (w_uk_.empty()) {
    // Keys and values then are of the size of the latent's elements.
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.latent_dim));
    w_uk_.resize(size(uk));
    w_uv_.resize(size(uv));
    for (std::size_t i = 0; i < w_uk_.size(); ++i) w_uk_[i] = scale * reference::uniform(kWeightSeed, i);
    for (std::size_t i = 0; i < w_uv_.size(); ++i) w_uv_[i] = scale * reference::uniform(kWeightSeed + 1, i);
  }
  MlaWeightSource source;
  source.w_uk = w_uk_;
  source.w_uv = w_uv_;
  try {
    for (std::int64_t i = 0; i < more; ++i) copies_.push_back(std::make_unique<MlaWeights>(shape_, source));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string prepare_latents(Arena& arena, const DecodeCase& c, CacheSet& set) {
  set.k_bytes = c.k_bytes();
  set.v_bytes = 0;
  if (c.storage != Storage::int8) return arena.prepare(c.storage, set, c.threads);
  std::string reason;
  std::byte* const base = arena.scratch(2, set.total_bytes(), reason);
  if (base == nullptr) return reason;
  const std::int64_t width = c.latent_dim + c.rope_dim;
  // Each thread writes what it will read, in every cache; all caches hold the same rows.
  run_team(c.threads, [&](int p) {
    std::vector<float> values(size(width));
    std::vector<std::byte> row(size(row_bytes(c)));
    for (std::int64_t t = c.T * p / c.threads; t < c.T * (p + 1) / c.threads; ++t) {
      for (std::int64_t i = 0; i < width; ++i)
        values[size(i)] =
            reference::uniform(100 + static_cast<std::uint64_t>(c.storage), static_cast<std::uint64_t>(t * width + i));
      reference::mla_encode_row(reference::StorageKind::int8, values.data(), c.latent_dim, c.rope_dim, row.data());
      for (std::int64_t i = 0; i < set.count; ++i)
        std::memcpy(base + size(i) * set.slot_bytes() + size(t) * row.size(), row.data(), row.size());
    }
  });
  set.base = base;
  return "";
}

MlaRun::MlaRun(MlaKind kind, const DecodeCase& c, const MlaInputs& inputs, const CacheSet& set)
    : kind_(kind), c_(c), inputs_(inputs) {
  const MlaShape& s = inputs.shape();
  const std::int64_t Hq = c.shape.query_heads, Dk = c.shape.key_dim, Dv = c.shape.value_dim;
  q_ = query_values(size(c.n * Hq * Dk));
  out_.resize(size(c.n * Hq * Dv));
  lse_.resize(size(c.n * Hq));
  options_.scale = 1.0f / std::sqrt(static_cast<float>(s.nope_dim + s.rope_dim));
  const RowLayout layout = row_layout(mla_cache_shape(s, c.storage), RowOrder::head_major, c.T);
  for (std::int64_t i = 0; i < set.count; ++i) runs_.push_back(row_run(layout, set.k(i), 0, 0, c.T));
  for (std::int64_t i = 0; i < set.count; ++i) {
    AttentionSequence sequence;
    sequence.q = q_.data();
    sequence.q_row_stride = Hq * Dk;
    sequence.q_head_stride = Dk;
    sequence.n = c.n;
    sequence.kv = layout.strides;
    sequence.kv.runs = &runs_[size(i)];
    sequence.kv.run_count = 1;
    sequence.kv.end_position = c.T;
    sequence.out = out_.data();
    sequence.out_row_stride = Hq * Dv;
    sequence.out_head_stride = Dv;
    sequence.lse = lse_.data();
    sequences_.push_back(sequence);
  }
  const std::size_t bytes = kind == MlaKind::absorbed ? attention_workspace_bytes(absorbed_args(0), c.threads)
                                                      : mla_workspace_bytes(args(0), form_of(kind), c.threads);
  workspace_.resize(bytes + 64);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(workspace_.data()) % 64;
  aligned_ = std::span<std::byte>(workspace_.data() + (misaligned == 0 ? 0 : 64 - misaligned), bytes);
}

MlaArgs MlaRun::args(std::int64_t visit) const {
  MlaArgs args;
  args.weights = &inputs_.weights(visit);
  args.options = options_;
  args.sequences = {&sequences_[size(visit) % sequences_.size()], 1};
  args.mode = c_.mode;
  return args;
}

AttentionArgs MlaRun::absorbed_args(std::int64_t visit) const {
  AttentionArgs args = mla_absorbed_args(inputs_.shape(), options_, {&sequences_[size(visit) % sequences_.size()], 1});
  args.mode = c_.mode;
  return args;
}

void MlaRun::call(std::int64_t visit) {
  if (kind_ == MlaKind::absorbed) {
    decode_attention(absorbed_args(visit), aligned_, c_.threads, c_.isa);
  } else if (kind_ == MlaKind::absorbed_step) {
    mla_absorbed_step(args(visit), aligned_, c_.threads, c_.isa);
  } else {
    mla_attention(args(visit), MlaForm::reconstruct, aligned_, c_.threads, c_.isa);
  }
}

std::int64_t MlaRun::bytes() const {
  if (kind_ == MlaKind::absorbed) return attention_bytes(absorbed_args(0));
  return mla_cache_bytes(args(0)) + (kind_ == MlaKind::absorbed_step ? mla_weight_bytes(inputs_.shape()) : 0);
}

std::int64_t MlaRun::flops() const {
  if (kind_ == MlaKind::absorbed) return attention_flops(absorbed_args(0));
  return mla_flops(args(0), form_of(kind_));
}

std::string MlaRun::hash() const { return hash_of(out_); }

// The right answer for one query that sees the first `visible` of `rows`.
reference::OracleAnswer MlaRun::answer(const float* q, const std::vector<float>& rows, std::int64_t head,
                                       std::int64_t visible) const {
  const MlaShape& s = inputs_.shape();
  const std::int64_t width = s.latent_dim + s.rope_dim;
  if (kind_ == MlaKind::absorbed) {
    reference::AttentionProblem p;
    p.query_heads = p.kv_heads = p.n = 1;
    p.key_dim = width;
    p.value_dim = s.latent_dim;
    p.T = visible;
    p.scale = options_.scale;
    p.q.assign(q, q + width);
    p.k.assign(rows.begin(), rows.begin() + visible * width);
    for (std::int64_t t = 0; t < visible; ++t)
      p.v.insert(p.v.end(), rows.begin() + t * width, rows.begin() + t * width + s.latent_dim);
    return reference::oracle_attention(p, arithmetic_of(c_.mode));
  }
  reference::MlaProblem p;
  p.shape.heads = 1;
  p.shape.nope_dim = s.nope_dim;
  p.shape.rope_dim = s.rope_dim;
  p.shape.value_dim = s.value_dim;
  p.shape.latent_dim = s.latent_dim;
  p.n = 1;
  p.T = visible;
  p.scale = options_.scale;
  p.q.assign(q, q + s.nope_dim + s.rope_dim);
  for (std::int64_t t = 0; t < visible; ++t) {
    const float* const row = rows.data() + t * width;
    p.latent.insert(p.latent.end(), row, row + s.latent_dim);
    p.rope_key.insert(p.rope_key.end(), row + s.latent_dim, row + width);
  }
  const auto of_head = [&](const std::vector<float>& all, std::int64_t outputs) {
    const auto first = all.begin() + head * outputs * s.latent_dim;
    return std::vector<float>(first, first + outputs * s.latent_dim);
  };
  p.w_uk = of_head(inputs_.w_uk(), s.nope_dim);
  p.w_uv = of_head(inputs_.w_uv(), s.value_dim);
  const auto form = kind_ == MlaKind::reconstruct ? reference::MlaForm::reconstruct : reference::MlaForm::absorbed;
  if (c_.mode == Mode::native) return native_step_answer(p);
  return c_.T <= kOracleRows ? reference::mla_oracle(form, p) : folded_answer(p);
}

std::vector<DecodeSetup::Sample> MlaRun::oracle_samples() const {
  const MlaShape& s = inputs_.shape();
  const std::int64_t width = s.latent_dim + s.rope_dim, bytes = row_bytes(c_);
  std::vector<float> rows(size(c_.T * width));
  for (std::int64_t t = 0; t < c_.T; ++t)
    reference::mla_decode_row(scalar_storage(c_.storage), runs_[0].k + t * bytes, s.latent_dim, s.rope_dim,
                              rows.data() + t * width);
  std::vector<DecodeSetup::Sample> samples;
  for (const std::int64_t r : std::set<std::int64_t>{0, c_.n - 1}) {
    for (const std::int64_t head : {std::int64_t{0}, s.heads - 1}) {
      const float* const q = q_.data() + (r * s.heads + head) * c_.shape.key_dim;
      samples.push_back({0, r, head, answer(q, rows, head, c_.T - c_.n + r + 1)});
    }
  }
  return samples;
}

Check MlaRun::check(const std::vector<DecodeSetup::Sample>& samples) const {
  Check check;
  check.done = true;
  check.bound = 1;
  check.rule =
      c_.mode == Mode::native ? "largest error over the bound of native mode for that element "
                                "(reference/oracle.hpp); first and last query "
                                "and head"
      : kind_ == MlaKind::absorbed || c_.T <= kOracleRows
          ? "largest error over the oracle's bound for that element (reference/oracle.hpp, reference/mla.hpp); "
            "first and last query and head"
          : "largest error over (1e-5 + 8 sqrt(T) 2^-24) of the largest output, against float64 with W_UK "
            "folded into the query; first and last query and head";
  for (const DecodeSetup::Sample& sample : samples) {
    const std::int64_t at = sample.query * c_.shape.query_heads + sample.head;
    const float* const row = out_.data() + at * c_.shape.value_dim;
    check.max_error = std::max(check.max_error,
                               reference::worst_error_over_bound(
                                   sample.answer, std::vector<float>(row, row + c_.shape.value_dim), {lse_[size(at)]}));
  }
  check.passed = check.max_error <= check.bound;
  return check;
}

}  // namespace kvroof::bench
