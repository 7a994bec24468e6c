// Cores, sockets and caches as hwloc sees them; where it is not built in or sees nothing, the facts are empty and say
// so.
#pragma once

#include <vector>

#include "bench/machine.hpp"

namespace kvroof::bench {

struct Topology {
  Fact<std::int64_t> sockets{std::nullopt, "not asked"}, cores{std::nullopt, "not asked"};
  Fact<std::int64_t> logical{std::nullopt, "not asked"}, numa_nodes{std::nullopt, "not asked"};
  std::vector<CacheLevel> caches;  // of the first core
};

Topology hwloc_topology();

}  // namespace kvroof::bench
