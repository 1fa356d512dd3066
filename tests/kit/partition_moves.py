"""Moves partitions between nodes in this process, over a connection that can be cut."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from galileo.dht.topology import Move
from galileo.errors import Unavailable
from galileo.labels import LabelSet
from galileo.node.migration.protocol import File, Handoff, PartitionManifest

T = TypeVar("T")
FROM, TO = "a", "c"
DEADLINE_S = 300.0


class Line:
    """Calls the other node's methods, until one is cut before or after it has an effect.

    Attributes:
        calls: names of those that were made.
        cut_at: number of the call that is cut, and whether its effect takes place.
    """

    def __init__(self, cluster: Any) -> None:
        self.calls: list[str] = []
        self.cut_at: tuple[int, bool] | None = None
        self._cluster = cluster

    async def _call(self, name: str, node: str, call: Callable[[Any], Awaitable[T]]) -> T:
        number, (at, is_late) = len(self.calls), self.cut_at or (10**9, False)
        self.calls.append(name)
        if number > at or (number == at and not is_late):
            raise Unavailable(f"node {node} is away", node=node)
        if node not in self._cluster.network.nodes:
            raise Unavailable(f"node {node} is away", node=node)
        result = await call(self._cluster[node])
        if number == at:
            raise Unavailable(f"the answer of {node} is lost", node=node)
        return result

    async def listing(self, node: str, partition: int) -> PartitionManifest:
        return await self._call("listing", node, lambda n: n.giving.listing(partition))

    async def piece(
        self, node: str, partition: int, file: File, *, offset: int, size: int
    ) -> bytes:
        return await self._call(
            "piece", node, lambda n: n.giving.piece(partition, file, offset=offset, size=size)
        )

    async def checksum(self, node: str, partition: int, file: File) -> int:
        return await self._call("checksum", node, lambda n: n.giving.checksum(partition, file))

    async def fence(self, node: str, partition: int, *, to: str) -> PartitionManifest:
        return await self._call("fence", node, lambda n: n.giving.fence(partition, to=to))

    async def release(self, node: str, partition: int, *, to: str) -> None:
        await self._call("release", node, lambda n: n.giving.release(partition, to=to))

    async def hand_over(self, node: str, asked: Handoff) -> Move:
        return await self._call("hand_over", node, lambda n: n.giving.hand_over(asked))


async def take(cluster: Any, partition: int, line: Line | None = None, *, to: str = TO) -> Line:
    """Moves a partition; closes what it began however it ends."""
    line = line or Line(cluster)
    async with contextlib.aclosing(cluster[to].taking(line).take(partition)) as steps:
        async for _ in steps:
            pass
    return line


def partition_of(cluster: Any, node: str = FROM) -> int:
    """One that a node has, with commits."""
    own = cluster[node].catalog.shard("nam").own
    return int(min(p for p, journal in own.items() if journal.last_sequence))


async def tell_all(cluster: Any) -> None:
    """As heartbeats do."""
    for sender in cluster.nodes:
        for node in cluster.nodes:
            if node is not sender:
                node.moves.receive(sender.name, sender.moves.known)
    for node in cluster.nodes:
        await node.moves.settled()


def owners_of(cluster: Any, partition: int) -> list[str]:
    return [node.name for node in cluster.nodes if partition in node.partitions]


def identities(labels: LabelSet) -> list[tuple[int, int, int]]:
    columns = (labels.partitions, labels.sequences, labels.rows)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


async def check_whole(cluster: Any, sent: Sequence[pa.Table]) -> None:
    """Every node finds and reads each observation once."""
    wanted = sorted(name for table in sent for name in table.column("station").to_pylist())
    for at in ("a", "b", "c"):
        labels = await cluster.ask(at=at)
        assert labels.complete
        read = await cluster.read(labels, exact=False, at=at)
        assert sorted(read.column("station").to_pylist()) == wanted
