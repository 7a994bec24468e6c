"""`tools/kvroof validate`: result files against results/schema.json, against themselves, and against the rules for
files that are to be accepted into results/ (see results/README.md)."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import rows
from errors import CHECK_FAILED, OK, USAGE, UserError


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("validate", help="result files against the schema, and against the rules of results/")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: every file of results/")
    parser.add_argument(
        "--rules", action="store_true", help="also the rules for files in results/: exit 1 where one is broken"
    )
    parser.set_defaults(run=run)


def result_files() -> list[Path]:
    return sorted(p for p in (rows.ROOT / "results").glob("*.json") if p.name != "schema.json")


def _unique_fraction(row: rows.Row) -> float:
    """Rows that sequences share may come from a cache each time but the first: memory delivered the unique ones."""
    scale = row.get("unique_bytes") / row.get("bytes") if row.get("unique_bytes") and row.get("bytes") else 1.0
    return float(row.get("read_fraction", 0.0)) * scale


WITHOUT_OUTPUT = ("append", "fork")  # they move rows; the tests of the caches hold them


def broken_rules(result: rows.ResultFile) -> list[str]:
    """What keeps a correct file out of results/. Each rule is stated in results/README.md."""
    broken = []
    context, build = result.context, result.context["build"]
    if context["preset"] not in ("quick", "full", "layouts"):
        broken.append(f"preset {context['preset']}: only whole quick or full sweeps are kept, and layouts")
    if not context["complete"]:
        broken.append("the sweep is not complete")
    if not build["commit"]:
        broken.append("the commit is not known")
    if build["dirty"] is not False:
        broken.append("built from a tree with changes that no commit holds")
    if build["build_type"].lower() != "release":
        broken.append(f"build type {build['build_type']}: only Release is kept")
    far_above = [row.name for row in result.rows if _unique_fraction(row) > 1.10 and row.impl == "kvroof"]
    if far_above:
        broken.append(f"{len(far_above)} rows more than 10 % above their roof, first {far_above[0]}")
    bits: dict[str, rows.Row] = {}
    for row in result.kernel_rows():
        if row.impl == "kvroof" and row.get("mode") == "reproducible" and row.get("output_hash"):
            first = bits.setdefault(re.sub("/(cache|threads|isa):[^/]*", "", row.name), row)
            if first.get("output_hash") != row.get("output_hash"):
                broken.append(f"other bits than {first.name} has: {row.name}")
    unchecked = [
        row.name
        for row in result.kernel_rows()
        if row.measured and row.impl == "kvroof" and row.get("checked") is None and row.kernel not in WITHOUT_OUTPUT
    ]
    if unchecked:
        broken.append(f"{len(unchecked)} rows whose output was not checked, first {unchecked[0]}")
    return broken


def run(args: argparse.Namespace) -> int:
    files = args.files or result_files()
    if not files:
        raise UserError("results/", "no result files there", "name files, or measure one with tools/kvroof sweep")
    checker = rows.schema_checker()
    code = OK
    for path in files:
        try:
            faults = rows.all_faults(path, checker)
        except UserError as error:
            print(f"invalid  {error}")
            code = USAGE
            continue
        if faults:
            code = USAGE
            for fault in faults:
                print(f"invalid  {path}: {fault}")
            continue
        result = rows.load(path, checker)
        broken = broken_rules(result) if args.rules else []
        for rule in broken:
            print(f"refused  {path}: {rule}")
        if broken:
            code = code or CHECK_FAILED
        else:
            print(f"ok       {path}: {len(result.rows)} rows, {result.cpu}")
    if code == USAGE:
        raise UserError("files", "not all are valid (listed above)", rows.REMAKE)
    return code
