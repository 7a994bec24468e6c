"""The picture of the README: fraction of the read roof over context length, one panel a shape, as SVG.

Plain SVG with its own light and dark colours, so that it needs nothing to be shown on a code host's page.
"""

from __future__ import annotations

import html
import math

from headline import plain_decode
from rows import ResultFile, Row

WIDTH, HEIGHT = 960, 350
LEFT, RIGHT, TOP, BOTTOM, GAP = 58, 16, 92, 52, 26
_COLORS = {
    "f32": ("#2f5fc4", "#86aaf5"),
    "f16": ("#cf6a1b", "#f0a060"),
    "bf16": ("#0d8574", "#4fc4b0"),
    "int8": ("#8e44ad", "#cd96e4"),
}
_FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'Liberation Sans', sans-serif"


def _style() -> str:
    def colors(index: int, ink: str, soft: str, line: str, paper: str) -> str:
        series = "".join(f".{name}{{stroke:{pair[index]};fill:{pair[index]}}}" for name, pair in _COLORS.items())
        text = f".paper{{fill:{paper}}}.ink{{fill:{ink}}}.soft{{fill:{soft}}}"
        return f"{text}.grid{{stroke:{line}}}.roof{{stroke:{soft}}}{series}"

    return (
        f"<style>text{{font-family:{_FONT};font-size:13px}}.title{{font-size:17px;font-weight:600}}"
        ".name{font-weight:600}"
        ".end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke-width:1}"
        ".series{fill:none!important;stroke-width:2.2}"
        ".roof{stroke-width:1.5;stroke-dasharray:2 3}.bar{stroke-width:1.2}"
        + colors(0, "#1d2026", "#5d6470", "#e6e4dd", "#fbfaf7")
        + "@media (prefers-color-scheme: dark){"
        + colors(1, "#e8e9ec", "#a4abb6", "#2c3038", "#14161a")
        + "}</style>"
    )


def _tokens(value: int) -> str:
    return f"{value // 1024}k" if value % 1024 == 0 else str(value)


def _mark(storage: str, x: float, y: float) -> str:
    if storage == "f16":
        return f'<rect class="{storage}" x="{x - 3.3:.1f}" y="{y - 3.3:.1f}" width="6.6" height="6.6"/>'
    if storage == "bf16":
        return f'<path class="{storage}" d="M{x:.1f} {y - 4.4:.1f}l4.4 4.4-4.4 4.4-4.4-4.4z"/>'
    if storage == "int8":
        return f'<path class="{storage}" d="M{x:.1f} {y - 4:.1f}l4 7h-8z"/>'
    return f'<circle class="{storage}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'


def _panel(
    name: str, rows: list[Row], left: float, width: float, lengths: list[int], top: float, first: bool
) -> list[str]:
    low, high = math.log2(lengths[0]) - 0.35, math.log2(lengths[-1]) + 0.35
    height = HEIGHT - TOP - BOTTOM

    def x(tokens: float) -> float:
        return left + (math.log2(tokens) - low) / (high - low) * width

    def y(fraction: float) -> float:
        return TOP + (1 - min(fraction, top) / top) * height

    parts = [f'<text class="ink name" x="{left:.1f}" y="{TOP - 12}">{html.escape(name)}</text>']
    for tick in range(0, 5):
        value = tick / 4
        parts.append(
            f'<line class="{"roof" if tick == 4 else "grid"}" x1="{left:.1f}" x2="{left + width:.1f}"'
            f' y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        if first:
            parts.append(f'<text class="soft end" x="{left - 8:.1f}" y="{y(value) + 4.5:.1f}">{value:.2f}</text>')
    step = -(-len(lengths) // 6)
    for tokens in lengths[::-1][::step]:
        parts.append(
            f'<text class="soft middle" x="{x(tokens):.1f}" y="{TOP + height + 20:.1f}">{_tokens(tokens)}</text>'
        )
    for storage in _COLORS:
        members = sorted((r for r in rows if r.raw["storage"] == storage), key=lambda r: r.get("T"))
        points = [(x(r.get("T")), r) for r in members]
        for at, row in points:
            if row.spread:
                parts.append(
                    f'<line class="{storage} bar" x1="{at:.1f}" x2="{at:.1f}"'
                    f' y1="{y(row.spread.low):.1f}" y2="{y(row.spread.high):.1f}"/>'
                )
        if points:
            path = " ".join(f"{at:.1f},{y(row.get('read_fraction')):.1f}" for at, row in points)
            parts.append(f'<polyline class="{storage} series" points="{path}"/>')
        parts += [_mark(storage, at, y(row.get("read_fraction"))) for at, row in points]
    return parts


def roof_picture(result: ResultFile) -> str:
    found = [row for row in plain_decode(result) if row.get("read_fraction") is not None]
    threads = "all" if any(row.get("threads") == "all" for row in found) else "1"
    found = [row for row in found if row.get("threads") == threads]
    names = list(dict.fromkeys(f"{r.shape['name']} {r.shape['Hq']}/{r.shape['Hkv']}x{r.shape['Dk']}" for r in found))
    lengths = sorted({row.get("T") for row in found})
    peaks = [r.spread.high * 1.03 if r.spread else r.get("read_fraction") for r in found]
    top = min(1.5, max([1.08, *peaks]))  # a fraction above that is a roof gone wrong: it stands at the edge
    count = result.all_threads if threads == "all" else 1
    title = f"Fraction of the read roof, decode attention, cold cache, {count} thread{'s' if count > 1 else ''}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{html.escape(title)}">',
        _style(),
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="ink title" x="{LEFT - 40}" y="30">{html.escape(title)}</text>',
        f'<text class="soft" x="{LEFT - 40}" y="52">{html.escape(result.cpu)}, {result.isa}</text>',
    ]
    storages = [s for s in _COLORS if any(r.raw["storage"] == s for r in found)]
    for index, storage in enumerate(storages):
        at = WIDTH - RIGHT - 74 * (len(storages) - index)
        parts += [
            f'<line class="{storage}" stroke-width="2.2" x1="{at}" x2="{at + 24}" y1="26" y2="26"/>',
            _mark(storage, at + 12, 26),
            f'<text class="ink" x="{at + 31}" y="30.5">{storage}</text>',
        ]
    width = (WIDTH - LEFT - RIGHT - GAP * (len(names) - 1)) / max(1, len(names))
    for index, name in enumerate(names):
        rows = [r for r in found if f"{r.shape['name']} {r.shape['Hq']}/{r.shape['Hkv']}x{r.shape['Dk']}" == name]
        parts += _panel(name, rows, LEFT + index * (width + GAP), width, lengths, top, index == 0)
    parts.append(
        f'<text class="soft middle" x="{LEFT + (WIDTH - LEFT - RIGHT) / 2:.0f}" y="{HEIGHT - 10}">'
        "context length T, tokens; bars: quartiles of the pairs; dotted: the roof</text>"
    )
    return "\n".join(parts + ["</svg>"]) + "\n"
