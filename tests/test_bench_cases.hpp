// Cases that several tests of the benchmark begin with.
#pragma once

#include "bench/cases.hpp"

namespace kvroof::bench {

inline DecodeCase gqa_case() {
  DecodeCase c;
  c.shape = {"GQA", 32, 8, 128, 128};
  c.T = 4096;
  c.storage = Storage::f16;
  c.all_threads = true;
  c.threads = 2;
  c.isa = Isa::portable;
  return c;
}

inline DecodeCase small_case() {
  DecodeCase c = gqa_case();
  c.shape = {"GQA", 4, 2, 32, 32};
  c.T = 64;
  return c;
}

}  // namespace kvroof::bench
