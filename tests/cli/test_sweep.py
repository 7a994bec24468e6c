#!/usr/bin/env python3
"""tools/kvroof sweep with a stand-in for the benchmark: nothing measured is lost, whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any

import synthetic
from support import CLI, HERE, CommandTest, Done

import journal
import rows
from errors import UserError
from headline import headlines
from sweep_table import best_onednn, halving, heading, latent_bytes, layout_ratios, table

BENCH = str(HERE / "fake_bench.py")


class Sweep(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.out = self.folder / "results" / "machine.json"
        self.journal = self.out.with_suffix(".journal")

    def environment(self, **how: Any) -> dict[str, str]:
        return {"KVROOF_BENCH": BENCH, "FAKE_BENCH": json.dumps(how)}

    def sweep(self, *arguments: object, **how: Any) -> Done:
        return self.run_command(
            "sweep", "--out", self.out, "--no-page", *arguments, environment=self.environment(**how)
        )

    def rows(self) -> list[dict[str, Any]]:
        return json.loads(self.out.read_text())["benchmarks"]

    def test_whole_sweep(self) -> None:
        done = self.sweep()
        self.assertEqual(done.code, 0, done.err)
        self.assertGreater(len(self.rows()), 60)
        self.assertFalse(self.journal.exists())
        self.assertEqual([p.name for p in self.out.parent.iterdir()], ["machine.json"])
        self.assertIn("of read roof", done.out)
        self.assertLessEqual(max(map(len, done.out.splitlines()[:-6])), 100)
        self.succeeds("validate", self.out)
        self.assertIn("left", done.err)  # progress without a terminal: plain lines
        self.assertNotIn("\r", done.err)

    def test_table_puts_the_fraction_first_and_marks_rows(self) -> None:
        value = synthetic.result()
        own = [row for row in value["benchmarks"] if row["impl"] == "kvroof"]
        own[0].update(above_roof=True, above_roof_by=0.07)
        own[1].update(status="unstable", reason="clock went from 3000 to 2000 MHz")
        own[3].update(page_order_fraction={"median": 1.07, "low": 1.06, "high": 1.08, "n": 51})
        own[4].update(page_order_fraction={"median": 1.07, "low": 1.02, "high": 1.13, "n": 51})  # within its spread
        index = value["benchmarks"].index(own[2])
        value["benchmarks"][index] = synthetic.not_measured(own[2], "needs 12 GiB")
        lines = [{"context": value["context"]}, *value["benchmarks"]]
        self.write("results/machine.journal", "".join(json.dumps(line) + "\n" for line in lines))
        done = self.sweep("--finish")
        self.assertEqual(done.code, 0, done.err)
        for words in (
            "above roof by 7 %",
            "unstable",
            "not measured: needs 12 GiB",
            "1 rows lie above their read roof",
            "above page-order roof",
            "1 rows lie above their page-order roof",
            "time f16 / f32 at T = 32768",
        ):
            self.assertIn(words, done.out)
        heading = next(line for line in done.out.splitlines() if "of read roof" in line)
        self.assertLess(heading.index("of read roof"), heading.index("GB/s"))
        self.assertLess(heading.index("GB/s"), heading.index("time"))
        self.assertLess(heading.index("time"), heading.index("oneDNN"))

    def test_killed_benchmark_keeps_rows_and_resumes(self) -> None:
        done = self.sweep(stop_after=7, torn=True)
        self.assertEqual(done.code, 2)
        self.assertIn("killed by signal 9", done.err)
        self.assertIn("--resume", done.err)
        self.assertFalse(self.out.exists())
        kept = journal.read(self.journal)
        self.assertEqual(len({row["tuple"] for row in kept.rows}), 7)
        self.assertIsNotNone(kept.torn_at)

        again = self.sweep()
        self.assertEqual(again.code, 2)
        self.assertIn("an interrupted sweep is kept there", again.err)
        self.assertEqual(len(journal.read(self.journal).rows), len(kept.rows))

        done = self.sweep("--resume")
        self.assertEqual(done.code, 0, done.err)
        self.assertIn("torn", done.err)
        self.assertEqual(len({row["tuple"] for row in self.rows()}), 60)
        self.assertEqual([r for r in self.rows() if r["name"] in {k["name"] for k in kept.rows}], kept.rows)

    def test_finish_keeps_a_part(self) -> None:
        self.sweep(stop_after=30)
        done = self.sweep("--finish")
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(len({row["tuple"] for row in self.rows()}), 30)
        self.assertFalse(json.loads(self.out.read_text())["context"]["complete"])
        self.assertIn("no interrupted sweep there", self.sweep("--finish").err)

    def test_fresh_discards(self) -> None:
        self.sweep(stop_after=3)
        self.assertEqual(self.sweep("--fresh").code, 0)
        self.assertEqual(len({row["tuple"] for row in self.rows()}), 60)

    def test_resume_without_a_journal_starts(self) -> None:
        done = self.sweep("--resume")
        self.assertEqual(done.code, 0, done.err)
        self.assertIn("starting one", done.err)

    def _start(self) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, str(CLI), "sweep", "--out", str(self.out), "--no-page"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | self.environment(sleep=0.1),
            start_new_session=True,
        )

    def _wait_for_rows(self) -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if self.journal.exists() and self.journal.read_bytes().count(b"\n") > 3:
                return
            time.sleep(0.02)
        self.fail("no rows were written")

    def test_control_c(self) -> None:
        driver = self._start()
        self._wait_for_rows()
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to the whole group
        out, err = driver.communicate(timeout=30)
        self.assertEqual(driver.returncode, 130, err)
        self.assertIn("rows are kept", err)
        self.assertNotIn("Traceback", err)
        self.assertEqual(self.sweep("--resume").code, 0)
        self.assertEqual(len({row["tuple"] for row in self.rows()}), 60)

    def test_kill_9_of_the_driver(self) -> None:
        driver = self._start()
        self._wait_for_rows()
        driver.kill()
        driver.communicate(timeout=30)
        time.sleep(0.3)
        size = self.journal.stat().st_size
        time.sleep(0.4)
        self.assertEqual(self.journal.stat().st_size, size, "the benchmark went on measuring without its driver")
        self.assertEqual(self.sweep("--resume").code, 0)
        self.assertEqual(len({row["tuple"] for row in self.rows()}), 60)

    def test_two_sweeps_at_once(self) -> None:
        driver = self._start()
        self._wait_for_rows()
        done = self.sweep()
        self.assertEqual(done.code, 2)
        self.assertIn("another sweep is writing it", done.err)
        driver.terminate()
        self.assertEqual(driver.wait(timeout=30), 130)
        driver.communicate()

    def test_unwritable_paths_are_refused_before_measuring(self) -> None:
        blocked = self.write("file", "x")
        for path, says in (
            (blocked / "x.json", "cannot be written"),
            (self.folder / "page.html", "a result file ends in .json"),
            (self.folder / ("a" * 300 + ".json"), "cannot be written"),
            (Path("/proc/kvroof/x.json"), "cannot be written"),
        ):
            with self.subTest(says):
                self.refuses("sweep", "--out", path, says=says, environment={"KVROOF_BENCH": "/bin/false"})
        (self.folder / "dir.json").mkdir()
        self.refuses(
            "sweep",
            "--out",
            self.folder / "dir.json",
            says="not a regular file",
            environment={"KVROOF_BENCH": "/bin/false"},
        )

    def test_full_disk(self) -> None:
        mount = self.folder / "tiny"
        mount.mkdir()
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], capture_output=True
        ).returncode:
            self.skipTest("a small tmpfs cannot be mounted here")
        try:
            self.out = mount / "machine.json"
            (mount / "machine.json").write_text("old")
            self.journal = self.folder / "j"
            done = self.run_command("sweep", "--out", self.out, "--no-page", environment=self.environment())
            self.assertEqual(done.code, 2, done.out)
            self.assertNotIn("Traceback", done.err)
            self.assertEqual((mount / "machine.json").read_text(), "old")
        finally:
            subprocess.run(["umount", "-l", str(mount)], check=True)

    def test_benchmark_errors_come_through(self) -> None:
        self.refuses(
            "sweep",
            "--out",
            self.out,
            "--benchmark_colour=1",
            says="unknown flag --benchmark_colour",
            environment=self.environment(),
        )
        self.assertFalse(self.out.exists())
        self.refuses(
            "sweep",
            "--out",
            self.folder / "b.json",
            says="avx512 is not supported here",
            environment=self.environment(fail=[2, "kvroof_bench: avx512 is not supported here; KVROOF_ISA=avx2"]),
        )
        done = self.sweep(fail=[1, "kvroof_bench: 2 rows of kvroof failed their check against the oracle"])
        self.assertEqual(done.code, 1)
        self.assertIn("2 rows of kvroof failed their check", done.err)
        self.assertTrue(self.out.exists())

    def test_flags(self) -> None:
        done = self.sweep(
            "--filter", "^roof_read", "--benchmark_min_time=0.1", "--memory-limit", "4GiB", "--preset", "ci"
        )
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual({row["kernel"] for row in self.rows()}, {"roof_read"})
        self.refuses(
            "sweep", "--out", self.out, "--filter", "(", says="not a regular expression", environment=self.environment()
        )
        self.refuses(
            "sweep", "--out", self.out, "--memory-limit", "lots", says="not a size", environment=self.environment()
        )
        self.refuses(
            "sweep", "--out", self.out, "--preset", "slow", says="invalid choice", environment=self.environment()
        )
        self.refuses(
            "sweep",
            "--out",
            self.out,
            "--fast",
            says="kvroof sweep: '--fast': unknown argument; see",
            environment=self.environment(),
        )
        self.refuses(
            "sweep",
            "--out",
            self.out,
            "--filter",
            "nothing like it",
            says="no row of this preset matches",
            environment=self.environment(),
        )
        self.refuses("sweep", "--out", self.out, says="no such program", environment={"KVROOF_BENCH": "/nowhere"})

    def test_a_part_does_not_replace_a_whole_sweep(self) -> None:
        self.assertEqual(self.sweep().code, 0)
        whole = self.out.read_text()
        part = ("sweep", "--out", self.out, "--no-page")
        for words in (
            ("--filter", "shape:MHA"),
            ("--benchmark_filter=MHA",),
            ("--preset", "ci"),
            ("--filter", "MHA", "--resume"),
        ):
            with self.subTest(words):
                self.refuses(*part, *words, says="holds a whole sweep", environment=self.environment())
                self.assertEqual(self.out.read_text(), whole)
                self.assertFalse(self.journal.exists())
        self.assertEqual(self.sweep().code, 0)  # a whole one may
        done = self.sweep("--filter", "shape:MHA", "--fresh")
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual({row["shape"]["name"] for row in self.rows()}, {"MHA"})
        self.assertEqual(self.sweep("--filter", "shape:GQA").code, 0)  # a part replaces a part
        self.assertEqual({row["shape"]["name"] for row in self.rows()}, {"GQA"})

    def test_page_without_plotly_is_one_line(self) -> None:
        done = self.run_command("sweep", "--out", self.out, environment=self.environment(rows=40))
        self.assertEqual(done.code, 0, done.err)
        page = self.out.with_suffix(".html")
        self.assertTrue(page.exists() or "no page: page: plotly is not installed" in done.out)


def variant(row: dict[str, Any], name: str, **fields: Any) -> dict[str, Any]:
    return row | {"name": name, "time_ratios": []} | fields


class Modes(unittest.TestCase):
    """Native rows have lines, ratios and headlines of their own, or none."""

    def setUp(self) -> None:
        self.value = synthetic.result(preset="full", latent=True)
        for row in self.value["benchmarks"]:
            if row.get("mode") == "native":
                synthetic.scale(row, 0.25)  # far from the reproducible rows: where it leaks, it shows
        self.result = rows.from_value(Path("m.json"), self.value)
        kept = [row for row in self.value["benchmarks"] if row.get("mode") != "native"]
        self.alone = rows.from_value(Path("m.json"), {"context": self.value["context"], "benchmarks": kept})

    def test_table(self) -> None:
        both, alone = table(self.result), table(self.alone)
        self.assertIn("native mode (avx512_bf16)", both)
        for block in alone.split("\n\n"):
            self.assertIn(block, both)

    def test_native_rows_that_cannot_run_take_one_line(self) -> None:
        rows_in = self.value["benchmarks"]
        for index, row in enumerate(rows_in):
            if row.get("mode") == "native" and row["kernel"] == "mla_absorbed":
                rows_in[index] = synthetic.not_measured(row, "no amx") | {"status": "unsupported"}
        lines = table(rows.from_value(Path("m.json"), self.value)).splitlines()
        told = [line for line in lines if "unsupported: no amx" in line]
        self.assertEqual(len(told), 1)
        self.assertTrue(told[0].startswith("mla_absorbed, MLA"))

    def test_headlines_and_ratios_are_those_without_native_rows(self) -> None:
        tiles = headlines(self.result)
        self.assertEqual(tiles[:-1], headlines(self.alone))
        self.assertEqual(tiles[-1]["label"], "native mode takes")
        self.assertIn("the time of reproducible mode; median of", tiles[-1]["note"])
        self.assertEqual(list(halving(self.result)), list(halving(self.alone)))

    def test_rivals_beside_a_native_row_are_measured_against_it(self) -> None:
        native = next(r for r in self.result.rows if r.native and r.kernel == "mla_absorbed")
        rival = next(r for r in self.result.rows if r.get("tuple") == native.get("tuple") and r.impl == "onednn")
        self.assertEqual(best_onednn(self.result, native), rival.ratio("onednn/native"))
        decode = next(r for r in self.result.rows if r.native and r.kernel == "decode")
        self.assertIsNone(best_onednn(self.result, decode))  # no such ratio there: better none than the other mode's

    def test_a_ratio_of_many_rows_is_told_at_the_longest_context(self) -> None:
        line = next(line for line in layout_ratios(self.result) if line.startswith("time native / reproducible"))
        self.assertLess(len(line), 1500)
        self.assertIn("MHA bf16 T 131072", line)
        self.assertNotIn("T 4096", line)
        self.assertRegex(line, r"and \d+ at shorter contexts$")

    def test_what_a_latent_row_saves_is_told_from_measured_bytes(self) -> None:
        whole, part = latent_bytes(self.result)
        words = (whole, part) if "128 heads" in whole else (part, whole)
        self.assertIn("bf16 1152 against 65536 (56.9x)", words[0])
        self.assertIn("bf16 1152 against 8192 (7.1x)", words[1])


class Layouts(unittest.TestCase):
    def setUp(self) -> None:
        value = synthetic.result()
        plain = next(row for row in value["benchmarks"] if row["impl"] == "kvroof")
        self.plain, self.context = plain, value["context"]

    def result(self, *more: dict[str, Any]) -> rows.ResultFile:
        return rows.from_value(Path("m.json"), {"context": self.context, "benchmarks": [self.plain, *more]})

    def test_no_two_lines_read_the_same(self) -> None:
        shape = self.plain["shape"]
        members = [variant(self.plain, "ring", kernel="ring", layout="ring")]
        for page in (1, 16):
            for pages in ("ordered", "shuffled"):
                more = {"kernel": "paged", "layout": "paged", "page_size": page, "pages": pages}
                members.append(variant(self.plain, f"paged {page} {pages}", **more))
        for lengths in ("equal", "skewed"):
            for batch in (1, 8):
                more = {"kernel": "batch", "lengths": lengths, "shape": shape | {"B": batch}}
                members.append(variant(self.plain, f"batch {batch} {lengths}", **more))
        more = {"kernel": "batch", "layout": "paged", "page_size": 64, "pages": "ordered", "lengths": "equal"}
        members += [variant(self.plain, f"prefix {p}", **more, prefix=p) for p in (None, 192)]
        members += [variant(self.plain, f"n {n}", kernel="chunk", shape=shape | {"n": n}) for n in (4, 32)]
        result = self.result(*members)
        headings = [", ".join(heading(row)) for row in result.rows]
        self.assertEqual(len(set(headings)), len(headings), headings)
        text = table(result)
        for words in ("paged P=16 shuffled", "batch 8, skewed lengths", "shared prefix 192", "chunk 32"):
            self.assertIn(words, text)

    def test_ratios_are_told_with_what_bytes_predict(self) -> None:
        def to_plain(what: str, median: float) -> list[dict[str, Any]]:
            ratio = {"median": median, "low": median, "high": median, "n": 9}
            return [{"to": self.plain["name"], "what": what} | ratio]

        lines = list(
            layout_ratios(
                self.result(
                    variant(self.plain, "r", layout="ring", time_ratios=to_plain("ring/contiguous", 1.03)),
                    variant(self.plain, "p", time_ratios=to_plain("paged P=16 shuffled/contiguous", 1.21)),
                    variant(self.plain, "s", bytes=self.plain["bytes"] * 2, time_ratios=to_plain("skewed/equal", 2.5)),
                    variant(self.plain, "h", storage="f16", time_ratios=to_plain("f16/f32", 0.5)),
                )
            )
        )
        self.assertEqual(len(lines), 3)
        self.assertEqual(lines[0], "time ring / contiguous (bytes alone: 1.00): MHA f32 T 512 1.03 (1 thread)")
        self.assertEqual(lines[2], "time skewed / equal (bytes alone: 2.00): MHA f32 T 512 2.50 (1 thread)")
        self.assertIn("time paged P=16 shuffled / contiguous", lines[1])


class Journal(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        value = synthetic.result()
        self.lines = [json.dumps(line) for line in ({"context": value["context"]}, *value["benchmarks"][:5])]

    def read(self, lines: list[str], tail: str = "") -> journal.Journal:
        return journal.read(self.write("x.journal", "".join(line + "\n" for line in lines) + tail))

    def test_torn_tails(self) -> None:
        whole = self.read(self.lines)
        self.assertEqual((len(whole.rows), whole.torn_at), (5, None))
        line = self.lines[-1]
        for cut in (1, 2, len(line) // 2, len(line) - 1, len(line)):  # the last: whole but for its line end
            torn = self.read(self.lines[:-1], line[:cut])
            self.assertEqual(len(torn.rows), 4)
            self.assertTrue(journal.drop_torn_line(self.folder / "x.journal", torn))
            self.assertEqual((self.folder / "x.journal").read_text(), "".join(x + "\n" for x in self.lines[:-1]))

    def test_other_damage_is_an_error(self) -> None:
        for lines, says in (
            (self.lines[1:], "begins with its context"),
            ([], "holds no whole line"),
            ([*self.lines[:2], self.lines[2][:40], *self.lines[3:]], "line 3"),
            ([*self.lines, "[1]"], "not an object"),
            ([*self.lines, '{"x": 1}'], "without a name"),
            ([*self.lines, ""], "not JSON"),
            ([self.lines[0], self.lines[1].replace('"real_time": ', '"real_time": NaN, "x": ')], "NaN"),
        ):
            with self.subTest(says), self.assertRaises(UserError) as caught:
                self.read(lines)
            self.assertIn(says, str(caught.exception))

    def test_another_machine_or_build_does_not_go_on(self) -> None:
        context = json.loads(self.lines[0])["context"]
        other = context | {"build": context["build"] | {"commit": "1" * 40}}
        with self.assertRaises(UserError) as caught:
            self.read([*self.lines, json.dumps({"context": other})])
        self.assertIn("build.commit", str(caught.exception))

    def test_a_tuple_measured_again_replaces_its_rows(self) -> None:
        row = json.loads(self.lines[1])
        again = self.read([*self.lines, json.dumps(row | {"iterations": 77})])
        self.assertEqual(len(again.rows), 5)
        self.assertEqual(next(r for r in again.rows if r["name"] == row["name"])["iterations"], 77)

    def test_rows_that_break_the_schema_are_not_assembled(self) -> None:
        row = json.loads(self.lines[1]) | {"status": "splendid"}
        out = self.folder / "x.json"
        with self.assertRaises(UserError) as caught:
            journal.assemble(out, self.read([*self.lines, json.dumps(row)]))
        self.assertIn("breaks the schema", str(caught.exception))
        self.assertFalse(out.exists())


if __name__ == "__main__":
    unittest.main()
