"""Selects rows of an answer: the first ones, unordered or by a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError
from galileo.model.feature_metadata import with_metadata
from galileo.model.schema import Schema, nearest_name

TIME = "time"
ORDERED_ROWS_MAX = 1_000_000
"""Largest limit with an order; a node buffers so many observations."""


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Columns, limit and order of observations.

    Attributes:
        columns: of the answer, in this order; empty: all.
        limit: most observations; None: no limit.
        order_by: a column, such as "time" (earliest first), with "-" before it for the descending
            order ("-time": latest first), or "" (no order). Null is last in both. With a limit it
            selects which observations are first. The order of equal ones is not defined.
    """

    columns: tuple[str, ...] = ()
    limit: int | None = None
    order_by: str = ""

    @property
    def is_top(self) -> bool:
        """Whether all observations must be read to select the first ones."""
        return self.limit is not None and bool(self.order_by)

    def check(self, schema: Schema) -> None:
        """Raise InputError if a column, the limit or the order is invalid."""
        known = schema.observation_schema.names
        for number, name in enumerate(self.columns):
            if name not in known:
                close = nearest_name(str(name), known)
                hint = f"; did you mean {close!r}?" if close else "."
                raise InputError(
                    f"dataset {schema.name!r} has no column {name!r}{hint} Its columns are "
                    f"{', '.join(known)}",
                    parameter="columns",
                )
            if name in self.columns[:number]:
                raise InputError(
                    f"expected each column once, got {name!r} twice", parameter="columns"
                )
        if self.order_by and self.ordered not in known:
            close = nearest_name(self.ordered, known)
            hint = f"did you mean {close!r}?" if close else f"the columns are {', '.join(known)}"
            raise InputError(
                "expected an order as a column, such as 'time', or '-time' for the latest first, "
                f"got {self.order_by!r}; {hint}",
                parameter="order_by",
            )
        if self.limit is not None and self.is_top and self.limit > ORDERED_ROWS_MAX:
            raise InputError(
                f"expected a limit of at most {ORDERED_ROWS_MAX:,} observations in an order, got "
                f"{self.limit:,}; leave out the limit or the order",
                parameter="limit",
                bound=ORDERED_ROWS_MAX,
            )

    @property
    def ordered(self) -> str:
        """The column of the order."""
        return self.order_by.removeprefix("-")

    @property
    def is_descending(self) -> bool:
        return self.order_by.startswith("-")

    def names(self, schema: Schema) -> tuple[str, ...]:
        """The columns of the answer."""
        return self.columns or tuple(schema.observation_schema.names)

    def needed(self, schema: Schema) -> tuple[str, ...]:
        """The columns of the answer and those of the order."""
        names = self.names(schema)
        return needed_columns(names, self.ordered) if self.is_top else names

    def arrow_schema(self, schema: Schema) -> pa.Schema:
        """Of the answer."""
        whole = schema.observation_schema
        return pa.schema([whole.field(name) for name in self.names(schema)])

    def described_schema(self, schema: Schema) -> pa.Schema:
        """Of the answer as people get it: columns have the metadata of their features."""
        return with_metadata(self.arrow_schema(schema), schema.features)


def row_options(columns: Sequence[str], limit: int | None, order_by: str) -> RowOptions:
    """The options of a call.

    Raises:
        InputError: a value has the wrong type, or the limit is less than 0.
    """
    if isinstance(columns, str):
        raise InputError(f"expected a list of columns, such as [{columns!r}], got {columns!r}")
    check_limit(limit)
    if not isinstance(order_by, str):
        raise InputError(f"expected an order such as 'time', got {order_by!r}")
    return RowOptions(tuple(columns), limit, order_by)


def needed_columns(names: Sequence[str], ordered: str) -> tuple[str, ...]:
    """The columns, and the one of the order."""
    return (*names, ordered) if ordered and ordered not in names else tuple(names)


def check_limit(limit: int | None) -> None:
    """Raise InputError if a limit is no number of rows."""
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 0:
        raise InputError(f"expected a limit of 0 or more, or None for all, got {limit!r}")


class FirstRows:
    """Selects the first rows from tables that come in any order.

    With a limit and an order it buffers up to twice the limit of rows, at least `held_min`; else
    none.
    """

    def __init__(self, options: RowOptions, *, held_min: int = 65_536) -> None:
        self._held_min = held_min
        self._options = options
        self._left = options.limit
        self._held: list[pa.Table] = []
        self._rows = 0
        self._edge: pa.Scalar | None = None

    @property
    def left(self) -> int | None:
        """How many further rows are needed; None: all."""
        return self._left

    def add(self, table: pa.Table) -> pa.Table | None:
        """Add a table; return rows that are certainly among the first; None if there are none.

        Args:
            table: with the column of the order, if the options have a limit and an order.
        """
        if self._left is None:
            return table
        if not self._options.is_top:
            first = table.slice(0, self._left)
            self._left -= first.num_rows
            return first
        if self._edge is not None:
            table = table.filter(self._is_before(table.column(self._options.ordered)))
        if self._left and table.num_rows:
            self._held.append(table)
            self._rows += table.num_rows
            if self._rows >= 2 * self._left + self._held_min:
                self._compact(self._left)
        return None

    def rest(self) -> pa.Table | None:
        """The buffered rows in order; None if there are none."""
        if not self._held or not self._left:
            return None
        self._compact(self._left)
        return self._held[0]

    def may_hold(self, labels: pa.Table | pa.RecordBatch, width_us: int) -> pa.Array | None:
        """Mask of labels, of time buckets of a width, that may hold a selected row; None: all."""
        name = self._options.ordered
        if self._edge is None or (name != TIME and name not in labels.schema.names):
            return None
        if name != TIME:
            return self._is_before(labels.column(name).cast(self._edge.type))
        buckets = labels.column("bucket")
        if self._options.is_descending:
            buckets = pc.add(buckets, pa.scalar(width_us - 1, pa.duration("us")))
        return self._is_before(buckets)

    def _is_before(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Mask of values before that of the last buffered row."""
        assert self._edge is not None
        if not self._edge.is_valid:
            return pc.is_valid(column)
        compare = pc.greater if self._options.is_descending else pc.less
        return compare(column, self._edge).fill_null(False)

    def _compact(self, limit: int) -> None:
        top = in_order(pa.concat_tables(self._held), self._options).slice(0, limit)
        self._held, self._rows = [top], top.num_rows
        if top.num_rows == limit:
            self._edge = top.column(self._options.ordered)[limit - 1]


def in_order(table: pa.Table, options: RowOptions) -> pa.Table:
    """The rows in the order of the options; stable."""
    if not options.order_by:
        return table
    direction = "descending" if options.is_descending else "ascending"
    return table.take(pc.sort_indices(table, sort_keys=[(options.ordered, direction)]))
