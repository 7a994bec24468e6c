#!/usr/bin/env python3
"""tools/kvroof predict: the fit comes back from its own points, sums over layers, and refuses what was not measured."""

from __future__ import annotations

import json
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

import synthetic
from support import HERE, CommandTest, quick_result
from synthetic_machine import MACHINES, Machine

import rows
from models import PRESETS
from predict import check, fold_weights, step
from predict_fit import ABSORBED, STEP, Curve, Fit, LatentFit, Roofs, Source, rows_of
from work_split import SEGMENT_ROWS, Work


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
        curve = Curve([(1, 10), (100, 1000), (4, 40)])  # every size takes .1: a call costs nothing by itself
        for x, y in ((0.5, 10), (1, 10), (2, 20), (4, 40), (40, 400), (100, 1000), (1e6, 1000)):
            self.assertAlmostEqual(curve(x), y)
        affine = Curve([(x, x / (3 + 2 * x)) for x in (1, 10, 1000)])  # 3 for the call, 2 for each
        for x in (1, 2, 7, 99, 500):
            self.assertAlmostEqual(x / affine(x), 3 + 2 * x)
        self.assertEqual(Curve([(1, 10), (1, 30), (1, 20)])(7), 20)

    def test_measured_points_come_back(self) -> None:
        fit = Fit(Source(self.result, "f16", "all"))
        for point in check(fit, self.own("f16")):
            self.assertLess(abs(point.error), 0.05, point.row.name)

    def test_points_that_the_fit_has_not_seen(self) -> None:
        machine = next(m for m in MACHINES if m.name == "synthetic-server-8c")
        full = rows.from_value(self.path, synthetic.result(machine, "full"))
        seen = Fit(Source(self.result, "f16", "all"))
        unseen = [
            r
            for r in full.rows
            if r.impl == "kvroof"
            and r.get("cache") == "cold"
            and r.get("storage") == "f16"
            and r.get("threads") == "all"
            and r.get("T") in (1024, 2048, 8192, 16384)
            and r.shape["name"] in (*synthetic.QUICK_SHAPES, "MHA128")
            and (r.native, r.get("order")) == (False, "head")
        ]
        errors = sorted(abs(c.error) for c in check(seen, unseen))
        self.assertLess(errors[len(errors) // 2], 0.10)
        self.assertLess(errors[-1], 0.20)

    def test_the_fit_leaves_out_what_it_is_told(self) -> None:
        fit = Fit(Source(self.result, "f16", "all", without=frozenset((4096,))))
        self.assertTrue(all(len(curve.x) == 2 for curve in fit.attained.values()))

    def test_layers_add_up(self) -> None:
        found = self.figures("--model", "llama3-8b", "--tokens", 4096)["steps"][0]
        row = next(r for r in self.own("f16") if r.shape["name"] == "GQA" and r.get("T") == 4096)
        self.assertEqual(found["bytes"], 32 * row.get("bytes"))
        self.assertLess(abs(found["ns"] / (32 * row.ns) - 1), 0.05)
        self.assertEqual(found["bound"], "bytes")

    def test_window_layers_stop_growing(self) -> None:
        fit = Fit(Source(self.result, "f16", "all"))
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

    def test_between_groups_the_time_of_a_byte_is_linear(self) -> None:
        fit = Fit(Source(self.result, "f16", "all"))
        size, roofs = float(2**30), Roofs(fit.roof(2**30), fit.compute(4) if fit.compute else None)
        works = {group: Work(size, size * group, 8 * group, 8, 2**19) for group in (1, 4, 7, 8, 16, 32)}
        times = {group: fit.call(work, roofs).ns for group, work in works.items()}
        self.assertAlmostEqual(times[16] / (times[4] + (times[32] - times[4]) * 12 / 28), 1, places=6)
        self.assertAlmostEqual(times[7] / (times[4] + (times[32] - times[4]) * 3 / 28), 1, places=6)
        # A group far from both measured ones is told apart from one beside them.
        del fit.attained[4]
        self.assertFalse(fit.call(works[8]).measured)

    def test_the_roofs_beside_a_point_decide(self) -> None:
        """The same machine at half its clock and bandwidth: twice the time, without a new fit."""
        slow = synthetic.result(next(m for m in MACHINES if m.name == "synthetic-server-8c"))
        for row in slow["benchmarks"]:
            if row["impl"] == "kvroof":
                synthetic.scale(row, 2.0, 0.5)
                row["compute_roof_gflops"] /= 2
        fit = Fit(Source(self.result, "f16", "all"))
        own = {row.name for row in self.own("f16")}
        for point in check(fit, [r for r in rows.from_value(self.path, slow).rows if r.name in own]):
            self.assertLess(abs(point.error), 0.05, point.row.name)

    def test_native_and_token_major_rows_do_not_enter(self) -> None:
        full = synthetic.result(preset="full")
        for row in full["benchmarks"]:
            if row["impl"] == "kvroof" and (row["mode"] == "native" or row["order"] == "token"):
                synthetic.scale(row, 5.0)
        result = rows.from_value(self.path, full)
        plain = [r for r in full["benchmarks"] if r.get("mode") != "native" and r.get("order") != "token"]
        alone = rows.from_value(self.path, {"context": full["context"], "benchmarks": plain})
        both, plain_only = (Fit(Source(each, "bf16", "all")).attained[1].y for each in (result, alone))
        self.assertEqual(both, plain_only)

    def test_a_file_from_another_hour(self) -> None:
        """While the file was measured, others used half of the memory's bandwidth; now all of it is there, and what
        waited for memory waits for a kernel that is far from the compute roof."""
        machine = Machine(arithmetic=0.25)
        seen, now = (
            rows.from_value(self.path, synthetic.result(replace(machine, cold_all=roof), "full")) for roof in (31, 62)
        )
        fit = Fit(Source(seen, "f16", "all", without=frozenset((2048, 16384))))
        points = [r for r in Source(now, "f16", "all").rows("decode") if r.get("T") in (2048, 16384)]
        self.assertGreater(len(points), 8)
        checked = check(fit, points)
        self.assertLess(max(abs(c.error) for c in checked), 0.12, [(c.row.key, c.error) for c in checked])
        # A fraction of the roofs does not carry over: without rows of one thread it is all there is.
        alone = [r.raw for r in seen.rows if r.get("threads") == "all"]
        fit = Fit(Source(rows.from_value(self.path, {"context": seen.context, "benchmarks": alone}), "f16", "all"))
        self.assertGreater(max(abs(c.error) for c in check(fit, points)), 0.20)

    def test_the_thread_with_the_most_segments(self) -> None:
        kernels = (Path(__file__).parents[2] / "kernels" / "kernels.hpp").read_text(encoding="utf-8")
        self.assertIn(f"kSegmentRows = {SEGMENT_ROWS};", kernels)
        for query_heads, kv_heads, sequences in ((32, 32, 1), (32, 8, 1), (32, 1, 1), (16, 1, 1), (128, 1, 3)):
            for rows_ in (1, 511, 512, 513, 1536, 6144, 100_000):
                for threads in (1, 2, 3, 8, 64, 257):
                    work = Work(1, 1, query_heads, kv_heads, rows_, sequences)
                    heads = sequences * kv_heads
                    expected = synthetic.largest_part(heads * query_heads // kv_heads, heads, rows_, threads)
                    self.assertAlmostEqual(work.busiest_share(threads), expected, msg=f"{work} {threads}")
        self.assertAlmostEqual(Work(1, 1, 32, 1, 1536).busiest_share(2), 2 / 3)  # three segments for two

    def test_refusals(self) -> None:
        base = ("predict", "--machine", self.path)
        self.refuses("predict", "--model", "llama3-8b", says="required: --machine")
        self.refuses(*base, says="none given")
        self.refuses(*base, "--model", "deepseek-v3", says="no cold mla_absorbed rows")
        self.refuses(*base, "--model", "llama3-8b", "--storage", "int8", says="measured there: bf16 with 1")
        self.refuses(*base, "--model", "llama3-8b", "--tokens", 0, says="--tokens")
        self.refuses(*base, "--model", "llama3-8b", "--batch", 0, says="--batch")
        self.refuses(*base, "--model", "llama3-8b", "--weights", "x", says="not a size")
        self.refuses("predict", "--machine", self.folder / "none", "--model", "llama3-8b", says="no such file")


class LatentModels(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.value = synthetic.result(preset="full", latent=True)
        self.path = self.write("m.json", self.value)
        self.result = rows.from_value(self.path, self.value)

    def steps(self, *arguments: object) -> dict[str, Any]:
        return json.loads(self.succeeds("predict", "--machine", self.path, "--json", *arguments))["steps"][0]

    def test_a_layer_takes_what_the_measured_step_takes(self) -> None:
        for threads in ("1", "all"):
            for T in (128, 4096, 131072):
                row = next(
                    r
                    for r in rows_of(self.result, STEP)
                    if (r.shape["name"], r.raw["storage"], r.get("threads"), r.get("T")) == ("MLA", "bf16", threads, T)
                )
                found = self.steps("--model", "deepseek-v3", "--storage", "bf16", "--threads", threads, "--tokens", T)
                self.assertLess(abs(found["ns"] / (61 * row.ns) - 1), 0.15, row.name)
                self.assertTrue(found["within_measured"])
                self.assertEqual(found["bytes"], 61 * T * 1152)

    def test_weights_and_heads(self) -> None:
        v3, lite = PRESETS["deepseek-v3"], PRESETS["deepseek-v2-lite"]
        self.assertEqual(fold_weights(v3) * 4, 64 * 2**20)
        self.assertEqual(fold_weights(lite) * 8, fold_weights(v3))
        found = self.steps("--model", "deepseek-v2-lite", "--storage", "bf16", "--tokens", 32768)
        other = self.steps("--model", "deepseek-v3", "--storage", "bf16", "--tokens", 32768)
        self.assertTrue(found["within_measured"])
        heads = [r for r in self.value["benchmarks"] if (r.get("shape") or {}).get("name") != "MLA16"]
        self.path = self.write("m.json", {"context": self.value["context"], "benchmarks": heads})
        alone = self.steps("--model", "deepseek-v2-lite", "--storage", "bf16", "--tokens", 32768)
        self.assertFalse(alone["within_measured"])  # 16 heads, where only 128 were measured
        self.assertLess(found["ns"] / 27, other["ns"] / 61)
        self.assertIn(
            "64 MiB", self.succeeds("predict", "--machine", self.path, "--model", "deepseek-v3", "--storage", "int8")
        )

    def test_points_that_the_fit_has_not_seen(self) -> None:
        without = frozenset((2048, 16384))
        for storage in ("f32", "int8"):
            source = Source(self.result, storage, "all", without=without)
            steps = check(LatentFit(source), self.unseen(STEP, storage, without))
            alone = check(Fit(source, ABSORBED), self.unseen(ABSORBED, storage, without))
            self.assertEqual(len(steps + alone), 4)
            self.assertLess(max(abs(c.error) for c in steps + alone), 0.15)

    def unseen(self, kernel: str, storage: str, lengths: frozenset[int]) -> list[rows.Row]:
        return [
            r
            for r in rows_of(self.result, kernel)
            if r.raw["storage"] == storage and r.get("threads") == "all" and r.get("T") in lengths
        ]

    def test_without_steps_the_folds_are_a_guess_that_says_so(self) -> None:
        self.value["benchmarks"] = [r for r in self.value["benchmarks"] if r["kernel"] != STEP]
        self.write("m.json", self.value)
        more = ("--model", "deepseek-v3", "--storage", "bf16", "--tokens", 4096)
        self.assertFalse(self.steps(*more)["within_measured"])
        self.assertIn("no step was measured", self.succeeds("predict", "--machine", self.path, *more))


class Check(CommandTest):
    """predict --check with a stand-in for the benchmark, which measures a synthetic full sweep."""

    def setUp(self) -> None:
        super().setUp()
        self.path = self.write("m.json", synthetic.result(preset="full", latent=True))

    def check(self, *arguments: object, **how: Any) -> Any:
        environment = {"KVROOF_BENCH": str(HERE / "fake_bench.py"), "FAKE_BENCH": json.dumps({"rows": 9999} | how)}
        return self.run_command("predict", "--machine", self.path, "--check", *arguments, environment=environment)

    def test_all_storages_shapes_and_kernels(self) -> None:
        done = self.check()
        self.assertEqual(done.code, 0, done.err + done.out)
        for words in (
            "MHA f32",
            "GQA bf16",
            "MQA int8",
            "GQA40 f16",
            "mla_absorbed MLA f32",
            "mla_absorbed_step MLA16 int8",
            "window GQA f16 W 1600",
            "batch GQA int8 B 4",
        ):
            self.assertIn(words, done.out)
        summary = r"error on \d+ points .* median \d+\.\d %, worst \d+\.\d % \(limits 10 and 20\): ok"
        self.assertRegex(done.out, summary)
        self.assertRegex(done.out, r"int8 +\d+ points: median \d+\.\d %, worst \d+\.\d %\n")
        beyond = r"~ 24 points beyond the sizes, groups of heads or dims of the file: .* promise nothing"
        self.assertRegex(done.out, beyond)  # GQA64: dims of 64

    def test_native_mode_apart(self) -> None:
        done = self.check("--native")
        self.assertEqual(done.code, 0, done.err + done.out)
        self.assertIn("MHA bf16", done.out)
        self.assertNotIn("MHA f32 ", done.out)
        self.assertIn("mla_absorbed_step MLA bf16", done.out)

    def test_a_wrong_prediction_fails(self) -> None:
        done = self.check("--storage", "f16", "--threads", "all", factor=1.5)
        self.assertEqual(done.code, 1)
        self.assertIn("OVER", done.out)
        one = self.check("--storage", "f16", "--threads", "all", factor=1.5, only="shape:MQA/")
        self.assertEqual(one.code, 1, one.out)  # the worst counts, not only the median

    def test_doubtful_points_are_measured_again(self) -> None:
        more = ("--storage", "f16", "--threads", "1")
        done = self.check(*more, unstable=True, state=str(self.folder / "runs"))
        self.assertEqual(done.code, 0, done.err)
        self.assertNotIn("not counted", done.out)
        self.assertEqual((self.folder / "runs").read_text(), "xx")
        self.assertIn("without doubt", self.check(*more, unstable=True).err)
        few = self.check(*more, unstable=True, only="/shape:MLA16/")
        self.assertEqual(few.code, 0, few.out)
        self.assertIn("not counted", few.out)
        many = self.check(*more, unstable=True, only="/T:6144/")
        self.assertEqual(many.code, 1, many.out)
        self.assertIn("NOT PROVEN", many.out)

    def test_json(self) -> None:
        done = self.check("--storage", "f16", "--threads", "1", "--json")
        value = json.loads(done.out)
        self.assertTrue(value["within_limits"])
        self.assertTrue(all(point["counted"] != ("shape:GQA64" in point["name"]) for point in value["points"]))

    def test_refusals(self) -> None:
        value = synthetic.result()
        value["benchmarks"] = [row for row in value["benchmarks"] if row["kernel"].startswith("roof")]
        self.write("m.json", value)
        done = self.check()
        self.assertEqual((done.code, len(done.err.splitlines())), (2, 1), done.err)
        self.assertIn("no rows there to predict from", done.err)


if __name__ == "__main__":
    unittest.main()
