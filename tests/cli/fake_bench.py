#!/usr/bin/env python3
"""Stands in for kvroof_bench in the tests of the sweep: the same flags, journal and progress, made-up rows.

FAKE_BENCH is a JSON object: stop_after (kill itself after so many tuples), torn (leave half a line then), sleep
(seconds a tuple), fail ([exit code, message]), rows (how many tuples there are).
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time

import synthetic


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
    value = synthetic.result()
    tuples: dict[str, list[dict]] = {}
    for row in value["benchmarks"]:
        tuples.setdefault(row["tuple"], []).append(row)
    wanted = [n for n in list(tuples)[: how.get("rows", 60)] if re.search(flags.get("benchmark_filter", ""), n)]
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
