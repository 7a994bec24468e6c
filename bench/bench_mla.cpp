// Multi-head latent attention at DeepSeek-V3's dimensions: the absorbed form with q' given and with both folds, and
// reconstruction, each against its roofs and rivals; reconstruction in one tuple with the absorbed step, for the trade.
#include <algorithm>
#include <map>
#include <memory>

#include "bench/cache_views.hpp"
#include "bench/clock.hpp"
#include "bench/mla_run.hpp"
#include "bench/rivals/rival.hpp"
#include "bench/threads.hpp"
#include "bench/tuple.hpp"
#include "kernels/cpu.hpp"

namespace kvroof::bench {
namespace {

// Beyond it a call of the scalar loops takes seconds, for reconstruction minutes.
constexpr std::int64_t kScalarRows = 512;

struct MlaCase {
  MlaKind kind;
  DecodeCase c;
  bool scalar = false;
};

std::vector<std::string> impls(const MlaCase& m) {
  std::vector<std::string> names = {"probe"};
  if (m.c.n == 1) names.push_back("onednn");
  if (m.scalar) names.insert(names.end(), {"scalar", "scalar_vectorized"});
  names.push_back("kvroof");  // last: an entry's own row
  return names;
}

// Both forms over the same rows; only chunks have the step's row in the tuple of reconstruction, since one new token
// has it in its own, with its rivals.
DecodeCase step_case(const DecodeCase& reconstruct) {
  DecodeCase c = reconstruct;
  c.kernel = mla_kernel_name(MlaKind::absorbed_step);
  return c;
}
bool step_has_row(const MlaCase& m) { return m.kind == MlaKind::reconstruct && m.c.n > 1; }

// The counts of latent attention in place of those that follow from Hq, Hkv, Dk and Dv.
Json mla_row(MlaKind kind, const DecodeCase& c, const std::string& impl, const std::string& tuple) {
  Json row = decode_row(c, impl, tuple);
  row["bytes"] = mla_case_bytes(kind, c);
  row["flops"] = mla_case_flops(kind, c);
  row["intensity"] = row["flops"].get<double>() / row["bytes"].get<double>();
  if (impl == "kvroof") {
    row["token_bytes"] = measured_token_bytes(c);
    row["replaced_token_bytes"] = measured_token_bytes(mla_replaced_case(c));
  }
  return row;
}
Json mla_row(const MlaCase& m, const std::string& impl) { return mla_row(m.kind, m.c, impl, row_name(m.c, "kvroof")); }

// Native mode: of the attention over latent rows, alone or between its folds; and what tile instructions would do, by
// name.
std::vector<Json> native_rows(const MlaCase& m) {
  std::vector<Json> rows;
  const auto add = [&](const DecodeCase& native, const std::string& missing) {
    rows.push_back(mla_row(m.kind, native, "kvroof", row_name(m.c, "kvroof")));
    rows.back()["status"] = nullptr;
    if (!missing.empty()) set_not_run(rows.back(), "unsupported", missing);
  };
  DecodeCase native = native_case(m.c);
  std::string missing = native_missing(native.isa, native.storage, native.storage);
  if (missing.empty() && m.kind == MlaKind::reconstruct)
    missing = std::string("no native kernel for ") + mla_kernel_name(m.kind);
  add(native, missing);
#if defined(__x86_64__)
  if (m.kind == MlaKind::absorbed && m.c.storage == Storage::bf16) {
    native.native_isa = "amx";
    const CpuFeatures& cpu = cpu_features();
    add(native, cpu.amx_tile && cpu.amx_bf16 && cpu.os_saves_tiles ? "no AMX kernel" : "no amx");
  }
#endif
  return rows;
}

std::vector<Json> not_run(const MlaCase& m, const std::string& reason) {
  std::vector<Json> rows;
  const auto add = [&](Json row) {
    if (!row.contains("status") || row["status"].is_null()) set_not_run(row, "not_measured", reason);
    rows.push_back(std::move(row));
  };
  for (const std::string& impl : impls(m)) {
    if (impl != "kvroof") {
      add(mla_row(m, impl));
      continue;
    }
    if (step_has_row(m)) add(mla_row(MlaKind::absorbed_step, step_case(m.c), "kvroof", row_name(m.c, "kvroof")));
    for (Json& row : native_rows(m)) add(std::move(row));
    add(mla_row(m, impl));
  }
  return rows;
}

std::string answers_key(const DecodeCase& c) {
  return std::string(c.kernel) + " " + c.shape.name + " " + storage_name(c.storage) + " " + mode_name(c.mode) + " " +
         std::to_string(c.T) + " " + std::to_string(c.n);
}

CacheSet latent_set(const Sweep& sweep, const DecodeCase& c) {
  CacheSet set;
  set.k_bytes = c.k_bytes();
  set.count = cache_copies(c.cold, set.k_bytes, sweep.last_level_bytes);
  return set;
}

// What the read probe reads: the latent rows, and for the step as many bytes as rows and weights together, so that
// starting the team weighs the same on both.
std::string prepare_probe(Sweep& sweep, MlaKind kind, const DecodeCase& c, CacheSet& set) {
  if (kind != MlaKind::absorbed_step) return prepare_latents(sweep.arena, c, set);
  set.k_bytes = static_cast<std::size_t>(mla_case_bytes(kind, c)) / 64 * 64;
  set.count = cache_copies(c.cold, set.k_bytes, sweep.last_level_bytes);
  return sweep.arena.prepare(Storage::f32, set, c.threads);
}

std::vector<Json> run_mla(Sweep& sweep, MlaInputs& inputs, const MlaCase& m, double seconds) {
  const std::int64_t entered = now_ns();
  const DecodeCase& c = m.c;
  omp_set_num_threads(c.threads);
  CacheSet probe_set = latent_set(sweep, c), step_probe_set;
  const DecodeCase step_c = step_case(c);
  std::string reason = step_has_row(m) ? prepare_probe(sweep, MlaKind::absorbed_step, step_c, step_probe_set) : "";
  if (reason.empty()) reason = prepare_probe(sweep, m.kind, c, probe_set);
  DecodeSetup setup;
  setup.c = c;
  setup.caches = latent_set(sweep, c);
  if (reason.empty()) reason = prepare_latents(sweep.arena, c, setup.caches);
  if (reason.empty() && m.kind != MlaKind::absorbed) {
    const std::int64_t weight_bytes = mla_weight_bytes(inputs.shape());
    reason = inputs.make(cache_copies(c.cold, static_cast<std::size_t>(weight_bytes), sweep.last_level_bytes),
                         sweep.arena.room_bytes());
  }
  if (!reason.empty()) return not_run(m, reason);

  // Reconstruction's work is the product with the weights, in f32: rows are widened once for all heads.
  TupleRun run(sweep, probe_set, c, m.kind == MlaKind::reconstruct ? ComputeOp{} : compute_op(c));
  std::unique_ptr<MlaRun> kernel, native, step;
  Json kernel_row = mla_row(m, "kvroof");
  try {
    kernel = std::make_unique<MlaRun>(m.kind, c, inputs, setup.caches);
  } catch (const Error& error) {
    return not_run(m, error.what());
  }
  setup.samples = &sweep.answers(answers_key(c), [&] { return kernel->oracle_samples(); });
  setup.q = kernel->q();
  setup.scale = kernel->scale();
  const std::size_t kernel_at = run.add_kernel(*kernel, *setup.samples, kernel_row);

  std::vector<Json> natives = native_rows(m);
  Json& native_row = natives[0];
  std::size_t native_at = TupleRun::kNone, native_roof = 0;
  if (native_row["status"].is_null()) {
    const DecodeCase native_c = native_case(c);
    native = std::make_unique<MlaRun>(m.kind, native_c, inputs, setup.caches);
    native_roof = run.add_compute(compute_op(native_c));
    const auto& samples = sweep.answers(answers_key(native_c), [&] { return native->oracle_samples(); });
    native_at = run.add_kernel(*native, samples, native_row, 1.0, native_roof);
  }

  // The other form on the same rows.
  std::size_t step_at = TupleRun::kNone, step_compute = 0, step_read = 0;
  Json step_row = mla_row(MlaKind::absorbed_step, step_c, "kvroof", row_name(c, "kvroof"));
  if (m.kind == MlaKind::reconstruct && kernel_at != TupleRun::kNone) {
    step = std::make_unique<MlaRun>(MlaKind::absorbed_step, step_c, inputs, setup.caches);
    if (step_has_row(m)) {
      step_compute = run.add_compute(compute_op(step_c));
      step_read = run.add_read(step_probe_set);
    }
    const auto& samples = sweep.answers(answers_key(step_c), [&] { return step->oracle_samples(); });
    step_at = run.add_kernel(*step, samples, step_row, step_has_row(m) ? 1.0 : 0.5, step_compute);
  }

  std::vector<Rival> rivals;
  std::unique_ptr<MlaRun> f32_kernel;
  DecodeSetup f32_setup;
  const auto with_f32 = [&](std::string& why) -> const DecodeSetup* {
    f32_setup.c = c;
    f32_setup.c.storage = Storage::f32;
    f32_setup.caches = latent_set(sweep, f32_setup.c);
    why = prepare_latents(sweep.arena, f32_setup.c, f32_setup.caches);
    if (!why.empty()) return nullptr;
    f32_kernel = std::make_unique<MlaRun>(m.kind, f32_setup.c, inputs, f32_setup.caches);
    f32_setup.q = f32_kernel->q();
    f32_setup.scale = f32_kernel->scale();
    f32_setup.samples = &sweep.answers(answers_key(f32_setup.c), [&] { return f32_kernel->oracle_samples(); });
    return &f32_setup;
  };
  if (c.n == 1)
    rivals = m.kind == MlaKind::absorbed ? onednn_rivals(setup, sweep.arena, with_f32)
                                         : onednn_mla_rivals(setup, m.kind == MlaKind::reconstruct, inputs.w_uk(),
                                                             inputs.w_uv(), sweep.arena, with_f32);
  if (m.scalar) {
    for (Rival& rival : scalar_mla_rivals(setup, c.kernel, inputs.w_uk(), inputs.w_uv())) {
      check_first_call(rival, setup);
      rivals.push_back(rival);
    }
  }
  const std::vector<std::size_t> rival_at = run.add_rivals(rivals);
  run.measure(seconds - static_cast<double>(now_ns() - entered) / 1e9);

  std::vector<Json> rows = {run.probe_row(c, row_name(c, "kvroof"), kernel_at)};
  rows[0]["bytes"] = static_cast<std::int64_t>(probe_set.slot_bytes());
  rows[0]["gb_per_s"] = rows[0]["read_roof_gb_per_s"] =
      rows[0].contains("real_time")
          ? Json(static_cast<double>(probe_set.slot_bytes()) / rows[0]["real_time"].get<double>())
          : Json(nullptr);
  for (std::size_t i = 0; i < rivals.size(); ++i) {
    rows.push_back(rival_row(rivals[i], mla_row(m, rivals[i].impl), setup.caches.count));
    run.set_rival(rows.back(), rival_at[i], kernel_at);
    add_time_ratio(rows.back(), native_row["name"], rivals[i].impl + "/native", run.ratio(rival_at[i], native_at));
  }
  if (step_has_row(m)) {
    step_row["cache_copies"] = setup.caches.count;
    if (step_at != TupleRun::kNone) run.set_measured(step_row, step_at, TupleRun::kNone, step_compute, step_read);
    if (!step_row.contains("status")) set_not_run(step_row, "not_measured", "reconstruction was not measured");
    rows.push_back(step_row);
  }
  if (native_at != TupleRun::kNone) {
    native_row["cache_copies"] = setup.caches.count;
    run.set_measured(native_row, native_at, TupleRun::kNone, native_roof);
    add_time_ratio(native_row, row_name(c, "kvroof"), "native/reproducible", run.ratio(native_at, kernel_at));
  }
  if (kernel_at != TupleRun::kNone) {
    kernel_row["cache_copies"] = setup.caches.count;
    run.set_measured(kernel_row, kernel_at, TupleRun::kNone);
    add_time_ratio(kernel_row, row_name(step_c, "kvroof"), "reconstruct/absorbed_step", run.ratio(kernel_at, step_at));
    add_time_ratio(kernel_row, native_row["name"], "reproducible/native", run.ratio(kernel_at, native_at));
  }
  rows.insert(rows.end(), natives.begin(), natives.end());
  rows.push_back(kernel_row);
  return rows;
}

std::vector<std::int64_t> doubling(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t T = first; T <= last; T *= 2) lengths.push_back(T);
  return lengths;
}

struct MlaSelection {
  MlaKind kind;
  std::vector<std::int64_t> lengths;
  std::vector<Storage> storages;
  std::vector<std::int64_t> chunks = {1};  // reconstruct: from 4 on both forms
  std::int64_t heads = 128;
  bool one_thread = true;
};

std::vector<MlaSelection> selections(Preset preset) {
  const std::vector<Storage> all(std::begin(kStorages), std::end(kStorages));
  const std::vector<std::int64_t> chunks = {4, 16, 64, 128, 256};
  switch (preset) {
    case Preset::quick:
      return {{MlaKind::absorbed, {512, 4096}, {Storage::f32, Storage::bf16, Storage::int8}},
              {MlaKind::absorbed_step, {4096}, {Storage::bf16}},
              {MlaKind::reconstruct, {512}, {Storage::f32}},
              {MlaKind::reconstruct, {512}, {Storage::f32}, {16, 64, 256}, 128, false},
              {MlaKind::absorbed_step, {4096}, {Storage::bf16}, {1}, 16, false}};
    case Preset::ci:
      return {{MlaKind::absorbed, {128}, {Storage::f32, Storage::bf16, Storage::int8}, {1}, 128, false},
              {MlaKind::absorbed_step, {128}, {Storage::bf16}, {1}, 128, false},
              {MlaKind::reconstruct, {32}, {Storage::f32}, {1, 4}, 128, false}};
    case Preset::check:
      return {{MlaKind::absorbed, {1536, 6144, 24576}, all},
              {MlaKind::absorbed_step, {1536, 6144, 24576}, all},
              {MlaKind::absorbed, {1536, 6144, 24576}, all, {1}, 16},
              {MlaKind::absorbed_step, {1536, 6144, 24576}, all, {1}, 16},
              {MlaKind::reconstruct, {384}, all}};
    case Preset::layouts: return {};
    case Preset::full: break;
  }
  return {{MlaKind::absorbed, doubling(128, 131072), all},
          {MlaKind::absorbed_step, doubling(128, 131072), all},
          {MlaKind::reconstruct, doubling(128, 8192), all},
          {MlaKind::reconstruct, {1024}, {Storage::f32, Storage::bf16}, chunks},
          {MlaKind::reconstruct, {4096}, {Storage::f32}, chunks, 128, false},
          {MlaKind::absorbed, {512, 4096, 32768}, all, {1}, 16},
          {MlaKind::absorbed_step, {512, 4096, 32768}, all, {1}, 16}};
}

}  // namespace

