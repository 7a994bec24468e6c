"""The measured part of README.md: picture, table and where they come from, written from one result file."""

from __future__ import annotations

from pathlib import Path

import json_file
from errors import UserError
from headline import plain_decode
from picture import roof_picture
from rows import ROOT, ResultFile, Row
from sweep_table import best_onednn, duration, halving, latent_bytes, scalar, times

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def _fraction(row: Row | None) -> str:
    if row is None or row.get("read_fraction") is None:
        return ""
    doubt = "!" if row.get("above_roof") else "~" if row.status == "unstable" else ""
    return f"{row.get('read_fraction'):.2f}{doubt}"


def table(result: ResultFile) -> str:
    rows = plain_decode(result) + plain_decode(result, native=True)
    lengths = sorted({row.get("T") for row in rows})
    shown = lengths if len(lengths) <= 4 else [T for T in lengths if T in (512, 4096, 32768, 131072)] or lengths[-3:]
    longest = shown[-1]
    groups: dict[tuple[str, str, str], dict[int, Row]] = {}
    for row in rows:
        shape = f"{row.shape['name']} {row.shape['Hq']}/{row.shape['Hkv']}x{row.shape['Dk']}"
        storage = row.raw["storage"] + (" native" if row.native else "")
        groups.setdefault((shape, storage, row.raw["threads"]), {})[row.get("T")] = row
    lines = [
        "| shape | storage | threads | " + " | ".join(f"T = {T}" for T in shown) + " | GB/s | time | oneDNN | scalar |",
        "| --- | --- | ---: |" + " ---: |" * (len(shown) + 4),
    ]
    for (shape, storage, threads), by_length in groups.items():
        last = by_length.get(longest)
        tail = (
            ["", "", "", ""]
            if last is None
            else [
                f"{last.get('gb_per_s'):.1f}",
                duration(last.ns),
                times(best_onednn(result, last)),
                times(scalar(result, last)),
            ]
        )
        count = str(result.all_threads) if threads == "all" else "1"
        lines.append(
            "| " + " | ".join([shape, storage, count, *(_fraction(by_length.get(T)) for T in shown), *tail]) + " |"
        )
    return "\n".join(lines)


def section(result: ResultFile, picture: str, source: str) -> str:
    longest = max(row.get("T") for row in plain_decode(result))
    doubtful = any(row.get("above_roof") or row.status == "unstable" for row in plain_decode(result))
    marks = " `~`: unstable; `!`: above its roof, so that roof is wrong." if doubtful else ""
    notes = "".join(f"\n- {line}" for line in [*halving(result), *latent_bytes(result)])
    return (
        f"![Fraction of the read roof over context length]({picture})\n\n"
        f"{result.words}, commit {result.commit}; every number from [{source}]({source}).\n"
        f"Cold caches. The T columns are fractions of the paired read roof; GB/s, time and the rivals' time over ours\n"
        f"stand for T = {longest}.{marks}\n\n{table(result)}\n{notes}".rstrip()
    )


def write_readme(result: ResultFile, root: Path = ROOT) -> list[Path]:
    readme = root / "README.md"
    try:
        text = readme.read_text(encoding="utf-8")
    except OSError:
        raise UserError(str(readme), "cannot be read", "run this in a checkout") from None
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UserError(
            str(readme),
            f"has no place for what was measured ({BEGIN} ... {END})",
            "put both marks in once, in this order",
        )
    if not plain_decode(result):
        raise UserError(str(result.path), "no measured cold decode rows", "give the file of a whole sweep")
    picture = result.path.with_suffix(".svg")
    try:
        names = [path.resolve().relative_to(root.resolve()).as_posix() for path in (picture, result.path)]
    except ValueError:
        raise UserError(str(result.path), "lies outside the checkout", "the README shows files of results/") from None
    json_file.write_atomic(picture, roof_picture(result))
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    json_file.write_atomic(readme, f"{before}\n{section(result, *names)}\n{after}")
    return [picture, readme]
