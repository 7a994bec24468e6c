"""The progress bar of a sweep: redrawn in place on a terminal, a line at every tenth elsewhere."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import TextIO


def clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02}"
    )


def short_name(name: str) -> str:
    """ "decode MHA f16 T:4096 cold 1 thread" of a full row name; what is always the same is left out."""
    axes = dict(part.partition(":")[::2] for part in name.split("/")[1:])
    unlike = lambda axis, usual, word: f"{word}{axes[axis]}" if axes.get(axis, usual) != usual else ""  # noqa: E731
    words = [
        name.split("/")[0],
        axes.get("shape", ""),
        axes.get("storage", ""),
        unlike("B", "1", "batch "),
        unlike("n", "1", "chunk "),
        f"T {axes['T']}" if "T" in axes else "",
        unlike("W", "all", "window "),
        unlike("layout", "contiguous", ""),
        unlike("P", "", "P="),
        unlike("pages", "", ""),
        "token-major" if axes.get("order") == "token" else "",
        axes.get("cache", ""),
        {"1": "1 thread", "all": "all threads"}.get(axes.get("threads", ""), ""),
        "native" if axes.get("mode") == "native" else "",
    ]
    return " ".join(word for word in words if word)


class Progress:
    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.done, self.total, self.name, self.tenth = 0, 0, "", -1
        self.end = self.began = time.monotonic()
        self.plain = (getattr(self.stream, "encoding", "") or "").lower().replace("-", "") != "utf8"

    def line(self, text: str) -> None:
        """One line from the benchmark; anything that is not a progress object is passed over."""
        try:
            value = json.loads(text)
            done, total = int(value["done"]), int(value["total"])
            left = float(value.get("seconds_left") or 0)
        except (ValueError, KeyError, TypeError):
            return
        self.done, self.total, self.name = done, max(total, done, 1), str(value.get("name", ""))
        self.end = time.monotonic() + left
        self.draw()

    def draw(self) -> None:
        if not self.total:
            return
        share, left = self.done / self.total, clock(self.end - time.monotonic())
        if self.terminal:
            columns = min(shutil.get_terminal_size().columns, 100)
            text = f"  {self._bar(share, 24)} {self.done}/{self.total}  {left} left  {short_name(self.name)}"
            self.stream.write("\r" + text[: columns - 1].ljust(columns - 1))
        elif int(share * 10) > self.tenth:
            self.tenth = int(share * 10)
            self.stream.write(f"  {self.done}/{self.total} measured, {left} left\n")
        self.stream.flush()

    def _bar(self, share: float, width: int) -> str:
        full = int(share * width)
        return "[" + "#" * full + "-" * (width - full) + "]" if self.plain else "█" * full + "░" * (width - full)

    def clear(self) -> None:
        if self.terminal and self.total:
            self.stream.write("\r" + " " * (min(shutil.get_terminal_size().columns, 100) - 1) + "\r")
            self.stream.flush()
