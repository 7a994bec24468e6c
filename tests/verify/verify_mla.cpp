// Multi-head latent attention in kvroof_verify: both forms over every cache, and compression, against the lane twin,
// each form's own bound of the oracle and the golden hashes.
#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>

#include "tests/support/golden.hpp"
#include "tests/support/mla_call.hpp"
#include "tests/verify/row.hpp"

namespace kvroof::test {
namespace {

using Form = reference::MlaForm;

// The golden file, or why there is none.
class Hashes {
 public:
  explicit Hashes(const std::string& path) {
    try {
      golden_ = load_golden(path);
      if (golden_.definition != kDefinition)
        problem_ = path + ": is of definition " + std::to_string(golden_.definition) + ", the kernels' is " +
                   std::to_string(kDefinition);
    } catch (const std::runtime_error& error) {
      problem_ = error.what();
    }
  }
  void check(Row& row, const std::string& name, const std::vector<float>& out, const std::vector<float>& lse) const {
    const auto hash = golden_.hashes.find(name);
    const bool known = problem_.empty() && hash != golden_.hashes.end();
    const std::string got = hex_hash(attention_hash(out, lse));
    row.add(known && hash->second == got, [&] {
      if (!problem_.empty()) return problem_;
      return name + (known ? ": got " + got + ", golden is " + hash->second : ": not in the golden file");
    });
  }

 private:
  Golden golden_;
  std::string problem_;
};

struct Expected {
  MlaCase source;
  Attention twin_result;
  reference::OracleAnswer oracle, native_oracle;  // the latter where native mode may compute it
};

struct Named {
  const char* name;
  LatentCacheKind kind;
};
constexpr Named kCaches[] = {
    {"contiguous", LatentCacheKind::contiguous}, {"ring", LatentCacheKind::ring}, {"paged", LatentCacheKind::paged}};

void verify_form(Form form, Isa isa, const std::string& storage, const Named& named, const std::vector<Expected>& cases,
                 const Hashes& hashes, std::vector<Row>& rows) {
  const std::string kernel = std::string("mla_") + mla_form_name(form);
  const auto row = [&](const char* against) {
    Row r = plain_row(kernel.c_str(), isa, storage.c_str(), against);
    r.layout = named.name;
    return r;
  };
  Row against_twin = row("lane twin"), against_oracle = row("oracle"), against_golden = row("golden hash");
  Row native = row("oracle");
  native.isa = native_isa_name(isa);
  const bool runs_native = !cases.front().native_oracle.out.empty() && has_native(isa);
  std::uint64_t seed = 0;
  for (const Expected& expected : cases) {
    ++seed;
    How how;
    how.isa = isa;
    how.parts = 1 + static_cast<int>(seed % 5);
    how.order_seed = seed;
    const MlaCase& c = expected.source;
    const LatentCache cache(c, named.kind, seed);
    const MlaWeights weights = make_weights(c);
    MlaCalls one;
    one.push_back(std::make_unique<MlaCall>(c, cache.view(), seed));
    std::string damage;
    const Attention a = run_mla(weights, make_options(c), one, form, how, damage).front();
    const std::string what = golden_name(form, c.spec) + " " + cache.name() + " " + describe(how);
    against_twin.add(damage.empty() && same(a.out, expected.twin_result.out) && same(a.lse, expected.twin_result.lse),
                     [&] { return damage.empty() ? what : damage; });
    against_oracle.add_share(reference::worst_error_over_bound(expected.oracle, a.out, a.lse), what);
    if (runs_native) {
      how.mode = Mode::native;
      const Attention b = run_mla(weights, make_options(c), one, form, how, damage).front();
      native.add_share(damage.empty() ? reference::worst_error_over_bound(expected.native_oracle, b.out, b.lse)
                                      : std::numeric_limits<double>::infinity(),
                       what + damage);
    }
    hashes.check(against_golden, golden_name(form, c.spec), a.out, a.lse);
  }
  rows.insert(rows.end(), {against_twin, against_oracle, against_golden});
  if (runs_native) rows.push_back(native);
}

void verify_compress(Isa isa, const Hashes& hashes, std::vector<Row>& rows) {
  Row against_twin = plain_row("mla_compress", isa, "f32", "lane twin");
  Row against_golden = plain_row("mla_compress", isa, "f32", "golden hash");
  for (const CompressSpec& spec : golden_compress_cases()) {
    const CompressCase c = make_compress_case(spec);
    const std::vector<float> up(static_cast<std::size_t>(spec.latent_dim));  // W_UK and W_UV take no part
    const MlaWeights weights({1, 1, spec.rope_dim, 1, spec.latent_dim, spec.model_dim},
                             {up, up, c.weights.w_dkv, c.weights.w_kr});
    const MlaTokens tokens{
        c.x.data(),          spec.model_dim,     spec.n,
        spec.first_position, c.weights.inv_freq, spec.interleaved ? RopePairing::interleaved : RopePairing::half_split};
    std::vector<float> out(static_cast<std::size_t>(spec.n * (spec.latent_dim + spec.rope_dim)));
    mla_compress(weights, tokens, out.data(), 2, isa);
    against_twin.add(same(out, compress_twin(c)), [&] { return describe(spec); });
    hashes.check(against_golden, describe(spec), out, {});
  }
  rows.insert(rows.end(), {against_twin, against_golden});
}

}  // namespace

void verify_mla(const std::vector<Isa>& isas, const std::string& golden_path, std::vector<Row>& rows) {
  const Hashes hashes(golden_path);
  for (const Form form : kMlaForms) {
    std::map<Storage, std::vector<Expected>> by_storage;
    for (const MlaCaseSpec& spec : golden_mla_cases()) {
      const MlaCase c = make_mla_case(spec);
      by_storage[spec.storage].push_back({c, mla_twin(form, c), reference::mla_oracle(form, c.problem), {}});
      if (spec.storage == Storage::bf16 && form == Form::absorbed)
        by_storage[spec.storage].back().native_oracle =
            reference::mla_oracle(form, c.problem, reference::kNativeBf16Arithmetic);
    }
    for (const Isa isa : isas) {
      for (const auto& [storage, cases] : by_storage) {
        for (const Named& named : kCaches) verify_form(form, isa, storage_name(storage), named, cases, hashes, rows);
      }
    }
  }
  for (const Isa isa : isas) verify_compress(isa, hashes, rows);
}

}  // namespace kvroof::test
