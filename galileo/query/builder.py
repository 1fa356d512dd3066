"""Queries as Python expressions, as an alternative to CQL2 text.

    (galileo.f.temperature > 290) & galileo.within((-110, 35, -100, 42))

A condition holds CQL2 JSON values and knows no schema; names are checked by the call that takes it.
`str` gives CQL2 text, for reading and keeping. JSON is sent, because the parser of texts reads one
in fifteen coordinates of full precision wrong in the last bit.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias, final

import numpy as np
import shapely
from shapely.geometry.base import BaseGeometry

from galileo.errors import InputError
from galileo.geo.circles import distance_m
from galileo.model.times import Instant, iso, micros
from galileo.query.cql_text import to_text
from galileo.query.operands import DATETIME, GEOHASH, GEOMETRY


class HasGeoInterface(Protocol):
    """An object with its shape as GeoJSON."""

    @property
    def __geo_interface__(self) -> dict[str, Any]: ...


Place: TypeAlias = BaseGeometry | HasGeoInterface | str | Sequence[float] | dict[str, Any]


_NO_TRUTH = (
    "a condition is true or false of each observation, not by itself: join conditions by &, | "
    "and ~, each in parentheses, instead of 'and', 'or' and 'not'; write .between(280, 290) "
    "instead of 280 < f.x < 290, and .isin([...]) instead of 'in'"
)


class _Combinable:
    """An operand of `&` and `|`: a condition, or a bool feature by itself."""

    __slots__ = ()

    @property
    def tree(self) -> Any:
        """CQL2 JSON values."""
        raise NotImplementedError

    def __and__(self, other: _Combinable) -> Condition:
        return _joined("and", self, other)

    def __or__(self, other: _Combinable) -> Condition:
        return _joined("or", self, other)

    def __rand__(self, other: object) -> NoReturn:
        raise _no_operand("&", other)

    def __ror__(self, other: object) -> NoReturn:
        raise _no_operand("|", other)

    def __invert__(self) -> Condition:
        return Condition({"op": "not", "args": [self.tree]})

    def __bool__(self) -> NoReturn:
        raise InputError(_NO_TRUTH, expected="no_truth_value")

    def __str__(self) -> str:
        return to_text(self.tree)


@final
class Condition(_Combinable):
    """A condition on observations; join them by `&`, `|` and `~`, each in parentheses.

    `str` gives CQL2 text, `to_json` CQL2 JSON. Every call of a client that takes a query takes it.

    Example:
        >>> str((galileo.f.temperature > 290) & (galileo.f.station == "KDEN"))
        "temperature > 290 AND station = 'KDEN'"
    """

    __slots__ = ("_tree",)

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    @property
    def tree(self) -> Any:
        """CQL2 JSON values."""
        return self._tree

    def to_json(self) -> str:
        """CQL2 JSON.

        Example:
            >>> (galileo.f.temperature > 290).to_json()
            '{"op": ">", "args": [{"property": "temperature"}, 290]}'
        """
        return json.dumps(self._tree, ensure_ascii=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self._tree == other._tree

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __repr__(self) -> str:
        return f"<Condition {self}>"


class Expression(_Combinable):
    """Arithmetic of features, or a single one, to compare with values and with each other.

    `+`, `-`, `*`, `/`, `%` (with the sign of the left side) and `**` of numbers.

    Example:
        >>> f = galileo.f
        >>> str(f.temperature - 273.15 > 2 * f.dewpoint)
        '(temperature - 273.15) > (2 * dewpoint)'
    """

    __slots__ = ("_tree",)

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    @property
    def tree(self) -> Any:
        """CQL2 JSON values."""
        return self._tree

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compared("=", other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compared("<>", other)

    def __lt__(self, other: Any) -> Condition:
        return self._compared("<", other)

    def __le__(self, other: Any) -> Condition:
        return self._compared("<=", other)

    def __gt__(self, other: Any) -> Condition:
        return self._compared(">", other)

    def __ge__(self, other: Any) -> Condition:
        return self._compared(">=", other)

    def __add__(self, other: Any) -> Expression:
        return self._with("+", other)

    def __radd__(self, other: Any) -> Expression:
        return self._behind(other, "+")

    def __sub__(self, other: Any) -> Expression:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Expression:
        return self._behind(other, "-")

    def __mul__(self, other: Any) -> Expression:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> Expression:
        return self._behind(other, "*")

    def __truediv__(self, other: Any) -> Expression:
        return self._with("/", other)

    def __rtruediv__(self, other: Any) -> Expression:
        return self._behind(other, "/")

    def __mod__(self, other: Any) -> Expression:
        return self._with("%", other)

    def __rmod__(self, other: Any) -> Expression:
        return self._behind(other, "%")

    def __pow__(self, other: Any) -> Expression:
        return self._with("^", other)

    def __rpow__(self, other: Any) -> Expression:
        return self._behind(other, "^")

    def __neg__(self) -> Expression:
        return -1 * self

    def between(self, low: Any, high: Any) -> Condition:
        """From `low` to `high`, both included.

        Example:
            >>> client.count("weather", galileo.f.temperature.between(288, 291))
            2
        """
        return self._about("between", self._value(low), self._value(high))

    def isin(self, values: Iterable[Any]) -> Condition:
        """One of the values; of no values, nothing matches.

        Example:
            >>> client.count("weather", galileo.f.station.isin(["KDEN", "KCYS"]))
            3
        """
        if isinstance(values, str):
            raise InputError(
                f"expected a list of values for isin, got the text {values!r}", expected="values"
            )
        listed = [self._value(value) for value in values]
        return self._about("in", listed) if listed else Condition(False)

    def is_null(self) -> Condition:
        """The value is missing.

        Example:
            >>> client.count("weather", galileo.f.temperature.is_null())
            0
        """
        return self._about("isNull")

    def is_not_null(self) -> Condition:
        """There is a value.

        Example:
            >>> client.count("weather", galileo.f.temperature.is_not_null())
            4
        """
        return ~self.is_null()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def _with(self, op: str, other: Any) -> Expression:
        return Expression({"op": op, "args": [self.tree, _operand(other, str(self))]})

    def _behind(self, other: Any, op: str) -> Expression:
        return Expression({"op": op, "args": [_operand(other, str(self)), self.tree]})

    def _compared(self, op: str, value: Any) -> Condition:
        return self._about(op, self._value(value))

    def _about(self, op: str, *args: Any) -> Condition:
        return Condition({"op": op, "args": [self.tree, *args]})

    def _value(self, value: Any) -> Any:
        return _operand(value, str(self))


@final
class Property(Expression):
    """A feature, `datetime` or `geohash`, to compare with values and with other features.

    Texts are compared as they are; `casei` ignores upper and lower case. Times are datetimes, dates
    (which mean their whole day), or texts such as "2012-03-01T06:00:00Z".

    Example:
        >>> client.count("weather", galileo.f.station == "KDEN")
        2
    """

    __slots__ = ("_folded", "_name")

    def __init__(self, name: str, *, folded: bool = False) -> None:
        self._name = name
        self._folded = folded
        named = {"property": name}
        super().__init__({"op": "casei", "args": [named]} if folded else named)

    def like(self, pattern: str) -> Condition:
        """A pattern in which `%` is any stretch of characters and `_` one; a backslash escapes.

        Example:
            >>> client.count("weather", galileo.f.station.like("K%"))
            3
        """
        if not isinstance(pattern, str):
            raise InputError(f"expected a pattern as text, such as 'a%', got {pattern!r}")
        return self._about("like", self._value(pattern))

    def casei(self) -> Property:
        """The same property, compared without regard to upper and lower case.

        Example:
            >>> client.count("weather", galileo.f.station.casei() == "kden")
            2
        """
        return Property(self._name, folded=True)

    def _value(self, value: Any) -> Any:
        raw = _operand(value, self._name)
        is_plain = self._folded and not isinstance(value, Expression)
        return {"op": "casei", "args": [raw]} if is_plain else raw


def _operand(value: Any, about: str) -> Any:
    """CQL2 JSON of an expression or a literal. Raises InputError."""
    return value.tree if isinstance(value, Expression) else literal(value, about=about)


@final
class Properties:
    """The properties of any dataset by name: `f.temperature`, or `f["temperature"]`.

    `f.datetime` is the time of an observation and `f.geohash` its cell; the others are features.

    Example:
        >>> str(galileo.f["temperature"] > 290)
        'temperature > 290'
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Property:
        # Notebooks and copiers look for names of their own on everything.
        if name.startswith("_"):
            raise AttributeError(f"a property that begins with '_' is written f[{name!r}]")
        return Property(name)

    def __getitem__(self, name: str) -> Property:
        if not isinstance(name, str) or not name:
            raise InputError(
                f"expected the name of a property, got {name!r}", expected="property_name"
            )
        return Property(name)

    def __repr__(self) -> str:
        return "<the properties of a dataset: f.temperature>"


