// Shapes and weights of multi-head latent attention: what is refused, and how the matrices are packed.
#include "kernels/mla.hpp"

#include <string>

namespace kvroof {
namespace {

constexpr std::int64_t kMaxDim = std::int64_t{1} << 20;

void require_dim(const char* name, std::int64_t value, std::int64_t least) {
  if (value < least || value > kMaxDim)
    throw Error(ErrorCode::bad_shape, std::string("mla: ") + name + " is " + std::to_string(value) + ", must be " +
                                          std::to_string(least) + " to " + std::to_string(kMaxDim));
}

// Three factors of at most 2^20 each: the product is below 2^63.
std::int64_t matrix_floats(std::int64_t matrices, std::int64_t rows, std::int64_t columns) {
  return matrices * rows * columns;
}

void require_weights(const char* name, std::span<const float> w, std::int64_t matrices, std::int64_t rows,
                     std::int64_t columns) {
  const std::int64_t needed = matrix_floats(matrices, rows, columns);
  if (static_cast<std::uint64_t>(needed) != w.size())
    throw Error(ErrorCode::bad_shape, std::string("mla: ") + name + " has " + std::to_string(w.size()) +
                                          " floats, needs " + (matrices == 1 ? "" : std::to_string(matrices) + " x ") +
                                          std::to_string(rows) + " x " + std::to_string(columns) + " = " +
                                          std::to_string(needed));
  if (needed > 0 && w.data() == nullptr) throw Error(ErrorCode::bad_view, std::string("mla: ") + name + " is null");
}

std::int64_t packed_floats(std::int64_t outputs, std::int64_t inputs) {
  return static_cast<std::int64_t>(packed_weight_floats(outputs, inputs));
}

// pack_weights() of the transposed of w [inputs][outputs], without a transposed copy.
void pack_transposed(const float* w, std::int64_t outputs, std::int64_t inputs, float* packed) {
  for (std::int64_t block = 0; block < outputs; block += kLanes)
    for (std::int64_t k = 0; k < inputs; ++k)
      for (std::int64_t lane = 0; lane < kLanes; ++lane)
        packed[block * inputs + k * kLanes + lane] = block + lane < outputs ? w[k * outputs + block + lane] : 0.0f;
}

}  // namespace

void mla_check_shape(const MlaShape& s) {
  require_dim("heads", s.heads, 1);
  require_dim("nope_dim", s.nope_dim, 1);
  require_dim("rope_dim", s.rope_dim, 0);
  require_dim("value_dim", s.value_dim, 1);
  require_dim("latent_dim", s.latent_dim, 1);
  require_dim("model_dim", s.model_dim, 0);
  if (s.rope_dim % 2 != 0)
    throw Error(ErrorCode::bad_shape,
                "mla: rope_dim is " + std::to_string(s.rope_dim) + ", must be even: RoPE turns pairs");
  require_dim("nope_dim + rope_dim", s.nope_dim + s.rope_dim, 1);
  require_dim("latent_dim + rope_dim", s.latent_dim + s.rope_dim, 1);
}

CacheShape mla_cache_shape(const MlaShape& shape, Storage storage) {
  mla_check_shape(shape);
  return latent_shape(shape.latent_dim, shape.rope_dim, storage);
}

MlaWeights::MlaWeights(const MlaShape& shape, const MlaWeightSource& source) : shape_(shape) {
  mla_check_shape(shape);
  const std::int64_t heads = shape.heads, nope = shape.nope_dim, rope = shape.rope_dim, value = shape.value_dim;
  const std::int64_t latent = shape.latent_dim, model = shape.model_dim;
  require_weights("w_uk", source.w_uk, heads, nope, latent);
  require_weights("w_uv", source.w_uv, heads, value, latent);
  require_weights("w_dkv", source.w_dkv, 1, latent, model);
  require_weights("w_kr", source.w_kr, 1, rope, model);

  uk_floats_ = packed_floats(nope, latent);
  ukt_floats_ = packed_floats(latent, nope);
  uv_floats_ = packed_floats(value, latent);
  const std::int64_t dkv = packed_floats(latent, model), kr = packed_floats(rope, model);
  // The sources are in memory, and packing adds at most 15 rows to each matrix: no sum here comes near 63 bits.
  const std::int64_t floats = heads * (uk_floats_ + ukt_floats_ + uv_floats_) + dkv + kr;
  memory_ = CacheMemory::allocate(floats * static_cast<std::int64_t>(sizeof(float)));

  float* at = reinterpret_cast<float*>(memory_.data());
  const auto take = [&at](std::int64_t count) {
    float* begin = at;
    at += count;
    return begin;
  };
  float* uk = take(heads * uk_floats_);
  float* ukt = take(heads * ukt_floats_);
  float* uv = take(heads * uv_floats_);
  for (std::int64_t h = 0; h < heads; ++h) {
    const float* from = source.w_uk.data() + h * nope * latent;
    pack_weights(from, nope, latent, uk + h * uk_floats_);
    pack_transposed(from, latent, nope, ukt + h * ukt_floats_);
    pack_weights(source.w_uv.data() + h * value * latent, value, latent, uv + h * uv_floats_);
  }
  w_uk_ = uk, w_ukt_ = ukt, w_uv_ = uv;
  if (model == 0) return;
  float* down = take(dkv);
  float* turned = take(kr);
  pack_weights(source.w_dkv.data(), latent, model, down);
  pack_weights(source.w_kr.data(), rope, model, turned);
  w_dkv_ = down, w_kr_ = turned;
}

const char* mla_form_name(MlaForm form) { return form == MlaForm::absorbed ? "absorbed" : "reconstruct"; }

std::int64_t mla_weight_bytes(const MlaShape& s) {
  mla_check_shape(s);
  return matrix_floats(s.heads, s.nope_dim + s.value_dim, s.latent_dim) * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace kvroof
