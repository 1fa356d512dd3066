"""Columns of tables in a template, such as `officers.place`: values of a subscription's row.

A channel looks up a row for each subscription, which has the key of the row as parameters. For the
index of subscriptions, the columns are parameters like others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from galileo.errors import InputError
from galileo.model.enrichment import Lookup
from galileo.model.table import Table
from galileo.query.subscriptions.parameters import CONDITION, KEYS, ParameterPlace, property_names


def add_columns(
    tree: Any, lookups: Sequence[Lookup], tables: Mapping[str, Table]
) -> tuple[Lookup, ...]:
    """The lookups, each with the columns that a template names.

    Args:
        tree: CQL2 JSON values of the template.
        lookups: with names of parameters in place of columns of observations.
        tables: by name.

    Raises:
        InputError: the template names no column of a table, one that the table lacks, or one of
            another table.
    """
    columns: dict[str, list[str]] = {step.table: [] for step in lookups}
    for name in dict.fromkeys(property_names(tree)):
        table, dot, column = name.rpartition(".")
        if dot and table not in columns:
            raise _wrong(f"expected features, and columns of the tables in lookup=, got {name}")
        if dot:
            columns[table].append(column)
    return tuple(_with_columns(step, tables[step.table], columns[step.table]) for step in lookups)


def _with_columns(step: Lookup, table: Table, columns: Sequence[str]) -> Lookup:
    head, known = f"{step.table}.", [name for name, _ in table.columns]
    unknown = [name for name in columns if name not in known]
    if unknown or not columns:
        raise _wrong(
            f"expected a template with columns of table {table.name!r}, "
            f"{', '.join(head + name for name in known)}, got "
            f"{', '.join(head + name for name in unknown) or 'none'}"
        )
    on = step.on if isinstance(step.on, str) else dict(step.on)
    _check_key(step, table)
    return Lookup(step.table, on, columns=columns)


def _check_key(step: Lookup, table: Table) -> None:
    key = table.key_columns
    given = key[:1] if isinstance(step.on, str) else [column for _, column in step.on]
    if sorted(given) != sorted(key):
        raise _wrong(
            f"expected lookup= with a parameter for each column of the key of table "
            f"{table.name!r} ({', '.join(key)}), got one for {', '.join(given)}"
        )


def column_names(lookups: Sequence[Lookup]) -> tuple[str, ...]:
    """The names in a template of the columns that lookups add."""
    return tuple(f"{step.table}.{column}" for step in lookups for column in step.columns)


def check_columns(
    places: Mapping[str, Set[ParameterPlace]],
    lookups: Sequence[Lookup],
    tables: Mapping[str, Table],
) -> None:
    """Raises InputError if columns of tables stand where other types or conditions are expected."""
    if lookups and any(CONDITION in several for several in places.values()):
        raise _wrong(
            "expected a template whose conditions are written out, since it has columns of tables, "
            "got a parameter or a column in the place of a condition"
        )
    for step in lookups:
        kinds = dict(tables[step.table].columns)
        for column in step.columns:
            name = f"{step.table}.{column}"
            expected = next(iter(places[name])).type
            if kinds[column] != expected and (kinds[column], expected) != ("int", "float"):
                raise _wrong(f"expected a {expected} in the place of {name}, got {kinds[column]}")


def key_parameters(
    lookups: Sequence[Lookup], tables: Mapping[str, Table]
) -> Iterator[tuple[str, ParameterPlace]]:
    """The parameters with keys of rows, and what each is."""
    for step in lookups:
        kinds, key = dict(tables[step.table].columns), tables[step.table].key_columns
        for name, column in [(step.on, key[0])] if isinstance(step.on, str) else step.on:
            yield name, KEYS[kinds[column]]


def own_parameters(
    places: Mapping[str, Set[ParameterPlace]],
    lookups: Sequence[Lookup],
    tables: Mapping[str, Table],
) -> dict[str, frozenset[ParameterPlace]]:
    """The places of the parameters that subscriptions have: of the template, then those of keys.

    Raises:
        InputError: a key is of another type than its parameter.
    """
    columns = column_names(lookups)
    own = {name: frozenset(several) for name, several in places.items() if name not in columns}
    for name, place in key_parameters(lookups, tables):
        known = own.setdefault(name, frozenset([place]))
        kind = next(iter(known)).type
        if kind != place.type:
            raise _wrong(
                f"expected a parameter of type {place.type} as the key of a row, got :{name}, "
                f"which is a {kind}; give the key a parameter of its own"
            )
    return own


def _wrong(message: str) -> InputError:
    return InputError(message, parameter="lookup")
