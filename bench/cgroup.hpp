// What the control groups of this process allow: CPU quota, memory, throttling. Version 2 and version 1, from the
// process's own group up to the root, since a limit may sit on any ancestor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvroof::bench {

struct CgroupQuota {
  std::optional<int> cpus;  // quota/period rounded down, at least 1; none: no quota
  std::string source;       // the file that set it, or why there is none
};

// `root` is put before every path, so that tests can bring their own files.
CgroupQuota cgroup_cpu_quota(const std::string& root = "");

struct CgroupMemory {
  std::optional<std::int64_t> available_bytes;  // smallest limit minus use on the way up; none: no limit
  std::string source;
};
CgroupMemory cgroup_memory(const std::string& root = "");

// nr_throttled of the process's own group; none where the kernel does not say.
std::optional<std::int64_t> cgroup_throttled(const std::string& root = "");

// "200000 100000" -> 2, "765000 100000" -> 7, "50000 100000" -> 1, "max 100000" and anything unreadable -> none.
std::optional<int> quota_cpus(const std::string& cpu_max);

}  // namespace kvroof::bench
