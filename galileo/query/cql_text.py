"""CQL2 text of CQL2 JSON values, as far as conditions are built of them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NEEDLESS_ESCAPE = re.compile(r"(?:\\(?=[^\\%_])|(\\[\s\S]))")
_WORDS = {"and", "or", "not", "between", "in", "like", "is", "null", "true", "false", "div", "bbox"}
_WORDS |= {"casei", "accenti", "date", "timestamp", "interval", "point", "linestring", "polygon"}
_WORDS |= {"multipoint", "multilinestring", "multipolygon", "geometrycollection"}
_ARITHMETIC = ("+", "-", "*", "/", "^", "%", "div")
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")


def to_text(tree: Any) -> str:
    """The text of a condition; it parses to an equal one."""
    if isinstance(tree, bool):
        return "true" if tree else "false"
    if "op" not in tree or tree["op"] in _ARITHMETIC:
        return operand_text(tree)
    op, args = tree["op"], tree["args"]
    if op in ("and", "or"):
        return f" {op.upper()} ".join(_enclosed(arg) for arg in args)
    if op == "not":
        return f"NOT ({to_text(args[0])})"
    if op == "like":
        return f"{operand_text(args[0])} LIKE {_pattern_text(args[1])}"
    return _condition_text(op, [operand_text(arg) for arg in args])


def _condition_text(op: str, texts: list[str]) -> str:
    if op in _COMPARISONS:
        return f"{texts[0]} {op} {texts[1]}"
    if op == "between":
        return f"{texts[0]} BETWEEN {texts[1]} AND {texts[2]}"
    if op == "in":
        return f"{texts[0]} IN {texts[1]}"
    if op == "isNull":
        return f"{texts[0]} IS NULL"
    return f"{op.upper()}({', '.join(texts)})"


def _enclosed(tree: Any) -> str:
    joined = isinstance(tree, dict) and tree.get("op") in ("and", "or")
    return f"({to_text(tree)})" if joined else to_text(tree)


def operand_text(raw: Any) -> str:
    """The text of a property, a literal, a geometry, or a list of literals."""
    if isinstance(raw, dict):
        return _object_text(raw)
    if isinstance(raw, list):
        return f"({', '.join(operand_text(operand) for operand in raw)})"
    if isinstance(raw, bool):
        return "true" if raw else "false"
    return quoted(raw) if isinstance(raw, str) else number_text(raw)


def _object_text(raw: dict[str, Any]) -> str:
    if "property" in raw:
        return name_text(raw["property"])
    if "bbox" in raw:
        return f"BBOX({', '.join(number_text(bound) for bound in raw['bbox'])})"
    for kind in ("timestamp", "date"):
        if kind in raw:
            return f"{kind.upper()}({quoted(raw[kind])})"
    if "interval" in raw:
        return f"INTERVAL({', '.join(operand_text(end) for end in raw['interval'])})"
    if raw.get("op") in _ARITHMETIC:
        return f"({_joined_text(raw)})"
    if "op" in raw:
        return f"{raw['op'].upper()}({', '.join(operand_text(arg) for arg in raw['args'])})"
    if raw["type"] == "Point":
        return f"POINT({_position(raw['coordinates'])})"
    return f"{raw['type'].upper()}{_positions(raw['coordinates'])}"


def _joined_text(raw: dict[str, Any]) -> str:
    return f" {raw['op']} ".join(operand_text(arg) for arg in raw["args"])


def _positions(coordinates: Any) -> str:
    if isinstance(coordinates[0], list):
        return f"({', '.join(_bare(point) for point in coordinates)})"
    return _position(coordinates)


def _bare(coordinates: Any) -> str:
    """A position within a list stands without parentheses."""
    is_position = not isinstance(coordinates[0], list)
    return _position(coordinates) if is_position else _positions(coordinates)


def _position(coordinates: list[float]) -> str:
    return " ".join(number_text(degrees) for degrees in coordinates[:2])


def name_text(name: str) -> str:
    """A property's name, in double quotes where it could be taken for something else."""
    plain = _PLAIN.fullmatch(name) and name.lower() not in _WORDS
    return name if plain else f'"{name}"'


def quoted(text: str) -> str:
    return _enquoted(text.replace("\\", "\\\\"))


def _pattern_text(raw: Any) -> str:
    """The text of a pattern of LIKE, whose backslashes are there for %, _ and themselves only."""
    if isinstance(raw, dict) and raw.get("op") == "casei":
        return f"CASEI({_pattern_text(raw['args'][0])})"
    if not isinstance(raw, str):
        return operand_text(raw)
    return _enquoted(_NEEDLESS_ESCAPE.sub(r"\1", raw))


def _enquoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def number_text(value: float) -> str:
    """All digits of a number, without an exponent, which CQL2 geometries do not know."""
    return format(Decimal(repr(value)), "f").removesuffix(".0")
