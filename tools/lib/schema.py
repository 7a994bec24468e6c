"""A small strict checker for results/schema.json: the JSON Schema words that file uses and no others.

A word that the checker does not know is an error of the schema, never silently ignored.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Callable

_NOTES = {"$schema", "$id", "$comment", "title", "description", "default", "examples", "format", "$defs"}
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}


_POSITIVE = {"type", "exclusiveMinimum"}


class SchemaError(Exception):
    """The schema itself is wrong."""


def _is_type(value: Any, name: str) -> bool:
    if name not in _TYPES:
        raise SchemaError(f"unknown type {name!r}")
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


Place = tuple[str, ...]


class Checker:
    """Faults are gathered in a list and their places kept as steps, put into words only where there is a fault: a
    result file has hundreds of thousands of values, nearly all of them right."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.root = schema
        self._compiled: dict[int, list[tuple[Handler, Any]]] = {}

    def faults(self, value: Any) -> list[str]:
        """Every fault as "place: what is wrong", the outermost first."""
        found: Faults = []
        self._check(self.root, value, (), found)
        return [f"{_words(place)}: {what}" for place, what in found]

    def part(self, reference: str) -> "Checker":
        """A checker for one definition, such as "#/$defs/row"."""
        return Checker({**self._resolve(reference), "$defs": self.root.get("$defs", {})})

    def _resolve(self, reference: str) -> dict[str, Any]:
        node: Any = self.root
        for step in reference.removeprefix("#").strip("/").split("/"):
            if not isinstance(node, dict) or step not in node:
                raise SchemaError(f"no such definition: {reference}")
            node = node[step]
        return node

    def _valid(self, schema: Any, value: Any) -> bool:
        found: Faults = []
        self._check(schema, value, (), found)
        return not found

    def _check(self, schema: Any, value: Any, at: Place, out: "Faults") -> None:
        if schema is True:
            return
        if schema is False:
            out.append((at, "nothing may stand here"))
            return
        handlers = self._compiled.get(id(schema))
        if handlers is None:
            handlers = self._compiled[id(schema)] = self._compile(schema)
        for handler, rule in handlers:
            handler(rule, value, at, out)

    def _compile(self, schema: dict[str, Any]) -> "list[tuple[Handler, Any]]":
        handlers: list[tuple[Handler, Any]] = []
        for word, rule in schema.items():
            if word in _NOTES or word in ("then", "else"):
                continue
            if word in ("additionalProperties", "patternProperties", "if"):  # need their neighbours
                rule = schema
            elif word == "$ref":
                rule = self._resolve(rule)
            handler = getattr(self, "_" + word.lstrip("$").lower(), None)
            if handler is None:
                raise SchemaError(f"the checker does not know the word {word!r}")
            handlers.append((handler, rule))
        return handlers

    def _ref(self, rule: Any, value: Any, at: Place, out: "Faults") -> None:
        self._check(rule, value, at, out)

    def _type(self, rule: Any, value: Any, at: Place, out: "Faults") -> None:
        names = (rule,) if isinstance(rule, str) else rule
        for name in names:
            if _is_type(value, name):
                return
        out.append((at, f"must be {' or '.join(names)}, is {_short(value)}"))

    def _enum(self, rule: list[Any], value: Any, at: Place, out: "Faults") -> None:
        if not any(_same(value, option) for option in rule):
            out.append((at, f"must be one of {', '.join(map(str, rule))}, is {_short(value)}"))

    def _const(self, rule: Any, value: Any, at: Place, out: "Faults") -> None:
        if not _same(value, rule):
            out.append((at, f"must be {rule!r}, is {_short(value)}"))

    def _required(self, rule: list[str], value: Any, at: Place, out: "Faults") -> None:
        if isinstance(value, dict):
            out.extend((at, f"the field {name!r} is missing") for name in rule if name not in value)

    def _properties(self, rule: dict[str, Any], value: Any, at: Place, out: "Faults") -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                if name in rule:
                    self._check(rule[name], item, at + (name,), out)

    def _patternproperties(self, schema: dict[str, Any], value: Any, at: Place, out: "Faults") -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                for pattern, part in schema["patternProperties"].items():
                    if _matches(pattern, name):
                        self._check(part, item, at + (name,), out)

    def _additionalproperties(self, schema: dict[str, Any], value: Any, at: Place, out: "Faults") -> None:
        if isinstance(value, dict):
            known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
            for name, item in value.items():
                if name in known or any(_matches(pattern, name) for pattern in patterns):
                    continue
                if schema["additionalProperties"] is False:
                    out.append((at, f"unknown field {_short(name)}"))
                else:
                    self._check(schema["additionalProperties"], item, at + (name,), out)

    def _items(self, rule: Any, value: Any, at: Place, out: "Faults") -> None:
        if isinstance(value, list):
            if isinstance(rule, dict) and rule.keys() == _POSITIVE and rule["type"] == "number":
                # Samples, most of what is in a file.
                least = rule["exclusiveMinimum"]
                if all(type(item) in (float, int) and item > least for item in value):
                    return
            for index, item in enumerate(value):
                self._check(rule, item, at + (f"[{index}]",), out)

    def _minlength(self, rule: int, value: Any, at: Place, out: "Faults") -> None:
        if isinstance(value, str) and len(value) < rule:
            out.append((at, f"needs at least {rule} characters"))

    def _pattern(self, rule: str, value: Any, at: Place, out: "Faults") -> None:
        if isinstance(value, str) and not re.search(rule, value):
            out.append((at, f"{_short(value)} does not fit {rule}"))

    def _minimum(self, rule: float, value: Any, at: Place, out: "Faults") -> None:
        if _is_type(value, "number") and value < rule:
            out.append((at, f"must be at least {rule}, is {_short(value)}"))

    def _exclusiveminimum(self, rule: float, value: Any, at: Place, out: "Faults") -> None:
        if _is_type(value, "number") and value <= rule:
            out.append((at, f"must be above {rule}, is {_short(value)}"))

    def _allof(self, rule: list[Any], value: Any, at: Place, out: "Faults") -> None:
        for part in rule:
            self._check(part, value, at, out)

    def _anyof(self, rule: list[Any], value: Any, at: Place, out: "Faults") -> None:
        if not any(self._valid(part, value) for part in rule):
            self._check(rule[0], value, at, out)

    def _not(self, rule: Any, value: Any, at: Place, out: "Faults") -> None:
        if self._valid(rule, value):
            out.append((at, f"{_short(value)} is not allowed here"))

    def _if(self, schema: dict[str, Any], value: Any, at: Place, out: "Faults") -> None:
        branch = "then" if self._valid(schema["if"], value) else "else"
        if branch in schema:
            self._check(schema[branch], value, at, out)


Faults = list[tuple[Place, str]]
Handler = Callable[[Any, Any, Place, Faults], None]


@functools.lru_cache(maxsize=4096)
def _matches(pattern: str, name: str) -> bool:
    return re.search(pattern, name) is not None


def _words(place: Place) -> str:
    return ".".join(place).replace(".[", "[") or "the file"
