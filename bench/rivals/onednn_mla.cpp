// oneDNN over latent rows with the products with W_UK and W_UV: the absorbed form, and every key and value written out.
// The weights are in the cache's type and in the layout that oneDNN prefers, reordered outside the timed part.
#include "bench/rivals/rival.hpp"

#if KVROOF_HAVE_ONEDNN

#include "bench/clock.hpp"
#include "bench/rivals/onednn_chain.hpp"

namespace kvroof::bench {
namespace {

using dnnl::memory;
using Dims = memory::dims;

struct Weights {
  const std::vector<float>& uk;  // [head][nope][latent]
  const std::vector<float>& uv;  // [head][value][latent]
};

// One product with its memory objects.
struct Product {
  dnnl::matmul primitive;
  OneDnnArgs args;
  OneDnnBuffer packed;  // the weights in oneDNN's own layout
  std::string implementation;
  void run(dnnl::stream& stream) const { primitive.execute(stream, args); }
};

// dst = src * weights. `packed`: the weights do not change, so oneDNN chooses their layout.
Product product(const memory::desc& src, std::byte* src_at, const memory::desc& weights, std::byte* weights_at,
                const memory::desc& dst, std::byte* dst_at, bool packed, dnnl::stream& stream,
                const dnnl::primitive_attr& attributes = {}) {
  const dnnl::engine& engine = onednn_engine();
  const memory::desc any(weights.get_dims(), weights.get_data_type(), memory::format_tag::any);
  const dnnl::matmul::primitive_desc pd(engine, src, packed ? any : weights, dst, attributes);
  Product p;
  p.implementation = pd.impl_info_str();
  refuse_reference(p.implementation);
  memory w(weights, engine, weights_at);
  if (pd.weights_desc() != weights) {
    p.packed = OneDnnBuffer(pd.weights_desc().get_size());
    memory own(pd.weights_desc(), engine, p.packed.data());
    dnnl::reorder(w, own).execute(stream, w, own);
    stream.wait();
    w = own;
  }
  p.primitive = dnnl::matmul(pd);
  p.args = {
      {DNNL_ARG_SRC, memory(src, engine, src_at)}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, memory(dst, engine, dst_at)}};
  return p;
}

OneDnnBuffer stored(const std::vector<float>& values, Storage storage) {
  OneDnnBuffer buffer(values.size() * storage_bytes(storage));
  store_floats(values, storage, buffer.data());
  return buffer;
}

struct Dimensions {
  explicit Dimensions(const DecodeSetup& setup)
      : H(setup.c.shape.query_heads),
        T(setup.c.T),
        latent(setup.c.latent_dim),
        rope(setup.c.rope_dim),
        nope(setup.c.shape.key_dim - setup.c.rope_dim),
        value(setup.c.shape.value_dim),
        key(setup.c.shape.key_dim),
        row(latent + rope) {}
  std::int64_t H, T, latent, rope, nope, value, key, row;
};

struct State {
  dnnl::stream stream{onednn_engine()};
  OneDnnBuffer q, uk, uv, out;
  std::vector<float> out_floats;
};

Rival rival_of(const DecodeSetup& setup, const char* form, const std::string& implementation, double setup_ns) {
  Rival rival;
  rival.impl = "onednn";
  rival.form = form;
  rival.implementation = implementation;
  rival.key_storage = rival.value_storage = rival.precision = setup.c.storage;
  rival.bytes = static_cast<std::int64_t>(setup.c.bytes());
  rival.setup_ns = setup_ns;
  return rival;
}

// ---- absorbed ----
struct Absorbed : State {
  std::shared_ptr<OneDnnChain> chain;
  Product fold, expand;
};

Rival absorbed(const DecodeSetup& setup, const Weights& weights, const ChainChoice& choice, Arena& arena) {
  const Dimensions d(setup);
  const Storage storage = setup.c.storage;
  const auto type = onednn_type(storage);
  const std::int64_t start = now_ns();
  DecodeSetup inner = setup;  // q' against the rows themselves
  inner.c.shape.key_dim = d.row;
  inner.c.shape.value_dim = d.latent;
  inner.q.assign(static_cast<std::size_t>(d.H * d.row), 0.0f);
  for (std::int64_t h = 0; h < d.H; ++h)
    for (std::int64_t i = 0; i < d.rope; ++i)
      inner.q[static_cast<std::size_t>(h * d.row + d.latent + i)] =
          setup.q[static_cast<std::size_t>(h * d.key + d.nope + i)];
  const BuiltChain built = build_chain(inner, choice, arena, true);

  auto state = std::make_shared<Absorbed>();
  state->chain = built.chain;
  state->q = stored(setup.q, storage);
  state->uk = stored(weights.uk, storage);
  state->uv = stored(weights.uv, storage);
  state->out = OneDnnBuffer(static_cast<std::size_t>(d.H * d.value) * sizeof(float));
  state->out_floats.resize(static_cast<std::size_t>(d.H * d.value));
  state->fold = product({{d.H, 1, d.nope}, type, Dims{d.key, d.key, 1}}, state->q.data(),
                        {{d.H, d.nope, d.latent}, type, Dims{d.nope * d.latent, d.latent, 1}}, state->uk.data(),
                        {{d.H, 1, d.latent}, type, Dims{d.row, d.row, 1}}, built.chain->q.data(), true, state->stream);
  state->expand = product({{d.H, 1, d.latent}, type, Dims{d.latent, d.latent, 1}}, built.chain->out.data(),
                          {{d.H, d.latent, d.value}, type, Dims{d.value * d.latent, 1, d.latent}}, state->uv.data(),
                          {{d.H, 1, d.value}, memory::data_type::f32, Dims{d.value, d.value, 1}}, state->out.data(),
                          true, state->stream);
  Rival rival = rival_of(setup, choice.name,
                         state->fold.implementation + "; " + built.implementation + "; " + state->expand.implementation,
                         static_cast<double>(now_ns() - start));
  const auto width = static_cast<std::int64_t>(storage_bytes(storage));
  rival.bytes += static_cast<std::int64_t>(weights.uk.size() + weights.uv.size()) * width;
  if (choice.form != ChainForm::as_it_lies) rival.bytes += d.T * d.latent * width;  // its V is a copy
  rival.layout_cost_ns = built.layout_ns;
  Absorbed* const s = state.get();
  rival.keep = state;
  rival.call = [s](std::int64_t visit) {
    s->fold.run(s->stream);
    s->stream.wait();
    run_chain(*s->chain, visit);
    s->expand.run(s->stream);
    s->stream.wait();
  };
  rival.out = [s] {
    load_floats(Storage::f32, s->out.data(), s->out_floats);
    return s->out_floats.data();
  };
  return rival;
}

// ---- reconstruct ----
struct Reconstruct : State {
  std::vector<Product> keys, values, rope_scores;  // per cache: these read its rows
  Product scores, sums;
  dnnl::softmax_forward softmax;
  OneDnnArgs softmax_args;
  OneDnnBuffer s, p;
};

// `any`: a head's keys lie together, [head][token][dim], each head's product by itself; else [token][head][dim], one
// large product for all heads.
Rival reconstruct(const DecodeSetup& setup, const Weights& weights, const ChainChoice& choice, Arena& arena) {
  const Dimensions d(setup);
  const Storage storage = setup.c.storage;
  const auto type = onednn_type(storage), f32 = memory::data_type::f32;
  const auto width = static_cast<std::int64_t>(storage_bytes(storage));
  const bool by_head = choice.form == ChainForm::any;
  const std::int64_t start = now_ns();
  auto state = std::make_shared<Reconstruct>();
  Reconstruct* const s = state.get();
  const std::int64_t k_bytes = (d.H * d.T * d.nope * width + 63) / 64 * 64, v_bytes = d.H * d.T * d.value * width;
  std::string reason;
  std::byte* const k = arena.scratch(4, static_cast<std::size_t>(k_bytes + v_bytes), reason);
  if (k == nullptr) throw OneDnnRefusal{"no room for keys and values: " + reason};
  std::byte* const v = k + k_bytes;
  s->q = stored(setup.q, storage);
  s->uk = stored(weights.uk, storage);
  s->uv = stored(weights.uv, storage);
  s->s = OneDnnBuffer(static_cast<std::size_t>(d.H * d.T) * sizeof(float));
  s->p = OneDnnBuffer(static_cast<std::size_t>(d.H * d.T * width));
  s->out = OneDnnBuffer(static_cast<std::size_t>(d.H * d.value) * sizeof(float));
  s->out_floats.resize(static_cast<std::size_t>(d.H * d.value));

  const auto made = [&](std::byte* rows, std::byte* w, std::int64_t dim, std::byte* to) {
    if (by_head)
      return product({{1, d.T, d.latent}, type, Dims{d.T * d.row, d.row, 1}}, rows,
                     {{d.H, d.latent, dim}, type, Dims{dim * d.latent, 1, d.latent}}, w,
                     {{d.H, d.T, dim}, type, Dims{d.T * dim, dim, 1}}, to, true, s->stream);
    return product({{d.T, d.latent}, type, Dims{d.row, 1}}, rows, {{d.latent, d.H * dim}, type, Dims{1, d.latent}}, w,
                   {{d.T, d.H * dim}, type, Dims{d.H * dim, 1}}, to, true, s->stream);
  };
  const auto head_stride = [&](std::int64_t dim) { return by_head ? d.T * dim : dim; };
  const auto row_stride = [&](std::int64_t dim) { return by_head ? dim : d.H * dim; };
  s->scores = product({{d.H, 1, d.nope}, type, Dims{d.key, d.key, 1}}, s->q.data(),
                      {{d.H, d.nope, d.T}, type, Dims{head_stride(d.nope), 1, row_stride(d.nope)}}, k,
                      {{d.H, 1, d.T}, f32, Dims{d.T, d.T, 1}}, s->s.data(), false, s->stream);
  dnnl::post_ops add_and_scale;
  add_and_scale.append_sum(1.0f);
  add_and_scale.append_eltwise(dnnl::algorithm::eltwise_linear, setup.scale, 0.0f);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(add_and_scale);
  const memory::desc rope_keys({1, d.rope, d.T}, type, Dims{d.T * d.row, 1, d.row});
  for (std::int64_t i = 0; i < setup.caches.count; ++i) {
    auto* const rows = const_cast<std::byte*>(setup.caches.k(i));  // oneDNN takes void*; it only reads these
    std::byte* const rope_at = rows + d.latent * width;
    if (i == 0) {
      s->keys.push_back(made(rows, s->uk.data(), d.nope, k));
      s->values.push_back(made(rows, s->uv.data(), d.value, v));
      s->rope_scores.push_back(
          product({{1, d.H, d.rope}, type, Dims{d.H * d.key, d.key, 1}}, s->q.data() + d.nope * width, rope_keys,
                  rope_at, {{1, d.H, d.T}, f32, Dims{d.H * d.T, d.T, 1}}, s->s.data(), false, s->stream, attributes));
      continue;
    }
    for (std::vector<Product>* each : {&s->keys, &s->values, &s->rope_scores}) each->push_back(each->front());
    for (std::vector<Product>* each : {&s->keys, &s->values})
      each->back().args[DNNL_ARG_SRC] = memory(each->front().args[DNNL_ARG_SRC].get_desc(), onednn_engine(), rows);
    s->rope_scores.back().args[DNNL_ARG_WEIGHTS] = memory(rope_keys, onednn_engine(), rope_at);
  }
  const memory::desc s_rows({d.H, 1, d.T}, f32, Dims{d.T, d.T, 1}), p_rows({d.H, 1, d.T}, type, Dims{d.T, d.T, 1});
  const dnnl::engine& engine = onednn_engine();
  const dnnl::softmax_forward::primitive_desc softmax(engine, dnnl::prop_kind::forward_inference,
                                                      dnnl::algorithm::softmax_accurate, s_rows, p_rows, 2);
  refuse_reference(softmax.impl_info_str());
  s->softmax = dnnl::softmax_forward(softmax);
  s->softmax_args = {{DNNL_ARG_SRC, memory(s_rows, engine, s->s.data())},
                     {DNNL_ARG_DST, memory(p_rows, engine, s->p.data())}};
  s->sums =
      product(p_rows, s->p.data(), {{d.H, d.T, d.value}, type, Dims{head_stride(d.value), row_stride(d.value), 1}}, v,
              {{d.H, 1, d.value}, f32, Dims{d.value, d.value, 1}}, s->out.data(), false, s->stream);

  Rival rival =
      rival_of(setup, choice.name,
               s->keys[0].implementation + "; " + s->scores.implementation + "; " + s->rope_scores[0].implementation +
                   "; " + softmax.impl_info_str() + "; " + s->sums.implementation,
               static_cast<double>(now_ns() - start));
  rival.keep = state;
  rival.call = [s](std::int64_t visit) {
    const std::size_t i = static_cast<std::size_t>(visit) % s->keys.size();
    s->keys[i].run(s->stream);
    s->values[i].run(s->stream);
    s->scores.run(s->stream);
    s->rope_scores[i].run(s->stream);
    s->softmax.execute(s->stream, s->softmax_args);
    s->sums.run(s->stream);
    s->stream.wait();
  };
  rival.out = [s] {
    load_floats(Storage::f32, s->out.data(), s->out_floats);
    return s->out_floats.data();
  };
  return rival;
}

}  // namespace

std::vector<Rival> onednn_mla_rivals(const DecodeSetup& setup, bool reconstructs, const std::vector<float>& w_uk,
                                     const std::vector<float>& w_uv, Arena& arena,
                                     const std::function<const DecodeSetup*(std::string& reason)>& f32_setup) {
  const Weights weights{w_uk, w_uv};
  const auto best = [&](const DecodeSetup& s) {
    if (s.c.storage == Storage::int8)
      return failed_rival("onednn", "unsupported", "no attention over int8 rows with float scales");
    if (reconstructs)
      return best_form(s,
                       {{ChainForm::as_it_lies, false, "chain_reconstruct_token_major"},
                        {ChainForm::any, false, "chain_reconstruct_head_major"}},
                       [&](const ChainChoice& choice) { return reconstruct(s, weights, choice, arena); });
    return best_form(s,
                     {{ChainForm::as_it_lies, false, "chain_absorbed"},
                      {ChainForm::any, false, "chain_absorbed_any"},
                      {ChainForm::dense_value, false, "chain_absorbed_dense_value"}},
                     [&](const ChainChoice& choice) { return absorbed(s, weights, choice, arena); });
  };
  return {or_f32_cache(setup, best, f32_setup)};
}

}  // namespace kvroof::bench

#endif
