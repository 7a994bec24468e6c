// One OpenMP team for everything that is timed: probe, kernel and rivals run on the same threads in the same places.
#pragma once

#include <omp.h>

namespace kvroof::bench {

// If the user has set neither OMP_PROC_BIND nor OMP_PLACES, sets them to close and cores and starts the program again:
// the run-time reads them before main. The affinity mask as it is now is passed on, since binding hides it. Returns if
// there is nothing to do or exec fails (rows then run unbound, and the context says so).
void bind_threads_or_restart(char** argv);

// Runs f(0) .. f(threads-1), one each on the threads of the team.
template <class F>
void run_team(int threads, F&& f) {
#pragma omp parallel num_threads(threads)
  f(omp_get_thread_num());
}

}  // namespace kvroof::bench
