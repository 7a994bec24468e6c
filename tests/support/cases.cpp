#include "tests/support/cases.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "reference/half.hpp"
#include "reference/inputs.hpp"

namespace kvroof::test {
namespace {

using reference::mix64;
using reference::uniform;

// One stream per array, so that changing a shape moves no other array's values.
enum Stream : std::uint64_t { kQ, kK, kV, kKScale, kVScale, kSlopes, kSinks, kStreams };

std::uint64_t stream(const CaseSpec& spec, Stream which) { return spec.seed * kStreams + which; }

float round_to_storage(Storage storage, float x) {
  switch (storage) {
    case Storage::f32: return x;
    case Storage::f16: return reference::f16_to_f32(reference::f32_to_f16(x));
    case Storage::bf16: return reference::bf16_to_f32(reference::f32_to_bf16(x));
    case Storage::int8: return std::nearbyint(x);
  }
  return x;
}

// Smallest magnitudes of each storage: 2^-149 * 71 (about 1e-40) in f32, one code of f16 and bf16 and a few above.
float tiny(Storage storage, float u) {
  switch (storage) {
    case Storage::f32: return u * 0x1p-132f;
    case Storage::f16: return u * 0x1p-20f;
    case Storage::bf16: return u * 0x1p-128f;
    case Storage::int8: return u * 3.0f;
  }
  return u;
}

float element(const CaseSpec& spec, Storage storage, Stream which, std::int64_t t, std::uint64_t i) {
  const float u = uniform(stream(spec, which), i);
  const float unit = storage == Storage::int8 ? 127.0f : 1.0f;
  float x = u * unit;
  if (spec.inputs == Inputs::subnormal) x = tiny(storage, u);
  if (spec.inputs == Inputs::mean_one && which == kV) x = (1.0f + 0.5f * u) * (unit == 1.0f ? 1.0f : 84.0f);
  // Scores grow by about 60 over the context with q near +1 (see make_case).
  if (spec.inputs == Inputs::rising && which == kK) {
    x = (0.25f * u + 0.75f * static_cast<float>(t + 1) / static_cast<float>(spec.T)) * unit;
  }
  return round_to_storage(storage, x);
}

void fill_rows(const CaseSpec& spec, Storage storage, Stream which, std::int64_t d, std::vector<float>& rows) {
  const std::int64_t per_token = spec.kv_heads * d;
  rows.resize(static_cast<std::size_t>(spec.T * per_token));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = element(spec, storage, which, static_cast<std::int64_t>(i) / per_token, i);
  }
}

void fill_scales(const CaseSpec& spec, Storage storage, Stream which, std::vector<float>& scales) {
  if (storage != Storage::int8) return;
  scales.resize(static_cast<std::size_t>(spec.T * spec.kv_heads));
  const float unit = spec.inputs == Inputs::subnormal ? 0x1p-124f : 1.0f / 127.0f;
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = unit * (1.25f + 0.5f * uniform(stream(spec, which), i));
}

}  // namespace

const char* inputs_name(Inputs inputs) {
  switch (inputs) {
    case Inputs::uniform: return "uniform";
    case Inputs::large: return "large";
    case Inputs::rising: return "rising";
    case Inputs::zero_q: return "zero_q";
    case Inputs::mean_one: return "mean_one";
    case Inputs::subnormal: return "subnormal";
  }
  return "?";
}

CaseSpec case_of(std::int64_t query_heads, std::int64_t kv_heads, std::int64_t key_dim, std::int64_t value_dim,
                 std::int64_t n, std::int64_t T, Storage storage, std::uint64_t seed) {
  CaseSpec spec;
  spec.query_heads = query_heads;
  spec.kv_heads = kv_heads;
  spec.key_dim = key_dim;
  spec.value_dim = value_dim;
  spec.n = n;
  spec.T = T;
  spec.k_storage = spec.v_storage = storage;
  spec.seed = seed;
  return spec;
}

