#include "reference/mla.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>

#include "reference/lane_twin.hpp"
#include "reference/softmax_bound.hpp"

namespace kvroof::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

AttentionProblem with_options(const MlaProblem& p) {
  AttentionProblem a;
  a.query_heads = p.shape.heads;
  a.n = p.n;
  a.T = p.T;
  a.scale = p.scale;
  a.window = p.window;
  a.kept_tokens = p.kept_tokens;
  a.softcap = p.softcap;
  a.sink_logits = p.sink_logits;
  return a;
}

}  // namespace

AttentionProblem mla_reconstructed_problem(const MlaProblem& p) {
  const MlaShape& s = p.shape;
  AttentionProblem a = with_options(p);
  a.kv_heads = s.heads;
  a.key_dim = s.nope_dim + s.rope_dim;
  a.value_dim = s.value_dim;
  a.q = p.q;
  a.k.resize(static_cast<std::size_t>(p.T * s.heads * a.key_dim));
  a.v.resize(static_cast<std::size_t>(p.T * s.heads * a.value_dim));
  for (std::int64_t t = 0; t < p.T; ++t) {
    const float* latent = p.latent.data() + t * s.latent_dim;
    const float* rope_key = p.rope_key.data() + t * s.rope_dim;
    for (std::int64_t h = 0; h < s.heads; ++h) {
      float* k = a.k.data() + (t * s.heads + h) * a.key_dim;
      twin_project(p.w_uk.data() + h * s.nope_dim * s.latent_dim, latent, s.nope_dim, s.latent_dim, k);
      std::copy_n(rope_key, s.rope_dim, k + s.nope_dim);
      float* v = a.v.data() + (t * s.heads + h) * a.value_dim;
      twin_project(p.w_uv.data() + h * s.value_dim * s.latent_dim, latent, s.value_dim, s.latent_dim, v);
    }
  }
  return a;
}

AttentionProblem mla_absorbed_problem(const MlaProblem& p) {
  const MlaShape& s = p.shape;
  AttentionProblem a = with_options(p);
  a.kv_heads = 1;
  a.key_dim = s.latent_dim + s.rope_dim;
  a.value_dim = s.latent_dim;
  a.v = p.latent;
  a.k.resize(static_cast<std::size_t>(p.T * a.key_dim));
  for (std::int64_t t = 0; t < p.T; ++t) {
    std::copy_n(p.latent.data() + t * s.latent_dim, s.latent_dim, a.k.data() + t * a.key_dim);
    std::copy_n(p.rope_key.data() + t * s.rope_dim, s.rope_dim, a.k.data() + t * a.key_dim + s.latent_dim);
  }
  a.q.resize(static_cast<std::size_t>(p.n * s.heads * a.key_dim));
  std::vector<float> transposed(static_cast<std::size_t>(s.latent_dim * s.nope_dim));
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const float* w = p.w_uk.data() + h * s.nope_dim * s.latent_dim;
    for (std::int64_t d = 0; d < s.nope_dim; ++d) {
      for (std::int64_t c = 0; c < s.latent_dim; ++c) {
        transposed[static_cast<std::size_t>(c * s.nope_dim + d)] = w[d * s.latent_dim + c];
      }
    }
    for (std::int64_t r = 0; r < p.n; ++r) {
      const float* from = p.q.data() + (r * s.heads + h) * (s.nope_dim + s.rope_dim);
      float* to = a.q.data() + (r * s.heads + h) * a.key_dim;
      twin_project(transposed.data(), from, s.latent_dim, s.nope_dim, to);
      std::copy_n(from + s.nope_dim, s.rope_dim, to + s.latent_dim);
    }
  }
  return a;
}

void mla_twin(MlaForm form, const MlaProblem& p, std::vector<float>& out, std::vector<float>& lse) {
  if (form == MlaForm::reconstruct) return lane_twin_attention(mla_reconstructed_problem(p), out, lse);
  const MlaShape& s = p.shape;
  std::vector<float> latent;
  lane_twin_attention(mla_absorbed_problem(p), latent, lse);
  out.resize(static_cast<std::size_t>(p.n * s.heads * s.value_dim));
  for (std::int64_t row = 0; row < p.n * s.heads; ++row) {
    twin_project(p.w_uv.data() + row % s.heads * s.value_dim * s.latent_dim, latent.data() + row * s.latent_dim,
                 s.value_dim, s.latent_dim, out.data() + row * s.value_dim);
  }
}

