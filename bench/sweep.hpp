// One run of the benchmark: what all entries share, and the list of entries.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bench/arena.hpp"
#include "bench/decode_setup.hpp"
#include "bench/journal.hpp"
#include "bench/json.hpp"
#include "bench/machine.hpp"
#include "bench/options.hpp"
#include "bench/pairing.hpp"
#include "bench/roofs.hpp"

namespace kvroof::bench {

class Sweep;

// One Google Benchmark entry: one tuple of things measured together.
struct Entry {
  std::string name;                    // of the row that is written last
  std::vector<std::string> row_names;  // all that it may write, for filters
  double weight = 1;                   // expected share of the time
  // Measures and returns the rows, the entry's own row last. `seconds`: what the whole entry should take.
  std::function<std::vector<Json>(Sweep&, double seconds)> run;
};

class Sweep {
 public:
  Sweep(const Options& options, const MachineFacts& machine, Isa isa);

  const Options options;
  const MachineFacts machine;
  const Isa isa;
  std::int64_t last_level_bytes;  // for choosing how many caches make a row cold; a stated guess where unknown
  bool last_level_known;
  Arena arena;
  Roofs roofs;

  PresetSizes sizes() const;

  // The oracle's answers, computed once for rows that differ only in threads, cold or warm.
  const std::vector<DecodeSetup::Sample>& answers(const std::string& key,
                                                  const std::function<std::vector<DecodeSetup::Sample>()>& compute) {
    std::vector<DecodeSetup::Sample>& kept = answers_[key];
    if (kept.empty()) kept = compute();
    return kept;
  }

  // Pairing limits of this preset with a given time for the timed part.
  PairingOptions pairing(double seconds, std::int64_t caches) const;

  // Runs an entry: measures, writes the journal, reports progress; returns its rows.
  const std::vector<Json>& run(const Entry& entry);
  const std::vector<Json>* rows_of(const std::string& entry_name) const;

  Journal journal;
  // To be called once before the first entry: what will be run, for time shares and progress.
  void plan(const std::vector<const Entry*>& entries);
  int failures() const { return failures_; }
  const std::vector<std::string>& above_roof() const { return above_roof_; }
  // The self-test of the roofs: rows so far above one that the probe must be wrong (see fails_roof).
  const std::vector<std::string>& wrong_roofs() const { return wrong_roofs_; }

 private:
  double seconds_for(const Entry& entry) const;
  void progress(const Entry& entry) const;
  std::map<std::string, std::vector<DecodeSetup::Sample>> answers_;
  std::map<std::string, std::vector<Json>> rows_;
  std::map<std::string, int> repetitions_;
  std::vector<std::string> above_roof_, wrong_roofs_;
  double weight_left_ = 0, weight_done_ = 0;
  std::int64_t start_ns_ = 0;
  std::size_t done_ = 0, total_ = 0;
  int failures_ = 0;
  int progress_fd_ = -1;
};

std::vector<Entry> decode_entries(const Sweep& sweep);    // bench_decode.cpp
std::vector<Entry> roof_entries(const Sweep& sweep);      // bench_roofs.cpp
std::vector<Entry> layout_entries(const Sweep& sweep);    // bench_cache_layouts.cpp: ring, paged, window, chunk, batch
std::vector<Entry> mla_entries(const Sweep& sweep);       // bench_mla.cpp: latent attention
std::vector<Entry> cache_op_entries(const Sweep& sweep);  // bench_cache_ops.cpp: append, fork

}  // namespace kvroof::bench
