// Multi-head latent attention in a test: runs calls and adds a failure for damaged memory.
#pragma once

#include <vector>

#include "tests/support/mla_call.hpp"

namespace kvroof::test {

// All calls in one; the weights and options must fit them all.
std::vector<Attention> attend_mla(const MlaWeights& weights, const AttentionOptions& options, const MlaCalls& calls,
                                  reference::MlaForm form, const How& how);
// One case, with its rows where `view` says and strides from `seed`.
Attention attend_mla(const MlaWeights& weights, const MlaCase& c, const KvView& view, reference::MlaForm form,
                     const How& how, std::uint64_t seed = 1);

}  // namespace kvroof::test
