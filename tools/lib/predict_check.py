"""`predict --check`: measures points that no sweep has, their roofs beside them, and prints the errors of predictions.

The points are the benchmark's preset `check`: context lengths between those of every sweep, shapes that sweeps have and
two that none has, a window, a batch, and latent attention with and without its folds. A point whose own measurement is
in doubt (unstable, or above its roof) is measured once more; one that stays so is shown and not counted, and where that
leaves less than three quarters of the points, nothing is proven. Points beyond what the file covers, where a prediction
is marked with ~, are counted apart and promise nothing. Limits for the rest: 10 % in the median, 20 % at worst.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
from pathlib import Path

import journal
import sweep_command
from errors import CHECK_FAILED, OK, UserError
from models import STORAGE_BYTES
from predict import Checked, check_row
from predict_fit import ABSORBED, DECODE, STEP, Fit, LatentFit, Source, is_usable
from rows import ResultFile, Row
from sweep_table import duration

MEDIAN, WORST = 0.10, 0.20
ALLOWED_LOSS = 0.25  # of the points, in doubt twice: a proof by the few that are left would be none
KERNELS = (DECODE, ABSORBED, STEP)
FITTED_AS = {kernel: kernel for kernel in KERNELS} | {"window": DECODE, "batch": DECODE}  # a point's kernel: its fit's
Fits = dict[tuple[str, str, str], "Fit | LatentFit"]  # by kernel, storage, threads


def _fit(source: Source, kernel: str) -> Fit | LatentFit:
    return LatentFit(source) if kernel == STEP else Fit(source, kernel)


def fits(result: ResultFile, storage: str | None, threads: str | None, native: bool) -> tuple[Fits, list[str]]:
    """What the file can predict, and the names of what it cannot."""
    found: Fits = {}
    missing: dict[tuple[str, str], list[str]] = {}
    for kernel in KERNELS:
        for each in (storage,) if storage else STORAGE_BYTES:
            for role in (threads,) if threads else ("1", "all"):
                try:
                    found[kernel, each, role] = _fit(Source(result, each, role, native), kernel)
                except UserError:
                    missing.setdefault((kernel, role), []).append(each)
    if not found:
        raise UserError(
            str(result.path), "no rows there to predict from", "give the file of a sweep, or other --storage, --threads"
        )
    return found, [f"{kernel} {' '.join(storages)} with {role}" for (kernel, role), storages in missing.items()]


def pattern_for(found: Fits, native: bool) -> str:
    """The points of these fits as a filter on row names."""
    parts = []
    for kernel in dict.fromkeys(kernel for kernel, _, _ in found):
        names = "|".join(point for point, fitted in FITTED_AS.items() if fitted == kernel)
        storages = "|".join(dict.fromkeys(storage for k, storage, _ in found if k == kernel))
        roles = "|".join(dict.fromkeys(role for k, _, role in found if k == kernel))
        mode = "native" if native else "reproducible"
        parts.append(f"({names})/.*/storage:({storages})/.*/cache:cold/impl:kvroof/mode:{mode}/threads:({roles})/")
    return f"^({'|'.join(parts)})"


def points_of(sample: ResultFile, native: bool) -> list[Row]:
    return [
        row
        for row in sample.kernel_rows()
        if row.impl == "kvroof"
        and row.kernel in FITTED_AS
        and row.shape["n"] == 1
        and row.native == native
        and is_usable(row)
    ]


def measure(program: Path, pattern: str, native: bool) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="kvroof-check-") as folder:
        path, log = Path(folder) / "check.journal", Path(folder) / "check.log"
        command = [str(program), "--preset=check", f"--journal={path}", f"--benchmark_filter={pattern}"]
        code = sweep_command.run_benchmark(command, log)
        if code != OK:
            raise sweep_command.failure(code, log, 0)
        return points_of(journal.assemble(Path(folder) / "check.json", journal.read(path)), native)


def doubtful(row: Row) -> bool:
    return row.status != "ok" or bool(row.get("above_roof"))


def measured_points(pattern: str, native: bool) -> list[Row]:
    """The points, those in doubt measured a second time."""
    program = sweep_command.benchmark_program()  # once: the second pass must not meet another build
    rows = {row.name: row for row in measure(program, pattern, native)}
    again = [row for row in rows.values() if doubtful(row)]
    if again:
        names = "|".join(re.sub(r"[^A-Za-z0-9_:/-]", ".", row.raw["tuple"]) for row in again)
        second = measure(program, f"^({names})$", native)
        rows |= {row.name: row for row in second if row.name in rows and not doubtful(row)}
    return list(rows.values())


def _line(c: Checked) -> str:
    row = c.row
    more = f" W {row.get('W')}" if row.get("W") not in ("all", None) else ""
    more += f" B {row.shape['B']}" if row.shape["B"] > 1 else ""
    name = f"{row.kernel} {row.shape['name']} {row.raw['storage']}{more}"
    doubt = f"  not counted: {row.get('reason') or 'above its roof'}" if doubtful(row) else ""
    return (
        f"  {name:<30} {row.get('T'):>6} {row.get('threads'):>4} {duration(c.predicted_ns):>10}"
        f"{' ' if c.covered else '~'}{duration(row.ns):>10} {c.error * 100:>+7.1f}%{doubt}"
    )


def _errors(checked: list[Checked]) -> str:
    errors = [abs(c.error) * 100 for c in checked]
    return f"median {statistics.median(errors):.1f} %, worst {max(errors):.1f} %"


def _by_storage(inside: list[Checked]) -> list[str]:
    groups: dict[str, list[Checked]] = {}
    for c in inside:
        groups.setdefault(c.row.raw["storage"], []).append(c)
    if len(groups) < 2:
        return []
    return [f"    {storage:<5} {len(members):>3} points: {_errors(members)}" for storage, members in groups.items()]


def verdict(checked: list[Checked], missing: list[str]) -> tuple[str, int]:
    sure = [c for c in checked if not doubtful(c.row)]
    inside, beyond = [c for c in sure if c.covered], [c for c in sure if not c.covered]
    if not inside:
        raise UserError(
            "predict --check",
            "no point that the file covers was measured without doubt",
            "leave the machine to it alone, or give the file of a sweep that has more rows of this storage (--full)",
        )
    errors = [abs(c.error) for c in inside]
    lost = sum(c.covered for c in checked) - len(inside)
    enough = lost <= ALLOWED_LOSS * (lost + len(inside))
    good = statistics.median(errors) <= MEDIAN and max(errors) <= WORST
    lines = [
        f"  {'row':<30} {'T':>6} {'thr':>4} {'predicted':>10} {'measured':>10} {'error':>8}",
        *map(_line, checked),
        "",
        f"  error on {len(inside)} points that the fit has not seen, the roofs measured again beside each: "
        f"{_errors(inside)} (limits {MEDIAN * 100:.0f} and {WORST * 100:.0f}): "
        + ("OVER" if not good else "ok" if enough else "NOT PROVEN"),
        *_by_storage(inside),
    ]
    if beyond:
        lines.append(
            f"  ~ {len(beyond)} points beyond the sizes, groups of heads or dims of the file: {_errors(beyond)}. "
            "Such predictions promise nothing."
        )
    if len(sure) < len(checked):
        what = "" if enough else ": too many for a proof, leave the machine to it alone"
        lines.append(
            f"  {len(checked) - len(sure)} points could not be measured well enough, and are not counted{what}"
        )
    if missing:
        lines.append(f"  no rows in the file to predict from: {', '.join(missing)}")
    return "\n".join(lines), OK if good and enough else CHECK_FAILED


def run_check(result: ResultFile, storage: str | None, threads: str | None, native: bool, as_json: bool) -> int:
    found, missing = fits(result, storage, threads, native)
    checked = []
    for row in measured_points(pattern_for(found, native), native):
        fit = found.get((FITTED_AS[row.kernel], row.raw["storage"], row.raw["threads"]))
        if fit is not None:
            checked.append(check_row(fit, row))
    if not checked:
        raise UserError("predict --check", "no point could be measured here", "see why with tools/kvroof sweep")
    text, code = verdict(checked, missing)
    if as_json:
        points = [
            {
                "name": c.row.name,
                "predicted_ns": c.predicted_ns,
                "measured_ns": c.row.ns,
                "covered": c.covered,
                "counted": c.covered and not doubtful(c.row),
            }
            for c in checked
        ]
        text = json.dumps({"points": points, "within_limits": code == OK}, indent=1)
    print(text)
    return code
