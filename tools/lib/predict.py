"""Attention time of a model on a measured machine, from the rows of its result file alone.

A call takes the time that its lower roof allows, over the fraction of it that the kernel reaches:

    time = max(bytes / read roof, work / compute roof) / attainable fraction

All three are read off the cold rows of one kernel, storage, thread count and mode: the roofs and the fraction over the
bytes of a call, and the fraction once for every query group G that was measured (how much work a byte brings decides
which roof binds). Between sizes they are interpolated on logarithms, beyond them the last one stands. Between two
groups the time for the same bytes is linear in G, as the work is. Cold, because between two calls of one layer all
others go through the cache.

Latent attention (MLA) is the same with one row a token for all heads (kernel mla_absorbed, G = heads), and the two
folds with W_UK and W_UV that stand around it: weights that are read once a call, at the fraction that the step's own
rows show.
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

WEIGHT_BYTES = 4  # the library folds with f32 weights
ABSORBED, STEP = "mla_absorbed", "mla_absorbed_step"


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


@dataclass(frozen=True)
class Roofs:
    """Where a point was measured beside its own roofs, these take the place of the file's."""

    read: float  # GB/s
    compute: float | None  # GFLOP/s


def _attained(row: Row) -> float | None:
    return row.get("attainable_fraction") or row.get("read_fraction")


def latent_rows(result: ResultFile, kernel: str, native: bool = False) -> list[Row]:
    """Measured cold rows of latent attention, one new token of one sequence."""
    return [
        row
        for row in result.kernel_rows()
        if row.impl == "kvroof"
        and row.measured
        and row.kernel == kernel
        and row.get("cache") == "cold"
        and row.native == native
        and row.shape["B"] == 1
        and row.shape["n"] == 1
    ]


def rows_of(result: ResultFile, kernel: str, native: bool = False) -> list[Row]:
    return plain_decode(result, native=native) if kernel == "decode" else latent_rows(result, kernel, native)


class Fit:
    """One kernel at one storage and thread count, in one mode. `without`: context lengths that are left out."""

    def __init__(
        self,
        result: ResultFile,
        storage: str,
        threads: str,
        without: frozenset[int] = frozenset(),
        kernel: str = "decode",
        native: bool = False,
    ) -> None:
        every = rows_of(result, kernel, native)
        rows = [
            row
            for row in every
            if row.raw["storage"] == storage
            and row.get("threads") == threads
            and row.get("T") not in without
            and _attained(row)
            and row.get("read_roof_gb_per_s")
        ]
        if not rows:
            have = sorted({f"{r.raw['storage']} with {r.get('threads')}" for r in every})
            raise UserError(
                str(result.path),
                f"no cold {kernel} rows of {storage} with threads {threads}{' in native mode' if native else ''}",
                f"measured there: {', '.join(have) or 'none'}; choose --storage and --threads among them",
            )
        self.roof = Curve([(row.get("bytes"), row.get("read_roof_gb_per_s")) for row in rows])
        self.attained = {
            group: Curve([(r.get("bytes"), _attained(r) or 1.0) for r in rows if r.group == group])
            for group in sorted({row.group for row in rows})
        }
        self.dims = {(row.shape["Dk"], row.shape["Dv"]) for row in rows}
        compute = [(row.group, row.get("compute_roof_gflops")) for row in rows if row.get("compute_roof_gflops")]
        self.compute = Curve(compute) if compute else None

    def _at_group(self, wanted: int, size: float, flops: float, group: int, roofs: Roofs) -> float:
        """Time of the same bytes if `wanted`, a measured group, used each of them."""
        compute_ns = 0.0
        if self.compute and roofs.compute:
            compute = roofs.compute * self.compute(wanted) / self.compute(group)
            compute_ns = flops * wanted / group / compute
        return max(size / roofs.read, compute_ns) / self.attained[wanted](size)

    def call(self, size: float, flops: float, group: int, roofs: Roofs | None = None) -> Call:
        roofs = roofs or Roofs(self.roof(size), self.compute(group) if self.compute else None)
        bytes_ns, compute_ns = size / roofs.read, flops / roofs.compute if roofs.compute else 0.0
        groups = list(self.attained)
        right = bisect_left(groups, group)
        if right < len(groups) and groups[right] == group:
            ns = self._at_group(group, size, flops, group, roofs)
        elif right in (0, len(groups)):
            ns = max(bytes_ns, compute_ns) / self.attained[groups[0 if right == 0 else -1]](size)
        else:
            low, high = groups[right - 1], groups[right]
            share = (group - low) / (high - low)
            below, above = (self._at_group(g, size, flops, group, roofs) for g in (low, high))
            # A kernel between two measured groups cannot beat either roof.
            ns = max((1 - share) * below + share * above, bytes_ns, compute_ns)
        return Call(ns, bytes_ns, compute_ns, self._covers(size, group))

    def _covers(self, size: float, group: int) -> bool:
        groups = list(self.attained)
        if not groups[0] <= group <= groups[-1] or not any(curve.covers(size) for curve in self.attained.values()):
            return False
        if group in groups:
            return True
        right = bisect_left(groups, group)
        return groups[right] <= 4 * groups[right - 1]  # farther apart, another way through the kernel lies between


