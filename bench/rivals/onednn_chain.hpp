// oneDNN's primitive chain over one setup: matmul, softmax, matmul. Included only where oneDNN is built in.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "bench/rivals/onednn_engine.hpp"
#include "bench/rivals/rival.hpp"

namespace kvroof::bench {

using OneDnnArgs = std::unordered_map<int, dnnl::memory>;

enum class ChainForm { as_it_lies, key_source, any, dense_value };

struct ChainChoice {
  ChainForm form;
  bool f32_queries;  // f32 queries and probabilities against 16-bit K and V
  const char* name;
};

struct OneDnnChain {
  dnnl::matmul score, value;
  dnnl::softmax_forward softmax;
  std::vector<OneDnnArgs> score_args, value_args;  // per cache
  OneDnnArgs softmax_args;
  OneDnnBuffer q, s, p, out;
  dnnl::memory::data_type out_type = dnnl::memory::data_type::f32;
  std::vector<float> out_floats;
  dnnl::stream stream;
};

struct BuiltChain {
  std::shared_ptr<OneDnnChain> chain;
  std::string implementation;
  double setup_ns = 0, layout_ns = 0;
};

// Keeps reference implementations out: they take seconds where the others take milliseconds, and nobody would ship
// them.
void refuse_reference(const std::string& implementation);

// Throws dnnl::error or OneDnnRefusal where this form does not exist.
// `storage_result`: the result in the cache's type, for a product that goes on with it.
BuiltChain build_chain(const DecodeSetup& setup, const ChainChoice& choice, Arena& arena, bool storage_result = false);

void run_chain(OneDnnChain& chain, std::int64_t visit);

// Builds every form with `make` (which may throw as above), checks it, and gives the fastest; the reason why none works
// says it of each.
Rival best_form(const DecodeSetup& setup, const std::vector<ChainChoice>& forms,
                const std::function<Rival(const ChainChoice&)>& make);

// The best form over this setup, or where oneDNN has none for its storage the best over the same rows in f32: all that
// its user can do there.
Rival or_f32_cache(const DecodeSetup& setup, const std::function<Rival(const DecodeSetup&)>& best,
                   const std::function<const DecodeSetup*(std::string& reason)>& f32_setup);

}  // namespace kvroof::bench
