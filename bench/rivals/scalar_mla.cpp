// The scalar reference over latent rows as a rival, in its two builds.
#include "bench/rivals/rival.hpp"
#include "bench/rivals/scalar_storage.hpp"
#include "bench/threads.hpp"
#include "reference/scalar.hpp"

namespace kvroof::bench {
namespace {

using reference::ScalarAttention;
using reference::ScalarMla;
using AttentionLoops = void (*)(const ScalarAttention&, std::int64_t, std::int64_t, float*);
using MlaLoops = void (*)(const ScalarMla&, std::int64_t, std::int64_t, float*);

struct State {
  ScalarAttention attention;  // q' given
  ScalarMla mla;              // else
  CacheSet caches;
  std::vector<float> out;
  std::vector<std::vector<float>> scratch;  // one per thread
};

struct Loops {
  const char* impl;
  const char* form;
  AttentionLoops attention;
  MlaLoops absorbed, reconstruct;
};

constexpr Loops kLoops[] = {
    {"scalar", "reference/scalar.cpp, vectorizer off", reference::scalar_novec::attention,
     reference::scalar_novec::mla_absorbed, reference::scalar_novec::mla_reconstruct},
    {"scalar_vectorized", "reference/scalar.cpp, compiler's vectorizer", reference::scalar_vectorized::attention,
     reference::scalar_vectorized::mla_absorbed, reference::scalar_vectorized::mla_reconstruct},
};

}  // namespace

std::vector<Rival> scalar_mla_rivals(const DecodeSetup& setup, const std::string& kernel,
                                     const std::vector<float>& w_uk, const std::vector<float>& w_uv) {
  const DecodeCase& c = setup.c;
  const bool given = kernel == "mla_absorbed";
  std::vector<Rival> rivals;
  for (const Loops& loops : kLoops) {
    if (given && c.storage == Storage::int8) {
      rivals.push_back(failed_rival(loops.impl, "unsupported", "no loops over int8 latent rows with q' given"));
      continue;
    }
    auto state = std::make_shared<State>();
    State* const s = state.get();
    s->caches = setup.caches;
    s->out.resize(static_cast<std::size_t>(c.shape.query_heads * c.shape.value_dim));
    const std::int64_t row = latent_row_bytes(c.storage, c.latent_dim, c.rope_dim), heads = c.shape.query_heads;
    std::int64_t scratch = c.T;
    if (given) {
      ScalarAttention& a = s->attention;
      a.query_heads = heads;
      a.kv_heads = a.n = 1;
      a.key_dim = c.shape.key_dim;
      a.value_dim = c.shape.value_dim;
      a.T = c.T;
      a.scale = setup.scale;
      a.k_storage = a.v_storage = scalar_storage(c.storage);
      a.k_row_stride = a.v_row_stride = row;
      a.q = setup.q.data();
      a.out = s->out.data();
    } else {
      ScalarMla& a = s->mla;
      a.heads = heads;
      a.rope_dim = c.rope_dim;
      a.nope_dim = c.shape.key_dim - c.rope_dim;
      a.value_dim = c.shape.value_dim;
      a.latent_dim = c.latent_dim;
      a.n = 1;
      a.T = c.T;
      a.scale = setup.scale;
      a.storage = scalar_storage(c.storage);
      a.row_stride = row;
      a.w_uk = w_uk.data();
      a.w_uv = w_uv.data();
      a.q = setup.q.data();
      a.out = s->out.data();
      scratch = reference::mla_scratch_floats(a);
    }
    s->scratch.resize(static_cast<std::size_t>(c.threads), std::vector<float>(static_cast<std::size_t>(scratch)));
    const MlaLoops mla = kernel == "mla_reconstruct" ? loops.reconstruct : loops.absorbed;
    const AttentionLoops attention = loops.attention;
    const int threads = c.threads;
    Rival rival;
    rival.impl = loops.impl;
    rival.form = rival.implementation = loops.form;
    rival.key_storage = rival.value_storage = c.storage;
    rival.bytes = static_cast<std::int64_t>(c.bytes());
    if (kernel == "mla_absorbed_step") rival.bytes += static_cast<std::int64_t>(4 * (w_uk.size() + w_uv.size()));
    rival.call = [s, given, attention, mla, threads, heads](std::int64_t visit) {
      s->attention.k = s->attention.v = s->caches.k(visit);
      s->mla.rows = s->caches.k(visit);
      run_team(threads, [&](int p) {
        float* const own = s->scratch[static_cast<std::size_t>(p)].data();
        const std::int64_t first = heads * p / threads, last = heads * (p + 1) / threads;
        if (given)
          attention(s->attention, first, last, own);
        else
          mla(s->mla, first, last, own);
      });
    };
    rival.out = [s] { return s->out.data(); };
    rival.keep = state;
    rivals.push_back(rival);
  }
  return rivals;
}

}  // namespace kvroof::bench
