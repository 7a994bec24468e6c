"""`tools/kvroof sweep`: measures this machine: runs kvroof_bench, shows progress, and keeps every finished row.

Rows go to a journal beside the result file as they are measured. At the end the journal becomes the result file in one
step and is removed. After Ctrl-C, a kill or a power cut, --resume goes on behind the last whole row.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import os
import platform
import re
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import Iterator, NoReturn, Protocol

import journal
import json_file
import rows
from errors import CHECK_FAILED, INTERRUPTED, OK, UserError, os_reason
from progress import Progress
from sweep_table import halving, latent_bytes, layout_ratios, notes, table


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "sweep",
        help="measures this machine: table, result file, page",
        epilog="Flags that begin with --benchmark_ go to the benchmark program unchanged (--benchmark_list_tests ...).",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--full", action="store_true", help="every context length and storage (long)")
    which.add_argument(
        "--preset",
        choices=["quick", "full", "layouts", "ci"],
        default="quick",
        help="default: quick, about 3 minutes; layouts: what of full is about layouts, chunks and batches",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="default: results/<machine>.json, or build/partial.json for a part (--filter, ci, layouts)",
    )
    parser.add_argument("--filter", metavar="REGEX", help="only the tuples whose name matches")
    parser.add_argument(
        "--memory-limit", metavar="SIZE", help="use no more than this, e.g. 4GiB (default: what is free)"
    )
    going_on = parser.add_mutually_exclusive_group()
    going_on.add_argument("--resume", action="store_true", help="go on with an interrupted sweep")
    going_on.add_argument(
        "--fresh", action="store_true", help="discard an interrupted sweep, replace the file at --out"
    )
    going_on.add_argument("--finish", action="store_true", help="measure nothing: keep what an interrupted sweep has")
    parser.add_argument("--no-page", action="store_true", help="no HTML page")
    parser.set_defaults(run=run, accepts="--benchmark_")


def machine_name() -> str:
    """A file name from the CPU's model and the threads in use: no host name, nothing private."""
    model = ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            field, _, value = line.partition(":")
            if field.strip() in ("model name", "Hardware", "cpu model"):
                model = value
                break
    except OSError:
        pass
    model = re.sub(r"\((r|tm)\)|@.*|\bcpu\b|\bprocessor\b|\d+-core", " ", model.lower())
    words = re.findall(r"[a-z0-9]+", model) or [platform.machine().lower() or "machine"]
    return "-".join(words)[:60] + f"-{len(os.sched_getaffinity(0))}t"


def _filters(args: argparse.Namespace) -> list[str]:
    given = [f"--benchmark_filter={args.filter}"] if args.filter else []
    return given + [word for word in args.passed_through if word.startswith("--benchmark_filter")]


def _is_part(preset: str, words: list[str]) -> bool:
    return preset not in ("quick", "full") or any(word.startswith("--benchmark_filter") for word in words)


def _refuse_to_lose_a_whole_sweep(path: Path) -> None:
    """A part is to be measured to `path`: what is there may be as much of a part, never a whole sweep."""
    if not path.is_file():
        return
    try:
        context = json_file.read(path, "")["context"]
        whole = context["complete"] and not _is_part(context["preset"], context["command_line"])
    except (UserError, KeyError, TypeError):
        return  # no result file of ours
    if whole:
        raise UserError(
            str(path), "holds a whole sweep, and this would put a part in its place", "give another --out, or --fresh"
        )


def output_path(args: argparse.Namespace, preset: str) -> Path:
    if args.out:
        if args.out.suffix != ".json":
            raise UserError(f"--out {args.out}", "a result file ends in .json", f"--out {args.out}.json")
        return args.out
    # A part of a sweep must not take the place of a whole one.
    return (
        rows.ROOT / "build" / "partial.json"
        if _is_part(preset, _filters(args))
        else rows.ROOT / "results" / f"{machine_name()}.json"
    )


def benchmark_program() -> Path:
    given = os.environ.get("KVROOF_BENCH")
    if given:
        if not os.access(given, os.X_OK):
            raise UserError(
                f"KVROOF_BENCH={given}", "no such program", "a kvroof_bench that was built, or leave it unset"
            )
        return Path(given)
    import build

    return Path(build.build("release", ["kvroof_bench"])) / "bench" / "kvroof_bench"


