// Decode attention over contiguous caches: one entry is the read probe, the compute probes, the kernel in its modes,
// the same kernel over an f32 cache of the same shape (for what halving the storage brings), and the rivals.
#include <cmath>
#include <memory>

#include "bench/cache_views.hpp"
#include "bench/clock.hpp"
#include "bench/rivals/rival.hpp"
#include "bench/threads.hpp"
#include "bench/tuple.hpp"

namespace kvroof::bench {
namespace {

// The kernel last: an entry's own row is written last.
const std::vector<std::string> kImpls = {"probe", "onednn", "onednn_graph", "scalar", "scalar_vectorized", "kvroof"};

// Up to here a call may cost more in waking threads than it reads, so one thread is measured beside all.
constexpr std::int64_t kShortRows = 512;

std::string answers_key(const DecodeCase& c) {
  return c.shape.name + " " + storage_name(c.storage) + " " + row_order_name(c.order) + " " + mode_name(c.mode) + " " +
         std::to_string(c.T);
}

// A case with its caches, its kernel and its right answer; `reason` says why not if there is none.
struct Ready {
  DecodeSetup setup;
  std::unique_ptr<KernelRun> kernel;
  std::string reason;
};

Ready make_ready(Sweep& sweep, const DecodeCase& c) {
  Ready ready;
  DecodeSetup& setup = ready.setup;
  setup.c = c;
  setup.scale = 1.0f / std::sqrt(static_cast<float>(c.shape.key_dim));
  setup.caches.k_bytes = c.k_bytes();
  setup.caches.v_bytes = c.v_bytes();
  if (c.storage == Storage::int8) setup.caches.scale_count = static_cast<std::size_t>(c.shape.kv_heads * c.T);
  setup.caches.count = cache_copies(c.cold, c.bytes(), sweep.last_level_bytes);
  ready.reason = sweep.arena.prepare(c.storage, setup.caches, c.threads);
  if (!ready.reason.empty()) return ready;
  setup.q = query_values(static_cast<std::size_t>(c.shape.query_heads * c.shape.key_dim));
  try {
    ready.kernel = std::make_unique<KernelRun>(c, contiguous_views(c, setup.caches));
  } catch (const Error& error) {
    ready.reason = error.what();
    return ready;
  }
  setup.samples = &sweep.answers(answers_key(c), [&] { return ready.kernel->oracle_samples(); });
  return ready;
}

std::vector<Json> run_decode(Sweep& sweep, const DecodeCase& c, double seconds) {
  const std::int64_t entered = now_ns();
  const std::string tuple = row_name(c, "kvroof");
  omp_set_num_threads(c.threads);  // oneDNN takes the team's size from here
  const Ready own = make_ready(sweep, c);
  if (!own.reason.empty()) return rows_not_run(c, kImpls, own.reason);

  TupleRun run(sweep, own.setup.caches, c);
  Json kernel_row = decode_row(c, "kvroof", tuple);
  kernel_row["token_bytes"] = measured_token_bytes(c);
  if (!c.cold) {
    const std::string level = cache_level(sweep.machine, static_cast<std::int64_t>(c.bytes()), c.threads);
    kernel_row["fits_cache"] = level.empty() ? Json(nullptr) : Json(level);
  }
  const std::size_t kernel_at = run.add_kernel(*own.kernel, *own.setup.samples, kernel_row);
  // Further kernels of ours: a row of its own, and two that are only the other side of a ratio.
  std::size_t native_at = TupleRun::kNone, f32_at = TupleRun::kNone, one_thread_at = TupleRun::kNone;

  const DecodeCase native = native_case(c);
  Json native_json = native_row(native, tuple);
  std::unique_ptr<KernelRun> native_kernel;
  std::size_t native_roof = 0;
  if (native_json["status"].is_null()) {
    native_kernel = std::make_unique<KernelRun>(native, contiguous_views(native, own.setup.caches));
    native_roof = run.add_compute(compute_op(native));
    const auto& samples =
        sweep.answers(answers_key(native), [&] { return native_kernel->oracle_samples(); });  // with its own bound
    native_at = run.add_kernel(*native_kernel, samples, native_json, 1.0, native_roof);
  }

  // The same shape in f32, made when first asked for: as the partner of narrower rows, and for a oneDNN without those.
  std::unique_ptr<Ready> f32;
  const auto with_f32 = [&](std::string& reason) -> const DecodeSetup* {
    if (!f32) {
      DecodeCase f32_case = c;
      f32_case.storage = Storage::f32;
      f32 = std::make_unique<Ready>(make_ready(sweep, f32_case));
    }
    reason = f32->reason;
    return f32->reason.empty() ? &f32->setup : nullptr;
  };
  std::string reason;
  if (kernel_at != TupleRun::kNone && c.storage != Storage::f32 && c.cold) {
    if (with_f32(reason) != nullptr)
      f32_at = run.add({"kvroof f32", [&](std::int64_t visit) { f32->kernel->call(visit); }, 0.5});
    else
      kernel_row["time_ratios_reason"] = "no f32 cache beside it: " + reason;
  }
  DecodeCase alone = c;
  alone.threads = 1;
  alone.all_threads = false;
  std::unique_ptr<KernelRun> one_thread;
  if (kernel_at != TupleRun::kNone && c.threads > 1 && c.T <= kShortRows) {
    one_thread = std::make_unique<KernelRun>(alone, contiguous_views(alone, own.setup.caches));
    one_thread_at = run.add({"one thread", [&](std::int64_t visit) { one_thread->call(visit); }});
  }

  // Rivals are checked before they take their turns with the rest.
  std::vector<Rival> rivals = onednn_rivals(own.setup, sweep.arena, with_f32);
  for (Rival& rival : scalar_rivals(own.setup)) {
    check_first_call(rival, own.setup);
    rivals.push_back(rival);
  }
  const std::vector<std::size_t> rival_at = run.add_rivals(rivals);
  run.measure(seconds - static_cast<double>(now_ns() - entered) / 1e9);

  std::vector<Json> rows = {run.probe_row(c, tuple, kernel_at)};
  for (std::size_t i = 0; i < rivals.size(); ++i) {
    rows.push_back(rival_row(rivals[i], decode_row(c, rivals[i].impl, tuple), own.setup.caches.count));
    run.set_rival(rows.back(), rival_at[i], kernel_at);
    add_time_ratio(rows.back(), row_name(native, "kvroof"), rivals[i].impl + "/native",
                   run.ratio(rival_at[i], native_at));
  }
  if (native_at != TupleRun::kNone) {
    run.set_measured(native_json, native_at, TupleRun::kNone, native_roof);
    add_time_ratio(native_json, tuple, "native/reproducible", run.ratio(native_at, kernel_at));
  }
  rows.push_back(native_json);
  if (kernel_at != TupleRun::kNone) {
    run.set_measured(kernel_row, kernel_at, TupleRun::kNone);
    if (f32) {
      add_time_ratio(kernel_row, row_name(f32->setup.c, "kvroof"), std::string(storage_name(c.storage)) + "/f32",
                     run.ratio(kernel_at, f32_at));
    }
    add_time_ratio(kernel_row, native_json["name"], "reproducible/native", run.ratio(kernel_at, native_at));
    add_time_ratio(kernel_row, row_name(alone, "kvroof"), "all threads/1 thread", run.ratio(kernel_at, one_thread_at));
  }
  rows.push_back(kernel_row);
  return rows;
}

}  // namespace

std::vector<Entry> decode_entries(const Sweep& sweep) {
  std::vector<Entry> entries;
  for (const DecodeCase& c : decode_cases(sweep.options.preset, sweep.sizes())) {
    Entry entry;
    entry.name = row_name(c, "kvroof");
    for (const std::string& impl : kImpls) entry.row_names.push_back(row_name(c, impl));
    entry.row_names.insert(entry.row_names.end() - 1, row_name(native_case(c), "kvroof"));
    // A second for the pairs, and what the check, the choice of forms and five repetitions of large caches need.
    entry.weight = 1 + static_cast<double>(c.bytes()) * (c.all_threads ? 3e-9 : 6e-9);
    entry.run = [c](Sweep& s, double seconds) { return run_decode(s, c, seconds); };
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace kvroof::bench
