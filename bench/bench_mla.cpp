// Multi-head latent attention at DeepSeek-V3's dimensions: the absorbed form with q' given and with both folds, and
// reconstruction, each against its roofs and rivals; reconstruction in one tuple with the absorbed step, for the trade.
#include <algorithm>
#include <memory>

#include "bench/clock.hpp"
#include "bench/mla_run.hpp"
#include "bench/rivals/rival.hpp"
#include "bench/threads.hpp"
#include "bench/tuple.hpp"

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
  if (m.kind == MlaKind::absorbed) names.push_back("onednn");
  if (m.scalar) names.insert(names.end(), {"scalar", "scalar_vectorized"});
  names.push_back("kvroof");  // last: an entry's own row
  return names;
}

// The counts of latent attention in place of those that follow from Hq, Hkv, Dk and Dv.
Json mla_row(const MlaCase& m, const std::string& impl) {
  Json row = decode_row(m.c, impl, row_name(m.c, "kvroof"));
  row["bytes"] = mla_case_bytes(m.kind, m.c);
  row["flops"] = mla_case_flops(m.kind, m.c);
  row["intensity"] = row["flops"].get<double>() / row["bytes"].get<double>();
  return row;
}

std::vector<Json> not_run(const MlaCase& m, const std::string& reason) {
  std::vector<Json> rows;
  for (const std::string& impl : impls(m)) {
    rows.push_back(mla_row(m, impl));
    set_not_run(rows.back(), "not_measured", reason);
  }
  return rows;
}

CacheSet latent_set(const Sweep& sweep, const DecodeCase& c) {
  CacheSet set;
  set.k_bytes = c.k_bytes();
  set.count = cache_copies(c.cold, set.k_bytes, sweep.last_level_bytes);
  return set;
}

// What the read probe reads: the latent rows, and for the step as many bytes as rows and weights together, so that
// starting the team weighs the same on both.
std::string prepare_probe(Sweep& sweep, const MlaCase& m, CacheSet& set) {
  if (m.kind != MlaKind::absorbed_step) return prepare_latents(sweep.arena, m.c, set);
  set.k_bytes = static_cast<std::size_t>(mla_case_bytes(m.kind, m.c)) / 64 * 64;
  set.count = cache_copies(m.c.cold, set.k_bytes, sweep.last_level_bytes);
  return sweep.arena.prepare(Storage::f32, set, m.c.threads);
}

std::vector<Json> run_mla(Sweep& sweep, MlaInputs& inputs, const MlaCase& m, double seconds) {
  const std::int64_t entered = now_ns();
  const DecodeCase& c = m.c;
  omp_set_num_threads(c.threads);
  CacheSet probe_set = latent_set(sweep, c);
  std::string reason = prepare_probe(sweep, m, probe_set);
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
  const ComputeOp op = m.kind == MlaKind::reconstruct ? ComputeOp{} : ComputeOp{c.storage, 32};
  TupleRun run(sweep, probe_set, c, op);
  std::unique_ptr<MlaRun> kernel, step;
  Json kernel_row = mla_row(m, "kvroof");
  try {
    kernel = std::make_unique<MlaRun>(m.kind, c, inputs, setup.caches);
  } catch (const Error& error) {
    return not_run(m, error.what());
  }
  setup.samples = &sweep.answers(std::string(c.kernel) + " " + storage_name(c.storage) + " " + std::to_string(c.T),
                                 [&] { return kernel->oracle_samples(); });
  setup.q = kernel->q();
  setup.scale = kernel->scale();
  const std::size_t kernel_at = run.add_kernel(*kernel, *setup.samples, kernel_row);

  // The other form on the same rows; its own row stands in its own entry.
  std::size_t step_at = TupleRun::kNone;
  DecodeCase step_case = mla_case(MlaKind::absorbed_step);
  if (m.kind == MlaKind::reconstruct && kernel_at != TupleRun::kNone) {
    step_case = c;
    step_case.kernel = mla_kernel_name(MlaKind::absorbed_step);
    step = std::make_unique<MlaRun>(MlaKind::absorbed_step, step_case, inputs, setup.caches);
    step_at = run.add({"step", [&step](std::int64_t visit) { step->call(visit); }, 0.5});
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
    f32_setup.samples = &sweep.answers(std::string(c.kernel) + " f32 " + std::to_string(c.T),
                                       [&] { return f32_kernel->oracle_samples(); });
    return &f32_setup;
  };
  if (m.kind == MlaKind::absorbed) rivals = onednn_rivals(setup, sweep.arena, with_f32);
  if (m.scalar) {
    if (inputs.w_uk().empty() && m.kind != MlaKind::absorbed) return not_run(m, "no weights");
    for (Rival& rival : scalar_mla_rivals(setup, c.kernel, inputs.w_uk(), inputs.w_uv())) {
      check_first_call(rival, setup);
      rivals.push_back(rival);
    }
  }
  std::vector<std::size_t> rival_at;
  for (const Rival& rival : rivals) {
    const bool scalar = rival.impl.rfind("scalar", 0) == 0;
    rival_at.push_back(rival.status != "ok"
                           ? TupleRun::kNone
                           : run.add({rival.impl, rival.call, scalar ? 0.12 : 1.0, scalar ? rival.first_call_ns : 0}));
  }
  run.measure(seconds - static_cast<double>(now_ns() - entered) / 1e9);

  DecodeCase probe_case = c;
  std::vector<Json> rows = {run.probe_row(probe_case, row_name(c, "kvroof"), kernel_at)};
  rows[0]["bytes"] = static_cast<std::int64_t>(probe_set.slot_bytes());
  rows[0]["gb_per_s"] = rows[0]["read_roof_gb_per_s"] =
      rows[0].contains("real_time")
          ? Json(static_cast<double>(probe_set.slot_bytes()) / rows[0]["real_time"].get<double>())
          : Json(nullptr);
  for (std::size_t i = 0; i < rivals.size(); ++i) {
    rows.push_back(rival_row(rivals[i], mla_row(m, rivals[i].impl), setup.caches.count));
    if (rival_at[i] != TupleRun::kNone) run.set_measured(rows.back(), rival_at[i], kernel_at);
    if (rival_at[i] != TupleRun::kNone && kernel_at == TupleRun::kNone)
      rows.back()["time_ratio_to_kvroof_reason"] = "kvroof was not measured in this entry";
  }
  if (kernel_at != TupleRun::kNone) {
    kernel_row["cache_copies"] = setup.caches.count;
    run.set_measured(kernel_row, kernel_at, TupleRun::kNone);
    if (step_at != TupleRun::kNone)
      add_time_ratio(kernel_row, row_name(step_case, "kvroof"), "reconstruct/absorbed_step",
                     run.ratio(kernel_at, step_at));
  }
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
};

