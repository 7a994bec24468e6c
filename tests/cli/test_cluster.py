#!/usr/bin/env python3
"""tools/cluster: the ssh loop against a stand-in for ssh that runs the command here, and the Slurm script with the
variables that Slurm would set, both around a stand-in for the sweep."""

from __future__ import annotations

import os
import subprocess
import unittest
from pathlib import Path

from support import ROOT, CommandTest, Done

SCRIPT = ROOT / "tools" / "cluster" / "sweep_ssh.sh"
SBATCH = ROOT / "tools" / "cluster" / "sweep.sbatch"
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


class Cluster(CommandTest):
    def program(self, name: str, text: str) -> None:
        self.write(name, text).chmod(0o755)

    def files(self, folder: str = "cluster-results") -> list[str]:
        return sorted(p.name for p in (self.folder / folder).iterdir())


class Ssh(Cluster):
    def setUp(self) -> None:
        super().setUp()
        self.program("bin/ssh", SSH)
        self.program("home/kvroof/tools/kvroof", KVROOF)

    def loop(self, *words: str) -> Done:
        environment = os.environ | {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "STUB_HOME": str(self.folder / "home"),
        }
        done = subprocess.run(
            [str(SCRIPT), *words], capture_output=True, text=True, cwd=self.folder, env=environment, timeout=30
        )
        return Done(done.returncode, done.stdout, done.stderr)

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


class Slurm(Cluster):
    """A job array of this site, task by task: a checkout, a folder on the node for the copies, results beside it."""

    def setUp(self) -> None:
        super().setUp()
        (self.folder / "tmp").mkdir()
        self.commit(KVROOF)

    def commit(self, kvroof: str) -> None:
        self.program("site/tools/kvroof", kvroof)
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "--allow-empty", "-m", "a sweep"]):
            git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words]
            subprocess.run(git, cwd=self.folder / "site", check=True)

    def task(self, *words: str, **variables: str) -> Done:
        slurm = {"SLURM_SUBMIT_DIR": str(self.folder / "site"), "SLURM_TMPDIR": str(self.folder / "tmp")}
        slurm |= {"SLURMD_NODENAME": "node7", "SLURM_ARRAY_TASK_ID": "3"} | variables
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")} | slurm
        command = ["sh", str(SBATCH), *words]  # slurmd runs a copy of it, from its own folder
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=self.folder, env=environment, timeout=60
        )
        self.assertEqual(self.files("tmp"), [], "a copy is left on the node")
        return Done(done.returncode, done.stdout, done.stderr)

    def test_one_file_per_node(self) -> None:
        for host in ("node7", "node8"):
            done = self.task("--filter", "T:512 it's", SLURMD_NODENAME=host)
            self.assertEqual(done.code, 0, done.err)
        self.assertEqual(self.files("site/cluster-results"), ["node7.json", "node8.json"])
        self.assertIn("--filter T:512 it's", (self.folder / "site/cluster-results/node8.json").read_text())

    def test_a_second_task_on_a_node_keeps_both(self) -> None:
        self.task("first")
        self.task("second", SLURM_ARRAY_TASK_ID="5")
        self.assertEqual(self.files("site/cluster-results"), ["node7-5.json", "node7.json"])
        self.assertIn("first", (self.folder / "site/cluster-results/node7.json").read_text())

    def test_another_folder(self) -> None:
        out = self.folder / "elsewhere"
        self.assertEqual(self.task(KVROOF_OUT=str(out)).code, 0)
        self.assertEqual(self.files("elsewhere"), ["node7.json"])

    def test_what_is_committed_is_measured(self) -> None:
        self.program("site/tools/kvroof", "#!/bin/sh\nexit 9\n")
        self.assertEqual(self.task().code, 0)

    def test_a_failure_is_the_task_s(self) -> None:
        self.commit("#!/bin/sh\necho 'kvroof: no compiler' >&2\nexit 2\n")
        done = self.task()
        self.assertEqual((done.code, done.err), (2, "kvroof: no compiler\n"))
        self.assertEqual(self.files("site/cluster-results"), [])

    def test_not_under_slurm(self) -> None:
        done = self.task(SLURM_SUBMIT_DIR="")
        self.assertNotEqual(done.code, 0)
        self.assertIn("submit with sbatch", done.err)


if __name__ == "__main__":
    unittest.main()
