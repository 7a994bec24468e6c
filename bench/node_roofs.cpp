#include "bench/node_roofs.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <system_error>
#include <thread>

#include "bench/clock.hpp"
#include "bench/probe.hpp"
#include "bench/statistics.hpp"

namespace kvroof::bench {
namespace {

constexpr int kPasses = 5;
constexpr int kVariants = static_cast<int>(std::size(kReadVariants));

bool stay_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu >= CPU_SETSIZE) return false;
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

// Its own threads: those of OpenMP are bound to places of the whole machine.
NodeRoof measure(const NumaNode& node, const ProbeTable& table, int threads, std::int64_t bytes) {
  NodeRoof roof;
  roof.node = node;
  roof.threads = std::min(threads, static_cast<int>(node.cpus.size()));
  const std::size_t share = static_cast<std::size_t>(bytes / roof.threads) / 4096 * 4096;
  const std::size_t half = share / 2;
  std::atomic<bool> bound{true}, room{true};
  std::atomic<std::uint64_t> sum{0};
  std::barrier<> together(roof.threads);
  std::vector<std::vector<double>> times(kVariants);  // written by thread 0 between barriers
  const auto work = [&](int p) {
    if (!stay_on(node.cpus[static_cast<std::size_t>(p)])) bound = false;
    const std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[share]);
    if (memory == nullptr)
      room = false;
    else
      std::memset(memory.get(), 1 + p, share);
    together.arrive_and_wait();
    if (!room) return;
    for (int pass = 0; pass < kPasses; ++pass) {
      for (int i = 0; i < kVariants; ++i) {
        together.arrive_and_wait();
        const std::int64_t start = now_ns();
        const std::byte* const at = memory.get();
        sum += table.read({at, half, at + half, share - half}, kReadVariants[i]);
        together.arrive_and_wait();
        if (p == 0) times[static_cast<std::size_t>(i)].push_back(static_cast<double>(now_ns() - start));
      }
    }
  };
  std::vector<std::thread> team;
  for (int p = 0; p < roof.threads; ++p) team.emplace_back(work, p);
  for (std::thread& thread : team) thread.join();
  if (!room || share == 0) {
    roof.reason = "no memory for its buffers";
  } else if (!bound) {
    roof.reason = "its threads could not be bound to its CPUs";
  } else if (sum > 0) {  // keeps the reads alive
    double best = median(times[0]);
    for (const std::vector<double>& t : times) best = std::min(best, median(t));
    roof.gb_per_s = static_cast<double>(share) * roof.threads / best;
  }
  return roof;
}

}  // namespace

std::vector<NumaNode> numa_nodes(const std::vector<int>& allowed, const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node";
  std::vector<NumaNode> nodes;
  std::string online;
  std::getline(std::ifstream(folder + "/online"), online);
  for (const int number : cpu_list(online)) {
    NumaNode node;
    node.number = number;
    node.source = "/sys/devices/system/node/node" + std::to_string(number) + "/cpulist";
    std::string list;
    std::getline(std::ifstream(root + node.source), list);
    for (const int cpu : cpu_list(list))
      if (std::find(allowed.begin(), allowed.end(), cpu) != allowed.end()) node.cpus.push_back(cpu);
    if (!node.cpus.empty()) nodes.push_back(node);
  }
  if (nodes.empty()) nodes.push_back({0, allowed, "/sys/devices/system/node shows none: the whole machine"});
  return nodes;
}

std::vector<NodeRoof> measure_node_roofs(const MachineFacts& machine, Isa isa, std::int64_t bytes) {
  std::vector<NodeRoof> roofs;
  for (const NumaNode& node : numa_nodes(cpu_list(machine.affinity_cpus.value.value_or("")))) {
    if (node.cpus.empty()) {
      roofs.push_back({node, 0, std::nullopt, "the CPUs that may be used are not known"});
      continue;
    }
    try {
      roofs.push_back(measure(node, probe_table(isa), machine.threads_all, bytes));
    } catch (const std::system_error& error) {
      roofs.push_back({node, 0, std::nullopt, std::string("no threads: ") + error.what()});
    }
  }
  return roofs;
}

}  // namespace kvroof::bench
