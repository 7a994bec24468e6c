#include "bench/reporter.hpp"

#include <cstdio>
#include <ostream>

namespace kvroof::bench {
namespace {

std::string printed(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string duration(double ns) {
  if (ns < 1e4) return printed("%.2f us", ns / 1e3);
  if (ns < 1e7) return printed("%.1f us", ns / 1e3);
  return printed("%.1f ms", ns / 1e6);
}

std::string head(const Json& row) {
  char text[160];
  const std::string threads =
      row["threads"].get<std::string>() + (row["threads"] == "all" ? "(" + row["thread_count"].dump() + ")" : "");
  if (row["kernel"] == "roof_read") {
    std::snprintf(text, sizeof text, "roof read     %9.2f MiB %-4s threads %-6s",
                  row["bytes"].get<double>() / (1 << 20), row["cache"].get<std::string>().c_str(), threads.c_str());
  } else if (row["kernel"] == "roof_compute") {
    const std::string name = row["name"].get<std::string>();
    const auto op = name.find("/op:");
    std::snprintf(text, sizeof text, "roof compute  %-18s threads %-6s",
                  name.substr(op + 4, name.find('/', op + 1) - op - 4).c_str(), threads.c_str());
  } else {
    const std::int64_t n = row["shape"]["n"].get<std::int64_t>();
    const std::string more = (n > 1 ? " n " + std::to_string(n) : "") +
                             (row["order"] == "token" ? " token-major" : "") +
                             (row["mode"] == "native" ? " native" : "");
    std::snprintf(text, sizeof text, "%s %s %-4s T %6ld %s threads %-6s%s", row["kernel"].get<std::string>().c_str(),
                  row["shape"]["name"].get<std::string>().c_str(), row["storage"].get<std::string>().c_str(),
                  static_cast<long>(row["T"].get<std::int64_t>()), row["cache"].get<std::string>().c_str(),
                  threads.c_str(), more.c_str());
  }
  return text;
}

std::string body(const Json& row) {
  if (!row.contains("real_time")) return row["error_message"].get<std::string>();
  std::string text;
  if (row.contains("read_fraction") && row["read_fraction"].is_number()) {
    char fraction[120];
    std::snprintf(fraction, sizeof fraction, "%.2f of roof %6.1f GB/s [%.2f %.2f] ", row["read_fraction"].get<double>(),
                  row["read_roof_gb_per_s"].get<double>(), row["spread"]["low"].get<double>(),
                  row["spread"]["high"].get<double>());
    text += fraction;
    if (row["attainable_fraction"].is_number())
      text += printed(" %.2f of attainable ", row["attainable_fraction"].get<double>());
  }
  if (row["bytes"].is_number())
    text += printed(" %6.1f GB/s", row["bytes"].get<double>() / row["real_time"].get<double>());
  else
    text += printed(" %7.1f GFLOP/s", row["flops"].get<double>() / row["real_time"].get<double>());
  return text + "  " + duration(row["real_time"].get<double>());
}

std::string rival(const Json& row) {
  const std::string impl = row["impl"].get<std::string>();
  if (!row.contains("real_time")) return "  " + impl + " " + row["status"].get<std::string>();
  if (!row["time_ratio_to_kvroof"].is_object()) return "  " + impl + " " + duration(row["real_time"].get<double>());
  return "  " + impl + printed(" x%.2f", row["time_ratio_to_kvroof"]["median"].get<double>());
}

}  // namespace

bool LineReporter::ReportContext(const Context&) {
  GetOutputStream()
      << "rows: fraction of the paired read roof [quartiles], GB/s, time of one call, rivals' time over ours\n";
  return true;
}

void LineReporter::ReportRuns(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    if (run.run_type != Run::RT_Iteration) continue;
    const std::vector<Json>* rows = sweep_.rows_of(run.run_name.function_name);
    if (rows == nullptr || rows->empty()) {
      GetOutputStream() << run.run_name.function_name << "  " << skip_text(run) << "\n";
      continue;
    }
    // Our own rows a line each, rivals at the end of the line of the row they were measured with.
    for (const Json& own : *rows) {
      if (own["impl"] != "kvroof" && rows->size() > 1) continue;
      if (own.value("mode", Json()) == "native" && own["status"] == "unsupported") continue;  // the file says why
      std::string line = head(own) + "  " + body(own);
      for (const Json& ratio : own.value("time_ratios", Json::array()))
        line += "  " + ratio["what"].get<std::string>() + printed(" %.3f", ratio["median"].get<double>()) +
                printed(" [%.3f", ratio["low"].get<double>()) + printed(" %.3f]", ratio["high"].get<double>());
      if (own.contains("page_order_fraction") && own["page_order_fraction"].is_object())
        line += printed("  %.2f of page order", own["page_order_fraction"]["median"].get<double>()) +
                printed(" (which costs x%.2f)", own["page_order_cost"]["median"].get<double>());
      for (const Json& row : *rows)  // their ratio is to the entry's own row
        if (row["impl"] != "kvroof" && row["impl"] != "probe" && own["name"] == rows->back()["name"])
          line += rival(row);
      if (own["above_roof"] == true) line += "  ABOVE ITS ROOF";
      if (own["status"] == "unstable") line += "  (unstable: " + own["reason"].get<std::string>() + ")";
      GetOutputStream() << line << std::endl;
    }
  }
}

bool RowsReporter::ReportContext(const Context& context) {
  // The stream is known only by now.
  inner_->SetOutputStream(&GetOutputStream());
  inner_->SetErrorStream(&GetErrorStream());
  return inner_->ReportContext(context);
}

void RowsReporter::ReportRuns(const std::vector<Run>& runs) {
  std::vector<Run> expanded;
  for (const Run& run : runs) {
    const std::vector<Json>* rows = sweep_.rows_of(run.run_name.function_name);
    if (run.run_type != Run::RT_Iteration || rows == nullptr) {
      expanded.push_back(run);
      continue;
    }
    for (const Json& row : *rows) {
      Run r = run;
      r.run_name = {};
      r.run_name.function_name = row["name"].get<std::string>();
      r.time_unit = benchmark::kNanosecond;
      set_skipped(r, row.contains("real_time") ? "" : row["error_message"].get<std::string>());
      r.counters.clear();
      r.real_accumulated_time = r.cpu_accumulated_time = 0;
      if (row.contains("real_time")) {
        r.iterations = row["iterations"].get<std::int64_t>();
        r.real_accumulated_time = r.cpu_accumulated_time =
            row["real_time"].get<double>() * 1e-9 * static_cast<double>(r.iterations);
        for (const char* name : {"read_fraction", "attainable_fraction", "gb_per_s", "gflops"})
          if (row.contains(name) && row[name].is_number()) r.counters[name] = row[name].get<double>();
      }
      expanded.push_back(r);
    }
  }
  inner_->ReportRuns(expanded);
}

}  // namespace kvroof::bench
