#include "kernels/decoder.hpp"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvroof {
namespace {

constexpr std::int64_t kMostTokensAtOnce = 256;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// What standard containers throw for lack of memory, as the Error of this library.
template <typename Call>
auto in_memory(const std::string& what, const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  throw Error(ErrorCode::out_of_memory, "decoder: no memory for " + what);
}

// Packed weights (padded to whole lanes) and the scratch of the longest piece stay below 2^63 bytes, so that no later
// product of these sizes overflows.
void check_sizes(std::int64_t outputs, std::int64_t inputs, const std::string& name) {
  std::int64_t padded = 0, most = 0, bytes = 0;
  if (__builtin_add_overflow(outputs, kLanes - 1, &padded) ||
      __builtin_mul_overflow(std::max(padded, kMostTokensAtOnce), std::max(inputs, kMostTokensAtOnce), &most) ||
      __builtin_mul_overflow(most, std::int64_t{sizeof(float)}, &bytes)) {
    throw Error(ErrorCode::bad_shape, name + ": " + std::to_string(outputs) + " outputs x " + std::to_string(inputs) +
                                          " inputs, must be below 2^63 bytes");
  }
}

std::int64_t columns(std::int64_t heads, std::int64_t dim, const std::string& name) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(heads, dim, &result)) {
    throw Error(ErrorCode::bad_shape,
                name + ": " + std::to_string(heads) + " heads x " + std::to_string(dim) + " columns overflow 63 bits");
  }
  return result;
}

bool same_shape(const CacheShape& a, const CacheShape& b) {
  return a.kv_heads == b.kv_heads && a.key_dim == b.key_dim && a.value_dim == b.value_dim &&
         a.k_storage == b.k_storage && a.v_storage == b.v_storage && a.latent_dim == b.latent_dim;
}

std::vector<float> packed(const float* w, std::int64_t outputs, std::int64_t inputs, const std::string& name) {
  if (w == nullptr) throw Error(ErrorCode::bad_view, name + " is null, must point to [outputs][inputs] weights");
  check_sizes(outputs, inputs, name);
  std::vector<float> result(packed_weight_floats(outputs, inputs));
  pack_weights(w, outputs, inputs, result.data());
  return result;
}

// y[r] = W x[r] for n rows.
void project_rows(const std::vector<float>& w, const float* x, std::int64_t n, std::int64_t outputs,
                  std::int64_t inputs, float* y, Isa isa) {
  for (std::int64_t r = 0; r < n; ++r) project(w.data(), x + r * inputs, outputs, inputs, y + r * outputs, isa);
}

void check_layer(const DecoderLayer& layer, const std::string& name) {
  AttentionArgs args;
  args.shape = layer.shape;
  args.options = layer.options;
  attention_check(args);
  const auto inv_freq = static_cast<std::int64_t>(layer.inv_freq.size());
  if (inv_freq != 0 && inv_freq * 2 != layer.shape.key_dim) {
    throw Error(ErrorCode::bad_shape, name + ": inv_freq has " + std::to_string(inv_freq) +
                                          " entries, must have key_dim/2 (" + std::to_string(layer.shape.key_dim) +
                                          "/2) or none");
  }
  if (layer.ring_capacity < 0) {
    throw Error(ErrorCode::bad_shape,
                name + ": ring_capacity is " + std::to_string(layer.ring_capacity) + ", must be at least 0");
  }
}

std::vector<float> copied(const float* values, std::int64_t n) {
  return values == nullptr ? std::vector<float>() : std::vector<float>(values, values + n);
}

}  // namespace

// ---- state ----------------------------------------------------------------------------------------------------------

bool DecoderState::can_truncate_to(std::int64_t length) const {
  if (length < 0 || length > length_) return false;
  return std::all_of(caches_.begin(), caches_.end(), [&](const Cache& cache) {
    const auto* ring = std::get_if<RingCache>(&cache);
    return ring == nullptr || ring->can_truncate_to(length);
  });
}

