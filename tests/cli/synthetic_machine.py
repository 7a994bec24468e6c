"""The machines that made-up result files (synthetic.py) say they come from: their speeds, and their facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Machine:
    name: str = "synthetic-8c"
    cpu: str = "Synthetic CPU (made-up numbers)"
    isa: str = "avx512"
    threads: int = 8
    cold_1: float = 14.0  # GB/s from memory, one thread
    cold_all: float = 62.0
    warm_1: float = 90.0
    flops_1: float = 95.0  # GFLOP/s, f32 FMA
    llc: int = 32 * 2**20
    seed: int = 7
    arithmetic: float = 0.9  # of the compute roof, that a kernel reaches


def fact(value: Any, source: str) -> Json:
    return {"value": value, "source": source}


def context(m: Machine, preset: str = "quick") -> Json:
    isas = [
        {
            "name": n,
            "supported": n in ("portable", "avx2", m.isa),
            "reason": None if n in ("portable", "avx2", m.isa) else "not built for this architecture",
        }
        for n in ("portable", "avx2", "avx512", "neon")
    ]
    return {
        "schema": {"name": "kvroof.results", "version": "1.0.0"},
        "definition": 1,
        "date": "2000-01-01T00:00:00Z",
        "date_end": "2000-01-01T00:03:00Z",
        "host_name": None,
        "executable": "kvroof_bench",
        "num_cpus": m.threads,
        "mhz_per_cpu": 2600,
        "cpu_scaling_enabled": False,
        "caches": [
            {"type": "Data", "level": 1, "size": 49152, "num_sharing": 1},
            {"type": "Unified", "level": 3, "size": m.llc, "num_sharing": m.threads},
        ],
        "load_avg": [0.1, 0.2, 0.3],
        "library_build_type": "release",
        "library_version": "1.7.1",
        "json_schema_version": 1,
        "preset": preset,
        "complete": True,
        "command_line": [f"--preset={preset}", "--journal=synthetic.journal"],
        "mhz_before": 3100.0,
        "mhz_after": 3095.0,
        "throttled_before": 0,
        "throttled_after": 0,
        "threads": {
            "all": m.threads,
            "online": fact(m.threads, "sysconf"),
            "affinity": fact(m.threads, "sched_getaffinity"),
            "cgroup_quota": fact(None, "no limit in /sys/fs/cgroup/cpu.max"),
            "omp_proc_bind": "close",
            "omp_places": "cores",
        },
        "machine": {
            "cpu_model": fact(m.cpu, "/proc/cpuinfo"),
            "isa": m.isa,
            "isas": isas,
            "sockets": fact(1, "hwloc"),
            "cores": fact(m.threads, "hwloc"),
            "smt_threads_per_core": fact(1, "hwloc"),
            "last_level_cache_bytes": fact(m.llc, "hwloc"),
            "l2_cache_bytes": fact(2 * 2**20, "hwloc"),
            "memory_total_bytes": fact(64 * 2**30, "/proc/meminfo MemTotal"),
            "memory_available_bytes": fact(60 * 2**30, "/proc/meminfo MemAvailable"),
            "page_bytes": fact(4096, "sysconf"),
            "thp_mode": fact("madvise", "/sys/kernel/mm/transparent_hugepage/enabled"),
            "arena_bytes": fact(2 * 2**30, "chosen"),
            "arena_huge_bytes": fact(2 * 2**30, "/proc/self/smaps"),
            "numa_nodes": fact(1, "hwloc"),
            "hypervisor": fact(None, "no hypervisor flag in /proc/cpuinfo"),
            "governor": fact(None, "no cpufreq in /sys"),
            "kernel": fact("6.1.0", "uname"),
        },
        "build": {
            "commit": "0" * 40,
            "dirty": False,
            "build_type": "Release",
            "compiler": "GNU 12.2.0",
            "flags": "-O3",
            "isa_flags": {m.isa: "-O3 -mavx512f"},
            "libraries": {"xsimd": "8.1.0", "onednn": "3.2.0"},
        },
        "rules": {"bytes": "unique cache bytes that must be read"},
    }


MACHINES = (
    Machine("synthetic-server-8c", "Synthetic server CPU", "avx512", 8, 14.0, 62.0, 90.0, 95.0, 32 * 2**20, 1),
    Machine("synthetic-laptop-4c", "Synthetic laptop CPU", "avx2", 4, 22.0, 38.0, 70.0, 80.0, 12 * 2**20, 2),
    Machine("synthetic-arm-64c", "Synthetic Arm server CPU", "neon", 64, 18.0, 260.0, 60.0, 45.0, 64 * 2**20, 3),
    Machine("synthetic-desktop-16c", "Synthetic desktop CPU", "avx512", 16, 30.0, 68.0, 130.0, 140.0, 96 * 2**20, 4),
    Machine("synthetic-vm-2c", "Synthetic small VM", "avx512", 2, 12.0, 20.0, 80.0, 90.0, 200 * 2**20, 5),
)
