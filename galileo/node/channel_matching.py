"""What an execution of a channel finds, in arrays: pure functions, which run in threads.

Which pairs of an observation and a subscription count, depends on what has to be new. With D_k and
S_k for the observations and subscriptions that execution k sees:

- observations: (D_k - D_{k-1}) x S_k;
- both: (D_k - D_{k-1}) x (what was changed from S_{k-1} to S_k);
- either: the first, and D_{k-1} x (what was changed), without the pairs that matched at k-1. With
  `leave` also those that matched at k-1 and do not any more;
- none: D_k x S_k, where D_k has the observations that are not too old at execution k.

(Wang, Carey and Tsotras, "Subscribing to Big Data at Scale", 2020, sections 4.1.4 and 5.4.)

Of a keyed dataset, D_k has the observations that count at the cut of execution k, and D_{k-1} above
stands for what is left of it in D_k. With `leave`, the rest, which was replaced or deleted, is
matched with S_{k-1}: those pairs leave whose subscription does not match in D_k what has the key.
So who adds the pairs that match, and removes those that have left, by subscription and key, has
the matches of D_k and S_k.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import one_array
from galileo.cursor import Cursor
from galileo.errors import MessageTooLarge
from galileo.labels import to_ipc
from galileo.model.channel import (
    BROKER,
    ID,
    MATCHES_SCHEMA,
    NO_BROKER,
    SHARE_BYTES_MAX,
    Channel,
    pairs_of,
)
from galileo.model.schema import DELETED
from galileo.model.sort_keys import differs
from galileo.query.subscriptions import (
    MATCH_SCHEMA,
    ParameterQuery,
    RowIndex,
    SubscriptionIndex,
)

COMPRESSION = "lz4"
KEY = "~key"
"""The column of observations with a hash of their keys, where some of them are replaced."""
_RECORD_SCHEMA = MATCHES_SCHEMA.insert(0, pa.field(BROKER, pa.string(), nullable=False))


@dataclass(frozen=True, slots=True, eq=False)
class Replaced:
    """Observations of a keyed dataset that counted at the first cut, and do not at the second one.

    Attributes:
        rows: all of them; of each key one.
        successors: the new observations with the same keys.
        numbers: of each successor, the number of the row whose key it has.
    """

    rows: RowIndex
    successors: RowIndex
    numbers: pa.Array

    @classmethod
    def of(cls, query: ParameterQuery, replaced: pa.Table, new: pa.Table) -> Replaced:
        """Pairs observations by their `KEY`."""
        keys, new_keys = (one_array(table.column(KEY)) for table in (replaced, new))
        places = pc.index_in(keys, value_set=new_keys)
        numbers = np.flatnonzero(np.asarray(places.is_valid())).astype(np.int32)
        successors = RowIndex(query, new.take(places.drop_null()))
        return cls(RowIndex(query, replaced), successors, pa.array(numbers))

    def match_successors(self, index: SubscriptionIndex) -> pa.RecordBatch:
        """The matches of the successors, with the numbers of the rows."""
        matches = index.match(self.successors)
        rows = matches.column("rows")
        lists = pa.ListArray.from_arrays(_offsets_of(rows), self.numbers.take(rows.flatten()))
        return matches.set_column(1, MATCH_SCHEMA.field("rows"), lists)


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """The observations of an execution that may match.

    Attributes:
        new: those between two cuts; of a repetitive channel all up to the second one.
        history: those before; None if these do not count. Of a keyed dataset, those that still
            count at the second cut.
        replaced: those that count no longer, where subscribers learn of that; None: none.
        after, until: the two cuts.
        due_us: when the execution was due, microseconds since 1970.
    """

    new: RowIndex
    history: RowIndex | None
    replaced: Replaced | None
    after: Cursor
    until: Cursor
    due_us: int

    @property
    def rows(self) -> pa.Table:
        """All of them: the history, the new and the replaced ones; matches have their numbers."""
        parts = [] if self.history is None else [self.history]
        parts += [self.new] if self.replaced is None else [self.new, self.replaced.rows]
        return pa.concat_tables([part.observations for part in parts])

    @property
    def count(self) -> int:
        """How many there are before the replaced ones."""
        history = 0 if self.history is None else self.history.observations.num_rows
        return history + int(self.new.observations.num_rows)


def match(
    channel: Channel, index: SubscriptionIndex, observed: Observed, changes: pa.Table | None
) -> pa.Table:
    """The matches of an execution, records that `execution` takes.

    Args:
        channel: of it.
        index: of the subscriptions; as they were at the last execution, if `changes` are given,
            which are then applied.
        observed: the observations.
        changes: of the subscriptions; None if the index has them, and they do not count.
    """
    if changes is None:
        return _records(index.match(observed.new))
    if observed.history is None:
        index.apply(changes)
        return _records(index.selected(changes.column(ID)).match(observed.new))
    ids, history, replaced = changes.column(ID), observed.history, observed.replaced
    first, parts = history.observations.num_rows, list[pa.Table]()
    selected, ended = index.selected(ids), None
    before = selected.match(history)
    if replaced is not None:
        ended = selected.match(replaced.rows)
        index.apply(_deleted(changes))
        parts.append(_groups_left(index, replaced, shift=observed.count))
    index.apply(changes)
    selected = index.selected(ids)
    after = selected.match(history)
    parts.append(_records(index.match(observed.new), shift=first))
    parts.append(_difference(after, before, left=False))
    if channel.leave:
        parts.append(_difference(before, after, left=True))
    if replaced is not None and ended is not None:
        again = replaced.match_successors(selected)
        parts.append(_difference(ended, again, left=True, shift=observed.count))
    return pa.concat_tables(parts)


def matched(
    observed: Observed, records: Mapping[int, pa.Table]
) -> tuple[pa.Table, dict[int, pa.Table]]:
    """The observations that matched, each once, and the records with their numbers.

    Args:
        observed: all observations.
        records: of each partition, as of `match`.
    """
    numbers = {p: one_array(some.column("rows")) for p, some in records.items()}
    flat = {p: rows.flatten().to_numpy() for p, rows in numbers.items()}
    rows = np.unique(np.concatenate([*flat.values()]))
    renumbered = dict[int, pa.Table]()
    for partition, some in records.items():
        places = pa.array(np.searchsorted(rows, flat[partition]).astype(np.int32))
        lists = pa.ListArray.from_arrays(_offsets_of(numbers[partition]), places)
        renumbered[partition] = some.set_column(1, _RECORD_SCHEMA.field("rows"), lists)
    return observed.rows.take(pa.array(rows)), renumbered


def execution(
    channel: Channel,
    records: pa.Table,
    observations: pa.Table,
    *,
    observed: Observed,
    number: int,
    subscriptions: int,
    references: Mapping[str, Cursor],
) -> pa.Table:
    """The rows of an execution, of `Channel.observation_schema`.

    Args:
        channel: of it.
        records: the matches.
        observations: those that the records number, with the columns that are delivered.
        observed: with the cuts.
        number: of the execution.
        subscriptions: the commit of the subscriptions up to which they were matched.
        references: up to which commits the tables of the channel were read.
    """
    cut = {
        "execution": number,
        "broker": NO_BROKER,
        "partitions": list(observed.until),
        "after": [observed.after[partition] for partition in observed.until],
        "until": list(observed.until.values()),
        "subscriptions": subscriptions,
    }
    if channel.is_repetitive:
        cut["due"] = observed.due_us
    if channel.steps:
        positions = [(name, *place) for name, one in references.items() for place in one.items()]
        cut["references"] = [name for name, _, _ in positions]
        cut["reference_partitions"] = [partition for _, partition, _ in positions]
        cut["reference_until"] = [until for _, _, until in positions]
    shares = [
        {"execution": number, "broker": broker, "observations": some, "matches": matches}
        for broker, some, matches in _shares(observations, records, channel.delivered_schema.names)
    ]
    return pa.Table.from_pylist([cut, *shares], schema=channel.observation_schema)


def _records(matches: pa.RecordBatch, *, shift: int = 0) -> pa.Table:
    """Matches of new observations, whose rows are counted from a number on."""
    rows = matches.column("rows")
    numbers = pa.array(rows.flatten().to_numpy() + np.int32(shift), pa.int32())
    left = pa.array(np.zeros(matches.num_rows, dtype=np.bool_))
    columns = [
        matches.column(BROKER),
        pa.ListArray.from_arrays(_offsets_of(rows), numbers),
        matches.column("subscriptions"),
        left,
    ]
    return pa.table(columns, schema=_RECORD_SCHEMA)


def _deleted(changes: pa.Table) -> pa.Table:
    """Changes that delete the same subscriptions."""
    place, gone = changes.schema.get_field_index(DELETED), np.ones(changes.num_rows, dtype=np.bool_)
    return changes.set_column(place, changes.schema.field(place), pa.array(gone))


def _groups_left(index: SubscriptionIndex, replaced: Replaced, *, shift: int) -> pa.Table:
    """The pairs of replaced observations without a successor that matches.

    All subscriptions of a record match the same, so each record is compared by its first one.
    """
    matches, again = index.match(replaced.rows), replaced.match_successors(index)
    place, ids = matches.schema.get_field_index("subscriptions"), matches.column("subscriptions")
    field = matches.schema.field(place)
    first = [
        batch.set_column(place, field, pc.list_slice(batch.column(place), 0, 1))
        for batch in (matches, again)
    ]
    left = _difference(*first, left=True, shift=shift)
    found = one_array(left.column("subscriptions")).flatten()
    records = pc.index_in(found, value_set=pc.list_element(ids, 0))
    return left.set_column(place, field, ids.take(records))


def _difference(
    matches: pa.RecordBatch, without: pa.RecordBatch, *, left: bool, shift: int = 0
) -> pa.Table:
    """The pairs of some matches that are not among others, a record for each subscription.

    Rows are counted from `shift` on.
    """
    match, rows, ids = pairs_of(pa.Table.from_batches([matches]))
    _, other_rows, other_ids = pairs_of(pa.Table.from_batches([without]))
    codes = one_array(pa.chunked_array([ids, other_ids]).dictionary_encode())
    code = codes.indices.to_numpy().astype(np.int64)
    width = 1 + int(max(rows.max(initial=0), other_rows.max(initial=0)))
    keys, known = np.split(code * width + np.concatenate([rows, other_rows]), [len(ids)])
    chosen = np.flatnonzero(~np.isin(keys, known))
    chosen = chosen[np.argsort(keys[chosen], kind="stable")]
    starts = np.flatnonzero(differs(code[chosen]))
    first = pa.array(chosen[starts])
    offsets = pa.array(np.append(starts, len(chosen)).astype(np.int32))
    single = pa.array(np.arange(len(starts) + 1, dtype=np.int32))
    columns = [
        matches.column(BROKER).take(pa.array(match[chosen[starts]])),
        pa.ListArray.from_arrays(offsets, pa.array(rows[chosen] + np.int32(shift))),
        pa.ListArray.from_arrays(single, ids.take(first)),
        pa.array(np.full(len(starts), left)),
    ]
    return pa.table(columns, schema=_RECORD_SCHEMA)


def _shares(
    observations: pa.Table, records: pa.Table, names: Sequence[str]
) -> Iterator[tuple[str, bytes, bytes]]:
    """Of each broker the observations that it gets, and its matches with their rows.

    Raises:
        MessageTooLarge: a broker gets more than `SHARE_BYTES_MAX`.
    """
    brokers = records.column(BROKER)
    for broker in pc.unique(brokers).to_pylist():
        share = records.filter(pc.equal(brokers, broker)).combine_chunks()
        rows = share.column("rows").combine_chunks()
        numbers, inverse = np.unique(rows.flatten().to_numpy(), return_inverse=True)
        renumbered = pa.ListArray.from_arrays(_offsets_of(rows), pa.array(inverse.astype(np.int32)))
        columns = [renumbered, *(share.column(name) for name in MATCHES_SCHEMA.names[1:])]
        matches = pa.table(columns, schema=MATCHES_SCHEMA)
        delivered = observations.select(names).take(pa.array(numbers)).combine_chunks()
        size = max(delivered.nbytes, matches.nbytes)
        if size > SHARE_BYTES_MAX:
            raise MessageTooLarge(
                f"expected at most {SHARE_BYTES_MAX:,} bytes for broker {broker!r} in one "
                f"execution, got {size:,}; use several brokers, or a channel with fewer columns",
                bound=SHARE_BYTES_MAX,
            )
        yield (
            broker,
            to_ipc(delivered, compression=COMPRESSION),
            to_ipc(matches, compression=COMPRESSION),
        )


def _offsets_of(lists: pa.ListArray) -> pa.Array:
    """The offsets of lists without nulls into their flattened values."""
    lengths = np.append(0, lists.value_lengths().to_numpy())
    return pa.array(np.cumsum(lengths).astype(np.int32))
