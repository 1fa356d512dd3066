"""The index of subscriptions that have rows of tables, such as the officer whom each is about.

What matches is a *joined* subscription: its own parameters, and what the template names of its row.
The index of these follows both sides. `apply` takes changes of subscriptions, and `join` brings all
of them up to date with the tables, of which each state is an immutable value. Each row of it has
the number of the state that it came with. So a subscription is joined again if this number is
another one than when it was last joined, whatever has happened to the table in between.

Where changes count as news, these numbers say too little: a table that is read anew has other ones,
though none of its rows was stored. There the caller has the keys that changed between two cursors.
Of these and the changes of subscriptions, `joined_changes` makes changes of joined subscriptions,
which `apply` takes.

A subscription without a row, or whose row has no value that fits the template, matches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import one_array
from galileo.model.channel import ID
from galileo.model.enrichment import lookup_columns
from galileo.model.schema import DELETED
from galileo.model.table import Table
from galileo.query.joins import Reference, are_among, enrich, hashes_of
from galileo.query.subscriptions import ParameterQuery, SubscriptionIndex
from galileo.query.subscriptions.lookups import column_names

_Numbers: TypeAlias = npt.NDArray[np.int64]
NO_ROW, NOT_JOINED = 0, -1
"""In place of the number of a row."""


class LookupIndex(SubscriptionIndex):
    """Subscriptions of one template that names columns of tables; not thread-safe.

    Args:
        query: the template.
        subscriptions: the table of the subscriptions.
        tables: of the lookups, by name.
    """

    def __init__(
        self, query: ParameterQuery, subscriptions: Table, tables: Mapping[str, Table]
    ) -> None:
        super().__init__(query)
        self._keys = {
            step.table: lookup_columns(step, tables[step.table]) for step in query.lookups
        }
        self._rows = subscriptions.arrow_schema.empty_table()
        self._ids = hashes_of([one_array(self._rows.column(ID))])
        self._hashes = self._key_hashes(self._rows)
        self._numbers = {name: np.empty(0, dtype=np.int64) for name in self._keys}
        self._states: list[int] = []

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    @property
    def nbytes(self) -> int:
        """Size in memory, about."""
        arrays = [self._ids, *self._hashes.values(), *self._numbers.values()]
        return super().nbytes + int(self._rows.nbytes) + sum(array.nbytes for array in arrays)

    def apply(self, changes: pa.Table) -> None:
        """Add, replace and delete subscriptions.

        Args:
            changes: of `joined_changes`; or as of `SubscriptionIndex.apply`, without the columns of
                tables, and then they match nothing until they are joined.
        """
        if changes.num_rows == 0:
            return
        is_gone = np.asarray(one_array(changes.column(DELETED)), dtype=np.bool_)
        present = changes.filter(pa.array(~is_gone))
        matches = np.zeros(changes.num_rows, dtype=np.bool_)
        if set(column_names(self.query.lookups)).issubset(changes.column_names):
            matches[~is_gone] = self.query.fits(present)
        place = changes.column_names.index(DELETED)
        super().apply(changes.set_column(place, DELETED, pa.array(~matches)))
        changed = hashes_of([one_array(changes.column(ID))])
        kept = ~are_among(self._ids, changed)
        added = present.select(self._rows.column_names)
        self._rows = pa.concat_tables([self._rows.filter(pa.array(kept)), added]).combine_chunks()
        ids, hashes = hashes_of([one_array(added.column(ID))]), self._key_hashes(added)
        self._ids = np.concatenate([self._ids[kept], ids])
        new = np.full(added.num_rows, NOT_JOINED)
        for name, known in self._hashes.items():
            self._hashes[name] = np.concatenate([known[kept], hashes[name]])
            self._numbers[name] = np.concatenate([self._numbers[name][kept], new])
        self._states = []

    def join(self, tables: Mapping[str, Reference]) -> None:
        """Bring the subscriptions up to date with all rows of the tables, by name."""
        states = [tables[name].number for name in self._keys]
        if states == self._states:
            return
        numbers = {name: self._find_numbers(name, tables[name]) for name in self._keys}
        stale = np.logical_or.reduce([numbers[name] != self._numbers[name] for name in numbers])
        rows = self._rows.filter(pa.array(stale))
        joined = self._with_floats(enrich(rows, self.query.lookups, tables))
        super().apply(joined.append_column(DELETED, pa.array(~self.query.fits(joined))))
        self._numbers, self._states = numbers, states

    def joined_changes(
        self,
        changes: pa.Table,
        tables: Mapping[str, Reference],
        changed_keys: Mapping[str, pa.Table],
    ) -> pa.Table:
        """The joined subscriptions of which either side has changed; this index stays as it is.

        Args:
            changes: of the subscriptions since the state of this index.
            tables: all rows, by name.
            changed_keys: of the rows that were stored or deleted since the state of this index.

        Returns:
            The changes, and in their columns `deleted` alone those that are deleted.
        """
        of_rows = [np.zeros(len(self), dtype=np.bool_)]
        for name, keys in self._keys.items():
            columns = [one_array(changed_keys[name].column(column)) for column in keys]
            of_rows.append(are_among(self._hashes[name], hashes_of(columns)))
        is_replaced = are_among(self._ids, hashes_of([one_array(changes.column(ID))]))
        stale = self._rows.filter(pa.array(np.logical_or.reduce(of_rows) & ~is_replaced))
        is_gone = changes.column(DELETED)
        present = changes.filter(pc.invert(is_gone)).select(stale.column_names)
        joined = enrich(pa.concat_tables([stale, present]), self.query.lookups, tables)
        there = pa.array(np.zeros(joined.num_rows, dtype=np.bool_))
        parts = [self._with_floats(joined).append_column(DELETED, there), changes.filter(is_gone)]
        return pa.concat_tables(parts, promote_options="default")

    def _key_hashes(self, rows: pa.Table) -> dict[str, npt.NDArray[np.void]]:
        """For each table the hashes of the keys that some subscriptions have."""
        return {
            name: hashes_of([one_array(rows.column(parameter)) for parameter in keys.values()])
            for name, keys in self._keys.items()
        }

    def _find_numbers(self, name: str, table: Reference) -> _Numbers:
        """Of each subscription the number of the state that its row of a table came with."""
        found = table.find(tuple(self._keys[name]), self._hashes[name])
        return np.append(NO_ROW, table.since)[found + 1]

    def _with_floats(self, joined: pa.Table) -> pa.Table:
        """Integers as floats, as which queries compare them."""
        for number, field in enumerate(joined.schema):
            if field.name in self.query.places and pa.types.is_integer(field.type):
                floats = joined.column(number).cast(pa.float64(), safe=False)
                joined = joined.set_column(number, field.name, floats)
        return joined
