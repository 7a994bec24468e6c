"""One call of an attention kernel: what it reads and computes, and how kvroof deals it out to threads.

kernels/attention_split.cpp is the authority: the rows of a KV head are cut at fixed multiples of the position, and
every thread takes a contiguous stretch of the line of all these segments. Where there are few of them, one thread
gets more than its share, and the others wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rows import Row

SEGMENT_ROWS = 512  # kSegmentRows of kernels/kernels.hpp
LANES = 16  # queries of a head are shared out in multiples of these, where segments do not go round


@dataclass(frozen=True)
class Work:
    bytes: float
    flops: float
    query_heads: int
    kv_heads: int
    rows: int  # visible ones of one sequence
    sequences: int = 1

    @staticmethod
    def of(row: Row) -> Work:
        shape = row.shape
        window = row.get("W")
        rows = row.get("T") if window in ("all", None) else min(window, row.get("T"))
        return Work(row.get("bytes"), row.get("flops"), shape["Hq"], shape["Hkv"], rows, shape["B"])

    @property
    def group(self) -> int:
        return self.query_heads // self.kv_heads

    def for_group(self, group: int) -> Work:
        """The same bytes, used by `group` query heads each."""
        return replace(self, flops=self.flops * group / self.group, query_heads=self.kv_heads * group)

    def busiest_share(self, threads: int) -> float:
        """What the thread with the most rows gets of them all."""
        lines = self.sequences * self.kv_heads
        items, tile = lines * -(-self.rows // SEGMENT_ROWS), self.group
        while items < threads and tile >= 2 * LANES:
            tile = -(-((tile + 1) // 2) // LANES) * LANES
            items *= 2
        lines *= -(-self.group // tile)
        total = lines * self.rows

        def starts_before(cut: int) -> int:
            """Rows of the segments that begin before row `cut` of the line."""
            line, inside = divmod(cut, self.rows)
            return line * self.rows + min(-(-inside // SEGMENT_ROWS) * SEGMENT_ROWS, self.rows)

        ends = [starts_before(total * part // threads) for part in range(threads + 1)]
        return max(b - a for a, b in zip(ends, ends[1:])) / total
