// Golden output hashes: what the numerics definition gives for a fixed list of cases. The file is written from the lane
// twin by tools/update_golden and read by the tests and by `tools/kvroof verify`; a kernel never defines its own value.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/cases.hpp"

namespace kvroof::test {

// The window rule's name in the file: published results once changed their meaning when a rule did, so a file that does
// not say which one it was made under is refused.
inline constexpr const char* kWindowRule = "key j is visible to query i iff 0 <= i-j < W";

// Every storage and the mixed pairs that engines use, times shapes, chunks and options. The name in the file is
// describe(spec): it holds all that makes the inputs.
std::vector<CaseSpec> golden_cases();

std::uint64_t attention_hash(const std::vector<float>& out, const std::vector<float>& lse);
std::string hex_hash(std::uint64_t hash);  // "0x" and 16 digits

struct Golden {
  int definition = 0;
  std::string reason;
  std::map<std::string, std::string> hashes;  // describe(spec) -> hex_hash
};

// Throws std::runtime_error with one line: the path, what is wrong, how to get a right one.
Golden load_golden(const std::string& path);
// The file's text, with the cases in the order of `names`.
std::string golden_text(const Golden& golden, const std::vector<std::string>& names);

}  // namespace kvroof::test
