#!/usr/bin/env python3
"""Stands in for kvroof_bench in the tests of the sweep: the same flags, journal and progress, made-up rows.

FAKE_BENCH is a JSON object: stop_after (kill itself after so many tuples), torn (leave half a line then), sleep
(seconds a tuple), fail ([exit code, message]), rows (how many tuples there are). For two programs in turn also: factor
and roof_factor (on kvroof's times and on those of the roofs), noise (of both, from run to run), hash (of every output),
drift (a factor on all times for every run before this one), unstable (in the first run), state (a file that counts the
runs), only (rows whose name holds this).
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time

import synthetic


KNOBS = {"factor", "roof_factor", "noise", "hash", "drift", "unstable"}


def behave(value: dict, how: dict) -> None:
    """Times and roofs of our own rows, as this program is told to differ from another."""
    runs = 0
    if "state" in how:
        with open(how["state"], "a+", encoding="utf-8") as file:
            file.write("x")
            runs = file.tell() - 1
    spread = random.Random(os.getpid())
    for row in value["benchmarks"] if how.keys() & KNOBS else ():
        if row["impl"] != "kvroof" or how.get("only", "") not in row["name"]:
            continue
        drift = how.get("drift", 1.0) ** runs * spread.lognormvariate(0, how.get("noise", 0.0))
        time, roof = drift * how.get("factor", 1.0), drift * how.get("roof_factor", 1.0)
        synthetic.scale(row, time * spread.lognormvariate(0, how.get("noise", 0.0)), 1 / roof)
        row["output_hash"] = how.get("hash", row["output_hash"])
        if how.get("unstable") and runs == 0:
            row.update(status="unstable", reason="quartiles lie more than a quarter apart")


def main() -> int:
    how = json.loads(os.environ.get("FAKE_BENCH", "{}"))
    flags = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[1:])
    known = {
        "preset",
        "journal",
        "resume",
        "memory-limit",
        "benchmark_filter",
        "benchmark_list_tests",
        "benchmark_min_time",
    }
    unknown = set(flags) - known
    if unknown:
        print(f"kvroof_bench: unknown flag --{unknown.pop()}; see --help", file=sys.stderr)
        return 2
    check = flags.get("preset") == "check"
    value = synthetic.result(preset="check" if check else "quick", latent=check)
    behave(value, how)
    tuples: dict[str, list[dict]] = {}
    for row in value["benchmarks"]:
        tuples.setdefault(row["tuple"], []).append(row)
    takes = re.compile(flags.get("benchmark_filter", ""))
    first = list(tuples)[: how.get("rows", 60)]
    wanted = [name for name in first if any(takes.search(row["name"]) for row in tuples[name])]
    if not wanted:
        print("kvroof_bench: no row of this preset matches; --benchmark_list_tests shows the names", file=sys.stderr)
        return 2
    if "benchmark_list_tests" in flags:
        print("\n".join(wanted))
        return 0
    if how.get("fail"):
        print(how["fail"][1], file=sys.stderr)
        if how["fail"][0] != 1:
            return how["fail"][0]
    start = dict(value["context"], complete=False, date_end=None, mhz_after=None, preset=flags["preset"])
    start["command_line"] = value["context"]["command_line"] = sys.argv[1:]
    done: set[str] = set()
    if "resume" in flags:
        with open(flags["journal"], encoding="utf-8") as file:
            done = {row["tuple"] for row in map(json.loads, file) if "tuple" in row}
    with open(flags["journal"], "a", encoding="utf-8") as file:
        if "resume" not in flags:
            file.write(json.dumps({"context": start}) + "\n")
        for index, name in enumerate(n for n in wanted if n not in done):
            if how.get("stop_after") == index:
                file.write('{"name": "decode/half a li' if how.get("torn") else "")
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            file.write("".join(json.dumps(row) + "\n" for row in tuples[name]))
            file.flush()
            os.write(
                int(os.environ["KVROOF_PROGRESS_FD"]),
                (
                    json.dumps({"done": index + 1, "total": len(wanted), "seconds_left": 1.0, "name": name}) + "\n"
                ).encode(),
            )
            time.sleep(how.get("sleep", 0))
        file.write(json.dumps({"context": dict(value["context"], complete=True, preset=flags["preset"])}) + "\n")
    return how.get("fail", [0])[0]


if __name__ == "__main__":
    sys.exit(main())
