// Cases of multi-head latent attention: a MlaCaseSpec is a handful of numbers from which everything else follows, as in
// cases.hpp. Uses the references only: golden values are made from these by a program that does not link the kernels.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "reference/mla.hpp"
#include "tests/support/cases.hpp"

namespace kvroof::test {

inline constexpr reference::MlaForm kMlaForms[] = {reference::MlaForm::absorbed, reference::MlaForm::reconstruct};
const char* mla_form_name(reference::MlaForm form);

inline constexpr reference::MlaShape kMlaToy = {8, 8, 8, 8, 16};
inline constexpr reference::MlaShape kMlaV2Lite = {16, 128, 64, 128, 512};
inline constexpr reference::MlaShape kMlaV3 = {128, 128, 64, 128, 512};

struct MlaCaseSpec {
  reference::MlaShape shape = kMlaToy;
  std::int64_t n = 1, T = 1;
  Storage storage = Storage::f32;
  std::int64_t window = kAll, kept_tokens = 0;
  float scale = 0.25f, softcap = std::numeric_limits<float>::infinity();
  bool sink = false;
  std::uint64_t seed = 1;
};

// "H:8/nope:8/rope:8/Dv:8/dc:16/n:1/T:513/storage:f16/W:all/kept:0/scale:0x1p-2/softcap:inf/sink:0/seed:1"
std::string describe(const MlaCaseSpec& spec);

struct MlaCase {
  MlaCaseSpec spec;
  std::vector<float> rows;        // [T][d_c + rope] as a caller appends them
  reference::MlaProblem problem;  // with the same rows as stored, in their meaning
};

MlaCase make_mla_case(const MlaCaseSpec& spec);
// Stores `rows` again after they were changed.
void restore_rows(MlaCase& c);
// The same sequence as it was when query r was its newest token (n = 1).
MlaCase single_query(const MlaCase& c, std::int64_t r);
// A random point of the whole option space; `work` bounds what the twins have to compute.
MlaCaseSpec random_mla_spec(std::uint64_t seed, std::int64_t work);

// Compression of a chunk: weights, hidden states and the twin's rows.
struct CompressSpec {
  std::int64_t model_dim = 64, latent_dim = 16, rope_dim = 8, n = 1, first_position = 0;
  bool interleaved = true;
  std::uint64_t seed = 1;
};
std::string describe(
    const CompressSpec& spec);  // "compress/model:64/dc:16/rope:8/n:1/position:0/pairing:interleaved/seed:1"
struct CompressCase {
  CompressSpec spec;
  reference::MlaCompressor weights;
  std::vector<float> x;  // [n][model]
};
CompressCase make_compress_case(const CompressSpec& spec);
std::vector<float> compress_twin(const CompressCase& c);  // [n][d_c + rope]

// The cases of tests/golden/mla.json; a hash belongs to "form:absorbed/" or "form:reconstruct/" and describe(spec), or
// to describe(CompressSpec).
std::vector<MlaCaseSpec> golden_mla_cases();
std::vector<CompressSpec> golden_compress_cases();
std::string golden_name(reference::MlaForm form, const MlaCaseSpec& spec);

}  // namespace kvroof::test
