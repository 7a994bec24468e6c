"""Attention time of a model on a measured machine, from the rows of its result file alone: predict_fit.py tells what a
call takes, this sums the calls of a model's step, and holds the fit to rows that were measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from memory import visible_rows
from models import Model
from predict_fit import ABSORBED, DECODE, STEP, Call, Fit, LatentFit, Roofs, Source
from predict_fit import attention_of_step, is_usable, paired_ns
from rows import Row
from work_split import Work

WEIGHT_BYTES = 4  # the library folds with f32 weights


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


def fit_for(source: Source, model: Model) -> Fit | LatentFit:
    return LatentFit(source) if model.latent else Fit(source)


def fold_weights(model: Model) -> int:
    """Elements of W_UK and W_UV of one layer."""
    if model.latent is None:
        return 0
    nope = model.key_dim - model.latent.rope_dim
    return model.query_heads * model.latent.latent_dim * (nope + model.value_dim)


def _layer(fit: Fit | LatentFit, model: Model, storage: str, rows: int, batch: int) -> Call:
    size = rows * batch * model.layer_row_bytes(storage)
    heads = model.query_heads
    if isinstance(fit, LatentFit):
        assert model.latent is not None
        columns = 2 * model.latent.latent_dim + model.latent.rope_dim
        weights = fold_weights(model)
        attention = Work(size, 2 * columns * heads * rows * batch, heads, 1, rows, batch)
        return fit.call(attention, weights * WEIGHT_BYTES, 2 * weights * batch)
    flops = rows * batch * heads * 2 * (model.key_dim + model.value_dim)
    return fit.call(Work(size, flops, heads, model.kv_heads, rows, batch))


def step(fit: Fit | LatentFit, model: Model, storage: str, tokens: int, batch: int) -> Step:
    calls: list[tuple[int, Call]] = []
    total = 0
    for window, layers in model.layer_groups():
        rows = visible_rows(tokens, window)
        calls.append((layers, _layer(fit, model, storage, rows, batch)))
        total += layers * rows * batch * model.layer_row_bytes(storage)
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
    roofs = Roofs.of(row)
    if isinstance(fit, LatentFit):
        inner = attention_of_step(row)
        call = fit.call(inner, row.get("bytes") - inner.bytes, row.get("flops") - inner.flops, roofs)
        return Checked(row, call.ns, call.measured)
    work = Work.of(row)
    call = fit.call(work, roofs)
    known = (row.shape["Dk"], row.shape["Dv"]) in fit.dims
    return Checked(row, call.ns * paired_ns(row) / roofs.ns(work), call.measured and known)


def check(fit: Fit | LatentFit, rows: list[Row]) -> list[Checked]:
    return [check_row(fit, row) for row in rows if is_usable(row)]
