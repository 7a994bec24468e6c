"""Result files: reading them strictly, and the rows as the reports need them. results/schema.json is the authority."""

from __future__ import annotations

import functools
import math
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator

import json_file
from errors import UserError
from schema import Checker

ROOT = Path(__file__).resolve().parents[2]
SCHEMA_NAME, SCHEMA_MAJOR = "kvroof.results", 1
RIGHT = "give a result file as tools/kvroof sweep writes it"
REMAKE = "measure again with tools/kvroof sweep instead of editing the file"
ROOFS = ("roof_read", "roof_compute")
_AXIS_FIELDS = {
    "T": "T",
    "W": "W",
    "layout": "layout",
    "order": "order",
    "storage": "storage",
    "cache": "cache",
    "impl": "impl",
    "mode": "mode",
    "threads": "threads",
    "isa": "isa",
    "op": "op",
}
_SHAPE_AXES = {"shape": "name", "Hq": "Hq", "Hkv": "Hkv", "Dk": "Dk", "Dv": "Dv", "B": "B", "n": "n"}


def key_of(name: str) -> str:
    """The join key: the row's name without its instruction set. The role of the threads (1 or all) stays."""
    return re.sub(r"/isa:[^/]*", "", name)


@dataclass(frozen=True)
class Ratio:
    median: float
    low: float
    high: float
    n: int

    @staticmethod
    def of(value: Any) -> "Ratio | None":
        return Ratio(value["median"], value["low"], value["high"], value["n"]) if value else None


@dataclass(frozen=True)
class Row:
    raw: dict[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        value = self.raw.get(name)
        return default if value is None else value

    @property
    def name(self) -> str:
        return str(self.raw["name"])

    @property
    def key(self) -> str:
        return key_of(self.name)

    @property
    def kernel(self) -> str:
        return str(self.raw["kernel"])

    @property
    def impl(self) -> str:
        return str(self.raw["impl"])

    @property
    def native(self) -> bool:
        """Native mode keeps other promises than the reproducible one: its rows stand apart everywhere."""
        return self.raw.get("mode") == "native"

    @property
    def status(self) -> str:
        return str(self.raw["status"])

    @property
    def measured(self) -> bool:
        return "real_time" in self.raw

    @property
    def is_roof(self) -> bool:
        return self.kernel in ROOFS

    @property
    def ns(self) -> float:
        return float(self.raw["real_time"])

    @property
    def shape(self) -> dict[str, Any]:
        return self.get("shape", {})

    @property
    def group(self) -> int:
        return int(self.shape["Hq"]) // int(self.shape["Hkv"])

    @property
    def spread(self) -> Ratio | None:
        return Ratio.of(self.raw.get("spread"))

    @property
    def ratio_to_kvroof(self) -> Ratio | None:
        return Ratio.of(self.raw.get("time_ratio_to_kvroof"))

    def times(self, own: "Row") -> Ratio | None:
        """How many times the time of `own`, a kvroof row of its tuple, this rival took. time_ratio_to_kvroof is about
        the tuple's reproducible row; the ratio to a native one has a name of its own."""
        return self.ratio(f"{self.impl}/native") if own.native else self.ratio_to_kvroof

    def ratio(self, what: str) -> Ratio | None:
        """A further paired ratio of this row, such as "f16/f32"."""
        return next((Ratio.of(r) for r in self.get("time_ratios", []) if r["what"] == what), None)


@dataclass
class ResultFile:
    path: Path
    context: dict[str, Any]
    rows: list[Row]
    by_key: dict[str, Row] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.stem

    def fact(self, name: str) -> Any:
        value = self.context["machine"].get(name)
        return value.get("value") if isinstance(value, dict) else value

    @property
    def cpu(self) -> str:
        return str(self.fact("cpu_model") or self.fact("architecture") or "unknown CPU")

    @property
    def all_threads(self) -> int:
        return int(self.context["threads"]["all"])

    @property
    def isa(self) -> str:
        return str(self.context["machine"]["isa"])

    @property
    def commit(self) -> str:
        build = self.context["build"]
        return (build["commit"] or "unknown")[:12] + (" with changes" if build["dirty"] else "")

    @property
    def words(self) -> str:
        return f"{self.cpu}, {self.all_threads} threads, {self.isa}"

    def kernel_rows(self) -> list[Row]:
        return [row for row in self.rows if not row.is_roof]

    def rivals(self, row: Row) -> dict[str, Row]:
        """Measured rows of other implementations in this row's tuple, by impl. A rival may hold a wider cache (its
        key_storage says so): where it lacks the storage, that is the best that its user can do."""
        return {
            other.impl: other
            for other in self._tuples.get(row.raw["tuple"], [])
            if other.measured and other.impl not in ("kvroof", "probe")
        }

    @functools.cached_property
    def _tuples(self) -> dict[str, list[Row]]:
        tuples: dict[str, list[Row]] = {}
        for row in self.rows:
            tuples.setdefault(row.raw["tuple"], []).append(row)
        return tuples


def schema_checker() -> Checker:
    path = ROOT / "results" / "schema.json"
    return Checker(json_file.read(path, "restore results/schema.json from the repository"))


def _header_fault(path: Path, value: Any) -> None:
    """Says plainly what kind of file this is before the schema names a hundred missing fields."""
    if not isinstance(value, dict) or "context" not in value or "benchmarks" not in value:
        raise UserError(str(path), "not a kvroof result file (no context and benchmarks)", RIGHT)
    context = value["context"]
    schema = context.get("schema") if isinstance(context, dict) else None
    if not isinstance(schema, dict) or schema.get("name") != SCHEMA_NAME:
        raise UserError(str(path), "another program's result file (its context has no kvroof schema)", RIGHT)
    version = str(schema.get("version"))
    major = version.split(".")[0]
    if major.isdigit() and int(major) > SCHEMA_MAJOR:
        raise UserError(
            str(path),
            f"schema version {version} is newer than this tool, which reads {SCHEMA_MAJOR}.x",
            "update this checkout, or measure again with it",
        )


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=0.005)


