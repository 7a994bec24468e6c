"""`tools/kvroof compare --rerun`: two commits on this machine, built side by side and measured again in turn.

Both are built the same way in worktrees of their own, so that neither has an old build's objects or a tree's changes. A
round is four runs, A B B A, each a process of its own: what drifts with time falls on both alike, and what differs from
process to process (where the pages lie) is part of the spread. Every pair of neighbours gives two ratios of a row, B
over A:

- time;
- time against the roof, which each run measured in turn with the row: a neighbour on this machine slows both down.

Only where both say so is a row slower or faster. A mended probe moves the second alone, a noisy machine mostly the
first.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import build
import journal
from errors import OK, UserError
from progress import clock
from rows import ROOT, Ratio, Row, key_of
from sweep_command import failure, run_benchmark

DEFAULT_FILTER = "^(decode|mla_absorbed)/.*/T:4096/.*/cache:cold/"
ORDER = "ABBA"
SLOWER, FASTER, SAME, UNCLEAR = "slower", "faster", "same", "unclear"
_RISK = 0.05  # of calling any row slower or faster where nothing changed, over all rows together


@dataclass(frozen=True)
class Commit:
    id: str
    subject: str

    @property
    def words(self) -> str:
        return f"{self.id[:12]}  {self.subject}"


@dataclass(frozen=True)
class Rerun:
    key: str
    time: Ratio  # B over A
    own: Ratio | None  # of it, what the roofs of the runs do not explain
    verdict: str
    same_bits: bool | None


@dataclass(frozen=True)
class Outcome:
    a: Commit
    b: Commit
    pairs: int
    rows: list[Rerun]
    only_a: list[str]
    only_b: list[str]

    @property
    def failed(self) -> bool:
        return any(row.verdict == SLOWER or row.same_bits is False for row in self.rows)


# ---- two builds ------------------------------------------------------------------------------------------------------


def _git(*words: str, root: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a hook sets them
    return subprocess.run(
        ["git", "-C", str(root or ROOT), *words], capture_output=True, text=True, errors="replace", env=environment
    )


def check_tree() -> None:
    if shutil.which("git") is None:
        raise UserError("compare --rerun", "git not found", "install git, or compare two result files")
    # Results are not part of what is built; a sweep that lies there uncommitted is no change.
    found = _git("status", "--porcelain", "--", ".", ":(exclude)results")
    if found.returncode:
        said = (found.stderr.strip().splitlines() or ["it said nothing"])[0]
        raise UserError(str(ROOT), f"git does not take this for a checkout ({said})", "run this in a git checkout")
    changes = found.stdout.splitlines()
    if changes:
        raise UserError(
            str(ROOT),
            f"{len(changes)} changes that no commit holds, such as {changes[0][3:]}",
            "commit or stash them: what is measured must be what a commit holds",
        )


def commit_of(word: str) -> Commit:
    found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{word}^{{commit}}")
    name = found.stdout.strip()
    if found.returncode or not name:
        raise UserError(f"--rerun {word}", "no such commit here", "name one as git does: a hash, a tag, HEAD~3")
    return Commit(name, _git("log", "-1", "--format=%s", name).stdout.strip())


def worktree(commit: Commit) -> Path:
    """A checkout of `commit` under build/, the one of last time where it is still whole."""
    path = ROOT / "build" / "rerun" / commit.id[:12]
    top = _git("rev-parse", "--show-toplevel", root=path).stdout.strip() if path.is_dir() else ""
    if top and Path(top).resolve() == path.resolve():
        held = _git("rev-parse", "HEAD", root=path).stdout.strip()
        if held == commit.id and not _git("status", "--porcelain", root=path).stdout.strip():
            return path
    _git("worktree", "remove", "--force", str(path))
    shutil.rmtree(path, ignore_errors=True)
    _git("worktree", "prune")
    made = _git("worktree", "add", "--detach", str(path), commit.id)
    if made.returncode:
        said = (made.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(str(path), f"git could not check {commit.id[:12]} out ({said})", "see git worktree list")
    return path


def program(commit: Commit) -> Path:
    # Without oneDNN, which is the same library on both sides: its rows would take most of the time.
    directory = build.build(
        "release",
        ["kvroof_bench"],
        say=lambda text: None if " OFF " in text else build.tell(text),
        root=worktree(commit),
        options=["-DCMAKE_DISABLE_FIND_PACKAGE_dnnl=ON"],
    )
    return Path(directory) / "bench" / "kvroof_bench"


# ---- in turn ---------------------------------------------------------------------------------------------------------


class _Turns:
    """Stands in for a sweep's progress: how many of the runs are over."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.began, self.terminal = total, 0, time.monotonic(), sys.stderr.isatty()

    def line(self, _: str) -> None:
        pass

    def text(self) -> str:
        spent = time.monotonic() - self.began
        left = f", {clock(spent / self.done * (self.total - self.done))} left" if self.done else ""
        return f"  {self.done}/{self.total} runs{left}"

    def draw(self) -> None:
        if self.terminal:
            print(f"\r{self.text():<40}", end="", file=sys.stderr, flush=True)

    def over(self) -> None:
        self.done += 1
        if not self.terminal and self.done % len(ORDER) == 0:
            print(self.text(), file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.terminal:
            print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)


