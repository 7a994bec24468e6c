// What a decode row and its rivals share: the caches, the query, and what the right answer is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/arena.hpp"
#include "bench/cases.hpp"
#include "reference/oracle.hpp"

namespace kvroof::bench {

struct DecodeSetup {
  DecodeCase c;
  CacheSet caches;  // of c.storage
  float scale = 1;
  std::vector<float> q;  // [Hq][Dk]

  // The oracle's answer for one query of cache 0.
  struct Sample {
    std::int64_t sequence, query, head;
    reference::OracleAnswer answer;
  };
  const std::vector<Sample>* samples = nullptr;
};

// Whose bound a mode's results are held to.
inline const reference::Arithmetic& arithmetic_of(Mode mode) {
  return mode == Mode::native ? reference::kNativeBf16Arithmetic : reference::kReproducibleArithmetic;
}

// Strides of one contiguous cache of the case, in its order of rows; no runs.
KvView contiguous_strides(const DecodeCase& c);

struct Check {
  bool done = false, passed = false;
  double max_error = 0, bound = 0;
  std::string rule;
};

// Rivals: largest error relative to the largest output of out[Hq][Dv]. They round queries, probabilities or results to
// their compute type (`precision`), which the bound allows for.
Check check_rival(const DecodeSetup& setup, const float* out, Storage precision);

}  // namespace kvroof::bench