def _is_median(value: float, samples: list[float]) -> bool:
    """Samples are written with five digits or more, so their median is the published figure but for rounding."""
    return math.isclose(value, statistics.median(samples), rel_tol=1e-3)


def _row_faults(row: dict[str, Any], where: str, all_threads: int) -> Iterator[str]:
    """What a schema cannot say: the parts of a row agree with each other."""
    axes = dict(part.partition(":")[::2] for part in row["name"].split("/")[1:])
    if row["name"].split("/")[0] != row["kernel"]:
        yield f"{where}: the name says {row['name'].split('/')[0]}, the field kernel {row['kernel']}"
    for axis, value in axes.items():
        shape = row.get("shape") or {}
        other = shape.get(_SHAPE_AXES[axis]) if axis in _SHAPE_AXES else row.get(_AXIS_FIELDS.get(axis, ""))
        if other is not None and str(other) != value:
            yield f"{where}: the name says {axis}:{value}, the field {other}"
    if "key" in row and row["key"] != key_of(row["name"]):
        yield f"{where}: the key is not the name without its isa"
    if row["thread_count"] != (1 if row["threads"] == "1" else all_threads):
        yield f"{where}: threads {row['threads']} with a count of {row['thread_count']}"
    if "real_time" not in row:
        return
    for rate, work in (("gb_per_s", "bytes"), ("gflops", "flops")):
        if row.get(rate) and row.get(work) and not _close(row[rate], row[work] / row["real_time"]):
            yield f"{where}: {rate} {row[rate]:.6g} is not {work}/real_time = {row[work] / row['real_time']:.6g}"
    samples = row.get("samples") or {}
    median = lambda name: (row.get(name) or {}).get("median")  # noqa: E731
    for name, field, value in (
        ("time_ns", "real_time", row["real_time"]),
        ("read_fraction", "read_fraction", row.get("read_fraction")),
        ("attainable_fraction", "attainable_fraction", row.get("attainable_fraction")),
        ("read_fraction", "spread.median", median("spread")),
        ("attainable_fraction", "attainable_spread.median", median("attainable_spread")),
        ("time_ratio_to_kvroof", "time_ratio_to_kvroof.median", median("time_ratio_to_kvroof")),
    ):
        taken = samples.get(name)
        if taken and value is not None and not _is_median(value, taken):
            yield f"{where}: {field} {value:.6g} is not the median of its own samples, {statistics.median(taken):.6g}"
    for name in ("spread", "attainable_spread", "time_ratio_to_kvroof"):
        ratio = row.get(name)
        if ratio and not ratio["low"] <= ratio["median"] <= ratio["high"]:
            yield f"{where}: {name} is not in order (low, median, high)"


def faults(value: Any, checker: Checker | None = None) -> Iterator[str]:
    """Every fault of a parsed result file: the schema's first, then those between fields and between rows."""
    found = (checker or schema_checker()).faults(value)
    yield from found
    if found:
        return  # what follows relies on the schema
    seen: dict[str, int] = {}
    for index, row in enumerate(value["benchmarks"]):
        where = f"benchmarks[{index}]"
        if row["name"] in seen:
            yield f"{where}: the same row as benchmarks[{seen[row['name']]}] ({row['name']})"
        seen[row["name"]] = index
        yield from _row_faults(row, where, value["context"]["threads"]["all"])


def from_value(path: Path, value: Any) -> ResultFile:
    """Rows of a checked value. Where one key was measured on two instruction sets, the machine's own one joins."""
    rows = [Row(raw) for raw in value["benchmarks"]]
    own = value["context"]["machine"]["isa"]
    by_key: dict[str, Row] = {}
    for row in rows:
        other = by_key.get(row.key)
        if other is None or row.get("isa") == own or (row.measured and not other.measured):
            by_key[row.key] = row
    return ResultFile(path, value["context"], rows, by_key)


def load(path: Path, checker: Checker | None = None) -> ResultFile:
    value = json_file.read(path, RIGHT)
    _header_fault(path, value)
    found = list(_first(faults(value, checker), 100))
    if found:
        more = f" (and {len(found) - 1}{'+' if len(found) == 100 else ''} more)" if len(found) > 1 else ""
        raise UserError(str(path), found[0] + more, REMAKE)
    return from_value(path, value)


def all_faults(path: Path, checker: Checker) -> list[str]:
    """For `validate`: every fault, not only the first."""
    value = json_file.read(path, RIGHT)
    _header_fault(path, value)
    return list(_first(faults(value, checker), 1000))


def load_all(paths: list[Path]) -> list[ResultFile]:
    checker = schema_checker()
    return [load(path, checker) for path in paths]


def _first(items: Iterator[str], count: int) -> Iterator[str]:
    for index, item in enumerate(items):
        if index == count:
            return
        yield item
