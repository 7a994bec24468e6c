"""The few figures of a result file that stand at the top of its page and in the README."""

from __future__ import annotations

import statistics
from typing import Any

from rows import ResultFile, Row
from sweep_table import best_onednn, own_rows, scalar


def plain_decode(result: ResultFile, cache: str = "cold") -> list[Row]:
    """Measured decode rows of one sequence over a whole contiguous cache."""
    return [
        row
        for row in own_rows(result)
        if row.measured
        and row.kernel == "decode"
        and row.get("cache") == cache
        and row.get("W") in ("all", None)
        and row.shape["B"] == 1
        and row.shape["n"] == 1
    ]


def flagship(result: ResultFile, threads: str) -> dict[str, Row]:
    """By storage: MHA (or the widest cache there is), cold, the longest context."""
    found = [row for row in plain_decode(result) if row.get("threads") == threads]
    wide = max((row.shape["Hkv"] for row in found), default=0)
    best: dict[str, Row] = {}
    for row in found:
        kept = best.get(row.raw["storage"])
        if row.shape["Hkv"] == wide and (kept is None or row.get("T") > kept.get("T")):
            best[row.raw["storage"]] = row
    return best


def _role(threads: str) -> str:
    return "1 thread" if threads == "1" else "all threads"


def _doubt(row: Row) -> str:
    return ", above its roof" if row.get("above_roof") else ", unstable" if row.status == "unstable" else ""


def headlines(result: ResultFile) -> list[dict[str, Any]]:
    """[{label, value, note}]: only what was measured."""
    tiles: list[dict[str, Any]] = []
    threads = "all" if any(row.get("threads") == "all" for row in plain_decode(result)) else "1"
    top = flagship(result, threads)
    for storage in ("f16", "bf16", "f32"):
        row = top.get(storage)
        if row is None or row.get("read_roof_gb_per_s") is None or row.get("read_fraction") is None:
            continue
        where = f"{row.shape['name']} {storage}, T = {row.get('T')}, cold{_doubt(row)}"
        tiles.append(
            {
                "label": "read roof",
                "value": f"{row.get('read_roof_gb_per_s'):.1f} GB/s",
                "note": f"memory, {_role(threads)}",
            }
        )
        tiles.append(
            {"label": "attention reaches", "value": f"{row.get('read_fraction'):.2f}", "note": f"of that roof; {where}"}
        )
        break
    narrow = next((top[s] for s in ("f16", "bf16") if s in top and top[s].ratio(f"{s}/f32")), None)
    if narrow is not None:
        ratio = narrow.ratio(f"{narrow.raw['storage']}/f32")
        assert ratio is not None
        tiles.append(
            {
                "label": "halving the cache",
                "value": f"{ratio.median:.2f}×",
                "note": f"the time: {narrow.raw['storage']} over f32{_doubt(narrow)}",
            }
        )
    long = [row for row in plain_decode(result) if row.get("T") >= 4096]
    for label, rival in (("oneDNN takes", best_onednn), ("scalar loops take", scalar)):
        ratios = [r.times_kvroof for r in (rival(result, row) for row in long) if r and r.times_kvroof]
        if ratios:
            middle = statistics.median(ratios)
            tiles.append(
                {
                    "label": label,
                    "value": f"{middle:.2f}×" if middle < 9.95 else f"{middle:.0f}×",
                    "note": f"our time; median of {len(ratios)} cold rows",
                }
            )
    return tiles
