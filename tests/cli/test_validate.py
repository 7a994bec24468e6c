#!/usr/bin/env python3
"""tools/kvroof validate, and how every command reads a result file: damaged, foreign, edited and future files."""

from __future__ import annotations

import copy
import json
import unittest
from typing import Any, Callable

import synthetic
from support import ROOT, CommandTest, changed, quick_result

import json_file
import rows
from schema import Checker, SchemaError

Json = dict[str, Any]


def first_own(value: Json) -> Json:
    return next(row for row in value["benchmarks"] if row["impl"] == "kvroof")


def small_result() -> Json:
    """Enough rows for every command, few enough to be read a hundred times."""
    value = quick_result()
    value["benchmarks"] = [
        row
        for row in value["benchmarks"]
        if row["kernel"] != "decode" or "/T:512/" in row["name"] and "shape:MHA" in row["name"]
    ]
    return value


class Files(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.good = small_result()

    def refuses_file(self, value: Any, says: str) -> None:
        """Every command that reads results refuses it the same way."""
        path, good = self.write("bad.json", value), self.write("good.json", self.good)
        for command in (
            ("report", path, "--out", self.folder / "page.html"),
            ("compare", good, path),
            ("compare", path, good),
            ("predict", "--model", "llama3-8b", "--machine", path),
        ):
            with self.subTest(command=command[0], says=says):
                self.refuses(*command, says=says)
        done = self.run_command("validate", path)
        self.assertEqual(done.code, 2)
        self.assertIn(says, done.out)
        self.assertFalse((self.folder / "page.html").exists())

    def edit(self, change: Callable[[Json], None]) -> Json:
        value = copy.deepcopy(self.good)
        change(value)
        return value

    def test_good_file(self) -> None:
        out = self.succeeds("validate", self.write("good.json", self.good))
        self.assertIn(f"{len(self.good['benchmarks'])} rows", out)

    def test_missing_and_strange_paths(self) -> None:
        self.refuses("compare", self.folder / "none.json", self.folder / "none.json", says="no such file")
        self.refuses("report", self.folder, says="not a regular file")
        self.refuses("report", "/dev/null", says="not a regular file")
        self.refuses("predict", "--model", "llama3-8b", "--machine", "a\0b", says="cannot be read")

    def test_damaged(self) -> None:
        text = json.dumps(self.good)
        self.refuses_file("", "the file is empty")
        self.refuses_file(text[: len(text) // 2], "not JSON")
        self.refuses_file(text[:-1], "not JSON")
        self.refuses_file(text + "}", "not JSON")
        self.refuses_file(text.replace('"date"', '"date" "date"', 1), "not JSON")
        self.refuses_file(text.replace('"real_time": ', '"real_time": NaN, "was": ', 1), "NaN is not JSON")
        self.refuses_file(text.replace('"real_time": ', '"real_time": -Infinity, "was": ', 1), "-Infinity is not JSON")
        self.refuses_file(text.replace('"real_time": ', '"real_time": 1e400, "was": ', 1), "too large")
        self.refuses_file(text.replace('"bytes": ', '"bytes": ' + "7" * 400 + ', "was": ', 1), "too large")
        self.refuses_file(text.replace('"real_time": ', '"real_time": 5.0, "real_time": ', 1), "given twice")
        self.refuses_file("[" * 200_000 + "]" * 200_000, "nested too deeply")
        (self.folder / "bad.json").write_bytes(text.encode("utf-16"))
        self.refuses("report", self.folder / "bad.json", says="not UTF-8")

    def test_foreign(self) -> None:
        self.refuses_file([1, 2, 3], "not a kvroof result file")
        self.refuses_file({"name": "something"}, "not a kvroof result file")
        self.refuses_file({"context": {"date": "now"}, "benchmarks": []}, "another program's result file")
        self.refuses_file({"context": 3, "benchmarks": 4}, "another program's result file")

    def test_future_schema(self) -> None:
        def newer(value: Json) -> None:
            value["context"]["schema"]["version"] = "2.0.0"
            value["context"]["new_field"] = 1

        self.refuses_file(self.edit(newer), "schema version 2.0.0 is newer")

    def test_schema_faults(self) -> None:
        self.refuses_file(self.edit(lambda v: v["context"].pop("machine")), "the field 'machine' is missing")
        self.refuses_file(changed(self.good, status="fine"), "must be one of ok")
        self.refuses_file(changed(self.good, surprise=1), "unknown field 'surprise'")
        self.refuses_file(changed(self.good, real_time="fast"), "real_time: must be number, is 'fast'")
        self.refuses_file(changed(self.good, real_time=-1.0), "must be above 0")
        self.refuses_file(changed(self.good, thread_count=True), "must be integer, is True")
        self.refuses_file(changed(self.good, reason="because"), "must be null")
        self.refuses_file(changed(self.good, status="not_measured", reason="no"), "'error_occurred' is missing")
        self.refuses_file(changed(self.good, output_hash="xyz"), "does not fit")
        self.refuses_file(changed(self.good, output_hash=None), "'output_hash_reason' is missing")

    def test_edited_by_hand(self) -> None:
        row = first_own(self.good)
        self.refuses_file(
            changed(self.good, real_time=row["real_time"] / 2, cpu_time=row["cpu_time"] / 2), "is not bytes/real_time"
        )
        self.refuses_file(
            changed(self.good, real_time=row["real_time"] / 2, gb_per_s=row["gb_per_s"] * 2, gflops=row["gflops"] * 2),
            "not the median of its own samples",
        )
        self.refuses_file(changed(self.good, read_fraction=1.5), "read_fraction 1.5 is not the median of its own")
        own = first_own(self.good)
        edited = own["read_fraction"] * 1.01  # well inside the samples, as a hand would do it
        self.refuses_file(changed(self.good, read_fraction=edited), "is not the median of its own samples")
        spread = own["spread"] | {"median": (own["spread"]["median"] + own["spread"]["high"]) / 2}
        self.refuses_file(changed(self.good, spread=spread), "spread.median")
        self.refuses_file(
            changed(self.good, attainable_fraction=own["attainable_fraction"] * 0.99), "attainable_fraction"
        )
        rounded = float(f"{own['read_fraction']:.5g}")
        self.succeeds("validate", self.write("rounded.json", changed(self.good, read_fraction=rounded)))
        self.refuses_file(changed(self.good, T=1024), "the name says T:512, the field 1024")
        self.refuses_file(changed(self.good, storage="bf16"), "the name says storage:f32, the field bf16")
        self.refuses_file(changed(self.good, kernel="ring"), "the name says decode, the field kernel ring")
        self.refuses_file(changed(self.good, key="decode/other"), "the key is not the name without its isa")
        self.refuses_file(changed(self.good, thread_count=5), "with a count of 5")
        self.refuses_file(changed(self.good, spread=row["spread"] | {"low": 1.0, "high": 0.5}), "not in order")

    def test_duplicated_rows(self) -> None:
        self.refuses_file(self.edit(lambda v: v["benchmarks"].append(first_own(v))), "the same row as benchmarks[")

    def test_text_of_a_file_stays_on_one_line(self) -> None:
        self.refuses_file(changed(self.good, status="line one\nline two\u2028three\x1b[31m"), "must be one of ok")

    def test_rows_that_did_not_run_are_fine(self) -> None:
        def stop(value: Json) -> None:
            index = value["benchmarks"].index(first_own(value))
            value["benchmarks"][index] = synthetic.not_measured(first_own(value))

        path = self.write("gap.json", self.edit(stop))
        self.succeeds("validate", path)
        self.succeeds("compare", path, self.write("good.json", self.good))

    def test_every_fault_is_listed(self) -> None:
        value = changed(self.good, T=1024, thread_count=5)
        done = self.run_command("validate", self.write("bad.json", value))
        self.assertEqual(done.out.count("invalid"), 2)

    def test_rules_of_the_results_folder(self) -> None:
        good = self.write("good.json", self.good)
        self.succeeds("validate", "--rules", good)
        for change, says in (
            (lambda v: v["context"].update(complete=False), "not complete"),
            (lambda v: v["context"].update(preset="ci"), "only whole quick or full sweeps"),
            (lambda v: v["context"]["build"].update(dirty=True), "no commit holds"),
            (lambda v: v["context"]["build"].update(commit=None, commit_reason="no git"), "commit is not known"),
            (lambda v: v["context"]["build"].update(build_type="Debug"), "only Release"),
            (lambda v: first_own(v).update(checked=None, checked_reason="skipped"), "not checked"),
            (lambda v: first_own(v).update(output_hash="0" * 16), "other bits than"),
        ):
            path = self.write("bad.json", self.edit(change))
            with self.subTest(says):
                self.succeeds("validate", path)
                done = self.run_command("validate", "--rules", path)
                self.assertEqual((done.code, says in done.out), (1, True), done.out)

    def test_results_of_the_repository(self) -> None:
        committed = [p for p in (ROOT / "results").glob("*.json") if p.name != "schema.json"]
        if not committed:
            self.skipTest("no result file in results/ yet")
        self.succeeds("validate", "--rules", *committed)


class OwnChecker(unittest.TestCase):
    """The small checker against the one that the world knows, where that one is installed."""

    def test_unknown_words_are_an_error_of_the_schema(self) -> None:
        with self.assertRaises(SchemaError):
            Checker({"type": "object", "propertyNames": {"maxLength": 3}}).faults({})

    def test_agrees_with_jsonschema(self) -> None:
        try:
            import jsonschema
        except ImportError:
            self.skipTest("python3-jsonschema is not installed")
        schema = json_file.read(ROOT / "results" / "schema.json", "")
        own, other = rows.schema_checker(), jsonschema.Draft202012Validator(schema)
        other.check_schema(schema)
        whole = quick_result()
        row = first_own(whole)
        strange = (None, True, 0, -1, 1.5, "", "x", [], {}, {"value": 1})
        forms = [row | {name: value} for name in row for value in strange] + [
            {k: v for k, v in row.items() if k != name} for name in row
        ]
        contexts = [whole["context"] | {name: value} for name in whole["context"] for value in strange]
        values: list[Any] = [{}, [], None, {"context": {}, "benchmarks": 3}]
        values += [{"context": whole["context"], "benchmarks": [form]} for form in forms]
        values += [{"context": context, "benchmarks": []} for context in contexts]
        verdicts = [bool(own.faults(value)) for value in values]
        for value, verdict in zip(values, verdicts):
            self.assertEqual(verdict, not other.is_valid(value), json.dumps(value)[:300])
        self.assertIn(True, verdicts)
        self.assertIn(False, verdicts)


if __name__ == "__main__":
    unittest.main()
