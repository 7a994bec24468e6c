// A rival: another implementation of the same attention step, run on the same caches by the same threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/arena.hpp"
#include "bench/decode_setup.hpp"

namespace kvroof::bench {

struct Rival {
  std::string impl;           // onednn, onednn_graph, scalar, scalar_vectorized
  std::string status = "ok";  // or unsupported, not_measured
  std::string reason;         // when not ok
  std::string tried;          // what became of forms that do not work, where another does
  std::string form, implementation, version;
  Storage key_storage = Storage::f32, value_storage = Storage::f32;
  Storage precision = Storage::f32;  // what it rounds intermediates to
  std::int64_t bytes = 0;            // of the cache it reads
  double setup_ns = 0;               // creating primitives, outside the timed part
  double layout_cost_ns = 0;         // one reorder into its own layout, outside the timed part
  double first_call_ns = 0;
  Check check;
  std::function<void(std::int64_t visit)> call;
  std::function<const float*()> out;  // [Hq][Dv] of the last call, as floats
  std::shared_ptr<void> keep;         // owns what call uses
};

Rival failed_rival(const std::string& impl, const std::string& status, const std::string& reason);

// Calls it once on cache 0, times that call and checks the result; a rival that fails is turned into not_measured.
void check_first_call(Rival& rival, const DecodeSetup& setup);

std::vector<Rival> scalar_rivals(const DecodeSetup& setup);

// The scalar loops over latent rows; `kernel` as in rows (mla_absorbed, ...). The weights must outlive the rivals.
std::vector<Rival> scalar_mla_rivals(const DecodeSetup& setup, const std::string& kernel,
                                     const std::vector<float>& w_uk, const std::vector<float>& w_uv);

// The primitive chain in its best form, and the Graph API. `f32_setup`: the same row with f32 caches, for machines
// where oneDNN has no attention over 16-bit storage; made on demand.
std::vector<Rival> onednn_rivals(const DecodeSetup& setup, Arena& arena,
                                 const std::function<const DecodeSetup*(std::string& reason)>& f32_setup);
// The same over latent rows with the products with W_UK and W_UV, in the absorbed form (`reconstruct` false: as
// mla_absorbed_step) or with every key and value written out. Weights in the cache's storage type, in oneDNN's own
// layout.
std::vector<Rival> onednn_mla_rivals(const DecodeSetup& setup, bool reconstruct, const std::vector<float>& w_uk,
                                     const std::vector<float>& w_uv, Arena& arena,
                                     const std::function<const DecodeSetup*(std::string& reason)>& f32_setup);
std::string onednn_version();  // "" if not built in

}  // namespace kvroof::bench
