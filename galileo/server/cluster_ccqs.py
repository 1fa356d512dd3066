"""The continuous queries of the whole cluster, gathered from its nodes.

Each record is on three nodes, so no node knows all CCQs. Lists are merged from the records of all
nodes that answer; with `copies - 1` unreachable nodes each record is at one of the others. Counts
are those of the coordinators and are gathered at most once each `COUNTS_TTL_S`; what was submitted
here since then is added.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from galileo.ccq.model import Record
from galileo.clock import Clock
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import GalileoError, Unavailable
from galileo.node.loop_calls import call_in_loop
from galileo.node.retention_plan import ReaderProgress
from galileo.node.storage_node import StorageNode
from galileo.rpc.continuous import CcqInfo
from galileo.rpc.peers import GrpcPeers
from galileo.server.driver import Driver

log = logging.getLogger(__name__)

T = TypeVar("T")

COUNTS_TTL_S = 2.0
ENDED_LISTED_S = 60.0
"""How long after its end a CCQ is named to other nodes, which may not know of the end yet."""
PROGRESS_TIMEOUT_S = 60.0
RUNNING = "running"


class ClusterCcqs:
    """Gathers the CCQs of the cluster.

    Args:
        driver: of this node's machine.
        node: this node, with the topology.
        peers: the clients of the other nodes.
        clock: wall and monotonic clock.
    """

    def __init__(
        self, driver: Driver, node: StorageNode, *, peers: GrpcPeers, clock: Clock
    ) -> None:
        self._machine = driver.machine
        self._node = node
        self._peers = peers
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._counts: Counter[str] = Counter()
        self._counted_at = float("-inf")
        self._submitted: Counter[str] = Counter()
        self._submitting: Counter[str] = Counter()
        self._counting = asyncio.Lock()

    # --- of this node -------------------------------------------------------------------------

    def here(self, dataset: str = "") -> list[CcqInfo]:
        """The CCQs with a record here, those that ended lately included.

        Raises:
            Unavailable: this node is starting.
        """
        if not self._machine.is_restored:
            raise Unavailable("this node is starting", node=self._node.name, after_s=0.5)
        since = self._clock.wall() - ENDED_LISTED_S
        return [
            self.info(record)
            for record in self._machine.records
            if (not dataset or record.ccq.dataset == dataset)
            and (record.ended is None or record.ended_at >= since)
        ]

    def owned_here(self) -> dict[str, int]:
        """The number of CCQs that this node coordinates, by owner."""
        return Counter(one.ccq.owner for one in self._machine.coordinated.values())

    def info(self, record: Record) -> CcqInfo:
        ccq = record.ccq
        return CcqInfo(
            id=ccq.id,
            dataset=ccq.dataset,
            query_json=ccq.query,
            interval_s=ccq.interval_s,
            expires_at=ccq.expires_at,
            sampler=ccq.sampler,
            compression=ccq.compression.text,
            coordinator=record.coordinator,
            coordinator_address=self.address(record.coordinator),
            term=record.term,
            state=record.ended or RUNNING,
            window=ccq.window,
            holders=tuple(one.node for one in record.holders),
            owner=ccq.owner,
            retrieved=record.retrieved,
            added=ccq.added,
        )

    def address(self, node: str) -> str:
        """Empty if this node does not know it yet."""
        try:
            return self._peers.address(node)
        except Unavailable:
            return ""

    # --- of the cluster -----------------------------------------------------------------------

    async def all(self, dataset: str = "") -> list[CcqInfo]:
        """The CCQs that have not ended, by id.

        Raises:
            Unavailable: so many nodes do not answer that a CCQ could be missing.
        """
        lists, silent = await self._gather(dataset)
        if len(silent) >= self._machine.state.options.record_replicas:
            raise Unavailable(
                "expected the continuous queries of all nodes, but these do not answer: "
                f"{', '.join(silent)}; try again",
                nodes=silent,
                after_s=1.0,
            )
        return merge(lists)

    async def progress(self, dataset: str) -> list[ReaderProgress] | None:
        """What the readers of a dataset have fetched; None if a node does not answer."""
        lists, silent = await self._gather(dataset)
        if silent:
            return None
        return [ReaderProgress(one.id, one.retrieved) for one in merge(lists)]

    def progress_from_thread(self, dataset: str) -> list[ReaderProgress] | None:
        """`progress`, called from another thread than that of the event loop."""
        if self._loop is None:
            return None
        call = partial(self.progress, dataset)
        return call_in_loop(self._loop, call, timeout_s=PROGRESS_TIMEOUT_S, otherwise=None)

    def start(self) -> None:
        """Note the running event loop, for `progress_from_thread`."""
        self._loop = asyncio.get_running_loop()

    # --- counts -------------------------------------------------------------------------------

    async def owned_by(self, owner: str) -> int:
        """Number of CCQs of an owner; those of nodes that do not answer are not counted."""
        await self._count()
        return self._counts[owner] + self._submitted[owner] + self._submitting[owner]

    async def total(self) -> int:
        """Number of CCQs; those of nodes that do not answer are not counted."""
        await self._count()
        return self._counts.total() + self._submitted.total() + self._submitting.total()

    @contextmanager
    def submitting(self, owner: str) -> Iterator[None]:
        """Count a CCQ while it is being submitted through this node."""
        self._submitting[owner] += 1
        try:
            yield
        finally:
            self._submitting[owner] -= 1

    def record_submitted(self, owner: str) -> None:
        """Count a CCQ that was submitted through this node, until the next gathering."""
        self._submitted[owner] += 1

    async def _count(self) -> None:
        async with self._counting:
            if self._clock.monotonic() < self._counted_at + COUNTS_TTL_S:
                return
            known = self._submitted.copy()
            counts = Counter(self.owned_here())
            answers, _ = await self._ask_all(self._peers.ccq_counts)
            for answer in answers:
                counts.update(answer)
            self._submitted -= known
            self._counts, self._counted_at = counts, self._clock.monotonic()

    # --- inside -------------------------------------------------------------------------------

    async def _gather(self, dataset: str) -> tuple[list[list[CcqInfo]], list[str]]:
        """The lists of this node and of those that answer, and the other nodes."""
        lists, silent = await self._ask_all(partial(self._peers.ccqs, dataset=dataset))
        return [self.here(dataset), *lists], silent

    async def _ask_all(self, ask: Callable[[str], Awaitable[T]]) -> tuple[list[T], list[str]]:
        """The answers of the other nodes, and the nodes that do not answer."""
        names = [one.name for one in self._node.topology.nodes if one.name != self._node.name]
        answers = await asyncio.gather(*(_answer(ask(name)) for name in names))
        silent = [name for name, answer in zip(names, answers, strict=True) if answer is None]
        return [answer for answer in answers if answer is not None], silent


async def _answer(call: Awaitable[T]) -> T | None:
    """The result of a call; None if it fails."""
    try:
        return await call
    except GalileoError as error:
        log.info("the continuous queries of a node are not known: %s", error)
        return None


def merge(lists: Iterable[Iterable[CcqInfo]]) -> list[CcqInfo]:
    """The newest information about each CCQ that no node knows to have ended, by id."""
    newest: dict[str, CcqInfo] = {}
    ended: set[str] = set()
    retrieved: dict[str, Cursor] = {}
    for one in (one for ccqs in lists for one in ccqs):
        if one.state != RUNNING:
            ended.add(one.id)
        known = newest.get(one.id)
        retrieved[one.id] = retrieved.get(one.id, EMPTY_CURSOR).join(one.retrieved)
        if known is None or one.term > known.term:
            newest[one.id] = one
    return [
        replace(newest[ccq_id], retrieved=retrieved[ccq_id])
        for ccq_id in sorted(newest.keys() - ended)
    ]
