"""Operands of conditions: properties of the schema, and literals."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from galileo.errors import UnknownFlag, UnknownProperty, UnsupportedQuery, listed
from galileo.model.schema import Feature, Schema, nearest_name
from galileo.query.columns import rounded_to_float32
from galileo.query.cql_syntax import NO_NOW

GEOMETRY, DATETIME, GEOHASH = "geometry", "datetime", "geohash"
SPECIAL = (GEOMETRY, DATETIME, GEOHASH)
"""Properties of every dataset."""

_SYNONYMS = {"time": DATETIME}
"""Column names that mean properties."""
PLACE_HINT = "for places write S_INTERSECTS(geometry, BBOX(west, south, east, north))"
_COORDINATES = frozenset({"latitude", "longitude", "lat", "lon", "long", "lng"})
"""Names of coordinates; the message suggests the geometry."""
_TIME_HINT = "; a date stands in quotes: DATE('2012-03-01'), TIMESTAMP('2012-03-01T06:00:00Z')"

_SHOWN_MAX = 80
_SUPPORTED = (
    "supported are comparisons of properties, values and their arithmetic, BETWEEN, IN, LIKE, IS "
    "NULL, CASEI, AND, OR, NOT, S_INTERSECTS, S_WITHIN, S_DISJOINT, DWITHIN, T_AFTER, T_BEFORE, "
    "T_CONTAINS, T_DURING, T_EQUALS, T_INTERSECTS and T_DISJOINT"
)


@dataclass(frozen=True, slots=True)
class PropertyRef:
    """The property of a condition.

    Attributes:
        name: one of `SPECIAL`, or of `feature`.
        feature: an indexed feature, None for a special property.
        folded: whether it is compared without regard to case.
    """

    name: str
    feature: Feature | None
    folded: bool


def is_property(raw: Any) -> bool:
    """Whether an operand is a property, perhaps within functions or arithmetic."""
    if not isinstance(raw, dict):
        return False
    if "op" in raw:
        return any(is_property(arg) for arg in _arguments(raw))
    return "property" in raw


def property_ref(raw: Any, schema: Schema) -> PropertyRef:
    """The property that an operand names.

    Raises:
        UnknownProperty: the schema lacks it.
        UnsupportedQuery: it is not indexed, or the operand is not a property.
    """
    if isinstance(raw, dict) and isinstance(raw.get("property"), str):
        written: str = raw["property"]
        name = _SYNONYMS.get(written, written)
        return PropertyRef(name, None if name in SPECIAL else _feature(name, schema), folded=False)
    if _is_casei(raw):
        inner = property_ref(_arguments(raw)[0], schema)
        if inner.feature is None or inner.feature.type != "text":
            raise UnsupportedQuery(f"expected a text feature in CASEI, got {inner.name!r}")
        return PropertyRef(inner.name, inner.feature, folded=True)
    if isinstance(raw, dict) and "op" in raw:
        raise unsupported(raw)
    if isinstance(raw, dict) and "interval" in raw:
        raise UnsupportedQuery(
            "an INTERVAL of properties is not supported: an observation has one time, datetime"
        )
    raise UnsupportedQuery(
        f"expected a property on one side of a condition, got {show_operand(raw)}; {names(schema)}"
    )


def _feature(name: str, schema: Schema) -> Feature:
    feature = schema.feature(name)
    if feature is None:
        raise _unknown(name, schema)
    if not feature.indexed:
        raise UnsupportedQuery(
            f"feature {name!r} of dataset {schema.name!r} is stored but not indexed, so queries "
            f"cannot use it; {names(schema)}"
        )
    return feature


def _unknown(name: str, schema: Schema) -> UnknownProperty:
    known = [*SPECIAL, *(feature.name for feature in schema.indexed)]
    nearest = nearest_name(name, known)
    hint = f" (did you mean {nearest!r}?)" if nearest else ""
    place = f"; {PLACE_HINT}" if name.lower() in _COORDINATES else ""
    return UnknownProperty(
        f"dataset {schema.name!r} has no property {name!r}{hint}; {names(schema)}{place}",
        property=name,
        nearest=nearest,
        properties=known,
    )


def names(schema: Schema) -> str:
    """The properties that a query may use, as part of a message."""
    listed = ", ".join([*SPECIAL, *(feature.name for feature in schema.indexed)])
    return f"its properties are {listed}"


def unsupported(raw: dict[str, Any]) -> UnsupportedQuery:
    """The error for an unsupported operator or function."""
    op = str(raw["op"])
    if op.lower() == "now":
        return UnsupportedQuery(NO_NOW, expected="no_now")
    if op in ("+", "-", "*", "/", "%", "^", "div"):
        hint = _TIME_HINT if op == "-" and not is_property(raw) else ""
        return UnsupportedQuery(
            f"expected a value, got arithmetic ({op!r}), which is of two numbers, or of a time and "
            f"a duration: now() - '1d'{hint}"
        )
    return UnsupportedQuery(f"{op!r} is not supported; {_SUPPORTED}")


def number(raw: Any, about: PropertyRef) -> float:
    """A number as a double; it must be finite. The meaning of a flag is the flag's value.

    One that is compared with a float32 feature is rounded as its values are: 4.3 finds 4.3.
    """
    if isinstance(raw, str) and about.feature and about.feature.flags:
        return float(_flag(raw, about.feature))
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise mismatch(raw, about, "a number such as 290.5")
    try:
        value = float(raw)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise mismatch(raw, about, "a finite number")
    is_single = about.feature is not None and about.feature.type == "float32"
    return float(rounded_to_float32(value)) if is_single else value


def _flag(meaning: str, feature: Feature) -> int:
    """The value of the flag with a meaning.

    Raises:
        UnknownFlag: no flag of the feature has it.
    """
    meanings = {known: value for value, known in feature.flags.items()}
    if meaning not in meanings:
        close = nearest_name(meaning, [*meanings])
        hint = f"; did you mean {close!r}?" if close else "."
        raise UnknownFlag(
            f"no flag of {feature.name!r} means {meaning!r}{hint} The meanings are "
            f"{listed([*meanings])}",
            property=feature.name,
            nearest=close,
            meanings=[*meanings],
        )
    return meanings[meaning]


def text(raw: Any, about: PropertyRef) -> str:
    """A text, without its case if it stands in CASEI."""
    if _is_casei(raw):
        return text(_arguments(raw)[0], about).casefold()
    if not isinstance(raw, str) or not _is_unicode(raw):
        raise mismatch(raw, about, "a text in single quotes")
    return raw


def boolean(raw: Any, about: PropertyRef) -> bool:
    if not isinstance(raw, bool):
        raise mismatch(raw, about, "true or false")
    return raw


def show_operand(raw: Any) -> str:
    """A JSON value for a message, cut to a readable length."""
    full = json.dumps(raw, ensure_ascii=not _is_unicode(str(raw)), default=repr)
    return full if len(full) <= _SHOWN_MAX else f"{full[:_SHOWN_MAX]}…"


def mismatch(raw: Any, about: PropertyRef, wanted: str) -> UnsupportedQuery:
    """The error for an operand that a property cannot be compared with."""
    kind = f"{about.feature.type} feature" if about.feature else "property"
    if isinstance(raw, dict) and "op" in raw:
        return unsupported(raw)
    if is_property(raw):
        return UnsupportedQuery(
            f"expected {wanted} to compare {about.name!r} with, got a property, "
            f"{show_operand(raw['property'])}; texts stand in single quotes"
        )
    hint = f"; write {about.name} IS NULL to find missing values" if raw is None else ""
    return UnsupportedQuery(
        f"expected {wanted} to compare the {kind} {about.name!r} with, "
        f"got {show_operand(raw)}{hint}"
    )


def _is_casei(raw: Any) -> bool:
    return isinstance(raw, dict) and raw.get("op") == "casei" and len(_arguments(raw)) == 1


def _arguments(raw: dict[str, Any]) -> list[Any]:
    args = raw.get("args")
    return args if isinstance(args, list) else []


def _is_unicode(text: str) -> bool:
    """False for half a surrogate pair, which JSON permits and UTF-8 does not."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
