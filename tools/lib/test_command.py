"""`tools/kvroof test`: builds and runs all tests."""

from __future__ import annotations

import argparse
import subprocess

import build


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("test", help="builds and runs all tests")
    parser.add_argument("--aarch64", action="store_true", help="cross-compile for Arm and run under qemu-user instead")
    parser.add_argument("--mpi", action="store_true", help="only decode over MPI, 2 to 4 ranks on this machine")
    parser.add_argument("--long", action="store_true", help="also the tests that take minutes (every float, mutants)")
    parser.add_argument("--filter", metavar="REGEX", help="only the ctest entries whose name matches")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    extra = ["-R", args.filter] if args.filter else []
    if args.mpi:
        return run_mpi(extra)
    return build.test(aarch64=args.aarch64, long=args.long, extra=extra)


def run_mpi(extra: list[str]) -> int:
    if subprocess.run([build.ROOT / "tools" / "setup.sh", "mpi"]).returncode != 0:
        return 2  # it said why
    build.build("mpi", targets=("kvroof_mpi_decode",))
    return build.run_tests("mpi", extra=extra)
