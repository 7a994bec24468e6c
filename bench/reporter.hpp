// Google Benchmark sees one run per entry; these reporters show the rows that were measured in it.
#pragma once

#include <benchmark/benchmark.h>

#include <memory>

#include "bench/sweep.hpp"

namespace kvroof::bench {

// One line per row for people: fraction of the roof first.
class LineReporter : public benchmark::BenchmarkReporter {
 public:
  explicit LineReporter(const Sweep& sweep) : sweep_(sweep) {}
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;

 private:
  const Sweep& sweep_;
};

// Any reporter of Google Benchmark's own, fed with one run per row instead of one per entry.
class RowsReporter : public benchmark::BenchmarkReporter {
 public:
  RowsReporter(const Sweep& sweep, std::unique_ptr<benchmark::BenchmarkReporter> inner)
      : sweep_(sweep), inner_(std::move(inner)) {}
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override { inner_->Finalize(); }

 private:
  const Sweep& sweep_;
  std::unique_ptr<benchmark::BenchmarkReporter> inner_;
};

// "" or the text with which the run was skipped; Google Benchmark 1.7 and later name it differently.
template <class Run>
std::string skip_text(const Run& run) {
  if constexpr (requires { run.error_occurred; })
    return run.error_occurred ? run.error_message : "";
  else
    return static_cast<int>(run.skipped) != 0 ? run.skip_message : "";
}

template <class Run>
void set_skipped(Run& run, const std::string& text) {
  if constexpr (requires { run.error_occurred; }) {
    run.error_occurred = !text.empty();
    run.error_message = text;
  } else {
    using Skipped = decltype(run.skipped);
    run.skipped = static_cast<Skipped>(text.empty() ? 0 : 2);  // 2: skipped with error
    run.skip_message = text;
  }
}

}  // namespace kvroof::bench
