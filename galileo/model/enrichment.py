"""Enrichment: steps that add rows of tables to observations.

`Lookup` finds one row by its key; `Within`, `Near` and `Nearest` find any number of rows by their
geometries. `galileo.query.joins` carries the steps out.

What a step adds is known from the table alone. `Lookup` adds columns such as `ratings.stars`, which
are null where there is no row. The others add one column with the name of the table, a list of
structs, which is empty where there is none. By default all columns of the table come along but
those that it is joined by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from galileo.errors import InputError, reason_of
from galileo.geo import geoarrow
from galileo.geo.circles import distance_m
from galileo.model.schema import FEATURE_NAME, dataset_name
from galileo.model.table import Table

STEPS_MAX = 16
COUNT_MAX = 1_000
"""Rows of `Nearest`."""
PLACE = ("latitude", "longitude")
TIME = "time"
DISTANCE = "distance"
"""The member with the distance from the observation, metres."""


@dataclass(frozen=True, slots=True, init=False)
class Lookup:
    """The row of a table whose key an observation has, or the version of it that is valid.

    Args:
        table: its name.
        on: the column of the observations with the key; if the key has several columns, a dict of
            the columns of the observations and those of the key.
        as_of: the last column of the key, a time: of the rows whose other columns of the key are
            equal, the one with the latest such time at or before that of the observation.
        until: with `as_of`, a column with the time before which the row is valid; null is no end.
        columns: of the table that are added; none: all but those in `on`.

    Example:
        >>> galileo.Lookup("calibrations", on="station", as_of="valid_from").table
        'calibrations'
    """

    table: str
    on: str | tuple[tuple[str, str], ...]
    as_of: str
    until: str
    columns: tuple[str, ...]

    def __init__(
        self,
        table: str,
        on: str | Mapping[str, str],
        *,
        as_of: str = "",
        until: str = "",
        columns: Sequence[str] = (),
    ) -> None:
        object.__setattr__(self, "table", dataset_name(table))
        object.__setattr__(self, "on", _on(on))
        object.__setattr__(self, "as_of", _text(as_of, "as_of"))
        object.__setattr__(self, "until", _text(until, "until"))
        object.__setattr__(self, "columns", _columns(columns))
        if until and not as_of:
            raise _wrong(f"expected until={until!r} together with as_of", "until")


@dataclass(frozen=True, slots=True, init=False)
class Within:
    """The rows of a table in whose geometry the place of an observation lies, edges included.

    Args:
        table: its name; of its geometries the first column counts.
        columns: of the table that are added; none: all but the geometry.

    Example:
        >>> galileo.Within("districts", columns=["name"]).columns
        ('name',)
    """

    table: str
    columns: tuple[str, ...]

    def __init__(self, table: str, *, columns: Sequence[str] = ()) -> None:
        object.__setattr__(self, "table", dataset_name(table))
        object.__setattr__(self, "columns", _columns(columns))


@dataclass(frozen=True, slots=True, init=False)
class Near:
    """The rows of a table whose points are within a distance of an observation, nearest first.

    Rows whose geometry is no point are never near.

    Args:
        table: its name; of its geometries the first column counts.
        within: metres, or a text such as "20km".
        columns: of the table that are added, with `distance` in metres behind them; none: all but
            the geometry.

    Example:
        >>> galileo.Near("officers", within="20km").within_m
        20000.0
    """

    table: str
    within_m: float
    columns: tuple[str, ...]

    def __init__(self, table: str, *, within: str | float, columns: Sequence[str] = ()) -> None:
        object.__setattr__(self, "table", dataset_name(table))
        object.__setattr__(self, "within_m", float(distance_m(within)))
        object.__setattr__(self, "columns", _columns(columns))


@dataclass(frozen=True, slots=True, init=False)
class Nearest:
    """The rows of a table whose points are nearest to an observation, nearest first.

    Args:
        table: as of `Near`.
        count: most rows, up to 1,000.
        within: the greatest distance, as of `Near`.
        columns: as of `Near`.

    Example:
        >>> galileo.Nearest("shelters", count=3, within="20km").count
        3
    """

    table: str
    count: int
    within_m: float
    columns: tuple[str, ...]

    def __init__(
        self, table: str, *, count: int, within: str | float, columns: Sequence[str] = ()
    ) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= COUNT_MAX:
            raise _wrong(f"expected a count from 1 to {COUNT_MAX:,}, got {count!r}", "count")
        object.__setattr__(self, "table", dataset_name(table))
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "within_m", float(distance_m(within)))
        object.__setattr__(self, "columns", _columns(columns))


Step: TypeAlias = Lookup | Within | Near | Nearest
_KINDS: dict[str, Any] = {
    "lookup": Lookup,
    "within": Within,
    "near": Near,
    "nearest": Nearest,
}


def steps_of(enrich: Any) -> tuple[Step, ...]:
    """The steps of an argument, of which each has another table. Raises InputError."""
    is_list = isinstance(enrich, Sequence) and all(isinstance(step, Step) for step in enrich)
    if not is_list or len(enrich) > STEPS_MAX:
        raise _wrong(
            f"expected a list of at most {STEPS_MAX} steps, such as "
            f"[galileo.Lookup('ratings', on='country')], got {enrich!r:.200}",
            "enrich",
        )
    names = [step.table for step in enrich]
    if len(set(names)) < len(names):
        raise _wrong(f"expected each table in one step, got {', '.join(names)}", "enrich")
    return tuple(enrich)


def lookups_of(lookup: Any) -> tuple[Lookup, ...]:
    """The lookups of subscriptions, of an argument such as `{"officers": ":officer"}`.

    They are sorted by their tables. Their `on` has the names of parameters, without the colon.
    Raises InputError.
    """
    is_dict = isinstance(lookup, Mapping) and all(isinstance(name, str) for name in lookup)
    if not is_dict or len(lookup) > STEPS_MAX:
        raise _wrong_lookup(f"a dict of at most {STEPS_MAX} tables", lookup)
    return tuple(Lookup(table, _parameters(on)) for table, on in sorted(lookup.items()))


def lookups_to_dict(lookups: Iterable[Lookup]) -> dict[str, Any]:
    """The argument of `lookups_of`, as JSON values."""
    return {
        step.table: f":{step.on}"
        if isinstance(step.on, str)
        else {f":{name}": column for name, column in step.on}
        for step in lookups
    }


def _parameters(on: Any) -> str | dict[str, str]:
    """The parameter with the key of a table, or those with its columns, without their colons."""
    names = [on] if isinstance(on, str) else list(on) if isinstance(on, Mapping) else []
    for name in names:
        if not isinstance(name, str) or name[:1] != ":" or not FEATURE_NAME.fullmatch(name[1:]):
            raise _wrong_lookup("names of parameters, with their colons,", on)
    if isinstance(on, str):
        return on[1:]
    if not names or not all(isinstance(on[name], str) for name in names):
        raise _wrong_lookup("a parameter for each table, or for each column of its key,", on)
    return {name[1:]: on[name] for name in sorted(names)}


def _wrong_lookup(expected: str, got: Any) -> InputError:
    return _wrong(
        f"expected lookup= with {expected} such as {{'officers': ':officer'}}, or, if the key has "
        f"several columns, {{'limits': {{':station': 'station', ':kind': 'kind'}}}}, got "
        f"{got!r:.200}",
        "lookup",
    )


def step_to_dict(step: Step) -> dict[str, Any]:
    """A step as JSON values, which `step_from_dict` reads."""
    kind = next(name for name, kind in _KINDS.items() if type(step) is kind)
    raw: dict[str, Any] = {"step": kind, "table": step.table}
    if isinstance(step, Lookup):
        raw["on"] = step.on if isinstance(step.on, str) else dict(step.on)
        rest = {"as_of": step.as_of, "until": step.until}
        raw |= {name: value for name, value in rest.items() if value}
    elif isinstance(step, Nearest):
        raw |= {"count": step.count, "within": step.within_m}
    elif isinstance(step, Near):
        raw["within"] = step.within_m
    return raw | ({"columns": list(step.columns)} if step.columns else {})


def step_from_dict(raw: Any) -> Step:
    """The inverse of `step_to_dict`.

    Raises:
        InputError: it is no step.
    """
    expected = (
        'expected a step of an enrichment such as {"step": "lookup", "table": "ratings", "on": '
        f'"country"}}, of {", ".join(_KINDS)}'
    )
    if not isinstance(raw, dict) or raw.get("step") not in _KINDS:
        raise _wrong(f"{expected}, got {raw!r:.200}", "enrich")
    try:
        step: Step = _KINDS[raw["step"]](**{n: v for n, v in raw.items() if n != "step"})
    except TypeError as error:
        raise _wrong(f"{expected}: {reason_of(error)}", "enrich") from error
    return step


def check_steps(steps: Sequence[Step], observed: pa.Schema, tables: Mapping[str, Table]) -> None:
    """Checks that steps can be carried out.

    Args:
        steps: in their order.
        observed: the columns of the observations.
        tables: by name.

    Raises:
        InputError: a step does not fit its table or the observations, or a column would be there
            twice.
    """
    names = list(observed.names)
    for step in steps:
        table = tables[step.table]
        if isinstance(step, Lookup):
            _check_lookup(step, table, observed)
        elif has_distance(step) and DISTANCE in added_columns(step, table):
            raise _wrong(
                f"expected columns= without {DISTANCE!r}, which is the name of the distance in "
                f"what table {step.table!r} adds",
                "columns",
            )
        for field in step_fields(step, table):
            if field.name in names:
                raise _wrong(
                    f"expected a table whose name is no column, got {step.table!r}: there would be "
                    f"two columns {field.name!r}",
                    "enrich",
                )
            names.append(field.name)


def _check_lookup(step: Lookup, table: Table, observed: pa.Schema) -> None:
    kinds, key = dict(table.columns), table.key_columns
    is_last = step.as_of == key[-1] and kinds[key[-1]] == "time" and len(key) > 1
    if step.as_of and not is_last:
        raise _wrong(
            f"expected as_of= with the last column of the key of table {step.table!r}, a time "
            f"behind another column, got {step.as_of!r}",
            "as_of",
        )
    if step.until and kinds.get(step.until) != "time":
        raise _wrong(
            f"expected until= with a column of times of table {step.table!r}, got {step.until!r}",
            "until",
        )
    for column, name in lookup_columns(step, table).items():
        kind = table.arrow_schema.field(column).type
        if name not in observed.names or observed.field(name).type != kind:
            raise _wrong(
                f"expected a column of the observations with values as {column!r} of table "
                f"{step.table!r} has them ({kinds[column]}), got {name!r}",
                "on",
            )


def added_fields(steps: Iterable[Step], tables: Mapping[str, Table]) -> list[pa.Field]:
    """The columns that steps add to observations, in their order."""
    return [field for step in steps for field in step_fields(step, tables[step.table])]


def step_fields(step: Step, table: Table) -> list[pa.Field]:
    """The columns that a step adds: for a lookup one for each of `added_columns`; else a list."""
    members = _fields(table, added_columns(step, table))
    if isinstance(step, Lookup):
        return [field.with_name(f"{step.table}.{field.name}") for field in members]
    if has_distance(step):
        members.append(pa.field(DISTANCE, pa.float64()))
    return [pa.field(step.table, pa.list_(pa.struct(members)))]


def added_columns(step: Step, table: Table) -> tuple[str, ...]:
    """The columns of the table that a step adds. Raises InputError if it has no such columns."""
    if isinstance(step, Lookup):
        joined = set(lookup_columns(step, table))
    else:
        joined = {geometry_column(step, table)}
    known = [name for name, _ in table.columns]
    unknown = [name for name in step.columns if name not in known]
    if unknown:
        raise _wrong(
            f"expected columns of table {table.name!r} ({', '.join(known)}), got "
            f"{', '.join(unknown)}",
            "columns",
        )
    return step.columns or tuple(name for name in known if name not in joined)


def has_distance(step: Step) -> bool:
    """Whether what a step adds has distances."""
    return isinstance(step, Near | Nearest)


def lookup_columns(step: Lookup, table: Table) -> dict[str, str]:
    """The column of the observations for each column of the key but `as_of`, in its order.

    Raises:
        InputError: `on` names others.
    """
    names = [name for name in table.key_columns if name != step.as_of]
    given = {names[0]: step.on} if isinstance(step.on, str) else {key: on for on, key in step.on}
    if given.keys() != set(names):
        raise _wrong(
            f"expected on= with a column of the observations for each of {', '.join(names)}, the "
            f"key of table {step.table!r}, got {step.on!r}",
            "on",
        )
    return {name: given[name] for name in names}


def geometry_column(step: Step, table: Table) -> str:
    """The column of geometries by which a step joins, the first one.

    Raises:
        InputError: the table has none.
    """
    if not table.geometry_columns:
        raise _wrong(
            f"expected a table with a column of the type geometry, got {step.table!r}", "table"
        )
    return table.geometry_columns[0]


def needed_columns(steps: Iterable[Step]) -> tuple[str, ...]:
    """The columns of observations that steps read."""
    names: list[str] = []
    for step in steps:
        if not isinstance(step, Lookup):
            names += PLACE
            continue
        names += [step.on] if isinstance(step.on, str) else [name for name, _ in step.on]
        names += [TIME] if step.as_of else []
    return tuple(dict.fromkeys(names))


def _fields(table: Table, names: Sequence[str]) -> list[pa.Field]:
    """Columns of a table as they are delivered; geometries are marked as such."""
    whole = table.arrow_schema
    return [
        pa.field(name, whole.field(name).type, metadata=geoarrow.FIELD_METADATA)
        if name in table.geometry_columns
        else pa.field(name, whole.field(name).type)
        for name in names
    ]


def _on(on: Any) -> str | tuple[tuple[str, str], ...]:
    if isinstance(on, str) and on:
        return on
    if (
        isinstance(on, Mapping)
        and on
        and all(isinstance(name, str) for p in on.items() for name in p)
    ):
        return tuple(on.items())
    raise _wrong(
        "expected on= with the column of the observations that has the key, or a dict of such and "
        f"the columns of the key, got {on!r}",
        "on",
    )


def _text(value: Any, parameter: str) -> str:
    if not isinstance(value, str):
        raise _wrong(f"expected {parameter}= with the name of a column, got {value!r}", parameter)
    return value


def _columns(columns: Any) -> tuple[str, ...]:
    is_list = not isinstance(columns, str) and isinstance(columns, Sequence)
    if (
        not is_list
        or not all(isinstance(name, str) for name in columns)
        or len(set(columns)) < len(columns)
    ):
        raise _wrong(
            f"expected a list of different columns, such as ['name'], got {columns!r}", "columns"
        )
    return tuple(columns)


def _wrong(message: str, parameter: str) -> InputError:
    return InputError(message, parameter=parameter)
