"""Attention time of a model on a measured machine, from the rows of its result file alone.

time of one layer = bytes / (read roof x fraction of it). Both are read off the cold decode rows of the same storage and
threads: the roof over the bytes of one call, the fraction over the bytes and over the query group G (how much work a
byte brings). Between rows they are interpolated on logarithms; beyond them the last value stands, and the result says
so.
Cold, because between two calls of one layer all other layers go through the cache.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from errors import UserError
from headline import plain_decode
from memory import visible_rows
from models import Model
from rows import ResultFile, Row


class Curve:
    """A positive quantity over a positive one, linear between points on logarithms, constant beyond them."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        grouped: dict[float, list[float]] = {}
        for x, y in points:
            grouped.setdefault(x, []).append(y)
        self.x = sorted(grouped)
        self.y = [statistics.median(grouped[x]) for x in self.x]

    def __call__(self, x: float) -> float:
        if x <= self.x[0]:
            return self.y[0]
        if x >= self.x[-1]:
            return self.y[-1]
        right = bisect_left(self.x, x)
        x0, x1, y0, y1 = self.x[right - 1], self.x[right], self.y[right - 1], self.y[right]
        share = math.log(x / x0) / math.log(x1 / x0)
        return math.exp(math.log(y0) + share * (math.log(y1) - math.log(y0)))

    def covers(self, x: float) -> bool:
        return self.x[0] * 0.99 <= x <= self.x[-1] * 1.01


@dataclass(frozen=True)
class Call:
    """One call of the kernel."""

    ns: float
    bytes_ns: float  # the bytes at the read roof
    compute_ns: float  # the work at the compute roof
    measured: bool  # between rows that were measured, not beyond them


class Fit:
    def __init__(self, result: ResultFile, storage: str, threads: str, without: frozenset[int] = frozenset()) -> None:
        rows = [
            row
            for row in plain_decode(result)
            if row.raw["storage"] == storage
            and row.get("threads") == threads
            and row.get("T") not in without
            and row.get("read_fraction")
            and row.get("read_roof_gb_per_s")
        ]
        if not rows:
            have = sorted({f"{r.raw['storage']} with {r.get('threads')}" for r in plain_decode(result)})
            raise UserError(
                str(result.path),
                f"no cold decode rows of {storage} with threads {threads}",
                f"measured there: {', '.join(have) or 'none'}; choose --storage and --threads among them",
            )
        self.roof = Curve([(row.get("bytes"), row.get("read_roof_gb_per_s")) for row in rows])
        self.fractions = {
            group: Curve([(r.get("bytes"), r.get("read_fraction")) for r in rows if r.group == group])
            for group in sorted({row.group for row in rows})
        }
        compute = [(row.group, row.get("compute_roof_gflops")) for row in rows if row.get("compute_roof_gflops")]
        self.compute = Curve(compute) if compute else None

    def fraction(self, size: float, group: int) -> float:
        return Curve([(g, curve(size)) for g, curve in self.fractions.items()])(group)

    def call(self, size: float, flops: float, group: int) -> Call:
        roof = self.roof(size)
        compute_ns = flops / self.compute(group) if self.compute else 0.0
        # A kernel between two measured groups cannot beat either roof.
        ns = max(size / (roof * self.fraction(size, group)), compute_ns)
        groups = list(self.fractions)
        inside = groups[0] <= group <= groups[-1] and any(curve.covers(size) for curve in self.fractions.values())
        return Call(ns, size / roof, compute_ns, inside)


@dataclass(frozen=True)
class Step:
    """All layers of one new token of every sequence."""

    tokens: int
    ns: float
    bytes_ns: float
    compute_ns: float
    bytes: int
    measured: bool

    @property
    def bound(self) -> str:
        return "bytes" if self.bytes_ns >= self.compute_ns else "compute"


def step(fit: Fit, model: Model, storage: str, tokens: int, batch: int) -> Step:
    calls: list[tuple[int, Call]] = []
    total = 0
    for window, layers in model.layer_groups():
        rows = visible_rows(tokens, window) * batch
        size = rows * model.layer_row_bytes(storage)
        calls.append(
            (layers, fit.call(size, rows * model.query_heads * 2 * (model.key_dim + model.value_dim), model.group))
        )
        total += layers * size
    return Step(
        tokens,
        sum(n * c.ns for n, c in calls),
        sum(n * c.bytes_ns for n, c in calls),
        sum(n * c.compute_ns for n, c in calls),
        total,
        all(c.measured for _, c in calls),
    )


@dataclass(frozen=True)
class Checked:
    row: Row
    predicted_ns: float

    @property
    def error(self) -> float:
        return self.predicted_ns / self.row.ns - 1


def check(fit: Fit, rows: list[Row]) -> list[Checked]:
    """Predictions for measured rows, against the roof that was measured in turn with each of them. Through the row's
    own fraction: a median over pairs, which a busy neighbour moves less than the quotient of two medians."""
    checked = []
    for row in rows:
        if not row.measured or not row.get("read_fraction"):
            continue
        ns = row.ns * row.get("read_fraction") / fit.fraction(row.get("bytes"), row.group)
        checked.append(Checked(row, max(ns, row.get("flops") / row.get("compute_roof_gflops", math.inf))))
    return checked
