// Decode attention in a test: runs cases, adds a failure for damaged memory, and compares results by their bits.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/stored_sequence.hpp"

namespace kvroof::test {

// All sequences in one call.
std::vector<Attention> attend(const Sequences& sequences, const How& how);
// One case alone.
Attention attend(const Case& c, const Layout& layout, const How& how);
// One case, with its rows where `view` says.
Attention attend_view(const Case& c, const KvView& view, const How& how);

// out and lse both, by bits.
void expect_same_bits(const Attention& actual, const Attention& expected, const std::string& what,
                      bool nan_allowed = false);
// `spoiled(r, h, d)` says which floats must be NaN (d = -1: lse); all others keep the clean run's bits.
void expect_spoiled(const Attention& a, const Attention& clean, const CaseSpec& spec,
                    const std::function<bool(std::int64_t r, std::int64_t h, std::int64_t d)>& spoiled);

}  // namespace kvroof::test
