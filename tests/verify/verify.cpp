// kvroof_verify: exactness on this machine. Every kernel x instruction set x storage x layout against the lane twin
// (same bits), the float64 oracle (error over its stated bound) and the golden hashes; native mode, under the name of
// its instructions, against the oracle alone. One JSON object a line on stdout:
//   {"kernel": "decode_attention", "isa": "avx512", "storage": "f16", "layout": "paged", "against": "lane twin",
//    "cases": 16, "misses": 0, "error_over_bound": null, "worst": null, "status": "ok", "reason": null}
// against: "lane twin", "oracle" (error_over_bound is the largest share of the bound used), "golden hash", "reference".
// status: ok, failed or skipped (with the reason); worst describes the first miss. storage is K/V where they differ.
// Exit code 0: all hold; 1: a miss; 2: wrong usage.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/rope.hpp"
#include "reference/half.hpp"
#include "reference/lane_twin.hpp"
#include "reference/oracle.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/stored_sequence.hpp"
#include "tests/verify/row.hpp"

namespace kvroof::test {
namespace {

struct Named {
  const char* name;
  LayoutKind kind;
};
constexpr Named kLayouts[] = {{"contiguous head", LayoutKind::head_major},
                              {"contiguous token", LayoutKind::token_major},
                              {"contiguous interleaved", LayoutKind::interleaved},
                              {"ring", LayoutKind::wrapped},
                              {"paged", LayoutKind::paged},
                              {"many runs", LayoutKind::shredded}};

struct Expected {
  Case source;
  Attention twin_result;
  reference::OracleAnswer oracle, native_oracle;  // the latter where native mode may read the storage
};

std::string storage_text(const CaseSpec& spec) {
  const std::string k = storage_name(spec.k_storage), v = storage_name(spec.v_storage);
  return k == v ? k : k + "/" + v;
}

void verify_attention(const std::vector<Isa>& isas, const std::string& golden_path, std::vector<Row>& rows) {
  Golden golden;
  std::string golden_problem;
  try {
    golden = load_golden(golden_path);
    if (golden.definition != kDefinition) {
      golden_problem = golden_path + ": is of definition " + std::to_string(golden.definition) + ", the kernels' is " +
                       std::to_string(kDefinition);
    }
  } catch (const std::runtime_error& error) {
    golden_problem = error.what();
  }
  std::vector<std::string> order;
  std::map<std::string, std::vector<Expected>> by_storage;
  for (const CaseSpec& spec : golden_cases()) {
    const std::string storage = storage_text(spec);
    if (by_storage.count(storage) == 0) order.push_back(storage);
    const Case c = make_case(spec);
    by_storage[storage].push_back({c, twin(c), reference::oracle_attention(c.problem), {}});
    if (storage == storage_name(Storage::bf16))
      by_storage[storage].back().native_oracle =
          reference::oracle_attention(c.problem, reference::kNativeBf16Arithmetic);
  }
  for (const Isa isa : isas) {
    for (const std::string& storage : order) {
      for (const Named& named : kLayouts) {
        const auto row = [&](const char* against) {
          Row r;
          r.kernel = "decode_attention", r.isa = isa_name(isa), r.storage = storage, r.layout = named.name,
          r.against = against;
          return r;
        };
        Row against_twin = row("lane twin"), against_oracle = row("oracle"), against_golden = row("golden hash");
        Row native = row("oracle");
        native.isa = native_isa_name(isa);
        const bool runs_native = storage == storage_name(Storage::bf16) && has_native(isa);
        std::uint64_t seed = 0;
        for (const Expected& expected : by_storage[storage]) {
          constexpr std::int64_t pages[] = {1, 3, 16, 64, 700};
          Layout layout = random_layout(++seed);
          layout.kind = named.kind;
          layout.page_rows = pages[seed % 5];
          How how;
          how.isa = isa;
          how.parts = 1 + static_cast<int>(seed % 5);
          how.order_seed = seed;
          const std::string what = describe(expected.source.spec) + " " + describe(layout) + " " + describe(how);
          Sequences one;
          one.push_back(std::make_unique<StoredSequence>(expected.source, layout));
          std::string damage;
          const Attention a = run_attention(one, how, damage).front();
          against_twin.add(
              damage.empty() && same(a.out, expected.twin_result.out) && same(a.lse, expected.twin_result.lse),
              [&] { return damage.empty() ? what : damage; });
          against_oracle.add_share(reference::worst_error_over_bound(expected.oracle, a.out, a.lse), what);
          if (runs_native) {
            how.mode = Mode::native;
            const Attention b = run_attention(one, how, damage).front();
            native.add_share(damage.empty() ? reference::worst_error_over_bound(expected.native_oracle, b.out, b.lse)
                                            : std::numeric_limits<double>::infinity(),
                             what + damage);
          }
          const auto hash = golden.hashes.find(describe(expected.source.spec));
          const std::string got = hex_hash(attention_hash(a.out, a.lse));
          const bool known = golden_problem.empty() && hash != golden.hashes.end();
          against_golden.add(known && hash->second == got, [&] {
            if (!golden_problem.empty()) return golden_problem;
            return describe(expected.source.spec) +
                   (known ? ": got " + got + ", golden is " + hash->second : ": not in the golden file");
          });
        }
        rows.insert(rows.end(), {against_twin, against_oracle, against_golden});
        if (runs_native) rows.push_back(native);
      }
    }
  }
}

void verify_conversions(Isa isa, std::vector<Row>& rows) {
  // Every half code, every exponent with the fractions at which rounding turns, and random floats.
  std::vector<float> floats;
  for (std::uint32_t high = 0; high < 512; ++high) {
    for (int bit = 0; bit < 23; ++bit) {
      for (const std::uint32_t fraction :
           {0u, 1u << bit, (1u << bit) - 1u, (1u << bit) + 1u, 0x7fffffu ^ (1u << bit)}) {
        floats.push_back(std::bit_cast<float>((high << 23) + (fraction & 0x7fffffu)));
      }
    }
  }
  Choices choose(1);
  for (int i = 0; i < 100000; ++i) floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(choose.next())));
  std::vector<std::uint16_t> codes(65536), halves(floats.size());
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(codes.size());
  for (const bool brain : {false, true}) {
    Row row = plain_row("convert", isa, brain ? "bf16" : "f16", "reference");
    brain ? convert_to_bf16(floats.data(), halves.data(), floats.size(), isa)
          : convert_to_f16(floats.data(), halves.data(), floats.size(), isa);
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const std::uint16_t expected = brain ? reference::f32_to_bf16(floats[i]) : reference::f32_to_f16(floats[i]);
      row.add(halves[i] == expected, [&] { return "float with bits " + hex_hash(reference::float_bits(floats[i])); });
    }
    brain ? convert_from_bf16(codes.data(), wide.data(), codes.size(), isa)
          : convert_from_f16(codes.data(), wide.data(), codes.size(), isa);
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const float expected = brain ? reference::bf16_to_f32(codes[i]) : reference::f16_to_f32(codes[i]);
      row.add(reference::float_bits(wide[i]) == reference::float_bits(expected),
              [&] { return "code " + hex_hash(codes[i]); });
    }
    rows.push_back(row);
  }
}

