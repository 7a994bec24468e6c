// One line of kvroof_verify: a kernel on one instruction set and storage against one thing it must agree with.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"

namespace kvroof::test {

struct Row {
  std::string kernel, isa, storage, layout, against;
  int cases = 0, misses = 0;
  double share = -1;  // of the oracle's bound
  std::string worst, reason;

  void add(bool good, const std::function<std::string()>& what) {
    ++cases;
    if (good) return;
    if (misses++ == 0) worst = what();
  }
  // Against an oracle: the share of the bound that a case used.
  void add_share(double used, const std::string& what) {
    share = std::max(share, used);
    add(used <= 1.0, [&] { return what + ": " + std::to_string(used) + " of the bound"; });
  }
  bool holds() const { return !reason.empty() || (cases > 0 && misses == 0); }
};

// Both outputs whole, any NaN by its bits too.
inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline Row plain_row(const char* kernel, Isa isa, const char* storage, const char* against) {
  Row r;
  r.kernel = kernel, r.isa = isa_name(isa), r.storage = storage, r.layout = "rows", r.against = against;
  return r;
}

// Native mode, for the storage that it has kernels for.
inline bool has_native(Isa isa) { return native_missing(isa, Storage::bf16, Storage::bf16).empty(); }

// Multi-head latent attention, both forms and compression, over every cache (verify_mla.cpp).
void verify_mla(const std::vector<Isa>& isas, const std::string& golden_path, std::vector<Row>& rows);

}  // namespace kvroof::test
