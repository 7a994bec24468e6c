#include "tests/support/mla_call.hpp"

#include <algorithm>
#include <cstring>

#include "reference/half.hpp"

namespace kvroof::test {
namespace {

constexpr std::uint32_t kNanWord = 0xffffffffu;  // NaN in f32, f16 and bf16, and in the scales of int8

// Rows as appended: those that nobody sees are NaN.
std::vector<float> poisoned_rows(const MlaCase& c) {
  const MlaCaseSpec& s = c.spec;
  const std::int64_t row = s.shape.latent_dim + s.shape.rope_dim, oldest = s.T - s.n;
  std::vector<float> rows = c.rows;
  if (s.window == kAll) return rows;
  for (std::int64_t j = s.kept_tokens; j < oldest - s.window + 1; ++j)
    std::fill_n(rows.begin() + j * row, row, std::numeric_limits<float>::quiet_NaN());
  return rows;
}

}  // namespace

LatentCache::LatentCache(const MlaCase& c, LatentCacheKind kind, std::uint64_t seed) {
  const MlaCaseSpec& s = c.spec;
  const CacheShape shape = mla_cache_shape(kernel_shape(s.shape), s.storage);
  const std::vector<float> rows = poisoned_rows(c);
  const std::int64_t row = shape.key_dim;
  Choices choose(seed);
  const auto lend = [&](std::int64_t bytes) {
    memory_ = GuardedBuffer(static_cast<std::size_t>(bytes), Edge::end, 64);
    memory_.fill(kNanWord);
    return std::span<std::byte>(memory_.data(), memory_.size());
  };
  const auto append_all = [&](std::int64_t most, const auto& append) {
    for (std::int64_t at = 0; at < s.T;) {
      const std::int64_t n = std::min(s.T - at, choose.between(1, most));
      append(packed_rows(shape, n, rows.data() + at * row, nullptr));
      at += n;
    }
  };
  const RowOrder order = choose.one_in(2) ? RowOrder::head_major : RowOrder::token_major;
  switch (kind) {
    case LatentCacheKind::contiguous: {
      const std::int64_t capacity = s.T + choose.between(0, 3);
      auto& cache = cache_.emplace<ContiguousCache>(shape, order, capacity,
                                                    lend(ContiguousCache::bytes_needed(shape, order, capacity)));
      append_all(s.T, [&](const NewRows& n) { cache.append(n); });
      name_ = "contiguous";
      break;
    }
    case LatentCacheKind::ring: {
      RingOptions options;
      options.order = order;
      options.window = std::min(s.window, s.T);
      options.kept_tokens = s.kept_tokens;
      options.capacity = options.window + s.n - 1 + choose.between(0, 3);
      auto& cache = cache_.emplace<RingCache>(shape, options, lend(RingCache::bytes_needed(shape, options)));
      append_all(options.capacity - options.window + 1, [&](const NewRows& n) { cache.append(n); });
      name_ = "ring of " + std::to_string(options.capacity);
      break;
    }
    case LatentCacheKind::paged: {
      constexpr std::int64_t sizes[] = {1, 2, 16, 17, 64, 512, 600};
      PagedOptions options;
      options.order = order;
      options.page_rows = choose.pick(sizes);
      options.page_count = s.T / options.page_rows + 4;
      std::vector<PageId> pages;
      for (std::int64_t i = 0; i < options.page_count; ++i) pages.push_back(i);
      choose.shuffle(pages);
      options.page_order = pages;
      auto& cache = cache_.emplace<PagedCache>(shape, options, lend(PagedCache::bytes_needed(shape, options)));
      sequence_ = cache.create();
      append_all(s.T, [&](const NewRows& n) { cache.append(sequence_, n); });
      name_ = "pages of " + std::to_string(options.page_rows);
      break;
    }
  }
  memory_.read_only();
  hash_ = memory_.hash();
}

KvView LatentCache::view() const {
  if (const auto* ring = std::get_if<RingCache>(&cache_)) return ring->view();
  if (const auto* paged = std::get_if<PagedCache>(&cache_)) return paged->view(sequence_);
  return std::get<ContiguousCache>(cache_).view();
}

MlaShape kernel_shape(const reference::MlaShape& s, std::int64_t model_dim) {
  return {s.heads, s.nope_dim, s.rope_dim, s.value_dim, s.latent_dim, model_dim};
}

MlaForm kernel_form(reference::MlaForm form) {
  return form == reference::MlaForm::absorbed ? MlaForm::absorbed : MlaForm::reconstruct;
}

MlaWeights make_weights(const MlaCase& c) {
  return MlaWeights(kernel_shape(c.spec.shape), {c.problem.w_uk, c.problem.w_uv, {}, {}});
}

AttentionOptions make_options(const MlaCase& c) {
  AttentionOptions options;
  options.scale = c.spec.scale;
  options.window = c.spec.window;
  options.kept_tokens = c.spec.kept_tokens;
  options.softcap = c.spec.softcap;
  if (!c.problem.sink_logits.empty()) options.sink_logits = c.problem.sink_logits.data();
  return options;
}

MlaCall::MlaCall(const MlaCase& c, const KvView& view, std::uint64_t seed, bool want_lse) : case_(c), view_(view) {
  const reference::MlaShape& s = c.spec.shape;
  Choices choose(seed);
  const std::int64_t dk = s.nope_dim + s.rope_dim, n = c.spec.n;
  q_head_ = dk + choose.between(0, 3);
  q_row_ = q_head_ * s.heads + choose.between(0, 5);
  out_head_ = s.value_dim + choose.between(0, 3);
  out_row_ = out_head_ * s.heads + choose.between(0, 5);
  const auto floats = [](std::int64_t rows, std::int64_t row, std::int64_t heads, std::int64_t head, std::int64_t dim) {
    return static_cast<std::size_t>(((rows - 1) * row + (heads - 1) * head + dim) * 4);
  };
  q_ = GuardedBuffer(floats(n, q_row_, s.heads, q_head_, dk), Edge::end, 4);
  q_.fill(kSignalling);
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t h = 0; h < s.heads; ++h)
      std::memcpy(q_.as<float>() + r * q_row_ + h * q_head_, c.problem.q.data() + (r * s.heads + h) * dk,
                  static_cast<std::size_t>(dk) * 4);
  q_hash_ = q_.hash();
  out_ = GuardedBuffer(floats(n, out_row_, s.heads, out_head_, s.value_dim), Edge::end, 4);
  out_.fill(kSignalling);
  if (!want_lse) return;
  lse_ = GuardedBuffer(static_cast<std::size_t>(n * s.heads * 4), Edge::end, 4);
  lse_.fill(kSignalling);
}

