// Facts about the machine, each with the place it comes from. A fact that cannot be had is empty, and its source says
// why; nothing is guessed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvroof::bench {

template <class T>
struct Fact {
  std::optional<T> value;
  std::string source;
};

struct CacheLevel {
  std::string type;  // "Data", "Instruction", "Unified"
  int level = 0;
  std::int64_t bytes = 0;
  int sharing = 0;  // logical CPUs; 0: unknown
};

struct MachineFacts {
  Fact<std::string> cpu_model, cpu_vendor, cpu_family, architecture, hypervisor, governor, turbo, kernel, thp_mode;
  Fact<std::string> affinity_cpus;
  Fact<std::int64_t> online, affinity, cgroup_quota;
  Fact<std::int64_t> sockets, cores, smt_threads_per_core, numa_nodes;
  Fact<std::int64_t> l1d_bytes, l2_bytes, last_level_bytes;  // of one cache each, not the sum over cores
  Fact<std::int64_t> memory_total, memory_available, page_bytes;
  std::vector<CacheLevel> caches;
  int threads_all = 1;  // min(affinity, quota), at least 1
};

// `root` is put before every path of /proc and /sys. With a root, nothing is asked of the running system: no hwloc, no
// affinity call (the fake files stand for another machine).
MachineFacts machine_facts(const std::string& root = "");

// MemAvailable now, no more than the control group leaves.
std::int64_t memory_available_now(const std::string& root = "");

// "0-3,8" -> 0, 1, 2, 3, 8; empty if it is no CPU list.
std::vector<int> cpu_list(const std::string& list);
// How many those are; none if there are none.
std::optional<std::int64_t> cpu_list_count(const std::string& list);

// The smallest cache that holds `bytes` when `threads` threads share them out, three quarters of it at most: "L1",
// "L2",
// ... "" for memory, or where no cache is known.
std::string cache_level(const MachineFacts& machine, std::int64_t bytes, int threads);

// Threads to use: affinity and quota, rounded down, at least 1.
int thread_count(std::optional<std::int64_t> affinity, std::optional<std::int64_t> quota);

// /sys/devices/system/cpu/cpu0/cache of `root`; empty where the kernel shows none.
std::vector<CacheLevel> sysfs_caches(const std::string& root);

}  // namespace kvroof::bench