std::string describe(const CaseSpec& s) {
  char text[400];
  char window[32];
  std::snprintf(window, sizeof window, "%lld", static_cast<long long>(s.window));
  std::snprintf(text, sizeof text,
                "Hq:%lld/Hkv:%lld/Dk:%lld/Dv:%lld/n:%lld/T:%lld/k:%s/v:%s/W:%s/kept:%lld/scale:%a/softcap:%g/alibi:%d/"
                "sink:%d/inputs:%s/seed:%llu",
                static_cast<long long>(s.query_heads), static_cast<long long>(s.kv_heads),
                static_cast<long long>(s.key_dim), static_cast<long long>(s.value_dim), static_cast<long long>(s.n),
                static_cast<long long>(s.T), storage_name(s.k_storage), storage_name(s.v_storage),
                s.window == kAll ? "all" : window, static_cast<long long>(s.kept_tokens), static_cast<double>(s.scale),
                static_cast<double>(s.softcap), s.alibi, s.sink, inputs_name(s.inputs),
                static_cast<unsigned long long>(s.seed));
  return text;
}

Case make_case(const CaseSpec& spec) {
  Case c;
  c.spec = spec;
  reference::AttentionProblem& p = c.problem;
  p.query_heads = spec.query_heads;
  p.kv_heads = spec.kv_heads;
  p.key_dim = spec.key_dim;
  p.value_dim = spec.value_dim;
  p.n = spec.n;
  p.T = spec.T;
  p.scale = spec.scale;
  p.window = spec.window;
  p.kept_tokens = spec.kept_tokens;
  p.softcap = spec.softcap;

  // Query r of a sequence is a function of its absolute position: a chunk and single tokens get the same queries.
  const std::int64_t per_query = spec.query_heads * spec.key_dim;
  p.q.resize(static_cast<std::size_t>(spec.n * per_query));
  for (std::size_t i = 0; i < p.q.size(); ++i) {
    float u = uniform(stream(spec, kQ), i + static_cast<std::uint64_t>((spec.T - spec.n) * per_query));
    if (spec.inputs == Inputs::large) u *= 40.0f;
    if (spec.inputs == Inputs::rising)
      u = (1.0f + 0.25f * u) * (80.0f / (spec.scale * static_cast<float>(spec.key_dim)));
    if (spec.inputs == Inputs::zero_q) u = 0.0f;
    p.q[i] = u;
  }
  fill_rows(spec, spec.k_storage, kK, spec.key_dim, p.k);
  fill_rows(spec, spec.v_storage, kV, spec.value_dim, p.v);
  fill_scales(spec, spec.k_storage, kKScale, p.k_scale);
  fill_scales(spec, spec.v_storage, kVScale, p.v_scale);
  for (std::int64_t h = 0; h < spec.query_heads; ++h) {
    const auto i = static_cast<std::uint64_t>(h);
    if (spec.alibi) p.alibi_slopes.push_back(0.02f * uniform(stream(spec, kSlopes), i));
    if (spec.sink) p.sink_logits.push_back((h % 5 == 3 ? 40.0f : 4.0f) * uniform(stream(spec, kSinks), i));
  }
  return c;
}

Case single_query(const Case& c, std::int64_t r) {
  Case one = c;
  reference::AttentionProblem& p = one.problem;
  const std::int64_t per_query = p.query_heads * p.key_dim;
  one.spec.n = p.n = 1;
  one.spec.T = p.T = c.problem.T - c.problem.n + r + 1;
  p.q.assign(c.problem.q.begin() + r * per_query, c.problem.q.begin() + (r + 1) * per_query);
  p.k.resize(static_cast<std::size_t>(p.T * p.kv_heads * p.key_dim));
  p.v.resize(static_cast<std::size_t>(p.T * p.kv_heads * p.value_dim));
  if (!p.k_scale.empty()) p.k_scale.resize(static_cast<std::size_t>(p.T * p.kv_heads));
  if (!p.v_scale.empty()) p.v_scale.resize(static_cast<std::size_t>(p.T * p.kv_heads));
  return one;
}

Case last_queries(const Case& c, std::int64_t n) {
  Case fewer = c;
  fewer.spec.n = fewer.problem.n = n;
  fewer.problem.q.erase(fewer.problem.q.begin(),
                        fewer.problem.q.begin() + (c.problem.n - n) * c.problem.query_heads * c.problem.key_dim);
  return fewer;
}

