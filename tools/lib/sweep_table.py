"""The table at the end of a sweep: the fraction of the roof first, then GB/s, time, and time against the rivals.

Fits 100 columns. `read` is the median of per-pair (probe time / time), `attain` the same against the lower of the two
roofs; the rivals' columns say how many times longer they took on the same bytes, paired.
"""

from __future__ import annotations

import sys
from typing import Iterator

from progress import short_name
from rows import Ratio, ResultFile, Row

_BLOCKS = " ▏▎▍▌▋▊▉█"
_STORAGES = ("f32", "f16", "bf16", "int8")


def significant(value: float) -> str:
    """Three digits, zeros kept: 1.20, 12.0, 120."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def duration(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{significant(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def bar(share: float, width: int = 10, plain: bool = False) -> str:
    eighths = round(min(max(share, 0), 1) * width * 8)
    if plain:
        return ("#" * (eighths // 8)).ljust(width)
    return ("█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()).ljust(width)


def best_onednn(result: ResultFile, row: Row) -> Ratio | None:
    """Time over ours of the faster of the oneDNN forms: the one that its user would take."""
    found = [r.times(row) for impl, r in result.rivals(row).items() if impl.startswith("onednn")]
    return min((ratio for ratio in found if ratio), key=lambda ratio: ratio.median, default=None)


def scalar(result: ResultFile, row: Row) -> Ratio | None:
    rival = result.rivals(row).get("scalar")
    return rival.times(row) if rival else None


def _passes(row: Row, fraction: str) -> bool:
    """Above the roof by more than the spread, and by more than a median may be."""
    value = row.raw.get(fraction)
    return bool(value and value["median"] - 1 > max(value["high"] - value["low"], 0.02))


def roofs_passed(row: Row) -> list[str]:
    """The roofs that this row lies above: each of them is wrong."""
    passed = []
    if row.get("above_roof"):
        passed.append(row.get("above_roof_of", "read"))
    elif not row.raw.get("unique_bytes") and _passes(row, "attainable_spread"):
        passed.append("compute")
    if _passes(row, "page_order_fraction"):
        passed.append("page-order")
    return passed


def marks(row: Row) -> str:
    """above roof, unstable: what makes a figure doubtful."""
    by = row.get("above_roof_by")
    amount = f" by {by * 100:.0f} %" if by else ""
    words = []
    for roof in roofs_passed(row):
        name = "roof" if roof == "read" else f"{roof} roof"
        words.append(f"above {name}" + ("" if roof == "page-order" else amount))
    if row.status == "unstable":
        words.append("unstable")
    return ", ".join(words)


def times(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f}x" if ratio.median < 9.95 else f"{ratio.median:.0f}x"


def _cells(result: ResultFile, row: Row, plain: bool) -> str:
    head = f"  {row.get('storage'):<5}{row.get('T', 0):>7}  {'1' if row.get('threads') == '1' else 'all':<4}"
    if not row.measured:
        return f"{head} {row.status.replace('_', ' ')}: {row.get('reason', '')}"[:100]
    read, attain = row.get("read_fraction"), row.get("attainable_fraction")
    fraction = "   --" if read is None else f"{read:5.2f}"
    other = "    --" if attain is None else f"{attain:6.2f}"
    return (
        f"{head} {bar(read or 0, plain=plain)} {fraction} {other} {row.get('gb_per_s', 0):8.1f} {duration(row.ns):>9}"
        f" {times(best_onednn(result, row)):>8} {times(scalar(result, row)):>8}  {marks(row)}"
    ).rstrip()


def own_rows(result: ResultFile) -> list[Row]:
    return [row for row in result.kernel_rows() if row.impl == "kvroof"]


def _layout(row: Row) -> str:
    """ "ring", or with the pages' size and order: "paged P=16 shuffled"."""
    page = row.get("page_size")
    return " ".join([str(row.get("layout")), *([f"P={page}", str(row.get("pages", ""))] if page else [])]).rstrip()


def heading(row: Row) -> tuple[str, ...]:
    """What a row measures but for storage, context and threads. Its mode, which is no part of that, is mode_words()."""
    shape = row.shape
    dims = f"{shape['Dk']}" if shape["Dk"] == shape["Dv"] else f"{shape['Dk']}/{shape['Dv']}"
    more = [f"{label} {value}" for label, value in (("batch", shape["B"]), ("chunk", shape["n"])) if value != 1]
    if row.get("lengths"):
        more.append(f"{row.get('lengths')} lengths")
    if row.get("prefix"):
        more.append(f"shared prefix {row.get('prefix')}")
    if row.get("W") not in ("all", None):
        more.append(f"window {row.get('W')}")
    if row.get("layout") not in ("contiguous", None):
        more.append(_layout(row))
    if row.get("order") == "token":
        more.append("token-major")
    return (row.kernel, f"{shape['name']} {shape['Hq']}/{shape['Hkv']}x{dims}", *more, str(row.get("cache")))


def mode_words(row: Row) -> list[str]:
    return [f"native mode ({row.get('isa')})"] if row.native else []


def _order(row: Row) -> tuple:
    storage = row.get("storage")
    return (_STORAGES.index(storage) if storage in _STORAGES else 9, row.get("T", 0), row.get("threads"))


def table(result: ResultFile) -> str:
    plain = "utf" not in (getattr(sys.stdout, "encoding", "") or "").lower()
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in own_rows(result):
        groups.setdefault((*heading(row), *mode_words(row)), []).append(row)
    lines = []
    for words, members in groups.items():
        if members[0].native and not any(row.measured for row in members):  # no table for what this CPU cannot do
            why = dict.fromkeys(f"{row.status.replace('_', ' ')}: {row.get('reason')}" for row in members)
            lines += ["", f"{', '.join(words)}: {'; '.join(why)}"]
            continue
        lines += [
            "",
            ", ".join(words),
            f"  {'':<5}{'T':>7}  {'thr':<4} {'of read roof':<16} attain     GB/s      time   oneDNN   scalar",
        ]
        lines += [_cells(result, row, plain) for row in sorted(members, key=_order)]
    return "\n".join(lines)


