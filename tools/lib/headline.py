"""The few figures of a result file that stand at the top of its page and in the README."""

from __future__ import annotations

import statistics
from typing import Any

from rows import ResultFile, Row
from sweep_table import best_onednn, own_rows, scalar, significant


def plain_decode(result: ResultFile, cache: str = "cold", native: bool = False) -> list[Row]:
    """Measured decode rows of one sequence over a whole contiguous cache, each head's rows together, of one mode."""
    return [
        row
        for row in own_rows(result)
        if row.measured
        and row.kernel == "decode"
        and row.get("cache") == cache
        and row.get("W") in ("all", None)
        and row.get("order") in ("head", None)
        and row.native == native
        and row.shape["B"] == 1
        and row.shape["n"] == 1
    ]


def flagship(result: ResultFile, threads: str) -> dict[str, Row]:
    """By storage: MHA 32/32x128 (or else the widest cache there is), cold, the longest context that is in no doubt."""
    found = [row for row in plain_decode(result) if row.get("threads") == threads]
    wide = max((row.shape["Hkv"] for row in found), default=0)
    found = [row for row in found if _is_mha(row)] or [row for row in found if row.shape["Hkv"] == wide]
    best: dict[str, Row] = {}
    for row in sorted(found, key=lambda row: (not _doubt(row), row.get("T"))):
        best[row.raw["storage"]] = row  # the last one stays
    return best


def _is_mha(row: Row) -> bool:
    shape = row.shape
    return shape["name"] == "MHA" and [shape[axis] for axis in ("Hq", "Hkv", "Dk", "Dv")] == [32, 32, 128, 128]


def memory_roof(result: ResultFile, threads: str) -> Row | None:
    """The read roof that the page's roofline draws as its memory line: the largest cold read."""
    found = [
        row
        for row in result.rows
        if row.kernel == "roof_read"
        and row.measured
        and row.get("gb_per_s")
        and row.get("cache") == "cold"
        and row.get("threads") == threads
    ]
    return max(found, key=lambda row: row.get("bytes"), default=None)


def _role(threads: str) -> str:
    return "1 thread" if threads == "1" else "all threads"


def _doubt(row: Row) -> str:
    return ", above its roof" if row.get("above_roof") else ", unstable" if row.status == "unstable" else ""


def headlines(result: ResultFile) -> list[dict[str, Any]]:
    """[{label, value, note}]: only what was measured."""
    tiles: list[dict[str, Any]] = []
    threads = "all" if any(row.get("threads") == "all" for row in plain_decode(result)) else "1"
    top = flagship(result, threads)
    roof = memory_roof(result, threads)
    if roof is not None:
        tiles.append(
            {
                "label": "read roof",
                "value": f"{significant(roof.get('gb_per_s'))} GB/s",
                "note": f"memory, {_role(threads)}{_doubt(roof)}",
            }
        )
    # Sorting keeps the order among those that are equally (un)doubtful.
    order = sorted((s for s in ("f16", "bf16", "f32") if s in top), key=lambda s: bool(_doubt(top[s])))
    row = next((top[s] for s in order if top[s].get("read_fraction") is not None), None)
    if row is not None:
        where = f"{row.shape['name']} {row.raw['storage']}, T = {row.get('T')}, cold{_doubt(row)}"
        tiles.append(
            {
                "label": "attention reaches",
                "value": f"{row.get('read_fraction'):.2f}",
                "note": f"of the read roof measured in turn with it; {where}",
            }
        )
    narrow = next((top[s] for s in order if s != "f32" and top[s].ratio(f"{s}/f32")), None)
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
        ratios = [ratio.median for ratio in (rival(result, row) for row in long) if ratio]
        if ratios:
            middle = statistics.median(ratios)
            tiles.append(
                {
                    "label": label,
                    "value": f"{middle:.2f}×" if middle < 9.95 else f"{middle:.0f}×",
                    "note": f"our time; median of {len(ratios)} cold rows",
                }
            )
    found = [(row, row.ratio("native/reproducible")) for row in own_rows(result) if row.native and row.measured]
    modes = [
        (row, ratio.median) for row, ratio in found if ratio and row.get("cache") == "cold" and row.get("T") >= 4096
    ]
    if modes:
        best, least = min(modes, key=lambda pair: pair[1])
        tiles.append(
            {
                "label": "native mode takes",
                "value": f"{statistics.median(ratio for _, ratio in modes):.2f}×",
                "note": f"the time of reproducible mode; median of {len(modes)} cold rows, least {least:.2f} on "
                f"{best.kernel} {best.shape['name']} {best.raw['storage']}",
            }
        )
    return tiles