void DecoderState::truncate_to(std::int64_t length) {
  if (!can_truncate_to(length)) {
    throw Error(ErrorCode::bad_position,
                "decoder: truncate_to(" + std::to_string(length) + ") at length " + std::to_string(length_) +
                    " must be from 0 to the length and within what every ring layer still holds");
  }
  for (Cache& cache : caches_) std::visit([&](auto& each) { each.truncate_to(length); }, cache);
  length_ = length;
}

void DecoderState::drop_last(std::int64_t n) {
  if (n < 0 || n > length_) {
    throw Error(ErrorCode::bad_position, "decoder: drop_last(" + std::to_string(n) +
                                             ") must be from 0 to the length, " + std::to_string(length_));
  }
  truncate_to(length_ - n);
}

DecoderState DecoderState::fork() const {
  return in_memory("the copy of a state", [&] {
    DecoderState copy;
    copy.caches_.reserve(caches_.size());
    for (const Cache& cache : caches_) {
      copy.caches_.push_back(std::visit([](const auto& each) { return Cache(each.fork()); }, cache));
    }
    copy.length_ = length_;
    copy.projections_ = projections_;
    return copy;
  });
}

KvView DecoderState::view(std::int64_t layer) const {
  if (layer < 0 || layer >= layers()) {
    throw Error(ErrorCode::bad_shape, "decoder: view of layer " + std::to_string(layer) +
                                          ", must be at least 0 and below " + std::to_string(layers()));
  }
  return std::visit([](const auto& each) { return each.view(); }, caches_[size(layer)]);
}

CacheBytes DecoderState::bytes() const {
  CacheBytes sum;
  for (const Cache& cache : caches_) {
    const CacheBytes each = std::visit([](const auto& c) { return c.bytes(); }, cache);
    sum.used += each.used;
    sum.reserved += each.reserved;
  }
  return sum;
}

// ---- decoder --------------------------------------------------------------------------------------------------------

Decoder::Decoder(std::int64_t model_dim, std::span<const DecoderLayer> layers)
    : model_dim_(model_dim), chunk_limit_(kMostTokensAtOnce) {
  if (model_dim < 1) {
    throw Error(ErrorCode::bad_shape, "decoder: model_dim is " + std::to_string(model_dim) + ", must be at least 1");
  }
  if (layers.empty()) throw Error(ErrorCode::bad_shape, "decoder: no layers, needs at least one");
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const std::string name = "decoder layer " + std::to_string(l);
    in_memory(name, [&] { add_layer(layers[l], name); });
  }
}

void Decoder::add_layer(const DecoderLayer& source, const std::string& name) {
  check_layer(source, name);
  const AttentionShape& s = source.shape;
  Layer& layer = layers_.emplace_back();
  layer.source = source;
  layer.cache_shape = {s.kv_heads, s.key_dim, s.value_dim, source.k_storage, source.v_storage, 0};
  const std::int64_t q_columns = columns(s.query_heads, s.key_dim, name);
  const std::int64_t k_columns = columns(s.kv_heads, s.key_dim, name);
  const std::int64_t v_columns = columns(s.kv_heads, s.value_dim, name);
  const std::int64_t head_columns = columns(s.query_heads, s.value_dim, name);
  layer.wq = packed(source.wq, q_columns, model_dim_, name + ": wq");
  layer.wk = packed(source.wk, k_columns, model_dim_, name + ": wk");
  layer.wv = packed(source.wv, v_columns, model_dim_, name + ": wv");
  layer.wo = packed(source.wo, model_dim_, head_columns, name + ": wo");
  layer.alibi_slopes = copied(source.options.alibi_slopes, s.query_heads);
  layer.sink_logits = copied(source.options.sink_logits, s.query_heads);
  layer.source.wq = layer.source.wk = layer.source.wv = layer.source.wo = nullptr;
  layer.source.options.alibi_slopes = nullptr;
  layer.source.options.sink_logits = nullptr;
  make_cache(layer);  // refuses now what start() would refuse
  if (source.ring_capacity > 0) {
    chunk_limit_ = std::min(chunk_limit_, source.ring_capacity - source.options.window + 1);
  }
}