class LatentFit:
    """Latent attention, absorbed: the attention over latent rows and the folds with W_UK and W_UV around it."""

    def __init__(
        self,
        result: ResultFile,
        storage: str,
        threads: str,
        without: frozenset[int] = frozenset(),
        native: bool = False,
    ) -> None:
        self.attention = Fit(result, storage, threads, without, ABSORBED, native)
        self.roof, self.dims = self.attention.roof, self.attention.dims
        found = []
        for row in latent_rows(result, STEP):
            # Weights are f32 at every storage and in both modes; the step without the attention is what they take.
            if row.get("threads") != threads or row.get("T") in without or not row.get("read_roof_gb_per_s"):
                continue
            try:
                other = Fit(result, row.raw["storage"], threads, without, ABSORBED)
            except UserError:
                continue
            weights = row.get("bytes") - latent_row_bytes(row) * row.get("T")
            attention = other.call(*_absorbed_counts(row), row.group, roofs_of(row)).ns
            if row.ns > attention and weights > 0:
                found.append(weights / row.get("read_roof_gb_per_s") / (row.ns - attention))
        self.folds_measured = bool(found)
        # Without a row of the step, weights are taken to be read as plain decode reads its widest f32 rows.
        self.weight_fraction = statistics.median(found) if found else self._plain_read(result, threads)

    @staticmethod
    def _plain_read(result: ResultFile, threads: str) -> float:
        try:
            fit = Fit(result, "f32", threads)
        except UserError:
            return 1.0
        return fit.attained[min(fit.attained)].y[-1]

    def folds(self, weights: float, read_roof: float) -> float:
        return weights / read_roof / self.weight_fraction

    def call(
        self, size: float, flops: float, heads: int, weights: float, fold_flops: float, roofs: Roofs | None = None
    ) -> Call:
        inner = self.attention.call(size, flops, heads, roofs)
        read = roofs.read if roofs else self.roof(weights)
        compute = roofs.compute if roofs else self.attention.compute(heads) if self.attention.compute else None
        return Call(
            inner.ns + self.folds(weights, read),
            inner.bytes_ns + weights / read,
            inner.compute_ns + (fold_flops / compute if compute else 0.0),
            inner.measured and self.folds_measured,
        )


def latent_row_bytes(row: Row) -> float:
    """Cache bytes of one token in a row of latent attention at the dimensions that kvroof_bench measures."""
    from models import Latent, Model as Shape

    shape = Shape("", 1, 1, 192, 128, (None,), 1, Latent(512, 64))
    return shape.layer_row_bytes(row.raw["storage"])


