// The scalar reference as a rival, in its two builds: one operation at a time, and left to the compiler's vectorizer.
#include "reference/scalar.hpp"

#include <cstdio>

#include "bench/clock.hpp"
#include "bench/rivals/rival.hpp"
#include "bench/rivals/scalar_storage.hpp"
#include "bench/threads.hpp"

namespace kvroof::bench {
namespace {

using Function = void (*)(const reference::ScalarAttention&, std::int64_t, std::int64_t, float*);

struct State {
  reference::ScalarAttention args;
  CacheSet caches;
  std::vector<float> out;
  std::vector<std::vector<float>> scores;  // one per thread
};

Rival make(const std::string& impl, const std::string& form, Function function, const DecodeSetup& setup) {
  const DecodeCase& c = setup.c;
  auto state = std::make_shared<State>();
  state->caches = setup.caches;
  state->out.resize(static_cast<std::size_t>(c.shape.query_heads * c.shape.value_dim));
  state->scores.resize(static_cast<std::size_t>(c.threads), std::vector<float>(static_cast<std::size_t>(c.T)));
  reference::ScalarAttention& a = state->args;
  a.query_heads = c.shape.query_heads;
  a.kv_heads = c.shape.kv_heads;
  a.key_dim = c.shape.key_dim;
  a.value_dim = c.shape.value_dim;
  a.n = 1;
  a.T = c.T;
  a.scale = setup.scale;
  a.k_storage = a.v_storage = scalar_storage(c.storage);
  const KvView strides = contiguous_strides(c);
  a.k_row_stride = strides.k_row_stride;
  a.v_row_stride = strides.v_row_stride;
  a.k_head_stride = strides.k_head_stride;
  a.v_head_stride = strides.v_head_stride;
  a.k_scale_row_stride = strides.k_scale_row_stride;
  a.v_scale_row_stride = strides.v_scale_row_stride;
  a.k_scale_head_stride = strides.k_scale_head_stride;
  a.v_scale_head_stride = strides.v_scale_head_stride;
  a.q = setup.q.data();
  a.out = state->out.data();

  Rival rival;
  rival.impl = impl;
  rival.form = form;
  rival.implementation = form;
  rival.key_storage = rival.value_storage = c.storage;
  rival.bytes = static_cast<std::int64_t>(c.bytes() + 2 * setup.caches.scale_count * sizeof(float));
  const int threads = c.threads;
  State* const s = state.get();
  rival.call = [s, function, threads](std::int64_t visit) {
    s->args.k = s->caches.k(visit);
    s->args.v = s->caches.v(visit);
    s->args.k_scale = s->caches.k_scale(visit);
    s->args.v_scale = s->caches.v_scale(visit);
    run_team(threads, [&](int p) {
      const std::int64_t heads = s->args.query_heads;
      function(s->args, heads * p / threads, heads * (p + 1) / threads, s->scores[static_cast<std::size_t>(p)].data());
    });
  };
  rival.out = [s] { return s->out.data(); };
  rival.keep = state;
  return rival;
}

}  // namespace

Rival failed_rival(const std::string& impl, const std::string& status, const std::string& reason) {
  Rival rival;
  rival.impl = impl;
  rival.status = status;
  rival.reason = reason;
  return rival;
}

void check_first_call(Rival& rival, const DecodeSetup& setup) {
  if (rival.status != "ok") return;
  const std::int64_t start = now_ns();
  rival.call(0);
  rival.first_call_ns = static_cast<double>(now_ns() - start);
  rival.check = check_rival(setup, rival.out(), rival.precision);
  if (rival.check.passed) return;
  rival.status = "not_measured";
  char text[160];
  std::snprintf(text, sizeof text, "wrong result: error %.3g of the largest output, bound %.3g", rival.check.max_error,
                rival.check.bound);
  rival.reason = text;
}

std::vector<Rival> scalar_rivals(const DecodeSetup& setup) {
  std::vector<Rival> rivals;
  rivals.push_back(make("scalar", "reference/scalar.cpp, vectorizer off", reference::scalar_novec::attention, setup));
  rivals.push_back(make("scalar_vectorized", "reference/scalar.cpp, compiler's vectorizer",
                        reference::scalar_vectorized::attention, setup));
  return rivals;
}

}  // namespace kvroof::bench
