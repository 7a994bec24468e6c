// Rows of the result file (results/schema.json), built from what a tuple measured.
#pragma once

#include <string>

#include "bench/cases.hpp"
#include "bench/decode_setup.hpp"
#include "bench/json.hpp"
#include "bench/pairing.hpp"
#include "bench/rivals/rival.hpp"
#include "bench/statistics.hpp"

namespace kvroof::bench {

Json ratio_or_null(const Ratio& ratio);

// All fields that follow from the case alone.
Json decode_row(const DecodeCase& c, const std::string& impl, const std::string& tuple);
Json roof_row(const RoofCase& c);

// Turns a row into one that did not run.
void set_not_run(Json& row, const std::string& status, const std::string& reason);

// What the tuple knows about the machine while it ran.
struct Conditions {
  std::optional<double> mhz_before, mhz_after;
  std::optional<std::int64_t> throttled;
};
void set_conditions(Json& row, const Conditions& conditions);

struct Timed {
  const std::vector<double>* time_ns = nullptr;   // of this row's contender
  const std::vector<double>* probe_ns = nullptr;  // read probe over this row's bytes
  std::int64_t probe_bytes = 0;
  const std::vector<double>* compute_gflops = nullptr;  // per repetition
  const std::vector<double>* kvroof_ns = nullptr;       // null for our own row
  std::int64_t calls = 1;
};

// Times, rates, fractions, spread, samples, status ok or unstable, above_roof.
void set_times(Json& row, const Timed& timed);

// Whether a stable row of ours lies so far above its roof that not even a quarter of its pairs are below 1.10 of it: no
// noise, the probe is wrong. The program then ends with exit code 1.
inline constexpr double kWrongRoof = 1.10;
bool fails_roof(const Json& row);

// `row`: the row of its case and impl, filled in with what the rival says of itself.
Json rival_row(const Rival& rival, Json row, std::int64_t copies);

void set_check(Json& row, const Check& check);
void add_time_ratio(Json& row, const std::string& to, const std::string& what, const Ratio& ratio);

}  // namespace kvroof::bench
