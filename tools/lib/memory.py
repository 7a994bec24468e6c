"""How large a KV cache is: bytes = 2 x layers x batch x tokens x KV heads x dim x bytes per element, and its kin.

Four counts, because engines differ in what they reserve:
- ideal: the rows that can still be seen, min(tokens, window) in each layer (plus kept tokens);
- ring: window layers hold window + chunk rows, so that a chunk of new tokens can be appended before it is attended;
- pages: the pages that the ideal rows touch, whole;
- full pages: every layer keeps all tokens, window or not, in whole pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from errors import UserError
from models import Model

MAX_TOKENS = 2**40


@dataclass(frozen=True)
class Request:
    model: Model
    tokens: int
    batch: int = 1
    storage: str = "f16"
    chunk: int = 1
    page: int = 16
    kept: int = 0


@dataclass(frozen=True)
class LayerGroup:
    window: int | None
    layers: int
    rows: int  # visible rows of one sequence in one layer
    bytes: int  # of the whole batch, all these layers


@dataclass(frozen=True)
class Memory:
    per_token: int  # added by one token while every layer still grows
    per_sequence: int
    ideal: int
    ring: int
    pages: int
    full_pages: int
    groups: list[LayerGroup]


def visible_rows(tokens: int, window: int | None, kept: int = 0) -> int:
    return tokens if window is None else min(tokens, window + kept)


def ring_rows(tokens: int, window: int | None, chunk: int, kept: int = 0) -> int:
    return tokens if window is None else min(tokens, window + chunk + kept)


def page_rows(tokens: int, window: int | None, page: int, kept: int = 0) -> int:
    """Rows of the pages that hold at least one visible row."""
    last = (tokens - 1) // page
    if window is None or window + kept >= tokens:
        return (last + 1) * page
    first = (tokens - window) // page
    kept_pages = min(-(-kept // page), first)
    return (last - first + 1 + kept_pages) * page


def measure(request: Request) -> Memory:
    r, model = request, request.model
    row = model.layer_row_bytes(r.storage)
    groups, ring, pages = [], 0, 0
    for window, layers in model.layer_groups():
        rows = visible_rows(r.tokens, window, r.kept)
        groups.append(LayerGroup(window, layers, rows, rows * layers * row * r.batch))
        ring += ring_rows(r.tokens, window, r.chunk, r.kept) * layers * row * r.batch
        pages += page_rows(r.tokens, window, r.page, r.kept) * layers * row * r.batch
    ideal = sum(group.bytes for group in groups)
    return Memory(
        per_token=row * model.layers,
        per_sequence=ideal // r.batch,
        ideal=ideal,
        ring=ring,
        pages=pages,
        full_pages=page_rows(r.tokens, None, r.page) * model.layers * row * r.batch,
        groups=groups,
    )


def tokens_that_fit(request: Request, budget: int) -> int | None:
    """The longest context of every sequence whose ideal rows fit `budget` bytes; None where no length fills it."""

    def needs(tokens: int) -> int:
        return measure(Request(request.model, tokens, request.batch, request.storage, kept=request.kept)).ideal

    if needs(MAX_TOKENS) <= budget:
        return None
    low, high = 0, MAX_TOKENS  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        if needs(middle) <= budget:
            low = middle
        else:
            high = middle
    return low


def sequences_that_fit(request: Request, budget: int) -> int:
    return budget // measure(Request(request.model, request.tokens, 1, request.storage, kept=request.kept)).ideal


_UNITS = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}


def parse_size(text: str, where: str) -> int:
    """ "16GiB" is 16 x 2^30, "16GB" is 16 x 1e9, a bare number is bytes."""
    digits = text.strip()
    unit = digits.lstrip("0123456789.")
    number = digits[: len(digits) - len(unit)]
    try:
        value = float(number)
        scale = _UNITS[unit.strip().lower()]
    except (ValueError, KeyError):
        raise UserError(
            where, f"{text!r} is not a size", "such as 16GiB (2^30), 16GB (1e9) or a number of bytes"
        ) from None
    if not 1 <= value * scale <= 2**62:
        raise UserError(where, f"{text!r} is out of range", "a size from 1 byte to 4 EiB")
    return int(value * scale)


def gib(size: int) -> str:
    """Binary units with their own names, decimal ones beside: the two are never mixed under one name."""
    for power, binary, decimal in ((40, "TiB", "TB"), (30, "GiB", "GB"), (20, "MiB", "MB"), (10, "KiB", "kB")):
        if size >= 2**power:
            return f"{size / 2**power:.5g} {binary} ({size / 10 ** (power // 10 * 3):.5g} {decimal})"
    return f"{size} bytes"
