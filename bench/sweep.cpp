#include "bench/sweep.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "bench/clock.hpp"
#include "bench/result_rows.hpp"

namespace kvroof::bench {
namespace {

// Where the system shows no cache: larger than any last-level cache known to us, so that cold rows are cold.
constexpr std::int64_t kUnknownLastLevel = std::int64_t{1} << 29;

// The whole quick sweep, in seconds; entries share what is left of it by weight.
double preset_seconds(Preset preset, std::size_t entries) {
  switch (preset) {
    case Preset::quick: return 183;  // 18 of them latent attention
    case Preset::ci: return 24;
    case Preset::full:
    case Preset::layouts:
    case Preset::check: break;
  }
  return 4.0 * static_cast<double>(entries);
}

}  // namespace

Sweep::Sweep(const Options& options_in, const MachineFacts& machine_in, Isa isa_in)
    : options(options_in),
      machine(machine_in),
      isa(isa_in),
      last_level_bytes(options.last_level_bytes.value_or(machine.last_level_bytes.value.value_or(kUnknownLastLevel))),
      last_level_known(options.last_level_bytes || machine.last_level_bytes.value),
      arena(options.memory_limit, machine.numa_nodes.value.value_or(1), isa),
      roofs(isa) {
  if (const char* fd = std::getenv("KVROOF_PROGRESS_FD")) {
    char* end = nullptr;
    const long number = std::strtol(fd, &end, 10);
    if (end != fd && *end == '\0' && number >= 0 && number < 65536) progress_fd_ = static_cast<int>(number);
  }
}

PresetSizes Sweep::sizes() const {
  PresetSizes sizes;
  sizes.last_level_bytes = last_level_known ? last_level_bytes : 0;
  sizes.threads_all = machine.threads_all;
  sizes.isa = isa;
  return sizes;
}

PairingOptions Sweep::pairing(double seconds, std::int64_t caches) const {
  PairingOptions p;
  p.budget_s = options.min_time_s.value_or(std::clamp(seconds, 0.2, 4.0));
  p.min_repetitions = options.preset == Preset::ci ? 3 : 5;
  p.max_repetitions = options.preset == Preset::full || options.preset == Preset::layouts ? 101 : 41;
  p.min_sample_ns = options.preset == Preset::ci ? 5e5 : 1e6;
  p.caches = caches;
  return p;
}

void Sweep::plan(const std::vector<const Entry*>& entries) {
  total_ = entries.size();
  for (const Entry* entry : entries) weight_left_ += entry->weight;
  start_ns_ = now_ns();
}

double Sweep::seconds_for(const Entry& entry) const {
  const double elapsed = static_cast<double>(now_ns() - start_ns_) / 1e9;
  const double left = std::max(preset_seconds(options.preset, total_) - elapsed,
                               0.1 * static_cast<double>(total_ - std::min(done_, total_)));
  return left * entry.weight / std::max(weight_left_, entry.weight);
}

const std::vector<Json>* Sweep::rows_of(const std::string& entry_name) const {
  const auto at = rows_.find(entry_name);
  return at == rows_.end() ? nullptr : &at->second;
}

const std::vector<Json>& Sweep::run(const Entry& entry) {
  std::vector<Json>& rows = rows_[entry.name];
  rows = entry.run(*this, seconds_for(entry));
  const int repetition = repetitions_[entry.name]++;
  for (Json& row : rows) {
    if (repetition > 0) row["repetition_index"] = repetition;
    if (row["above_roof"] == true) above_roof_.push_back(row["name"].get<std::string>());
    if (fails_roof(row)) wrong_roofs_.push_back(row["name"].get<std::string>());
    const auto checked = row.find("checked");
    if (row["impl"] == "kvroof" && checked != row.end() && checked->is_object() &&
        !((*checked)["max_error"].is_number() && (*checked)["max_error"] <= (*checked)["bound"]))
      ++failures_;
  }
  journal.append(rows);
  ++done_;
  weight_left_ = std::max(0.0, weight_left_ - entry.weight);
  weight_done_ += entry.weight;
  progress(entry);
  return rows;
}

void Sweep::progress(const Entry& entry) const {
  if (progress_fd_ < 0) return;
  const double elapsed = static_cast<double>(now_ns() - start_ns_) / 1e9;
  const double by_plan = preset_seconds(options.preset, total_) - elapsed;
  const double by_pace = weight_done_ > 0 ? elapsed / weight_done_ * weight_left_ : 0;
  // The plan holds while it can be kept; an entry that takes longer than its share shows in the pace.
  const double left = done_ >= total_ ? 0.0
                      : options.preset == Preset::quick || options.preset == Preset::ci
                          ? std::max(by_plan, 0.2 * by_pace)
                          : by_pace;
  const Json line = {{"done", done_}, {"total", total_}, {"seconds_left", std::max(0.0, left)}, {"name", entry.name}};
  const std::string text = line.dump() + "\n";
  // Whoever watches may have gone; that is no reason to stop measuring.
  [[maybe_unused]] const ssize_t written = ::write(progress_fd_, text.data(), text.size());
}

}  // namespace kvroof::bench
