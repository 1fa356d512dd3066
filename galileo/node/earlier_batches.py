"""Batches that were stored before the ranges were cut anew, and must not be stored again.

Rows stay in the partition where they are, so a producer that repeats a batch after a change of the
ranges sends some of its rows to other partitions than at the first time. The identity of a part of
a batch is therefore its producer, its number and the *range epoch* in which it was split, and the
name under which a commit is stored has the epoch, from the second on. Before a node commits a
batch, it asks the partitions where the rows would have been in each earlier epoch, and drops the
rows that one of them has.

The answer is final, since the log of each asked partition is *sealed* first: a commit without rows
says that none of an earlier epoch follows it, and the journal refuses such a commit from then on.
A seal is a commit as any other. So it is in all copies, moves with its partition, and every later
leader has it before it takes commits. What is before it is committed, too; the node looks for a
batch when the seal is.

Final is also the last number that a producer has used in an earlier epoch: batches with higher
numbers need no question. Nor do batches of which the producer says that it never sent them before
(`first_epoch`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import GalileoError, TransientError
from galileo.model import paths
from galileo.model.schema import Schema
from galileo.node.catalog import Catalog
from galileo.node.peers import PLACES_MAX, BatchLookup, CommitAnswer, FoundBatch, Peers
from galileo.node.shard import Results, Shard
from galileo.storage.commits import SEAL, seal_of

EPOCH_MARK = SEAL
"""Before the range epoch in the name of a producer; no producer's own name has it."""
LAST_NUMBERS_KEPT = 65_536
NOTHING_STORED = CommitAnswer(0, 0, 0, EMPTY_CURSOR)

Parts = dict[int, paths.Indexed]
Place = tuple[int, int]
"""A range epoch, and a partition in which rows were stored then."""


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """What a batch is recognised by.

    Attributes:
        producer: with its principal.
        number: of the batch.
        range_epoch: of the ranges by which it was split.
        first_epoch: the earliest one in which it may have been sent.
    """

    producer: str
    number: int
    range_epoch: int = 1
    first_epoch: int = 1

    @property
    def is_repeatable(self) -> bool:
        """Whether it may have been stored in an earlier epoch."""
        return self.first_epoch < self.range_epoch

    @property
    def stored_producer(self) -> str:
        """The name under which its commits are stored."""
        return stored_producer(self.producer, self.range_epoch)


def stored_producer(producer: str, range_epoch: int) -> str:
    """The name under which commits of a producer are stored in a range epoch."""
    return producer if range_epoch == 1 else f"{producer}{EPOCH_MARK}{range_epoch}"


@dataclass(slots=True)
class NewParts:
    """What is left of a batch without the rows that were stored in earlier epochs.

    Attributes:
        parts: to be committed.
        refused: of partitions for which that is not known, why.
        stored: the rows that were dropped, and the commits that have them.
    """

    parts: Parts
    refused: Results = field(default_factory=dict)
    stored: CommitAnswer = NOTHING_STORED


