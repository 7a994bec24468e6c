#include "bench/topology.hpp"

#if KVROOF_HAVE_HWLOC
#include <hwloc.h>
#endif

namespace kvroof::bench {

#if KVROOF_HAVE_HWLOC

Topology hwloc_topology() {
  Topology result;
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return result;
  // The instruction caches are filtered out by default, and so they stay: no row depends on them.
  if (hwloc_topology_load(topology) != 0) {
    hwloc_topology_destroy(topology);
    result.cores = result.sockets = result.logical = {std::nullopt, "hwloc could not load the topology"};
    return result;
  }
  const auto count = [&](hwloc_obj_type_t type) -> Fact<std::int64_t> {
    const int n = hwloc_get_nbobjs_by_type(topology, type);
    if (n > 0) return {n, "hwloc"};
    return {std::nullopt, "hwloc shows none"};
  };
  result.sockets = count(HWLOC_OBJ_PACKAGE);
  result.cores = count(HWLOC_OBJ_CORE);
  result.logical = count(HWLOC_OBJ_PU);
  result.numa_nodes = count(HWLOC_OBJ_NUMANODE);
  const hwloc_obj_t first = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, 0);
  for (hwloc_obj_t at = first; at != nullptr; at = at->parent) {
    if (!hwloc_obj_type_is_dcache(at->type) || at->attr == nullptr || at->attr->cache.size == 0) continue;
    CacheLevel cache;
    cache.level = static_cast<int>(at->attr->cache.depth);
    cache.bytes = static_cast<std::int64_t>(at->attr->cache.size);
    cache.type = at->attr->cache.type == HWLOC_OBJ_CACHE_DATA ? "Data" : "Unified";
    cache.sharing = at->cpuset != nullptr ? hwloc_bitmap_weight(at->cpuset) : 0;
    result.caches.push_back(cache);
  }
  hwloc_topology_destroy(topology);
  return result;
}

#else

Topology hwloc_topology() {
  Topology result;
  result.sockets = result.cores = result.logical = result.numa_nodes = {std::nullopt, "built without hwloc"};
  return result;
}

#endif

}  // namespace kvroof::bench
