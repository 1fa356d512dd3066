"""Ingest: any node accepts a batch, commits its own part, and sends each other owner its part.

Clients know the topology and send each owner its rows. What another node receives, because a
client's topology is stale, reaches the owner in one more call.

The split is a pure function of the rows and the ranges, so a repeated batch goes to the same
partitions, and each recognises it by producer and batch number. A batch is sorted, split and
indexed in one step. Who splits a batch names the epoch of the ranges; a node of another epoch
refuses its part, and the whole batch is split anew, so that a partition always gets all its rows of
a batch at once. `galileo.node.earlier_batches` says what a partition does with batches that were
sent in an earlier epoch.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.dht.topology_state import TopologyState
from galileo.errors import (
    Forbidden,
    GalileoError,
    InputError,
    InvalidObservations,
    RangesChanged,
    Unavailable,
)
from galileo.model import keyed, paths
from galileo.model.broker import check_brokers, match_brokers
from galileo.model.channel import BROKER
from galileo.model.observations import normalise, refuse_long
from galileo.model.schema import DELETED, Schema, StoredSchema, other_kind
from galileo.model.table import Table, index_versions, refuse_duplicates, versions_of
from galileo.node.catalog import Catalog
from galileo.node.deleting import Deleting
from galileo.node.earlier_batches import (
    NOTHING_STORED,
    BatchIdentity,
    EarlierBatches,
    Parts,
)
from galileo.node.peers import CommitAnswer, CommitTask, Peers, TableTask
from galileo.node.shard import Results
from galileo.node.table_reader import TableReader
from galileo.node.versioned_shard import overtaken
from galileo.storage.commits import Commit, Committed, ranges_changed, record_of

_PRODUCER = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
UNKNOWN_EPOCH_AFTER_S = 0.1
RANGES_TIMEOUT_S = 5.0
"""A whole batch waits so long for the node to learn of the ranges that another node knows."""


class Ingest:
    """Routes batches to the owners of their partitions.

    Args:
        on_committed: called in the event loop when partitions of this node have commits.

    Attributes:
        earlier: the batches that were stored before the ranges were cut anew.
    """

    def __init__(
        self,
        name: str,
        topology: TopologyState,
        *,
        catalog: Catalog,
        peers: Peers,
        tables: TableReader,
        rows_max: int,
        on_committed: Callable[[], None],
    ) -> None:
        self._name = name
        self._topology = topology
        self._catalog = catalog
        self._peers = peers
        self._tables = tables
        self.earlier = EarlierBatches(name, catalog=catalog, peers=peers)
        self._deleting = Deleting(
            name, topology, catalog=catalog, peers=peers, on_committed=on_committed
        )
        self._rows_max = rows_max
        self._on_committed = on_committed

    async def ingest(
        self,
        dataset: str,
        table: pa.Table,
        *,
        producer: str,
        batch: int,
        principal: str = "",
        range_epoch: int = 0,
        first_epoch: int = 1,
        check: Callable[[pa.Table], None] | None = None,
        brokers: tuple[str, ...] = (),
        digest: int = 0,
        unchanged_since: Cursor | None = None,
        deletes: bool = False,
    ) -> CommitAnswer:
        """Stores one batch, or the parts of some partitions; durable when it returns.

        Args:
            dataset: its name.
            table: the rows.
            producer: of the batch, one of the principal's own.
            batch: its number.
            principal: of the caller; "" without authentication.
            range_epoch: of the ranges by which the caller split the batch; 0 if this is all of it.
            first_epoch: the earliest one in which the batch may have been sent.
            check: of the rows of a table, whatever a client has checked of them; raises an error.
            brokers: patterns of those that the caller may use; the table is one of a channel's.
                Empty: all.
            digest: of the whole batch, which is recorded, and whose rows come in other calls.
            unchanged_since: rows whose keys have a later version are refused, with the others of
                their partition; of a table or keyed dataset. None: whatever is there is replaced.
            deletes: whether the rows name rows of a dataset without a key, which are deleted.

        Raises:
            InvalidObservations, UnknownDataset, BatchConflict: the input is wrong.
            DuplicateKey: two rows of a conditional write have one key.
            Conflict: a row has changed since; a batch that is stored already is answered before.
            DataExpired, HistoryChanged: it is not known any more whether one has.
            Forbidden: a row is of another broker, or would replace or delete one that is.
            RangesChanged: the ranges were cut anew; split the batch again.
            Unavailable, PartitionReadOnly, Overloaded: repeat the same batch later; what an
                owner has already committed is not stored again.
        """
        schema = self._catalog.stored_schema(dataset)
        if deletes:
            if not isinstance(schema, Schema) or schema.is_keyed:
                raise other_kind(schema, "dataset without a key")
        elif isinstance(schema, Schema):
            if unchanged_since is not None and not schema.is_keyed:
                raise other_kind(schema, "table")
            schema = schema.narrowed_to(table.column_names)
        elif not isinstance(schema, Table):
            raise other_kind(schema, "dataset")
        _check_identity(producer, batch)
        if table.num_rows > self._rows_max:
            raise InvalidObservations(
                f"expected at most {self._rows_max:,} rows in a batch, got {table.num_rows:,}; "
                "send several",
                bound=self._rows_max,
            )
        name = f"{principal}/{producer}" if principal else producer
        if deletes:
            task = CommitTask(schema.key, name, batch, table, deletes=True)
            return _join(await self._deleting.delete(task))
        if digest:
            if check is not None and isinstance(schema, Table) and schema.first_partition:
                check(versions_of(schema, table))  # Their rows need no record.
            return await self._record(CommitTask(schema.key, name, batch, table, digest=digest))
        if isinstance(schema, Table):
            table = await asyncio.to_thread(_versions, schema, table, check, brokers)
            if unchanged_since is not None:
                await asyncio.to_thread(refuse_duplicates, schema, table)
        elif unchanged_since is not None:
            table = await asyncio.to_thread(_distinct, schema, table)
        if unchanged_since is not None:
            everywhere = placement.placed(self._topology.current, schema)
            unchanged_since = Cursor({p: unchanged_since[p] for p in everywhere})
        deadline = time.monotonic() + RANGES_TIMEOUT_S
        while True:
            topology = self._topology_of(schema, range_epoch)
            identity = _identity(schema, name, batch, topology.range_epoch, max(first_epoch, 1))
            try:
                return await self._ingest(
                    schema,
                    table,
                    identity,
                    topology,
                    brokers=brokers,
                    unchanged_since=unchanged_since,
                )
            except RangesChanged:
                if range_epoch or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(UNKNOWN_EPOCH_AFTER_S)

    async def commit(self, task: CommitTask) -> CommitAnswer:
        """Commits rows of this node's own partitions.

        Raises:
            PartitionMoved: another node has one of the partitions, or is about to.
            RangesChanged: the batch was split by earlier ranges.
            Unavailable: it was split by ranges that this node does not know yet.
            Forbidden: it would replace or delete rows of other brokers.
            GalileoError: as of `ingest`.
        """
        if task.digest:
            return await self._record(task)
        if task.deletes:
            return await self._deleting.commit(task)
        schema = self._catalog.stored_schema(task.dataset).narrowed(task.added)
        topology = self._topology_of(schema, task.range_epoch)
        identity = _identity(schema, task.producer, task.batch, task.range_epoch, task.first_epoch)
        begun = await asyncio.to_thread(
            self._begin,
            schema,
            task.observations,
            identity,
            topology,
            is_own=True,
            brokers=task.brokers,
            unchanged_since=task.unchanged_since,
        )
        return await self._commit(schema, begun, identity, topology)

    async def _record(self, task: CommitTask) -> CommitAnswer:
        """Records the digest of a whole batch at the owner of its producer's home partition.

        Raises:
            BatchConflict: the number was used for another batch.
        """
        schema, topology = self._catalog.stored_schema(task.dataset), self._topology.current
        home = placement.home_of_producer(topology, schema, task.producer.rpartition("/")[2])
        owner = placement.owner(topology, home)
        if owner != self._name:
            nothing = schema.version_schema.empty_table()
            return await self._peers.commit(owner, replace(task, observations=nothing))
        self._catalog.stored_shard(schema.key).check_own([home])
        record = record_of(schema, task.producer, task.batch, digest=task.digest)
        committing = await asyncio.to_thread(self._catalog.commit, schema.key, {home: record})
        result = (await asyncio.wrap_future(committing))[home]
        if isinstance(result, GalileoError):
            raise result
        self._on_committed()
        return NOTHING_STORED

    def _topology_of(self, schema: StoredSchema, range_epoch: int) -> Topology:
        """The topology, if its ranges are those of an epoch; epoch 0 stands for any.

        The partitions of a table do not depend on the ranges, and a keyed dataset has those of its
        creation, so any epoch fits their batches.
        """
        topology = self._topology.current
        if isinstance(schema, Table):
            return topology
        if isinstance(schema, Schema) and schema.is_keyed:  # The ranges of its creation count.
            range_epoch = schema.range_epoch
            if range_epoch <= topology.range_epoch:
                return topology
        if range_epoch > topology.range_epoch:
            raise unknown_epoch(self._name)
        if 0 < range_epoch < topology.range_epoch:
            raise ranges_changed(topology.range_epoch)
        return topology

    async def _ingest(
        self,
        schema: StoredSchema,
        table: pa.Table,
        identity: BatchIdentity,
        topology: Topology,
        *,
        brokers: tuple[str, ...],
        unchanged_since: Cursor | None,
    ) -> CommitAnswer:
        begun = await asyncio.to_thread(
            self._begin,
            schema,
            table,
            identity,
            topology,
            brokers=brokers,
            unchanged_since=unchanged_since,
        )
        calls = [
            self._peers.commit(
                owner,
                CommitTask(
                    schema.key,
                    identity.producer,
                    identity.number,
                    pa.concat_tables(rows),
                    identity.range_epoch,
                    identity.first_epoch,
                    schema.added,
                    brokers,
                    unchanged_since=unchanged_since,
                ),
            )
            for owner, rows in begun.others.items()
        ]
        answers = await asyncio.gather(
            self._commit(schema, begun, identity, topology), *calls, return_exceptions=True
        )
        forwarded = sum(part.num_rows for rows in begun.others.values() for part in rows)
        return replace(_join(answers), forwarded_rows=forwarded)

    async def _commit(
        self, schema: StoredSchema, begun: _Begun, identity: BatchIdentity, topology: Topology
    ) -> CommitAnswer:
        """Commits this node's own parts of a batch, if that has not begun yet."""
        stored, results, since = NOTHING_STORED, begun.results, begun.unchanged_since
        if results is None and isinstance(schema, Table):
            checked = await self._check_replaced(schema, begun)
            results = await asyncio.to_thread(
                self._submit,
                schema,
                begun.parts,
                identity,
                unchanged_since=checked if since is None else since.meet(checked),
            )
        elif results is None:
            assert isinstance(schema, Schema), "neither a dataset nor a table"
            new = await self.earlier.drop_stored(schema, begun.parts, identity, topology)
            stored = new.stored
            results = await asyncio.to_thread(
                self._submit, schema, new.parts, identity, known=new.refused
            )
        by_partition = await asyncio.wrap_future(results)
        if by_partition:
            self._on_committed()
        if since is None:  # The caller has no condition; this node has read the rows too early.
            by_partition = {p: overtaken(result) for p, result in by_partition.items()}
        return _join([stored, *(_answer(p, result) for p, result in by_partition.items())])

    async def _check_replaced(self, table: Table, begun: _Begun) -> Cursor:
        """The commits up to which the keys of a batch have no rows of other brokers, here.

        Raises:
            Forbidden: they have.
        """
        if not begun.parts:
            return EMPTY_CURSOR
        rows = pa.concat_tables(rows for rows, _ in begun.parts.values())
        keys = rows.select(table.key_columns)
        task = TableTask(table.key, keys=keys, partitions=frozenset(begun.parts))
        reached = EMPTY_CURSOR
        async with aclosing(self._tables.read_local(task)) as parts:
            async for part in parts:
                reached = reached.join(part.reached)
                await asyncio.to_thread(_check_owned, table, part.rows, begun.brokers)
        return reached

    def _begin(
        self,
        schema: StoredSchema,
        table: pa.Table,
        identity: BatchIdentity,
        topology: Topology,
        *,
        is_own: bool = False,
        brokers: tuple[str, ...] = (),
        unchanged_since: Cursor | None = None,
    ) -> _Begun:
        """Splits a batch, and submits this node's own parts unless they may be stored already, or
        have to be checked.
        """
        parts = _split(schema, table, topology, is_normalised=is_own)
        others = defaultdict[str, list[pa.Table]](list)
        if is_own:
            self._catalog.stored_shard(schema.key).check_own(parts)
        else:
            for partition in list(parts):
                owner = placement.owner(self._topology.current, partition)
                if owner != self._name:
                    rows, derived = parts.pop(partition)
                    is_dataset = schema.is_keyed and isinstance(schema, Schema)
                    others[owner].append(keyed.sent_rows(rows, derived) if is_dataset else rows)
        is_next = not identity.is_repeatable and not brokers
        results = None
        if is_next:
            results = self._submit(schema, parts, identity, unchanged_since=unchanged_since)
        return _Begun(parts, results, others, brokers, unchanged_since)

    def _submit(
        self,
        schema: StoredSchema,
        parts: Parts,
        identity: BatchIdentity,
        *,
        known: Results | None = None,
        unchanged_since: Cursor | None = None,
    ) -> Future[Results]:
        """The results by partition, when the parts are durable."""
        producer = identity.stored_producer
        commits = {
            p: Commit(
                producer,
                identity.number,
                rows,
                derived,
                identity.range_epoch,
                None if unchanged_since is None else unchanged_since[p],
            )
            for p, (rows, derived) in parts.items()
        }
        return self._catalog.commit(schema.key, commits, known=known)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A batch that was split.

    Attributes:
        parts: of this node's partitions.
        results: of these parts, when they are durable; None if they were not submitted yet.
        others: the rows of each other node.
        brokers: patterns; rows of other brokers may not be replaced. Empty: all may.
        unchanged_since: of the caller's condition; None without any.
    """

    parts: Parts
    results: Future[Results] | None
    others: Mapping[str, Sequence[pa.Table]]
    brokers: tuple[str, ...]
    unchanged_since: Cursor | None


def _identity(
    schema: StoredSchema, producer: str, batch: int, range_epoch: int, first_epoch: int
) -> BatchIdentity:
    """The identity of a batch; the partitions of keys are the same in all range epochs."""
    if schema.is_keyed:
        return BatchIdentity(producer, batch)
    return BatchIdentity(producer, batch, range_epoch, first_epoch)


def _versions(
    table: Table,
    rows: pa.Table,
    check: Callable[[pa.Table], None] | None,
    brokers: tuple[str, ...],
) -> pa.Table:
    """The versions of a table, which pass the checks."""
    for name in rows.column_names:
        refuse_long(rows.column(name), name)
    versions = versions_of(table, rows, is_sent=check is None)
    if brokers:
        names = versions.column(BROKER)
        is_removal = pc.and_(versions.column(DELETED), pc.is_null(names))
        check_brokers(brokers, names.filter(pc.invert(is_removal)))
    if check is not None:
        check(versions)
    return versions


def _check_owned(table: Table, rows: pa.Table, brokers: tuple[str, ...]) -> None:
    """Raises Forbidden if a stored row is of another broker."""
    others = rows.filter(pc.invert(match_brokers(brokers, rows.column(BROKER))))
    if others.num_rows:
        [key] = table.key_columns
        taken = others.column(key)[0].as_py()
        raise Forbidden(
            f"expected ids that are free or of your brokers ({', '.join(brokers)}), got {taken!r} "
            f"of another broker in {table.name!r}; use another id",
            subscription=taken,
        )


def _split(
    schema: StoredSchema, rows: pa.Table, topology: Topology, *, is_normalised: bool
) -> Parts:
    """The rows of each partition, indexed; those of a table are versions already."""
    if isinstance(schema, Table):
        return index_versions(schema, rows)
    assert isinstance(schema, Schema), "neither a dataset nor a table"
    place = partial(placement.partitions_from_cells, topology, schema)
    rows = rows if is_normalised else normalise(schema, rows)
    if schema.is_keyed:
        return keyed.index_versions(schema, rows, place=place)
    return paths.index_parts(schema, rows, place=place)


def _distinct(schema: Schema, rows: pa.Table) -> pa.Table:
    """Normalised rows of a keyed dataset; raises DuplicateKey if two of them have one key."""
    rows = normalise(schema, rows)
    keyed.refuse_duplicates(schema, rows)
    return rows


def _answer(partition: int, result: Committed | GalileoError) -> CommitAnswer | GalileoError:
    if isinstance(result, GalileoError):
        return result
    duplicates = result.rows if result.duplicate else 0
    return CommitAnswer(result.rows, result.paths, duplicates, Cursor({partition: result.sequence}))


def unknown_epoch(node: str) -> Unavailable:
    """The error of a node that does not know the ranges by which a batch was split."""
    return Unavailable(
        f"node {node!r} does not know the present ranges yet; try again",
        after_s=UNKNOWN_EPOCH_AFTER_S,
        node=node,
    )


PRODUCER_SHOWN = 140
"""Characters of a wrong one in a message."""


def _check_identity(producer: str, batch: int) -> None:
    if not _PRODUCER.fullmatch(producer):
        raise InputError(
            f"expected a producer name of letters, digits, '_', '.', ':', '-' (at most 128), "
            f"got {producer[:PRODUCER_SHOWN]!r}",
            parameter="producer",
        )
    if not 0 <= batch < 2**63:
        raise InputError(
            f"expected a batch number from 0 to 2^63 - 1, got {batch}", parameter="batch"
        )


def _join(answers: Iterable[CommitAnswer | BaseException]) -> CommitAnswer:
    done: list[CommitAnswer] = []
    errors: list[BaseException] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            errors.append(answer)
        else:
            done.append(answer)
    if errors:  # A batch that has to be split anew is not repeated as it is.
        raise next((error for error in errors if isinstance(error, RangesChanged)), errors[0])
    return CommitAnswer(
        rows=sum(answer.rows for answer in done),
        paths=sum(answer.paths for answer in done),
        duplicate_rows=sum(answer.duplicate_rows for answer in done),
        forwarded_rows=sum(answer.forwarded_rows for answer in done),
        reached=_join_cursors(answer.reached for answer in done),
    )


def _join_cursors(cursors: Iterable[Cursor]) -> Cursor:
    joined = EMPTY_CURSOR
    for cursor in cursors:
        joined = joined.join(cursor)
    return joined
