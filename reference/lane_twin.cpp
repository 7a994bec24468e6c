// The numerics definition of lane_twin.hpp, executed one scalar operation at a time. It is read beside that header and
// carries its names. Nothing here is clever on purpose, with one exception: on x86 the loops are compiled twice, the
// second time with the FMA instructions switched on, because fma() through libm costs more than everything else
// together. Every operation is a correctly rounded IEEE one, so both copies give the same bits.
#include "reference/lane_twin.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "reference/fma_clones.hpp"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "the lane twin needs IEEE arithmetic: build without -ffast-math and -ffinite-math-only"
#endif

#define TWIN_INLINE KVROOF_ALWAYS_INLINE

namespace kvroof::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::bit_cast<float>(0x7fc00000u);
constexpr int kStripes = 16;

TWIN_INLINE float canonical(float x) { return x != x ? kNaN : x; }

TWIN_INLINE float tree(const float* x) {
  float y[8], z[4], w[2];
  for (int i = 0; i < 8; ++i) y[i] = x[i] + x[i + 8];
  for (int i = 0; i < 4; ++i) z[i] = y[i] + y[i + 4];
  for (int i = 0; i < 2; ++i) w[i] = z[i] + z[i + 2];
  return w[0] + w[1];
}

TWIN_INLINE float dot(const float* q, const float* k, std::int64_t d) {
  float a[kStripes] = {};
  std::int64_t i = 0;
  for (; i + kStripes <= d; i += kStripes) {
    for (int s = 0; s < kStripes; ++s) a[s] = KVROOF_FMA(q[i + s], k[i + s], a[s]);
  }
  if (i < d) {
    // The zero padding is part of the definition: fma(+0, +0, -0) turns a stripe that underflowed to -0 into +0.
    for (int s = 0; s < kStripes; ++s) {
      const bool inside = i + s < d;
      a[s] = KVROOF_FMA(inside ? q[i + s] : 0.0f, inside ? k[i + s] : 0.0f, a[s]);
    }
  }
  return tree(a);
}

TWIN_INLINE float exp_twin(float x) {
  if (x != x) return kNaN;
  if (x < -0x1.5d589ep+6f) return 0.0f;
  const float t = KVROOF_FMA(x, 0x1.715476p+0f, 0x1.8p23f);
  const float n = t - 0x1.8p23f;
  float r = KVROOF_FMA(n, -0x1.62e43p-1f, x);
  r = KVROOF_FMA(n, 0x1.05c61p-29f, r);
  float q = 0x1.6a23ccp-10f;
  q = KVROOF_FMA(q, r, 0x1.123a2p-7f);
  q = KVROOF_FMA(q, r, 0x1.5558f2p-5f);
  q = KVROOF_FMA(q, r, 0x1.555492p-3f);
  q = KVROOF_FMA(q, r, 0x1.fffffcp-2f);
  const float y = KVROOF_FMA(q, r * r, r) + 1.0f;
  const std::uint32_t power = static_cast<std::uint32_t>(static_cast<std::int32_t>(n)) << 23;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(y) + power);
}

TWIN_INLINE float tanh_twin(float x) {
  const float z = std::fabs(x);
  float y;
  if (z < 0.625f) {
    const float u = z * z;
    float t = -0x1.768464p-8f;
    t = KVROOF_FMA(t, u, 0x1.524e5cp-6f);
    t = KVROOF_FMA(t, u, -0x1.b8430ep-5f);
    t = KVROOF_FMA(t, u, 0x1.11076p-3f);
    t = KVROOF_FMA(t, u, -0x1.555534p-2f);
    y = KVROOF_FMA(z * u, t, z);
  } else {
    const float c = z > 10.0f ? 10.0f : z;
    y = 1.0f - 2.0f / (exp_twin(2.0f * c) + 1.0f);
  }
  return canonical(std::copysign(y, x));
}

