"""What a kernel does on a measured machine, read off the rows of its result file: the time of a call of any size.

A call of one thread takes the time that its lower roof allows, over the fraction of it that the kernel reaches:

    time = max(bytes / read roof, work / compute roof) / fraction

For all threads together that would not do. Their read roof belongs to the whole machine, and where other tenants use
its memory too it may be half as high in one minute as in another: then a kernel that waited for memory waits for its
own arithmetic, and its fraction of the roof is another one. So their time is made of what one thread was seen to take
for the largest part that one of them gets, split into memory and arithmetic, and of the roof beside the call:

    one thread^4  = arithmetic^4 + (bytes / read roof of one thread / most)^4
    all threads^4 = arithmetic^4 + (bytes / their read roof         / most)^4
    time          = all threads / fraction

`most` is the fraction of the read roof that the kernel reaches with the least work for a byte. The fourth powers
round the corner between the two sides: near it a kernel overlaps them, though not perfectly. The fraction is what is
left, such as starting and joining the threads.

Roofs and fractions come from the cold rows of one kernel, storage, thread count and mode: over the bytes of a call,
and the fraction once for every query group G that was measured (how much work a byte brings decides what binds).
Between two sizes time is linear in the bytes, since a call costs something by itself and something for each of them;
beyond them the last fraction stands. Between two groups time is linear in G for the same bytes, as the work is. Cold,
because between two calls of one layer all others go through the cache.

Latent attention (MLA) is the same with one row a token for all heads (kernel mla_absorbed, G = heads), and the two
folds with W_UK and W_UV that stand around it: weights that are read once a call, at the fraction that the step's own
rows show.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from errors import UserError
from headline import plain_decode
from models import Latent, Model
from rows import ResultFile, Row
from work_split import Work

DECODE, ABSORBED, STEP = "decode", "mla_absorbed", "mla_absorbed_step"
# Farther apart than this, another way through the kernel may lie between two measured groups.
NEAR_GROUPS = 4


class Curve:
    """A rate over a size (of a call, of a group), constant beyond its points. Between two of them the time is linear in
    the size: something for the call itself, and something for each part of it."""

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
        share = (1 / x0 - 1 / x) / (1 / x0 - 1 / x1)
        return 1 / ((1 - share) / y0 + share / y1)

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

    @staticmethod
    def of(row: Row) -> Roofs:
        return Roofs(row.get("read_roof_gb_per_s"), row.get("compute_roof_gflops"))

    def bytes_ns(self, work: Work) -> float:
        return work.bytes / self.read

    def compute_ns(self, work: Work) -> float:
        return work.flops / self.compute if self.compute else 0.0

    def ns(self, work: Work) -> float:
        return max(self.bytes_ns(work), self.compute_ns(work))


def attained(row: Row) -> float | None:
    return row.get("attainable_fraction") or row.get("read_fraction")


def paired_ns(row: Row) -> float:
    """The time that the lower roof allows, from the pairs of this row: row.ns times the median of the fractions, which
    a busy neighbour moves less than it moves the quotient of two medians."""
    return row.ns * (attained(row) or 1.0)


def is_usable(row: Row) -> bool:
    return row.measured and bool(attained(row)) and bool(row.get("read_roof_gb_per_s"))


def rows_of(result: ResultFile, kernel: str, native: bool = False) -> list[Row]:
    """Measured cold rows of one new token of one sequence."""
    if kernel == DECODE:
        return plain_decode(result, native=native)
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


@dataclass(frozen=True)
class Source:
    """Which rows of a file a fit is made from. `without`: context lengths that are left out."""

    result: ResultFile
    storage: str
    threads: str  # the role: 1 or all
    native: bool = False
    without: frozenset[int] = frozenset()

    def rows(self, kernel: str) -> list[Row]:
        every = rows_of(self.result, kernel, self.native)
        found = [
            row
            for row in every
            if row.raw["storage"] == self.storage
            and row.get("threads") == self.threads
            and row.get("T") not in self.without
            and is_usable(row)
        ]
        if not found:
            have = sorted({f"{r.raw['storage']} with {r.get('threads')}" for r in every})
            mode = " in native mode" if self.native else ""
            raise UserError(
                str(self.result.path),
                f"no cold {kernel} rows of {self.storage} with threads {self.threads}{mode}",
                f"measured there: {', '.join(have) or 'none'}; choose --storage and --threads among them",
            )
        return found


class Fit:
    """One kernel at one storage and thread count, in one mode."""

    def __init__(self, source: Source, kernel: str = DECODE) -> None:
        rows = source.rows(kernel)
        self.threads = int(rows[0].raw["thread_count"])
        self.alone = self._one_thread(source, kernel) if self.threads > 1 else None
        self.dims = {(row.shape["Dk"], row.shape["Dv"]) for row in rows}
        self.roof = Curve([(row.get("bytes"), row.get("read_roof_gb_per_s")) for row in rows])
        compute = [(row.group, row.get("compute_roof_gflops")) for row in rows if row.get("compute_roof_gflops")]
        self.compute = Curve(compute) if compute else None
        self.attained = {
            group: Curve([(row.get("bytes"), self._reached(row)) for row in rows if row.group == group])
            for group in sorted({row.group for row in rows})
        }

    @staticmethod
    def _one_thread(source: Source, kernel: str) -> Fit | None:
        try:
            return Fit(replace(source, threads="1"), kernel)
        except UserError:
            return None  # nothing to tell waiting from arithmetic by: the fraction of the roofs has to do

    def _reached(self, row: Row) -> float:
        work, roofs = Work.of(row), Roofs.of(row)
        # The row's time by its pairs, as in paired_ns().
        ns = roofs.ns(work) / (attained(row) or 1.0)
        return self._best_ns(work, roofs, work.busiest_share(self.threads)) / ns

    def _best_ns(self, work: Work, roofs: Roofs, share: float) -> float:
        """The time at a fraction of 1."""
        if self.alone is None:
            return roofs.ns(work)
        one = Roofs(self.alone.roof(work.bytes), roofs.compute / self.threads if roofs.compute else None)
        alone = self.alone.call(work, one).ns * share
        most = self.alone.attained[min(self.alone.attained)](work.bytes)
        read = one.bytes_ns(work) * share
        longer = max(0.0, roofs.bytes_ns(work) - one.bytes_ns(work) / self.threads)
        arithmetic = max(0.0, alone**4 - (read / most) ** 4)
        return (arithmetic + ((read + longer) / most) ** 4) ** 0.25

    def _at_group(self, wanted: int, work: Work, roofs: Roofs) -> float:
        """Time of the same bytes if `wanted`, a measured group, used each of them."""
        compute = None
        if self.compute and roofs.compute:
            compute = roofs.compute * self.compute(wanted) / self.compute(work.group)
        share = work.busiest_share(self.threads)
        best = self._best_ns(work.for_group(wanted), Roofs(roofs.read, compute), share)
        return best / self.attained[wanted](work.bytes)

    def call(self, work: Work, roofs: Roofs | None = None) -> Call:
        group = work.group
        roofs = roofs or Roofs(self.roof(work.bytes), self.compute(group) if self.compute else None)
        groups = list(self.attained)
        right = bisect_left(groups, group)
        if right < len(groups) and groups[right] == group:
            ns = self._at_group(group, work, roofs)
        elif right in (0, len(groups)):
            nearest = groups[0 if right == 0 else -1]
            ns = self._best_ns(work, roofs, work.busiest_share(self.threads)) / self.attained[nearest](work.bytes)
        else:
            low, high = groups[right - 1], groups[right]
            share = (group - low) / (high - low)
            below, above = (self._at_group(g, work, roofs) for g in (low, high))
            # A kernel between two measured groups cannot beat either roof.
            ns = max((1 - share) * below + share * above, roofs.ns(work))
        return Call(ns, roofs.bytes_ns(work), roofs.compute_ns(work), self._covers(work))

    def _covers(self, work: Work) -> bool:
        groups, group = list(self.attained), work.group
        right = bisect_left(groups, group)
        if group in groups:
            return self.attained[group].covers(work.bytes)
        if right in (0, len(groups)):
            return False
        low, high = groups[right - 1], groups[right]
        return high <= NEAR_GROUPS * low and any(self.attained[g].covers(work.bytes) for g in (low, high))


class LatentFit:
    """Latent attention, absorbed: the attention over latent rows and the folds with W_UK and W_UV around it."""

    def __init__(self, source: Source) -> None:
        self.attention = Fit(source, ABSORBED)
        self.roof, self.dims = self.attention.roof, self.attention.dims
        # Weights are f32 at every storage and in both modes; the step without the attention is what they take. Where
        # its attention is beyond what was measured, nothing can be told from a step.
        found = [self._weight_fraction(source, row) for row in rows_of(source.result, STEP) if is_usable(row)]
        known = [fraction for fraction in found if fraction is not None]
        self.folds_measured = bool(known)
        # Without a row of the step, weights are taken to be read as plain decode reads its widest f32 rows.
        self.weight_fraction = statistics.median(known) if known else self._plain_read(source)

    @staticmethod
    def _weight_fraction(source: Source, row: Row) -> float | None:
        if row.get("threads") != source.threads or row.get("T") in source.without:
            return None
        try:
            other = Fit(replace(source, storage=row.raw["storage"], native=False), ABSORBED)
        except UserError:
            return None
        inner = attention_of_step(row)
        call, weights = other.call(inner, Roofs.of(row)), row.get("bytes") - inner.bytes
        if not call.measured or row.ns <= call.ns or weights <= 0:
            return None
        return weights / row.get("read_roof_gb_per_s") / (row.ns - call.ns)

    @staticmethod
    def _plain_read(source: Source) -> float:
        try:
            rows = replace(source, storage="f32", native=False).rows(DECODE)
        except UserError:
            return 1.0
        widest = max(rows, key=lambda row: (-row.group, row.get("bytes")))
        return attained(widest) or 1.0

    def folds(self, weights: float, read_roof: float) -> float:
        return weights / read_roof / self.weight_fraction

    def call(self, attention: Work, weights: float, fold_flops: float, roofs: Roofs | None = None) -> Call:
        inner = self.attention.call(attention, roofs)
        read = roofs.read if roofs else self.roof(weights)
        heads = attention.group
        compute = roofs.compute if roofs else self.attention.compute(heads) if self.attention.compute else None
        return Call(
            inner.ns + self.folds(weights, read),
            inner.bytes_ns + weights / read,
            inner.compute_ns + (fold_flops / compute if compute else 0.0),
            inner.measured and self.folds_measured,
        )


_BENCHED = Model("", 1, 1, 192, 128, (None,), 1, Latent(512, 64))  # the dimensions of the rows of latent attention


def attention_of_step(row: Row) -> Work:
    """The attention inside a measured step: 576 + 512 columns for every head and row."""
    rows, heads = row.get("T"), row.shape["Hq"]
    return Work(_BENCHED.layer_row_bytes(row.raw["storage"]) * rows, 2.0 * (576 + 512) * heads * rows, heads, 1, rows)
