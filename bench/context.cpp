#include "bench/context.hpp"

#include <benchmark/benchmark.h>
#include <omp.h>
#include <stdlib.h>

#include <cstdlib>
#include <ctime>

#include "bench/cgroup.hpp"
#include "bench/clock.hpp"
#include "bench/node_roofs.hpp"
#include "bench/rivals/rival.hpp"
#include "kernels/cpu.hpp"
#include "kvroof_build_info.hpp"

namespace kvroof::bench {
namespace {

template <class T>
Json fact(const Fact<T>& f) {
  return {{"value", value_or_null(f.value)}, {"source", f.source}};
}

Json environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? Json(value) : Json(nullptr);
}

Json version(const char* text) { return *text != '\0' ? Json(text) : Json(nullptr); }

Json threads_json(const MachineFacts& machine) {
  Json threads;
  threads["all"] = machine.threads_all;
  threads["online"] = fact(machine.online);
  threads["affinity"] = fact(machine.affinity);
  threads["affinity_cpus"] = fact(machine.affinity_cpus);
  threads["cgroup_quota"] = fact(machine.cgroup_quota);
  threads["omp_proc_bind"] = environment("OMP_PROC_BIND");
  threads["omp_places"] = environment("OMP_PLACES");
  threads["runtime"] = "OpenMP " + std::to_string(_OPENMP);
  return threads;
}

Json machine_json(const MachineFacts& machine, Isa isa) {
  Json m;
  m["cpu_model"] = fact(machine.cpu_model);
  m["cpu_vendor"] = fact(machine.cpu_vendor);
  m["cpu_family"] = fact(machine.cpu_family);
  m["architecture"] = fact(machine.architecture);
  m["isa"] = isa_name(isa);
  m["isas"] = Json::array();
  for (Isa each : {Isa::portable, Isa::avx2, Isa::avx512, Isa::neon}) {
    const std::string missing = isa_missing(each);
    m["isas"].push_back({{"name", isa_name(each)},
                         {"supported", isa_supported(each)},
                         {"reason", missing.empty() ? Json(nullptr) : Json(missing)}});
  }
  m["sockets"] = fact(machine.sockets);
  m["cores"] = fact(machine.cores);
  m["smt_threads_per_core"] = fact(machine.smt_threads_per_core);
  m["l1d_cache_bytes"] = fact(machine.l1d_bytes);
  m["l2_cache_bytes"] = fact(machine.l2_bytes);
  m["last_level_cache_bytes"] = fact(machine.last_level_bytes);
  m["memory_total_bytes"] = fact(machine.memory_total);
  m["memory_available_bytes"] = fact(machine.memory_available);
  m["page_bytes"] = fact(machine.page_bytes);
  m["thp_mode"] = fact(machine.thp_mode);
  m["arena_bytes"] = {{"value", nullptr}, {"source", "known at the end"}};
  m["arena_huge_bytes"] = {{"value", nullptr}, {"source", "known at the end"}};
  m["numa_nodes"] = fact(machine.numa_nodes);
  m["hypervisor"] = fact(machine.hypervisor);
  m["governor"] = fact(machine.governor);
  m["turbo"] = fact(machine.turbo);
  m["kernel"] = fact(machine.kernel);
  return m;
}

Json node_roofs_json(const MachineFacts& machine, Isa isa, std::int64_t bytes) {
  Json nodes = Json::array();
  for (const NodeRoof& roof : measure_node_roofs(machine, isa, bytes)) {
    nodes.push_back({{"node", roof.node.number},
                     {"cpus", roof.node.cpus},
                     {"threads", roof.threads},
                     {"gb_per_s", value_or_null(roof.gb_per_s)},
                     {"source", roof.node.source}});
    if (!roof.gb_per_s) nodes.back()["gb_per_s_reason"] = roof.reason;
  }
  return nodes;
}

Json build_json() {
  namespace info = build_info;
  Json build;
  const bool known = info::kCommit[0] != '\0';
  build["commit"] = version(info::kCommit);
  if (!known) build["commit_reason"] = "not built from a git checkout";
  build["dirty"] = known ? Json(info::kDirty) : Json(nullptr);
  build["build_type"] = info::kBuildType;
  build["compiler"] = info::kCompiler;
  build["flags"] = info::kFlags;
  build["isa_flags"] = Json::object();
  for (const info::IsaFlags& row : info::kIsaFlags) build["isa_flags"][row.isa] = row.flags;
  build["libraries"] = {{"kvroof", info::kVersion},
                        {"xsimd", version(info::kXsimdVersion)},
                        {"google_benchmark", version(info::kBenchmarkVersion)},
                        {"onednn", version(onednn_version().c_str())},
                        {"openmp", version(info::kOpenMpVersion)}};
  return build;
}

Json rules_json() {
  return {
      {"bytes",
       "unique cache bytes that must be read: K and V at storage width, once per KV head; a latent row once; q, output "
       "and partials "
       "excluded; mla_absorbed_step: and W_UK and W_UV, f32"},
      {"flops",
       "2*Dk + 2*Dv per visible (query head, query, row); mla_absorbed_step also both folds, "
       "mla_reconstruct the products with W_UK and W_UV"},
      {"time",
       "real_time is the median over repetitions of one call's time; every ratio is the median of ratios within one "
       "repetition of one entry"},
      {"read_roof",
       "wide-load sum over the same bytes by the same threads in the same entry; read only, no write traffic"},
      {"compute_roof",
       "f32 FMA chains in registers; for f16, bf16 and int8 with one widening load per group of query heads; in native "
       "mode its dot instruction with one load per group; every thread times slices of it, the median slice counts"},
      {"cold",
       "rotates over caches whose sum is at least 4 times the last-level cache; probe, kernel and rivals take turns on "
       "them"},
      {"warm", "one cache again and again, only where it fits 3/4 of the last-level cache"},
      {"order", "entries go through their contenders forwards and backwards in turn"},
      {"placement",
       "pages first touched by the thread that reads them where there are several NUMA nodes; thread p owns share p of "
       "K and of V"},
      {"sizes", "bytes and GiB are powers of 1024; GB/s is 1e9 bytes per second"},
  };
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Json make_context(const Options& options, const MachineFacts& machine, Isa isa, std::int64_t node_bytes) {
  Json context;
  context["schema"] = {{"name", kSchemaName}, {"version", kSchemaVersion}};
  context["definition"] = kDefinition;
  context["date"] = utc_now();
  context["date_end"] = nullptr;
  context["host_name"] = nullptr;
  context["executable"] = "kvroof_bench";
  context["num_cpus"] = machine.online.value.value_or(1);
  context["mhz_per_cpu"] = nullptr;
  context["cpu_scaling_enabled"] =
      machine.governor.value ? Json(*machine.governor.value != "performance") : Json(nullptr);
  context["caches"] = Json::array();
  for (const CacheLevel& cache : machine.caches)
    context["caches"].push_back(
        {{"type", cache.type}, {"level", cache.level}, {"size", cache.bytes}, {"num_sharing", cache.sharing}});
  double load[3] = {};
  context["load_avg"] = Json::array();
  for (int i = 0, n = getloadavg(load, 3); i < n; ++i) context["load_avg"].push_back(load[i]);
  context["library_build_type"] = "unknown";
  context["library_version"] = version(build_info::kBenchmarkVersion);
  context["json_schema_version"] = 1;
  context["preset"] = preset_name(options.preset);
  context["complete"] = false;
  context["command_line"] = options.command_line;
  context["mhz_before"] = value_or_null(measured_mhz());
  context["mhz_after"] = nullptr;
  context["throttled_before"] = value_or_null(cgroup_throttled());
  context["throttled_after"] = nullptr;
  context["threads"] = threads_json(machine);
  context["machine"] = machine_json(machine, isa);
  context["machine"]["numa_read_roofs"] = node_roofs_json(machine, isa, node_bytes);
  context["build"] = build_json();
  context["rules"] = rules_json();
  return context;
}

void finish_context(Json& context, const Arena& arena, bool complete) {
  context["date_end"] = utc_now();
  context["mhz_after"] = value_or_null(measured_mhz());
  context["throttled_after"] = value_or_null(cgroup_throttled());
  context["complete"] = complete;
  context["machine"]["arena_bytes"] = {{"value", arena.held_bytes()}, {"source", "memory filled by the benchmark"}};
  context["machine"]["arena_huge_bytes"] = {{"value", arena.huge_bytes()}, {"source", arena.huge_source()}};
}

}  // namespace kvroof::bench
