"""`tools/kvroof compare`: two or more result files; the first is what the others are compared with. With --rerun, two
commits on this machine, measured again in turn.
"""

from __future__ import annotations

import argparse
import html
import json
from pathlib import Path
from typing import Any

import compare as comparing
import json_file
import rerun as rerunning
from compare import Comparison, Pair, median
from errors import CHECK_FAILED, OK, UserError
from progress import short_name
from rerun import Outcome, Rerun
from rows import Ratio, load_all

_SHOWN = 40  # rows of a text table; --all shows every one


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "compare", help="two or more machines: time ratio, roof ratio, and whether the roofs explain it"
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="result files; the first is the base")
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
    again = parser.add_argument_group("two commits on this machine, built and measured again in turn")
    again.add_argument(
        "--rerun",
        nargs="+",
        metavar=("BASE", "COMMIT"),
        help="instead of files: BASE and the commit to judge (default: HEAD); exit code 1 where a row is slower",
    )
    again.add_argument("--filter", metavar="REGEX", help=f"only these rows (default: {rerunning.DEFAULT_FILTER})")
    again.add_argument("--preset", choices=["quick", "full", "ci"], default="quick", help="whose rows (default: quick)")
    again.add_argument("--rounds", type=int, default=6, metavar="N", help="of four runs, A B B A (default: 6)")
    again.add_argument("--seconds", type=float, default=0.3, metavar="S", help="for one row in one run (default: 0.3)")
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
    verdict = ", ".join([*([] if pair.a.is_roof else [pair.verdict]), *pair.wrong_roofs]) + bits
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


def _listed(c: Comparison) -> list[str]:
    """Every row that has no partner."""
    lines = [f"  only on {who}: {row.key}" for who, rows in (("A", c.only_a), ("B", c.only_b)) for row in rows]
    return lines + [f"  without a time on one side: {row.key}" for row, _ in c.not_measured]


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
    wrong = [p for p in c.pairs if p.wrong_roofs]
    if wrong:
        lines.append(
            f"above a roof, which is wrong there: {len(wrong)} rows, first {short_name(wrong[0].a.name)} "
            f"({', '.join(wrong[0].wrong_roofs)})"
        )
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
    return "\n".join(lines + [""] + _remarks(c) + (_listed(c) if everything else []))


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


def _html_table(headings: list[str], cells: list[list[str]], left: set[int]) -> str:
    def line(tag: str, words: list[str]) -> str:
        kinds = ("" if i in left else ' class="number"' for i in range(len(words)))
        return "<tr>" + "".join(f"<{tag}{k}>{html.escape(w)}</{tag}>" for k, w in zip(kinds, words)) + "</tr>"

    body = "".join(line("td", cell) for cell in cells)
    return f'<div class="scroll"><table><thead>{line("th", headings)}</thead><tbody>{body}</tbody></table></div>'


def as_html(c: Comparison, everything: bool) -> str:
    """A section of the page of all machines."""
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in [*_head(c), *_remarks(c)])
    parts = [
        f'<section class="comparison"><h2>{html.escape(f"{c.b.name} against {c.a.name}")}</h2>',
        '<p class="note">Time and roofs: B over A. Fractions: of attainable. Medians over the rows of a family.</p>',
        f"<ul>{lines}</ul>",
        _html_table(_SUMMARY, [_summary_cells(name, pairs) for name, pairs in c.families().items()], {0}),
    ]
    chosen = _chosen(c, everything)
    if chosen:
        what = "Every row" if everything else "Rows that the roofs do not explain, farthest first"
        parts += [f"<h3>{what}</h3>", _html_table(_HEADINGS, [_row_cells(p) for p in chosen], {0, len(_HEADINGS) - 1})]
    return "".join(parts) + "</section>"


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
                "wrong_roofs": p.wrong_roofs,
                "same_bits": p.same_bits,
            }
            for p in c.pairs
        ],
    }


_RERUN = ["row", "time B/A", "quartiles", "against the roof", "quartiles", "verdict"]


def _rerun_cells(row: Rerun) -> list[str]:
    def words(ratio: Ratio | None) -> list[str]:
        return ["", ""] if ratio is None else [f"{ratio.median:.3f}", f"{ratio.low:.3f}-{ratio.high:.3f}"]

    bits = "" if row.same_bits is not False else ", OTHER BITS"
    return [short_name(row.key), *words(row.time), *words(row.own), row.verdict + bits]