TWIN_INLINE float log_twin(float x) {
  if (x != x) return kNaN;
  if (x == kInfinity) return x;
  if (x == 0.0f) return -kInfinity;
  const std::int32_t i = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(x) - 0x3f3504f3u);
  const std::int32_t k = i >> 23;
  const float f = std::bit_cast<float>((static_cast<std::uint32_t>(i) & 0x7fffffu) + 0x3f3504f3u);
  const float s = (f - 1.0f) / (f + 1.0f);
  const float z = s * s;
  float l = 0x1.e2fdd6p-3f;
  l = KVROOF_FMA(l, z, 0x1.2438a8p-2f);
  l = KVROOF_FMA(l, z, 0x1.999a7cp-2f);
  l = KVROOF_FMA(l, z, 0x1.555554p-1f);
  float r = KVROOF_FMA(s * z, l, s + s);
  r = KVROOF_FMA(static_cast<float>(k), -0x1.05c61p-29f, r);
  return KVROOF_FMA(static_cast<float>(k), 0x1.62e43p-1f, r);
}

struct Partial {
  bool absent = true;  // no visible row: not the same as empty, though merge treats both alike
  float m = -kInfinity;
  float l = 0.0f;
  std::vector<float> acc;

  bool empty() const { return absent || (m == -kInfinity && l == 0.0f); }
};

// One query of one head.
struct Row {
  const AttentionProblem& p;
  const float* q;
  std::int64_t position;
  std::int64_t head, kv_head;
  // Visible rows: [0, kept) and [first, position], kept <= first.
  std::int64_t kept, first;
};

TWIN_INLINE float score(const Row& row, std::int64_t j) {
  const AttentionProblem& p = row.p;
  const std::int64_t index = j * p.kv_heads + row.kv_head;
  float s = dot(row.q, p.k.data() + index * p.key_dim, p.key_dim);
  if (!p.k_scale.empty()) s = s * p.k_scale[static_cast<std::size_t>(index)];
  s = s * p.scale;
  if (p.softcap != kInfinity) s = p.softcap * tanh_twin(s / p.softcap);
  if (!p.alibi_slopes.empty()) {
    s = KVROOF_FMA(p.alibi_slopes[static_cast<std::size_t>(row.head)], static_cast<float>(j - row.position), s);
  }
  return s;
}

TWIN_INLINE Partial segment(const Row& row, std::int64_t g) {
  const AttentionProblem& p = row.p;
  const std::int64_t begin = g * kTwinSegmentRows;
  const std::int64_t end = std::min(begin + kTwinSegmentRows, row.position + 1);
  // At most two ranges of visible rows: what is kept, and what the window shows.
  const std::int64_t ranges[2][2] = {{begin, std::min(end, row.kept)}, {std::max(begin, row.first), end}};

  Partial part;
  float s[kTwinSegmentRows];
  for (const auto& range : ranges) {
    for (std::int64_t j = range[0]; j < range[1]; ++j) {
      const float a = score(row, j);
      s[j - begin] = a;
      part.m = a > part.m ? a : part.m;
      part.absent = false;
    }
  }
  if (part.absent) return part;
  part.m = part.m + 0.0f;

  const float shift = part.m == -kInfinity ? 0.0f : part.m;
  float lanes[kStripes] = {};
  part.acc.assign(static_cast<std::size_t>(p.value_dim), 0.0f);
  float* acc = part.acc.data();
  for (const auto& range : ranges) {
    for (std::int64_t j = range[0]; j < range[1]; ++j) {
      const float weight = exp_twin(s[j - begin] - shift);
      lanes[j % kStripes] = lanes[j % kStripes] + weight;
      const std::int64_t index = j * p.kv_heads + row.kv_head;
      const float w = p.v_scale.empty() ? weight : weight * p.v_scale[static_cast<std::size_t>(index)];
      const float* v = p.v.data() + index * p.value_dim;
      for (std::int64_t d = 0; d < p.value_dim; ++d) acc[d] = KVROOF_FMA(w, v[d], acc[d]);
    }
  }
  part.l = tree(lanes);
  return part;
}

