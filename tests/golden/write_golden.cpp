// kvroof_write_golden attention|mla FILE REASON: the golden hashes from the lane twin. Links the references only, so
// that no kernel can define its own golden value. Refuses to give an existing case another hash under the same
// definition number: then the definition has changed, and its number must say so.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "reference/lane_twin.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/mla_cases.hpp"

namespace {

using namespace kvroof;

int fail(const std::string& text) {
  std::fprintf(stderr, "update_golden: %s\n", text.c_str());
  return 2;
}

using Names = std::vector<std::string>;

void add(test::Golden& golden, Names& names, const std::string& name, const std::vector<float>& out,
         const std::vector<float>& lse) {
  names.push_back(name);
  golden.hashes[name] = test::hex_hash(test::attention_hash(out, lse));
}

void attention_hashes(test::Golden& golden, Names& names) {
  for (const test::CaseSpec& spec : test::golden_cases()) {
    std::vector<float> out, lse;
    reference::lane_twin_attention(test::make_case(spec).problem, out, lse);
    add(golden, names, describe(spec), out, lse);
  }
}

void mla_hashes(test::Golden& golden, Names& names) {
  for (const reference::MlaForm form : test::kMlaForms) {
    for (const test::MlaCaseSpec& spec : test::golden_mla_cases()) {
      std::vector<float> out, lse;
      reference::mla_twin(form, test::make_mla_case(spec).problem, out, lse);
      add(golden, names, test::golden_name(form, spec), out, lse);
    }
  }
  for (const test::CompressSpec& spec : test::golden_compress_cases())
    add(golden, names, describe(spec), test::compress_twin(test::make_compress_case(spec)), {});
}

}  // namespace

int main(int argc, char** argv) {
  const std::string which = argc > 1 ? argv[1] : "";
  if (argc != 4 || argv[3][0] == '\0' || (which != "attention" && which != "mla"))
    return fail(
        "usage: kvroof_write_golden attention|mla FILE REASON; the reason says which definition changed and why");
  const std::string path = argv[2];
  test::Golden golden;
  golden.definition = reference::kTwinDefinition;
  golden.reason = argv[3];
  Names names;
  if (which == "mla")
    mla_hashes(golden, names);
  else
    attention_hashes(golden, names);
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
    file << golden_text(golden, names);
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
