"""What an execution of a channel finds, in arrays: pure functions, which run in threads.

Which pairs of an observation and a subscription count, depends on what has to be new. With D_k and
S_k for the observations and subscriptions that execution k sees:

- observations: (D_k - D_{k-1}) x S_k;
- both: (D_k - D_{k-1}) x (what was changed from S_{k-1} to S_k);
- either: the first, and D_{k-1} x (what was changed), without the pairs that matched at k-1. With
  `leave` also those that matched at k-1 and do not any more;
- none: D_k x S_k, where D_k has the observations that are not too old at execution k.

(Wang, Carey and Tsotras, "Subscribing to Big Data at Scale", 2020, sections 4.1.4 and 5.4.)
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
from galileo.model.sort_keys import differs
from galileo.query.subscriptions import RowIndex, SubscriptionIndex

COMPRESSION = "lz4"
_RECORD_SCHEMA = MATCHES_SCHEMA.insert(0, pa.field(BROKER, pa.string(), nullable=False))


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """The observations of an execution that may match.

    Attributes:
        new: those between two cuts; of a repetitive channel all up to the second one.
        history: those before; None if these do not count.
        after, until: the two cuts.
        due_us: when the execution was due, microseconds since 1970.
    """

    new: RowIndex
    history: RowIndex | None
    after: Cursor
    until: Cursor
    due_us: int

    @property
    def rows(self) -> pa.Table:
        """All of them, those of the history first; matches have their numbers."""
        new = self.new.observations
        return new if self.history is None else pa.concat_tables([self.history.observations, new])


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
    ids, history = changes.column(ID), observed.history
    before = index.selected(ids).match(history)
    index.apply(changes)
    after = index.selected(ids).match(history)
    parts = [
        _records(index.match(observed.new), shift=history.observations.num_rows),
        _difference(after, before, left=False),
    ]
    if channel.leave:
        parts.append(_difference(before, after, left=True))
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


def _difference(matches: pa.RecordBatch, without: pa.RecordBatch, *, left: bool) -> pa.Table:
    """The pairs of some matches that are not among others, a record for each subscription."""
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
        pa.ListArray.from_arrays(offsets, pa.array(rows[chosen])),
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
