"""Rows of two result files, joined by key: how times and roofs differ, and whether the one explains the other.

With roofs that explain everything, both machines reach the same fraction of what is attainable; the quotient of the two
fractions is what the roofs leave unexplained. Its interval comes from the quartiles of the pairs on both sides.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from errors import UserError
from rows import Ratio, ResultFile, Row
from sweep_table import roofs_passed

EXPLAINED, BETTER, WORSE, UNCLEAR = (
    "explained by the roofs",
    "better than they explain",
    "worse than they explain",
    "unclear",
)
VERDICTS = (EXPLAINED, BETTER, WORSE, UNCLEAR)


@dataclass(frozen=True)
class Pair:
    a: Row
    b: Row
    time_ratio: float  # b over a: above 1, b is slower
    read_roof_ratio: float | None  # b over a
    compute_roof_ratio: float | None
    fraction_a: float | None  # of attainable, or of the read roof where only that is known
    fraction_b: float | None
    low: float | None  # fraction b over fraction a
    high: float | None
    verdict: str
    same_bits: bool | None  # None: no hash to compare

    @property
    def wrong_roofs(self) -> list[str]:
        """Where a row lies above its roof, its fraction means little."""
        return [
            f"{side} above its {roof} roof"
            for side, row in (("A", self.a), ("B", self.b))
            for roof in roofs_passed(row)
        ]


@dataclass(frozen=True)
class Comparison:
    a: ResultFile
    b: ResultFile
    pairs: list[Pair]
    only_a: list[Row]
    only_b: list[Row]
    not_measured: list[tuple[Row, Row]]  # in both files, but without a time on one side or both
    warnings: list[str]

    @property
    def different_bits(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.same_bits is False]

    def families(self) -> dict[str, list[Pair]]:
        """kernel and storage, as in "decode f16" or "decode bf16 native"; roofs by their kernel alone."""
        result: dict[str, list[Pair]] = {}
        for pair in self.pairs:
            words = [
                pair.a.kernel,
                pair.a.get("storage") or "",
                "native" if pair.a.native else "",
                pair.a.impl if pair.a.impl not in ("kvroof", "probe") else "",
            ]
            result.setdefault(" ".join(word for word in words if word), []).append(pair)
        return result


def _quotient(b: float | None, a: float | None) -> float | None:
    return b / a if a and b else None


def _fraction(a: Row, b: Row) -> tuple[Ratio | None, Ratio | None]:
    """The fraction both rows can be judged by, with its quartiles."""
    for value, spread in (("attainable_fraction", "attainable_spread"), ("read_fraction", "spread")):
        if a.get(value) is not None and b.get(value) is not None:
            first, second = (
                Ratio.of(r.raw.get(spread)) or Ratio(r.raw[value], r.raw[value], r.raw[value], 1) for r in (a, b)
            )
            return first, second
    return None, None


def verdict_of(quotient: float, low: float, high: float, tolerance: float) -> str:
    if abs(quotient - 1) <= tolerance:
        return EXPLAINED
    if low <= 1 <= high:
        return UNCLEAR
    return BETTER if quotient > 1 else WORSE


def _pair(a: Row, b: Row, tolerance: float, same_definition: bool) -> Pair:
    fraction_a, fraction_b = _fraction(a, b)
    low = high = None
    verdict = UNCLEAR
    if fraction_a and fraction_b:
        low, high = fraction_b.low / fraction_a.high, fraction_b.high / fraction_a.low
        verdict = verdict_of(fraction_b.median / fraction_a.median, low, high, tolerance)
        if "unstable" in (a.status, b.status) and verdict != EXPLAINED:
            verdict = UNCLEAR
    hashes = (a.get("output_hash"), b.get("output_hash"))
    comparable = same_definition and None not in hashes and a.get("mode") == b.get("mode") == "reproducible"
    return Pair(
        a,
        b,
        b.ns / a.ns,
        _quotient(b.get("read_roof_gb_per_s"), a.get("read_roof_gb_per_s")),
        _quotient(b.get("compute_roof_gflops"), a.get("compute_roof_gflops")),
        fraction_a.median if fraction_a else None,
        fraction_b.median if fraction_b else None,
        low,
        high,
        verdict,
        hashes[0] == hashes[1] if comparable else None,
    )


def _warnings(a: ResultFile, b: ResultFile) -> list[str]:
    found = []
    for what, value in (
        ("schema version", lambda r: r.context["schema"]["version"]),
        ("numerics definition", lambda r: r.context["definition"]),
        ("preset", lambda r: r.context["preset"]),
    ):
        if value(a) != value(b):
            found.append(
                f"different {what}: {value(a)} and {value(b)}"
                + ("; output hashes are not compared" if what == "numerics definition" else "")
            )
    for result in (a, b):
        if not result.context["complete"]:
            found.append(f"{result.name} is not a complete sweep")
    modes = sorted(
        {
            f"{a.by_key[key].get('mode')} and {b.by_key[key].get('mode')}"
            for key in a.by_key.keys() & b.by_key.keys()
            if a.by_key[key].get("mode") != b.by_key[key].get("mode")
        }
    )
    return found + [f"different mode on rows of one key: {mode}" for mode in modes]


def compare(a: ResultFile, b: ResultFile, tolerance: float = 0.05) -> Comparison:
    same_definition = a.context["definition"] == b.context["definition"]
    pairs, missing = [], []
    for key, row in a.by_key.items():
        other = b.by_key.get(key)
        if other is None or (row.impl == "probe" and not row.is_roof):
            continue
        if row.measured and other.measured:
            pairs.append(_pair(row, other, tolerance, same_definition))
        else:
            missing.append((row, other))
    if not pairs:
        raise UserError(
            f"{a.path} and {b.path}",
            "no row is measured in both",
            "compare sweeps of the same kernels (rows are joined by their names without the isa)",
        )
    return Comparison(
        a,
        b,
        pairs,
        [r for k, r in a.by_key.items() if k not in b.by_key],
        [r for k, r in b.by_key.items() if k not in a.by_key],
        missing,
        _warnings(a, b),
    )


def median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
