// Machine facts of the benchmark, read from fake files.
#ifdef KVROOF_TEST_BENCH

#include "bench/machine.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "bench/cgroup.hpp"
#include "bench/node_roofs.hpp"

namespace kvroof::bench {
namespace {

class FakeRoot : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvroof-root-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root); }
  void put(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  }
  std::string root;
};

TEST(QuotaCpus, RoundsDownAndStaysAtLeastOne) {
  EXPECT_EQ(quota_cpus("200000 100000"), 2);
  EXPECT_EQ(quota_cpus("765000 100000"), 7);
  EXPECT_EQ(quota_cpus("50000 100000"), 1);
  EXPECT_EQ(quota_cpus("max 100000"), std::nullopt);
  EXPECT_EQ(quota_cpus("-1 100000"), std::nullopt);
  EXPECT_EQ(quota_cpus(""), std::nullopt);
  EXPECT_EQ(quota_cpus("100000"), std::nullopt);
  EXPECT_EQ(quota_cpus("100000 0"), std::nullopt);
  EXPECT_EQ(quota_cpus("many 100000"), std::nullopt);
}

using CgroupFiles = FakeRoot;

TEST_F(CgroupFiles, VersionTwoTakesTheSmallestOnTheWayUp) {
  put("/proc/self/cgroup", "0::/outer/inner\n");
  put("/sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root).cpus, std::nullopt);
  put("/sys/fs/cgroup/outer/cpu.max", "765000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root).cpus, 7);
  EXPECT_EQ(cgroup_cpu_quota(root).source, "/sys/fs/cgroup/outer/cpu.max");
  put("/sys/fs/cgroup/outer/inner/cpu.max", "50000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root).cpus, 1);
}

TEST_F(CgroupFiles, VersionTwoAtTheMountOfAContainer) {
  put("/proc/self/cgroup", "0::/\n");
  put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root).cpus, 2);
}

TEST_F(CgroupFiles, VersionOne) {
  put("/proc/self/cgroup", "7:memory:/box\n3:cpu,cpuacct:/box\n1:name=systemd:/x\n0::/\n");
  put("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root).cpus, std::nullopt);
  put("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "765000\n");
  EXPECT_EQ(cgroup_cpu_quota(root).cpus, 7);
  // The group's path may lie outside of what a container sees; its mount then stands for it.
  put("/proc/self/cgroup", "3:cpu:/host/only\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root).cpus, 2);
}

TEST_F(CgroupFiles, MissingFilesAreNoQuota) {
  EXPECT_EQ(cgroup_cpu_quota(root).cpus, std::nullopt);
  EXPECT_FALSE(cgroup_cpu_quota(root).source.empty());
  EXPECT_EQ(cgroup_memory(root).available_bytes, std::nullopt);
  EXPECT_EQ(cgroup_throttled(root), std::nullopt);
}

TEST_F(CgroupFiles, MemoryLeftAndThrottling) {
  put("/proc/self/cgroup", "0::/a\n");
  put("/sys/fs/cgroup/a/memory.max", "max\n");
  put("/sys/fs/cgroup/a/memory.current", "100\n");
  EXPECT_EQ(cgroup_memory(root).available_bytes, std::nullopt);
  put("/sys/fs/cgroup/memory.max", "1000\n");
  put("/sys/fs/cgroup/memory.current", "400\n");
  EXPECT_EQ(cgroup_memory(root).available_bytes, 600);
  put("/sys/fs/cgroup/a/cpu.stat", "usage_usec 5\nnr_periods 9\nnr_throttled 3\nthrottled_usec 7\n");
  EXPECT_EQ(cgroup_throttled(root), 3);
}

TEST_F(CgroupFiles, VersionOneWritesNoLimitAsAHugeNumber) {
  put("/proc/self/cgroup", "4:memory:/\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n");
  EXPECT_EQ(cgroup_memory(root).available_bytes, std::nullopt);
}

TEST(ThreadCount, SmallerOfAffinityAndQuotaAtLeastOne) {
  EXPECT_EQ(thread_count(8, std::nullopt), 8);
  EXPECT_EQ(thread_count(8, 2), 2);
  EXPECT_EQ(thread_count(1, 7), 1);
  EXPECT_EQ(thread_count(std::nullopt, 3), 3);
  EXPECT_EQ(thread_count(std::nullopt, std::nullopt), 1);
  EXPECT_EQ(thread_count(0, 0), 1);
}

TEST(CpuList, Members) {
  EXPECT_EQ(cpu_list("0-3,8"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(cpu_list("5"), (std::vector<int>{5}));
  for (const char* wrong : {"", "a", "3-1", "0-", "1,,2", "0-99999999999"})
    EXPECT_TRUE(cpu_list(wrong).empty()) << wrong;
}

TEST(CpuList, Counts) {
  EXPECT_EQ(cpu_list_count("0"), 1);
  EXPECT_EQ(cpu_list_count("0-3,8"), 5);
  EXPECT_EQ(cpu_list_count(""), std::nullopt);
  EXPECT_EQ(cpu_list_count("a-b"), std::nullopt);
  EXPECT_EQ(cpu_list_count("3-1"), std::nullopt);
  EXPECT_EQ(cpu_list_count("0-"), std::nullopt);
}

using NodeFiles = FakeRoot;

TEST_F(NodeFiles, NodesHoldTheCpusThatMayBeUsed) {
  put("/sys/devices/system/node/online", "0-2\n");
  put("/sys/devices/system/node/node0/cpulist", "0-3\n");
  put("/sys/devices/system/node/node1/cpulist", "4-7\n");
  put("/sys/devices/system/node/node2/cpulist", "\n");  // memory only
  const std::vector<NumaNode> both = numa_nodes({2, 3, 4}, root);
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].cpus, (std::vector<int>{2, 3}));
  EXPECT_EQ(both[1].number, 1);
  EXPECT_EQ(both[1].cpus, (std::vector<int>{4}));
  EXPECT_EQ(numa_nodes({7}, root).size(), 1u);
}

TEST_F(NodeFiles, WithoutNodesTheMachineIsOne) {
  const std::vector<NumaNode> one = numa_nodes({0, 5}, root);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].cpus, (std::vector<int>{0, 5}));
}

TEST(CacheLevels, TheSmallestThatHoldsTheThreadsShares) {
  MachineFacts machine;
  EXPECT_EQ(cache_level(machine, 1, 1), "");
  machine.caches = {{"Data", 1, 32 << 10, 1},
                    {"Instruction", 1, 64 << 20, 1},
                    {"Unified", 2, 1 << 20, 1},
                    {"Unified", 3, 32 << 20, 8}};
  EXPECT_EQ(cache_level(machine, 24 << 10, 1), "L1");
  EXPECT_EQ(cache_level(machine, 25 << 10, 1), "L2");
  EXPECT_EQ(cache_level(machine, 48 << 10, 2), "L1");
  EXPECT_EQ(cache_level(machine, 1 << 20, 1), "L3");
  EXPECT_EQ(cache_level(machine, 1 << 20, 2), "L2");
  EXPECT_EQ(cache_level(machine, 24 << 20, 8), "L3");
  EXPECT_EQ(cache_level(machine, 25 << 20, 8), "");
  EXPECT_EQ(cache_level(machine, 25 << 20, 9), "L3");  // on two of them
}

using MachineFiles = FakeRoot;

TEST_F(MachineFiles, NothingThereIsNoFactAndNoGuess) {
  const MachineFacts facts = machine_facts(root);
  EXPECT_EQ(facts.cpu_model.value, std::nullopt);
  EXPECT_EQ(facts.last_level_bytes.value, std::nullopt);
  EXPECT_EQ(facts.memory_total.value, std::nullopt);
  EXPECT_EQ(facts.governor.value, std::nullopt);
  EXPECT_EQ(facts.thp_mode.value, std::nullopt);
  EXPECT_TRUE(facts.caches.empty());
  EXPECT_EQ(facts.threads_all, 1);
  for (const std::string& source : {facts.cpu_model.source, facts.last_level_bytes.source, facts.memory_total.source,
                                    facts.governor.source, facts.thp_mode.source, facts.hypervisor.source})
    EXPECT_FALSE(source.empty());
}

TEST_F(MachineFiles, FactsComeFromTheirFiles) {
  put("/proc/cpuinfo", "processor\t: 0\nvendor_id\t: Some\nmodel name\t: Some CPU 7\nflags\t\t: fpu hypervisor avx2\n");
  put("/proc/meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    600 kB\n");
  put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  put("/sys/devices/system/cpu/online", "0-7\n");
  put("/sys/devices/system/node/online", "0-1\n");
  const std::string cache = "/sys/devices/system/cpu/cpu0/cache/index";
  put(cache + "0/level", "1\n");
  put(cache + "0/type", "Data\n");
  put(cache + "0/size", "48K\n");
  put(cache + "0/shared_cpu_list", "0\n");
  put(cache + "1/level", "1\n");
  put(cache + "1/type", "Instruction\n");
  put(cache + "1/size", "64K\n");
  put(cache + "2/level", "3\n");
  put(cache + "2/type", "Unified\n");
  put(cache + "2/size", "32768K\n");
  put(cache + "2/shared_cpu_list", "0-7\n");
  const MachineFacts facts = machine_facts(root);
  EXPECT_EQ(facts.cpu_model.value, "Some CPU 7");
  EXPECT_EQ(facts.hypervisor.value, "yes");
  EXPECT_EQ(facts.memory_total.value, 1000 * 1024);
  EXPECT_EQ(facts.memory_available.value, 600 * 1024);
  EXPECT_EQ(memory_available_now(root), 600 * 1024);
  EXPECT_EQ(facts.thp_mode.value, "madvise");
  EXPECT_EQ(facts.online.value, 8);
  EXPECT_EQ(facts.numa_nodes.value, 2);
  ASSERT_EQ(facts.caches.size(), 3u);
  EXPECT_EQ(facts.l1d_bytes.value, 48 * 1024);
  EXPECT_EQ(facts.last_level_bytes.value, 32768 * 1024);
  EXPECT_EQ(facts.caches[2].sharing, 8);
  EXPECT_EQ(facts.threads_all, 8);
}

TEST_F(MachineFiles, TheControlGroupCapsMemory) {
  put("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 600 kB\n");
  put("/proc/self/cgroup", "0::/\n");
  put("/sys/fs/cgroup/memory.max", "102400\n");
  put("/sys/fs/cgroup/memory.current", "2400\n");
  EXPECT_EQ(memory_available_now(root), 100000);
  EXPECT_EQ(machine_facts(root).memory_available.source, "/sys/fs/cgroup/memory.max");
}

}  // namespace
}  // namespace kvroof::bench

#endif  // KVROOF_TEST_BENCH