@contextlib.contextmanager
def _journal(path: Path, args: argparse.Namespace) -> Iterator[int]:
    """Holds the journal's lock (two sweeps must not write one file) and yields how many rows to go on behind."""
    try:
        file = path.open("a+b")
    except OSError as error:
        raise UserError(
            str(path), f"cannot be written ({os_reason(error)})", "give --out in a folder that can be written"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(str(path), "another sweep is writing it", "wait for that one, or give --out") from None
        try:
            yield _begin(path, args)
        finally:
            if path.exists() and _holds_nothing(path):
                path.unlink()


def _holds_nothing(path: Path) -> bool:
    """No row, and no damage either: a damaged journal is for its owner to look at."""
    if b"\n" not in path.read_bytes():
        return True
    try:
        return not journal.read(path).rows
    except UserError:
        return False


def _begin(path: Path, args: argparse.Namespace) -> int:
    if args.fresh:
        os.truncate(path, 0)
    if path.stat().st_size == 0:
        if args.finish:
            raise UserError(str(path), "no interrupted sweep there", "measure first: tools/kvroof sweep")
        if args.resume:
            sys.stderr.write(f"kvroof sweep: no interrupted sweep at {path}; starting one\n")
        return 0
    if not (args.resume or args.finish):
        raise UserError(
            str(path),
            "an interrupted sweep is kept there",
            "go on with --resume, keep its rows with --finish, or discard it with --fresh",
        )
    return _mend(path)


def _mend(path: Path) -> int:
    """Drops a torn last line; how many rows are there."""
    if b"\n" not in json_file.read_bytes(path, journal.RIGHT):
        os.truncate(path, 0)  # not even the context was whole: nothing is lost by beginning again
        return 0
    kept = journal.read(path)
    if journal.drop_torn_line(path, kept):
        sys.stderr.write(f"kvroof sweep: the last line of {path} was torn by the interruption and is dropped\n")
    return len(kept.rows)


def _die_with_parent() -> None:
    """In the child: end when the driver is killed, so that nothing goes on measuring unseen."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


class Display(Protocol):
    """What hears of a running benchmark: its progress lines, and each second in which there was none."""

    def line(self, text: str) -> None: ...
    def draw(self) -> None: ...
    def clear(self) -> None: ...


def run_benchmark(command: list[str], log_path: Path, display: Display | None = None) -> int:
    """Runs the benchmark to its end and shows its progress; its exit code."""
    read_end, write_end = os.pipe()
    signal.signal(signal.SIGTERM, _interrupt)
    with log_path.open("w", encoding="utf-8") as log:
        child = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            pass_fds=[write_end],
            preexec_fn=_die_with_parent,
            env=os.environ | {"KVROOF_PROGRESS_FD": str(write_end)},
        )
    os.close(write_end)
    progress = display or Progress()
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(read_end, selectors.EVENT_READ)
            pending = b""
            while True:
                if not selector.select(timeout=1):
                    progress.draw()
                    continue
                data = os.read(read_end, 65536)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    progress.line(line.decode("utf-8", "replace"))
        return child.wait()
    except KeyboardInterrupt:
        child.terminate()
        try:
            child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise
    finally:
        progress.clear()
        os.close(read_end)


def failure(code: int, log_path: Path, kept: int) -> UserError:
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines() if log_path.exists() else []
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    how = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
    keeps = f"{kept} rows are kept, --resume goes on" if kept else "nothing was measured"
    return UserError(
        "kvroof_bench", f"{how}: {last.removeprefix('kvroof_bench: ')}", f"{keeps}; its output is in {log_path}"
    )


def _command(args: argparse.Namespace, program: Path, preset: str, journal_path: Path, resume: bool) -> list[str]:
    command = [str(program), f"--preset={preset}", f"--journal={journal_path}"]
    if resume:
        command.append("--resume")
    if args.memory_limit is not None:
        from memory import parse_size

        command.append(f"--memory-limit={parse_size(args.memory_limit, '--memory-limit')}")
    if args.filter is not None:
        try:
            re.compile(args.filter)
        except re.error as error:
            raise UserError(
                f"--filter {args.filter}", f"not a regular expression ({error})", "such as 'MHA.*f16'"
            ) from None
        command.append(f"--benchmark_filter={args.filter}")
    return command + args.passed_through


def run(args: argparse.Namespace) -> int:
    preset = "full" if args.full else args.preset
    if any(word.startswith("--benchmark_list_tests") for word in args.passed_through):
        return subprocess.run([str(benchmark_program()), f"--preset={preset}", *args.passed_through]).returncode
    path = output_path(args, preset)
    journal_path, log_path = path.with_suffix(".journal"), path.with_suffix(".log")
    command_of = lambda program, resume: _command(args, program, preset, journal_path, resume)  # noqa: E731
    command_of(Path("kvroof_bench"), False)  # wrong flags are told before anything is built
    json_file.check_writable(path)
    going_on = (args.resume or args.finish) and journal_path.exists()
    if _is_part(preset, _filters(args)) and not (args.fresh or going_on):
        _refuse_to_lose_a_whole_sweep(path)
    with _journal(journal_path, args) as kept:
        code = OK
        if not args.finish:
            try:
                code = run_benchmark(command_of(benchmark_program(), kept > 0), log_path)
            except KeyboardInterrupt:
                kept = _rows_kept(journal_path)
                keeps = "nothing is measured yet"
                if kept:
                    keeps = f"{kept} rows are kept in {journal_path}; go on with --resume"
                sys.stderr.write(f"\nkvroof sweep: interrupted; {keeps}\n")
                return INTERRUPTED
            if code not in (OK, CHECK_FAILED):
                raise failure(code, log_path, _rows_kept(journal_path))
        result = journal.assemble(path, journal.read(journal_path))
        journal_path.unlink()
        said = log_path.read_text(encoding="utf-8", errors="replace").splitlines() if code else []
        log_path.unlink(missing_ok=True)
    report(result, page=not args.no_page)
    if code == CHECK_FAILED:
        sys.stderr.write(f"kvroof sweep: {said[-1] if said else 'kvroof_bench reported a failed check'}\n")
    return code


def _rows_kept(path: Path) -> int:
    try:
        return len(journal.read(path).rows)
    except UserError:
        return 0


def report(result: rows.ResultFile, page: bool) -> None:
    print(f"{result.words}, preset {result.context['preset']}")
    print(table(result))
    print(
        "\nread: fraction of the paired read roof. attain: of the lower of the read and the compute roof."
        "\noneDNN, scalar: their time over ours on the same tokens (above 1: slower than kvroof). Medians of pairs."
    )
    for line in [*halving(result), *layout_ratios(result), *latent_bytes(result), *notes(result)]:
        print(f"- {line}")
    print(f"\nresult  {result.path}")
    if page:
        from report_command import write_page

        try:
            print(f"page    {write_page([result], result.path.with_suffix('.html'))}")
        except UserError as error:
            print(f"no page: {error}")