// What a row of d values means after storing by the references alone.
std::vector<float> stored_meaning(Storage storage, const std::vector<float>& row, std::vector<std::byte>& bytes,
                                  float& scale) {
  std::vector<float> meaning(row.size());
  bytes.resize(row.size() * storage_bytes(storage));
  if (storage == Storage::int8) {
    std::vector<std::int8_t> codes(row.size());
    scale = reference::quantize_int8_row(row.data(), row.size(), codes.data());
    std::memcpy(bytes.data(), codes.data(), codes.size());
    for (std::size_t i = 0; i < row.size(); ++i) meaning[i] = static_cast<float>(codes[i]) * scale;
    return meaning;
  }
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::uint32_t code = encode_element(storage, reference::f32_to_storage(row[i]));
    std::memcpy(bytes.data() + i * storage_bytes(storage), &code, storage_bytes(storage));
    const auto half = static_cast<std::uint16_t>(code);
    meaning[i] = storage == Storage::f16    ? reference::f16_to_f32(half)
                 : storage == Storage::bf16 ? reference::bf16_to_f32(half)
                                            : reference::bits_float(code);
  }
  return meaning;
}

void verify_rows(Isa isa, std::vector<Row>& rows) {
  Choices choose(3);
  for (const Storage storage : kStorages) {
    Row stored = plain_row("store_row", isa, storage_name(storage), "reference");
    Row loaded = plain_row("load_row", isa, storage_name(storage), "reference");
    for (const std::size_t d : {1u, 7u, 16u, 33u, 64u, 100u, 128u, 576u}) {
      for (int i = 0; i < 50; ++i) {
        const float unit = std::ldexp(1.0f, static_cast<int>(choose.between(-140, 120)));
        std::vector<float> row(d), back(d);
        for (float& x : row) x = unit * ((static_cast<float>(choose.below(2001)) - 1000.0f) / 997.0f);
        if (choose.one_in(10))
          row[static_cast<std::size_t>(choose.below(static_cast<std::int64_t>(d)))] = std::bit_cast<float>(0x7f800000u);
        std::vector<std::byte> expected;
        float scale = 0, expected_scale = 0;
        const std::vector<float> meaning = stored_meaning(storage, row, expected, expected_scale);
        std::vector<std::byte> got(expected.size());
        store_row(storage, row.data(), d, got.data(), &scale, isa);
        load_row(storage, expected.data(), &expected_scale, d, back.data(), isa);
        const auto what = [&] { return std::to_string(d) + " values around " + std::to_string(unit); };
        stored.add(got == expected && reference::float_bits(scale) == reference::float_bits(expected_scale), what);
        bool same_values = true;  // a NaN is a NaN: what it carries is said where it is written
        for (std::size_t k = 0; k < d; ++k) {
          same_values = same_values &&
                        (std::isnan(meaning[k]) ? std::isnan(back[k])
                                                : reference::float_bits(meaning[k]) == reference::float_bits(back[k]));
        }
        loaded.add(same_values, what);
      }
    }
    rows.insert(rows.end(), {stored, loaded});
  }
}