void Decoder::check_state(const DecoderState& state) const {
  if (state.caches_.size() != layers_.size()) {
    throw Error(ErrorCode::bad_shape, "decoder: the state has " + std::to_string(state.caches_.size()) +
                                          " layers, the model " + std::to_string(layers_.size()));
  }
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const DecoderLayer& s = layers_[l].source;
    bool fits = false;
    if (const auto* ring = std::get_if<RingCache>(&state.caches_[l])) {
      const RingOptions& o = ring->options();
      fits = s.ring_capacity > 0 && same_shape(ring->shape(), layers_[l].cache_shape) && o.order == s.order &&
             o.capacity == s.ring_capacity && o.window == s.options.window && o.kept_tokens == s.options.kept_tokens;
    } else if (const auto* rows = std::get_if<ContiguousCache>(&state.caches_[l])) {
      fits = s.ring_capacity == 0 && same_shape(rows->shape(), layers_[l].cache_shape) && rows->order() == s.order;
    }
    if (!fits) {
      throw Error(ErrorCode::bad_shape, "decoder layer " + std::to_string(l) +
                                            ": the state's cache has another kind, shape, storage or order: it must "
                                            "come from this Decoder");
    }
  }
}

DecoderState::Cache Decoder::make_cache(const Layer& layer) const {
  const DecoderLayer& s = layer.source;
  if (s.ring_capacity == 0) return ContiguousCache(layer.cache_shape, s.order);
  return RingCache(layer.cache_shape, {.order = s.order,
                                       .capacity = s.ring_capacity,
                                       .window = s.options.window,
                                       .kept_tokens = s.options.kept_tokens});
}

DecoderState Decoder::start() const {
  DecoderState state;
  state.caches_.reserve(layers_.size());
  for (const Layer& layer : layers_) state.caches_.push_back(make_cache(layer));
  return state;
}

std::int64_t Decoder::cache_count() const {
  std::int64_t count = 0;
  for (const Layer& layer : layers_) count += layer.source.shape.kv_heads;
  return count;
}

void Decoder::step(DecoderState& state, const float* x, std::int64_t n, float* y, int threads) const {
  step(state, x, n, y, threads, default_isa());
}

void Decoder::step(DecoderState& state, const float* x, std::int64_t n, float* y, int threads, Isa isa) const {
  if (n < 0 || threads < 1) {
    throw Error(ErrorCode::bad_shape, "decoder: n is " + std::to_string(n) + ", threads is " + std::to_string(threads) +
                                          "; must be at least 0 and at least 1");
  }
  check_state(state);
  if (n == 0) return;
  if (x == nullptr || y == nullptr)
    throw Error(ErrorCode::bad_view, "decoder: x or y is null, must point to [n][model]");
  std::int64_t length = 0;
  if (__builtin_add_overflow(state.length_, n, &length)) {
    throw Error(ErrorCode::bad_shape, "decoder: length + n overflows 63 bits");
  }

  make_room(state, length, std::min(n, chunk_limit_));
  for (std::int64_t done = 0; done < n; done += chunk_limit_) {
    const std::int64_t count = std::min(chunk_limit_, n - done);
    chunk(state, x + done * model_dim_, count, y + done * model_dim_, threads, isa);
  }
}

// Rows for `length` tokens in every layer and scratch for pieces of `most` tokens.
void Decoder::make_room(DecoderState& state, std::int64_t length, std::int64_t most) const {
  const auto room = [](std::vector<float>& list, std::int64_t floats) {
    if (list.size() < size(floats)) list.resize(size(floats));
  };
  try {
    room(state.x_, most * model_dim_);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const AttentionShape& s = layers_[l].source.shape;
      room(state.q_, most * s.query_heads * s.key_dim);
      room(state.k_, most * s.kv_heads * s.key_dim);
      room(state.v_, most * s.kv_heads * s.value_dim);
      room(state.heads_, most * s.query_heads * s.value_dim);
      auto* cache = std::get_if<ContiguousCache>(&state.caches_[l]);
      if (cache != nullptr && length > cache->capacity()) {
        cache->reserve(std::max(length, cache->capacity() + cache->capacity() / 2));
      }
    }
  } catch (const std::length_error&) {
    throw Error(ErrorCode::out_of_memory, "decoder: the scratch of " + std::to_string(most) + " tokens is too large");
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory, "decoder: no memory for the scratch of " + std::to_string(most) + " tokens");
  }
}

