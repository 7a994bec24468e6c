#include "bench/result_rows.hpp"

#include <algorithm>
#include <cstdio>

namespace kvroof::bench {
namespace {

// Beyond these a row is doubtful, and says so.
constexpr double kSpreadLimit = 0.25;  // (high - low) / median of the headline ratio
constexpr double kClockLimit = 0.03;   // change of the clock during the tuple
// A roof is a median too: less than this above it is no finding.
constexpr double kAboveRoofLeast = 0.02;

std::vector<double> measured(const std::vector<double>& values) {
  std::vector<double> some;
  for (double v : values)
    if (v > 0) some.push_back(v);
  return some;
}

Json rounded(const std::vector<double>& values, int digits) {
  Json array = Json::array();
  for (double v : values) {
    char text[40];
    std::snprintf(text, sizeof text, "%.*g", digits, v);
    array.push_back(std::strtod(text, nullptr));
  }
  return array;
}

// A roof that a row passes by more than its spread is wrong.
void mark_above_roof(Json& row, const char* which, const Ratio& fraction, double scale) {
  const double above = fraction.median * scale - 1;
  if (fraction.n < 3 || above <= std::max((fraction.high - fraction.low) * scale, kAboveRoofLeast)) return;
  row["above_roof"] = true;
  row["above_roof_by"] = above;
  row["above_roof_of"] = which;
}

const char* role(bool all_threads) { return all_threads ? "all" : "1"; }

}  // namespace

Json ratio_or_null(const Ratio& ratio) {
  if (ratio.n == 0) return nullptr;
  return {{"median", ratio.median}, {"low", ratio.low}, {"high", ratio.high}, {"n", ratio.n}};
}

Json decode_row(const DecodeCase& c, const std::string& impl, const std::string& tuple) {
  Json row;
  row["name"] = row["run_name"] = row_name(c, impl);
  row["key"] = join_key(row_name(c, impl));
  row["tuple"] = tuple;
  row["run_type"] = "iteration";
  row["kernel"] = c.kernel;
  row["impl"] = impl;
  row["storage"] = row["key_storage"] = row["value_storage"] = storage_name(c.storage);
  row["shape"] = {{"name", c.shape.name},
                  {"Hq", c.shape.query_heads},
                  {"Hkv", c.shape.kv_heads},
                  {"Dk", c.shape.key_dim},
                  {"Dv", c.shape.value_dim},
                  {"B", c.batch},
                  {"n", c.n}};
  row["T"] = c.T;
  row["W"] = c.window == 0 ? Json("all") : Json(c.window);
  row["layout"] = c.layout;
  row["order"] = row_order_name(c.order);
  if (c.page_size > 0) {
    row["page_size"] = c.page_size;
    row["pages"] = c.pages;
  }
  if (*c.lengths != '\0') row["lengths"] = c.lengths;
  if (c.prefix > 0) row["prefix"] = c.prefix;
  row["cache"] = c.cold ? "cold" : "warm";
  row["mode"] = impl == "kvroof" ? Json(mode_name(c.mode)) : Json(nullptr);
  row["threads"] = role(c.all_threads);
  row["thread_count"] = c.threads;
  row["isa"] = impl == "kvroof" ? row_isa(c) : isa_name(c.isa);
  row["form"] = nullptr;
  row["implementation"] = nullptr;
  row["bytes"] = c.bytes();
  row["flops"] = c.flops();
  row["intensity"] = static_cast<double>(c.flops()) / static_cast<double>(c.bytes());
  for (const char* field : {"gb_per_s", "gflops", "read_roof_gb_per_s", "compute_roof_gflops", "attainable_gflops",
                            "read_fraction", "attainable_fraction", "time_ratio_to_kvroof", "output_hash", "checked"})
    row[field] = nullptr;
  if (impl != "kvroof") row["output_hash_reason"] = "only kvroof's reproducible mode promises bits";
  if (impl == "probe") row["checked_reason"] = "the probe computes no attention";
  if (impl == "kvroof") row["time_ratio_to_kvroof_reason"] = "kvroof's own rows are compared in time_ratios";
  row["above_roof"] = false;
  return row;
}

Json roof_row(const RoofCase& c) {
  Json row;
  const std::string name = row_name(c);
  const bool native = c.mode == Mode::native && *native_isa_name(c.isa) != '\0';
  row["name"] = row["run_name"] = row["tuple"] = name;
  row["key"] = join_key(name);
  row["run_type"] = "iteration";
  row["kernel"] = c.read ? "roof_read" : "roof_compute";
  row["impl"] = "probe";
  row["cache"] = c.read ? Json(c.cold ? "cold" : "warm") : Json(nullptr);
  row["threads"] = role(c.all_threads);
  row["thread_count"] = c.threads;
  row["isa"] = native ? native_isa_name(c.isa) : isa_name(c.isa);
  row["bytes"] = c.read ? Json(c.bytes) : Json(nullptr);
  row["flops"] = nullptr;
  row["above_roof"] = false;
  return row;
}

void set_not_run(Json& row, const std::string& status, const std::string& reason) {
  row["status"] = status;
  row["reason"] = reason;
  row["error_occurred"] = true;
  row["error_message"] = (status == "unsupported" ? "unsupported: " : "not measured: ") + reason;
}

void set_conditions(Json& row, const Conditions& conditions) {
  row["mhz_before"] = value_or_null(conditions.mhz_before);
  row["mhz_after"] = value_or_null(conditions.mhz_after);
  if (!conditions.mhz_before) row["mhz_before_reason"] = "no such loop for this architecture";
  row["throttled"] = value_or_null(conditions.throttled);
  if (!conditions.throttled) row["throttled_reason"] = "the control group does not say";
  if (row.value("status", "") != "ok") return;
  std::string reason;
  if (conditions.mhz_before && conditions.mhz_after) {
    const double change = *conditions.mhz_after / *conditions.mhz_before;
    if (change > 1 + kClockLimit || change < 1 - kClockLimit) {
      char text[80];
      std::snprintf(text, sizeof text, "clock went from %.0f to %.0f MHz", *conditions.mhz_before,
                    *conditions.mhz_after);
      reason = text;
    }
  }
  if (conditions.throttled && *conditions.throttled > 0)
    reason += (reason.empty() ? "" : "; ") + std::string("throttled by the CPU quota ") +
              std::to_string(*conditions.throttled) + " times";
  if (reason.empty()) return;
  row["status"] = "unstable";
  row["reason"] = reason;
}

void set_times(Json& row, const Timed& timed) {
  const std::vector<double> times = measured(*timed.time_ns);
  if (times.empty()) {
    set_not_run(row, "not_measured", "took no part in any repetition");
    return;
  }
  const double ns = median(times);
  const double bytes = row["bytes"].is_number() ? row["bytes"].get<double>() : 0;
  const double flops = row["flops"].is_number() ? row["flops"].get<double>() : 0;
  row["iterations"] = static_cast<std::int64_t>(times.size()) * timed.calls;
  row["calls_per_sample"] = timed.calls;
  row["real_time"] = row["cpu_time"] = ns;
  row["time_unit"] = "ns";
  row["status"] = "ok";
  row["reason"] = nullptr;
  if (bytes > 0) row["gb_per_s"] = bytes / ns;
  if (flops > 0) row["gflops"] = flops / ns;
  Json samples = Json::object();
  samples["time_ns"] = rounded(times, 7);
  Ratio headline = summarize(std::vector<double>(times));
  for (double* value : {&headline.median, &headline.low, &headline.high}) *value /= ns;

  if (timed.probe_ns != nullptr && bytes > 0) {
    // Fractions are in rates, so that a rival whose cache is wider than the probe's bytes is judged by its own bytes.
    std::vector<double> read_fraction, attainable_fraction;
    const double scale = bytes / static_cast<double>(timed.probe_bytes);
    std::vector<double> probes, compute;
    for (std::size_t r = 0; r < timed.time_ns->size(); ++r) {
      const double t = (*timed.time_ns)[r], p = (*timed.probe_ns)[r];
      if (!(t > 0) || !(p > 0)) continue;
      probes.push_back(p);
      read_fraction.push_back(p * scale / t);
      const double read_roof = static_cast<double>(timed.probe_bytes) / p;
      if (timed.compute_gflops == nullptr || !((*timed.compute_gflops)[r] > 0)) continue;
      compute.push_back((*timed.compute_gflops)[r]);
      attainable_fraction.push_back(flops / t / std::min(compute.back(), flops / bytes * read_roof));
    }
    if (!read_fraction.empty()) {
      headline = summarize(read_fraction);
      const double read_roof = static_cast<double>(timed.probe_bytes) / median(probes);
      row["read_roof_gb_per_s"] = read_roof;
      row["read_fraction"] = headline.median;
      samples["read_fraction"] = rounded(read_fraction, 5);
      samples["probe_ns"] = rounded(probes, 7);
      if (!attainable_fraction.empty()) {
        const Ratio attainable = summarize(attainable_fraction);
        row["compute_roof_gflops"] = median(compute);
        row["attainable_gflops"] = std::min(median(compute), flops / bytes * read_roof);
        row["attainable_fraction"] = attainable.median;
        row["attainable_spread"] = ratio_or_null(attainable);
        samples["attainable_fraction"] = rounded(attainable_fraction, 5);
        samples["compute_gflops"] = rounded(compute, 5);
      }
      // Rows that several sequences share may come from a cache: what memory must deliver at least are the unique
      // bytes.
      const double unique = row.contains("unique_bytes") ? row["unique_bytes"].get<double>() / bytes : 1;
      mark_above_roof(row, "read", headline, unique);
      // The compute roof is f32 FMA; a rival may use tile or dot instructions and lie above it rightly.
      if (!attainable_fraction.empty() && row["above_roof"] == false && unique == 1 && row["impl"] == "kvroof")
        mark_above_roof(row, "compute", summarize(attainable_fraction), 1);
    }
  }
  row["spread"] = ratio_or_null(headline);
  if (timed.kvroof_ns != nullptr) {
    const std::vector<double> ratios = pair_ratios(*timed.time_ns, *timed.kvroof_ns);
    row["time_ratio_to_kvroof"] = ratio_or_null(summarize(ratios));
    if (ratios.empty())
      row["time_ratio_to_kvroof_reason"] = "kvroof was not measured in this entry";
    else
      samples["time_ratio_to_kvroof"] = rounded(ratios, 5);
  }
  row["samples"] = samples;
  if (headline.n >= 3 && headline.high - headline.low > kSpreadLimit * headline.median) {
    row["status"] = "unstable";
    row["reason"] = "quartiles of the fraction lie more than a quarter apart";
  }
}

bool fails_roof(const Json& row) {
  constexpr int kLeastPairs = 5;
  if (row["above_roof"] != true || row["impl"] != "kvroof" || row["status"] != "ok") return false;
  const bool read = row["above_roof_of"] == "read";
  const Json& fraction = row[read ? "spread" : "attainable_spread"];
  const double unique =
      read && row.contains("unique_bytes") ? row["unique_bytes"].get<double>() / row["bytes"].get<double>() : 1;
  return fraction["n"] >= kLeastPairs && fraction["low"].get<double>() * unique > kWrongRoof;
}

void set_check(Json& row, const Check& check) {
  if (!check.done) return;
  row["checked"] = {{"max_error", number_or_null(check.max_error)}, {"bound", check.bound}, {"rule", check.rule}};
}

Json rival_row(const Rival& rival, Json row, std::int64_t copies) {
  row["cache_copies"] = copies;
  if (!rival.form.empty()) row["form"] = rival.form;
  if (!rival.implementation.empty()) row["implementation"] = rival.implementation;
  if (!rival.version.empty()) row["implementation_version"] = rival.version;
  set_check(row, rival.check);
  if (rival.status != "ok") {
    set_not_run(row, rival.status, rival.reason);
    return row;
  }
  row["key_storage"] = storage_name(rival.key_storage);
  row["value_storage"] = storage_name(rival.value_storage);
  row["bytes"] = rival.bytes;
  row["intensity"] = row["flops"].get<double>() / static_cast<double>(rival.bytes);
  if (rival.setup_ns > 0) row["setup_ns"] = rival.setup_ns;
  if (rival.layout_cost_ns > 0) row["layout_cost_ns"] = rival.layout_cost_ns;
  return row;
}

void add_time_ratio(Json& row, const std::string& to, const std::string& what, const Ratio& ratio) {
  if (ratio.n == 0) return;
  if (!row.contains("time_ratios")) row["time_ratios"] = Json::array();
  row["time_ratios"].push_back(
      {{"to", to}, {"what", what}, {"median", ratio.median}, {"low", ratio.low}, {"high", ratio.high}, {"n", ratio.n}});
}

}  // namespace kvroof::bench
