// What both oneDNN rivals share. Included only where oneDNN is built in.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/rivals/rival.hpp"
#include "reference/half.hpp"

namespace kvroof::bench {

struct OneDnnRefusal {
  std::string reason;
};

inline const dnnl::engine& onednn_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// A row measured with ISA avx2 is compared with a oneDNN that stays within AVX2 too. Must come before its first
// primitive.
inline void limit_onednn_isa(Isa isa) {
  static const bool done = [isa] {
    if (isa == Isa::avx2) dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
    return true;
  }();
  (void)done;
}

inline dnnl::memory::data_type onednn_type(Storage storage) {
  switch (storage) {
    case Storage::f16: return dnnl::memory::data_type::f16;
    case Storage::bf16: return dnnl::memory::data_type::bf16;
    case Storage::int8: return dnnl::memory::data_type::s8;
    case Storage::f32: break;
  }
  return dnnl::memory::data_type::f32;
}

inline Storage onednn_storage(dnnl::memory::data_type type) {
  return type == dnnl::memory::data_type::f16    ? Storage::f16
         : type == dnnl::memory::data_type::bf16 ? Storage::bf16
                                                 : Storage::f32;
}

class OneDnnBuffer {
 public:
  OneDnnBuffer() = default;
  explicit OneDnnBuffer(std::size_t bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64)), &std::free) {
    if (!data_) throw OneDnnRefusal{"out of memory"};
    std::memset(data_.get(), 0, bytes);
  }
  std::byte* data() const { return data_.get(); }

 private:
  std::shared_ptr<std::byte> data_;
};

inline void store_floats(const std::vector<float>& values, Storage storage, std::byte* to) {
  auto* const codes = reinterpret_cast<std::uint16_t*>(to);
  if (storage == Storage::f32) std::memcpy(to, values.data(), values.size() * 4);
  for (std::size_t i = 0; i < values.size() && storage != Storage::f32; ++i)
    codes[i] = storage == Storage::f16 ? reference::f32_to_f16(values[i]) : reference::f32_to_bf16(values[i]);
}

inline void load_floats(Storage storage, const std::byte* from, std::vector<float>& values) {
  const auto* const codes = reinterpret_cast<const std::uint16_t*>(from);
  if (storage == Storage::f32) std::memcpy(values.data(), from, values.size() * 4);
  for (std::size_t i = 0; i < values.size() && storage != Storage::f32; ++i)
    values[i] = storage == Storage::f16 ? reference::f16_to_f32(codes[i]) : reference::bf16_to_f32(codes[i]);
}

Rival onednn_graph_rival(const DecodeSetup& setup);

}  // namespace kvroof::bench
