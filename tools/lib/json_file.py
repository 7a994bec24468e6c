"""Strict JSON in, atomic files out.

Reading refuses what json.loads lets through: NaN and infinities, a name given twice in one object, numbers beyond
what a double or a 64-bit integer holds, and files that are not UTF-8. Writing goes to a temporary file in the same
folder, is flushed to the disk, and then renamed, so that a file is either the old one or the whole new one.
"""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from errors import UserError, os_reason

MAX_BYTES = 256 * 2**20  # a full sweep is a few MB; this only keeps a wrong path from filling the memory
MAX_INTEGER = 2**64


class _Refused(ValueError):
    pass


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Refused(f'the name "{twice}" is given twice in one object')
    return result


def _no_constant(text: str) -> NoReturn:
    raise _Refused(f"{text} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused(f"the number {text[:40]} is too large")
    return value


def _int(text: str) -> int:
    if len(text) > 21 or abs(int(text)) >= MAX_INTEGER:
        raise _Refused(f"the number {text[:40]}{'...' if len(text) > 40 else ''} is too large")
    return int(text)


def parse(text: str, where: str, right: str) -> Any:
    """The value of one JSON text; `where` and `right` go into the error."""
    try:
        return json.loads(
            text, object_pairs_hook=_unique_names, parse_constant=_no_constant, parse_float=_float, parse_int=_int
        )
    except json.JSONDecodeError as error:
        reason = error.msg.lower().removesuffix(" at").removesuffix(" starting")  # the place is said already
        raise UserError(f"{where}, line {error.lineno}, column {error.colno}", f"not JSON ({reason})", right) from None
    except _Refused as error:
        raise UserError(where, str(error), right) from None
    except RecursionError:
        raise UserError(where, "nested too deeply", right) from None


def read_bytes(path: Path, right: str) -> bytes:
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise UserError(str(path), "not a regular file", right)
        if info.st_size > MAX_BYTES:
            raise UserError(str(path), f"{info.st_size} bytes are more than any such file holds", right)
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else str(error)
        raise UserError(str(path), f"cannot be read ({reason})", right) from None


def read(path: Path, right: str) -> Any:
    data = read_bytes(path, right)
    if not data.strip():
        raise UserError(str(path), "the file is empty", right)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, byte {error.start}", "not UTF-8 text", right) from None
    return parse(text, str(path), right)


def dump(value: Any) -> str:
    """Strict JSON, one row a line where it matters: rows are what people diff."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _cannot_write(path: Path, error: OSError) -> UserError:
    return UserError(
        str(path),
        f"cannot be written ({os_reason(error)})",
        "name a file in a folder that can be written, on a disk with room",
    )


def _target(path: Path) -> Path:
    """The file that a write to `path` replaces: links are followed, devices and folders refused."""
    try:
        real = path.resolve()
        if real.exists() and not real.is_file():
            raise UserError(str(path), "is not a regular file", "name a file, new or to be replaced")
        return real
    except OSError as error:
        raise _cannot_write(path, error) from None


def check_writable(path: Path) -> None:
    """Raises now what write_atomic would raise later: asked before anything is measured."""
    target = _target(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            os.write(handle, b"kvroof")
            os.fsync(handle)
        finally:
            os.close(handle)
            os.unlink(name)
    except OSError as error:
        raise _cannot_write(path, error) from None


def write_atomic(path: Path, data: str | bytes) -> None:
    target = _target(path)
    blob = data.encode("utf-8") if isinstance(data, str) else data
    name = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
        name = ""
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise _cannot_write(path, error) from None
    finally:
        if name:
            Path(name).unlink(missing_ok=True)
