#include "bench/kernel_run.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>

#include "reference/half.hpp"
#include "reference/inputs.hpp"

namespace kvroof::bench {
namespace {

constexpr std::uint64_t kQuerySeed = 99;

// `count` elements widened into `to`. Conversions are the reference's, so that the check does not lean on what it
// checks.
void widen(Storage storage, const std::byte* from, std::int64_t count, float* to) {
  const auto* codes = reinterpret_cast<const std::uint16_t*>(from);
  switch (storage) {
    case Storage::f32: std::memcpy(to, from, static_cast<std::size_t>(count) * 4); break;
    case Storage::f16:
      for (std::int64_t i = 0; i < count; ++i) to[i] = reference::f16_to_f32(codes[i]);
      break;
    case Storage::bf16:
      for (std::int64_t i = 0; i < count; ++i) to[i] = reference::bf16_to_f32(codes[i]);
      break;
    case Storage::int8:
      for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(static_cast<std::int8_t>(from[i]));
      break;
  }
}

std::int64_t visible_window(const DecodeCase& c) { return c.window == 0 ? kUnlimitedWindow : c.window; }

}  // namespace

std::vector<float> query_values(std::size_t count) {
  std::vector<float> q(count);
  for (std::size_t i = 0; i < count; ++i) q[i] = reference::uniform(kQuerySeed, i);
  return q;
}

CallViews contiguous_views(const DecodeCase& c, const CacheSet& set, std::int64_t i) {
  CallViews call;
  RowRun run;
  run.k = set.k(i);
  run.v = set.v(i);
  run.k_scale = set.k_scale(i);
  run.v_scale = set.v_scale(i);
  run.rows = c.T;
  call.runs = {{run}};
  KvView view = contiguous_strides(c);
  view.end_position = c.T;
  call.views = {view};
  return call;
}

std::vector<CallViews> contiguous_views(const DecodeCase& c, const CacheSet& set) {
  std::vector<CallViews> calls;
  for (std::int64_t i = 0; i < set.count; ++i) calls.push_back(contiguous_views(c, set, i));
  return calls;
}

KernelRun::KernelRun(const DecodeCase& c, std::vector<CallViews> calls) : c_(c), calls_(std::move(calls)) {
  const std::size_t sequences = calls_[0].views.size();
  const std::int64_t Hq = c_.shape.query_heads, Dk = c_.shape.key_dim, Dv = c_.shape.value_dim;
  q_ = query_values(sequences * static_cast<std::size_t>(c_.n * Hq * Dk));
  out_.resize(sequences * static_cast<std::size_t>(c_.n * Hq * Dv));
  lse_.resize(sequences * static_cast<std::size_t>(c_.n * Hq));
  sequences_.resize(calls_.size());
  args_.resize(calls_.size());
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    sequences_[i].resize(sequences);
    for (std::size_t b = 0; b < sequences; ++b) {
      AttentionSequence& s = sequences_[i][b];
      const std::int64_t base = static_cast<std::int64_t>(b) * c_.n * Hq;
      s.q = q_.data() + base * Dk;
      s.q_row_stride = Hq * Dk;
      s.q_head_stride = Dk;
      s.n = c_.n;
      s.kv = calls_[i].views[b];
      s.kv.runs = calls_[i].runs[b].data();
      s.kv.run_count = static_cast<std::int64_t>(calls_[i].runs[b].size());
      s.out = out_.data() + base * Dv;
      s.out_row_stride = Hq * Dv;
      s.out_head_stride = Dv;
      s.lse = lse_.data() + base;
    }
    args_[i].shape = {Hq, c_.shape.kv_heads, Dk, Dv};
    args_[i].options.scale = 1.0f / std::sqrt(static_cast<float>(Dk));
    args_[i].options.window = visible_window(c_);
    args_[i].sequences = sequences_[i];
    args_[i].mode = c_.mode;
  }
  std::size_t bytes = 0;
  for (const AttentionArgs& args : args_) bytes = std::max(bytes, attention_workspace_bytes(args, c_.threads));
  workspace_.resize(bytes + 64);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(workspace_.data()) % 64;
  aligned_ = std::span<std::byte>(workspace_.data() + (misaligned == 0 ? 0 : 64 - misaligned), bytes);
}