std::vector<MlaSelection> selections(Preset preset) {
  const std::vector<Storage> all(std::begin(kStorages), std::end(kStorages));
  switch (preset) {
    case Preset::quick:
      return {{MlaKind::absorbed, {512, 4096}, {Storage::f32, Storage::bf16, Storage::int8}},
              {MlaKind::absorbed_step, {4096}, {Storage::bf16}},
              {MlaKind::reconstruct, {512}, {Storage::f32}}};
    case Preset::ci:
      return {{MlaKind::absorbed, {128}, {Storage::f32, Storage::int8}},
              {MlaKind::absorbed_step, {128}, {Storage::bf16}},
              {MlaKind::reconstruct, {32}, {Storage::f32}}};
    case Preset::full: break;
  }
  return {{MlaKind::absorbed, doubling(128, 131072), all},
          {MlaKind::absorbed_step, doubling(128, 131072), all},
          {MlaKind::reconstruct, doubling(128, 4096), all}};
}

}  // namespace

std::vector<Entry> mla_entries(const Sweep& sweep) {
  std::vector<Entry> entries;
  const Preset preset = sweep.options.preset;
  const PresetSizes sizes = sweep.sizes();
  const auto inputs = std::make_shared<MlaInputs>(mla_bench_shape());
  for (const MlaSelection& selection : selections(preset)) {
    for (const std::int64_t T : selection.lengths) {
      for (const bool all : {false, true}) {
        if (preset == Preset::ci && !all) continue;
        for (const Storage storage : selection.storages) {
          MlaCase m{selection.kind, mla_case(selection.kind)};
          m.c.T = T;
          m.c.storage = storage;
          m.c.all_threads = all;
          m.c.threads = all ? sizes.threads_all : 1;
          m.c.isa = sizes.isa;
          // Where scalar loops make every key and value anew, one call takes ten seconds at T = 512.
          m.scalar = T <= kScalarRows && (preset != Preset::quick || selection.kind == MlaKind::absorbed);
          Entry entry;
          for (const std::string& impl : impls(m)) entry.row_names.push_back(row_name(m.c, impl));
          entry.name = entry.row_names.back();
          // A call at a tenth of a TFLOP/s, six times, and its check.
          entry.weight = 0.4 + static_cast<double>(mla_case_flops(selection.kind, m.c)) * (all ? 2e-11 : 4e-11);
          entry.run = [inputs, m](Sweep& s, double seconds) { return run_mla(s, *inputs, m, seconds); };
          entries.push_back(std::move(entry));
        }
      }
    }
  }
  return entries;
}

}  // namespace kvroof::bench
