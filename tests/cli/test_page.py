#!/usr/bin/env python3
"""The page in a real browser, where there is one: every chart is drawn, the filter works, nothing is thrown."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import synthetic
from support import CommandTest, quick_result

import report_command
import rows
from errors import UserError

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Presses every button of the filter in turn, then leaves what it saw where the test can read it.
PRESS = """<script>
const seen = [];
window.onerror = (message) => seen.push(`error ${message}`);
const count = (what) => document.querySelectorAll(what).length;
const charts = () => ["fraction", "roofline", "time", "halving"].map((id) => count(`#${id} .main-svg`) > 0);
async function settled() { for (let i = 0; i < 40; i++) await new Promise((done) => setTimeout(done, 10)); }
(async () => {
  await settled();
  seen.push(`charts ${charts().join(" ")}`);
  const buttons = count(".choices button");
  for (let i = 0; i < buttons; i++) { document.querySelectorAll(".choices button")[i]?.click(); await settled(); }
  document.getElementById("theme").click();
  document.getElementById("rows").open = true;
  await settled();
  showRow(OWN[0]);
  seen.push(`pressed ${buttons}`, `rows ${count("#rows tbody tr")}`, `facts ${count("#facts tr")}`);
  seen.push(`command ${document.querySelector("#row code").textContent}`);
  seen.push(`wide ${document.documentElement.scrollWidth > innerWidth}`);
  document.body.innerHTML = "";
  document.body.dataset.seen = JSON.stringify(seen);
})();
</script>"""


# A window of 390 px: a frame, since browsers without a screen make no window that narrow. Drawn wide, narrowed later.
FRAME = """<body style="margin:0"><iframe id="f" src="page.html" width="900" height="3800" style="border:0"></iframe><script>
onmessage = (event) => document.body.dataset.seen = event.data;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
f.onload = async () => {
  await pause(3000);
  f.width = 390;
  for (let i = 0; i < 10; i++) {  // the last answer stands: frames come when the browser likes
    await pause(1000);
    f.contentWindow.postMessage("ask", "*");
  }
};
</script></body>"""
ANSWER = """<script>
onmessage = () => {
  const plots = [...document.querySelectorAll(".plot")].filter((plot) => plot.querySelector(".main-svg"));
  const beyond = plots.filter((plot) =>
      plot.querySelector(".main-svg").getBoundingClientRect().right > plot.getBoundingClientRect().right + 1);
  parent.postMessage(`inner ${innerWidth} plots ${plots.length} beyond ${beyond.length} wide ${
      document.documentElement.scrollWidth > innerWidth}`, "*");
};
</script>"""


class Browser(CommandTest):
    def see(self, *values: dict[str, Any], width: int = 1400) -> str:
        results = [rows.from_value(Path(f"m{i}.json"), value) for i, value in enumerate(values)]
        return self.run_browser(self.write("page.html", self.page_with(PRESS, results)), width)

    @staticmethod
    def page_with(script: str, results: list[rows.ResultFile]) -> str:
        return report_command.page(results).replace("</body>", script + "</body>")

    def run_browser(self, page: Path, width: int) -> str:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=120000", "--dump-dom"]
        own = [f"--user-data-dir={self.folder / 'profile'}", f"--window-size={width},900"]
        done = subprocess.run([str(BROWSER), *flags, *own, page.as_uri()], capture_output=True, text=True, timeout=240)
        found = re.search(r'data-seen="([^"]*)"', done.stdout)
        self.assertIsNotNone(found, done.stderr[-2000:])
        return found[1].replace("&quot;", '"').replace("&amp;", "&")

    def test_one_machine(self) -> None:
        for width in (1400, 500):
            with self.subTest(width):
                seen = self.see(quick_result(), width=width)
                self.assertIn("charts true true true true", seen)
                self.assertNotIn("error", seen)
                self.assertIn("command tools/kvroof sweep --filter '^decode/shape:MHA", seen)
                self.assertIn("wide false", seen)
                self.assertGreater(int(re.search(r"rows (\d+)", seen)[1]), 10)
                self.assertGreater(int(re.search(r"facts (\d+)", seen)[1]), 20)

    def test_plots_stay_in_their_cards_on_a_narrow_screen(self) -> None:
        self.write("page.html", self.page_with(ANSWER, [rows.from_value(Path("m.json"), quick_result())]))
        seen = self.run_browser(self.write("frame.html", FRAME), 950)
        self.assertRegex(seen, r"^inner 390 plots [1-9]\d* beyond 0 wide false$")

    def test_machines_beside_each_other_and_rows_missing(self) -> None:
        first, second = quick_result(synthetic.MACHINES[0].name), quick_result(synthetic.MACHINES[2].name)
        second["benchmarks"] = [
            row for row in second["benchmarks"] if row["kernel"] == "roof_read" or "shape:GQA" in row["name"]
        ]
        for index, row in enumerate(second["benchmarks"]):
            if row["kernel"] == "decode" and row["T"] == 4096:
                second["benchmarks"][index] = synthetic.not_measured(row)
        seen = self.see(first, second)
        self.assertIn("charts true true true true", seen)
        self.assertNotIn("error", seen)


if __name__ == "__main__":
    if BROWSER is None:
        print("skipped: no chromium here")
        sys.exit(77)
    try:
        report_command.plotly_script()
    except UserError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    unittest.main()