f = Properties()

QueryLike: TypeAlias = str | Condition | Property
"""CQL2 text, CQL2 JSON in a text, a condition, or a bool feature by itself."""


def query_text(query: QueryLike) -> str:
    """The text of a query as it is sent.

    Raises:
        InputError: it is not a query.
    """
    if isinstance(query, str):
        return query
    if isinstance(query, Condition | Property):
        return json.dumps(query.tree, ensure_ascii=False)
    raise InputError(
        "expected a query as CQL2 text or as a condition such as galileo.f.temperature > 290, "
        f"got {type(query).__name__}",
        expected="query",
    )


def within(region: Place, *, edge: bool = True) -> Condition:
    """The observation lies in a region.

    Args:
        region: a shapely geometry (or what has a `__geo_interface__`), WKT, GeoJSON, or four
            numbers: west, south, east, north, of which west is larger than east across the
            antimeridian. Degrees, longitude first.
        edge: whether the edge belongs to it.

    Raises:
        InputError: it is no region.

    Example:
        >>> client.count("weather", galileo.within((-110, 35, -100, 42)))
        3
    """
    name = "s_intersects" if edge else "s_within"
    return Condition({"op": name, "args": [{"property": GEOMETRY}, geometry_json(region)]})


def near(latitude: float, longitude: float, distance: float | str) -> Condition:
    """The observation lies at most so far from a point, along a great circle.

    Args:
        latitude: degrees, -90 to 90.
        longitude: degrees, -180 to 180; up to 360 is taken, too.
        distance: metres, or a text with a unit: "500m", "50km".

    Raises:
        InputError: one of them is no number, or out of its range.

    Example:
        >>> client.count("weather", galileo.near(40, -105, "20km"))
        2
    """
    point = [_degrees("longitude", longitude, 360), _degrees("latitude", latitude, 90)]
    place = {"type": "Point", "coordinates": point}
    args = [{"property": GEOMETRY}, place, distance_m(distance)]
    return Condition({"op": "dwithin", "args": args})