def run_once(program: Path, who: str, flags: list[str], folder: Path, turns: _Turns) -> dict[str, Row]:
    """The measured rows of our own kernels, by key."""
    path, log = folder / "run.journal", folder / "run.log"
    path.unlink(missing_ok=True)
    code = run_benchmark([str(program), f"--journal={path}", *flags], log, turns)
    if code != OK:
        error = failure(code, log, 0)
        raise UserError(f"commit {who}", str(error), "choose rows that both commits can measure")
    kept = journal.read(path)
    rows = [Row(row | {"definition": kept.context.get("definition")}) for row in kept.rows]
    return {key_of(row.name): row for row in rows if row.raw.get("impl") == "kvroof" and row.measured}


Pair = tuple[dict[str, Row], dict[str, Row]]


def measure(a: Callable[[], dict[str, Row]], b: Callable[[], dict[str, Row]], rounds: int) -> list[Pair]:
    """Pairs of neighbouring runs. Ctrl-C ends it: whole rounds are kept, so that no order is left out of balance."""
    pairs: list[Pair] = []
    try:
        for _ in range(rounds):
            runs = [{"A": a, "B": b}[who]() for who in ORDER]
            pairs += [(runs[0], runs[1]), (runs[3], runs[2])]
    except KeyboardInterrupt:
        if not pairs:
            raise
        sys.stderr.write(f"\nkvroof compare: interrupted; judged by the {len(pairs) // 2} whole round(s)\n")
    return pairs


# ---- verdicts --------------------------------------------------------------------------------------------------------


def _fraction(a: Row, b: Row) -> tuple[float, float] | None:
    for name in ("attainable_fraction", "read_fraction"):
        if a.get(name) and b.get(name):
            return a.get(name), b.get(name)
    return None


def _ratio(values: list[float]) -> Ratio:
    if len(values) == 1:
        return Ratio(values[0], values[0], values[0], 1)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Ratio(median, low, high, len(values))


def chance(values: list[float]) -> float:
    """How likely so few of the ratios lie on the other side of 1 if nothing changed (sign test, two-sided)."""
    n = sum(value != 1 for value in values)
    fewer = min(sum(value > 1 for value in values), sum(value < 1 for value in values))
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(fewer + 1)) / 2**n)


def verdict_of(time_ratios: list[float], own: list[float], tolerance: float, risk: float) -> str:
    kinds = [time_ratios, own] if own else [time_ratios]
    medians = [statistics.median(values) for values in kinds]
    if all(abs(median - 1) <= tolerance for median in medians):
        return SAME
    if all(chance(values) <= risk for values in kinds):
        if all(median > 1 + tolerance for median in medians):
            return SLOWER
        if all(median < 1 - tolerance for median in medians):
            return FASTER
    return UNCLEAR


def _same_bits(rows: list[tuple[Row, Row]]) -> bool | None:
    """None where bits need not agree: native rows, rows without a hash, two numerics definitions."""
    both = [row for pair in rows for row in pair]
    if any(row.get("mode") != "reproducible" or row.get("output_hash") is None for row in both):
        return None
    if len({row.get("definition") for row in both}) > 1:
        return None
    return len({row.get("output_hash") for row in both}) == 1


def judge(pairs: list[Pair], tolerance: float) -> list[Rerun]:
    keys = [key for key in pairs[0][0] if all(key in a and key in b for a, b in pairs)]
    found = []
    for key in keys:
        rows = [(a[key], b[key]) for a, b in pairs]
        times = [b.ns / a.ns for a, b in rows]
        fractions = [_fraction(a, b) for a, b in rows]
        own = [f[0] / f[1] for f in fractions if f]
        own = own if len(own) == len(rows) else []
        found.append(
            Rerun(
                key,
                _ratio(times),
                _ratio(own) if own else None,
                verdict_of(times, own, tolerance, _RISK / len(keys)),
                _same_bits(rows),
            )
        )
    return found


def pairs_needed(rows: int) -> int:
    """With fewer pairs not even ratios that all agree can be told from chance."""
    return math.ceil(math.log2(2 * rows / _RISK))


def rerun(words: list[str], pattern: str | None, preset: str, rounds: int, seconds: float, tolerance: float) -> Outcome:
    if len(words) > 2:
        raise UserError("--rerun", f"{len(words)} commits", "name the base, and the one to judge unless that is HEAD")
    check_tree()
    a, b = commit_of(words[0]), commit_of(words[1] if len(words) == 2 else "HEAD")
    programs = [program(commit) for commit in (a, b)]
    flags = [f"--preset={preset}", f"--benchmark_filter={pattern or DEFAULT_FILTER}", f"--benchmark_min_time={seconds}"]
    turns = _Turns(rounds * len(ORDER))
    with tempfile.TemporaryDirectory(prefix="kvroof-rerun-") as folder:

        def runner(built: Path, commit: Commit) -> Callable[[], dict[str, Row]]:
            def go() -> dict[str, Row]:
                rows = run_once(built, commit.id[:12], flags, Path(folder), turns)
                turns.over()
                return rows

            return go

        pairs = measure(runner(programs[0], a), runner(programs[1], b), rounds)
    rows = judge(pairs, tolerance)
    if not rows:
        raise UserError(
            f"{a.id[:12]} and {b.id[:12]}", "no row was measured in every run", "choose others with --filter"
        )
    sides = [set().union(*(pair[i] for pair in pairs)) - {row.key for row in rows} for i in (0, 1)]
    return Outcome(a, b, len(pairs), rows, sorted(sides[0] - sides[1]), sorted(sides[1] - sides[0]))