def notes(result: ResultFile) -> Iterator[str]:
    """What a reader must not miss: roofs that were passed, doubtful rows, rivals that were faster, missing rows."""
    own = own_rows(result)
    for what in ("read", "compute", "page-order"):
        above = [row for row in own if what in roofs_passed(row)]
        if above:
            names = ", ".join(short_name(row.name) for row in above[:5]) + (", ..." if len(above) > 5 else "")
            yield f"{len(above)} rows lie above their {what} roof: that roof is wrong, its probe needs mending: {names}"
    doubtful = [row for row in own if row.status == "unstable"]
    if doubtful:
        yield f"{len(doubtful)} of {len(own)} rows are unstable, first: {doubtful[0].get('reason')}"
    found = [(row, ratio.median) for row in own if row.measured and (ratio := best_onednn(result, row))]
    slower = [(row, share) for row, share in found if share < 1]
    if slower:
        row, least = min(slower, key=lambda pair: pair[1])
        most = f"{short_name(row.name)} ({least:.2f}x of our time)"
        yield f"oneDNN is faster on {len(slower)} of {len(found)} rows, most on {most}"
    missing: dict[str, int] = {}
    for row in result.kernel_rows():
        if not row.measured:
            text = f"{row.status.replace('_', ' ')}: {row.get('reason')}"
            missing[f"{row.impl} {text}"] = missing.get(f"{row.impl} {text}", 0) + 1
    for text, count in sorted(missing.items(), key=lambda item: -item[1])[:5]:
        yield f"{count} rows of {text}"


def halving(result: ResultFile) -> Iterator[str]:
    """Time at a narrower storage over time at f32, each from one tuple: bytes halve, does the time?"""
    own = [
        r for r in own_rows(result) if r.measured and not r.native and r.get("cache") == "cold" and r.get("W") == "all"
    ]
    for storage in _STORAGES[1:]:
        paired = [(row, row.ratio(f"{storage}/f32")) for row in own]
        found = [(row, ratio) for row, ratio in paired if ratio is not None]
        if not found:
            continue
        longest = max(row.get("T") for row, _ in found)
        words = [
            f"{row.shape['name']}{' token-major' if row.get('order') == 'token' else ''} {ratio.median:.2f} "
            f"({'1 thread' if row.get('threads') == '1' else 'all threads'})"
            for row, ratio in found
            if row.get("T") == longest
        ]
        yield f"time {storage} / f32 at T = {longest}, cold: {', '.join(words)}"


def latent_bytes(result: ResultFile) -> Iterator[str]:
    """What a latent row saves, as measured from cache objects of both kinds."""
    pairs = {
        (row.get("storage"), row.get("token_bytes"), row.get("replaced_token_bytes"), row.shape["Hq"]): row
        for row in own_rows(result)
        if row.get("token_bytes") and row.get("replaced_token_bytes")
    }
    by_heads: dict[int, list[str]] = {}
    for storage, token, replaced, heads in pairs:
        by_heads.setdefault(heads, []).append(f"{storage} {token} against {replaced} ({replaced / token:.1f}x)")
    for heads, words in by_heads.items():
        yield f"bytes of a cached token and layer, MLA against the K and V rows of {heads} heads: {', '.join(words)}"


def _bytes_alone(result: ResultFile, row: Row, partner: str) -> str | None:
    """What the time ratio to `partner` would be if memory alone decided: the ratio of what it must deliver."""
    other = next((r for r in result.rows if r.name == partner), None)
    if other is None:
        return None
    mine, its = (r.get("unique_bytes") or r.get("bytes") for r in (row, other))
    return significant(mine / its) if mine and its else None


def layout_ratios(result: ResultFile) -> Iterator[str]:
    """Time of a layout, chunk or batch over that of the plain one of its tuple: ring / contiguous, skewed / equal."""
    lines: dict[tuple[str, str | None], list[tuple[int, str]]] = {}
    for row in own_rows(result):
        for ratio in row.get("time_ratios", []) if row.measured else []:
            what = ratio["what"].replace("/", " / ")
            if what.endswith((" / f32", " / native")):
                continue  # halving() says the ones, native / reproducible the others
            operation = [row.kernel] if row.kernel in ("append", "fork") else []
            more = [
                f"{word} {row.shape[axis]}" for word, axis in (("batch", "B"), ("chunk", "n")) if row.shape[axis] != 1
            ]
            more += ["warm"] if row.get("cache") == "warm" else []
            where = " ".join([*operation, row.shape["name"], row.get("storage"), *more, f"T {row.get('T')}"])
            threads = "1 thread" if row.get("threads") == "1" else "all threads"
            word = f"{where} {significant(ratio['median'])} ({threads})"
            alone = (
                None if row.kernel.startswith("mla_") else _bytes_alone(result, row, ratio["to"])
            )  # work binds those
            lines.setdefault((what, alone), []).append((row.get("T"), word))
    for (what, alone), found in lines.items():
        longest = max(T for T, _ in found)
        words = [word for T, word in found if len(found) <= 12 or T == longest]
        if len(words) < len(found):
            words.append(f"and {len(found) - len(words)} at shorter contexts")
        yield f"time {what}{f' (bytes alone: {alone})' if alone else ''}: {', '.join(words)}"
