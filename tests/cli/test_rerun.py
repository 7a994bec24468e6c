#!/usr/bin/env python3
"""tools/kvroof compare --rerun: two commits in turn, with a real git and a stand-in for what they build."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from support import HERE, CommandTest, Done

import build
import rerun
from rerun import FASTER, SAME, SLOWER, UNCLEAR, chance, pairs_needed, verdict_of


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True, text=True).stdout


class Rerun(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        if not subprocess.run(["git", "--version"], capture_output=True).stdout:
            self.skipTest("no git here")
        self.root = self.folder / "checkout"
        self.root.mkdir()
        git(self.root, "init", "-q", "-b", "main")
        self.commits = [self.commit(f"change {i}") for i in range(3)]
        for module, name, value in ((rerun, "ROOT", self.root), (build, "build", self.build)):
            patched = mock.patch.object(module, name, value)
            patched.start()
            self.addCleanup(patched.stop)
        self.how: dict[str, dict[str, Any]] = {}
        self.built: list[str] = []
        self.order = self.folder / "order"

    def commit(self, subject: str) -> str:
        (self.root / "kernel.cpp").write_text(subject)
        (self.root / ".gitignore").write_text("/build/\n")
        git(self.root, "add", ".")
        git(self.root, "commit", "-q", "-m", subject)
        return git(self.root, "rev-parse", "HEAD").strip()

    def build(self, preset: str, targets: list[str], root: Path, **_: Any) -> Path:
        """What a commit builds: the stand-in, told how that commit behaves; each run leaves its subject in a file."""
        self.assertEqual((preset, targets), ("release", ["kvroof_bench"]))
        subject = (root / "kernel.cpp").read_text()
        self.built.append(subject)
        program = root / "build" / "release" / "bench" / "kvroof_bench"
        program.parent.mkdir(parents=True, exist_ok=True)
        how = json.dumps({"noise": 0.002, "rows": 1000} | self.how.get(subject, {}))
        program.write_text(
            f"#!/bin/sh\necho '{subject}' >> '{self.order}'\n"
            f"FAKE_BENCH='{how}' exec '{HERE / 'fake_bench.py'}' \"$@\"\n"
        )
        program.chmod(0o755)
        return root / "build" / "release"

    def rerun(self, *arguments: object) -> Done:
        return self.run_command("compare", "--rerun", *arguments)

    def verdicts(self, *arguments: object, code: int = 0) -> set[str]:
        done = self.rerun(*arguments, "--format", "json")
        self.assertEqual(done.code, code, done.err)
        return {row["verdict"] for row in json.loads(done.out)["rows"]}

    BASE = ("HEAD~1", "--filter", "shape:GQA.*f16.*T:4096/.*cold")

    def test_nothing_changed(self) -> None:
        self.assertEqual(self.verdicts(*self.BASE), {SAME})

    def test_a_slower_kernel_is_found_and_fails(self) -> None:
        self.how["change 2"] = {"factor": 1.2}
        self.assertEqual(self.verdicts(*self.BASE, code=1), {SLOWER})
        self.assertEqual(self.verdicts("HEAD", "HEAD~1", *self.BASE[1:]), {FASTER})

    def test_runs_go_forwards_and_backwards(self) -> None:
        done = self.rerun(*self.BASE, "--rounds", 2)
        self.assertEqual(done.code, 0, done.err)
        a, b = "change 1", "change 2"
        self.assertEqual(self.order.read_text().split("\n")[:-1], [a, b, b, a, a, b, b, a])
        self.assertIn("4 pairs", done.out)

    def test_a_machine_that_slows_down_is_no_regression(self) -> None:
        """Each run finds the machine 5 % slower than the one before: A B B A gives both the same share of it."""
        for change in ("change 1", "change 2"):
            self.how[change] = {"drift": 1.05, "state": str(self.folder / "runs")}
        found = self.verdicts(*self.BASE)
        self.assertNotIn(SLOWER, found)
        self.assertNotIn(FASTER, found)

    def test_a_busy_neighbour_that_slows_roof_and_kernel_is_no_regression(self) -> None:
        self.how["change 2"] = {"factor": 1.3, "roof_factor": 1.3}
        self.assertEqual(self.verdicts(*self.BASE), {UNCLEAR})

    def test_a_changed_probe_is_no_regression(self) -> None:
        self.how["change 2"] = {"roof_factor": 0.8}
        self.assertEqual(self.verdicts(*self.BASE), {UNCLEAR})

    def test_other_bits_fail(self) -> None:
        self.how["change 2"] = {"hash": "0123456789abcdef"}
        done = self.rerun(*self.BASE)
        self.assertEqual(done.code, 1)
        self.assertIn("FAILED: ", done.out)
        self.assertIn("OTHER BITS", done.out)

    def test_one_commit_shows_the_noise(self) -> None:
        done = self.rerun("HEAD", *self.BASE[1:])
        self.assertEqual(done.code, 0, done.err)
        self.assertIn("A and B are one commit", done.out)

    def test_worktrees_are_kept_and_mended(self) -> None:
        for _ in range(2):
            self.assertEqual(self.rerun(*self.BASE, "--rounds", 1).code, 0)
        folders = sorted(p.name for p in (self.root / "build" / "rerun").iterdir())
        self.assertEqual(folders, sorted(c[:12] for c in self.commits[1:]))
        spoilt = self.root / "build" / "rerun" / self.commits[1][:12]
        (spoilt / "kernel.cpp").write_text("edited")
        self.assertEqual(self.rerun(*self.BASE, "--rounds", 1).code, 0)
        self.assertEqual(self.built[-2:], ["change 1", "change 2"])
        for path in (self.root / "build", spoilt):
            subprocess.run(["rm", "-rf", str(path)], check=True)
            self.assertEqual(self.rerun(*self.BASE, "--rounds", 1).code, 0)
        self.assertEqual(git(self.root, "status", "--porcelain"), "")

    def test_results_are_no_change_of_the_tree(self) -> None:
        (self.root / "results").mkdir()
        (self.root / "results" / "machine.json").write_text("{}")
        self.assertEqual(self.rerun(*self.BASE, "--rounds", 1).code, 0)

    def test_too_few_rounds_are_said(self) -> None:
        self.how["change 2"] = {"factor": 1.2}
        done = self.rerun(*self.BASE, "--rounds", 1)
        self.assertEqual(done.code, 0, done.err)
        self.assertIn("cannot tell", done.out)
        self.assertIn("unclear", done.out)

    def test_forms(self) -> None:
        out = self.folder / "c.md"
        done = self.rerun(*self.BASE, "--rounds", 1, "--format", "markdown", "--out", out)
        self.assertEqual(done.code, 0, done.err)
        self.assertIn("| row | time B/A |", out.read_text())
        self.assertIn("change 2", out.read_text())

    def test_refusals(self) -> None:
        self.refuses("compare", "--rerun", "nosuch", says="no such commit here")
        self.refuses("compare", "--rerun", "HEAD:kernel.cpp", says="no such commit here")
        self.refuses("compare", "--rerun", "HEAD", "HEAD", "HEAD", says="3 commits")
        self.refuses("compare", "a.json", "--rerun", "HEAD", says="either files or commits")
        self.refuses("compare", "--rerun", "HEAD", "--format", "html", says="text, json or markdown")
        self.refuses("compare", "--rerun", "HEAD", "--rounds", 0, says="--rounds")
        self.refuses("compare", "--rerun", "HEAD", "--seconds", "nan", says="--seconds")
        self.refuses("compare", "--rerun", "HEAD", "--out", self.root / "kernel.cpp" / "x.md", says="cannot be written")
        done = self.rerun("HEAD", "--filter", "nothing like it")
        self.assertEqual((done.code, len(done.err.splitlines())), (2, 1), done.err)
        (self.root / "new.cpp").write_text("x")
        self.refuses("compare", "--rerun", "HEAD~1", says="1 changes that no commit holds, such as new.cpp")
        self.assertEqual(len(self.built), 2)  # by the filter that matches nothing alone

    def test_without_git_or_a_checkout(self) -> None:
        with mock.patch.object(rerun.shutil, "which", lambda _: None):
            self.refuses("compare", "--rerun", "HEAD", says="git not found")
        subprocess.run(["rm", "-rf", str(self.root / ".git")], check=True)
        with mock.patch.dict(os.environ, {"GIT_CEILING_DIRECTORIES": str(self.folder)}):
            self.refuses("compare", "--rerun", "HEAD", says="does not take this for a checkout")

    def test_a_commit_that_cannot_measure_is_named(self) -> None:
        self.how["change 1"] = {"fail": [2, "kvroof_bench: unknown flag --journal"]}
        self.refuses("compare", "--rerun", *self.BASE, says=f"commit {self.commits[1][:12]}")

    def test_control_c_keeps_whole_rounds(self) -> None:
        calls: list[int] = []

        def run(*_: Any) -> dict[str, Any]:
            calls.append(1)
            if len(calls) == 7:
                raise KeyboardInterrupt
            return {}

        self.assertEqual(len(rerun.measure(run, run, 5)), 2)
        calls[:] = [1] * 6
        with self.assertRaises(KeyboardInterrupt):
            rerun.measure(run, run, 5)


class Verdicts(unittest.TestCase):
    def test_chance_is_the_sign_test(self) -> None:
        self.assertEqual(chance([1.1] * 5), 2 / 32)
        self.assertEqual(chance([1.1] * 4 + [0.9]), 2 * (1 + 5) / 32)
        self.assertEqual(chance([1.1, 0.9]), 1.0)
        self.assertEqual(chance([1.0, 1.0]), 1.0)

    def test_false_alarms_are_as_rare_as_promised(self) -> None:
        """Nothing changed, noise of 10 %: over 20 rows together at most one run in twenty may call any row changed."""
        chances, rows, alarms = random.Random(3), 20, 0
        for _ in range(400):
            found = [
                verdict_of([chances.lognormvariate(0, 0.1) for _ in range(12)], [], 0.03, 0.05 / rows)
                for _ in range(rows)
            ]
            alarms += any(verdict in (SLOWER, FASTER) for verdict in found)
        self.assertLessEqual(alarms, 400 * 0.05 + 3 * (400 * 0.05 * 0.95) ** 0.5)

    def test_a_real_change_is_found(self) -> None:
        chances = random.Random(4)
        values = [1.15 * chances.lognormvariate(0, 0.03) for _ in range(12)]
        self.assertEqual(verdict_of(values, values, 0.05, 0.05 / 20), SLOWER)
        self.assertEqual(verdict_of(values, [1.0] * 12, 0.05, 0.05 / 20), UNCLEAR)

    def test_pairs_needed(self) -> None:
        for rows in (1, 5, 40):
            needed = pairs_needed(rows)
            self.assertLessEqual(chance([2.0] * needed), 0.05 / rows)
            self.assertGreater(chance([2.0] * (needed - 1)), 0.05 / rows)


class TwoBuildsAtOnce(CommandTest):
    def test_the_second_waits_and_says_so(self) -> None:
        said: list[str] = []
        events: list[str] = []
        directory = self.folder / "build" / "release"

        def second() -> None:
            with build._alone_in(directory, said.append):
                events.append("second")

        with build._alone_in(directory, said.append):
            thread = threading.Thread(target=second)
            thread.start()
            time.sleep(0.3)
            self.assertTrue(thread.is_alive())
            events.append("first")
        thread.join(timeout=20)
        self.assertEqual(events, ["first", "second"])
        self.assertEqual(len(said), 1)
        self.assertIn("another command is building in", said[0])

    def test_the_lock_goes_with_its_process(self) -> None:
        directory = self.folder / "build"
        holder = subprocess.Popen(
            ["sh", "-c", f"mkdir -p '{directory}'; exec 9>>'{directory}/.lock'; flock 9; echo held; exec sleep 60"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert holder.stdout
        self.assertEqual(holder.stdout.readline().strip(), "held")
        threading.Timer(0.3, holder.kill).start()
        said: list[str] = []
        with build._alone_in(directory, said.append):
            self.assertEqual(len(said), 1)
        holder.wait()
        holder.stdout.close()

    def test_a_folder_that_cannot_be_written(self) -> None:
        with self.assertRaisesRegex(build.BuildError, "cannot be written"):
            with build._alone_in(self.write("file", "x") / "release", print):
                pass


if __name__ == "__main__":
    unittest.main()