void KernelRun::call(std::int64_t visit) {
  decode_attention(args_[static_cast<std::size_t>(visit) % args_.size()], aligned_, c_.threads, c_.isa);
}

std::string hash_of(const std::vector<float>& out) {
  reference::OutputHash hash;
  for (float value : out) {
    std::uint32_t word;
    std::memcpy(&word, &value, 4);
    hash.add(word);
  }
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash.value));
  return text;
}

std::vector<DecodeSetup::Sample> KernelRun::oracle_samples() const {
  std::vector<DecodeSetup::Sample> samples;
  const std::int64_t last_sequence = static_cast<std::int64_t>(sequences_[0].size()) - 1;
  for (std::int64_t b : std::set<std::int64_t>{0, last_sequence}) {
    const AttentionSequence& s = sequences_[0][static_cast<std::size_t>(b)];
    for (std::int64_t r : std::set<std::int64_t>{0, s.n - 1}) {
      const std::int64_t position = s.kv.end_position - s.n + r;
      // Only what the query sees, moved to position 0: without ALiBi nothing but distances matters.
      const std::int64_t window = visible_window(c_);
      std::int64_t base = window > position ? 0 : position - window + 1;
      if (s.kv.run_count > 0) base = std::max(base, s.kv.runs[0].first_position);
      for (std::int64_t head : std::set<std::int64_t>{0, c_.shape.query_heads - 1}) {
        const std::int64_t kv_head = head / c_.group();
        reference::AttentionProblem p;
        p.query_heads = p.kv_heads = 1;
        p.key_dim = c_.shape.key_dim;
        p.value_dim = c_.shape.value_dim;
        p.n = 1;
        p.T = position + 1 - base;
        p.scale = args_[0].options.scale;
        const float* q = s.q + r * s.q_row_stride + head * s.q_head_stride;
        p.q.assign(q, q + p.key_dim);
        p.k.resize(static_cast<std::size_t>(p.T * p.key_dim));
        p.v.resize(static_cast<std::size_t>(p.T * p.value_dim));
        for (std::int64_t i = 0; i < s.kv.run_count; ++i) {
          const RowRun& run = s.kv.runs[i];
          for (std::int64_t t = std::max<std::int64_t>(0, base - run.first_position); t < run.rows; ++t) {
            const std::int64_t at = run.first_position + t - base;
            if (at >= p.T) break;
            widen(s.kv.k_storage, run.k + t * s.kv.k_row_stride + kv_head * s.kv.k_head_stride, p.key_dim,
                  p.k.data() + at * p.key_dim);
            widen(s.kv.v_storage, run.v + t * s.kv.v_row_stride + kv_head * s.kv.v_head_stride, p.value_dim,
                  p.v.data() + at * p.value_dim);
            if (run.k_scale != nullptr)
              p.k_scale.push_back(run.k_scale[t * s.kv.k_scale_row_stride + kv_head * s.kv.k_scale_head_stride]);
            if (run.v_scale != nullptr)
              p.v_scale.push_back(run.v_scale[t * s.kv.v_scale_row_stride + kv_head * s.kv.v_scale_head_stride]);
          }
        }
        samples.push_back({b, r, head, reference::oracle_attention(p, arithmetic_of(c_.mode))});
      }
    }
  }
  return samples;
}

Check KernelRun::check(const std::vector<DecodeSetup::Sample>& samples) const {
  Check check;
  check.done = true;
  check.bound = 1;
  check.rule = std::string("largest error over the ") +
               (c_.mode == Mode::native ? "bound of native mode for that element (reference/oracle.hpp)"
                                        : "oracle's bound for that element (reference/oracle.hpp)") +
               "; first and last sequence, query and head";
  for (const DecodeSetup::Sample& sample : samples) {
    const AttentionSequence& s = sequences_[0][static_cast<std::size_t>(sample.sequence)];
    const float* row = s.out + sample.query * s.out_row_stride + sample.head * s.out_head_stride;
    const std::vector<float> values(row, row + c_.shape.value_dim);
    check.max_error = std::max(
        check.max_error, reference::worst_error_over_bound(sample.answer, values,
                                                           {s.lse[sample.query * c_.shape.query_heads + sample.head]}));
  }
  check.passed = check.max_error <= check.bound;
  return check;
}

}  // namespace kvroof::bench
