#!/usr/bin/env python3
"""A full disk and a folder that cannot be written, real ones: one line, exit code 2, and what was there stays."""

from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path

from support import CommandTest, quick_result


class Disk(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.result = self.write("m.json", quick_result())
        self.place = self.folder / "place"
        self.place.mkdir()

    def mount(self, options: str) -> None:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.place)], capture_output=True, text=True
        )
        if done.returncode:
            self.skipTest(f"no file system of its own can be mounted here ({done.stderr.strip()})")
        self.addCleanup(subprocess.run, ["umount", "-l", str(self.place)], check=True)

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.place.iterdir()}

    def commands(self) -> list[tuple[object, ...]]:
        return [
            ("report", self.result, "--out", self.place / "old"),
            ("compare", self.result, self.result, "--format", "json", "--out", self.place / "old"),
        ]

    def test_full(self) -> None:
        self.mount("size=32k")
        (self.place / "old").write_text("old")
        for command in self.commands():
            with self.subTest(command[0]):
                self.refuses(*command, says="cannot be written (no space left on device)")
                self.assertEqual(self.files(), {"old": "old"})

    def test_read_only(self) -> None:
        self.mount("size=1m")
        (self.place / "old").write_text("old")
        subprocess.run(["mount", "-o", "remount,ro", str(self.place)], check=True)
        for command in [
            *self.commands(),
            ("sweep", "--out", self.place / "new.json"),
            ("compare", "--rerun", "HEAD", "--out", self.place / "new.md"),
        ]:
            with self.subTest(command[0]):
                environment = {"KVROOF_BENCH": "/bin/false"}
                self.refuses(*command, says="cannot be written (read-only file system)", environment=environment)
        self.assertEqual(self.files(), {"old": "old"})

    def test_a_full_disk_behind_the_output(self) -> None:
        with open("/dev/full", "w", encoding="utf-8") as full:
            cli = Path(__file__).resolve().parents[2] / "tools" / "lib" / "cli.py"
            for command in (
                ("compare", self.result, self.result, "--all"),
                ("predict", "--machine", self.result, "--model", "llama3-8b"),
                ("validate", self.result),
            ):
                with self.subTest(command[0]):
                    words = [sys.executable, str(cli), *map(str, command)]
                    done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
                    self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
                    self.assertIn("no space left on device", done.stderr)


if __name__ == "__main__":
    unittest.main()