void verify_step_kernels(Isa isa, std::vector<Row>& rows) {
  Choices choose(2);
  const auto fill = [&choose](std::vector<float>& list) {
    for (float& x : list) x = static_cast<float>(choose.below(2000001) - 1000000) * 1e-6f;
  };
  Row turned = plain_row("rope", isa, "f32", "lane twin");
  for (const std::int64_t d : {2, 6, 64, 80, 128}) {
    const std::vector<double> inv_freq = rope_inv_freq(d, 10000.0);
    for (const std::int64_t position : {0, 1, 2, 511, 4096, 131071, 1000000}) {
      for (const RopePairing pairing : {RopePairing::interleaved, RopePairing::half_split}) {
        std::vector<float> heads(static_cast<std::size_t>(3 * d));
        fill(heads);
        std::vector<float> expected = heads;
        rope(heads.data(), 3, d, d, position, inv_freq.data(), pairing, isa);
        for (int h = 0; h < 3; ++h) {
          reference::twin_rope(expected.data() + h * d, d, position, inv_freq.data(),
                               pairing == RopePairing::interleaved);
        }
        turned.add(same(heads, expected),
                   [&] { return "d " + std::to_string(d) + " position " + std::to_string(position); });
      }
    }
  }
  rows.push_back(turned);
  Row projected = plain_row("project", isa, "f32", "lane twin");
  for (const std::int64_t outputs : {1, 15, 16, 17, 64, 100}) {
    for (const std::int64_t inputs : {1, 3, 16, 200}) {
      std::vector<float> w(static_cast<std::size_t>(outputs * inputs)), x(static_cast<std::size_t>(inputs));
      fill(w);
      fill(x);
      std::vector<float> packed(packed_weight_floats(outputs, inputs)), y(static_cast<std::size_t>(outputs)),
          expected(y);
      pack_weights(w.data(), outputs, inputs, packed.data());
      project(packed.data(), x.data(), outputs, inputs, y.data(), isa);
      reference::twin_project(w.data(), x.data(), outputs, inputs, expected.data());
      projected.add(same(y, expected), [&] { return std::to_string(outputs) + " x " + std::to_string(inputs); });
    }
  }
  rows.push_back(projected);
}

void print(const Row& row) {
  nlohmann::ordered_json json;
  const auto text = [](const std::string& value) -> nlohmann::ordered_json {
    if (value.empty()) return nullptr;
    return value;
  };
  json["kernel"] = row.kernel;
  json["isa"] = row.isa;
  json["storage"] = row.storage;
  json["layout"] = row.layout;
  json["against"] = row.against;
  json["cases"] = row.cases;
  json["misses"] = row.misses;
  json["error_over_bound"] = nullptr;
  if (row.share >= 0 && std::isfinite(row.share)) json["error_over_bound"] = row.share;
  json["worst"] = text(row.worst);
  json["status"] = !row.reason.empty() ? "skipped" : row.holds() ? "ok" : "failed";
  json["reason"] = text(row.reason);
  std::puts(json.dump().c_str());
}

int run(const std::string& golden_path) {
  std::vector<Row> rows;
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::neon}) {
    if (!isa_built(isa)) continue;
    if (isa_supported(isa)) {
      isas.push_back(isa);
      if (*native_isa_name(isa) != '\0' && !has_native(isa)) {
        Row skipped = plain_row("native mode", isa, "bf16", "oracle");
        skipped.isa = native_isa_name(isa);
        skipped.reason = native_missing(isa, Storage::bf16, Storage::bf16);
        rows.push_back(skipped);
      }
    } else {
      Row skipped = plain_row("all", isa, "all", "all");
      skipped.reason = isa_missing(isa);
      rows.push_back(skipped);
    }
  }
  verify_attention(isas, golden_path, rows);
  verify_mla(isas, KVROOF_SOURCE_DIR "/tests/golden/mla.json", rows);
  for (const Isa isa : isas) {
    verify_conversions(isa, rows);
    verify_rows(isa, rows);
    verify_step_kernels(isa, rows);
  }
  bool all = true;
  for (const Row& row : rows) {
    print(row);
    all = all && row.holds();
  }
  return all ? 0 : 1;
}

}  // namespace
}  // namespace kvroof::test

int main(int argc, char** argv) {
  std::string golden = KVROOF_SOURCE_DIR "/tests/golden/decode_attention.json";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--golden=", 0) == 0) {
      golden = argument.substr(9);
    } else {
      std::fprintf(stderr, "kvroof_verify: unknown argument \"%s\"; the only one is --golden=FILE\n", argv[i]);
      return 2;
    }
  }
  return kvroof::test::run(golden);
}
