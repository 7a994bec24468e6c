"""`tools/kvroof compare`: two or more result files; the first is what the others are compared with."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import compare as comparing
import json_file
from compare import Comparison, Pair, median
from errors import CHECK_FAILED, OK, UserError
from progress import short_name
from rows import load_all

_SHOWN = 40  # rows of a text table; --all shows every one


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "compare", help="two or more machines: time ratio, roof ratio, and whether the roofs explain it"
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="result files; the first is the base")
    parser.add_argument("--format", choices=["text", "json", "markdown", "html"], default="text")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write there instead of printing")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.05,
        metavar="X",
        help="a quotient this near to 1 is explained (default 0.05)",
    )
    parser.add_argument("--all", action="store_true", help="every row, not only the ones that the roofs do not explain")
    parser.set_defaults(run=run)


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _row_cells(pair: Pair) -> list[str]:
    who = "" if pair.a.impl in ("kvroof", "probe") else f" {pair.a.impl}"
    size = (
        f" {pair.a.get('bytes')} bytes"
        if pair.a.kernel == "roof_read"
        else f" {pair.a.get('op', '')}"
        if pair.a.is_roof
        else ""
    )
    between = "" if pair.low is None else f"{pair.low:.2f}-{pair.high:.2f}"
    bits = {True: "", False: " OTHER BITS", None: ""}[pair.same_bits]
    verdict = ("" if pair.a.is_roof else pair.verdict) + bits
    return [
        short_name(pair.a.name) + who + size,
        _number(pair.time_ratio),
        _number(pair.read_roof_ratio),
        _number(pair.compute_roof_ratio),
        _number(pair.fraction_a),
        _number(pair.fraction_b),
        between,
        verdict,
    ]


_HEADINGS = ["row", "time", "read roof", "compute", "fraction A", "B", "B/A", "verdict"]


def _summary_cells(name: str, pairs: list[Pair]) -> list[str]:
    counts = [str(sum(pair.verdict == verdict for pair in pairs)) for verdict in comparing.VERDICTS]
    if pairs[0].a.is_roof:
        counts = [""] * len(counts)
    return [
        name,
        str(len(pairs)),
        _number(median([p.time_ratio for p in pairs])),
        _number(median([p.read_roof_ratio for p in pairs])),
        _number(median([p.fraction_a for p in pairs])),
        _number(median([p.fraction_b for p in pairs])),
        *counts,
    ]


_SUMMARY = ["family", "rows", "time", "read roof", "fraction A", "B", "explained", "better", "worse", "unclear"]


def _grid(headings: list[str], cells: list[list[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in [headings, *cells]) for i in range(len(headings))]
    left = {0, len(headings) - 1} if headings is _HEADINGS else {0}
    return [
        "  "
        + "  ".join(f"{c:<{w}}" if i in left else f"{c:>{w}}" for i, (c, w) in enumerate(zip(line, widths))).rstrip()
        for line in [headings, *cells]
    ]


def _chosen(c: Comparison, everything: bool) -> list[Pair]:
    """The rows worth reading: what the roofs do not explain, farthest from 1 first."""
    if everything:
        return c.pairs
    odd = [
        p
        for p in c.pairs
        if p.a.impl == "kvroof" and (p.verdict in (comparing.BETTER, comparing.WORSE) or p.same_bits is False)
    ]
    return sorted(odd, key=lambda p: (p.same_bits is not False, -abs((p.fraction_b or 1) / (p.fraction_a or 1) - 1)))[
        :_SHOWN
    ]


def _head(c: Comparison) -> list[str]:
    lines = [
        f"A  {c.a.name}: {c.a.words}, commit {c.a.commit}",
        f"B  {c.b.name}: {c.b.words}, commit {c.b.commit}",
    ]
    return lines


def _remarks(c: Comparison) -> list[str]:
    lines = [f"WARNING: {warning}" for warning in c.warnings]
    hashed = [p for p in c.pairs if p.same_bits is not None]
    if c.different_bits:
        lines.append(
            f"FAILED: {len(c.different_bits)} of {len(hashed)} reproducible rows have other bits on B, "
            f"first {c.different_bits[0].a.key}"
        )
    elif hashed:
        lines.append(f"the same bits on all {len(hashed)} reproducible rows")
    for who, rows in (("A", c.only_a), ("B", c.only_b)):
        if rows:
            lines.append(
                f"only on {who}: {len(rows)} rows, such as {', '.join(short_name(row.name) for row in rows[:3])}"
            )
    if c.not_measured:
        lines.append(
            f"without a time on one side: {len(c.not_measured)} rows, such as {short_name(c.not_measured[0][0].name)}"
        )
    return lines


def as_text(c: Comparison, everything: bool) -> str:
    lines = [
        *_head(c),
        "",
        "Time and roofs: B over A. Fractions: of attainable. Medians over the rows of a family.",
        "",
    ]
    lines += _grid(_SUMMARY, [_summary_cells(name, pairs) for name, pairs in c.families().items()])
    chosen = _chosen(c, everything)
    if chosen:
        lines += ["", "Every row:" if everything else "Rows that the roofs do not explain, farthest first:", ""]
        lines += _grid(_HEADINGS, [_row_cells(pair) for pair in chosen])
    return "\n".join(lines + [""] + _remarks(c))


def _markdown_table(headings: list[str], cells: list[list[str]]) -> list[str]:
    clean = [[cell.replace("|", "\\|") for cell in line] for line in [headings, *cells]]
    return [
        f"| {' | '.join(clean[0])} |",
        "|" + " --- |" * len(headings),
        *(f"| {' | '.join(line)} |" for line in clean[1:]),
    ]


def as_markdown(c: Comparison, everything: bool) -> str:
    lines = [f"## {c.b.name} against {c.a.name}", "", *(f"- {line}" for line in [*_head(c), *_remarks(c)]), ""]
    lines += _markdown_table(_SUMMARY, [_summary_cells(name, pairs) for name, pairs in c.families().items()])
    chosen = _chosen(c, everything)
    return "\n".join(lines + ([""] + _markdown_table(_HEADINGS, [_row_cells(p) for p in chosen]) if chosen else []))


def as_json(c: Comparison) -> dict[str, Any]:
    def side(result) -> dict[str, Any]:
        return {
            "file": result.path.name,
            "cpu": result.cpu,
            "threads": result.all_threads,
            "isa": result.isa,
            "commit": result.context["build"]["commit"],
            "definition": result.context["definition"],
        }

    return {
        "a": side(c.a),
        "b": side(c.b),
        "warnings": c.warnings,
        "different_bits": [p.a.key for p in c.different_bits],
        "only_a": [r.key for r in c.only_a],
        "only_b": [r.key for r in c.only_b],
        "not_measured": [a.key for a, _ in c.not_measured],
        "rows": [
            {
                "key": p.a.key,
                "time_ratio": p.time_ratio,
                "read_roof_ratio": p.read_roof_ratio,
                "compute_roof_ratio": p.compute_roof_ratio,
                "fraction_a": p.fraction_a,
                "fraction_b": p.fraction_b,
                "fraction_ratio_low": p.low,
                "fraction_ratio_high": p.high,
                "verdict": p.verdict,
                "same_bits": p.same_bits,
            }
            for p in c.pairs
        ],
    }


def run(args: argparse.Namespace) -> int:
    if len(args.files) < 2:
        raise UserError("compare", "one file", "name two or more; the first is the base")
    if not 0 <= args.tolerance < 1:
        raise UserError("--tolerance", f"{args.tolerance}", "a number from 0 to 1, such as 0.05")
    base, *others = load_all(args.files)
    comparisons = [comparing.compare(base, other, args.tolerance) for other in others]
    if args.format == "html":
        from report_command import page

        text = page([base, *others])
    elif args.format == "json":
        text = json.dumps({"comparisons": [as_json(c) for c in comparisons]}, indent=1, allow_nan=False)
    else:
        form = as_markdown if args.format == "markdown" else as_text
        text = "\n\n".join(form(c, args.all) for c in comparisons)
    if args.out:
        json_file.write_atomic(args.out, text + "\n")
        print(args.out)
    else:
        print(text)
    return CHECK_FAILED if any(c.different_bits for c in comparisons) else OK
