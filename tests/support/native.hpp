// Tests of native mode. Where this machine cannot run it they are SKIPPED with the reason that native_missing gives.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/attend.hpp"

namespace kvroof::test {

class NativeMode : public testing::Test {
 public:
  static constexpr Isa kIsa = Isa::avx512;  // the only one with native kernels

 protected:
  void SetUp() override {
    const std::string missing = native_missing(kIsa, Storage::bf16, Storage::bf16);
    if (!missing.empty()) GTEST_SKIP() << "native mode: " << missing;
  }
  static How how(int parts = 1, std::uint64_t order_seed = 0, bool threads = false) {
    How h;
    h.isa = kIsa;
    h.mode = Mode::native;
    h.parts = parts;
    h.order_seed = order_seed;
    h.threads = threads;
    return h;
  }
};

inline CaseSpec native_spec(std::int64_t hq, std::int64_t hkv, std::int64_t dk, std::int64_t dv, std::int64_t n,
                            std::int64_t T, std::uint64_t seed) {
  return case_of(hq, hkv, dk, dv, n, T, Storage::bf16, seed);
}

inline CaseSpec random_native_spec(std::uint64_t seed, std::int64_t work) {
  CaseSpec spec = random_spec(seed, work);
  spec.k_storage = spec.v_storage = Storage::bf16;
  return spec;
}

// A case whose V is the first `latent_dim` columns of its K rows (absorbed MLA), and those rows as a view.
class LatentCase {
 public:
  LatentCase(CaseSpec spec, std::int64_t latent_dim) {
    spec.kv_heads = 1;
    spec.value_dim = latent_dim;
    source = make_case(spec);
    const std::int64_t dk = spec.key_dim;
    memory_ = GuardedBuffer(static_cast<std::size_t>(spec.T * dk * 2), Edge::end, 2);
    for (std::int64_t t = 0; t < spec.T; ++t) {
      std::copy_n(source.problem.k.begin() + t * dk, latent_dim, source.problem.v.begin() + t * latent_dim);
      encode_row(Storage::bf16, source.problem.k.data() + t * dk, dk, memory_.data() + t * dk * 2);
    }
    memory_.read_only();
    run_.k = run_.v = memory_.data();
    run_.rows = spec.T;
    view.runs = &run_;
    view.run_count = 1;
    view.end_position = spec.T;
    view.k_storage = view.v_storage = Storage::bf16;
    view.k_row_stride = view.v_row_stride = dk * 2;
    view.k_head_stride = view.v_head_stride = spec.T * dk * 2;
    view.latent_dim = latent_dim;
  }
  LatentCase(const LatentCase&) = delete;
  LatentCase& operator=(const LatentCase&) = delete;

  Case source;
  KvView view;

 private:
  GuardedBuffer memory_;
  RowRun run_;
};

}  // namespace kvroof::test
