#!/usr/bin/env python3
"""tools/kvroof predict: the fit comes back from its own points, sums over layers, and refuses what was not measured."""

from __future__ import annotations

import json
import unittest
from typing import Any

import synthetic
from support import HERE, CommandTest, quick_result

import rows
from models import PRESETS
from predict import Curve, Fit, check, step


class Predict(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.value = quick_result("synthetic-server-8c")
        self.path = self.write("m.json", self.value)
        self.result = rows.from_value(self.path, self.value)

    def own(self, storage: str, threads: str = "all") -> list[rows.Row]:
        return [
            r
            for r in self.result.rows
            if r.impl == "kvroof"
            and r.get("cache") == "cold"
            and r.get("storage") == storage
            and r.get("threads") == threads
        ]

    def figures(self, *arguments: object) -> dict[str, Any]:
        return json.loads(self.succeeds("predict", "--machine", self.path, "--json", *arguments))

    def test_curve(self) -> None:
        curve = Curve([(1, 10), (100, 1000), (4, 40)])
        for x, y in ((0.5, 10), (1, 10), (2, 20), (4, 40), (40, 400), (100, 1000), (1e6, 1000)):
            self.assertAlmostEqual(curve(x), y)
        self.assertEqual(Curve([(1, 10), (1, 30), (1, 20)])(7), 20)

    def test_measured_points_come_back(self) -> None:
        fit = Fit(self.result, "f16", "all")
        for point in check(fit, self.own("f16")):
            self.assertLess(abs(point.error), 0.05, point.row.name)

    def test_points_that_the_fit_has_not_seen(self) -> None:
        machine = next(m for m in synthetic.MACHINES if m.name == "synthetic-server-8c")
        full = rows.from_value(self.path, synthetic.result(machine, "full"))
        seen = Fit(self.result, "f16", "all")
        unseen = [
            r
            for r in full.rows
            if r.impl == "kvroof"
            and r.get("cache") == "cold"
            and r.get("storage") == "f16"
            and r.get("threads") == "all"
            and r.get("T") in (1024, 2048, 8192, 16384)
        ]
        errors = sorted(abs(c.error) for c in check(seen, unseen))
        self.assertLess(errors[len(errors) // 2], 0.10)
        self.assertLess(errors[-1], 0.20)

    def test_the_fit_leaves_out_what_it_is_told(self) -> None:
        fit = Fit(self.result, "f16", "all", frozenset((4096,)))
        self.assertTrue(all(len(curve.x) == 2 for curve in fit.fractions.values()))

    def test_layers_add_up(self) -> None:
        found = self.figures("--model", "llama3-8b", "--tokens", 4096)["steps"][0]
        row = next(r for r in self.own("f16") if r.shape["name"] == "GQA" and r.get("T") == 4096)
        self.assertEqual(found["bytes"], 32 * row.get("bytes"))
        self.assertLess(abs(found["ns"] / (32 * row.ns) - 1), 0.05)
        self.assertEqual(found["bound"], "bytes")

    def test_window_layers_stop_growing(self) -> None:
        fit = Fit(self.result, "f16", "all")
        short, long = (step(fit, PRESETS["mistral-7b"], "f16", tokens, 1) for tokens in (4096, 32768))
        self.assertEqual((short.bytes, short.ns), (long.bytes, long.ns))
        hybrid = step(fit, PRESETS["gemma3-27b"], "f16", 32768, 1)
        self.assertEqual(hybrid.bytes, (10 * 32768 + 52 * 1024) * 2 * 16 * 128 * 2)

    def test_never_below_a_roof(self) -> None:
        for model in ("gpt2-small", "llama3-70b", "qwen3-235b-a22b", "gpt-oss-120b"):
            for found in self.figures("--model", model)["steps"]:
                self.assertGreaterEqual(
                    found["ns"] * 1.08, found["bytes_bound_ns"]
                )  # a median of a fraction may pass 1 a little
                self.assertGreaterEqual(found["ns"] * 1.0001, found["compute_bound_ns"])

    def test_what_fits_and_the_bound_on_tokens(self) -> None:
        out = self.succeeds(
            "predict", "--machine", self.path, "--model", "llama3-8b", "--tokens", 8192, "--weights", "16GiB"
        )
        self.assertIn(f"{(64 - 16) * 2**30 // 131_072:,} tokens", out)
        self.assertIn("48 sequences of 8,192 tokens", out)
        slow, fast = (
            float(
                self.succeeds("predict", "--machine", self.path, "--model", "llama3-8b", "--tokens", 8192, *more)
                .split("tokens/s at most")[1]
                .split("\n")[1]
                .split()[-1]
            )
            for more in (("--weights", "16GiB"), ())
        )
        self.assertLess(slow, fast)

    def test_beyond_what_was_measured_is_marked(self) -> None:
        self.assertIn("~", self.succeeds("predict", "--machine", self.path, "--model", "llama3-8b", "--tokens", 10**7))

    def test_check_measures_here(self) -> None:
        environment = {"KVROOF_BENCH": str(HERE / "fake_bench.py"), "FAKE_BENCH": json.dumps({"rows": 1000})}
        self.refuses(
            "predict", "--machine", self.path, "--check", says="no row was measured", environment=environment
        )  # the stand-in has no such lengths

    def test_refusals(self) -> None:
        base = ("predict", "--machine", self.path)
        self.refuses("predict", "--model", "llama3-8b", says="required: --machine")
        self.refuses(*base, says="none given")
        self.refuses(*base, "--model", "deepseek-v3", says="MLA rows are not")
        self.refuses(*base, "--model", "llama3-8b", "--storage", "int8", says="measured there: bf16 with 1")
        self.refuses(*base, "--model", "llama3-8b", "--tokens", 0, says="--tokens")
        self.refuses(*base, "--model", "llama3-8b", "--batch", 0, says="--batch")
        self.refuses(*base, "--model", "llama3-8b", "--weights", "x", says="not a size")
        self.refuses("predict", "--machine", self.folder / "none", "--model", "llama3-8b", says="no such file")


if __name__ == "__main__":
    unittest.main()
