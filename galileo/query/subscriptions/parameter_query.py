"""A continuous query with parameters, bound to the schema of its dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, final

import numpy as np
import pyarrow as pa
import shapely

from galileo.arrays import one_array
from galileo.errors import InputError, InvalidObservations, UnknownProperty
from galileo.geo.regions import Mask
from galileo.model.channel import BROKER, ID, Channel
from galileo.model.enrichment import Lookup
from galileo.model.schema import DELETED, Schema
from galileo.model.table import ColumnType, Table
from galileo.query.binding import bind
from galileo.query.query import Query, pointing
from galileo.query.subscriptions.conjuncts import SimplePart, constant_part, simple_parts
from galileo.query.subscriptions.distinct import distinct_rows
from galileo.query.subscriptions.lookups import (
    add_columns,
    check_columns,
    column_names,
    key_parameters,
    own_parameters,
)
from galileo.query.subscriptions.parameters import (
    CENTRE,
    CONDITION,
    NAME,
    NUMBER,
    REGION,
    SINGLE,
    ParameterPlace,
    check_names,
    places_of,
    property_names,
)
from galileo.query.subscriptions.value_checks import Fault, first_fault, fitting
from galileo.query.template import Template, tree_of, with_parameters


@final
class ParameterQuery:
    """A template of one dataset, whose parameters have types; immutable.

    All numbers are of type "float", because queries compare numbers as doubles. Distances are
    metres.

    Where it names columns of tables, such as `officers.place`, these are parameters whose values a
    subscription gets from its row of the table (`galileo.query.lookup_index`).

    Attributes:
        text: of the template.
        schema: of the dataset.
        parameters: names and types of what subscriptions have, in the order of the text.
        places: of each parameter of the template, columns of tables among them.
        lookups: the tables whose rows subscriptions have, and the columns that the template names.
        constant: what every match satisfies, whatever the values: it names no parameter.
        features: those that some values make it read, in schema order.
        simple: the parts with parameters of a conjunction of comparisons, regions and circles; None
            for any other template.

    Args:
        text: CQL2 text with parameters, as of `Template`.
        schema: of the dataset.
        lookups: for each table, which parameters are the key of the row.
        tables: of the lookups, by name.

    Raises:
        QuerySyntaxError: the text does not parse.
        UnknownProperty: a property that the schema lacks.
        UnsupportedQuery: a condition without a meaning.
        InputError: no parameter, too many, or one of which the name or the type is not clear; or a
            lookup does not fit its table or the template.
    """

    __slots__ = (
        "_own",
        "_template",
        "constant",
        "features",
        "lookups",
        "parameters",
        "places",
        "schema",
        "simple",
        "text",
    )

    def __init__(
        self,
        text: str,
        schema: Schema,
        lookups: Sequence[Lookup] = (),
        tables: Mapping[str, Table] = MappingProxyType({}),
    ) -> None:
        template = Template(text)
        self.lookups = add_columns(tree_of(template), lookups, tables)
        check_names({*template.parameters, *(name for name, _ in key_parameters(lookups, tables))})
        self._template = with_parameters(template, column_names(self.lookups))
        tree = tree_of(self._template)
        self.text, self.schema = text, schema
        self.places = places_of(self._template, schema)
        check_columns(self.places, self.lookups, tables)
        self._own = own_parameters(self.places, self.lookups, tables)
        self.parameters: tuple[tuple[str, ColumnType], ...] = tuple(
            (name, next(iter(places)).type) for name, places in self._own.items()
        )
        try:
            self.bind({name: _sample(places) for name, places in self.places.items()})
        except UnknownProperty as error:
            raise pointing(error, text) from None
        self.constant = Query(schema, bind(constant_part(tree), schema))
        self.features = _features(tree, schema, self.places)
        self.simple: tuple[SimplePart, ...] | None = _simple_parts(tree, schema, self.places)

    @staticmethod
    def of(channel: Channel) -> ParameterQuery:
        """The template of a channel of a cluster."""
        assert channel.schema is not None, "a channel without a dataset"
        return ParameterQuery(
            channel.template, channel.schema, channel.lookup, channel.reference_tables
        )

    def bind(self, values: Mapping[str, Any]) -> Query:
        """The query with these values, as `Template` takes them.

        Raises:
            InputError: a value does not fit.
        """
        return Query(self.schema, bind(self._template(**values).tree, self.schema))

    def bind_row(self, row: Mapping[str, Any]) -> Query:
        """The query with the values of a row of subscriptions, in which geometries are WKB.

        Columns of tables that the row lacks have some value that fits.
        """
        values = {name: row.get(name, _sample(places)) for name, places in self.places.items()}
        for name, places in self.places.items():
            if name in row and next(iter(places)).type == "geometry":
                values[name] = shapely.from_wkb(row[name])
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
        permitted = self.permits(rows)
        if permitted.all():
            return
        row = int(np.argmin(permitted))
        fault = self._fault(rows.slice(row, 1))
        subscription = rows.column(ID)[row].as_py()
        raise InvalidObservations(
            f"expected {fault.expected} for subscription {subscription!r}, got {fault.got}",
            expected="parameter",
            row=row,
            subscription=subscription,
        )

    def _fault(self, row: pa.Table) -> Fault:
        """The first fault of a row that is not permitted: of a value, or of all together."""
        for name in (BROKER, *self._own):
            values = one_array(row.column(name))
            if (fault := first_fault(values, self._own.get(name, {NAME}), name=name)) is not None:
                return fault
        own = [name for name in self.places if name in row.column_names]
        [(_, misfit)] = self._misfits(row.select(own))
        expected = f"parameters that make a query of dataset {self.schema.name!r}"
        return Fault(0, expected, f"a fault: {misfit.message}")

    def _misfits(self, rows: pa.Table) -> Iterator[tuple[int, InputError]]:
        """The numbers of rows whose values are no query together, and why."""
        for number, values in enumerate(rows.to_pylist()):
            try:
                self.bind_row(values)
            except InputError as error:
                yield number, error

    def fits(self, rows: pa.Table) -> Mask:
        """Mask of the subscriptions whose row is there with values that fit, which match something.

        Args:
            rows: with a column for each of `places`.
        """
        columns = {name: one_array(rows.column(name)) for name in self.places}
        return self._fit(columns, column_names(self.lookups))

    def permits(self, rows: pa.Table) -> Mask:
        """Mask of the rows that `check` permits."""
        columns = {name: one_array(rows.column(name)) for name in (BROKER, *self._own)}
        mask = self._fit(columns, columns)
        if DELETED in rows.column_names:
            mask |= np.asarray(one_array(rows.column(DELETED)), dtype=np.bool_)
        return mask

    def _fit(self, columns: Mapping[str, pa.Array], checked: Iterable[str]) -> Mask:
        """Mask of the rows in which the values of the checked columns, and all together, fit."""
        places = {**self.places, **self._own}
        masks = [fitting(columns[name], places.get(name, {NAME})) for name in checked]
        mask: Mask = np.logical_and.reduce(masks)
        together = {name: columns[name] for name in self.places if name in columns}
        numbers = np.flatnonzero(mask)
        if self.simple is None and together and len(numbers):
            values = pa.table(together).take(numbers)
            first, codes = distinct_rows([one_array(column) for column in values.columns])
            wrong = [number for number, _ in self._misfits(values.take(first))]
            mask[numbers] = ~np.isin(codes, wrong)
        return mask


def _sample(places: Set[ParameterPlace]) -> Any:
    """A value that fits all places of a parameter; a geohash is no condition."""
    return (CONDITION if CONDITION in places else next(iter(places))).sample


def _features(
    tree: Any, schema: Schema, places: Mapping[str, Set[ParameterPlace]]
) -> tuple[str, ...]:
    if any(CONDITION in several for several in places.values()):
        return tuple(feature.name for feature in schema.indexed)
    named = set(property_names(tree))
    return tuple(feature.name for feature in schema.features if feature.name in named)


def _simple_parts(
    tree: Any, schema: Schema, places: Mapping[str, Set[ParameterPlace]]
) -> tuple[SimplePart, ...] | None:
    """The simple parts; None, too, if a parameter has different fields in two of its places."""
    pairs = ({REGION, CENTRE}, {NUMBER, SINGLE})
    is_both = any(pair <= several for several in places.values() for pair in pairs)
    return None if is_both else simple_parts(tree, schema)
