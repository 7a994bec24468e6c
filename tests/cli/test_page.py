#!/usr/bin/env python3
"""The page in a real browser, where there is one: every chart is drawn, the filter works, nothing is thrown."""

from __future__ import annotations

import http.server
import math
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path
from typing import Any

import synthetic
from support import CommandTest, quick_result
from synthetic_machine import MACHINES

import report_command
import rows
from errors import UserError

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Presses every button of the filter in turn, then leaves what it saw where the test can read it.
PRESS = """<script>
const seen = [];
window.onerror = (message) => seen.push(`error ${message}`);
const count = (what) => document.querySelectorAll(what).length;
const charts = () => ["fraction", "roofline", "time", "halving", "latent"].map((id) => count(`#${id} .main-svg`) > 0);
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
  // The last answer stands: frames come when the browser likes, late on a busy machine.
  for (let i = 0; i < 100 && !/ beyond 0 wide false/.test(document.body.dataset.seen); i++) {
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


def asks(before: str, what: str) -> str:
    """A script that waits until the page is drawn, runs `before`, and leaves the lines `what` as its answer."""
    return f"""<script>
const faults = [];
window.onerror = (message) => faults.push(`error ${{message}}`);
const drawn = async () => {{ for (let i = 0; i < 80; i++) await new Promise((done) => setTimeout(done, 10)); }};
const all = (what) => [...document.querySelectorAll(what)];
(async () => {{
  await drawn();
  {before}
  const answer = [...faults, {what}].join("\\n");
  document.body.innerHTML = "";
  document.body.dataset.seen = answer;
}})();
</script>"""


LATENT = asks(
    "",
    """
  "legend " + all("#latent-legend span").map((span) => span.textContent.trim()).join("|"),
  "traces " + all("#latent .plot")[0].data.filter((t) => t.customdata).map((t) => t.customdata[0].impl).join("|"),
  ...all("#latent-table tr").map((line) => [...line.children].map((cell) => cell.textContent).join("\\t")),
  document.getElementById("latent-says").textContent""",
)
# Whose rows the charts hold in each mode.
MODES = asks(
    """
  const words = [];
  for (const mode of ["reproducible", "native"]) {
    all(".choices button").find((button) => button.textContent === mode).click();
    await drawn();
    const traces = all("#fraction .plot, #roofline .plot, #halving .plot")
        .flatMap((plot) => plot.offsetParent ? plot.data ?? [] : []);
    words.push(mode, [...new Set(traces.flatMap((t) => (t.customdata ?? []).map((row) => row.impl)))].join("+"));
  }""",
    'words.join(" ")',
)
OPENED = """<script>
(async () => {
  const drawn = () => ["fraction", "roofline", "time", "halving", "latent"].every((id) => {
    const plots = [...document.querySelectorAll(`#${id} .plot`)];
    return plots.length && plots.every((plot) => plot.querySelector(".main-svg"));
  });
  while (!drawn()) await new Promise((done) => setTimeout(done, 5));
  new Image().src = `http://127.0.0.1:PORT/?${performance.now().toFixed(0)}`;
})();
</script>"""


class Browser(CommandTest):
    def see(self, *values: dict[str, Any], width: int = 1400) -> str:
        results = [rows.from_value(Path(f"m{i}.json"), value) for i, value in enumerate(values)]
        return self.run_browser(self.write("page.html", self.page_with(PRESS, results)), width)

    @staticmethod
    def page_with(script: str, results: list[rows.ResultFile]) -> str:
        return report_command.page(results).replace("</body>", script + "</body>")

    def look(self, script: str, value: dict[str, Any]) -> str:
        """What `script` leaves behind on the page of one machine."""
        results = [rows.from_value(Path("m.json"), value)]
        return self.run_browser(self.write("page.html", self.page_with(script, results)), 1400)

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
                self.assertIn("charts true true true true false", seen)
                self.assertNotIn("error", seen)
                self.assertIn("command tools/kvroof sweep --filter '^decode/shape:MHA", seen)
                self.assertIn("wide false", seen)
                self.assertGreater(int(re.search(r"rows (\d+)", seen)[1]), 10)
                self.assertGreater(int(re.search(r"facts (\d+)", seen)[1]), 20)

    def test_latent_attention(self) -> None:
        """Both forms, native rows on lines of their own, and the chunk length at which one overtakes the other."""
        value = synthetic.result(latent=True)
        self.assertIn("charts true true true true true", self.see(value))
        seen = self.look(LATENT, value)
        self.assertNotIn("error", seen)
        self.assertIn("legend MLA absorbed|MLA absorbed, native|MLA reconstructed|", seen)
        self.assertIn("traces kvroof|native|kvroof\n", seen)
        ratios = {
            row["shape"]["n"]: row["time_ratios"][0]["median"]
            for row in value["benchmarks"]
            if row["kernel"] == "mla_reconstruct"
            and (row["T"], row["threads"], row["storage"]) == (4096, "all", "bf16")
        }
        before, after = ratios[64], ratios[256]
        self.assertTrue(before > 1 > after)
        expected = 64 * 4 ** (math.log(before) / math.log(before / after))
        found = re.search(r"overtakes absorbed at a chunk of about (\d+) tokens", seen)
        self.assertIsNotNone(found, seen)
        self.assertLess(abs(int(found[1]) / expected - 1), 0.02)
        self.assertIn("takes 1152 bytes, the K and V rows of 128 heads that it replaces 65536: 56.9×", seen)
        self.assertIn("MLA absorbed\t1.125 KiB\t1.00×\t279 kFLOP\t242", seen)

    def test_no_crossing_is_claimed_without_chunks(self) -> None:
        value = synthetic.result(latent=True)
        value["benchmarks"] = [
            row for row in value["benchmarks"] if row["kernel"] != "mla_reconstruct" or row["shape"]["n"] == 1
        ]
        seen = self.look(LATENT, value)
        self.assertIn("is not known", seen)
        self.assertNotIn("overtakes absorbed at", seen)

    def test_modes_are_never_mixed(self) -> None:
        seen = self.look(MODES, synthetic.result(preset="full", latent=True))
        self.assertEqual(seen, "reproducible kvroof native native")

    def test_five_full_machines_are_light_and_open_soon(self) -> None:
        results = [
            rows.from_value(Path(f"{m.name}.json"), synthetic.result(m, "full", latent=True))
            for m in MACHINES
        ]
        self.assertGreater(min(len(result.rows) for result in results), 5000)
        page = report_command.page(results)
        self.assertLess(len(page.encode()), 8e6)
        spent = []
        for _ in range(6):
            # Two seconds on a machine of its own; where others compute beside it, their share is not the page's.
            limit = 2000 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
            spent.append(self.milliseconds_to_open(page))
            if spent[-1] <= limit:
                return
            time.sleep(3)
        self.fail(f"the page was drawn after {spent} ms")

    def milliseconds_to_open(self, page: str) -> float:
        """On the real clock, from the start of loading to the last chart; the page calls when it is done."""
        calls: queue.Queue[str] = queue.Queue()

        class Listener(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                calls.put(self.path)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Listener) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            call = OPENED.replace("PORT", str(server.server_port))
            path = self.write("page.html", page.replace("</body>", call + "</body>"))
            flags = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--remote-debugging-port=0",
                "--window-size=1400,900",
            ]
            profile = f"--user-data-dir={self.folder / 'profile'}"
            browser = subprocess.Popen(
                [str(BROWSER), *flags, profile, path.as_uri()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                return float(calls.get(timeout=120).removeprefix("/?"))
            finally:
                browser.terminate()
                browser.wait()
                server.shutdown()

    def test_plots_stay_in_their_cards_on_a_narrow_screen(self) -> None:
        value = synthetic.result(latent=True)
        self.write("page.html", self.page_with(ANSWER, [rows.from_value(Path("m.json"), value)]))
        seen = self.run_browser(self.write("frame.html", FRAME), 950)
        self.assertRegex(seen, r"^inner 390 plots [1-9]\d* beyond 0 wide false$")

    def test_machines_beside_each_other_and_rows_missing(self) -> None:
        first, second = quick_result(MACHINES[0].name), quick_result(MACHINES[2].name)
        second["benchmarks"] = [
            row for row in second["benchmarks"] if row["kernel"] == "roof_read" or "shape:GQA" in row["name"]
        ]
        for index, row in enumerate(second["benchmarks"]):
            if row["kernel"] == "decode" and row["T"] == 4096:
                second["benchmarks"][index] = synthetic.not_measured(row)
        seen = self.see(first, second)
        self.assertIn("charts true true true true false", seen)
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
