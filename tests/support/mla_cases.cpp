#include "tests/support/mla_cases.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "reference/inputs.hpp"
#include "reference/mla_row.hpp"

namespace kvroof::test {
namespace {

using reference::MlaProblem;
using reference::MlaShape;

enum Stream : std::uint64_t { kQuery, kRow, kUk, kUv, kSink, kDown, kTurned, kHidden, kStreams };

float draw(std::uint64_t seed, Stream stream, std::int64_t i) {
  return reference::uniform(seed * kStreams + stream, static_cast<std::uint64_t>(i));
}

std::vector<float> draw_all(std::uint64_t seed, Stream stream, std::int64_t count, float size, std::int64_t first = 0) {
  std::vector<float> x(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = size * draw(seed, stream, first + static_cast<std::int64_t>(i));
  return x;
}

reference::StorageKind kind(Storage storage) { return static_cast<reference::StorageKind>(storage); }

}  // namespace

const char* mla_form_name(reference::MlaForm form) {
  return form == reference::MlaForm::absorbed ? "absorbed" : "reconstruct";
}

std::string describe(const MlaCaseSpec& s) {
  const std::string window = s.window == kAll ? "all" : std::to_string(s.window);
  char text[300];
  std::snprintf(
      text, sizeof text,
      "H:%lld/nope:%lld/rope:%lld/Dv:%lld/dc:%lld/n:%lld/T:%lld/storage:%s/W:%s/kept:%lld/scale:%a/softcap:%g/sink:%d/"
      "seed:%llu",
      static_cast<long long>(s.shape.heads), static_cast<long long>(s.shape.nope_dim),
      static_cast<long long>(s.shape.rope_dim), static_cast<long long>(s.shape.value_dim),
      static_cast<long long>(s.shape.latent_dim), static_cast<long long>(s.n), static_cast<long long>(s.T),
      storage_name(s.storage), window.c_str(), static_cast<long long>(s.kept_tokens), static_cast<double>(s.scale),
      static_cast<double>(s.softcap), s.sink ? 1 : 0, static_cast<unsigned long long>(s.seed));
  return text;
}

void restore_rows(MlaCase& c) {
  const MlaShape& s = c.spec.shape;
  const std::int64_t row = s.latent_dim + s.rope_dim;
  std::vector<std::byte> stored(
      static_cast<std::size_t>(reference::mla_row_bytes(kind(c.spec.storage), s.latent_dim, s.rope_dim)));
  std::vector<float> values(static_cast<std::size_t>(row));
  c.problem.latent.clear();
  c.problem.rope_key.clear();
  for (std::int64_t t = 0; t < c.spec.T; ++t) {
    reference::mla_encode_row(kind(c.spec.storage), c.rows.data() + t * row, s.latent_dim, s.rope_dim, stored.data());
    reference::mla_decode_row(kind(c.spec.storage), stored.data(), s.latent_dim, s.rope_dim, values.data());
    c.problem.latent.insert(c.problem.latent.end(), values.begin(), values.begin() + s.latent_dim);
    c.problem.rope_key.insert(c.problem.rope_key.end(), values.begin() + s.latent_dim, values.end());
  }
}

MlaCase make_mla_case(const MlaCaseSpec& spec) {
  MlaCase c;
  c.spec = spec;
  MlaProblem& p = c.problem;
  const MlaShape& s = spec.shape;
  p.shape = s;
  p.n = spec.n;
  p.T = spec.T;
  p.scale = spec.scale;
  p.window = spec.window;
  p.kept_tokens = spec.kept_tokens;
  p.softcap = spec.softcap;
  // A query is a function of its absolute position: a chunk and single tokens get the same ones.
  const std::int64_t query = s.heads * (s.nope_dim + s.rope_dim);
  p.q = draw_all(spec.seed, kQuery, spec.n * query, 2.0f, (spec.T - spec.n) * query);
  // Weights of the usual size: outputs about as large as the latent.
  const float size = std::sqrt(3.0f / static_cast<float>(s.latent_dim));
  p.w_uk = draw_all(spec.seed, kUk, s.heads * s.nope_dim * s.latent_dim, size);
  p.w_uv = draw_all(spec.seed, kUv, s.heads * s.value_dim * s.latent_dim, size);
  if (spec.sink) p.sink_logits = draw_all(spec.seed, kSink, s.heads, 4.0f);
  c.rows = draw_all(spec.seed, kRow, spec.T * (s.latent_dim + s.rope_dim), 2.0f);
  restore_rows(c);
  return c;
}

MlaCase single_query(const MlaCase& c, std::int64_t r) {
  MlaCase one = c;
  MlaProblem& p = one.problem;
  const MlaShape& s = c.spec.shape;
  const std::int64_t query = s.heads * (s.nope_dim + s.rope_dim);
  one.spec.n = p.n = 1;
  one.spec.T = p.T = c.spec.T - c.spec.n + r + 1;
  p.q.assign(c.problem.q.begin() + r * query, c.problem.q.begin() + (r + 1) * query);
  one.rows.resize(static_cast<std::size_t>(p.T * (s.latent_dim + s.rope_dim)));
  p.latent.resize(static_cast<std::size_t>(p.T * s.latent_dim));
  p.rope_key.resize(static_cast<std::size_t>(p.T * s.rope_dim));
  return one;
}

MlaCaseSpec random_mla_spec(std::uint64_t seed, std::int64_t work) {
  constexpr std::int64_t heads[] = {1, 2, 3, 4, 8, 15, 16, 17, 33};
  constexpr std::int64_t nopes[] = {1, 8, 15, 16, 32, 33, 64, 128};
  constexpr std::int64_t ropes[] = {0, 2, 6, 8, 16, 34, 64};
  constexpr std::int64_t values[] = {1, 7, 8, 16, 40, 64, 65, 128};
  constexpr std::int64_t latents[] = {1, 16, 16, 31, 64, 127, 128, 129, 200, 256, 300, 512};
  constexpr std::int64_t chunks[] = {1, 1, 1, 1, 2, 3, 5, 8, 16, 17, 33, 65};
  constexpr std::int64_t centres[] = {1, 16, 64, 100, 512, 1024};
  constexpr std::int64_t windows[] = {kAll, kAll, kAll, 1, 2, 17, 100, 511, 513};
  constexpr std::int64_t kept[] = {0, 0, 1, 4, 70};
  constexpr float caps[] = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity(), 50.0f,
                            3.0f};
  constexpr float scales[] = {0.25f, 0.114721f, 0.135234f, 1.0f};
  Choices choose(seed);
  MlaCaseSpec s;
  s.seed = seed;
  s.shape = {choose.pick(heads), choose.pick(nopes), choose.pick(ropes), choose.pick(values), choose.pick(latents)};
  s.n = choose.pick(chunks);
  s.T = s.n + std::max<std::int64_t>(0, choose.pick(centres) + choose.between(-3, 3) - (choose.one_in(2) ? s.n : 0));
  s.storage = choose.pick(kStorages);
  s.window = choose.pick(windows);
  s.kept_tokens = s.window == kAll ? 0 : choose.pick(kept);
  s.softcap = choose.pick(caps);
  s.scale = choose.pick(scales);
  s.sink = choose.one_in(3);
  const auto cost = [&s] {
    const MlaShape& m = s.shape;
    return s.T * m.heads *
           (m.latent_dim * (m.nope_dim + m.value_dim) + s.n * (m.nope_dim + 2 * m.latent_dim + 2 * m.rope_dim));
  };
  while (cost() > work) {  // shrink what costs most without losing the odd sizes
    if (s.shape.heads > 3) {
      s.shape.heads = (s.shape.heads + 1) / 2;
    } else if (s.n > 17) {
      s.T -= s.n - (s.n + 1) / 2;
      s.n = (s.n + 1) / 2;
    } else if (s.shape.nope_dim > 33 || s.shape.value_dim > 40) {
      s.shape.nope_dim = std::min<std::int64_t>(s.shape.nope_dim, 33);
      s.shape.value_dim = std::min<std::int64_t>(s.shape.value_dim, 17);
    } else if (s.T > s.n) {
      s.T = std::max(s.n, s.T * 2 / 3);
    } else {
      break;
    }
  }
  return s;
}

std::string describe(const CompressSpec& s) {
  char text[200];
  std::snprintf(text, sizeof text, "compress/model:%lld/dc:%lld/rope:%lld/n:%lld/position:%lld/pairing:%s/seed:%llu",
                static_cast<long long>(s.model_dim), static_cast<long long>(s.latent_dim),
                static_cast<long long>(s.rope_dim), static_cast<long long>(s.n),
                static_cast<long long>(s.first_position), s.interleaved ? "interleaved" : "half_split",
                static_cast<unsigned long long>(s.seed));
  return text;
}

CompressCase make_compress_case(const CompressSpec& spec) {
  CompressCase c;
  c.spec = spec;
  c.weights.model_dim = spec.model_dim;
  c.weights.latent_dim = spec.latent_dim;
  c.weights.rope_dim = spec.rope_dim;
  c.weights.interleaved = spec.interleaved;
  const float size = std::sqrt(3.0f / static_cast<float>(spec.model_dim));
  c.weights.w_dkv = draw_all(spec.seed, kDown, spec.latent_dim * spec.model_dim, size);
  c.weights.w_kr = draw_all(spec.seed, kTurned, spec.rope_dim * spec.model_dim, size);
  for (std::int64_t i = 0; i < spec.rope_dim / 2; ++i)  // dyadic, so that no library's pow is part of a golden value
    c.weights.inv_freq.push_back(std::ldexp(1.0, -static_cast<int>(i * 16 / spec.rope_dim)) / 3.0);
  c.x = draw_all(spec.seed, kHidden, spec.n * spec.model_dim, 2.0f, spec.first_position * spec.model_dim);
  return c;
}

std::vector<float> compress_twin(const CompressCase& c) {
  const std::int64_t row = c.spec.latent_dim + c.spec.rope_dim;
  std::vector<float> rows(static_cast<std::size_t>(c.spec.n * row));
  for (std::int64_t r = 0; r < c.spec.n; ++r) {
    float* to = rows.data() + r * row;
    reference::mla_compress_twin(c.weights, c.x.data() + r * c.spec.model_dim, c.spec.first_position + r, to,
                                 to + c.spec.latent_dim);
  }
  return rows;
}

std::vector<MlaCaseSpec> golden_mla_cases() {
  std::vector<MlaCaseSpec> cases;
  for (const Storage storage : kStorages) {
    const auto add = [&](const MlaShape& shape, std::int64_t n, std::int64_t T) -> MlaCaseSpec& {
      MlaCaseSpec spec;
      spec.shape = shape;
      spec.n = n;
      spec.T = T;
      spec.storage = storage;
      spec.seed = cases.size() + 1;
      return cases.emplace_back(spec);
    };
    add(kMlaToy, 1, 1);
    add(kMlaToy, 1, 1300);              // three segments
    add({4, 24, 16, 40, 140}, 5, 530);  // odd sizes, a chunk, a short last group of int8
    add({17, 33, 6, 65, 130}, 1, 100);  // more than sixteen heads
    MlaCaseSpec& masked = add({3, 16, 8, 16, 64}, 9, 700);
    masked.window = 530;
    masked.kept_tokens = 5;
    masked.softcap = 30.0f;
    masked.sink = true;
    // One of each real model's dimensions: scalar builds take long for them.
    if (storage == Storage::int8) add(kMlaV2Lite, 1, 40).scale = 0.114721f;
    if (storage == Storage::bf16) add(kMlaV3, 1, 2).scale = 0.135234f;
  }
  return cases;
}

std::vector<CompressSpec> golden_compress_cases() {
  return {{64, 16, 8, 1, 0, true, 1},  {64, 16, 8, 5, 4095, true, 2},       {64, 16, 8, 5, 4095, false, 3},
          {100, 33, 6, 3, 7, true, 4}, {7168, 512, 64, 2, 130000, true, 5}, {2048, 512, 64, 2, 1, false, 6}};
}

std::string golden_name(reference::MlaForm form, const MlaCaseSpec& spec) {
  return std::string("form:") + mla_form_name(form) + "/" + describe(spec);
}

}  // namespace kvroof::test