def _absorbed_counts(row: Row) -> tuple[float, float]:
    """Bytes and work of the attention inside a step: 576 + 512 columns for every head and row."""
    return latent_row_bytes(row) * row.get("T"), 2.0 * (576 + 512) * row.shape["Hq"] * row.get("T")


def roofs_of(row: Row) -> Roofs:
    return Roofs(row.get("read_roof_gb_per_s"), row.get("compute_roof_gflops"))


# ---- a model's step --------------------------------------------------------------------------------------------------


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


def fit_for(result: ResultFile, model: Model, storage: str, threads: str, native: bool = False) -> Fit | LatentFit:
    return (LatentFit if model.latent else Fit)(result, storage, threads, native=native)


def fold_weights(model: Model) -> int:
    """Elements of W_UK and W_UV of one layer."""
    if model.latent is None:
        return 0
    nope = model.key_dim - model.latent.rope_dim
    return model.query_heads * model.latent.latent_dim * (nope + model.value_dim)


def _layer(fit: Fit | LatentFit, model: Model, storage: str, rows: int, batch: int) -> Call:
    size = rows * model.layer_row_bytes(storage)
    if isinstance(fit, LatentFit):
        assert model.latent is not None
        columns = 2 * model.latent.latent_dim + model.latent.rope_dim
        flops = 2 * columns * model.query_heads * rows
        weights = fold_weights(model)
        return fit.call(size, flops, model.query_heads, weights * WEIGHT_BYTES, 2 * weights * batch)
    return fit.call(size, rows * model.query_heads * 2 * (model.key_dim + model.value_dim), model.group)


def step(fit: Fit | LatentFit, model: Model, storage: str, tokens: int, batch: int) -> Step:
    calls: list[tuple[int, Call]] = []
    total = 0
    for window, layers in model.layer_groups():
        rows = visible_rows(tokens, window) * batch
        calls.append((layers, _layer(fit, model, storage, rows, batch)))
        total += layers * rows * model.layer_row_bytes(storage)
    return Step(
        tokens,
        sum(n * c.ns for n, c in calls),
        sum(n * c.bytes_ns for n, c in calls),
        sum(n * c.compute_ns for n, c in calls),
        total,
        all(c.measured for _, c in calls) and known_dims(fit, model),
    )


def known_dims(fit: Fit | LatentFit, model: Model) -> bool:
    """Whether rows of these dimensions were measured; others are taken to reach the same fraction."""
    if model.latent:
        return (model.latent.latent_dim + model.latent.rope_dim, model.latent.latent_dim) in fit.dims
    return (model.key_dim, model.value_dim) in fit.dims


# ---- the proof -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    row: Row
    predicted_ns: float
    covered: bool  # the file has rows around it; else the prediction is marked where it is printed

    @property
    def error(self) -> float:
        return self.predicted_ns / self.row.ns - 1


def check_row(fit: Fit | LatentFit, row: Row) -> Checked:
    """A prediction for a measured row, from the roofs that were measured in turn with it."""
    roofs = roofs_of(row)
    if isinstance(fit, LatentFit):
        size, flops = _absorbed_counts(row)
        weights = row.get("bytes") - size
        call = fit.call(size, flops, row.group, weights, row.get("flops") - flops, roofs)
        return Checked(row, call.ns, call.measured)
    size, flops = row.get("bytes"), row.get("flops")
    # The row's own time x its fraction: the roofs' time as a median over pairs, which a busy neighbour moves less than
    # the quotient of two medians.
    paired = row.ns * (_attained(row) or 1.0) / max(size / roofs.read, flops / roofs.compute if roofs.compute else 0.0)
    call = fit.call(size, flops, row.group, roofs)
    return Checked(row, call.ns * paired, call.measured and (row.shape["Dk"], row.shape["Dv"]) in fit.dims)


def check(fit: Fit | LatentFit, rows: list[Row]) -> list[Checked]:
    return [check_row(fit, row) for row in rows if row.measured and _attained(row) and row.get("read_roof_gb_per_s")]