std::vector<Entry> mla_entries(const Sweep& sweep) {
  std::vector<Entry> entries;
  const Preset preset = sweep.options.preset;
  const PresetSizes sizes = sweep.sizes();
  std::map<std::int64_t, std::shared_ptr<MlaInputs>> inputs;  // by heads
  const auto add = [&](const MlaSelection& selection, std::int64_t T, std::int64_t n, bool all, Storage storage) {
    MlaCase m{selection.kind, mla_case(selection.kind, selection.heads)};
    m.c.T = T;
    m.c.n = n;
    m.c.storage = storage;
    m.c.all_threads = all;
    m.c.threads = all ? sizes.threads_all : 1;
    m.c.isa = sizes.isa;
    // Where scalar loops make every key and value anew, one call takes ten seconds at T = 512.
    m.scalar = n == 1 && T <= kScalarRows && preset != Preset::check &&
               (preset != Preset::quick || selection.kind == MlaKind::absorbed);
    std::shared_ptr<MlaInputs>& shared = inputs[selection.heads];
    if (!shared) shared = std::make_shared<MlaInputs>(mla_bench_shape(selection.heads));
    Entry entry;
    for (const std::string& impl : impls(m)) entry.row_names.push_back(row_name(m.c, impl));
    entry.name = entry.row_names.back();
    if (step_has_row(m)) entry.row_names.insert(entry.row_names.begin(), row_name(step_case(m.c), "kvroof"));
    for (const Json& row : native_rows(m)) entry.row_names.insert(entry.row_names.begin(), row["name"]);
    // A call at a tenth of a TFLOP/s, six times, and its check.
    entry.weight = 0.4 + static_cast<double>(mla_case_flops(selection.kind, m.c)) * (all ? 2e-11 : 4e-11);
    entry.run = [shared, m](Sweep& s, double seconds) { return run_mla(s, *shared, m, seconds); };
    entries.push_back(std::move(entry));
  };
  for (const MlaSelection& selection : selections(preset))
    for (const std::int64_t T : selection.lengths)
      for (const std::int64_t n : selection.chunks)
        for (const bool all : {false, true})
          for (const Storage storage : selection.storages)
            if (all || selection.one_thread) add(selection, T, n, all, storage);
  return entries;
}

}  // namespace kvroof::bench
