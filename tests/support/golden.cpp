#include "tests/support/golden.hpp"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "reference/half.hpp"
#include "reference/inputs.hpp"

namespace kvroof::test {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::vector<CaseSpec> golden_cases() {
  std::vector<CaseSpec> shapes = {
      case_of(4, 4, 128, 128, 1, 1300),  // MHA over three segments
      case_of(8, 2, 64, 64, 1, 513),     // GQA, one row in the second segment
      case_of(16, 1, 128, 128, 1, 700),  // MQA
      case_of(7, 7, 33, 65, 3, 40),      // odd sizes, a chunk
      case_of(71, 1, 8, 8, 1, 100),      // a large group
      case_of(2, 1, 576, 512, 1, 70),    // the widest rows
      case_of(1, 1, 16, 16, 1, 1),       // a single row
      case_of(1, 1, 16, 8, 1, 9000),     // the tree of segments
  };
  CaseSpec masked = case_of(4, 2, 40, 24, 9, 1200);
  masked.window = 530;
  masked.kept_tokens = 5;
  masked.sink = true;
  shapes.push_back(masked);
  CaseSpec biased = case_of(6, 3, 80, 80, 2, 600);
  biased.alibi = true;
  biased.softcap = 30.0f;
  biased.inputs = Inputs::large;
  shapes.push_back(biased);
  CaseSpec rising = case_of(3, 3, 112, 96, 1, 1025);
  rising.inputs = Inputs::rising;
  rising.sink = true;
  shapes.push_back(rising);
  CaseSpec tiny = case_of(2, 2, 64, 64, 1, 300);
  tiny.inputs = Inputs::subnormal;
  shapes.push_back(tiny);

  constexpr Storage pairs[][2] = {{Storage::f32, Storage::f32},   {Storage::f16, Storage::f16},
                                  {Storage::bf16, Storage::bf16}, {Storage::int8, Storage::int8},
                                  {Storage::int8, Storage::f16},  {Storage::bf16, Storage::int8}};
  std::vector<CaseSpec> cases;
  for (const auto& pair : pairs) {
    for (CaseSpec spec : shapes) {
      spec.k_storage = pair[0];
      spec.v_storage = pair[1];
      spec.seed = cases.size() + 1;
      cases.push_back(spec);
    }
  }
  return cases;
}

std::uint64_t attention_hash(const std::vector<float>& out, const std::vector<float>& lse) {
  reference::OutputHash hash;
  for (const float x : out) hash.add(reference::float_bits(x));
  for (const float x : lse) hash.add(reference::float_bits(x));
  return hash.value;
}

std::string hex_hash(std::uint64_t hash) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(hash));
  return text;
}

Golden load_golden(const std::string& path) {
  const auto refuse = [&path](const std::string& what) -> void {
    throw std::runtime_error(path + ": " + what + "; tools/update_golden --reason TEXT writes it from the lane twin");
  };
  std::ifstream in(path);
  if (!in) refuse("cannot be read");
  const Json json = Json::parse(in, nullptr, false);
  if (json.is_discarded() || !json.is_object()) refuse("is not a JSON object");
  Golden golden;
  if (!json.contains("window_rule") || json["window_rule"] != kWindowRule) {
    refuse(std::string("does not name the window rule \"") + kWindowRule + "\"");
  }
  if (!json.contains("definition") || !json["definition"].is_number_integer()) refuse("has no definition number");
  golden.definition = json["definition"].get<int>();
  if (!json.contains("reason") || !json["reason"].is_string() || json["reason"].get<std::string>().empty())
    refuse("gives no reason");
  golden.reason = json["reason"].get<std::string>();
  if (!json.contains("cases") || !json["cases"].is_object() || json["cases"].empty()) refuse("has no cases");
  for (const auto& [name, hash] : json["cases"].items()) {
    if (!hash.is_string()) refuse("case " + name + " has no hash");
    golden.hashes[name] = hash.get<std::string>();
  }
  return golden;
}

std::string golden_text(const Golden& golden, const std::vector<std::string>& names) {
  Json json;
  json["definition"] = golden.definition;
  json["window_rule"] = kWindowRule;
  json["reason"] = golden.reason;
  Json cases = Json::object();
  for (const std::string& name : names) cases[name] = golden.hashes.at(name);
  json["cases"] = cases;
  return json.dump(2) + "\n";
}

}  // namespace kvroof::test