std::uint64_t Choices::next() { return mix64(mix64(seed_ ^ 0x6b76726f6f66ull) ^ count_++); }

CaseSpec random_spec(std::uint64_t seed, std::int64_t work) {
  constexpr std::int64_t groups[] = {1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 71};
  constexpr std::int64_t dims[] = {1, 8, 16, 24, 33, 40, 48, 64, 64, 65, 72, 80, 96, 112, 120, 128, 160, 192, 256, 576};
  constexpr std::int64_t chunks[] = {1, 1, 1, 2, 3, 4, 5, 8, 15, 16, 17, 33};
  constexpr std::int64_t centres[] = {1, 16, 32, 100, 512, 1024, 1536, 2048};
  constexpr std::int64_t windows[] = {kAll, kAll, kAll, 1, 2, 3, 15, 16, 17, 100, 511, 512, 513, 700};
  constexpr std::int64_t kept[] = {0, 0, 1, 4, 16, 513};
  constexpr float caps[] = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity(), 50.0f,
                            1.0f};
  constexpr float scales[] = {0.125f, 0.0883883461f, 1.0f, 0.37f};
  constexpr Inputs kinds[] = {Inputs::uniform, Inputs::uniform,  Inputs::large,
                              Inputs::rising,  Inputs::mean_one, Inputs::subnormal};

  Choices choose(seed);
  CaseSpec s;
  s.seed = seed;
  const std::int64_t group = choose.pick(groups);
  s.kv_heads = group >= 16 ? 1 : choose.between(1, 4);
  s.query_heads = group * s.kv_heads;
  s.key_dim = choose.pick(dims);
  s.value_dim = choose.one_in(2) ? s.key_dim : choose.pick(dims);
  s.n = choose.pick(chunks);
  s.T = s.n + std::max<std::int64_t>(0, choose.pick(centres) + choose.between(-3, 3) - (choose.one_in(2) ? s.n : 0));
  s.k_storage = choose.pick(kStorages);
  s.v_storage = choose.one_in(2) ? s.k_storage : choose.pick(kStorages);
  s.window = choose.pick(windows);
  s.kept_tokens = s.window == kAll ? 0 : choose.pick(kept);
  s.softcap = choose.pick(caps);
  s.scale = choose.pick(scales);
  s.alibi = choose.one_in(3);
  s.sink = choose.one_in(3);
  s.inputs = choose.pick(kinds);
  const auto cost = [&s] { return s.n * s.T * s.query_heads * (s.key_dim + s.value_dim); };
  while (cost() > work) {  // shrink what costs most without losing the odd sizes
    if (s.n > 3) {
      s.T -= s.n - (s.n + 1) / 2;
      s.n = (s.n + 1) / 2;
    } else if (s.kv_heads > 1) {
      s.kv_heads = 1;
      s.query_heads = group;
    } else if (s.key_dim > 65 || s.value_dim > 65) {
      s.key_dim = std::min<std::int64_t>(s.key_dim, 65);
      s.value_dim = std::min<std::int64_t>(s.value_dim, 33);
    } else {
      s.T = std::max(s.n, s.T * 2 / 3);
      if (s.T == s.n) break;
    }
  }
  return s;
}

std::uint32_t encode_element(Storage storage, float value) {
  switch (storage) {
    case Storage::f32: return reference::float_bits(value);
    case Storage::f16: return reference::f32_to_f16(value);
    case Storage::bf16: return reference::f32_to_bf16(value);
    case Storage::int8: return static_cast<std::uint8_t>(static_cast<std::int8_t>(value));
  }
  return 0;
}

void encode_row(Storage storage, const float* values, std::int64_t d, std::byte* at) {
  const std::size_t size = storage_bytes(storage);
  for (std::int64_t i = 0; i < d; ++i) {
    const std::uint32_t bits = encode_element(storage, values[i]);
    std::memcpy(at + static_cast<std::size_t>(i) * size, &bits, size);  // little-endian, as every machine this runs on
  }
}

bool case_selected(std::int64_t number) {
  const char* only = std::getenv("KVROOF_TEST_CASE");
  return only == nullptr || *only == '\0' || std::atoll(only) == number;
}

}  // namespace kvroof::test
