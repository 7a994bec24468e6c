// Multi-head latent attention in a test: a case's rows in a cache of any kind over memory that was full of NaN, q, out
// and lse with random strides between guard pages, a run by parts or by threads, and a check of what must not be
// touched.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "kernels/cache/contiguous.hpp"
#include "kernels/cache/paged.hpp"
#include "kernels/cache/ring.hpp"
#include "kernels/mla.hpp"
#include "tests/support/guarded_buffer.hpp"
#include "tests/support/mla_cases.hpp"
#include "tests/support/stored_sequence.hpp"

namespace kvroof::test {

enum class LatentCacheKind : std::uint8_t { contiguous, ring, paged };
inline constexpr LatentCacheKind kLatentCacheKinds[] = {LatentCacheKind::contiguous, LatentCacheKind::ring,
                                                        LatentCacheKind::paged};

// The rows of a case, appended in chunks of random size. Rows that no query sees are NaN; so is every slot that holds
// no row, and the memory ends at a guard page. A ring has just enough capacity for the case's window and has wrapped
// where the context is longer (an unlimited window: capacity T).
class LatentCache {
 public:
  LatentCache(const MlaCase& c, LatentCacheKind kind, std::uint64_t seed);
  KvView view() const;
  const std::string& name() const { return name_; }
  bool intact() const { return memory_.intact() && memory_.hash() == hash_; }

 private:
  GuardedBuffer memory_;
  std::variant<std::monostate, ContiguousCache, RingCache, PagedCache> cache_;
  SequenceId sequence_;
  std::string name_;
  std::uint64_t hash_ = 0;
};

MlaShape kernel_shape(const reference::MlaShape& shape, std::int64_t model_dim = 0);
MlaForm kernel_form(reference::MlaForm form);
MlaWeights make_weights(const MlaCase& c);
// Options of a case; the sinks stay the case's own.
AttentionOptions make_options(const MlaCase& c);

// q, out and lse of one case.
class MlaCall {
 public:
  MlaCall(const MlaCase& c, const KvView& view, std::uint64_t seed, bool want_lse = true);
  AttentionSequence sequence();
  Attention result() const;
  std::string damage() const;  // empty when all is well
  bool nothing_written() const;

 private:
  MlaCase case_;
  KvView view_;
  GuardedBuffer q_, out_, lse_;
  std::int64_t q_row_ = 0, q_head_ = 0, out_row_ = 0, out_head_ = 0;
  std::uint64_t q_hash_ = 0;
};

using MlaCalls = std::vector<std::unique_ptr<MlaCall>>;

// All calls in one. `damage` gets what was written that must not be, or is left empty. The weights and options must fit
// them all. (attend_mla.hpp adds a test's failure.)
std::vector<Attention> run_mla(const MlaWeights& weights, const AttentionOptions& options, const MlaCalls& calls,
                               reference::MlaForm form, const How& how, std::string& damage);

Attention mla_twin(reference::MlaForm form, const MlaCase& c);

}  // namespace kvroof::test
