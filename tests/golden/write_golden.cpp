// kvroof_write_golden FILE REASON: the golden hashes from the lane twin. Links the references only, so that no kernel
// can define its own golden value. Refuses to give an existing case another hash under the same definition number: then
// the definition has changed, and its number must say so.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "reference/lane_twin.hpp"
#include "tests/support/golden.hpp"

namespace {

int fail(const std::string& text) {
  std::fprintf(stderr, "update_golden: %s\n", text.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kvroof;
  if (argc != 3 || argv[2][0] == '\0')
    return fail("usage: kvroof_write_golden FILE REASON; the reason says which definition changed and why");
  const std::string path = argv[1];
  test::Golden golden;
  golden.definition = reference::kTwinDefinition;
  golden.reason = argv[2];
  for (const test::CaseSpec& spec : test::golden_cases()) {
    const test::Case c = test::make_case(spec);
    std::vector<float> out, lse;
    reference::lane_twin_attention(c.problem, out, lse);
    golden.hashes[describe(spec)] = test::hex_hash(test::attention_hash(out, lse));
  }
  int added = 0, changed = 0;
  if (std::filesystem::exists(path)) {
    try {
      const test::Golden before = test::load_golden(path);
      for (const auto& [name, hash] : golden.hashes) {
        const auto old = before.hashes.find(name);
        if (old == before.hashes.end()) {
          ++added;
        } else if (old->second != hash) {
          ++changed;
          if (before.definition == golden.definition) {
            return fail(name + " gave " + old->second + " and now gives " + hash + " under the same definition " +
                        std::to_string(golden.definition) + ": raise kTwinDefinition and kDefinition first");
          }
        }
      }
    } catch (const std::runtime_error& error) {
      return fail(std::string(error.what()) + " (remove it to start anew)");
    }
  } else {
    added = static_cast<int>(golden.hashes.size());
  }
  const std::string next = path + ".new";
  {
    std::ofstream file(next, std::ios::trunc);
    file << golden_text(golden);
    file.flush();
    if (!file) return fail(next + ": cannot be written");
  }
  std::error_code error;
  std::filesystem::rename(next, path, error);
  if (error) return fail(path + ": " + error.message());
  std::printf("%s: definition %d, %zu cases (%d added, %d changed)\n", path.c_str(), golden.definition,
              golden.hashes.size(), added, changed);
  return 0;
}
