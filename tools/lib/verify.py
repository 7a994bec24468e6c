"""`tools/kvroof verify`: exactness on this machine, as a table: every kernel x ISA x storage against the references.

kvroof_verify does the work and prints one JSON object a line:
  {"kernel": "decode_attention", "isa": "avx512", "storage": "f16", "layout": "paged", "against": "lane twin",
   "cases": 16, "misses": 0, "error_over_bound": null, "worst": null, "status": "ok", "reason": null}
status is ok, failed or skipped (with the reason); worst describes the first miss and how to reproduce it; against the
oracle, error_over_bound is the largest share of the stated bound that was used. Layouts share a line of the table.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path
from typing import Any

import json_file
from errors import CHECK_FAILED, OK, UserError

RIGHT = "rebuild it: tools/kvroof test"
_TEXT = ("kernel", "isa", "storage", "against", "status")


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("verify", help="exactness on this machine: every kernel x ISA x storage, as a table")
    parser.set_defaults(run=run)


def verify_program() -> Path:
    given = os.environ.get("KVROOF_VERIFY")
    if given:
        if not os.access(given, os.X_OK):
            raise UserError(
                f"KVROOF_VERIFY={given}", "no such program", "a kvroof_verify that was built, or leave it unset"
            )
        return Path(given)
    import build

    directory = Path(build.build("release", ["kvroof_verify"]))
    found = [p for p in directory.rglob("kvroof_verify") if os.access(p, os.X_OK) and p.is_file()]
    if not found:
        raise UserError(str(directory), "kvroof_verify was not built", RIGHT)
    return found[0]


def parse(output: str) -> list[dict[str, Any]]:
    checks = []
    for number, line in enumerate(output.splitlines(), 1):
        where = f"kvroof_verify, line {number}"
        value = json_file.parse(line, where, RIGHT)
        if (
            not isinstance(value, dict)
            or any(not isinstance(value.get(name), str) for name in _TEXT)
            or any(type(value.get(name)) is not int for name in ("cases", "misses"))
        ):
            raise UserError(where, "not a check (kernel, isa, storage, against, cases, misses, status)", RIGHT)
        checks.append(value)
    if not checks:
        raise UserError("kvroof_verify", "reported no check", RIGHT)
    return checks


def _cell(checks: list[dict[str, Any]]) -> str:
    """What one reference says of one kernel, ISA and storage, over all layouts."""
    if not checks:
        return ""
    misses = sum(max(check["misses"], missed(check)) for check in checks)
    if misses:
        return f"{misses} MISSED"
    if all(check["status"] == "skipped" for check in checks):
        return "skipped"
    cases = sum(check["cases"] for check in checks)
    shares = [check["error_over_bound"] for check in checks if isinstance(check.get("error_over_bound"), (int, float))]
    return f"{cases} within {max(shares):.2f} of bound" if shares else f"{cases} same"


def table(checks: list[dict[str, Any]]) -> str:
    references = list(dict.fromkeys(check["against"] for check in checks))
    lines = [["kernel", "isa", "storage", *references]]
    for key in dict.fromkeys((check["kernel"], check["isa"], check["storage"]) for check in checks):
        own = [check for check in checks if (check["kernel"], check["isa"], check["storage"]) == key]
        lines.append([*key, *(_cell([check for check in own if check["against"] == name]) for name in references)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths)).rstrip() for line in lines)


def remarks(checks: list[dict[str, Any]]) -> list[str]:
    """Each miss with its place, each reason for skipping once."""
    lines = [
        f"FAILED  {check['kernel']} {check['isa']} {check['storage']} {check.get('layout') or ''} "
        f"against {check['against']}: {check.get('worst') or check.get('reason') or 'no case ran'}"
        for check in checks
        if missed(check)
    ]
    skipped = [
        f"skipped  {check['kernel']} {check['isa']}: {check['reason']}"
        for check in checks
        if check["status"] == "skipped" and not missed(check)
    ]
    return lines + list(dict.fromkeys(skipped))


def missed(check: dict[str, Any]) -> bool:
    """A check that ran no case proves nothing and counts as a miss, unless it says why it was skipped."""
    if check["status"] == "skipped":
        return not check.get("reason")
    return check["status"] != "ok" or check["misses"] != 0 or check["cases"] == 0


def run(args: argparse.Namespace) -> int:
    done = subprocess.run([str(verify_program())], stdout=subprocess.PIPE, text=True, errors="replace")
    if done.returncode not in (OK, CHECK_FAILED):
        raise UserError("kvroof_verify", f"ended with exit code {done.returncode}", RIGHT)
    checks = parse(done.stdout)
    print(table(checks))
    print("\n".join(["", *remarks(checks)]).rstrip())
    failed = [check for check in checks if missed(check)]
    skipped = sum(check["status"] == "skipped" for check in checks)
    print(
        f"\n{len(checks) - len(failed) - skipped} of {len(checks)} checks hold"
        + (f", {skipped} skipped" if skipped else "")
        + (f", {len(failed)} FAILED" if failed else "")
    )
    return CHECK_FAILED if failed or done.returncode == CHECK_FAILED else OK
