// kvroof_bench: see README.md in this folder.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <new>

#include "bench/context.hpp"
#include "bench/reporter.hpp"
#include "bench/sweep.hpp"
#include "bench/threads.hpp"

namespace kvroof::bench {
namespace {

void run_entry(benchmark::State& state, Sweep& sweep, const Entry& entry) {
  for (auto _ : state) {
    const std::vector<Json>& rows = sweep.run(entry);
    if (rows.back().contains("real_time")) {
      state.SetIterationTime(rows.back()["real_time"].get<double>() * 1e-9);
    } else {
      state.SetIterationTime(1e-9);
      state.SkipWithError(rows.back()["error_message"].get<std::string>().c_str());
      break;
    }
  }
}

// Google Benchmark's reporter for --benchmark_out; its name comes from the flags, since the library chooses it in
// private.
std::unique_ptr<benchmark::BenchmarkReporter> file_reporter(const Options& options) {
  std::string format = "json";
  const std::string flag = "--benchmark_out_format=";
  for (const std::string& argument : options.for_google)
    if (argument.rfind(flag, 0) == 0) format = argument.substr(flag.size());
  if (format == "console") return std::make_unique<benchmark::ConsoleReporter>(benchmark::ConsoleReporter::OO_None);
  if (format != "json") throw UsageError(flag + format + ": unknown; choose json or console");
  return std::make_unique<benchmark::JSONReporter>();
}

int run(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  if (options.help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  const RowFilter filter(options.filter);
  if (!options.list) bind_threads_or_restart(argv);
  const MachineFacts machine = machine_facts();
  Sweep sweep(options, machine, default_isa());

  std::vector<Entry> all = roof_entries(sweep);
  for (const auto& entries : {decode_entries, mla_entries, layout_entries, cache_op_entries})
    for (Entry& entry : entries(sweep)) all.push_back(std::move(entry));
  std::vector<const Entry*> wanted;
  for (const Entry& entry : all)
    if (filter.takes(entry.row_names)) wanted.push_back(&entry);
  if (wanted.empty())
    throw UsageError("--benchmark_filter=" + options.filter + ": no row of preset " + preset_name(options.preset) +
                     " matches; --benchmark_list_tests shows the names");
  if (options.list) {
    for (const Entry* entry : wanted) std::printf("%s\n", entry->name.c_str());
    return 0;
  }

  // So much more than the caches hold that what is left in them from the last pass does not show.
  std::int64_t node_bytes = std::min(16 * sweep.last_level_bytes, sweep.arena.room_bytes() / 2);
  if (node_bytes < 4 * sweep.last_level_bytes) node_bytes = 0;  // no room: the context says so
  Json context = make_context(options, machine, sweep.isa, node_bytes);
  if (!options.journal.empty()) sweep.journal.open(options.journal, options.resume, context);
  std::vector<const Entry*> missing;
  for (const Entry* entry : wanted)
    if (sweep.journal.entries().count(entry->name) == 0) missing.push_back(entry);
  sweep.plan(missing);
  for (const Entry* entry : missing)
    benchmark::RegisterBenchmark(entry->name.c_str(),
                                 [&sweep, entry](benchmark::State& state) { run_entry(state, sweep, *entry); })
        ->UseManualTime()
        ->Iterations(1);

  std::vector<char*> google_argv;
  for (const std::string& argument : options.for_google) google_argv.push_back(const_cast<char*>(argument.c_str()));
  int google_argc = static_cast<int>(google_argv.size());
  google_argv.push_back(nullptr);
  benchmark::Initialize(&google_argc, google_argv.data());
  if (google_argc > 1) throw UsageError(std::string(google_argv[1]) + ": Google Benchmark does not know this flag");

  if (!missing.empty()) {
    std::unique_ptr<benchmark::BenchmarkReporter> display;
    if (options.default_format)
      display = std::make_unique<LineReporter>(sweep);
    else
      display = std::make_unique<RowsReporter>(
          sweep, std::unique_ptr<benchmark::BenchmarkReporter>(benchmark::CreateDefaultDisplayReporter()));
    std::unique_ptr<benchmark::BenchmarkReporter> file;
    if (options.file_out) file = std::make_unique<RowsReporter>(sweep, file_reporter(options));
    benchmark::RunSpecifiedBenchmarks(display.get(), file.get(), "all");
  }

  bool complete = true;
  for (const Entry& entry : all)
    complete = complete && (sweep.rows_of(entry.name) != nullptr || sweep.journal.entries().count(entry.name) > 0);
  finish_context(context, sweep.arena, complete);
  sweep.journal.append_context(context);
  std::FILE* const talk = options.default_format ? stdout : stderr;
  for (const std::string& name : sweep.above_roof())
    std::fprintf(talk, "above its roof by more than the spread (the probe is too slow there): %s\n", name.c_str());
  if (sweep.failures() > 0)
    std::fprintf(stderr, "kvroof_bench: %d rows of kvroof failed their check against the oracle\n", sweep.failures());
  if (!sweep.wrong_roofs().empty())
    std::fprintf(stderr, "kvroof_bench: roof self-test: %zu rows lie more than 10 %% above their roof, first %s\n",
                 sweep.wrong_roofs().size(), sweep.wrong_roofs().front().c_str());
  return sweep.failures() > 0 || !sweep.wrong_roofs().empty() ? 1 : 0;
}

}  // namespace
}  // namespace kvroof::bench

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // whoever reads the progress may go; the measurement goes on
  try {
    return kvroof::bench::run(argc, argv);
  } catch (const kvroof::bench::UsageError& error) {
    std::fprintf(stderr, "kvroof_bench: %s\n", error.what());
  } catch (const kvroof::Error& error) {
    std::fprintf(stderr, "kvroof_bench: %s\n", error.what());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "kvroof_bench: out of memory; free some, or set --memory-limit=BYTES\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvroof_bench: %s\n", error.what());
  }
  return 2;
}
