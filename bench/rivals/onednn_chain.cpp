#if KVROOF_HAVE_ONEDNN

#include "bench/rivals/onednn_chain.hpp"

#include <algorithm>
#include <cstring>

#include "bench/clock.hpp"
#include "bench/statistics.hpp"
#include "reference/half.hpp"

namespace kvroof::bench {

using dnnl::memory;
using Dims = memory::dims;

void refuse_reference(const std::string& implementation) {
  if (implementation.find("ref") != std::string::npos)
    throw OneDnnRefusal{"only a reference implementation (" + implementation + ")"};
}

BuiltChain build_chain(const DecodeSetup& setup, const ChainChoice& choice, Arena& arena, bool storage_result) {
  const DecodeCase& c = setup.c;
  const std::int64_t Hkv = c.shape.kv_heads, G = c.group(), T = c.T, Dk = c.shape.key_dim, Dv = c.shape.value_dim;
  const auto type = onednn_type(c.storage);
  const auto query_type = choice.f32_queries ? memory::data_type::f32 : type;
  const auto f32 = memory::data_type::f32;
  const dnnl::engine& engine = onednn_engine();
  const std::int64_t start = now_ns();

  const bool key_source = choice.form == ChainForm::key_source;
  // In elements; V of latent rows is a part of the K row.
  const KvView strides = contiguous_strides(c);
  const std::int64_t width = static_cast<std::int64_t>(storage_bytes(c.storage));
  const std::int64_t k_head = c.latent_dim > 0 ? T * Dk : strides.k_head_stride / width;
  const std::int64_t v_head = c.latent_dim > 0 ? T * Dk : strides.v_head_stride / width;
  const std::int64_t k_row = strides.k_row_stride / width, v_row = strides.v_row_stride / width;
  const memory::desc k_rows({Hkv, T, Dk}, type, Dims{k_head, k_row, 1});
  const memory::desc k_columns({Hkv, Dk, T}, type, Dims{k_head, 1, k_row});
  const memory::desc v_rows({Hkv, T, Dv}, type, Dims{v_head, v_row, 1});
  const memory::desc v_dense({Hkv, T, Dv}, type, Dims{T * Dv, Dv, 1});
  const memory::desc q_rows({Hkv, G, Dk}, query_type, Dims{G * Dk, Dk, 1});
  const memory::desc q_columns({Hkv, Dk, G}, query_type, Dims{G * Dk, 1, Dk});
  const memory::desc s_rows({Hkv, G, T}, f32, Dims{G * T, T, 1});
  const memory::desc s_columns({Hkv, T, G}, f32, Dims{T * G, G, 1});
  const memory::desc p_rows({Hkv, G, T}, query_type, Dims{G * T, T, 1});

  dnnl::primitive_attr scaled;
  dnnl::post_ops post;
  post.append_eltwise(dnnl::algorithm::eltwise_linear, setup.scale, 0.0f);
  scaled.set_post_ops(post);

  const auto any = [](const memory::desc& desc) {
    return memory::desc(desc.get_dims(), desc.get_data_type(), memory::format_tag::any);
  };
  const bool free_layout = choice.form == ChainForm::any, dense_value = choice.form == ChainForm::dense_value;
  const bool packed = free_layout || dense_value;
  const dnnl::matmul::primitive_desc score_pd =
      key_source
          ? dnnl::matmul::primitive_desc(engine, k_rows, q_columns, s_columns, scaled)
          : dnnl::matmul::primitive_desc(engine, q_rows, free_layout ? any(k_columns) : k_columns, s_rows, scaled);
  // With one query per KV head the scores S^T lie exactly like S, so the softmax runs along the last axis in both
  // forms.
  const dnnl::softmax_forward::primitive_desc softmax_pd(engine, dnnl::prop_kind::forward_inference,
                                                         dnnl::algorithm::softmax_accurate, s_rows, p_rows, 2);
  memory::data_type out_type = storage_result ? type : f32;
  const auto value_pd_of = [&](memory::data_type t) {
    return dnnl::matmul::primitive_desc(engine, p_rows,
                                        free_layout   ? any(v_rows)
                                        : dense_value ? v_dense
                                                      : v_rows,
                                        memory::desc({Hkv, G, Dv}, t, Dims{G * Dv, Dv, 1}));
  };
  dnnl::matmul::primitive_desc value_pd;
  try {
    value_pd = value_pd_of(out_type);
  } catch (const dnnl::error&) {  // some versions write 16-bit results only
    out_type = type;
    value_pd = value_pd_of(type);
  }
  BuiltChain built;
  built.implementation =
      std::string(score_pd.impl_info_str()) + "; " + softmax_pd.impl_info_str() + "; " + value_pd.impl_info_str();
  refuse_reference(built.implementation);
  if (free_layout && score_pd.weights_desc() == k_columns && value_pd.weights_desc() == v_rows)
    throw OneDnnRefusal{"prefers the layout as it is"};

  auto chain = std::make_shared<OneDnnChain>();
  chain->score = dnnl::matmul(score_pd);
  chain->softmax = dnnl::softmax_forward(softmax_pd);
  chain->value = dnnl::matmul(value_pd);
  chain->stream = dnnl::stream(engine);
  chain->q = OneDnnBuffer(q_rows.get_size());
  chain->s = OneDnnBuffer(s_rows.get_size());
  chain->p = OneDnnBuffer(p_rows.get_size());
  chain->out = OneDnnBuffer(value_pd.dst_desc().get_size());
  chain->out_type = out_type;
  chain->out_floats.resize(static_cast<std::size_t>(c.shape.query_heads * Dv));
  store_floats(setup.q, choice.f32_queries ? Storage::f32 : c.storage, chain->q.data());
  chain->softmax_args = {{DNNL_ARG_SRC, memory(s_rows, engine, chain->s.data())},
                         {DNNL_ARG_DST, memory(p_rows, engine, chain->p.data())}};

  std::byte* packed_at = nullptr;
  const std::size_t k_packed = (score_pd.weights_desc().get_size() + 63) / 64 * 64;
  const std::size_t v_packed = (value_pd.weights_desc().get_size() + 63) / 64 * 64;
  if (packed) {
    std::string reason;
    packed_at = arena.scratch(free_layout ? 0 : 3, (k_packed + v_packed) * static_cast<std::size_t>(setup.caches.count),
                              reason);
    if (packed_at == nullptr) throw OneDnnRefusal{"no room for its own layout: " + reason};
  }
  built.setup_ns = static_cast<double>(now_ns() - start);
  std::vector<double> reorder_ns;
  for (std::int64_t i = 0; i < setup.caches.count; ++i) {
    auto* const k = const_cast<std::byte*>(setup.caches.k(i));  // oneDNN takes void*; it only reads these
    auto* const v = c.latent_dim > 0 ? k : const_cast<std::byte*>(setup.caches.v(i));
    memory k_memory(key_source ? k_rows : k_columns, engine, k), v_memory(v_rows, engine, v);
    if (packed) {
      std::byte* const at = packed_at + (k_packed + v_packed) * static_cast<std::size_t>(i);
      memory k_own(score_pd.weights_desc(), engine, at), v_own(value_pd.weights_desc(), engine, at + k_packed);
      dnnl::reorder k_reorder(k_memory, k_own), v_reorder(v_memory, v_own);
      const std::int64_t begin = now_ns();
      k_reorder.execute(chain->stream, k_memory, k_own);
      v_reorder.execute(chain->stream, v_memory, v_own);
      chain->stream.wait();
      reorder_ns.push_back(static_cast<double>(now_ns() - begin));
      k_memory = k_own;
      v_memory = v_own;
    }
    const memory q(key_source ? q_columns : q_rows, engine, chain->q.data());
    chain->score_args.push_back({{DNNL_ARG_SRC, key_source ? k_memory : q},
                                 {DNNL_ARG_WEIGHTS, key_source ? q : k_memory},
                                 {DNNL_ARG_DST, memory(key_source ? s_columns : s_rows, engine, chain->s.data())}});
    chain->value_args.push_back({{DNNL_ARG_SRC, memory(p_rows, engine, chain->p.data())},
                                 {DNNL_ARG_WEIGHTS, v_memory},
                                 {DNNL_ARG_DST, memory(value_pd.dst_desc(), engine, chain->out.data())}});
  }
  if (!reorder_ns.empty()) built.layout_ns = median(reorder_ns);
  built.chain = chain;
  return built;
}

void run_chain(OneDnnChain& chain, std::int64_t visit) {
  const std::size_t i = static_cast<std::size_t>(visit) % chain.score_args.size();
  chain.score.execute(chain.stream, chain.score_args[i]);
  chain.softmax.execute(chain.stream, chain.softmax_args);
  chain.value.execute(chain.stream, chain.value_args[i]);
  chain.stream.wait();
}

Rival best_form(const DecodeSetup& setup, const std::vector<ChainChoice>& forms,
                const std::function<Rival(const ChainChoice&)>& make) {
  std::string tried;
  Rival best = failed_rival("onednn", "unsupported", "");
  double best_ns = 0;
  bool wrong = false;
  for (const ChainChoice& choice : forms) {
    std::string why;
    try {
      Rival rival = make(choice);
      check_first_call(rival, setup);
      if (rival.status == "ok") {
        std::vector<double> times;
        double spent = 0;
        for (int i = 1; i <= 9 && (i <= 2 || spent < 2e7); ++i) {
          const std::int64_t start = now_ns();
          rival.call(i);
          times.push_back(static_cast<double>(now_ns() - start));
          spent += times.back();
        }
        const double ns = median(times);
        rival.first_call_ns = ns;
        if (best.status != "ok" || ns < best_ns) {
          best = rival;
          best_ns = ns;
        }
        continue;
      }
      why = rival.reason;
      wrong = true;
    } catch (const dnnl::error& error) {
      why = error.status == dnnl_unimplemented ? "unimplemented" : error.what();
    } catch (const OneDnnRefusal& refusal) {
      why = refusal.reason;
    }
    tried += (tried.empty() ? "" : "; ") + std::string(choice.name) + ": " + why;
  }
  best.tried = tried;
  if (best.status != "ok") {
    best.reason = tried;
    if (wrong) best.status = "not_measured";
  }
  return best;
}

}  // namespace kvroof::bench

#endif