AttentionSequence MlaCall::sequence() {
  AttentionSequence s;
  s.q = q_.as<float>();
  s.q_row_stride = q_row_;
  s.q_head_stride = q_head_;
  s.n = case_.spec.n;
  s.kv = view_;
  s.out = out_.as<float>();
  s.out_row_stride = out_row_;
  s.out_head_stride = out_head_;
  s.lse = lse_.size() > 0 ? lse_.as<float>() : nullptr;
  return s;
}

Attention MlaCall::result() const {
  const reference::MlaShape& s = case_.spec.shape;
  Attention a;
  for (std::int64_t r = 0; r < case_.spec.n; ++r) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const float* from = out_.as<float>() + r * out_row_ + h * out_head_;
      a.out.insert(a.out.end(), from, from + s.value_dim);
    }
  }
  if (lse_.size() > 0) a.lse.assign(lse_.as<float>(), lse_.as<float>() + case_.spec.n * s.heads);
  return a;
}

std::string MlaCall::damage() const {
  if (!q_.intact() || q_.hash() != q_hash_) return "q was written";
  if (!out_.intact()) return "written beside out";
  if (lse_.size() > 0 && !lse_.intact()) return "written beside lse";
  const reference::MlaShape& s = case_.spec.shape;
  const float* out = out_.as<float>();
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(out_.size() / 4); ++i) {
    const std::int64_t in_row = i % out_row_;
    const bool gap = in_row / out_head_ >= s.heads || in_row % out_head_ >= s.value_dim;
    if ((reference::float_bits(out[i]) == kSignalling) != gap)
      return (gap ? "gap of out written at " : "out not written at ") + std::to_string(i);
  }
  return "";
}

bool MlaCall::nothing_written() const {
  const auto untouched = [](const GuardedBuffer& buffer) {
    const float* x = buffer.as<float>();
    return buffer.size() == 0 ||
           std::all_of(x, x + buffer.size() / 4, [](float v) { return reference::float_bits(v) == kSignalling; });
  };
  return untouched(out_) && untouched(lse_);
}

std::vector<Attention> run_mla(const MlaWeights& weights, const AttentionOptions& options, const MlaCalls& calls,
                               reference::MlaForm form, const How& how, std::string& damage) {
  std::vector<AttentionSequence> sequences;
  for (const auto& call : calls) sequences.push_back(call->sequence());
  const MlaArgs args{&weights, options, sequences, how.mode};
  const MlaForm kernel = kernel_form(form);
  const std::size_t bytes = mla_workspace_bytes(args, kernel, how.parts);
  GuardedBuffer workspace(bytes, Edge::end, 64);
  workspace.fill(how.workspace_fill);
  const std::span<std::byte> memory(workspace.data(), bytes);
  if (how.threads) {
    mla_attention(args, kernel, memory, how.parts, how.isa);
  } else {
    const MlaWork work = mla_prepare(args, kernel, how.parts, memory, how.isa);
    Choices choose(how.order_seed);
    for (const MlaPhase phase : kMlaPhases) {
      std::vector<int> order;
      for (int part = 0; part < how.parts; ++part) order.push_back(part);
      if (how.order_seed != 0) choose.shuffle(order);
      for (const int part : order) mla_run_part(work, phase, part);
    }
  }
  if (!workspace.intact()) damage = "written beside the workspace";
  std::vector<Attention> results;
  for (const auto& call : calls) {
    if (damage.empty()) damage = call->damage();
    results.push_back(call->result());
  }
  return results;
}

Attention mla_twin(reference::MlaForm form, const MlaCase& c) {
  Attention a;
  reference::mla_twin(form, c.problem, a.out, a.lse);
  return a;
}

}  // namespace kvroof::test
