// Attention cases: a CaseSpec is a handful of numbers from which everything else follows (inputs are counter-based), so
// a failing case is reproduced by the line that describe() prints. Uses the references only: golden values are made
// from these cases by a program that does not link the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/storage.hpp"
#include "reference/problem.hpp"

namespace kvroof::test {

inline constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();  // unlimited window

enum class Inputs : std::uint8_t {
  uniform,    // q, k, v in [-1, 1)
  large,      // q up to 40: scores spread so far that many weights underflow to 0
  rising,     // scores grow with position: the running maximum changes in every block and segment
  zero_q,     // all scores 0: the output is the mean of the visible values
  mean_one,   // v in [0.5, 1.5): a sum over T rows grows like T, so lost low bits show
  subnormal,  // k and v around the smallest magnitudes of their storage (flush-to-zero shows)
};
const char* inputs_name(Inputs inputs);

struct CaseSpec {
  std::int64_t query_heads = 1, kv_heads = 1, key_dim = 64, value_dim = 64;
  std::int64_t n = 1, T = 1;
  Storage k_storage = Storage::f32, v_storage = Storage::f32;
  std::int64_t window = kAll, kept_tokens = 0;
  float scale = 0.125f, softcap = std::numeric_limits<float>::infinity();
  bool alibi = false, sink = false;
  Inputs inputs = Inputs::uniform;
  std::uint64_t seed = 1;
};

CaseSpec case_of(std::int64_t query_heads, std::int64_t kv_heads, std::int64_t key_dim, std::int64_t value_dim,
                 std::int64_t n, std::int64_t T, Storage storage = Storage::f32, std::uint64_t seed = 1);

// "Hq:8/Hkv:2/Dk:64/Dv:64/n:1/T:513/k:f16/v:f16/W:all/..." in the row-name grammar of the results.
std::string describe(const CaseSpec& spec);

struct Case {
  CaseSpec spec;
  reference::AttentionProblem problem;  // values in their stored meaning (rounded to the storage)
};

Case make_case(const CaseSpec& spec);

// The same sequence as it was when query r was its newest token (n = 1): what "one token at a time" computes.
Case single_query(const Case& c, std::int64_t r);
// The same sequence seen with another number of new tokens; n <= the original's.
Case last_queries(const Case& c, std::int64_t n);

// A random point of the whole option space; `work` bounds n * T * Hq * (Dk + Dv), the references being scalar.
CaseSpec random_spec(std::uint64_t seed, std::int64_t work);

// Bits of a value that the storage represents exactly. For int8 the value is the integer code itself.
std::uint32_t encode_element(Storage storage, float value);
void encode_row(Storage storage, const float* values, std::int64_t d, std::byte* at);

// A counter for random choices in tests: the same everywhere, unlike the standard distributions.
class Choices {
 public:
  explicit Choices(std::uint64_t seed) : seed_(seed) {}
  std::uint64_t next();
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n)); }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  template <typename T, std::size_t N>
  T pick(const T (&list)[N]) {
    return list[static_cast<std::size_t>(below(static_cast<std::int64_t>(N)))];
  }
  template <typename T>
  void shuffle(std::vector<T>& list) {
    for (std::size_t i = list.size(); i > 1; --i) {
      std::swap(list[i - 1], list[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
    }
  }

 private:
  std::uint64_t seed_, count_ = 0;
};

// KVROOF_TEST_CASE=<number> narrows a test that loops over numbered cases to one of them.
bool case_selected(std::int64_t number);

}  // namespace kvroof::test
