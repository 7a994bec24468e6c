"""Made-up result files for the tests of the tools: right in form, invented in every number, never to be committed.

python3 tests/cli/synthetic.py FOLDER [MACHINES] [--full]     writes such files, to look at pages with
"""

from __future__ import annotations

import functools
import json
import math
import random
import re
import statistics
import sys
from pathlib import Path

from synthetic_machine import MACHINES, Json, Machine, context

SIZES = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}
SHAPES = {
    "MHA": (32, 32), "GQA": (32, 8), "MQA": (32, 1), "GQA8": (32, 4), "MHA128": (128, 128), "GQA128": (128, 8),
    "GQA40": (40, 8), "GQA64": (64, 8)
}  # fmt: skip
QUICK_SHAPES = ("MHA", "GQA", "MQA")
FULL_SHAPES = (*QUICK_SHAPES, "GQA8", "MHA128", "GQA128")
CHECK_SHAPES, CHECK_LENGTHS = (*QUICK_SHAPES, "GQA40", "GQA64"), (1536, 6144, 24576)
DIM = {"GQA64": 64}  # of a head, where it is not 128
MLA_HEADS, LATENT, ROPE, HEAD = 128, 512, 64, 128
CHUNKS = (1, 4, 16, 64, 256)


class Sweep:
    def __init__(self, machine: Machine, preset: str = "quick") -> None:
        self.m, self.preset, self.random, self.rows = machine, preset, random.Random(machine.seed), []

    def roof(self, size: int, cache: str, threads: str) -> float:
        m, n = self.m, 1 if threads == "1" else self.m.threads
        cold, warm = (m.cold_1 if n == 1 else m.cold_all), m.warm_1 * n**0.9
        if cache == "cold":
            return cold
        inside = 1 / (1 + (size / m.llc) ** 3)
        return cold + (warm - cold) * inside

    def samples(self, centre: float, noise: float, count: int = 9) -> list[float]:
        return [centre * math.exp(self.random.gauss(0, noise)) for _ in range(count)]

    @staticmethod
    def ratio(values: list[float]) -> Json:
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return {"median": median, "low": low, "high": high, "n": len(values)}

    def row(
        self,
        shape: str,
        T: int,
        storage: str,
        cache: str,
        threads: str,
        impl: str,
        efficiency: float,
        base: Json | None,
        *,
        kernel: str = "decode",
        order: str = "head",
        n: int = 1,
        native: bool = False,
        window: int | None = None,
        batch: int = 1,
    ) -> Json:
        m = self.m
        count = 1 if threads == "1" else m.threads
        if not kernel.startswith("mla_"):
            hq, hkv = SHAPES[shape]
            dk = dv = DIM.get(shape, 128)
            visible = batch * (window or T)
            size = 2 * hkv * visible * dk * SIZES[storage] + (2 * hkv * visible * 4 if storage == "int8" else 0)
            flops = n * hq * visible * 4 * dk
        else:
            hq, hkv = MLA_HEADS if shape == "MLA" else 16, 1
            dk, dv = (LATENT + ROPE, LATENT) if kernel == "mla_absorbed" else (HEAD + ROPE, HEAD)
            size, flops = mla_counts(kernel, hq, T, n, storage)
        isa, mode = (f"{m.isa}_bf16", "native") if native else (m.isa, "reproducible")
        roof, compute = self.roof(size, cache, threads), m.flops_1 * count * (4 if native else 1)
        attainable = min(compute, flops / size * roof)
        overhead = 2000.0 * (1 + math.log2(count))
        wait = count * largest_part(hq, hkv * batch, window or T, count)  # for the thread that got the most
        probe = self.samples(size / roof, 0.03)
        time = [p / efficiency * math.exp(self.random.gauss(0, 0.02)) for p in probe]
        if kernel == "mla_absorbed_step":  # first one, then the other: the attention, and the weights around it
            inner, work = mla_counts("mla_absorbed", hq, T, n, storage)
            least = work / compute / m.arithmetic
            time = [max(t * inner / size, least) * wait + t * (size - inner) / size + overhead for t in time]
        else:
            time = [max(t, flops / compute / m.arithmetic) * wait + overhead for t in time]
        real = statistics.median(time)
        fractions = [p / t for p, t in zip(probe, time)]
        spread = self.ratio(fractions)
        attain = [flops / t / min(compute, flops / p) for p, t in zip(probe, time)]

        def name_of(implementation: str, own_mode: str, own_isa: str) -> str:
            mode_axis = f"/mode:{own_mode}" if implementation == "kvroof" else ""
            return (
                f"{kernel}/shape:{shape}/layout:contiguous/order:{order}/storage:{storage}/Hq:{hq}/Hkv:{hkv}"
                f"/Dk:{dk}/Dv:{dv}/B:{batch}/n:{n}/T:{T}/W:{window or 'all'}/cache:{cache}"
                f"/impl:{implementation}{mode_axis}/threads:{threads}/isa:{own_isa}"
            )

        name, tuple_name = name_of(impl, mode, isa), name_of("kvroof", "reproducible", m.isa)
        row: Json = {
            "name": name,
            "run_name": name,
            "key": name.removesuffix(f"/isa:{isa}"),
            "tuple": tuple_name,
            "run_type": "iteration",
            "iterations": 9,
            "real_time": real,
            "cpu_time": real,
            "time_unit": "ns",
            "kernel": kernel,
            "impl": impl,
            "storage": storage,
            "key_storage": storage,
            "value_storage": storage,
            "shape": {"name": shape, "Hq": hq, "Hkv": hkv, "Dk": dk, "Dv": dv, "B": batch, "n": n},
            "T": T,
            "W": window or "all",
            "layout": "contiguous",
            "order": order,
            "cache": cache,
            "mode": mode if impl == "kvroof" else None,
            "threads": threads,
            "thread_count": count,
            "isa": isa,
            "bytes": size,
            "flops": flops,
            "intensity": flops / size,
            "gb_per_s": size / real,
            "gflops": flops / real,
            "read_roof_gb_per_s": roof,
            "compute_roof_gflops": compute,
            "attainable_gflops": attainable,
            "read_fraction": spread["median"],
            "attainable_fraction": statistics.median(attain),
            "spread": spread,
            "attainable_spread": self.ratio(attain),
            "time_ratio_to_kvroof": None,
            "output_hash": None,
            "checked": {"max_error": 1e-6, "bound": 1e-4, "rule": "oracle"},
            "implementation": None,
            "status": "ok",
            "reason": None,
            "above_roof": False,
            "samples": {"time_ns": time, "probe_ns": probe, "read_fraction": fractions, "attainable_fraction": attain},
        }
        if kernel.startswith("mla_") and impl == "kvroof":
            row |= {"token_bytes": latent_row_bytes(storage), "replaced_token_bytes": 2 * hq * HEAD * SIZES[storage]}
        if impl == "kvroof":
            row["output_hash"] = format(hash_of(re.sub("/(cache|threads):[^/]*", "", row["key"])), "016x")
        elif base is not None:
            ratios = [a / b for a, b in zip(time, base["samples"]["time_ns"])]
            row["time_ratio_to_kvroof"] = self.ratio(ratios)
            row["samples"]["time_ratio_to_kvroof"] = ratios
        self.rows.append(row)
        return row

    def roofs(self) -> None:
        m = self.m
        for threads, count in (("1", 1), ("all", m.threads)):
            for size in [2**k for k in range(16, 31, 2)]:
                cache = "cold" if size > 2 * m.llc else "warm"
                self._roof(
                    f"roof_read/bytes:{size}/cache:{cache}/threads:{threads}/isa:{m.isa}",
                    "roof_read",
                    threads,
                    count,
                    size,
                    0,
                    size / self.roof(size, cache, threads),
                    cache=cache,
                    form="streams4",
                )
            for op in ("fma_f32", "f16_fma_G4"):
                self._roof(
                    f"roof_compute/op:{op}/threads:{threads}/isa:{m.isa}",
                    "roof_compute",
                    threads,
                    count,
                    0,
                    10**9,
                    1e9 / (m.flops_1 * count * (1 if op == "fma_f32" else 0.7)),
                    op=op,
                )

    def _roof(
        self, name: str, kernel: str, threads: str, count: int, size: int, flops: int, ns: float, **more: Any
    ) -> None:
        time = self.samples(ns, 0.02)
        real = statistics.median(time)
        row: Json = {
            "name": name,
            "run_name": name,
            "tuple": name,
            "key": name.removesuffix(f"/isa:{self.m.isa}"),
            "run_type": "iteration",
            "iterations": 9,
            "real_time": real,
            "cpu_time": real,
            "time_unit": "ns",
            "kernel": kernel,
            "impl": "probe",
            "status": "ok",
            "reason": None,
            "threads": threads,
            "thread_count": count,
            "isa": self.m.isa,
            "cache": None,
            "bytes": size or None,
            "flops": flops or None,
            "above_roof": False,
            "gb_per_s": size / real if size else None,
            "gflops": flops / real if flops else None,
            "spread": self.ratio([ns / t for t in time]),
            "samples": {"time_ns": time},
        }
        self.rows.append(row | more)

    def value(self) -> Json:
        self.roofs()
        full = self.preset == "full"
        contexts = [2**k for k in range(7, 18)] if full else [512, 4096, 32768]
        storages = ("f32", "f16", "bf16", "int8") if full else ("f32", "f16", "bf16")
        if self.preset == "check":
            contexts, storages = list(CHECK_LENGTHS), ("f32", "f16", "bf16", "int8")
        for shape in {"full": FULL_SHAPES, "check": CHECK_SHAPES}.get(self.preset, QUICK_SHAPES):
            for T in contexts:
                for cache in ("cold", "warm"):
                    for threads in ("1", "all"):
                        self._tuple(shape, T, cache, threads, storages)
        if full:
            for T in contexts:
                for threads in ("1", "all"):
                    self._tuple("MHA", T, "cold", threads, storages, "token")
        if self.preset == "check":
            for threads in ("1", "all"):
                for storage in storages:
                    more = {"kernel": "window", "window": 1600}
                    self.row("GQA", 33600, storage, "cold", threads, "kvroof", 0.9, None, **more)
                    self.row("GQA", 1536, storage, "cold", threads, "kvroof", 0.9, None, kernel="batch", batch=4)
        return {"context": context(self.m, self.preset), "benchmarks": self.rows}

    def _tuple(
        self, shape: str, T: int, cache: str, threads: str, storages: tuple[str, ...], order: str = "head"
    ) -> None:
        base: Json | None = None
        for storage in storages:
            good = {"f32": 0.97, "f16": 0.93, "bf16": 0.95, "int8": 0.82}[storage] * (0.9 if shape == "MQA" else 1)
            own = self.row(shape, T, storage, cache, threads, "kvroof", good, None, order=order)
            base = base or own
            if own is not base:
                self.pair(own, base, f"{storage}/{base['storage']}")
            if storage == "bf16" and self.preset != "quick":
                native = self.row(shape, T, storage, cache, threads, "kvroof", good, None, order=order, native=True)
                self.pair(native, own, "native/reproducible")
            if storage == "int8":
                continue
            for impl, worse in (("onednn", 0.75), ("onednn_graph", 0.68), ("scalar", 0.08), ("scalar_vectorized", 0.2)):
                share = good * worse * (0.6 if shape == "MQA" else 1)
                self.row(shape, T, storage, cache, threads, impl, share, own, order=order)

    def pair(self, row: Json, to: Json, what: str) -> None:
        ratios = [a / b for a, b in zip(row["samples"]["time_ns"], to["samples"]["time_ns"])]
        row.setdefault("time_ratios", []).append({"to": to["name"], "what": what} | self.ratio(ratios))

    def latent(self) -> None:
        """Rows of latent attention: both forms, chunks for the trade between them, native mode for bf16."""
        for threads in ("1", "all"):
            for storage in ("f32", "bf16") if self.preset == "quick" else ("f32", "f16", "bf16", "int8"):
                for T in {"full": [2**k for k in range(7, 18)], "check": CHECK_LENGTHS}.get(self.preset, (512, 4096)):
                    if self.preset == "check" or T in (512, 4096, 32768):
                        for kernel in ("mla_absorbed", "mla_absorbed_step"):
                            self.row("MLA16", T, storage, "cold", threads, "kvroof", 0.9, None, kernel=kernel)
                    more = {"kernel": "mla_absorbed"}
                    own = self.row("MLA", T, storage, "cold", threads, "kvroof", 0.9, None, **more)
                    rival = self.row("MLA", T, storage, "cold", threads, "onednn", 0.7, own, **more)
                    if storage == "bf16":
                        native = self.row("MLA", T, storage, "cold", threads, "kvroof", 0.8, None, native=True, **more)
                        self.pair(native, own, "native/reproducible")
                        self.pair(rival, native, "onednn/native")
                    for n in CHUNKS if T == 4096 else (1,):
                        step, whole = (
                            self.row("MLA", T, storage, "cold", threads, "kvroof", 0.9, None, kernel=kernel, n=n)
                            for kernel in ("mla_absorbed_step", "mla_reconstruct")
                        )
                        if storage == "bf16" and n == 1:
                            more = {"kernel": "mla_absorbed_step", "native": True}
                            self.row("MLA", T, storage, "cold", threads, "kvroof", 0.8, None, **more)
                        self.pair(whole, step, "reconstruct/absorbed_step")


