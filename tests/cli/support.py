"""What every test of the commands needs: run one as a user would, and look at what it said and left behind."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "lib"))

import cli  # noqa: E402
import synthetic  # noqa: E402
from synthetic_machine import MACHINES, Machine  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CLI = ROOT / "tools" / "lib" / "cli.py"
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@functools.cache
def _quick(seed_of: str) -> str:
    machine = next((m for m in MACHINES if m.name == seed_of), Machine())
    return json.dumps(synthetic.result(machine))


def quick_result(machine: str = "") -> dict[str, Any]:
    """A made-up quick sweep, a fresh copy each time."""
    return json.loads(_quick(machine))


class CommandTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="kvroof-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_command(self, *arguments: object, environment: dict[str, str] | None = None) -> Done:
        """In this process: a hundred starts of an interpreter would be most of a test's time."""
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, environment or {}),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                code = cli.main([str(word) for word in arguments])
            except SystemExit as end:
                code = int(end.code or 0)
        return Done(code, out.getvalue(), err.getvalue())

    def run_process(self, *arguments: object, environment: dict[str, str] | None = None, timeout: float = 120) -> Done:
        """As a user starts it."""
        done = subprocess.run(
            [sys.executable, str(CLI), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=self.folder,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | (environment or {}),
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def succeeds(self, *arguments: object, **more: Any) -> str:
        done = self.run_command(*arguments, **more)
        self.assertEqual(done.code, 0, done.err + done.out)
        return done.out

    def refuses(self, *arguments: object, says: str, code: int = 2, **more: Any) -> str:
        """The command ends with `code` and one line on stderr that holds `says`."""
        done = self.run_command(*arguments, **more)
        self.assertEqual(done.code, code, done.err + done.out)
        self.assertEqual(len(done.err.strip().splitlines()), 1, f"not one line:\n{done.err}")
        self.assertIn(says, done.err)
        self.assertNotIn("Traceback", done.err)
        return done.err

    def write(self, name: str, value: Any) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return path

    def leftovers(self) -> list[str]:
        """Names of temporary files that a failed write must not leave."""
        return [p.name for p in self.folder.rglob(".*") if p.is_file()]


def changed(value: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A copy with the first kvroof row's fields changed."""
    result = copy.deepcopy(value)
    row = next(r for r in result["benchmarks"] if r["impl"] == "kvroof")
    row.update(fields)
    return result
