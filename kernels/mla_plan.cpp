// Which form of multi-head latent attention is faster for a call. Both take time linear in two counts, passes (a row
// going by a tile of queries: converting it, and in reconstruct expanding it) and pairs (a query head meeting a row);
// the absorbed form adds its two matrices per token. The factors are timed here, the counts follow from the call.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention_split.hpp"
#include "kernels/cache/contiguous.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/mla_project.hpp"

namespace kvroof {
namespace {

struct Counts {
  double passes = 0, pairs = 0;
};

// As the attention kernel tiles them (attention_split.hpp), over the KV heads of `args`.
Counts count(const AttentionArgs& args, int parts) {
  Counts counts;
  const std::int64_t tile = make_attention_split(args, parts).query_tile;
  const std::int64_t group = args.shape.query_heads / args.shape.kv_heads;
  const std::int64_t window = args.options.window, kept = args.options.kept_tokens;
  for (const AttentionSequence& sequence : args.sequences) {
    const std::int64_t oldest = sequence.kv.end_position - sequence.n;
    for (std::int64_t q = 0; q < sequence.n * group; q += tile) {
      const std::int64_t first = oldest + q / group,
                         last = oldest + (std::min(q + tile, sequence.n * group) - 1) / group;
      const std::int64_t begin = first < window ? 0 : first - window + 1;
      counts.passes += static_cast<double>(last + 1 - begin + std::min(kept, begin));
    }
  }
  counts.passes *= static_cast<double>(args.shape.kv_heads);
  AttentionArgs plain = args;
  plain.expansion = nullptr;
  counts.pairs = static_cast<double>(attention_flops(plain)) /
                 static_cast<double>(2 * (args.shape.key_dim + args.shape.value_dim));
  return counts;
}

struct Fit {
  double pass, pair;
};

// Two timed runs, two unknowns. Where the runs have nearly the same shares of both, or noise makes one negative, the
// larger run alone says it, all of it laid to the pairs or to the passes.
Fit fit(const Counts& a, double a_seconds, const Counts& b, double b_seconds) {
  const double determinant = a.passes * b.pairs - b.passes * a.pairs;
  if (std::fabs(determinant) < 0.1 * a.passes * b.pairs) return {0.0, b_seconds / b.pairs};
  const double pass = (a_seconds * b.pairs - b_seconds * a.pairs) / determinant;
  const double pair = (a.passes * b_seconds - b.passes * a_seconds) / determinant;
  if (pass < 0.0) return {0.0, b_seconds / b.pairs};
  if (pair < 0.0) return {b_seconds / b.passes, 0.0};
  return {pass, pair};
}

// The shortest of several runs: three, more where they are short, fewer where they are long.
template <class Run>
double best_seconds(const Run& run) {
  using Clock = std::chrono::steady_clock;
  double best = std::numeric_limits<double>::infinity(), total = 0;
  for (int runs = 0; (runs < 3 && total < 0.03) || (runs < 50 && total < 0.003); ++runs) {
    const Clock::time_point start = Clock::now();
    run();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

float in_range(std::uint64_t i) {  // some value of [-1, 1); which does not matter, finite does
  return static_cast<float>(static_cast<std::int64_t>(i * 0x9e3779b97f4a7c15ull >> 40) - (1 << 23)) * 0x1p-23f;
}

std::vector<float> some_floats(std::int64_t n) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = in_range(i + 1);
  return x;
}

// n newest tokens of a cache of `rows` rows, timed.
struct TimedRun {
  Counts counts;
  double seconds = 0;
};

TimedRun time_attention(AttentionArgs args, const ContiguousCache& cache, std::int64_t n, int threads, Isa isa) {
  const std::int64_t query = args.shape.query_heads * args.shape.key_dim,
                     result = args.shape.query_heads * args.shape.value_dim;
  const std::vector<float> q = some_floats(n * query);
  std::vector<float> out(static_cast<std::size_t>(n * result));
  AttentionSequence sequence;
  sequence.q = q.data();
  sequence.q_row_stride = query;
  sequence.q_head_stride = args.shape.key_dim;
  sequence.n = n;
  sequence.kv = cache.view();
  sequence.out = out.data();
  sequence.out_row_stride = result;
  sequence.out_head_stride = args.shape.value_dim;
  args.options.scale = 1.0f;
  args.sequences = {&sequence, 1};
  const std::size_t bytes = attention_workspace_bytes(args, threads);
  const CacheMemory memory = CacheMemory::allocate(static_cast<std::int64_t>(bytes));
  return {count(args, threads), best_seconds([&] { decode_attention(args, {memory.data(), bytes}, threads, isa); })};
}

ContiguousCache filled_cache(const MlaShape& s, Storage storage, std::int64_t rows) {
  ContiguousCache cache(mla_cache_shape(s, storage), RowOrder::head_major, rows);
  const std::vector<float> values = some_floats(rows * (s.latent_dim + s.rope_dim));
  cache.append(packed_rows(cache.shape(), rows, values.data(), nullptr));
  return cache;
}

double cost_of(const Counts& counts, double pass, double pair) { return counts.passes * pass + counts.pairs * pair; }

void check_costs(const MlaCosts& c) {
  const double all[] = {c.absorbed_pass, c.absorbed_pair,    c.fold_call,
                        c.fold_token,    c.reconstruct_pass, c.reconstruct_pair};
  bool good = c.threads >= 1;
  for (const double x : all) good = good && x >= 0.0 && std::isfinite(x);
  if (!good || c.absorbed_pass + c.absorbed_pair <= 0.0 || c.reconstruct_pass + c.reconstruct_pair <= 0.0)
    throw Error(ErrorCode::bad_option, "mla: these costs were not measured; get them from measure_mla_costs()");
}

}  // namespace

MlaCosts measure_mla_costs(const MlaWeights& weights, Storage storage, int threads) {
  return measure_mla_costs(weights, storage, threads, default_isa());
}

MlaCosts measure_mla_costs(const MlaWeights& weights, Storage storage, int threads, Isa isa) {
  mla_require_threads(threads);
  kernel_table(isa);
  const MlaShape& s = weights.shape();
  MlaCosts costs;
  costs.threads = threads;

  // A segment for every thread. From 64 heads on one token fills a tile, so that more tokens tell nothing new.
  const ContiguousCache many = filled_cache(s, storage, kSegmentRows * threads);
  const AttentionArgs absorbed = mla_absorbed_args(s, {}, {});
  const TimedRun one = time_attention(absorbed, many, 1, threads, isa);
  const std::int64_t tile_tokens = s.heads >= 64 ? 1 : (64 + s.heads - 1) / s.heads;
  const TimedRun tile = tile_tokens == 1 ? one : time_attention(absorbed, many, tile_tokens, threads, isa);
  const Fit a = fit(one.counts, one.seconds, tile.counts, tile.seconds);
  costs.absorbed_pass = a.pass;
  costs.absorbed_pair = a.pair;

  // Two heads for every thread where there are as many, else more segments.
  const std::int64_t heads = std::min<std::int64_t>(s.heads, 2 * threads);
  const ContiguousCache some = filled_cache(s, storage, kSegmentRows * ((2 * threads + heads - 1) / heads));
  const LatentExpansion expansion{s.rope_dim, weights.w_uk(0), weights.w_uv(0)};
  AttentionArgs reconstruct;
  reconstruct.shape = {heads, heads, s.nope_dim + s.rope_dim, s.value_dim};
  reconstruct.expansion = &expansion;
  const TimedRun decode = time_attention(reconstruct, some, 1, threads, isa);
  const TimedRun chunk = time_attention(reconstruct, some, 64, threads, isa);
  const Fit r = fit(decode.counts, decode.seconds, chunk.counts, chunk.seconds);
  costs.reconstruct_pass = r.pass;
  costs.reconstruct_pair = r.pair;

  constexpr std::int64_t kTokens = 8;
  std::vector<float> q = some_floats(kTokens * s.heads * (s.nope_dim + s.rope_dim));
  std::vector<float> folded(static_cast<std::size_t>(kTokens * s.heads * (s.latent_dim + s.rope_dim)));
  std::vector<float> out(static_cast<std::size_t>(kTokens * s.heads * s.value_dim));
  const auto both_folds = [&](std::int64_t tokens) {
    return best_seconds([&] {
      mla_fold_queries(weights, q.data(), tokens, folded.data(), threads, isa);
      mla_expand_latents(weights, folded.data(), tokens, out.data(), threads, isa);
    });
  };
  const double first = both_folds(1), all = both_folds(kTokens);
  costs.fold_token = std::max(0.0, (all - first) / static_cast<double>(kTokens - 1));
  costs.fold_call = std::max(0.0, first - costs.fold_token);
  return costs;
}

MlaPlan mla_plan(const MlaArgs& args, const MlaCosts& costs) {
  mla_check(args);
  check_costs(costs);
  const MlaWeights& weights = *args.weights;
  const MlaShape& s = weights.shape();
  MlaPlan plan;
  double tokens = 0;
  for (const AttentionSequence& sequence : args.sequences) tokens += static_cast<double>(sequence.n);
  if (tokens == 0) return plan;

  const AttentionArgs absorbed = mla_absorbed_args(s, args.options, args.sequences);
  plan.absorbed_seconds = costs.fold_call + costs.fold_token * tokens +
                          cost_of(count(absorbed, costs.threads), costs.absorbed_pass, costs.absorbed_pair);
  const LatentExpansion expansion{s.rope_dim, weights.w_uk(0), weights.w_uv(0)};
  AttentionArgs reconstruct = absorbed;
  reconstruct.shape = {s.heads, s.heads, s.nope_dim + s.rope_dim, s.value_dim};
  reconstruct.expansion = &expansion;
  plan.reconstruct_seconds = cost_of(count(reconstruct, costs.threads), costs.reconstruct_pass, costs.reconstruct_pair);
  const bool reconstruct_wins = plan.reconstruct_seconds < plan.absorbed_seconds && args.mode == Mode::reproducible;
  plan.form = reconstruct_wins ? MlaForm::reconstruct : MlaForm::absorbed;
  return plan;
}

}  // namespace kvroof