@functools.cache
def largest_part(query_heads: int, kv_heads: int, T: int, threads: int) -> float:
    """The largest share that one thread gets: segments of 512 rows in a line, each to the thread in whose share it
    begins; the queries of a head in halves where there are fewer segments than threads."""
    segments = [min(512, T - begin) for begin in range(0, T, 512)]
    tiles, tile = 1, query_heads // kv_heads
    while kv_heads * tiles * len(segments) < threads and tile >= 32:
        tiles, tile = 2 * tiles, tile // 2
    line = segments * kv_heads * tiles
    total, begin, part, parts = sum(line), 0, 0, [0] * threads
    for rows in line:
        while begin >= total * (part + 1) // threads:
            part += 1
        parts[part] += rows
        begin += rows
    return max(parts) / total


def latent_row_bytes(storage: str) -> int:
    if storage == "int8":
        return LATENT + 4 * (LATENT // 128) + 2 * ROPE
    return (LATENT + ROPE) * SIZES[storage]


def mla_counts(kernel: str, heads: int, T: int, n: int, storage: str) -> tuple[int, int]:
    """Bytes and flops of a call: n queries over T rows."""
    rows, weights = T * latent_row_bytes(storage), 2 * heads * HEAD * LATENT
    absorbed = 2 * n * heads * T * (2 * LATENT + ROPE)
    if kernel == "mla_absorbed":
        return rows, absorbed
    if kernel == "mla_absorbed_step":
        return rows + 4 * weights, absorbed + 2 * n * weights
    return rows, 2 * T * weights + 2 * n * heads * T * (2 * HEAD + ROPE)


def hash_of(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def scale(row: Json, time_factor: float, roof_factor: float = 1.0) -> None:
    """The row as if it took `time_factor` as long and its read roof were `roof_factor` as high, in all its fields."""
    fraction = 1 / (time_factor * roof_factor)
    samples = row["samples"]
    samples["time_ns"] = [t * time_factor for t in samples["time_ns"]]
    samples["probe_ns"] = [t / roof_factor for t in samples["probe_ns"]]
    row["real_time"] = row["cpu_time"] = row["real_time"] * time_factor
    for rate in ("gb_per_s", "gflops"):
        row[rate] /= time_factor
    row["read_roof_gb_per_s"] *= roof_factor
    for name, spread in (("read_fraction", "spread"), ("attainable_fraction", "attainable_spread")):
        samples[name] = [f * fraction for f in samples[name]]
        row[name] *= fraction
        row[spread] = {k: v if k == "n" else v * fraction for k, v in row[spread].items()}


def not_measured(row: Json, reason: str = "needs 12 GiB") -> Json:
    """`row` as one that did not run."""
    gone = ("real_time", "cpu_time", "time_unit", "time_ratios")
    row = {k: v for k, v in row.items() if k not in gone}
    nulls = (
        "gb_per_s",
        "gflops",
        "read_roof_gb_per_s",
        "compute_roof_gflops",
        "attainable_gflops",
        "read_fraction",
        "attainable_fraction",
        "spread",
        "attainable_spread",
        "samples",
        "output_hash",
        "checked",
        "time_ratio_to_kvroof",
    )
    return (
        row
        | dict.fromkeys(nulls)
        | {
            "status": "not_measured",
            "reason": reason,
            "error_occurred": True,
            "error_message": f"not measured: {reason}",
            "iterations": 0,
        }
    )


def result(machine: Machine = Machine(), preset: str = "quick", latent: bool = False) -> Json:
    """`latent`: with the rows of latent attention, which the tests of plain decode can do without."""
    sweep = Sweep(machine, preset)
    value = sweep.value()
    if latent:
        sweep.latent()
    return value


def main(arguments: list[str]) -> None:
    full = "--full" in arguments
    words = [a for a in arguments if a != "--full"]
    folder, count = Path(words[0]), int(words[1]) if len(words) > 1 else 1
    folder.mkdir(parents=True, exist_ok=True)
    for machine in MACHINES[:count]:
        value = result(machine, "full" if full else "quick", latent=True)
        (folder / f"{machine.name}.json").write_text(json.dumps(value, indent=1), encoding="utf-8")
        print(machine.name, len(value["benchmarks"]), "rows")


if __name__ == "__main__":
    main(sys.argv[1:])