class EarlierBatches:
    """Finds the batches of earlier range epochs, here and at other nodes."""

    def __init__(self, name: str, *, catalog: Catalog, peers: Peers) -> None:
        self._name = name
        self._catalog = catalog
        self._peers = peers
        self._last: OrderedDict[tuple[str, str, Place], int] = OrderedDict()

    async def find(self, lookup: BatchLookup) -> Sequence[FoundBatch]:
        """Which of this node's partitions have a batch; seals their logs first.

        Raises:
            PartitionMoved: another node has one of the partitions.
            PartitionReadOnly, Overloaded: a partition takes no commits, hence no seal.
            RangesChanged: the range epoch of the asker is sealed, too.
        """
        shard = self._catalog.stored_shard(lookup.dataset)
        await self._seal(shard, lookup)
        found = []
        for epoch, partition in lookup.places:
            journal, name = shard.journal(partition), stored_producer(lookup.producer, epoch)
            sequence, last = journal.find_batch(name, lookup.batch), journal.last_batch(name)
            found.append(FoundBatch(sequence or 0, -1 if last is None else last))
        return found

    async def _seal(self, shard: Shard, lookup: BatchLookup) -> None:
        """Returns when all logs that are asked are sealed, and readers see the seals.

        A log that is sealed already needs nothing, whatever has become of its partition.
        """
        journals = shard.journals
        unsealed = {
            partition
            for epoch, partition in lookup.places
            if partition not in journals or journals[partition].sealed_epoch <= epoch
        }
        if not unsealed:
            return
        shard.check_own(unsealed)
        seals = dict.fromkeys(unsealed, seal_of(shard.schema, lookup.range_epoch))
        sealing = await asyncio.to_thread(self._catalog.commit, lookup.dataset, seals)
        results = await asyncio.wrap_future(sealing)
        for result in results.values():
            if isinstance(result, GalileoError):
                raise result

    async def drop_stored(
        self, schema: Schema, parts: Parts, batch: BatchIdentity, topology: Topology
    ) -> NewParts:
        """The parts of a batch without the rows that were stored in earlier epochs.

        Args:
            schema: of the dataset.
            parts: of this node's partitions.
            batch: that they belong to.
            topology: by which it was split.
        """
        former = await asyncio.to_thread(_former_places, schema, parts, batch, topology)
        places = {
            (e, p) for of in former.values() for e, ps in of.items() for p in set(ps.tolist())
        }
        found = await self._find_all(schema.key, batch, places, topology)
        return await asyncio.to_thread(_without_stored, schema, parts, former, found)

    async def _find_all(
        self, dataset: str, batch: BatchIdentity, places: Iterable[Place], topology: Topology
    ) -> dict[Place, int | GalileoError]:
        """The sequence of a batch in each place, 0 if it is not there, or why that is not known."""
        owners, asked = placement.owners(topology), defaultdict[str, list[Place]](list)
        found: dict[Place, int | GalileoError] = {}
        for place in places:
            last = self._last.get((dataset, batch.producer, place))
            if last is not None and batch.number > last:
                found[place] = 0
            else:
                asked[owners[place[1]]].append(place)
        answers = await asyncio.gather(
            *(self._find_at(node, dataset, batch, at) for node, at in asked.items())
        )
        for of_node in answers:
            found |= of_node
        return found

    async def _find_at(
        self, node: str, dataset: str, batch: BatchIdentity, places: list[Place]
    ) -> dict[Place, int | GalileoError]:
        answers = list[FoundBatch]()
        try:
            for start in range(0, len(places), PLACES_MAX):
                lookup = BatchLookup(
                    dataset,
                    batch.producer,
                    batch.number,
                    range_epoch=batch.range_epoch,
                    places=tuple(places[start : start + PLACES_MAX]),
                )
                if node == self._name:
                    answers += await self.find(lookup)
                else:
                    answers += await self._peers.find_batches(node, lookup)
        except TransientError as error:
            return dict.fromkeys(places, error)
        for place, answer in zip(places, answers, strict=True):
            self._last[dataset, batch.producer, place] = answer.last
            if len(self._last) > LAST_NUMBERS_KEPT:
                self._last.popitem(last=False)
        return {place: one.sequence for place, one in zip(places, answers, strict=True)}


_Former = Mapping[int, Mapping[int, npt.NDArray[np.int32]]]
"""By partition and earlier epoch, the partition that each row had then."""


def _former_places(
    schema: Schema, parts: Parts, batch: BatchIdentity, topology: Topology
) -> _Former:
    epochs = range(batch.first_epoch, batch.range_epoch)
    cells = {p: paths.cells_from_table(schema, table) for p, (table, _) in parts.items()}
    return {
        partition: {
            epoch: placement.earlier_partitions(
                topology, schema, cells[partition], partition=partition, epoch=epoch
            )
            for epoch in epochs
        }
        for partition in parts
    }


def _without_stored(
    schema: Schema, parts: Parts, former: _Former, found: Mapping[Place, int | GalileoError]
) -> NewParts:
    new, reached, dropped = NewParts({}), dict[int, int](), 0
    for partition, (table, derived) in parts.items():
        is_stored = np.zeros(table.num_rows, dtype=bool)
        for epoch, places in former[partition].items():
            for place in np.unique(places).tolist():
                outcome = found[epoch, place]
                if isinstance(outcome, GalileoError):
                    new.refused[partition] = outcome
                elif outcome:
                    is_stored |= places == place
                    reached[place] = max(reached.get(place, 0), outcome)
        if partition in new.refused:
            continue
        dropped += int(is_stored.sum())
        if not is_stored.any():
            new.parts[partition] = table, derived
        elif not is_stored.all():
            left = table.filter(pa.array(~is_stored))
            [(_, indexed)] = paths.index_parts(schema, left, place=_at(partition)).items()
            new.parts[partition] = indexed
    new.stored = CommitAnswer(dropped, 0, dropped, Cursor(reached))
    return new


def _at(partition: int) -> paths.Place:
    return lambda cells, buckets: np.full(len(cells), partition, dtype=np.int32)
