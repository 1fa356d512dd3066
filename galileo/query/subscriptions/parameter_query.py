"""A continuous query with parameters, bound to the schema of its dataset."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, final

import numpy as np
import pyarrow as pa
import shapely

from galileo.arrays import one_array
from galileo.errors import InputError, InvalidObservations, UnknownProperty
from galileo.model.channel import BROKER, ID
from galileo.model.schema import Schema
from galileo.model.table import DELETED, ColumnType
from galileo.query.binding import bind
from galileo.query.query import Query, pointing
from galileo.query.subscriptions.conjuncts import SimplePart, constant_part, simple_parts
from galileo.query.subscriptions.distinct import distinct_rows
from galileo.query.subscriptions.parameters import (
    CENTRE,
    CONDITION,
    NAME,
    REGION,
    Place,
    places_of,
    property_names,
)
from galileo.query.subscriptions.value_checks import Fault, first_fault
from galileo.query.template import Template, tree_of


@final
class ParameterQuery:
    """A template of one dataset, whose parameters have types; immutable.

    All numbers are of type "float", because queries compare numbers as doubles. Distances are
    metres.

    Attributes:
        text: of the template.
        schema: of the dataset.
        parameters: names and types, in the order of the text.
        places: of each parameter.
        constant: what every match satisfies, whatever the values: it names no parameter.
        features: those that some values make it read, in schema order.
        simple: the parts with parameters of a conjunction of comparisons, regions and circles; None
            for any other template.

    Args:
        text: CQL2 text with parameters, as of `Template`.
        schema: of the dataset.

    Raises:
        QuerySyntaxError: the text does not parse.
        UnknownProperty: a property that the schema lacks.
        UnsupportedQuery: a condition without a meaning.
        InputError: no parameter, too many, or one of which the name or the type is not clear.
    """

    __slots__ = (
        "_template",
        "constant",
        "features",
        "parameters",
        "places",
        "schema",
        "simple",
        "text",
    )

    def __init__(self, text: str, schema: Schema) -> None:
        self._template = Template(text)
        tree = tree_of(self._template)
        self.text, self.schema = text, schema
        self.places = places_of(self._template, schema)
        self.parameters: tuple[tuple[str, ColumnType], ...] = tuple(
            (name, next(iter(places)).type) for name, places in self.places.items()
        )
        try:
            self.bind({name: _sample(places) for name, places in self.places.items()})
        except UnknownProperty as error:
            raise pointing(error, text) from None
        self.constant = Query(schema, bind(constant_part(tree), schema))
        self.features = _features(tree, schema, self.places)
        self.simple: tuple[SimplePart, ...] | None = _simple_parts(tree, schema, self.places)

    def bind(self, values: Mapping[str, Any]) -> Query:
        """The query with these values, as `Template` takes them.

        Raises:
            InputError: a value does not fit.
        """
        return Query(self.schema, bind(self._template(**values).tree, self.schema))

    def bind_row(self, row: Mapping[str, Any]) -> Query:
        """The query with the values of a row of subscriptions, in which geometries are WKB."""
        values = {name: row[name] for name, _ in self.parameters}
        for name, kind in self.parameters:
            if kind == "geometry":
                values[name] = shapely.from_wkb(values[name])
        return self.bind(values)

    def check(self, rows: pa.Table) -> None:
        """Check the values of subscriptions; rows that delete some have none.

        Args:
            rows: with `id`, `broker` and the parameters, of the types of a table; perhaps
                `deleted`.

        Raises:
            InvalidObservations: a value is null or does not fit; the message names the first such
                subscription.
        """
        columns = {name: one_array(rows.column(name)) for name in (BROKER, *self.places)}
        numbers = np.arange(rows.num_rows)
        if DELETED in rows.column_names:
            numbers = np.flatnonzero(~np.asarray(one_array(rows.column(DELETED)), dtype=np.bool_))
            columns = {name: values.take(numbers) for name, values in columns.items()}
        fault = self._first_fault(columns)
        if fault is not None:
            row = int(numbers[fault.row])
            subscription = rows.column(ID)[row].as_py()
            raise InvalidObservations(
                f"expected {fault.expected} for subscription {subscription!r}, got {fault.got}",
                expected="parameter",
                row=row,
                subscription=subscription,
            )

    def _first_fault(self, columns: dict[str, pa.Array]) -> Fault | None:
        faults = [
            fault
            for name, values in columns.items()
            if (fault := first_fault(values, self.places.get(name, {NAME}), name=name))
        ]
        first = min(faults, key=lambda fault: fault.row, default=None)
        if self.simple is not None:
            return first
        until = first.row if first else len(next(iter(columns.values())))
        earlier = {name: columns[name][:until] for name in self.places}
        return self._first_misfit(earlier) or first

    def _first_misfit(self, columns: dict[str, pa.Array]) -> Fault | None:
        """The first row whose values, each of which fits, are no query of the dataset together."""
        rows, _ = distinct_rows(list(columns.values()))
        distinct = pa.table(columns).take(rows).to_pylist()
        for row, values in zip(rows.tolist(), distinct, strict=True):
            try:
                self.bind_row(values)
            except InputError as error:
                expected = f"parameters that make a query of dataset {self.schema.name!r}"
                return Fault(row, expected, f"a fault: {error.message}")
        return None


def _sample(places: Set[Place]) -> Any:
    """A value that fits all places of a parameter; a geohash is no condition."""
    return (CONDITION if CONDITION in places else next(iter(places))).sample


def _features(tree: Any, schema: Schema, places: Mapping[str, Set[Place]]) -> tuple[str, ...]:
    if any(CONDITION in several for several in places.values()):
        return tuple(feature.name for feature in schema.indexed)
    named = set(property_names(tree))
    return tuple(feature.name for feature in schema.features if feature.name in named)


def _simple_parts(
    tree: Any, schema: Schema, places: Mapping[str, Set[Place]]
) -> tuple[SimplePart, ...] | None:
    is_both = any({REGION, CENTRE} <= several for several in places.values())
    return None if is_both else simple_parts(tree, schema)