TWIN_INLINE Partial merge(Partial a, Partial b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  const float m = a.m > b.m ? a.m : b.m;
  const float shift = m == -kInfinity ? 0.0f : m;
  const float ea = exp_twin(a.m - shift);
  const float eb = exp_twin(b.m - shift);
  a.m = m;
  a.l = KVROOF_FMA(a.l, ea, b.l * eb);
  for (std::size_t d = 0; d < a.acc.size(); ++d) a.acc[d] = KVROOF_FMA(a.acc[d], ea, b.acc[d] * eb);
  return a;
}

TWIN_INLINE void finish(const Row& row, const Partial& part, float* out, float& lse) {
  const std::int64_t dv = row.p.value_dim;
  const bool has_sink = !row.p.sink_logits.empty();
  const float t = has_sink ? row.p.sink_logits[static_cast<std::size_t>(row.head)] : -kInfinity;
  if (part.empty()) {
    for (std::int64_t d = 0; d < dv; ++d) out[d] = t != t ? kNaN : 0.0f;
    lse = canonical(t);
    return;
  }
  if (!has_sink) {
    for (std::int64_t d = 0; d < dv; ++d) out[d] = canonical(part.acc[static_cast<std::size_t>(d)] / part.l);
    lse = canonical(part.m + log_twin(part.l));
    return;
  }
  const float m = part.m > t ? part.m : t;
  const float e = exp_twin(part.m - m);
  const float l = KVROOF_FMA(part.l, e, exp_twin(t - m));
  for (std::int64_t d = 0; d < dv; ++d) out[d] = canonical((part.acc[static_cast<std::size_t>(d)] * e) / l);
  lse = canonical(m + log_twin(l));
}

KVROOF_FMA_CLONES(Partial, segment_of, (const Row& row, std::int64_t g), (row, g), segment)
KVROOF_FMA_CLONES(Partial, merge_of, (Partial a, Partial b), (std::move(a), std::move(b)), merge)
KVROOF_FMA_CLONES(void, finish_of, (const Row& row, const Partial& part, float* out, float& lse), (row, part, out, lse),
                  finish)

// Node (level, x): the aligned span of 2^level segments that begins at segment x * 2^level.
Partial node(const Row& row, int level, std::int64_t x) {
  const std::int64_t begin = (x << level) * kTwinSegmentRows;
  const std::int64_t end = begin + (kTwinSegmentRows << level);
  const bool sees_kept = begin < row.kept;
  const bool sees_window = end > row.first && begin <= row.position;
  if (!sees_kept && !sees_window) return {};
  if (level == 0) return segment_of(row, x);
  return merge_of(node(row, level - 1, 2 * x), node(row, level - 1, 2 * x + 1));
}

TWIN_INLINE void project(const float* w, const float* x, std::int64_t outputs, std::int64_t inputs, float* y) {
  for (std::int64_t o = 0; o < outputs; ++o) {
    float sum = 0.0f;
    for (std::int64_t k = 0; k < inputs; ++k) sum = KVROOF_FMA(w[o * inputs + k], x[k], sum);
    y[o] = canonical(sum);
  }
}

TWIN_INLINE void sincos_twin(double a, double& sine, double& cosine) {
  const double n = std::nearbyint(a * 0x1.45f306dc9c883p-1);
  double r = KVROOF_FMA64(-n, 0x1.921fb544p+0, a);
  r = KVROOF_FMA64(-n, 0x1.0b4611a6p-34, r);
  r = KVROOF_FMA64(-n, 0x1.3198a2e037073p-69, r);
  const double z = r * r;
  double s = 0x1.5e0a4fc16be59p-33;
  s = KVROOF_FMA64(s, z, -0x1.ae6008d114485p-26);
  s = KVROOF_FMA64(s, z, 0x1.71de37946ed6dp-19);
  s = KVROOF_FMA64(s, z, -0x1.a01a019e820aep-13);
  s = KVROOF_FMA64(s, z, 0x1.1111111110babp-7);
  s = KVROOF_FMA64(s, z, -0x1.5555555555555p-3);
  s = KVROOF_FMA64(r * z, s, r);
  double c = -0x1.907cd8ff5ede7p-37;
  c = KVROOF_FMA64(c, z, 0x1.1eeb67d026ec6p-29);
  c = KVROOF_FMA64(c, z, -0x1.27e4fa16cc2d1p-22);
  c = KVROOF_FMA64(c, z, 0x1.a01a019f4ddfdp-16);
  c = KVROOF_FMA64(c, z, -0x1.6c16c16c16963p-10);
  c = KVROOF_FMA64(c, z, 0x1.5555555555555p-5);
  c = KVROOF_FMA64(z * z, c, KVROOF_FMA64(z, -0.5, 1.0));
  switch (static_cast<std::int64_t>(n) & 3) {
    case 0: sine = s, cosine = c; break;
    case 1: sine = c, cosine = -s; break;
    case 2: sine = -s, cosine = -c; break;
    default: sine = -c, cosine = s; break;
  }
}

