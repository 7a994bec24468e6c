#include "bench/machine.hpp"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "bench/cgroup.hpp"
#include "bench/topology.hpp"

namespace kvroof::bench {
namespace {

using Text = Fact<std::string>;
using Number = Fact<std::int64_t>;

std::optional<std::string> line_of(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!in || !std::getline(in, line)) return std::nullopt;
  while (!line.empty() && (line.back() == ' ' || line.back() == '\n' || line.back() == '\0')) line.pop_back();
  return line;
}

Text text_file(const std::string& root, const std::string& path) {
  Text fact{line_of(root + path), path};
  if (!fact.value) fact.source = path + " is not there";
  return fact;
}

// The first "key : value" of /proc/cpuinfo with one of the keys.
Text cpuinfo(const std::string& root, const std::vector<std::string>& keys) {
  for (const std::string& wanted : keys) {
    std::ifstream in(root + "/proc/cpuinfo");
    std::string line;
    while (std::getline(in, line)) {
      const auto colon = line.find(':');
      if (colon == std::string::npos) continue;
      std::string key = line.substr(0, colon);
      while (!key.empty() && (key.back() == ' ' || key.back() == '\t')) key.pop_back();
      if (key != wanted) continue;
      const auto start = line.find_first_not_of(" \t", colon + 1);
      if (start == std::string::npos) continue;
      return {line.substr(start), "/proc/cpuinfo, " + wanted};
    }
  }
  return {std::nullopt, "/proc/cpuinfo has no " + keys.front()};
}

Text hypervisor(const std::string& root) {
  std::ifstream in(root + "/proc/cpuinfo");
  std::string line;
  bool seen = false;
  while (std::getline(in, line)) {
    if (line.rfind("flags", 0) != 0) continue;
    seen = true;
    std::istringstream words(line);
    std::string word;
    while (words >> word)
      if (word == "hypervisor") return {"yes", "/proc/cpuinfo, flag hypervisor"};
  }
  if (!seen) return {std::nullopt, "/proc/cpuinfo has no flags line on this architecture"};
  return {"no", "/proc/cpuinfo, flag hypervisor is absent"};
}

Number meminfo(const std::string& root, const std::string& key) {
  std::ifstream in(root + "/proc/meminfo");
  std::string name, unit;
  std::int64_t value = 0;
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    if (words >> name >> value >> unit && name == key + ":" && unit == "kB")
      return {value * 1024, "/proc/meminfo, " + key};
  }
  return {std::nullopt, "/proc/meminfo has no " + key};
}

// "always [madvise] never" -> "madvise"
Text bracketed(Text fact) {
  if (!fact.value) return fact;
  const auto open = fact.value->find('['), close = fact.value->find(']');
  if (open != std::string::npos && close != std::string::npos && open < close)
    fact.value = fact.value->substr(open + 1, close - open - 1);
  return fact;
}

// The affinity mask as it was at the start. The OpenMP run-time binds the first thread to its place before main, so the
// program passes on what it saw before it bound itself (see threads.cpp).
void affinity(MachineFacts& facts) {
  if (const char* list = std::getenv("KVROOF_AFFINITY")) {
    facts.affinity_cpus = {std::string(list), "sched_getaffinity at program start"};
    facts.affinity = {cpu_list_count(list), facts.affinity_cpus.source};
    if (facts.affinity.value) return;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    facts.affinity = {std::nullopt, "sched_getaffinity failed: more CPUs than the C library's mask holds"};
    facts.affinity_cpus = {std::nullopt, facts.affinity.source};
    return;
  }
  std::string list;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) list += (list.empty() ? "" : ",") + std::to_string(cpu);
  facts.affinity = {CPU_COUNT(&set), "sched_getaffinity"};
  facts.affinity_cpus = {list, "sched_getaffinity"};
}

}  // namespace

