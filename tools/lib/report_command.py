"""`tools/kvroof report`: result files to one self-contained HTML page, and the measured part of the README."""

from __future__ import annotations

import argparse
import html
from pathlib import Path

import json_file
import rows
from errors import OK, UserError
from page_data import page_data
from validate import result_files

PAGE = Path(__file__).resolve().parent / "page"
SCRIPTS = ("data.js", "charts.js", "latent.js", "page.js")


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("report", help="result files to one self-contained HTML page")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: every file of results/")
    parser.add_argument(
        "--out", type=Path, metavar="PAGE", help="default: beside the file, or build/report.html for many"
    )
    parser.add_argument(
        "--readme", action="store_true", help="instead: the picture beside FILE, and the measured part of README.md"
    )
    parser.set_defaults(run=run)


def plotly_script() -> str:
    """plotly.min.js out of the Python package, which is not imported: the file is all that is needed."""
    import importlib.util
    import sys

    folders = [Path(p) / "plotly" for p in sys.path]
    folders += [p / "plotly" for p in (rows.ROOT / "build" / "venv" / "lib").glob("python3*/site-packages")]
    spec = importlib.util.find_spec("plotly")
    folders += [Path(p) for p in spec.submodule_search_locations or []] if spec else []
    for folder in folders:
        script = folder / "package_data" / "plotly.min.js"
        if script.is_file():
            return script.read_text(encoding="utf-8")
    raise UserError("page", "plotly is not installed", "run tools/setup.sh --again report, then tools/kvroof report")


def page(results: list[rows.ResultFile], comparison: str = "") -> str:
    """The whole page. `comparison`: sections that stand before the charts, as HTML."""
    plotly = plotly_script()
    title = results[0].cpu if len(results) == 1 else f"{len(results)} machines"
    text = (PAGE / "page.html").read_text(encoding="utf-8")
    script = "\n".join((PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    # One pass over the template: what is put in is not looked at again, whatever it holds.
    parts = {
        "title": html.escape(f"{title}: kvroof"),
        "style": (PAGE / "page.css").read_text(encoding="utf-8"),
        "plotly": plotly.replace("</script", "<\\/script"),
        "data": page_data(results),
        "comparison": comparison,
        "script": script,
    }
    pieces = text.split("{{")
    return pieces[0] + "".join(parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces[1:]))


def write_page(results: list[rows.ResultFile], path: Path) -> Path:
    json_file.write_atomic(path, page(results))
    return path


def run(args: argparse.Namespace) -> int:
    files = args.files or result_files()
    if not files:
        raise UserError("results/", "no result files there", "name files, or measure one with tools/kvroof sweep")
    results = rows.load_all(files)
    if args.readme:
        from readme import write_readme

        if len(results) != 1:
            raise UserError("--readme", f"{len(results)} files", "name the one file that the README shows")
        for path in write_readme(results[0]):
            print(path)
        return OK
    default = files[0].with_suffix(".html") if len(files) == 1 else rows.ROOT / "build" / "report.html"
    print(write_page(results, args.out or default))
    return OK
