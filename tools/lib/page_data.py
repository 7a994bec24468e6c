"""What the page carries of the result files: columns instead of objects, shared strings, three or four digits a number.

A column is one string: its values in a row, nothing for null, "value*count" for the same value many times.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from headline import headlines
from rows import Ratio, ResultFile, Row
from sweep_table import heading, mode_words, roofs_passed

_TEXT = ("kernel", "storage", "cache", "threads", "status", "reason", "isa", "implementation")
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


def packed(values: list[Any]) -> str:
    """The column as page/data.js reads it."""
    words: list[str] = []
    for value, run in itertools.groupby("" if v is None else str(v) for v in values):
        word, count = value.removeprefix("0") if value.startswith("0.") else value, sum(1 for _ in run)
        many = f"{word}*{count}"
        words += [many] if len(many) < count * (len(word) + 1) - 1 else [word] * count
    return ",".join(words)


class Strings:
    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def of(self, text: Any) -> int | None:
        return None if text is None else self.index.setdefault(str(text), len(self.index))


def _three(ratio: Ratio | None, name: str) -> dict[str, Any]:
    return {
        name: short(ratio.median, 3) if ratio else None,
        f"{name}_low": short(ratio.low, 3) if ratio else None,
        f"{name}_high": short(ratio.high, 3) if ratio else None,
    }


def _numbers(row: Row) -> dict[str, Any]:
    spread = row.spread
    return {
        "T": row.get("T"),
        "chunk": row.shape["n"],
        "bytes": row.get("bytes"),
        "token": row.get("token_bytes"),
        "replaced": row.get("replaced_token_bytes"),
        "flops": row.get("flops"),
        "n": spread.n if spread else None,
        "ns": short(row.ns) if row.measured else None,
        "roof": short(row.get("read_roof_gb_per_s")),
        "compute": short(row.get("compute_roof_gflops")),
        "read": short(row.get("read_fraction"), 3),
        "low": short(spread.low, 3) if spread else None,
        "high": short(spread.high, 3) if spread else None,
        "attain": short(row.get("attainable_fraction"), 3),
        **_three(row.ratio_to_kvroof, "ratio"),
        **_three(row.ratio(f"{row.get('storage')}/f32"), "half"),
        **_three(row.ratio("native/reproducible"), "native"),
        **_three(row.ratio("reconstruct/absorbed_step"), "trade"),
    }


def _tuple(result: ResultFile, row: Row) -> str:
    """The tuple's name, without its instruction set where that is the machine's own: machines share the string."""
    return str(row.raw["tuple"]).removesuffix(f"/isa:{result.isa}")


def _columns(result: ResultFile, strings: Strings) -> dict[str, str]:
    columns: dict[str, list[Any]] = {}
    for row in result.kernel_rows():
        if row.impl == "probe":
            continue  # what a probe read is the roof of the rows beside it
        values = {name: strings.of(row.raw.get(name)) for name in _TEXT} | _numbers(row)
        values["impl"] = strings.of("native" if row.native else row.impl)  # never one line with the reproducible rows
        values["tuple"] = strings.of(_tuple(result, row))
        values["variant"] = strings.of(", ".join(heading(row)[1:-1]))
        values["above"] = strings.of(", ".join(roofs_passed(row)) or None)
        values["mode"] = strings.of(", ".join(mode_words(row)) or None)
        values["shape"] = strings.of(row.shape.get("name"))
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
    return {name: packed(values) for name, values in columns.items()}


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
    for node in machine.get("numa_read_roofs", []):
        roof = f"{node['gb_per_s']:.3g} GB/s" if node["gb_per_s"] is not None else None
        why = f"; {node['gb_per_s_reason']}" if node.get("gb_per_s_reason") else ""
        source = f"{node['threads']} threads on its own CPUs and memory ({node['source']}){why}"
        facts.append([f"read roof of NUMA node {node['node']}", roof, source, False])
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
