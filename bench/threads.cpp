#include "bench/threads.hpp"

#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace kvroof::bench {

void bind_threads_or_restart(char** argv) {
  if (std::getenv("OMP_PROC_BIND") != nullptr || std::getenv("OMP_PLACES") != nullptr) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  std::string list;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) list += (list.empty() ? "" : ",") + std::to_string(cpu);
  setenv("OMP_PROC_BIND", "close", 1);
  setenv("OMP_PLACES", "cores", 1);
  if (!list.empty()) setenv("KVROOF_AFFINITY", list.c_str(), 1);
  execv("/proc/self/exe", argv);
}

}  // namespace kvroof::bench
