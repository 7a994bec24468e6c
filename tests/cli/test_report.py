#!/usr/bin/env python3
"""tools/kvroof report: the page is whole and self-contained, whatever the files hold; the README's measured part."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from unittest import mock

import synthetic
from support import CommandTest, quick_result
from synthetic_machine import MACHINES

import readme
import report_command
import rows
from errors import UserError
from headline import flagship, headlines
from page_data import packed, page_data
from picture import roof_picture

HOSTILE = 'CPU </script><script>alert(1)</script> & "quotes" <b> {{data}} <!-- -->'


def result_of(value: dict[str, Any], path: str = "m.json") -> rows.ResultFile:
    return rows.from_value(Path(path), value)


def unpacked(column: str) -> list[str]:
    """As page/data.js reads a column."""
    words = []
    for word in column.split(","):
        value, _, count = word.partition("*")
        words += [value] * int(count or 1)
    return words


class Page(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        patched = mock.patch.object(report_command, "plotly_script", lambda: "/* plotly */ '</script>'")
        patched.start()
        self.addCleanup(patched.stop)

    def page(self, *values: dict[str, Any]) -> str:
        return report_command.page([result_of(value, f"m{i}.json") for i, value in enumerate(values)])

    @staticmethod
    def data(page: str) -> dict[str, Any]:
        return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])

    def test_command(self) -> None:
        path = self.write("m.json", quick_result())
        self.assertEqual(self.succeeds("report", path).strip(), str(path.with_suffix(".html")))
        out = self.folder / "all.html"
        self.succeeds("report", path, self.write("n.json", quick_result("synthetic-arm-64c")), "--out", out)
        self.assertEqual(len(self.data(out.read_text())["machines"]), 2)

    def test_self_contained(self) -> None:
        page = self.page(quick_result())
        self.assertNotRegex(page, r"""(?:src|href)\s*=\s*["']""")
        self.assertNotRegex(page, r"url\(|@import|https?://(?!www\.w3\.org)")

    def test_hostile_names_stay_text(self) -> None:
        value = quick_result()
        value["context"]["machine"]["cpu_model"]["value"] = HOSTILE
        page = self.page(value)
        self.assertEqual(page.count("<script"), 3)
        self.assertEqual(page.count("</script>"), 3)
        self.assertNotIn("alert(1)</", page)
        self.assertEqual(self.data(page)["machines"][0]["cpu"], HOSTILE)

    def test_every_row_is_there(self) -> None:
        value = quick_result()
        own = [row for row in value["benchmarks"] if row["impl"] == "kvroof"]
        value["benchmarks"][value["benchmarks"].index(own[3])] = synthetic.not_measured(own[3])
        machine = self.data(self.page(value))["machines"][0]
        columns = {name: unpacked(column) for name, column in machine["rows"].items()}
        expected = [
            row for row in value["benchmarks"] if not row["kernel"].startswith("roof") and row["impl"] != "probe"
        ]
        self.assertEqual({len(column) for column in columns.values()}, {len(expected)})
        for mine, row in zip(columns["ns"], expected):
            if "real_time" in row:
                self.assertAlmostEqual(float(mine) / row["real_time"], 1, places=3)
            else:
                self.assertEqual(mine, "")

    def test_columns_are_packed_without_loss(self) -> None:
        for values in (
            [],
            [None],
            [None, None, None],
            [1, 1, 1, 1, 2],
            [0.125, 0.5, 0.5],
            [7] * 9 + [None] * 2,
            [0, 0],
        ):
            with self.subTest(values):
                wanted = ["" if v is None else float(v) for v in values]
                found = [float(word) if word else "" for word in unpacked(packed(values))] if values else []
                self.assertEqual(found, wanted)
        self.assertEqual(packed([3] * 500), "3*500")

    def test_native_rows_have_a_name_of_their_own(self) -> None:
        data = self.data(self.page(synthetic.result(preset="full")))
        columns = {name: unpacked(column) for name, column in data["machines"][0]["rows"].items()}
        named = {data["strings"][int(index)] for index in columns["impl"]}
        self.assertTrue({"kvroof", "native", "onednn"} <= named)
        native = data["strings"].index("native")
        for impl, mode, ratio in zip(columns["impl"], columns["mode"], columns["native"]):
            self.assertEqual(impl == str(native), bool(mode))
            self.assertEqual(bool(mode), bool(ratio))

    def test_facts_carry_their_sources(self) -> None:
        facts = {fact[0]: fact for fact in self.data(self.page(quick_result()))["machines"][0]["facts"]}
        self.assertEqual(facts["memory"][1:], [64 * 2**30, "/proc/meminfo MemTotal", True])
        self.assertEqual(facts["hypervisor"][1:3], [None, "no hypervisor flag in /proc/cpuinfo"])
        self.assertTrue(all(fact[2] for fact in facts.values()))

    def test_roofs_of_numa_nodes_are_facts(self) -> None:
        value = quick_result()
        node = {"node": 1, "cpus": [2, 3], "threads": 2, "gb_per_s": 41.234, "source": "hwloc"}
        idle = {"node": 2, "cpus": [], "threads": 0, "gb_per_s": None, "gb_per_s_reason": "no CPU", "source": "hwloc"}
        value["context"]["machine"]["numa_read_roofs"] = [node, idle]
        facts = {fact[0]: fact for fact in self.data(self.page(value))["machines"][0]["facts"]}
        self.assertEqual(facts["read roof of NUMA node 1"][1], "41.2 GB/s")
        self.assertIsNone(facts["read roof of NUMA node 2"][1])
        self.assertIn("no CPU", facts["read roof of NUMA node 2"][2])

    def test_five_full_machines_weigh_little(self) -> None:
        results = [result_of(synthetic.result(m, "full", latent=True), f"{m.name}.json") for m in MACHINES]
        self.assertLess(len(page_data(results)), 3e6)  # plotly takes 4.9 MB of the 8 MB that a page may weigh

    def test_scripts_parse(self) -> None:
        node = shutil.which("node")
        if node is None:
            self.skipTest("no node here")
        script = "\n".join((report_command.PAGE / name).read_text() for name in report_command.SCRIPTS)
        done = subprocess.run([node, "--check", str(self.write("page.js", script))], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_refusals(self) -> None:
        path = self.write("m.json", quick_result())
        self.refuses("report", path, "--out", path / "x.html", says="cannot be written")
        self.refuses("report", path, "--out", "/dev/full", says="not a regular file")
        self.assertEqual(self.leftovers(), [])


class Headlines(unittest.TestCase):
    @staticmethod
    def own(value: dict[str, Any], T: int, storage: str) -> dict[str, Any]:
        return next(
            r
            for r in value["benchmarks"]
            if r["impl"] == "kvroof"
            and f"shape:MHA/layout:contiguous/order:head/storage:{storage}/" in r["name"]
            and f"/T:{T}/W:all/cache:cold" in r["name"]
            and "/threads:all/" in r["name"]
        )

    def test_doubtful_rows_and_other_shapes_stand_back(self) -> None:
        value = quick_result()
        self.assertEqual(flagship(result_of(value), "all")["f16"].get("T"), 32768)
        self.own(value, 32768, "f16").update(status="unstable", reason="clock")
        self.assertEqual(flagship(result_of(value), "all")["f16"].get("T"), 4096)
        self.own(value, 4096, "f16").update(above_roof=True)
        self.assertEqual(flagship(result_of(value), "all")["f16"].get("T"), 512)
        self.own(value, 512, "f16").update(above_roof=True)
        self.assertEqual(flagship(result_of(value), "all")["f16"].get("T"), 32768)  # nothing better is there
        tiles = {tile["label"]: tile for tile in headlines(result_of(value))}
        self.assertIn("MHA bf16", tiles["attention reaches"]["note"])
        wider = copy.deepcopy(self.own(value, 32768, "bf16"))
        wider.update(name="wider", T=65536, shape=wider["shape"] | {"name": "MHA128", "Hq": 128, "Hkv": 128})
        value["benchmarks"].append(wider)
        self.assertEqual(flagship(result_of(value), "all")["bf16"].shape["name"], "MHA")
        value["benchmarks"] = [wider]
        self.assertEqual(flagship(result_of(value), "all")["bf16"].shape["name"], "MHA128")

    def test_read_roof_is_the_memory_line_of_the_roofline(self) -> None:
        value = quick_result()
        cold = [
            r
            for r in value["benchmarks"]
            if r["kernel"] == "roof_read" and r["cache"] == "cold" and r["threads"] == "all"
        ]
        max(cold, key=lambda r: r["bytes"])["gb_per_s"] = 77.77
        tiles = {tile["label"]: tile for tile in headlines(result_of(value))}
        self.assertEqual(tiles["read roof"]["value"], "77.8 GB/s")


class WithoutPlotly(CommandTest):
    def test_one_line(self) -> None:
        path = self.write("m.json", quick_result())
        with (
            mock.patch.object(report_command.rows, "ROOT", self.folder),
            mock.patch("sys.path", []),
            mock.patch("importlib.util.find_spec", lambda name: None),
        ):
            with self.assertRaises(UserError) as caught:
                report_command.plotly_script()
        self.assertIn("tools/setup.sh --again report", str(caught.exception))
        self.assertEqual(len(str(caught.exception).splitlines()), 1)
        self.assertTrue(path.exists())


class Readme(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.path = self.write("results/m.json", quick_result())

    def test_picture_is_an_image(self) -> None:
        value = quick_result()
        value["context"]["machine"]["cpu_model"]["value"] = HOSTILE
        root = ElementTree.fromstring(roof_picture(result_of(value)))
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
        self.assertEqual(len(lines), 9)  # three shapes by three storages
        self.assertTrue(all(len(line.get("points").split()) == 3 for line in lines))

    def test_section_is_replaced_and_the_rest_kept(self) -> None:
        text = f"before\n{readme.BEGIN}\nstale text\n{readme.END}\nafter\n"
        readme_path = self.write("README.md", text)
        loaded = rows.load(self.path)
        written = readme.write_readme(loaded, self.folder)
        once = readme_path.read_text()
        self.assertEqual(written, [self.folder / "results" / "m.svg", readme_path])
        self.assertTrue(once.startswith("before\n") and once.endswith("after\n"))
        self.assertNotIn("stale text", once)
        self.assertIn("(results/m.svg)", once)
        row = next(
            r
            for r in loaded.rows
            if r.impl == "kvroof"
            and "shape:MHA" in r.name
            and r.get("T") == 32768
            and r.get("storage") == "f32"
            and r.get("cache") == "cold"
            and r.get("threads") == "1"
        )
        line = next(text for text in once.splitlines() if text.startswith("| MHA 32/32x128 | f32 | 1 |"))
        self.assertIn(f"| {row.get('read_fraction'):.2f} | {row.get('gb_per_s'):.1f} |", line)
        readme.write_readme(loaded, self.folder)
        self.assertEqual(readme_path.read_text(), once)

    def test_doubtful_rows_are_marked(self) -> None:
        value = copy.deepcopy(quick_result())
        own = [r for r in value["benchmarks"] if r["impl"] == "kvroof" and r["cache"] == "cold"]
        own[0].update(above_roof=True)
        own[1].update(status="unstable", reason="clock")
        text = readme.section(result_of(value), "p", "s")
        self.assertRegex(text, r"\d\.\d\d! \|")
        self.assertRegex(text, r"\d\.\d\d~ \|")
        self.assertIn("above its roof", text)

    def test_refusals(self) -> None:
        loaded = rows.load(self.path)
        for text, says in (
            ("nothing", "has no place"),
            (f"{readme.END}{readme.BEGIN}", "has no place"),
            (f"{readme.BEGIN * 2}{readme.END}", "has no place"),
        ):
            self.write("README.md", text)
            with self.assertRaises(UserError) as caught:
                readme.write_readme(loaded, self.folder)
            self.assertIn(says, str(caught.exception))
            self.assertEqual((self.folder / "README.md").read_text(), text)
        self.assertFalse((self.folder / "results" / "m.svg").exists())
        self.refuses("report", "--readme", self.path, self.path, says="2 files")


if __name__ == "__main__":
    unittest.main()
