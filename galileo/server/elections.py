"""Elects the nodes that run continuous queries: polls nodes for their usage (paper, IV.F).

A node measures its usage once a second, so what it has answered serves all elections of this node
for `USAGE_TTL_S`. The queries for which this node has chosen it since are added.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from galileo import spans
from galileo.ccq.stats import NodeCounts
from galileo.clock import Clock
from galileo.dht.topology_state import TopologyState
from galileo.election.election import Candidacy, choose, is_decided, rounds
from galileo.election.ranking import MEMORY_RESERVE_BYTES, Candidate, UsageStatistics
from galileo.errors import GalileoError

USAGE_TTL_S = 1.0
POLL_TIMEOUT_S = 0.5
TOGETHER = 32
"""Elections between which other tasks may run."""


@dataclass(frozen=True, slots=True)
class _Poll:
    """A node that is being asked; elections wait for its answer until `wait_until`."""

    asking: asyncio.Task[None]
    wait_until: float


@dataclass(frozen=True, slots=True)
class _Answer:
    candidate: Candidate
    answered_at: float


class Elections:
    """The elections that one node holds.

    Args:
        name: of the node.
        live: the topology.
        ask: asks another node for its usage.
        own: the usage of this node.
        dead: nodes that count as dead.
        options: how nodes are ranked.
        counts: of this node.
        clock: monotonic clock.
    """

    def __init__(
        self,
        name: str,
        live: TopologyState,
        *,
        ask: Callable[[str], Awaitable[UsageStatistics]],
        own: Callable[[], UsageStatistics],
        dead: Callable[[], Collection[str]],
        reserve_bytes: int = MEMORY_RESERVE_BYTES,
        counts: NodeCounts,
        clock: Clock,
    ) -> None:
        self._name = name
        self._live = live
        self._ask = ask
        self._own = own
        self._dead = dead
        self._reserve_bytes = reserve_bytes
        self._counts = counts
        self._clock = clock
        self._answers: dict[str, _Answer] = {}
        self._chosen = Counter[str]()
        self._polling: dict[str, _Poll] = {}

    async def elect(self, candidacies: Iterable[Candidacy]) -> dict[str, tuple[str, ...]]:
        """The nodes for each CCQ, the best first; fewer than wanted, or none, if too few answer."""
        elected = {}
        with spans.child("election"):
            for number, candidacy in enumerate(candidacies, 1):
                elected[candidacy.key] = await self._elect(candidacy)
                if number % TOGETHER == 0:  # Without polls nothing else would run meanwhile.
                    await asyncio.sleep(0)
        return elected

    async def _elect(self, candidacy: Candidacy) -> tuple[str, ...]:
        topology, reserve_bytes = self._live.current, self._reserve_bytes
        groups = [[node.name for node in group.nodes] for group in topology.groups]
        candidates: dict[str, Candidate] = {}
        for polled in rounds(candidacy, groups, self._dead()):
            candidates |= await self._poll(polled)
            if is_decided(candidacy, candidates, reserve_bytes=reserve_bytes):
                break
        nodes = choose(candidacy, candidates, topology.fault_domains, reserve_bytes=reserve_bytes)
        self._counts.elections += 1
        self._counts.elections_failed += not nodes
        self._chosen.update(nodes[:1])
        return nodes

    async def _poll(self, nodes: Sequence[str]) -> dict[str, Candidate]:
        """The usage of those that answer in time."""
        now = self._clock.monotonic()
        polls = [self._ask_once(node, now) for node in nodes if not self._is_known(node, now)]
        wait_s = max((poll.wait_until for poll in polls), default=now) - now
        if wait_s > 0:
            await asyncio.wait([poll.asking for poll in polls], timeout=wait_s)
        now = self._clock.monotonic()
        return {node: self._counted(node) for node in nodes if self._is_known(node, now)}

    def _is_known(self, node: str, now: float) -> bool:
        answer = self._answers.get(node)
        return answer is not None and now < answer.answered_at + USAGE_TTL_S

    def _ask_once(self, node: str, now: float) -> _Poll:
        """The poll of a node; all elections share it, so a silent node holds them up once."""
        poll = self._polling.get(node)
        if poll is None:
            asking = asyncio.create_task(self._ask_node(node))
            asking.add_done_callback(lambda _: self._polling.pop(node, None))
            poll = self._polling[node] = _Poll(asking, now + POLL_TIMEOUT_S)
        return poll

    async def _ask_node(self, node: str) -> None:
        begun = self._clock.monotonic()
        try:
            async with asyncio.timeout(USAGE_TTL_S):
                usage = self._own() if node == self._name else await self._ask(node)
        except (GalileoError, TimeoutError):
            self._answers.pop(node, None)
            return
        now = self._clock.monotonic()
        self._answers[node] = _Answer(Candidate(usage, now - begun), now)
        self._chosen.pop(node, None)

    def _counted(self, node: str) -> Candidate:
        """A node with what this one has chosen it for since it answered."""
        candidate = self._answers[node].candidate
        count = candidate.usage.ccq_count + self._chosen[node]
        return replace(candidate, usage=replace(candidate.usage, ccq_count=count))
