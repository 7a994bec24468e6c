// Decode attention in a test: runs cases, adds a failure for damaged memory, and compares results by their bits.
#pragma once

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

}  // namespace kvroof::test
