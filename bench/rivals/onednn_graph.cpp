// oneDNN's Graph API: scaled dot-product attention, 4D with the query group as rows, in as many partitions as this
// version cuts it into (its own choice; the row says how many). The documented 5D pattern for grouped queries runs
// every query head by itself and is several times slower: no fair rival.
#include "bench/rivals/rival.hpp"

#if KVROOF_HAVE_ONEDNN

#include <oneapi/dnnl/dnnl_graph.hpp>

#include <map>

#include "bench/clock.hpp"
#include "bench/rivals/onednn_engine.hpp"

namespace kvroof::bench {
namespace {

using namespace dnnl::graph;

struct Step {
  compiled_partition compiled;
  std::vector<std::vector<tensor>> inputs;  // per cache
  std::vector<tensor> outputs;
};

struct State {
  dnnl::stream stream;
  std::vector<Step> steps;
  std::map<std::size_t, OneDnnBuffer> buffers;  // by tensor id: everything but K and V
  std::vector<float> out_floats;
  std::size_t out_id = 0;
  Storage storage = Storage::f32;
};

logical_tensor::data_type graph_type(Storage storage) {
  switch (storage) {
    case Storage::f16: return logical_tensor::data_type::f16;
    case Storage::bf16: return logical_tensor::data_type::bf16;
    default: return logical_tensor::data_type::f32;
  }
}

std::shared_ptr<State> build(const DecodeSetup& setup) {
  const DecodeCase& c = setup.c;
  const std::int64_t Hkv = c.shape.kv_heads, G = c.group(), T = c.T, Dk = c.shape.key_dim, Dv = c.shape.value_dim;
  const auto type = graph_type(c.storage);
  const auto strided = logical_tensor::layout_type::strided;
  std::size_t id = 0;
  const auto lt = [&](logical_tensor::dims dims) { return logical_tensor(id++, type, dims, strided); };
  // K and V as they lie, in either order of rows.
  const KvView strides = contiguous_strides(c);
  const std::int64_t width = static_cast<std::int64_t>(storage_bytes(c.storage));
  const auto rows = [&](std::int64_t dim, std::int64_t head, std::int64_t row) {
    return logical_tensor(id++, type, logical_tensor::dims{1, Hkv, T, dim},
                          logical_tensor::dims{Hkv * T * dim, head / width, row / width, 1});
  };
  const logical_tensor q = lt({1, Hkv, G, Dk}), scale = lt({1});
  const logical_tensor k = rows(Dk, strides.k_head_stride, strides.k_row_stride);
  const logical_tensor v = rows(Dv, strides.v_head_stride, strides.v_row_stride);
  const logical_tensor score = lt({1, Hkv, G, T}), scaled = lt({1, Hkv, G, T}), p = lt({1, Hkv, G, T});
  const logical_tensor out = lt({1, Hkv, G, Dv});

  op score_op(0, op::kind::MatMul, {q, k}, {score}, "score");
  score_op.set_attr<bool>(op::attr::transpose_b, true);
  op scale_op(1, op::kind::Multiply, {score, scale}, {scaled}, "scale");
  op softmax_op(2, op::kind::SoftMax, {scaled}, {p}, "softmax");
  softmax_op.set_attr<std::int64_t>(op::attr::axis, -1);
  op value_op(3, op::kind::MatMul, {p, v}, {out}, "value");
  graph g(dnnl::engine::kind::cpu);
  g.add_op(score_op);
  g.add_op(scale_op);
  g.add_op(softmax_op);
  g.add_op(value_op);
  g.finalize();
  const std::vector<partition> partitions = g.get_partitions();

  auto state = std::make_shared<State>();
  const dnnl::engine& engine = onednn_engine();
  state->stream = dnnl::stream(engine);
  state->storage = c.storage;
  state->out_id = out.get_id();
  state->out_floats.resize(static_cast<std::size_t>(c.shape.query_heads * Dv));
  for (const logical_tensor& t : {q, scale, score, scaled, p, out})
    state->buffers[t.get_id()] = OneDnnBuffer(t.get_mem_size());
  store_floats(setup.q, c.storage, state->buffers[q.get_id()].data());
  store_floats({setup.scale}, c.storage, state->buffers[scale.get_id()].data());
  const auto port_tensor = [&](const logical_tensor& port, std::int64_t cache) {
    void* data = nullptr;
    if (port.get_id() == k.get_id())
      data = const_cast<std::byte*>(setup.caches.k(cache));
    else if (port.get_id() == v.get_id())
      data = const_cast<std::byte*>(setup.caches.v(cache));
    else
      data = state->buffers[port.get_id()].data();
    return tensor(port, engine, data);
  };
  for (const partition& part : partitions) {
    if (!part.is_supported()) throw OneDnnRefusal{"a partition is not supported"};
    Step step;
    const std::vector<logical_tensor> inputs = part.get_input_ports(), outputs = part.get_output_ports();
    step.compiled = part.compile(inputs, outputs, engine);
    for (std::int64_t i = 0; i < setup.caches.count; ++i) {
      step.inputs.emplace_back();
      for (const logical_tensor& port : inputs) step.inputs.back().push_back(port_tensor(port, i));
    }
    for (const logical_tensor& port : outputs) step.outputs.push_back(port_tensor(port, 0));
    state->steps.push_back(step);
  }
  return state;
}

}  // namespace

Rival onednn_graph_rival(const DecodeSetup& setup) {
  Rival rival;
  rival.impl = "onednn_graph";
  rival.form = "graph_sdpa_4d";
  rival.version = onednn_version();
  rival.key_storage = rival.value_storage = rival.precision = setup.c.storage;
  rival.bytes = static_cast<std::int64_t>(setup.c.bytes());
  const auto unsupported = [&](const std::string& why) {
    rival.status = "unsupported";
    rival.reason = std::string(isa_name(setup.c.isa)) + ": " + why;
  };
  if (setup.c.storage == Storage::int8) {
    unsupported("no attention over int8 rows with a float scale each");
    return rival;
  }
  try {
    const std::int64_t start = now_ns();
    const std::shared_ptr<State> state = build(setup);
    rival.setup_ns = static_cast<double>(now_ns() - start);
    State* const s = state.get();
    rival.keep = state;
    rival.implementation = "MatMul, Multiply, SoftMax, MatMul in " + std::to_string(s->steps.size()) +
                           (s->steps.size() == 1 ? " partition" : " partitions");
    rival.call = [s](std::int64_t visit) {
      for (Step& step : s->steps)
        step.compiled.execute(s->stream, step.inputs[static_cast<std::size_t>(visit) % step.inputs.size()],
                              step.outputs);
      s->stream.wait();
    };
    rival.out = [s] {
      load_floats(s->storage, s->buffers[s->out_id].data(), s->out_floats);
      return s->out_floats.data();
    };
    check_first_call(rival, setup);
  } catch (const dnnl::error& error) {
    unsupported(error.status == dnnl_unimplemented ? "unimplemented" : error.what());
  } catch (const OneDnnRefusal& refusal) {
    unsupported(refusal.reason);
  }
  return rival;
}

}  // namespace kvroof::bench

#endif
