"""What the page carries of the result files: columns instead of objects, shared strings, four digits a number."""

from __future__ import annotations

import json
from typing import Any

from headline import headlines
from rows import ResultFile, Row
from sweep_table import above_compute_roof, heading

_TEXT = ("kernel", "storage", "cache", "threads", "impl", "tuple", "status", "reason", "isa", "implementation")
_FACTS = (
    ("CPU", "cpu_model"),
    ("architecture", "architecture"),
    ("sockets", "sockets"),
    ("cores", "cores"),
    ("threads per core", "smt_threads_per_core"),
    ("L1 data cache", "l1d_cache_bytes"),
    ("L2 cache", "l2_cache_bytes"),
    ("last-level cache", "last_level_cache_bytes"),
    ("memory", "memory_total_bytes"),
    ("memory free", "memory_available_bytes"),
    ("NUMA nodes", "numa_nodes"),
    ("page size", "page_bytes"),
    ("huge pages", "thp_mode"),
    ("arena", "arena_bytes"),
    ("arena in huge pages", "arena_huge_bytes"),
    ("hypervisor", "hypervisor"),
    ("governor", "governor"),
    ("turbo", "turbo"),
    ("kernel", "kernel"),
)


def short(value: float | None, digits: int = 4) -> float | int | None:
    if value is None:
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


class Strings:
    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def of(self, text: Any) -> int | None:
        return None if text is None else self.index.setdefault(str(text), len(self.index))


def _numbers(row: Row) -> dict[str, Any]:
    spread, rival = row.spread, row.ratio_to_kvroof
    narrower = next((r for r in row.get("time_ratios", []) if r["what"] == f"{row.get('storage')}/f32"), None)
    return {
        "T": row.get("T"),
        "bytes": row.get("bytes"),
        "flops": row.get("flops"),
        "n": spread.n if spread else None,
        "ns": short(row.ns) if row.measured else None,
        "gb": short(row.get("gb_per_s")),
        "gflops": short(row.get("gflops")),
        "roof": short(row.get("read_roof_gb_per_s")),
        "compute": short(row.get("compute_roof_gflops")),
        "read": short(row.get("read_fraction")),
        "low": short(spread.low) if spread else None,
        "high": short(spread.high) if spread else None,
        "attain": short(row.get("attainable_fraction")),
        "ratio": short(rival.median) if rival else None,
        "ratio_low": short(rival.low) if rival else None,
        "ratio_high": short(rival.high) if rival else None,
        "half": short(narrower["median"]) if narrower else None,
        "half_low": short(narrower["low"]) if narrower else None,
        "half_high": short(narrower["high"]) if narrower else None,
        "above": 1 if row.get("above_roof") or above_compute_roof(row) else 0,
    }


def _columns(result: ResultFile, strings: Strings) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for row in result.kernel_rows():
        if row.impl == "probe":
            continue  # what a probe read is the roof of the rows beside it
        values = {name: strings.of(row.raw.get(name)) for name in _TEXT} | _numbers(row)
        values["variant"] = strings.of(", ".join(heading(row)[1:-1]))
        values["shape"] = strings.of(row.shape.get("name"))
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
    return columns


def _roofs(result: ResultFile) -> list[dict[str, Any]]:
    return [
        {
            "kind": row.kernel,
            "threads": row.get("threads"),
            "cache": row.get("cache"),
            "op": row.get("op"),
            "bytes": row.get("bytes"),
            "gb": short(row.get("gb_per_s")),
            "gflops": short(row.get("gflops")),
            "isa": row.get("isa"),
        }
        for row in result.rows
        if row.is_roof and row.measured
    ]


def _facts(result: ResultFile) -> list[list[Any]]:
    """[label, value or null, source], sizes as numbers with their unit left to the page."""
    machine, context = result.context["machine"], result.context
    facts = [
        [label, machine[name]["value"], machine[name]["source"], name.endswith("_bytes")]
        for label, name in _FACTS
        if name in machine
    ]
    threads = context["threads"]
    facts.insert(4, ["threads used", threads["all"], "min(affinity mask, cgroup quota), rounded down", False])
    for label, name in (("threads online", "online"), ("affinity mask", "affinity"), ("cgroup quota", "cgroup_quota")):
        facts.append([label, threads[name]["value"], threads[name]["source"], False])
    build = context["build"]
    isas = ", ".join(i["name"] for i in machine["isas"] if i["supported"])
    mhz = [str(round(context[name])) for name in ("mhz_before", "mhz_after") if context[name] is not None]
    throttled = (context["throttled_before"], context["throttled_after"])
    facts += [
        ["instruction sets", f"{machine['isa']} (of {isas})", "CPUID or HWCAP; KVROOF_ISA overrides", False],
        [
            "clock, before and after",
            " and ".join(mhz) + " MHz" if mhz else None,
            "timed chain of dependent additions",
            False,
        ],
        [
            "throttled periods",
            None if None in throttled else throttled[1] - throttled[0],
            "nr_throttled of the cgroup, during the sweep",
            False,
        ],
        ["compiler", build["compiler"], "the build", False],
        ["flags", f"{build['flags']} {build['isa_flags'].get(machine['isa'], '')}".strip(), "the build", False],
        [
            "libraries",
            ", ".join(f"{k} {v or 'not built in'}" for k, v in build["libraries"].items()),
            "the build",
            False,
        ],
        ["commit", (build["commit"] or "unknown")[:12] + (" + changes" if build["dirty"] else ""), "git", False],
        ["numerics definition", context["definition"], "kernels/kernels.hpp", False],
        ["measured", str(context["date"]).replace("T", " ").replace("Z", " UTC"), "clock", False],
    ]
    return facts


def page_data(results: list[ResultFile]) -> str:
    strings = Strings()
    machines = [
        {
            "name": result.name,
            "cpu": result.cpu,
            "isa": result.isa,
            "threads": result.all_threads,
            "preset": result.context["preset"],
            "complete": result.context["complete"],
            "date": str(result.context["date"])[:10],
            "headlines": headlines(result),
            "facts": _facts(result),
            "roofs": _roofs(result),
            "rows": _columns(result, strings),
        }
        for result in results
    ]
    value = {"machines": machines, "strings": list(strings.index)}
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")  # nothing in it can end or open an element
