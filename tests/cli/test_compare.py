#!/usr/bin/env python3
"""tools/kvroof compare: the join, the verdicts, and the differences that must be said loudly."""

from __future__ import annotations

import copy
import json
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import synthetic
from support import CommandTest, quick_result
from synthetic_machine import MACHINES

import report_command
from compare import BETTER, EXPLAINED, UNCLEAR, WORSE, verdict_of

SERVER, ARM = "synthetic-server-8c", "synthetic-arm-64c"


def scaled(value: dict[str, Any], time_factor: float, roof_factor: float = 1.0) -> dict[str, Any]:
    """The same machine with kvroof's times and read roofs multiplied, consistent in itself."""
    result = copy.deepcopy(value)
    for row in result["benchmarks"]:
        if row["impl"] == "kvroof":
            synthetic.scale(row, time_factor, roof_factor)
    return result


class Compare(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.base = quick_result(SERVER)
        self.a = self.write("a.json", self.base)

    def as_json(self, b: dict[str, Any], *more: object, code: int = 0) -> dict[str, Any]:
        done = self.run_command("compare", self.a, self.write("b.json", b), "--format", "json", *more)
        self.assertEqual(done.code, code, done.err)
        return json.loads(done.out)["comparisons"][0]

    def verdicts(self, b: dict[str, Any]) -> set[str]:
        return {row["verdict"] for row in self.as_json(b)["rows"] if "/impl:kvroof/" in row["key"]}

    def test_the_same_file(self) -> None:
        found = self.as_json(self.base)
        self.assertEqual(self.verdicts(self.base), {EXPLAINED})
        self.assertTrue(all(row["time_ratio"] == 1 for row in found["rows"]))
        self.assertEqual((found["only_a"], found["only_b"], found["different_bits"]), ([], [], []))

    def test_roofs_explain_a_slower_machine(self) -> None:
        slower = scaled(self.base, 2.0, 0.5)
        self.assertEqual(self.verdicts(slower), {EXPLAINED})
        row = next(r for r in self.as_json(slower)["rows"] if "/impl:kvroof/" in r["key"])
        self.assertAlmostEqual(row["time_ratio"], 2.0)
        self.assertAlmostEqual(row["read_roof_ratio"], 0.5)

    def test_a_row_above_a_roof_is_marked(self) -> None:
        b = scaled(self.base, 1.5)
        own = [row for row in b["benchmarks"] if row["impl"] == "kvroof" and row["cache"] == "cold"]
        own[0].update(above_roof=True, above_roof_by=0.1, above_roof_of="read")
        own[1].update(page_order_fraction={"median": 1.1, "low": 1.09, "high": 1.11, "n": 51})
        found = {row["key"]: row for row in self.as_json(b)["rows"]}
        for row, roof in ((own[0], "read"), (own[1], "page-order")):
            self.assertEqual(found[row["key"]]["wrong_roofs"], [f"B above its {roof} roof"])
        self.assertEqual(found[own[2]["key"]]["wrong_roofs"], [])
        text = self.succeeds("compare", self.a, self.folder / "b.json", "--all")
        self.assertIn("worse than they explain, B above its page-order roof", text)
        self.assertIn("above a roof, which is wrong there: 2 rows", text)

    def test_a_regression_is_not_explained(self) -> None:
        self.assertEqual(self.verdicts(scaled(self.base, 1.5)), {WORSE})
        self.assertEqual(self.verdicts(scaled(self.base, 0.7)), {BETTER})
        out = self.succeeds("compare", self.a, self.write("b.json", scaled(self.base, 1.5)))
        self.assertIn("worse than they explain", out)

    def test_verdicts_follow_the_intervals(self) -> None:
        self.assertEqual(verdict_of(1.03, 1.01, 1.05, 0.05), EXPLAINED)
        self.assertEqual(verdict_of(1.2, 0.95, 1.4, 0.05), UNCLEAR)
        self.assertEqual(verdict_of(1.2, 1.1, 1.3, 0.05), BETTER)
        self.assertEqual(verdict_of(0.8, 0.7, 0.9, 0.05), WORSE)

    def test_joined_by_key_not_by_order_or_isa(self) -> None:
        shuffled = copy.deepcopy(self.base)
        shuffled["benchmarks"].reverse()
        self.assertTrue(all(row["time_ratio"] == 1 for row in self.as_json(shuffled)["rows"]))
        other = quick_result(ARM)
        self.assertEqual({row["isa"] for row in other["benchmarks"]}, {"neon"})
        self.assertGreater(len([r for r in self.as_json(other)["rows"] if "/impl:kvroof/" in r["key"]]), 100)

    def test_partial_files(self) -> None:
        part = copy.deepcopy(self.base)
        part["benchmarks"] = [row for row in part["benchmarks"] if "shape:GQA" in row["name"]]
        part["context"]["complete"] = False
        found = self.as_json(part)
        self.assertEqual(len(found["rows"]), sum(r["impl"] != "probe" for r in part["benchmarks"]))
        self.assertEqual(found["only_b"], [])
        self.assertTrue(found["only_a"])
        self.assertIn("b is not a complete sweep", found["warnings"])
        self.assertIn("only on A:", self.succeeds("compare", self.a, self.folder / "b.json"))

    def test_nothing_in_common_is_an_error(self) -> None:
        first, second = copy.deepcopy(self.base), copy.deepcopy(self.base)
        first["benchmarks"] = [row for row in first["benchmarks"] if "shape:GQA" in row["name"]]
        second["benchmarks"] = [row for row in second["benchmarks"] if "shape:MHA" in row["name"]]
        self.refuses(
            "compare", self.write("a.json", first), self.write("b.json", second), says="no row is measured in both"
        )

    def test_other_bits_fail(self) -> None:
        other = copy.deepcopy(self.base)
        row = next(r for r in other["benchmarks"] if r["impl"] == "kvroof")
        row["output_hash"] = "0123456789abcdef"
        done = self.run_command("compare", self.a, self.write("b.json", other))
        self.assertEqual(done.code, 1)
        self.assertIn("FAILED: 1 of", done.out)
        self.assertEqual(self.as_json(other, code=1)["different_bits"], [row["key"]])
        other["context"]["definition"] = 2
        done = self.run_command("compare", self.a, self.write("b.json", other))
        self.assertEqual(done.code, 0)
        self.assertIn("WARNING: different numerics definition: 1 and 2", done.out)

    def test_native_rows_may_differ_in_bits(self) -> None:
        first, second = copy.deepcopy(self.base), copy.deepcopy(self.base)
        for value, digest in ((first, "0" * 16), (second, "1" * 16)):
            for row in value["benchmarks"]:
                if row["impl"] == "kvroof":
                    for name in ("name", "key", "run_name", "tuple"):
                        row[name] = row[name].replace("mode:reproducible", "mode:native")
                    row.update(mode="native", output_hash=digest)
        self.succeeds("compare", self.write("a.json", first), self.write("b.json", second))

    def test_forms(self) -> None:
        b = self.write("b.json", quick_result(ARM))
        text = self.succeeds("compare", self.a, b)
        self.assertIn("the same bits on all", text)
        markdown = self.succeeds("compare", self.a, b, "--format", "markdown")
        self.assertIn("| decode f16 |", markdown)
        out = self.folder / "c.md"
        self.succeeds("compare", self.a, b, "--format", "markdown", "--out", out)
        self.assertEqual(out.read_text(), markdown)
        self.assertGreater(self.succeeds("compare", self.a, b, "--all").count("\n"), text.count("\n"))

    def test_native_rows_stand_apart(self) -> None:
        value = synthetic.result(preset="full")
        a, b = self.write("a.json", value), self.write("b.json", copy.deepcopy(value))
        families = [
            line.split("  ")[1] for line in self.succeeds("compare", a, b).splitlines() if line.startswith("  ")
        ]
        self.assertIn("decode bf16", families)
        self.assertIn("decode bf16 native", families)
        lines = self.succeeds("compare", a, b, "--all").splitlines()
        names = [line[2:].split("  ")[0] for line in lines if line.startswith("  decode MHA bf16 T 4096 cold 1 thread")]
        self.assertIn("decode MHA bf16 T 4096 cold 1 thread", names)
        self.assertIn("decode MHA bf16 T 4096 cold 1 thread native", names)

    def test_html_has_the_verdicts_and_the_charts(self) -> None:
        out = self.folder / "c.html"
        worse = scaled(self.base, 1.5)
        worse["context"]["build"]["commit"] = None
        worse["context"]["build"]["commit_reason"] = "<b>none</b>"
        with mock.patch.object(report_command, "plotly_script", lambda: "/* plotly */"):
            self.succeeds("compare", self.a, self.write("<b>.json", worse), "--format", "html", "--out", out)
        page = out.read_text()
        self.assertIn("<td>decode f16</td>", page)
        self.assertIn("worse than they explain</td>", page)
        self.assertIn("&lt;b&gt; against a", page)
        self.assertNotIn("<b> against", page)
        self.assertIn('id="fraction"', page)

    def test_every_row_of_one_side_is_listed(self) -> None:
        part = copy.deepcopy(self.base)
        part["benchmarks"] = [row for row in part["benchmarks"] if "shape:GQA" in row["name"]]
        b = self.write("b.json", part)
        gone = next(row for row in self.base["benchmarks"] if row["impl"] == "kvroof" and "shape:MQA" in row["name"])
        self.assertIn(gone["key"], self.succeeds("compare", self.a, b, "--all"))
        self.assertNotIn(gone["key"], self.succeeds("compare", self.a, b))

    def test_three_machines(self) -> None:
        b, c = self.write("b.json", quick_result(ARM)), self.write("c.json", scaled(self.base, 1.5))
        out = self.succeeds("compare", self.a, b, c)
        self.assertEqual(out.count("A  a: "), 2)

    def test_refusals(self) -> None:
        self.refuses("compare", self.a, says="name two or more")
        self.refuses("compare", says="no file; name two or more")
        self.refuses("compare", self.a, self.a, "--tolerance", "2", says="--tolerance")
        self.refuses("compare", self.a, self.a, "--out", Path("/dev/full"), says="not a regular file")
        self.refuses("compare", self.a, self.a, "--out", self.a / "x.md", says="cannot be written")
        self.assertEqual(self.leftovers(), [])

    def test_two_thousand_rows_cost_little_more_than_their_reading(self) -> None:
        # Under two seconds on a fast machine; 7.5 times the bare parsing on a slow one, where that is three.
        files, texts = [], []
        for machine in MACHINES[:2]:
            files.append(self.write(f"{machine.name}.json", synthetic.result(machine, "full")))
            texts.append(Path(files[-1]).read_text())
        parse = compare = 99.0
        for _ in range(3):  # the machine may be busy with something else
            began = time.process_time()
            for text in texts:
                json.loads(text)
            parse = min(parse, time.process_time() - began)
            began = time.process_time()
            self.succeeds("compare", *files)
            compare = min(compare, time.process_time() - began)
        self.assertLess(compare, 12 * parse)


if __name__ == "__main__":
    unittest.main()