// All layers for one piece of the new tokens. A failure half way through (no memory for the attention workspace) takes
// the piece back out of the layers that have it: the rollback of what was just appended is always allowed, since a ring
// takes only chunks that leave the first query's window whole.
void Decoder::chunk(DecoderState& state, const float* x, std::int64_t n, float* y, int threads, Isa isa) const {
  std::size_t appended = 0;
  try {
    const float* input = x;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      const DecoderLayer& source = layer.source;
      const AttentionShape& s = source.shape;
      const std::int64_t q_row = s.query_heads * s.key_dim, k_row = s.kv_heads * s.key_dim,
                         v_row = s.kv_heads * s.value_dim;
      project_rows(layer.wq, input, n, q_row, model_dim_, state.q_.data(), isa);
      project_rows(layer.wk, input, n, k_row, model_dim_, state.k_.data(), isa);
      project_rows(layer.wv, input, n, v_row, model_dim_, state.v_.data(), isa);
      if (!source.inv_freq.empty()) {
        for (std::int64_t r = 0; r < n; ++r) {
          const auto rotate = [&](float* row, std::int64_t heads) {
            rope(row, heads, s.key_dim, s.key_dim, state.length_ + r, source.inv_freq.data(), source.pairing, isa);
          };
          rotate(state.q_.data() + r * q_row, s.query_heads);
          rotate(state.k_.data() + r * k_row, s.kv_heads);
        }
      }
      const NewRows rows = packed_rows(layer.cache_shape, n, state.k_.data(), state.v_.data());
      const KvView kv = std::visit(
          [&](auto& cache) {
            cache.append(rows);
            return cache.view();
          },
          state.caches_[l]);
      ++appended;
      attend(layer, state, kv, n, threads, isa);
      const bool last = l + 1 == layers_.size();
      float* output = last ? y : state.x_.data();
      project_rows(layer.wo, state.heads_.data(), n, model_dim_, s.query_heads * s.value_dim, output, isa);
      input = output;
    }
  } catch (...) {
    for (std::size_t l = 0; l < appended; ++l) {
      std::visit([&](auto& cache) { cache.truncate_to(state.length_); }, state.caches_[l]);
    }
    throw;
  }
  state.length_ += n;
  state.projections_ += n * static_cast<std::int64_t>(layers_.size());
}

void Decoder::attend(const Layer& layer, DecoderState& state, const KvView& kv, std::int64_t n, int threads,
                     Isa isa) const {
  const AttentionShape& s = layer.source.shape;
  AttentionSequence sequence;
  sequence.q = state.q_.data();
  sequence.q_head_stride = s.key_dim;
  sequence.q_row_stride = s.query_heads * s.key_dim;
  sequence.n = n;
  sequence.kv = kv;
  sequence.out = state.heads_.data();
  sequence.out_head_stride = s.value_dim;
  sequence.out_row_stride = s.query_heads * s.value_dim;
  AttentionArgs args;
  args.shape = s;
  args.options = layer.source.options;
  args.options.alibi_slopes = layer.alibi_slopes.empty() ? nullptr : layer.alibi_slopes.data();
  args.options.sink_logits = layer.sink_logits.empty() ? nullptr : layer.sink_logits.data();
  args.sequences = {&sequence, 1};
  const std::size_t bytes = attention_workspace_bytes(args, threads);
  if (static_cast<std::size_t>(state.workspace_.bytes()) < bytes) {
    state.workspace_ = CacheMemory::allocate(static_cast<std::int64_t>(bytes + bytes / 2));
  }
  decode_attention(args, {state.workspace_.data(), static_cast<std::size_t>(state.workspace_.bytes())}, threads, isa);
}

}  // namespace kvroof