def _rerun_remarks(o: Outcome) -> list[str]:
    lines = []
    if o.a.id == o.b.id:
        lines.append("A and B are one commit: what is shown is the noise of this machine")
    needed = rerunning.pairs_needed(len(o.rows))
    if o.pairs < needed:
        lines.append(
            f"{o.pairs} pairs cannot tell {len(o.rows)} rows from chance, however they agree: give --rounds "
            f"{-(-needed // 2)}, or fewer rows with --filter"
        )
    for who, keys in (("A", o.only_a), ("B", o.only_b)):
        if keys:
            lines.append(f"measured by {who} alone: {len(keys)} rows, such as {short_name(keys[0])}")
    other = [row for row in o.rows if row.same_bits is False]
    if other:
        lines.append(f"FAILED: {len(other)} reproducible rows have other bits, first {other[0].key}")
    counts = [f"{sum(row.verdict == v for row in o.rows)} {v}" for v in _RERUN_VERDICTS]
    return [*lines, f"{len(o.rows)} rows: {', '.join(counts)}"]


_RERUN_VERDICTS = (rerunning.SLOWER, rerunning.FASTER, rerunning.SAME, rerunning.UNCLEAR)


def rerun_text(o: Outcome, form: str) -> str:
    head = [f"A  {o.a.words}", f"B  {o.b.words}"]
    how = (
        f"{o.pairs} pairs of runs, A B and B A by turns. Below 1, B is faster. Slower or faster: only where the time "
        "and the time against the paired roof agree, by more than the tolerance and more than chance."
    )
    cells = [_rerun_cells(row) for row in o.rows]
    if form == "markdown":
        lines = [f"- {line}" for line in [*head, *_rerun_remarks(o)]]
        return "\n".join([*lines, "", how, "", *_markdown_table(_RERUN, cells)])
    return "\n".join([*head, "", how, "", *_grid(_RERUN, cells), "", *_rerun_remarks(o)])


def rerun_json(o: Outcome) -> dict[str, Any]:
    def ratio(value: Ratio | None) -> dict[str, float] | None:
        return None if value is None else {"median": value.median, "low": value.low, "high": value.high}

    return {
        "a": {"commit": o.a.id, "subject": o.a.subject},
        "b": {"commit": o.b.id, "subject": o.b.subject},
        "pairs": o.pairs,
        "only_a": o.only_a,
        "only_b": o.only_b,
        "rows": [
            {
                "key": row.key,
                "time_ratio": ratio(row.time),
                "ratio_against_roof": ratio(row.own),
                "verdict": row.verdict,
                "same_bits": row.same_bits,
            }
            for row in o.rows
        ],
    }


def _run_again(args: argparse.Namespace) -> int:
    if args.files:
        raise UserError("--rerun", f"also a file ({args.files[0]})", "compare either files or commits")
    if args.format == "html":
        raise UserError("--format html", "a page is made of result files", "text, json or markdown with --rerun")
    for flag, value, most in (("--rounds", args.rounds, 1000), ("--seconds", args.seconds, 600)):
        if not 0 < value <= most:
            raise UserError(flag, f"{value} is out of range", f"more than 0, at most {most}")
    if args.out:
        json_file.check_writable(args.out)
    outcome = rerunning.rerun(args.rerun, args.filter, args.preset, args.rounds, args.seconds, args.tolerance)
    text = json.dumps(rerun_json(outcome), indent=1) if args.format == "json" else rerun_text(outcome, args.format)
    _hand_over(text, args.out)
    return CHECK_FAILED if outcome.failed else OK


def _hand_over(text: str, out: Path | None) -> None:
    if out:
        json_file.write_atomic(out, text + "\n")
        print(out)
    else:
        print(text)


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.tolerance < 1:
        raise UserError("--tolerance", f"{args.tolerance}", "a number from 0 to 1, such as 0.05")
    if args.rerun:
        return _run_again(args)
    if len(args.files) < 2:
        given = "one file" if args.files else "no file"
        raise UserError("files", given, "name two or more, the first is the base; or --rerun BASE for two commits")
    base, *others = load_all(args.files)
    comparisons = [comparing.compare(base, other, args.tolerance) for other in others]
    if args.format == "html":
        from report_command import page

        text = page([base, *others], "".join(as_html(c, args.all) for c in comparisons))
    elif args.format == "json":
        text = json.dumps({"comparisons": [as_json(c) for c in comparisons]}, indent=1, allow_nan=False)
    else:
        form = as_markdown if args.format == "markdown" else as_text
        text = "\n\n".join(form(c, args.all) for c in comparisons)
    _hand_over(text, args.out)
    return CHECK_FAILED if any(c.different_bits for c in comparisons) else OK
