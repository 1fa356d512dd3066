"""The index of the subscriptions of one partition: which of them new observations match.

Subscriptions with equal parameters are a *group*. Matching finds pairs of a group and a row; the
work does not depend on how many subscriptions a group has. What each is for:

- `ValueGroups` has the values of the parameters, once for each group, and matches them;
- `SubscriptionBlocks` has the subscriptions of each group, in columns;
- here are the names of the brokers, and how many subscriptions each group has.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.arrays import one_array, within
from galileo.errors import MessageTooLarge
from galileo.hashing import hash128
from galileo.model.channel import BROKER, ID
from galileo.model.schema import DELETED
from galileo.model.sort_keys import differs
from galileo.query.index.bound_columns import grow
from galileo.query.index.candidates import CandidatePairs
from galileo.query.subscriptions.blocks import Numbers, Runs, SubscriptionBlocks, Subscriptions
from galileo.query.subscriptions.column_groups import ColumnGroups
from galileo.query.subscriptions.distinct import distinct_rows
from galileo.query.subscriptions.groups import ValueGroups
from galileo.query.subscriptions.parameter_query import ParameterQuery
from galileo.query.subscriptions.query_groups import QueryGroups
from galileo.query.subscriptions.row_index import RowIndex

MATCHES_MAX = 1 << 27
"""Pairs of a group and a row of one call."""
EMPTY_GROUPS_MAX = 0.5
"""Share of groups without subscriptions above which they are removed."""
EMPTY_GROUPS_MIN = 64
"""Number of groups without subscriptions up to which they stay."""

MATCH_SCHEMA = pa.schema(
    [
        pa.field("broker", pa.string(), nullable=False),
        pa.field("rows", pa.list_(pa.int32()), nullable=False),
        pa.field("subscriptions", pa.list_(pa.string()), nullable=False),
    ]
)


class SubscriptionIndex:
    """Subscriptions of one template; not thread-safe.

    Args:
        query: the template of all of them.
    """

    def __init__(self, query: ParameterQuery) -> None:
        self.query = query
        self._groups: ValueGroups = (
            QueryGroups(query) if query.simple is None else ColumnGroups(query)
        )
        self._blocks = SubscriptionBlocks()
        self._counts: Numbers = np.zeros(0, dtype=np.int32)
        self._brokers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def nbytes(self) -> int:
        """Size in memory, about."""
        return self._blocks.nbytes + self._groups.nbytes + int(self._counts.nbytes)

    def apply(self, changes: pa.Table) -> None:
        """Add, replace and delete subscriptions.

        Args:
            changes: the last state of each changed one: `id`, of which each is there once,
                `broker`, the parameters, and `deleted`; of a deleted one only the id is read. The
                values are those that `ParameterQuery.check` permits.
        """
        ids = one_array(changes.column(ID))
        if len(ids) == 0:
            return
        hashes = hash128([ids])[:, 0]
        kept = np.flatnonzero(~np.asarray(one_array(changes.column(DELETED)), dtype=np.bool_))
        present = changes.take(pa.array(kept)) if len(kept) < len(ids) else changes
        groups, brokers = self._groups_of(present), self._brokers_of(present)
        np.subtract.at(self._counts, self._blocks.remove(ids, hashes), 1)
        np.add.at(self._counts, groups, 1)
        self._blocks.add(
            Subscriptions(one_array(present.column(ID)), hashes[kept], groups, brokers)
        )
        self._remove_empty_groups()

    def selected(self, ids: pa.ChunkedArray | pa.Array) -> SubscriptionIndex:
        """An index of some of these subscriptions, which can be used until the next `apply`.

        Args:
            ids: of the subscriptions, each once; those that are not there are left out.
        """
        some = SubscriptionIndex(self.query)
        keys = one_array(ids) if isinstance(ids, pa.ChunkedArray) else ids
        found = self._blocks.find(keys, hash128([keys])[:, 0])
        some._blocks.add(found)
        some._groups, some._brokers = self._groups, self._brokers
        some._counts = np.bincount(found.groups, minlength=len(self._groups)).astype(np.int32)
        return some

    def match(self, rows: RowIndex) -> pa.RecordBatch:
        """All pairs of a row and a subscription that it matches.

        A record stands for each of its rows with each of its subscriptions, which belong to one
        broker and have equal parameters. Each matching pair is in exactly one record. Groups come
        in the order in which they were new, and brokers likewise.

        Args:
            rows: the observations.

        Returns:
            Records of `MATCH_SCHEMA`: `rows` are numbers of rows, ascending.

        Raises:
            MessageTooLarge: there are more pairs of a group and a row than `MATCHES_MAX`.
        """
        if len(self._blocks) == 0 or len(rows.rows) == 0:
            return pa.RecordBatch.from_pylist([], schema=MATCH_SCHEMA)
        matches = self._matches(rows)
        starts = np.flatnonzero(differs(matches.slots))
        counts = np.diff(np.append(starts, len(matches)))
        runs = self._blocks.runs_of(matches.slots[starts])
        return self._records(runs, rows.rows[matches.rows].astype(np.int32), starts, counts)

    def _matches(self, rows: RowIndex) -> CandidatePairs:
        """The pairs of a group and a row that match, sorted and each once."""
        keys, total, count = [np.empty(0, dtype=np.int64)], 0, len(rows.rows)
        for pairs in self._groups.match(rows, self._counts[: len(self._groups)] > 0):
            keys.append(pairs.slots.astype(np.int64) * count + pairs.rows)
            total += len(pairs)
            if total > MATCHES_MAX:
                raise MessageTooLarge(
                    f"expected at most {MATCHES_MAX:,} matches of {count:,} observations at "
                    "once; match fewer observations in one call",
                    expected="fewer_matches",
                    bound=MATCHES_MAX,
                )
        key = np.sort(np.concatenate(keys))
        groups, numbers = np.divmod(key[differs(key)], count)
        return CandidatePairs(groups.astype(np.int32), numbers)

    def _records(
        self,
        runs: Runs,
        rows: Numbers,
        starts: npt.NDArray[np.intp],
        counts: npt.NDArray[np.intp],
    ) -> pa.RecordBatch:
        """A record for each run.

        Args:
            runs: of subscriptions.
            rows: those of one group after those of another.
            starts: where each group's rows begin.
            counts: how many each group has.
        """
        taken = counts[runs.groups]
        chosen = np.repeat(starts[runs.groups], taken) + within(taken)
        names = pa.array([*self._brokers], type=pa.string())
        return pa.RecordBatch.from_arrays(
            [
                names.take(pa.array(runs.brokers)),
                _lists(taken, pa.array(rows[chosen])),
                _lists(runs.counts, runs.ids),
            ],
            schema=MATCH_SCHEMA,
        )

    def _groups_of(self, rows: pa.Table) -> Numbers:
        if rows.num_rows == 0:
            return np.empty(0, dtype=np.int32)
        columns = {name: one_array(rows.column(name)) for name in self.query.places}
        first, codes = distinct_rows(list(columns.values()))
        distinct = {name: values.take(pa.array(first)) for name, values in columns.items()}
        numbers = self._groups.numbers_of(distinct)
        if len(self._groups) > len(self._counts):
            self._counts = grow(self._counts, len(self._groups) * 5 // 4, 0)
        return numbers[codes]

    def _brokers_of(self, rows: pa.Table) -> Numbers:
        if rows.num_rows == 0:
            return np.empty(0, dtype=np.int32)
        encoded = one_array(rows.column(BROKER)).dictionary_encode()
        names: Sequence[str] = encoded.dictionary.to_pylist()
        codes = [self._brokers.setdefault(name, len(self._brokers)) for name in names]
        numbers: Numbers = np.array(codes, dtype=np.int32)[encoded.indices.to_numpy()]
        return numbers

    def _remove_empty_groups(self) -> None:
        kept = self._counts[: len(self._groups)] > 0
        empty = len(kept) - np.count_nonzero(kept)
        if empty <= max(EMPTY_GROUPS_MIN, EMPTY_GROUPS_MAX * len(kept)):
            return
        self._groups.keep(kept)
        self._counts = self._counts[: len(kept)][kept]
        self._blocks.renumber((np.cumsum(kept) - 1).astype(np.int32))


def _lists(counts: npt.NDArray[np.intp], values: pa.Array) -> pa.ListArray:
    offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)
