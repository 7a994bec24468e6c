#include "bench/cgroup.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

namespace kvroof::bench {
namespace {

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!in || !std::getline(in, line)) return std::nullopt;
  return line;
}

std::optional<std::int64_t> number_in(const std::string& path) {
  const auto line = first_line(path);
  if (!line) return std::nullopt;
  std::istringstream in(*line);
  std::int64_t value = 0;
  if (!(in >> value)) return std::nullopt;
  return value;
}

struct Group {
  std::string folder;  // with root
  bool v2 = false;
};

// This process's group for `controller` and all its ancestors, nearest first. In a container the path may lie outside
// of what is mounted; then the mount's own root is the nearest that can be seen.
std::vector<Group> groups(const std::string& root, const std::string& controller) {
  std::vector<Group> chain;
  std::ifstream in(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    std::vector<std::string> mounts;
    const bool v2 = controllers.empty();
    if (v2) {
      mounts = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    } else {
      std::istringstream names(controllers);
      std::string name;
      bool found = false;
      while (std::getline(names, name, ',')) found = found || name == controller;
      if (!found) continue;
      mounts = {"/sys/fs/cgroup/" + controllers, "/sys/fs/cgroup/" + controller};
    }
    for (const std::string& mount : mounts) {
      std::string at = path;
      while (true) {
        chain.push_back({root + mount + (at == "/" ? "" : at), v2});
        if (at.empty() || at == "/") break;
        at = at.substr(0, at.rfind('/'));
      }
    }
  }
  return chain;
}

}  // namespace

std::optional<int> quota_cpus(const std::string& cpu_max) {
  std::istringstream in(cpu_max);
  std::string quota_word;
  std::int64_t period = 0;
  if (!(in >> quota_word >> period) || period <= 0) return std::nullopt;
  std::istringstream quota_in(quota_word);
  std::int64_t quota = 0;
  if (!(quota_in >> quota) || quota <= 0) return std::nullopt;  // "max", or -1 of version 1
  return static_cast<int>(std::clamp<std::int64_t>(quota / period, 1, std::numeric_limits<int>::max()));
}

CgroupQuota cgroup_cpu_quota(const std::string& root) {
  CgroupQuota result;
  result.source = "no cpu quota in cpu.max or cpu.cfs_quota_us of this process's control groups";
  for (const Group& group : groups(root, "cpu")) {
    std::optional<int> cpus;
    std::string file;
    if (group.v2) {
      file = group.folder + "/cpu.max";
      if (const auto line = first_line(file)) cpus = quota_cpus(*line);
    } else {
      file = group.folder + "/cpu.cfs_quota_us";
      const auto quota = number_in(file);
      const auto period = number_in(group.folder + "/cpu.cfs_period_us");
      if (quota && period) cpus = quota_cpus(std::to_string(*quota) + " " + std::to_string(*period));
    }
    if (cpus && (!result.cpus || *cpus < *result.cpus)) {
      result.cpus = cpus;
      result.source = file.substr(root.size());
    }
  }
  return result;
}

CgroupMemory cgroup_memory(const std::string& root) {
  CgroupMemory result;
  result.source = "no memory limit in this process's control groups";
  for (const Group& group : groups(root, "memory")) {
    const std::string file = group.folder + (group.v2 ? "/memory.max" : "/memory.limit_in_bytes");
    const auto limit = number_in(file);  // "max" is no number
    const auto used = number_in(group.folder + (group.v2 ? "/memory.current" : "/memory.usage_in_bytes"));
    // Version 1 writes "no limit" as a number near 2^63.
    if (!limit || !used || *limit >= (std::int64_t{1} << 60)) continue;
    const std::int64_t left = std::max<std::int64_t>(0, *limit - *used);
    if (!result.available_bytes || left < *result.available_bytes) {
      result.available_bytes = left;
      result.source = file.substr(root.size());
    }
  }
  return result;
}

std::optional<std::int64_t> cgroup_throttled(const std::string& root) {
  for (const Group& group : groups(root, "cpu")) {
    std::ifstream in(group.folder + "/cpu.stat");
    std::string key;
    std::int64_t value = 0;
    while (in >> key >> value)
      if (key == "nr_throttled") return value;
  }
  return std::nullopt;
}

}  // namespace kvroof::bench