std::vector<int> cpu_list(const std::string& list) {
  constexpr long kMost = 1 << 20;  // more is no list of CPUs
  std::istringstream in(list);
  std::string part;
  std::vector<int> cpus;
  while (std::getline(in, part, ',')) {
    char* end = nullptr;
    const long first = std::strtol(part.c_str(), &end, 10);
    long last = first;
    if (end == part.c_str() || first < 0) return {};
    if (*end == '-') {
      const char* second = end + 1;
      last = std::strtol(second, &end, 10);
      if (end == second) return {};
    }
    if (*end != '\0' || last < first || last > kMost) return {};
    for (long cpu = first; cpu <= last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

std::optional<std::int64_t> cpu_list_count(const std::string& list) {
  const std::vector<int> cpus = cpu_list(list);
  if (cpus.empty()) return std::nullopt;
  return static_cast<std::int64_t>(cpus.size());
}

int thread_count(std::optional<std::int64_t> affinity, std::optional<std::int64_t> quota) {
  std::int64_t threads = affinity.value_or(quota.value_or(1));
  if (quota) threads = std::min(threads, *quota);
  return static_cast<int>(std::clamp<std::int64_t>(threads, 1, 4096));
}

std::string cache_level(const MachineFacts& machine, std::int64_t bytes, int threads) {
  const CacheLevel* smallest = nullptr;
  for (const CacheLevel& cache : machine.caches) {
    if (cache.type == "Instruction") continue;
    // Threads lie close together: one more of these caches for every `sharing` of them.
    const std::int64_t copies = cache.sharing > 0 ? (threads + cache.sharing - 1) / cache.sharing : 1;
    if (4 * bytes > 3 * cache.bytes * copies) continue;
    if (smallest == nullptr || cache.level < smallest->level) smallest = &cache;
  }
  return smallest == nullptr ? "" : "L" + std::to_string(smallest->level);
}

std::vector<CacheLevel> sysfs_caches(const std::string& root) {
  std::vector<CacheLevel> caches;
  for (int index = 0;; ++index) {
    const std::string folder = root + "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
    const auto level = line_of(folder + "/level");
    const auto size = line_of(folder + "/size");
    if (!level) break;
    if (!size || size->empty()) continue;
    char* end = nullptr;
    std::int64_t bytes = std::strtoll(size->c_str(), &end, 10);
    if (*end == 'K') bytes <<= 10;
    if (*end == 'M') bytes <<= 20;
    if (bytes <= 0) continue;
    CacheLevel cache;
    cache.level = std::atoi(level->c_str());
    cache.type = line_of(folder + "/type").value_or("Unified");
    cache.bytes = bytes;
    cache.sharing = static_cast<int>(cpu_list_count(line_of(folder + "/shared_cpu_list").value_or("")).value_or(0));
    caches.push_back(cache);
  }
  return caches;
}

std::int64_t memory_available_now(const std::string& root) {
  std::int64_t bytes = meminfo(root, "MemAvailable").value.value_or(0);
  if (const auto group = cgroup_memory(root).available_bytes) bytes = std::min(bytes, *group);
  return bytes;
}

MachineFacts machine_facts(const std::string& root) {
  MachineFacts facts;
  facts.cpu_model = cpuinfo(root, {"model name", "CPU part"});
  facts.cpu_vendor = cpuinfo(root, {"vendor_id", "CPU implementer"});
  facts.cpu_family = cpuinfo(root, {"cpu family", "CPU architecture"});
  facts.hypervisor = hypervisor(root);
  facts.governor = text_file(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  facts.turbo = text_file(root, "/sys/devices/system/cpu/cpufreq/boost");
  facts.thp_mode = bracketed(text_file(root, "/sys/kernel/mm/transparent_hugepage/enabled"));
  facts.memory_total = meminfo(root, "MemTotal");
  facts.memory_available = meminfo(root, "MemAvailable");
  const CgroupMemory group = cgroup_memory(root);
  if (group.available_bytes && facts.memory_available.value && *group.available_bytes < *facts.memory_available.value)
    facts.memory_available = {group.available_bytes, group.source};
  const CgroupQuota quota = cgroup_cpu_quota(root);
  facts.cgroup_quota = {quota.cpus ? std::optional<std::int64_t>(*quota.cpus) : std::nullopt, quota.source};
  const Text online = text_file(root, "/sys/devices/system/cpu/online");
  facts.online = {online.value ? cpu_list_count(*online.value) : std::nullopt, online.source};
  facts.caches = sysfs_caches(root);
  Topology topology;
  if (root.empty()) {
    affinity(facts);
    facts.page_bytes = {sysconf(_SC_PAGESIZE), "sysconf(_SC_PAGESIZE)"};
    utsname name{};
    uname(&name);
    facts.kernel = {std::string(name.sysname) + " " + name.release, "uname"};
    facts.architecture = {std::string(name.machine), "uname"};
    if (!facts.online.value) facts.online = {sysconf(_SC_NPROCESSORS_ONLN), "sysconf(_SC_NPROCESSORS_ONLN)"};
    topology = hwloc_topology();
  } else {
    facts.affinity = {std::nullopt, "not asked"};
  }
  std::string cache_source = "/sys/devices/system/cpu/cpu0/cache";
  if (!topology.caches.empty()) {
    facts.caches = topology.caches;
    cache_source = "hwloc";
  }
  const auto largest = [&](auto wanted, const std::string& what) -> Number {
    std::int64_t bytes = 0;
    for (const CacheLevel& cache : facts.caches)
      if (cache.type != "Instruction" && wanted(cache)) bytes = std::max(bytes, cache.bytes);
    if (bytes > 0) return {bytes, cache_source};
    return {std::nullopt, "neither hwloc nor /sys shows " + what};
  };
  int last = 0;
  for (const CacheLevel& cache : facts.caches) last = std::max(last, cache.type == "Instruction" ? 0 : cache.level);
  facts.l1d_bytes = largest([](const CacheLevel& c) { return c.level == 1; }, "a first-level data cache");
  facts.l2_bytes = largest([](const CacheLevel& c) { return c.level == 2; }, "a second-level cache");
  facts.last_level_bytes = largest([last](const CacheLevel& c) { return c.level == last; }, "any cache");
  facts.sockets = topology.sockets;
  facts.cores = topology.cores;
  facts.smt_threads_per_core = {std::nullopt, "cores unknown"};
  if (topology.cores.value && topology.logical.value && *topology.cores.value > 0)
    facts.smt_threads_per_core = {*topology.logical.value / *topology.cores.value, topology.cores.source};
  const Text nodes = text_file(root, "/sys/devices/system/node/online");
  facts.numa_nodes = {nodes.value ? cpu_list_count(*nodes.value) : std::nullopt, nodes.source};
  if (!facts.numa_nodes.value) facts.numa_nodes = topology.numa_nodes;
  facts.threads_all =
      thread_count(facts.affinity.value ? facts.affinity.value : facts.online.value, facts.cgroup_quota.value);
  return facts;
}

}  // namespace kvroof::bench
