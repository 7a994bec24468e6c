#!/usr/bin/env python3
"""kvroof_mpi_decode over the ranks of this machine: the bits of one process, and no rank left waiting."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

BINARY = Path(os.environ["KVROOF_BINARY_DIR"]) / "bench" / "mpi" / "kvroof_mpi_decode"
# More ranks than cores, and root in containers: both refused by mpirun unless asked for.
LAUNCH = ["mpirun", "--oversubscribe", *(["--allow-run-as-root"] if os.getuid() == 0 else [])]
SMALL = ["--Hq=4", "--Hkv=2", "--Dk=40", "--Dv=24", "--T=1700", "--tokens=3"]


def start(ranks: int, *options: str) -> subprocess.Popen[str]:
    command = [*LAUNCH, "-n", str(ranks), str(BINARY), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def alive(pid: int) -> bool:
    """A zombie that nobody has waited for yet is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def run(ranks: int, *options: str) -> tuple[int, str, str]:
    process = start(ranks, *options)
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def ranks_of(launcher: int) -> dict[int, int]:
    """Process of each rank that has started."""
    children = Path(f"/proc/{launcher}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    found = {}
    for pid in pids:
        if Path(f"/proc/{pid}/comm").read_text().startswith("kvroof_mpi"):
            environment = Path(f"/proc/{pid}/environ").read_text(errors="replace")
            if rank := re.search(r"\0OMPI_COMM_WORLD_RANK=(\d+)\0", environment):
                found[int(rank[1])] = pid
    return found


class Mpi(unittest.TestCase):
    def same_bits(self, ranks: int, *options: str) -> None:
        code, out, err = run(ranks, *SMALL, "--check=1", *options)
        self.assertEqual(code, 0, out + err)
        self.assertIn("same bits", out)
        self.assertEqual(out.count("GB/s"), ranks)

    def test_same_bits(self) -> None:
        for ranks in (2, 3, 4):
            for storage in ("f32", "f16", "bf16", "int8"):
                for layout in ("head", "token"):
                    with self.subTest(ranks=ranks, storage=storage, layout=layout):
                        self.same_bits(ranks, f"--storage={storage}", f"--layout={layout}")

    def test_same_bits_with_options(self) -> None:
        for options in (
            ["--W=600"],
            ["--W=600", "--kept=4", "--sinks=1"],
            ["--chunk=9"],
            ["--chunk=70", "--W=600", "--sinks=1", "--storage=int8", "--layout=token"],
            ["--batch=3", "--threads=2"],
            ["--T=300"],  # one segment: all ranks but one are empty
            ["--T=1536", "--tokens=4"],  # the first appended token opens a segment
        ):
            with self.subTest(options=options):
                self.same_bits(3, *options)

    def test_hash_does_not_depend_on_ranks(self) -> None:
        hashes = {run(ranks, *SMALL)[1].splitlines()[-1] for ranks in (1, 2, 4)}
        self.assertEqual(len(hashes), 1, hashes)

    def test_one_rank_with_bad_arguments(self) -> None:
        for bad in (0, 2):
            code, _, err = run(3, *SMALL, f"--bad_rank={bad}")
            self.assertEqual(code, 2, err)
            self.assertIn(f"kvroof_mpi_decode: rank {bad}: window is 0", err)

    def test_wrong_usage(self) -> None:
        for option, says in (("--storage=f64", "must be f32"), ("--Hkv=3", "rank 0"), ("T=3", "not understood")):
            code, _, err = run(2, "--T=600", "--Hq=4", option)
            self.assertEqual(code, 2, err)
            self.assertEqual(err.count("kvroof_mpi_decode: "), 1, err)
            if option != "--Hkv=3":
                self.assertIn(says, err)

    def test_one_rank_without_memory(self) -> None:
        code, _, err = run(2, *SMALL, "--T=1000000000000")
        self.assertEqual(code, 2, err)
        self.assertRegex(err, r"kvroof_mpi_decode: rank \d: no memory")

    def kill(self, rank: int) -> None:
        process = start(3, *SMALL, "--tokens=100000")
        try:
            until = time.monotonic() + 30
            while len(found := ranks_of(process.pid)) < 3:
                self.assertLess(time.monotonic(), until, "the ranks did not start")
                time.sleep(0.05)
            time.sleep(1)
            os.kill(found[rank], signal.SIGKILL)
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(err, rf"rank {rank} with PID .*\s?.*signal 9 \(Killed\)")
        until = time.monotonic() + 10
        while any(map(alive, found.values())) and time.monotonic() < until:
            time.sleep(0.1)
        self.assertFalse(any(map(alive, found.values())), "a rank outlived the job")

    def test_killed_rank(self) -> None:
        self.kill(1)

    def test_killed_root(self) -> None:
        """The one that all others send their partial results to."""
        self.kill(0)


if __name__ == "__main__":
    if shutil.which("mpirun") is None:
        raise SystemExit("mpirun not found: run tools/setup.sh mpi")
    unittest.main()
