// The command line: a few flags of our own, the rest is Google Benchmark's.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/cases.hpp"

namespace kvroof::bench {

// Wrong usage or bad input: one line, exit code 2.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  Preset preset = Preset::quick;
  std::string journal;  // "": none
  bool resume = false;
  std::optional<std::int64_t> memory_limit;      // bytes
  std::optional<std::int64_t> last_level_bytes;  // for machines that do not show their caches
  bool help = false;
  // Google Benchmark's flags that mean the same but work on rows: a filter matches an entry if any row of it matches,
  // min_time is the time of one entry's repetitions.
  std::string filter;
  bool list = false;
  std::optional<double> min_time_s;
  bool default_format = true;  // no --benchmark_format: our own lines
  bool file_out = false;
  std::vector<std::string> for_google;    // what Google Benchmark gets to see
  std::vector<std::string> command_line;  // as given, paths reduced to their last part
};

Options parse_options(int argc, char** argv);  // throws UsageError
extern const char kHelp[];

// Whether a filter in Google Benchmark's syntax (regular expression, "-" in front negates, "" or "all" for all) takes
// an entry with these row names.
class RowFilter {
 public:
  explicit RowFilter(const std::string& filter);  // throws UsageError
  ~RowFilter();
  RowFilter(const RowFilter&) = delete;
  RowFilter& operator=(const RowFilter&) = delete;
  bool takes(const std::vector<std::string>& row_names) const;

 private:
  struct Compiled;
  Compiled* compiled_ = nullptr;
  bool negative_ = false;
};

}  // namespace kvroof::bench
