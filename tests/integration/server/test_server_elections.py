"""Elections of one node, which polls others that answer, fail or are silent."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from galileo.ccq.stats import NodeCounts
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.dht.topology_state import TopologyState
from galileo.election.election import POLLED_FIRST, Candidacy
from galileo.election.ranking import UsageStatistics
from galileo.errors import Unavailable
from galileo.server import elections
from galileo.server.elections import USAGE_TTL_S, Elections

ME, NAMES = "n0", [f"n{number}" for number in range(6)]
IDLE = UsageStatistics(memory_free_bytes=8 << 30)
TIMEOUT_S = 60.0


@dataclass
class Poll:
    """The nodes, and the elections of the first one.

    Attributes:
        silent: nodes that never answer.
        away: nodes that cannot be reached.
        dead: nodes that count as dead.
        asked: how often each node was asked.
    """

    usage: dict[str, UsageStatistics] = field(default_factory=lambda: dict.fromkeys(NAMES, IDLE))
    silent: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    asked: Counter[str] = field(default_factory=Counter)
    counts: NodeCounts = field(default_factory=NodeCounts)
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        nodes = [NodeInfo(name, f"127.0.0.1:{port}") for port, name in enumerate(NAMES, 1)]
        groups = tuple(Group(f"of-{node.name}", (node,)) for node in nodes)
        self.elections = Elections(
            ME,
            TopologyState(Topology("test", groups, even_ranges(len(groups)))),
            ask=self.ask,
            own=lambda: self.usage[ME],
            dead=lambda: self.dead,
            counts=self.counts,
            clock=self,
        )

    def wall(self) -> float:
        return 0.0

    async def ask(self, node: str) -> UsageStatistics:
        self.asked[node] += 1
        if node in self.silent:
            await asyncio.Event().wait()
        if node in self.away:
            raise Unavailable(f"node {node} is away", node=node)
        await asyncio.sleep(0)
        return self.usage[node]

    async def elect(self, *keys: str, count: int = 1) -> dict[str, tuple[str, ...]]:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.elections.elect(Candidacy(key, count) for key in keys)


async def test_elections_share_polls_whose_answers_serve_a_second() -> None:
    now = 0.0
    poll = Poll(monotonic=lambda: now)
    keys = [f"q{number}" for number in range(50)]
    await asyncio.gather(*(poll.elect(key) for key in keys))
    assert poll.asked == dict.fromkeys(NAMES[1:], 1), "this node need not be asked"
    now = USAGE_TTL_S - 0.1
    await poll.elect(*keys)
    assert poll.asked.total() == len(NAMES) - 1
    now = USAGE_TTL_S
    await poll.elect(*keys)
    assert poll.asked == dict.fromkeys(NAMES[1:], 2)
    assert (poll.counts.elections, poll.counts.elections_failed) == (150, 0)


async def test_elections_of_a_second_spread_over_all_nodes() -> None:
    """What a node was chosen for since it answered counts, also at this node itself."""
    poll = Poll(monotonic=lambda: 0.0)
    elected = await poll.elect(*(f"q{number}" for number in range(600)))
    counts = Counter(nodes[0] for nodes in elected.values())
    assert sorted(counts) == NAMES
    assert all(85 <= count <= 115 for count in counts.values())


@pytest.mark.parametrize("keys", [1, 500])
async def test_silent_node_holds_up_elections_once(
    monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    monkeypatch.setattr(elections, "POLL_TIMEOUT_S", 0.02)
    poll = Poll(silent={NAMES[1], NAMES[2]})
    before = time.monotonic()
    elected = await poll.elect(*(f"q{number}" for number in range(keys)), count=3)
    assert {*sum(elected.values(), ())} <= {*NAMES} - poll.silent
    assert time.monotonic() < before + USAGE_TTL_S
    assert max(poll.asked[name] for name in poll.silent) == 1


async def test_nodes_that_drain_fail_or_are_dead_are_not_elected() -> None:
    poll = Poll(away={"n1"}, dead={"n2"})
    poll.usage["n3"] = UsageStatistics(memory_free_bytes=8 << 30, is_draining=True)
    elected = await poll.elect(*(f"q{number}" for number in range(20)), count=6)
    assert {tuple(sorted(nodes)) for nodes in elected.values()} == {(ME, "n4", "n5")}
    assert poll.asked["n2"] == 0
    poll.usage = dict.fromkeys(NAMES, poll.usage["n3"])
    poll.elections._answers.clear()
    assert await poll.elect("q") == {"q": ()}
    assert poll.counts.elections_failed == 1


async def test_election_polls_a_few_nodes_unless_they_are_not_suitable() -> None:
    poll = Poll(monotonic=lambda: 0.0)
    await poll.elect("q")
    assert len(poll.elections._answers) == POLLED_FIRST
    busy = UsageStatistics(memory_free_bytes=8 << 30, cpu_share=0.95)
    poll = Poll(usage=dict.fromkeys(NAMES, busy), monotonic=lambda: 0.0)
    assert await poll.elect("q") == {"q": (ME,)}, "the least loaded, where none is suitable"
    assert len(poll.elections._answers) == len(NAMES)
