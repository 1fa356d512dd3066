"""Ingest: any node accepts a batch, commits its own part, and sends each other owner its part.

Clients know the topology and send each owner its rows. What another node receives, because a
client's topology is stale, reaches the owner in one more call.

The split is a pure function of the rows and the topology, so a repeated batch goes to the same
partitions, and each recognises it by producer and batch number. A batch is sorted, split and
indexed in one step.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import pyarrow as pa

from galileo.cursor import Cursor
from galileo.dht import placement
from galileo.dht.topology_state import TopologyState
from galileo.errors import GalileoError, InputError, InvalidObservations
from galileo.model import paths
from galileo.model.observations import normalise
from galileo.model.schema import Schema
from galileo.node.catalog import Catalog
from galileo.node.group_commit import Results
from galileo.node.peers import CommitAnswer, CommitTask, Peers
from galileo.storage.journal import Commit, Committed

_PRODUCER = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class Ingest:
    """Routes batches to the owners of their partitions.

    Attributes:
        on_committed: called in the event loop when partitions of this node have commits.
    """

    def __init__(
        self, name: str, topology: TopologyState, *, catalog: Catalog, peers: Peers, rows_max: int
    ) -> None:
        self._name = name
        self._topology = topology
        self._catalog = catalog
        self._peers = peers
        self._rows_max = rows_max
        self.on_committed: Callable[[], None] = lambda: None

    async def ingest(
        self, dataset: str, table: pa.Table, *, producer: str, batch: int, principal: str = ""
    ) -> CommitAnswer:
        """Stores one batch; durable at every owner when it returns.

        Args:
            dataset: its name.
            table: the rows.
            producer: of the batch; different principals never share one.
            batch: its number.
            principal: of the caller; "" without authentication.

        Raises:
            InvalidObservations, UnknownDataset, BatchConflict: the input is wrong.
            Unavailable, PartitionReadOnly, Overloaded: repeat the same batch later; what an
                owner has already committed is not stored again.
        """
        schema = self._catalog.schema(dataset)
        _check_identity(producer, batch)
        if table.num_rows > self._rows_max:
            raise InvalidObservations(
                f"expected at most {self._rows_max:,} rows in a batch, got {table.num_rows:,}; "
                "send several",
                bound=self._rows_max,
            )
        name = f"{principal}/{producer}" if principal else producer
        own, others = await asyncio.to_thread(self._begin, schema, table, name, batch)
        calls = [
            self._peers.commit(owner, CommitTask(schema.key, name, batch, pa.concat_tables(rows)))
            for owner, rows in others.items()
        ]
        answers = await asyncio.gather(self._committed(own), *calls, return_exceptions=True)
        forwarded = sum(part.num_rows for rows in others.values() for part in rows)
        return replace(_join(answers), forwarded_rows=forwarded)

    async def commit(self, task: CommitTask) -> CommitAnswer:
        """Commits rows of this node's own partitions.

        Raises:
            PartitionMoved: another node has one of the partitions, or is about to.
        """
        schema = self._catalog.schema(task.dataset)
        return await self._committed(await asyncio.to_thread(self._submit_own, schema, task))

    async def _committed(self, results: Future[Results]) -> CommitAnswer:
        by_partition = await asyncio.wrap_future(results)
        if by_partition:
            self.on_committed()
        return _join([_answer(partition, result) for partition, result in by_partition.items()])

    def _begin(
        self, schema: Schema, table: pa.Table, producer: str, batch: int
    ) -> tuple[Future[Results], Mapping[str, Sequence[pa.Table]]]:
        """Submits this node's own parts of a batch; returns them, and the parts of each other."""
        parts = self._index_parts(schema, normalise(schema, table))
        others = defaultdict[str, list[pa.Table]](list)
        for partition in list(parts):
            owner = placement.owner(self._topology.current, partition)
            if owner != self._name:
                others[owner].append(parts.pop(partition)[0])
        return self._submit(schema, parts, producer, batch), others

    def _submit_own(self, schema: Schema, task: CommitTask) -> Future[Results]:
        parts = self._index_parts(schema, task.observations)
        self._catalog.shard(schema.key).check_own(parts)
        return self._submit(schema, parts, task.producer, task.batch)

    def _index_parts(self, schema: Schema, rows: pa.Table) -> dict[int, paths.Indexed]:
        place = partial(placement.partitions_from_cells, self._topology.current, schema)
        return paths.index_parts(schema, rows, place=place)

    def _submit(
        self, schema: Schema, parts: Mapping[int, paths.Indexed], producer: str, batch: int
    ) -> Future[Results]:
        """The results by partition, when the parts are durable."""
        commits = {
            p: Commit(producer, batch, rows, derived) for p, (rows, derived) in parts.items()
        }
        return self._catalog.commit(schema.key, commits)


def _answer(partition: int, result: Committed | GalileoError) -> CommitAnswer | GalileoError:
    if isinstance(result, GalileoError):
        return result
    duplicates = result.rows if result.duplicate else 0
    return CommitAnswer(result.rows, result.paths, duplicates, Cursor({partition: result.sequence}))


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
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        done.append(answer)
    return CommitAnswer(
        rows=sum(answer.rows for answer in done),
        paths=sum(answer.paths for answer in done),
        duplicate_rows=sum(answer.duplicate_rows for answer in done),
        reached=Cursor({p: s for answer in done for p, s in answer.reached.items()}),
    )
