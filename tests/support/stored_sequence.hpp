// One case in memory as a caller would hold it: its cache in some layout, q, out and lse with random strides,
// everything between guard pages, outputs pre-filled with a signalling pattern; and a run of decode attention over such
// sequences that afterwards says what was touched and must not be. Knows no test framework: tools/kvroof verify uses it
// too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/stored_cache.hpp"

namespace kvroof::test {

struct Attention {
  std::vector<float> out;  // [n][Hq][Dv]
  std::vector<float> lse;  // [n][Hq]
};

inline constexpr std::uint32_t kSignalling = 0x7fa5a5a5u;  // a signalling NaN that no kernel may write

// One sequence in memory: the cache, q, out and lse, with random strides and guard pages.
class StoredSequence {
 public:
  StoredSequence(const Case& c, const Layout& layout, bool want_lse = true);

  AttentionSequence sequence();
  // The kernel reads these rows instead of the case's own cache, which then only names the expected result.
  void read_from(const KvView& view) { view_ = view; }
  const Case& source() const { return case_; }
  Attention result() const;
  bool untouched() const;  // no float of out and lse was written
  // Empty when all is well, else what was touched that must not be.
  std::string damage() const;

 private:
  Case case_;
  std::string name_;
  StoredCache cache_;
  KvView view_;
  GuardedBuffer q_, out_, lse_;
  std::int64_t q_row_ = 0, q_head_ = 0, out_row_ = 0, out_head_ = 0;
  std::uint64_t hash_ = 0;
};

struct How {
  Isa isa = Isa::portable;
  Mode mode = Mode::reproducible;
  int parts = 1;
  std::uint64_t order_seed = 0;  // 0: parts in order; else a random order
  bool threads = false;          // decode_attention with `parts` threads instead of the parts one after the other
  std::uint32_t workspace_fill = 0x7fc00000u;  // what the workspace holds before (its content must not matter)
};
std::string describe(const How& how);

// The options of one case; the per-head arrays end at a guard page. Sequences of one call share them.
class StoredOptions {
 public:
  explicit StoredOptions(const Case& c, Edge edge = Edge::end);
  AttentionShape shape;
  AttentionOptions options;

 private:
  GuardedBuffer slopes_, sinks_;
};

using Sequences = std::vector<std::unique_ptr<StoredSequence>>;

// The arguments of one call over sequences that share shape, storage and options: those of the first one's case.
struct StoredCall {
  explicit StoredCall(StoredSequence& only, Mode mode = Mode::reproducible);
  explicit StoredCall(const Sequences& sequences, Mode mode = Mode::reproducible);
  StoredCall(const StoredCall&) = delete;
  StoredCall& operator=(const StoredCall&) = delete;

  StoredOptions stored;
  std::vector<AttentionSequence> list;
  AttentionArgs args;

 private:
  void set_args(Mode mode);
};

// Runs all sequences in one call; they must be of one shape, storage and set of options. `damage` gets what was written
// that must not be, or is left empty.
std::vector<Attention> run_attention(const Sequences& sequences, const How& how, std::string& damage);

// The lane twin's result for a case.
Attention twin(const Case& c);

}  // namespace kvroof::test
