// The roofs as rows of their own: read bandwidth over working sets from cache to memory, FMA rates per storage and
// group. Decode rows do not use these; each has its own, paired. These draw the roofline and let machines be compared.
#include <algorithm>

#include "bench/cgroup.hpp"
#include "bench/clock.hpp"
#include "bench/result_rows.hpp"
#include "bench/sweep.hpp"
#include "bench/threads.hpp"

namespace kvroof::bench {
namespace {

std::vector<Json> run_roof(Sweep& sweep, const RoofCase& c, double seconds) {
  const std::int64_t entered = now_ns();
  omp_set_num_threads(c.threads);
  Json row = roof_row(c);
  Conditions conditions;
  CacheSet set;
  std::vector<Contender> contenders;
  Roofs::Compute computed;
  std::vector<double> gflops;
  const ReadVariant* variant = nullptr;
  const ComputeOp op{c.storage, c.group, c.mode};
  if (c.read) {
    set.k_bytes = set.v_bytes = c.bytes / 2;
    set.count = cache_copies(c.cold, c.bytes, sweep.last_level_bytes);
    const std::string reason = sweep.arena.prepare(Storage::f32, set, c.threads);
    if (!reason.empty()) {
      set_not_run(row, "not_measured", reason);
      return {row};
    }
    variant = &sweep.roofs.read_variant(set, c.threads, c.cold);
    contenders.push_back({"probe", [&](std::int64_t visit) { sweep.roofs.read(set, visit, c.threads, *variant); }});
  } else {
    if (const std::string missing = native_missing(c.isa, c.storage, c.storage);
        c.mode == Mode::native && !missing.empty()) {
      row["op"] = op.name();
      set_not_run(row, "unsupported", missing);
      return {row};
    }
    contenders.push_back({"compute", [&](std::int64_t) {
                            computed = sweep.roofs.compute(op, c.threads, 1e6);
                            gflops.push_back(computed.gflops);
                          }});
    contenders[0].call(0);
  }
  conditions.mhz_before = measured_mhz();
  const auto throttled_before = cgroup_throttled();
  const double left = std::min(0.5, seconds - static_cast<double>(now_ns() - entered) / 1e9);
  PairingResult paired = run_paired(contenders, sweep.pairing(left, std::max<std::int64_t>(1, set.count)));
  conditions.mhz_after = measured_mhz();
  const auto throttled_after = cgroup_throttled();
  if (throttled_before && throttled_after) conditions.throttled = *throttled_after - *throttled_before;
  if (!c.read) {
    row["op"] = op.name();
    row["flops"] = static_cast<std::int64_t>(computed.flops);
    // The time that these operations take at the measured rate: the threads time themselves (roofs.hpp).
    paired.time_ns[0] = repetition_medians(gflops, paired.repetitions, paired.calls[0]);
    for (double& value : paired.time_ns[0]) value = computed.flops / value;
  } else {
    row["form"] = variant->name;
    row["cache_copies"] = set.count;
  }
  Timed timed;
  timed.time_ns = &paired.time_ns[0];
  timed.calls = paired.calls[0];
  set_times(row, timed);
  set_conditions(row, conditions);
  return {row};
}

}  // namespace

std::vector<Entry> roof_entries(const Sweep& sweep) {
  std::vector<Entry> entries;
  for (const RoofCase& c : roof_cases(sweep.options.preset, sweep.sizes())) {
    Entry entry;
    entry.name = row_name(c);
    entry.row_names = {entry.name};
    entry.weight = 0.3 + (c.read ? static_cast<double>(c.bytes) * 4e-9 : 0);
    entry.run = [c](Sweep& s, double seconds) { return run_roof(s, c, seconds); };
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace kvroof::bench