TWIN_INLINE void rope(float* x, std::int64_t d, std::int64_t position, const double* inv_freq, bool interleaved) {
  for (std::int64_t i = 0; i < d / 2; ++i) {
    double sine, cosine;
    sincos_twin(static_cast<double>(position) * inv_freq[i], sine, cosine);
    const float c = static_cast<float>(cosine), s = static_cast<float>(sine);
    float& first = x[interleaved ? 2 * i : i];
    float& second = x[interleaved ? 2 * i + 1 : i + d / 2];
    const float a = first, b = second;
    first = canonical(KVROOF_FMA(a, c, -(b * s)));
    second = canonical(KVROOF_FMA(b, c, a * s));
  }
}

KVROOF_FMA_CLONES(float, exp_of, (float x), (x), exp_twin)
KVROOF_FMA_CLONES(float, tanh_of, (float x), (x), tanh_twin)
KVROOF_FMA_CLONES(float, log_of, (float x), (x), log_twin)
KVROOF_FMA_CLONES(void, sincos_of, (double a, double& sine, double& cosine), (a, sine, cosine), sincos_twin)
KVROOF_FMA_CLONES(void, project_of,
                  (const float* w, const float* x, std::int64_t outputs, std::int64_t inputs, float* y),
                  (w, x, outputs, inputs, y), project)
KVROOF_FMA_CLONES(void, rope_of,
                  (float* x, std::int64_t d, std::int64_t position, const double* inv_freq, bool interleaved),
                  (x, d, position, inv_freq, interleaved), rope)

}  // namespace

void lane_twin_attention(const AttentionProblem& p, std::vector<float>& out, std::vector<float>& lse) {
  out.resize(static_cast<std::size_t>(p.n * p.query_heads * p.value_dim));
  lse.resize(static_cast<std::size_t>(p.n * p.query_heads));
  int levels = 0;
  while ((kTwinSegmentRows << levels) < p.T) ++levels;
  for (std::int64_t r = 0; r < p.n; ++r) {
    const std::int64_t position = p.T - p.n + r;
    const std::int64_t first = p.window > position ? 0 : position - p.window + 1;
    for (std::int64_t head = 0; head < p.query_heads; ++head) {
      const std::int64_t index = r * p.query_heads + head;
      const Row row{p,    p.q.data() + index * p.key_dim,      position,
                    head, head / (p.query_heads / p.kv_heads), std::min(p.kept_tokens, first),
                    first};
      finish_of(row, node(row, levels, 0), out.data() + index * p.value_dim, lse[static_cast<std::size_t>(index)]);
    }
  }
}

float twin_exp(float x) { return exp_of(x); }
float twin_tanh(float x) { return tanh_of(x); }
float twin_log(float x) { return log_of(x); }
void twin_sincos(double angle, double& sine, double& cosine) { sincos_of(angle, sine, cosine); }

void twin_project(const float* w, const float* x, std::int64_t outputs, std::int64_t inputs, float* y) {
  project_of(w, x, outputs, inputs, y);
}

void twin_rope(float* x, std::int64_t d, std::int64_t position, const double* inv_freq, bool interleaved) {
  rope_of(x, d, position, inv_freq, interleaved);
}

}  // namespace kvroof::reference
