#include "bench/options.hpp"

#include <regex.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

namespace kvroof::bench {

const char kHelp[] =
    "kvroof_bench: measures decode attention against this machine's own roofs, beside oneDNN and scalar loops.\n"
    "\n"
    "  --preset=NAME            what to measure. quick: about 3 minutes; full: T = 128 ... 131072; layouts: of full "
    "what\n"
    "                           is about ring, paged, chunks and batches; check: points for predictions; ci: seconds\n"
    "  --journal=FILE           write every row to FILE as it is measured, one JSON object a line\n"
    "  --resume                 go on with the journal, measuring only what it lacks\n"
    "  --memory-limit=BYTES     never hold more than this (suffix K, M or G: powers of 1024); default: what is free\n"
    "  --llc-bytes=BYTES        size of the last-level cache, where the system does not show it\n"
    "  --help                   this text\n"
    "\n"
    "Google Benchmark's flags work too. A filter is matched against row names and takes the whole entry (a kernel is "
    "never\n"
    "measured without its roof and rivals); --benchmark_min_time is the time for one entry's repetitions in seconds.\n"
    "  --benchmark_list_tests  --benchmark_filter=REGEX  --benchmark_min_time=SECONDS  --benchmark_repetitions=N\n"
    "  --benchmark_format=console|json|csv  --benchmark_out=FILE  --benchmark_out_format=json|console\n"
    "Environment: KVROOF_ISA names the instruction set; OMP_PROC_BIND and OMP_PLACES are set to close and cores unless "
    "one of\n"
    "them is set; KVROOF_PROGRESS_FD names an open descriptor that gets one JSON line per finished entry.\n";

namespace {

bool value_of(const std::string& argument, const std::string& flag, std::string& value) {
  if (argument.rfind(flag + "=", 0) != 0) return false;
  value = argument.substr(flag.size() + 1);
  return true;
}

std::int64_t bytes_of(const std::string& flag, const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string suffix = end;
  double unit = 1;
  if (suffix == "K" || suffix == "KiB")
    unit = 1024.0;
  else if (suffix == "M" || suffix == "MiB")
    unit = 1024.0 * 1024;
  else if (suffix == "G" || suffix == "GiB")
    unit = 1024.0 * 1024 * 1024;
  else if (!suffix.empty())
    end = nullptr;
  if (text.empty() || end == nullptr || end == text.c_str() || !(number > 0) || !(number * unit < 9e18))
    throw UsageError(flag + "=" + text + ": not a size; give a positive number of bytes, K, M or G may follow");
  return static_cast<std::int64_t>(number * unit);
}

bool truth_of(const std::string& flag, std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (text == "" || text == "1" || text == "true" || text == "yes" || text == "on" || text == "t" || text == "y")
    return true;
  if (text == "0" || text == "false" || text == "no" || text == "off" || text == "f" || text == "n") return false;
  throw UsageError(flag + "=" + text + ": neither true nor false");
}

std::string without_folders(const std::string& argument) {
  const auto equals = argument.find('=');
  const std::size_t start = equals == std::string::npos ? 0 : equals + 1;
  const bool path = argument.rfind("--journal=", 0) == 0 || argument.rfind("--benchmark_out=", 0) == 0 || start == 0;
  const auto slash = argument.rfind('/');
  if (!path || slash == std::string::npos || slash < start) return argument;
  return argument.substr(0, start) + argument.substr(slash + 1);
}

constexpr const char* kGoogleFlags[] = {"repetitions",
                                        "report_aggregates_only",
                                        "display_aggregates_only",
                                        "format",
                                        "out",
                                        "out_format",
                                        "color",
                                        "counters_tabular",
                                        "context",
                                        "perf_counters",
                                        "enable_random_interleaving",
                                        "min_warmup_time",
                                        "dry_run",
                                        "time_unit"};

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  options.for_google.push_back(argc > 0 ? argv[0] : "kvroof_bench");
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    options.command_line.push_back(without_folders(argument));
    std::string value;
    if (argument == "--help" || argument == "-h") {
      options.help = true;
    } else if (value_of(argument, "--preset", value)) {
      const auto named = [&](Preset preset) { return value == preset_name(preset); };
      const Preset* const preset = std::find_if(std::begin(kPresets), std::end(kPresets), named);
      if (preset == std::end(kPresets))
        throw UsageError("--preset=" + value + ": unknown; choose quick, full, layouts, check or ci");
      options.preset = *preset;
    } else if (value_of(argument, "--journal", value)) {
      if (value.empty()) throw UsageError("--journal=: a file name is missing");
      options.journal = value;
    } else if (argument == "--resume") {
      options.resume = true;
    } else if (value_of(argument, "--memory-limit", value)) {
      options.memory_limit = bytes_of("--memory-limit", value);
    } else if (value_of(argument, "--llc-bytes", value)) {
      options.last_level_bytes = bytes_of("--llc-bytes", value);
    } else if (value_of(argument, "--benchmark_filter", value)) {
      options.filter = value;
    } else if (argument == "--benchmark_list_tests") {
      options.list = true;
    } else if (value_of(argument, "--benchmark_list_tests", value)) {
      options.list = truth_of("--benchmark_list_tests", value);
    } else if (value_of(argument, "--benchmark_min_time", value)) {
      char* end = nullptr;
      const double seconds = std::strtod(value.c_str(), &end);
      if (value.empty() || !(std::string(end).empty() || std::string(end) == "s") || !(seconds > 0) ||
          !std::isfinite(seconds))
        throw UsageError("--benchmark_min_time=" + value + ": not a time; give seconds, for example 0.5 or 0.5s");
      options.min_time_s = seconds;
    } else {
      bool known = argument.rfind("--v=", 0) == 0;
      for (const char* flag : kGoogleFlags) {
        const std::string full = std::string("--benchmark_") + flag;
        known = known || argument == full || argument.rfind(full + "=", 0) == 0;
      }
      if (!known) throw UsageError(argument + ": unknown flag; see --help");
      if (argument.rfind("--benchmark_format", 0) == 0) options.default_format = false;
      if (value_of(argument, "--benchmark_out", value)) options.file_out = !value.empty();
      options.for_google.push_back(argument);
    }
  }
  if (options.resume && options.journal.empty()) throw UsageError("--resume: which journal? give --journal=FILE too");
  return options;
}

struct RowFilter::Compiled {
  regex_t regex;
};

RowFilter::RowFilter(const std::string& filter) {
  std::string text = filter;
  if (text.empty() || text == "all") return;
  if (text[0] == '-') {
    negative_ = true;
    text.erase(0, 1);
  }
  compiled_ = new Compiled;
  const int status = regcomp(&compiled_->regex, text.c_str(), REG_EXTENDED | REG_NOSUB);
  if (status == 0) return;
  char why[128];
  regerror(status, &compiled_->regex, why, sizeof why);
  delete compiled_;
  throw UsageError("--benchmark_filter=" + filter + ": no regular expression: " + why);
}

RowFilter::~RowFilter() {
  if (compiled_ == nullptr) return;
  regfree(&compiled_->regex);
  delete compiled_;
}

bool RowFilter::takes(const std::vector<std::string>& row_names) const {
  if (compiled_ == nullptr) return true;
  bool any = false;
  for (const std::string& name : row_names) any = any || regexec(&compiled_->regex, name.c_str(), 0, nullptr, 0) == 0;
  return any != negative_;
}

}  // namespace kvroof::bench
