// The read roof of each NUMA node: its own CPUs reading memory that they touched first. On one node that is the
// machine's. Recorded in the context, so that a reader of rows over several nodes sees what the nodes give by
// themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/machine.hpp"
#include "kernels/kernels.hpp"

namespace kvroof::bench {

struct NumaNode {
  int number = 0;
  std::vector<int> cpus;  // those that the program may use
  std::string source;
};

// Nodes with at least one of the `allowed` CPUs; where the system shows none, one node 0 with all of them.
std::vector<NumaNode> numa_nodes(const std::vector<int>& allowed, const std::string& root = "");

struct NodeRoof {
  NumaNode node;
  int threads = 0;
  std::optional<double> gb_per_s;
  std::string reason;  // where there is none
};

// One thread a CPU, at most `machine.threads_all` a node. `bytes`: read by a node, first touched by its threads.
std::vector<NodeRoof> measure_node_roofs(const MachineFacts& machine, Isa isa, std::int64_t bytes);

}  // namespace kvroof::bench
