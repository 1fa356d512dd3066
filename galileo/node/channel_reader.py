"""Reads the executions of a channel for one of its brokers, from the nodes that have them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Executor
from contextlib import aclosing

from galileo.cursor import Cursor
from galileo.dht import placement
from galileo.dht.topology_state import TopologyState
from galileo.errors import DataExpired, InputError, TransientError
from galileo.hashing import text64
from galileo.labels import to_ipc
from galileo.node.catalog import Catalog
from galileo.node.channel_shard import ChannelShard
from galileo.node.cluster_view import ClusterView
from galileo.node.peers import (
    Execution,
    ExecutionsPart,
    ExecutionsTask,
    Peers,
    Share,
    read_from_owners,
    retry_timeout_s,
)

STEP_COMMITS = 256
"""Executions that a thread looks at before it gives the interpreter to others."""
LOOK_S = 0.02
"""Seconds between two looks for new executions while a reader waits."""


class ChannelReader:
    """Reads executions of this node's partitions, and through peers those of others."""

    def __init__(
        self,
        name: str,
        topology: TopologyState,
        *,
        catalog: Catalog,
        peers: Peers,
        view: ClusterView,
        executor: Executor,
    ) -> None:
        self._name = name
        self._topology = topology
        self._catalog = catalog
        self._peers = peers
        self._view = view
        self._executor = executor

    async def follow(
        self, task: ExecutionsTask, *, wait_s: float
    ) -> AsyncGenerator[ExecutionsPart, None]:
        """As `read`; waits for so long if the broker has no matches.

        Raises:
            Unavailable: a node cannot be reached, and there are no matches at others.
        """
        loop, has_matches = asyncio.get_running_loop(), False
        deadline = loop.time() + wait_s
        while True:
            try:
                async with aclosing(self._read_reachable(task)) as parts:
                    async for part in parts:
                        has_matches |= part.execution is not None
                        task = dataclasses.replace(task, after=task.after.join(part.reached))
                        yield part
            except TransientError:
                if not has_matches:
                    raise
            while not has_matches and loop.time() < deadline:
                await asyncio.sleep(LOOK_S)  # At first, too: the view may be ahead of the owner.
                if task.after.news(self._view.sequences(task.channel)):
                    break
            else:
                return

    async def _read_reachable(self, task: ExecutionsTask) -> AsyncGenerator[ExecutionsPart, None]:
        """As `read`; the error of a node comes after what others have."""
        errors = list[TransientError]()
        for share in await self._shares(self._of_all(task)):
            try:
                async with aclosing(self.read(share.task)) as parts:
                    async for part in parts:
                        yield part
            except TransientError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def read(self, task: ExecutionsTask) -> AsyncGenerator[ExecutionsPart, None]:
        """The executions after a cursor in which a broker has matches, those of a partition in
        order.

        Raises:
            InputError: it is no channel, or the cursor is not of this cluster.
            Unavailable: a node that has some of them cannot be reached.
            CorruptData: stored bytes fail their checksum.
        """
        parts = read_from_owners(
            self._of_all(task),
            split=self._shares,
            read_local=self.read_local,
            read=self._peers.read_executions,
            name=self._name,
            live=self._topology,
            timeout_s=retry_timeout_s(self._topology),
        )
        async with aclosing(parts):
            async for part in parts:
                yield part

    def _of_all(self, task: ExecutionsTask) -> ExecutionsTask:
        """The task with the partitions that it asks for."""
        channel = self._catalog.channel_shard(task.channel).schema
        every = frozenset(range(channel.partitions))
        asked = task.partitions or every
        if not asked <= every:
            raise InputError(
                f"expected partitions 0 to {channel.partitions - 1} of channel {channel.name!r}, "
                f"got {max(asked)}",
                expected="partitions",
                bound=channel.partitions - 1,
            )
        return dataclasses.replace(task, partitions=asked)

    async def read_local(self, task: ExecutionsTask) -> AsyncGenerator[ExecutionsPart, None]:
        """The executions of partitions that this node has; a part says how far it goes.

        Raises:
            PartitionMoved: before the first part: another node has some of them.
            HistoryChanged: likewise: executions up to the cursor were lost.
        """
        shard, loop = self._catalog.channel_shard(task.channel), asyncio.get_running_loop()
        shard.check_own(task.partitions)
        shard.check_history(task.partitions, task.after)
        pieces = (_pieces if task.broker else _cuts)(shard, task)
        while (part := await loop.run_in_executor(self._executor, next, pieces, None)) is not None:
            yield part

    async def _shares(self, task: ExecutionsTask) -> list[Share[ExecutionsTask]]:
        nodes = placement.owners(self._topology.current)
        groups: dict[str, set[int]] = {}
        for partition in _turns(task):
            groups.setdefault(nodes[partition], set()).add(partition)
        return [
            Share(node, frozenset(group), dataclasses.replace(task, partitions=frozenset(group)))
            for node, group in groups.items()
        ]


def _turns(task: ExecutionsTask) -> list[int]:
    """The partitions in the order in which they are read, which changes with the cursor.

    A reader that takes the beginning of each answer, since answers are bounded or it is slow, gets
    to all partitions, also where one of them always has more than fits.
    """
    salt = text64(*task.after.items())
    return sorted(task.partitions, key=lambda partition: text64(salt, partition))


def _cuts(shard: ChannelShard, task: ExecutionsTask) -> Iterator[ExecutionsPart]:
    """The first rows of the last executions; each step blocks on the disk."""
    for partition in sorted(task.partitions):
        if sequence := shard.index.last(partition):
            cut = shard.journal(partition).read(sequence).slice(0, 1)
            number = cut.column("execution")[0].as_py()
            execution = Execution(partition, number, to_ipc(cut), b"")
            yield ExecutionsPart(Cursor({partition: sequence}), execution)


def _pieces(shard: ChannelShard, task: ExecutionsTask) -> Iterator[ExecutionsPart]:
    """The parts of an answer; each step blocks on the disk."""
    published = shard.published(task.partitions)
    for partition in _turns(task):
        dropped, last = 0, published[partition]
        for sequence in shard.sequences(partition, task.after[partition], last):
            if sequence <= dropped:
                continue
            try:
                execution = _read(shard, partition, sequence, task.broker)
            except DataExpired:  # Dropped before this call, or since.
                dropped = shard.journal(partition).dropped
                gone = Cursor({partition: dropped})
                yield ExecutionsPart(reached=gone, gone=gone)
            else:
                is_step = sequence == last or sequence % STEP_COMMITS == 0
                if execution is not None or is_step:
                    yield ExecutionsPart(Cursor({partition: sequence}), execution)


def _read(shard: ChannelShard, partition: int, sequence: int, broker: str) -> Execution | None:
    """The share of a broker in one execution; None if it has none."""
    rows = shard.journal(partition).read(sequence)
    brokers = rows.column("broker").to_pylist()
    if broker not in brokers[1:]:  # The first row has the cut.
        return None
    place = brokers.index(broker)
    return Execution(
        partition,
        rows.column("execution")[place].as_py(),
        rows.column("observations")[place].as_py(),
        rows.column("matches")[place].as_py(),
    )
