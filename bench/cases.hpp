// What is measured: the axes of a row, its name, and the presets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cache/rows.hpp"
#include "kernels/kernels.hpp"

namespace kvroof::bench {

// layouts: what of `full` is about layouts, chunks, batches and the caches' own operations. check: points that no other
// preset has, for holding predictions to.
enum class Preset { quick, full, layouts, check, ci };
inline constexpr Preset kPresets[] = {Preset::quick, Preset::full, Preset::layouts, Preset::check, Preset::ci};
const char* preset_name(Preset preset);

struct ShapeCase {
  std::string name;  // MHA, GQA, GQA8, MQA, ...
  std::int64_t query_heads, kv_heads, key_dim, value_dim;
};

struct DecodeCase {
  const char* kernel = "decode";
  const char* layout = "contiguous";
  ShapeCase shape;
  std::int64_t batch = 1, n = 1, T = 0;
  Storage storage = Storage::f32;
  RowOrder order = RowOrder::head_major;
  Mode mode = Mode::reproducible;
  const char* native_isa = "";  // native mode: the axis isa where it is not that of the kernel that runs ("amx")
  std::int64_t window = 0;      // 0: all
  std::int64_t page_size = 0;   // paged only
  const char* pages = "";       // paged only: ordered, shuffled
  const char* lengths = "";     // batch only: equal, skewed
  std::int64_t prefix = 0;      // batch only: the first rows of every sequence, which all share
  std::int64_t latent_dim = 0;  // > 0: rows of multi-head latent attention, one for K and V
  std::int64_t rope_dim = 0;
  bool cold = true;
  bool all_threads = false;
  int threads = 1;  // the count behind the role
  Isa isa = Isa::portable;

  std::int64_t group() const { return shape.query_heads / shape.kv_heads; }
  std::size_t k_bytes() const;  // of one cache, all T rows, nothing shared; all of it for latent rows
  std::size_t v_bytes() const;
  std::size_t bytes() const { return k_bytes() + v_bytes(); }
  std::int64_t flops() const;  // of one call, unlimited window, equal lengths
};

// decode/shape:MHA/layout:contiguous/order:head/storage:f16/Hq:32/.../impl:onednn/threads:all/isa:avx512. The axis
// `mode` follows impl:kvroof only: others have no such modes.
std::string row_name(const DecodeCase& c, const std::string& impl);

// The same case in native mode: its row stands in the tuple of the reproducible one, under the name of the instructions
// that the mode adds (isa:avx512_bf16).
DecodeCase native_case(DecodeCase c);
// The axis isa of a row.
std::string row_isa(const DecodeCase& c);

// What the caches are made for to hold the case's rows.
CacheShape cache_shape(const DecodeCase& c);

// What the compute roof is made of for a kernel: pure f32 FMA, or FMA on narrower elements that must be widened first,
// each used for `group` query heads; in native mode the dot instruction on elements as they are.
struct ComputeOp {
  Storage storage = Storage::f32;
  int group = 1;
  Mode mode = Mode::reproducible;
  std::string name() const;  // fma_f32, f16_fma_G8, bf16_dot_G8
};
// FMA on the case's storage, or native mode's instruction, for all queries that meet a row.
ComputeOp compute_op(const DecodeCase& c);

struct RoofCase {
  bool read = true;                // else compute
  std::size_t bytes = 0;           // read: of one working set
  bool cold = false;               // read: rotates over working sets whose sum is 4 times the last-level cache
  Storage storage = Storage::f32;  // compute
  int group = 1;                   // compute
  Mode mode = Mode::reproducible;  // compute
  bool all_threads = false;
  int threads = 1;
  Isa isa = Isa::portable;
};
std::string row_name(const RoofCase& c);

struct PresetSizes {
  std::int64_t last_level_bytes = 0;  // 0: unknown
  int threads_all = 1;
  Isa isa = Isa::portable;
};

std::vector<RoofCase> roof_cases(Preset preset, const PresetSizes& sizes);
// Warm rows only where the cache fits three quarters of the last-level cache: less, and the name would be a lie.
std::vector<DecodeCase> decode_cases(Preset preset, const PresetSizes& sizes);

// The name without the axis isa: what joins rows of two machines.
std::string join_key(const std::string& row_name);

}  // namespace kvroof::bench