def during(start: Instant | None, end: Instant | None) -> Condition:
    """The observation was made at `start` or later, and before `end`; None is an open end.

    The end is left out, so that of intervals that follow each other each instant is in one.

    Raises:
        InputError: a bound is no time, or the start is behind the end.

    Example:
        >>> client.count("weather", galileo.during("2014-03-01T07:00:00Z", None))
        3
    """
    if start is not None and end is not None and micros(start) > micros(end):
        raise InputError(
            f"expected a start before the end, got {start!r} and {end!r}",
            expected="start_before_end",
        )
    bounds = [
        {"op": op, "args": [{"property": DATETIME}, {"timestamp": iso(micros(bound))}]}
        for op, bound in ((">=", start), ("<", end))
        if bound is not None
    ]
    if not bounds:
        return Condition(True)
    return Condition(bounds[0] if len(bounds) == 1 else {"op": "and", "args": bounds})


def geohash(pattern: str) -> Condition:
    """The observation lies in a cell that begins as `pattern` does: `"9x%"`.

    Example:
        >>> client.count("weather", galileo.geohash("9x%"))
        3
    """
    return Property(GEOHASH).like(pattern)


def _joined(op: str, left: _Combinable, right: _Combinable) -> Condition:
    if not isinstance(right, _Combinable):
        raise _no_operand("&" if op == "and" else "|", right)
    parts: list[Any] = []
    for tree in (left.tree, right.tree):
        same = isinstance(tree, dict) and tree.get("op") == op
        parts += tree["args"] if same else [tree]
    return Condition({"op": op, "args": parts})


