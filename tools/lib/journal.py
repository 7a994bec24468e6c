"""The journal of a sweep: one JSON object a line, first the context, then rows as they are measured.

A line is whole or it was never written: only the last one can be torn (a kill, a power cut), and that one is dropped.
Anything else that is wrong in a journal was not done by an interruption and is an error.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import json_file
import rows
from errors import UserError, os_reason

RIGHT = "remove the file to start over; every line must be as kvroof_bench wrote it"
# What tells two machines or two builds apart: a journal goes on only where these stay the same.
_SAME = (
    ("schema",),
    ("definition",),
    ("preset",),
    ("machine", "cpu_model", "value"),
    ("machine", "isa"),
    ("threads", "all"),
    ("build", "commit"),
    ("build", "compiler"),
    ("build", "build_type"),
)


@dataclass(frozen=True)
class Journal:
    context: dict[str, Any]
    rows: list[dict[str, Any]]
    torn_at: int | None  # where the torn last line begins; None where there is none

    def value(self) -> dict[str, Any]:
        return {"context": self.context, "benchmarks": self.rows}


def _at(value: Any, steps: tuple[str, ...]) -> Any:
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _merge_context(path: Path, number: int, old: dict[str, Any] | None, new: Any) -> dict[str, Any]:
    """A later context line brings what is known only at the end; it must speak of the same machine and build."""
    where = f"{path}, line {number}"
    if not isinstance(new, dict):
        raise UserError(where, "the context is not an object", RIGHT)
    if old is None:
        return new
    for steps in _SAME:
        if _at(old, steps) != _at(new, steps):
            raise UserError(
                where,
                f"goes on with another {'.'.join(steps)} ({_at(old, steps)}, then {_at(new, steps)})",
                "finish a sweep with the build that began it, or start over with --fresh",
            )
    return old | {name: value for name, value in new.items() if name != "date"}


def read(path: Path) -> Journal:
    data = json_file.read_bytes(path, RIGHT)
    end = data.rfind(b"\n") + 1
    context: dict[str, Any] | None = None
    by_name: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(data[:end].split(b"\n")[:-1], 1):
        where = f"{path}, line {number}"
        try:
            value = json_file.parse(line.decode("utf-8"), where, RIGHT)
        except UnicodeDecodeError:
            raise UserError(where, "not UTF-8 text", RIGHT) from None
        if not isinstance(value, dict):
            raise UserError(where, "not an object", RIGHT)
        if set(value) == {"context"}:
            context = _merge_context(path, number, context, value["context"])
        elif context is None:
            raise UserError(where, "a journal begins with its context", RIGHT)
        elif not isinstance(value.get("name"), str):
            raise UserError(where, "a row without a name", RIGHT)
        else:
            # An interrupted tuple is measured again as a whole; its later rows replace the earlier ones.
            by_name.pop(value["name"], None)
            by_name[value["name"]] = value
    if context is None:
        raise UserError(str(path), "holds no whole line", RIGHT)
    return Journal(context, list(by_name.values()), end if end < len(data) else None)


def drop_torn_line(path: Path, journal: Journal) -> bool:
    """Cuts the torn last line off, so that the next row begins on a line of its own."""
    if journal.torn_at is None:
        return False
    try:
        with path.open("r+b") as file:
            file.truncate(journal.torn_at)
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(str(path), f"cannot be mended ({os_reason(error)})", "make it writable") from None
    return True


def file_text(value: dict[str, Any]) -> str:
    """The assembled file: the context readable, each row on a line of its own, so that two files can be compared."""
    context = json.dumps(value["context"], indent=1, ensure_ascii=False, allow_nan=False).replace("\n", "\n ")
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")) for row in value["benchmarks"]]
    body = ",\n  ".join(lines)
    return f'{{\n "context": {context},\n "benchmarks": [\n  {body}\n ]\n}}\n'


def assemble(path: Path, journal: Journal) -> rows.ResultFile:
    """Checks the rows against the schema, then writes the result file in one step."""
    value = journal.value()
    if not journal.rows:
        raise UserError(
            str(path), "no row was measured", "widen --filter; kvroof_bench --benchmark_list_tests shows all names"
        )
    found = list(rows.faults(value))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise UserError(str(path), f"not written, as the journal breaks the schema: {found[0]}{more}", RIGHT)
    json_file.write_atomic(path, file_text(value))
    return rows.from_value(path, value)
