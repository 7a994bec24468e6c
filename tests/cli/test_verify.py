#!/usr/bin/env python3
"""tools/kvroof verify with a stand-in for kvroof_verify."""

from __future__ import annotations

import json
import unittest
from typing import Any

from support import CommandTest, Done

GOOD = {
    "kernel": "decode_attention",
    "isa": "avx2",
    "storage": "f16",
    "against": "lane twin",
    "cases": 412,
    "misses": 0,
    "worst": None,
    "status": "ok",
    "reason": None,
}


class Verify(CommandTest):
    def verify(self, *checks: Any, code: int = 0) -> Done:
        lines = "".join((c if isinstance(c, str) else json.dumps(c)) + "\n" for c in checks)
        self.write("lines", lines)
        program = self.write("kvroof_verify", f"#!/bin/sh\ncat '{self.folder}/lines'\nexit {code}\n")
        program.chmod(0o755)
        return self.run_command("verify", environment={"KVROOF_VERIFY": str(program)})

    def test_all_hold(self) -> None:
        skipped = GOOD | {"isa": "avx512", "status": "skipped", "cases": 0, "reason": "CPU lacks avx512bw"}
        done = self.verify(GOOD, GOOD | {"storage": "bf16"}, skipped)
        self.assertEqual(done.code, 0, done.err)
        for words in (
            "decode_attention",
            "lane twin",
            "412 same",
            "avx512: CPU lacks avx512bw",
            "2 of 3 checks hold, 1 skipped",
        ):
            self.assertIn(words, done.out)

    def test_misses(self) -> None:
        missed = GOOD | {"misses": 3, "status": "failed", "worst": "T=17 head 3: 0x1.8p+0 is not 0x1.9p+0"}
        for checks, code in (
            ((GOOD, missed), 1),
            ((missed,), 0),
            ((GOOD | {"misses": 1},), 0),
            ((GOOD | {"cases": 0},), 0),
            ((GOOD,), 1),
            ((GOOD | {"status": "skipped", "reason": None},), 0),
        ):
            self.assertEqual(self.verify(*checks, code=code).code, 1)
        out = self.verify(GOOD, missed | {"layout": "ring"}, code=1).out
        self.assertIn("3 MISSED", out)
        self.assertIn("FAILED  decode_attention avx2 f16 ring against lane twin: T=17 head 3", out)

    def test_layouts_share_a_line(self) -> None:
        oracle = GOOD | {"against": "oracle", "error_over_bound": 0.41}
        out = self.verify(
            GOOD | {"layout": "ring"},
            GOOD | {"layout": "paged"},
            oracle | {"layout": "ring"},
            oracle | {"layout": "paged", "error_over_bound": 0.52},
        ).out
        line = next(line for line in out.splitlines() if line.startswith("decode_attention"))
        self.assertEqual(
            line.split(), ["decode_attention", "avx2", "f16", "824", "same", "824", "within", "0.52", "of", "bound"]
        )

    def test_what_is_not_a_report(self) -> None:
        for lines, code, says in (
            (["Segmentation fault"], 139, "exit code 139"),
            ([], 0, "reported no check"),
            (["oops"], 0, "not JSON"),
            ([{"kernel": "x"}], 0, "not a check"),
            ([GOOD | {"misses": False}], 0, "not a check"),
        ):
            done = self.verify(*lines, code=code)
            self.assertEqual((done.code, says in done.err), (2, True), done.err)
        self.refuses("verify", says="no such program", environment={"KVROOF_VERIFY": "/nowhere"})


if __name__ == "__main__":
    unittest.main()