def _no_operand(sign: str, operand: object) -> InputError:
    """Raise an error: Python reads `f.x > 1 & f.y < 2` as `f.x > (1 & f.y) < 2`."""
    return InputError(
        f"expected a condition on both sides of {sign}, got {operand!r}; "
        f"put comparisons in parentheses: (f.x > 1) {sign} (f.y < 2)",
        expected="condition",
    )


def literal(value: Any, *, about: str) -> Any:
    """CQL2 JSON of a number, text, bool or time. Raises InputError."""
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        value = value.item()
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, dt.datetime | np.datetime64):
        return {"timestamp": iso(micros(value))}
    if isinstance(value, dt.date):
        return {"date": value.isoformat()}
    raise InputError(_no_literal(value, about), expected="literal")


def _no_literal(value: Any, about: str) -> str:
    if value is None:
        return f"{about} cannot be compared with None; write f.{about}.is_null()"
    if isinstance(value, Condition):
        return (
            f"{about} cannot be compared with a condition, {value}; put comparisons in "
            "parentheses: (f.x > 1) & (f.y < 2)"
        )
    return f"expected a number, text, bool or time to compare {about} with, got {value!r}"


def _number(value: Any) -> int | float:
    plain: Any = value.item() if isinstance(value, np.generic) else value
    is_number = isinstance(plain, int | float) and not isinstance(plain, bool)
    if is_number and math.isfinite(plain):
        number: int | float = plain
        return number
    raise InputError(f"expected a finite number, got {value!r}", expected="finite_number")


def _degrees(name: str, value: Any, bound: int) -> int | float:
    number = _number(value)
    if abs(number) > bound:
        raise InputError(
            f"expected a {name} from -{bound} to {bound} degrees, got {value!r}",
            expected="degrees",
            name=name,
        )
    return number


def geometry_json(region: Place) -> Any:
    """CQL2 JSON of a region. Raises InputError."""
    try:
        return _geojson(region)
    except (shapely.errors.ShapelyError, TypeError, ValueError, KeyError) as error:
        raise InputError(
            "expected a region as a shapely geometry, WKT, GeoJSON or (west, south, east, north), "
            f"got {region!r}: {error}",
            expected="region",
        ) from error


def _geojson(region: Place) -> Any:
    if isinstance(region, str):
        is_json = region.lstrip().startswith("{")
        region = json.loads(region) if is_json else shapely.from_wkt(region)
    if isinstance(region, dict) or hasattr(region, "__geo_interface__"):
        region = _shape(region)
    if isinstance(region, BaseGeometry):
        return _drawn(region)
    bounds = [_number(bound) for bound in region]
    if len(bounds) != 4:
        raise InputError(
            f"expected west, south, east and north, got {len(bounds)} numbers", expected="box"
        )
    return {"bbox": bounds}


def _shape(region: Any) -> BaseGeometry:
    """The shape of a geometry or a feature; of a collection of features, their union."""
    if getattr(getattr(region, "crs", None), "is_geographic", True) is False:
        raise InputError(
            f"expected longitudes and latitudes, got the projection {region.crs.name!r}; write "
            ".to_crs(4326) first",
            expected="crs",
        )
    mapping = region if isinstance(region, dict) else region.__geo_interface__
    if mapping.get("type") != "FeatureCollection":
        return shapely.geometry.shape(mapping)
    drawn = [
        feature["geometry"] for feature in mapping["features"] if feature["geometry"] is not None
    ]
    return shapely.union_all([shapely.geometry.shape(geometry) for geometry in drawn])


def _drawn(shape: BaseGeometry) -> Any:
    if shape.is_empty or shape.geom_type == "GeometryCollection":
        raise InputError(
            f"expected one geometry with coordinates, got {shape.wkt}", expected="geometry"
        )
    if not np.isfinite(shapely.get_coordinates(shape)).all():
        raise InputError("expected finite coordinates", expected="finite_coordinates")
    return json.loads(shapely.to_geojson(shapely.force_2d(shape)))
