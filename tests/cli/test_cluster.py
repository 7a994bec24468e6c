#!/usr/bin/env python3
"""tools/cluster/sweep_ssh.sh against a stand-in for ssh that runs the command here."""

from __future__ import annotations

import os
import subprocess
import unittest
from pathlib import Path

from support import ROOT, CommandTest, Done

SCRIPT = ROOT / "tools" / "cluster" / "sweep_ssh.sh"
SSH = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
case $1 in down*) echo "ssh: connect to host $1 port 22: No route to host" >&2; exit 255 ;; esac
cd "$STUB_HOME" && exec sh -c "$2"
"""
KVROOF = """#!/bin/sh
echo "progress: $*"
while [ "$1" != --out ]; do shift; done
printf '{"options": "%s"}' "$*" >"$2"
"""


class Ssh(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.program("bin/ssh", SSH)
        self.program("home/kvroof/tools/kvroof", KVROOF)

    def program(self, name: str, text: str) -> None:
        self.write(name, text).chmod(0o755)

    def loop(self, *words: str) -> Done:
        environment = os.environ | {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "STUB_HOME": str(self.folder / "home"),
        }
        done = subprocess.run(
            [str(SCRIPT), *words], capture_output=True, text=True, cwd=self.folder, env=environment, timeout=30
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def files(self, folder: str = "cluster-results") -> list[str]:
        return sorted(p.name for p in (self.folder / folder).iterdir())

    def test_one_file_per_host(self) -> None:
        done = self.loop("-o", "out", "a1", "b2.site", "--", "--filter", "T:512 it's")
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(self.files("out"), ["a1.json", "a1.log", "b2.site.json", "b2.site.log"])
        text = (self.folder / "out" / "b2.site.json").read_text()
        self.assertIn("--filter T:512 it's", text)
        self.assertNotIn("progress", text)
        self.assertIn("progress", (self.folder / "out" / "a1.log").read_text())

    def test_a_host_that_fails_does_not_stop_the_others(self) -> None:
        done = self.loop("a1", "down2", "b3")
        self.assertEqual(done.code, 1, done.err)
        lines = [line for line in done.err.splitlines() if "down2" in line]
        self.assertEqual(len(lines), 1, done.err)
        self.assertIn("No route to host", lines[0])
        self.assertEqual(self.files(), ["a1.json", "a1.log", "b3.json", "b3.log", "down2.log"])

    def test_a_sweep_that_fails_leaves_no_result(self) -> None:
        self.program("home/kvroof/tools/kvroof", "#!/bin/sh\necho 'kvroof: no compiler' >&2\nexit 2\n")
        done = self.loop("a1")
        self.assertEqual(done.code, 1)
        self.assertIn("a1: no result: kvroof: no compiler", done.err)
        self.assertEqual(self.files(), ["a1.log"])

    def test_an_old_result_survives_a_failure(self) -> None:
        self.write("cluster-results/down1.json", "{}")
        self.assertEqual(self.loop("down1").code, 1)
        self.assertEqual((self.folder / "cluster-results" / "down1.json").read_text(), "{}")

    def test_wrong_usage(self) -> None:
        for words in ([], ["--", "--full"], ["-o"], ["-x", "a1"], ["a/b"]):
            with self.subTest(words=words):
                done = self.loop(*words)
                self.assertEqual(done.code, 2, done.err)
                self.assertEqual(len(done.err.strip().splitlines()), 1, done.err)
                self.assertFalse((Path(self.folder) / "cluster-results").exists())
        self.assertIn("no hosts given", self.loop().err)


if __name__ == "__main__":
    unittest.main()