namespace {

// K, V of one head for all rows, and the sum of magnitudes behind each element.
struct Head {
  std::vector<double> k, k_size, v, v_size;
  double largest_uk = 0;

  Head(const MlaProblem& p, std::int64_t h) {
    const MlaShape& s = p.shape;
    const auto expand = [&](const std::vector<float>& w, std::int64_t outputs, std::vector<double>& y,
                            std::vector<double>& size) {
      y.assign(static_cast<std::size_t>(p.T * outputs), 0.0);
      size = y;
      for (std::int64_t t = 0; t < p.T; ++t) {
        for (std::int64_t o = 0; o < outputs; ++o) {
          const float* row = w.data() + (h * outputs + o) * s.latent_dim;
          const float* c = p.latent.data() + t * s.latent_dim;
          double sum = 0, magnitude = 0;
          for (std::int64_t i = 0; i < s.latent_dim; ++i) {
            const double product = static_cast<double>(row[i]) * c[i];
            sum += product;
            magnitude += std::fabs(product);
          }
          y[static_cast<std::size_t>(t * outputs + o)] = sum;
          size[static_cast<std::size_t>(t * outputs + o)] = magnitude;
        }
      }
    };
    for (std::int64_t i = h * s.nope_dim * s.latent_dim; i < (h + 1) * s.nope_dim * s.latent_dim; ++i)
      largest_uk = std::max(largest_uk, std::fabs(static_cast<double>(p.w_uk[static_cast<std::size_t>(i)])));
    expand(p.w_uk, s.nope_dim, k, k_size);
    expand(p.w_uv, s.value_dim, v, v_size);
  }
};

ScoredRow score(MlaForm form, const MlaProblem& p, const Arithmetic& arithmetic, const Head& head, const float* q,
                std::int64_t j) {
  const MlaShape& s = p.shape;
  double sum = 0, magnitude = 0, query = 0, latent = 0, rotated = 0;
  for (std::int64_t d = 0; d < s.nope_dim; ++d) {
    const auto at = static_cast<std::size_t>(j * s.nope_dim + d);
    sum += q[d] * head.k[at];
    magnitude += std::fabs(static_cast<double>(q[d])) * head.k_size[at];
    query += std::fabs(static_cast<double>(q[d]));
  }
  for (std::int64_t d = 0; d < s.rope_dim; ++d) {
    const double of_query = q[s.nope_dim + d], of_key = p.rope_key[static_cast<std::size_t>(j * s.rope_dim + d)];
    const double product = of_query * of_key;
    rotated += std::fabs(of_query) + std::fabs(of_key);
    sum += product;
    magnitude += std::fabs(product);
  }
  for (std::int64_t c = 0; c < s.latent_dim; ++c) {
    latent += std::fabs(static_cast<double>(p.latent[static_cast<std::size_t>(j * s.latent_dim + c)]));
  }
  const bool rebuilt = form == MlaForm::reconstruct;
  const std::int64_t chain = rebuilt ? s.latent_dim : s.nope_dim;
  const std::int64_t dim = (rebuilt ? s.nope_dim : s.latent_dim) + s.rope_dim;
  const double scale = std::fabs(static_cast<double>(p.scale));
  const double folded = query * head.largest_uk * static_cast<double>(s.latent_dim);  // at least sum |q'|
  double relative = roundings(static_cast<double>(chain) + score_roundings(arithmetic, dim));
  relative += arithmetic.query * (1 + relative);
  double error = relative * magnitude * scale;
  // Underflow in the chains of k or q', times what it is multiplied with; underflow in the dot product.
  error += (kSmallest * static_cast<double>(chain) * (rebuilt ? query : latent) +
            arithmetic.flush * static_cast<double>(dim + 20) + arithmetic.flushed_input * (folded + latent + rotated)) *
               scale +
           kSmallest;
  double value = sum * p.scale;
  const bool overflow = magnitude * (arithmetic.pairs ? 2 : 1) >= FLT_MAX || std::fabs(value) >= FLT_MAX;
  cap_score(p.softcap, value, error);
  return {j, value, overflow ? kInfinity : error};
}

struct RowAnswer {
  double *out, *out_bound;  // [value]
  double &lse, &lse_bound;
};

void solve(MlaForm form, const MlaProblem& p, const Arithmetic& arithmetic, const Head& head, std::int64_t h,
           std::int64_t r, RowAnswer answer) {
  const MlaShape& s = p.shape;
  AttentionProblem mask;
  mask.window = p.window;
  mask.kept_tokens = p.kept_tokens;
  std::vector<ScoredRow> rows;
  for (std::int64_t j = 0; j < p.T; ++j) {
    if (!mask.visible(p.T - p.n + r, j)) continue;
    rows.push_back(score(form, p, arithmetic, head, p.q.data() + (r * s.heads + h) * (s.nope_dim + s.rope_dim), j));
  }
  const float* sink = p.sink_logits.empty() ? nullptr : &p.sink_logits[static_cast<std::size_t>(h)];
  const Softmax softmax = softmax_with_bound(rows, sink, p.T, 0, arithmetic);
  answer.lse = softmax.nan ? std::nan("") : softmax.lse;
  answer.lse_bound = softmax.lse_bound;
  if (softmax.nan || softmax.empty) {
    std::fill_n(answer.out, s.value_dim, softmax.nan ? std::nan("") : 0.0);
    std::fill_n(answer.out_bound, s.value_dim, 0.0);
    return;
  }

  std::vector<double> v(rows.size()), size(rows.size());
  for (std::int64_t d = 0; d < s.value_dim; ++d) {
    double o = 0, largest = 0;
    for (std::size_t x = 0; x < rows.size(); ++x) {
      const auto at = static_cast<std::size_t>(rows[x].position * s.value_dim + d);
      v[x] = head.v[at];
      size[x] = head.v_size[at];
      largest = std::max(largest, size[x]);
      o += softmax.weight[x] * v[x];
    }
    answer.out[d] = o;
    // Underflow in the chain of v adds at most d_c * 2^-149.
    answer.out_bound[d] = softmax.out_bound(o, v, size, static_cast<double>(s.latent_dim), largest) +
                          2 * kSmallest * static_cast<double>(s.latent_dim);
  }
  if (form == MlaForm::reconstruct) return;

  std::fill_n(answer.out_bound, s.value_dim, 0.0);
  const double chain = roundings(static_cast<double>(s.latent_dim));
  for (std::int64_t c = 0; c < s.latent_dim; ++c) {
    double o = 0, largest = 0;
    for (std::size_t x = 0; x < rows.size(); ++x) {
      v[x] = p.latent[static_cast<std::size_t>(rows[x].position * s.latent_dim + c)];
      size[x] = std::fabs(v[x]);
      largest = std::max(largest, size[x]);
      o += softmax.weight[x] * v[x];
    }
    const double bound = softmax.out_bound(o, v, size, 0, largest);
    for (std::int64_t d = 0; d < s.value_dim; ++d) {
      const double w = p.w_uv[static_cast<std::size_t>((h * s.value_dim + d) * s.latent_dim + c)];
      if (w != 0) answer.out_bound[d] += std::fabs(w) * (bound * (1 + chain) + chain * std::fabs(o)) + kSmallest;
    }
  }
}

}  // namespace

OracleAnswer mla_oracle(MlaForm form, const MlaProblem& p, const Arithmetic& arithmetic) {
  const MlaShape& s = p.shape;
  OracleAnswer a;
  const auto rows = static_cast<std::size_t>(p.n * s.heads);
  a.out.resize(rows * static_cast<std::size_t>(s.value_dim));
  a.out_bound.resize(a.out.size());
  a.lse.resize(rows);
  a.lse_bound.resize(rows);
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const Head head(p, h);
    for (std::int64_t r = 0; r < p.n; ++r) {
      const std::int64_t row = r * s.heads + h;
      solve(form, p, arithmetic, head, h, r,
            {a.out.data() + row * s.value_dim, a.out_bound.data() + row * s.value_dim,
             a.lse[static_cast<std::size_t>(row)], a.lse_bound[static_cast<std::size_t>(row)]});
    }
  }
  return a;
}

}  // namespace kvroof::reference
