"""How elections spread CCQs over nodes, with the production machines and no faults."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Any

import pytest

from galileo.ccq.events import AnswerBatch, BatchItem, BatchSubmitted, SubmitRequested
from galileo.ccq.machine import Continuous
from galileo.ccq.model import Ccq
from galileo.ccq.options import ContinuousOptions
from galileo.cursor import EMPTY_CURSOR
from galileo.election.elections import CoordinatorElections
from galileo.election.events import (
    AnswerSubmit,
    MessageArrived,
    RecordsLoaded,
    RefuseSubmit,
    Send,
    UsageMeasured,
)
from galileo.election.machine import Election, ElectionOptions
from galileo.election.messages import UsageStatistics

WALL = 1_000.0
RATIO_MAX = 1.3
SUBMISSIONS_PER_S = 200.0


class Cluster:
    """Nodes in groups of about equal size, all of which may hold matches, without faults.

    Every node has a load of its own, which it measures once, so the figures of a poll are old.
    """

    def __init__(
        self, nodes: int, groups: int, seed: int, machine: type[Continuous] = Continuous
    ) -> None:
        self.random = Random(seed)
        names = [f"node-{number}" for number in range(nodes)]
        self.names = names
        of_group = tuple(tuple(names[start::groups]) for start in range(groups))
        self.nodes = {
            name: machine(name, ContinuousOptions(ordinal, of_group))
            for ordinal, name in enumerate(names)
        }
        self.answers: list[Any] = []
        self._mail: deque[tuple[str, str, Any]] = deque()
        self._requests = 0
        self.now = 0.0
        for name in names:
            usage = UsageStatistics(self.random.uniform(0.1, 0.5), memory_free_bytes=8 << 30)
            self.feed(name, RecordsLoaded((), WALL))
            self.feed(name, UsageMeasured(usage))
        self.settle()

    def feed(self, name: str, event: Any) -> None:
        for effect in self.nodes[name].step(event, self.now):
            if isinstance(effect, Send):
                self._mail.append((name, effect.to, effect.message))
            elif isinstance(effect, AnswerSubmit | AnswerBatch | RefuseSubmit):
                self.answers.append(effect)

    def settle(self) -> None:
        while self._mail:
            sender, to, message = self._mail.popleft()
            self.feed(to, MessageArrived(sender, message))

    def submit(self, count: int) -> None:
        """Submits CCQs at a random node, without waiting for answers."""
        at = self.random.choice(self.names)
        self.now += count / SUBMISSIONS_PER_S
        for _ in range(count):
            self._requests += 1
            ccq = self._ccq(self._requests)
            event = SubmitRequested(self._requests, ccq, EMPTY_CURSOR, candidates=tuple(self.names))
            self.feed(at, event)

    def submit_batch(self, count: int) -> None:
        self.now += count / SUBMISSIONS_PER_S
        items = []
        for _ in range(count):
            self._requests += 1
            items.append(BatchItem(self._ccq(self._requests), candidates=tuple(self.names)))
        self.feed(self.random.choice(self.names), BatchSubmitted(self._requests, tuple(items)))

    def ratio(self) -> float:
        """CCQs of the busiest coordinator to the mean."""
        counts = Counter({name: len(node.coordinated) for name, node in self.nodes.items()})
        return max(counts.values()) / (sum(counts.values()) / len(counts))

    @property
    def coordinated(self) -> int:
        return sum(len(node.coordinated) for node in self.nodes.values())

    def _ccq(self, number: int) -> Ccq:
        return Ccq(f"ccq-{number}", "nam", "true", 60.0, WALL + 3600.0)


CLUSTERS = [
    pytest.param(12, 3, 1_000, id="12 nodes in 3 groups"),
    pytest.param(6, 2, 300, id="6 nodes in 2 groups"),
    pytest.param(75, 18, 3_000, id="75 nodes in 18 groups", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("nodes", "groups", "ccqs"), CLUSTERS)
def test_election_single_submissions_spread_over_nodes(nodes: int, groups: int, ccqs: int) -> None:
    cluster = Cluster(nodes, groups, seed=1)
    for _ in range(ccqs):
        cluster.submit(1)
        cluster.settle()
    assert cluster.coordinated == len(cluster.answers) == ccqs
    assert cluster.ratio() <= RATIO_MAX


@pytest.mark.parametrize(("nodes", "groups", "ccqs"), CLUSTERS)
def test_election_concurrent_submissions_spread_over_nodes(
    nodes: int, groups: int, ccqs: int
) -> None:
    cluster = Cluster(nodes, groups, seed=2)
    for _ in range(ccqs // 50):
        cluster.submit(50)
        cluster.settle()
    assert cluster.coordinated == len(cluster.answers) == ccqs
    assert cluster.ratio() <= RATIO_MAX


@pytest.mark.parametrize(("nodes", "groups", "ccqs"), CLUSTERS)
def test_election_batches_spread_over_nodes(nodes: int, groups: int, ccqs: int) -> None:
    cluster = Cluster(nodes, groups, seed=3)
    for _ in range(ccqs // 100):
        cluster.submit_batch(100)
        cluster.settle()
    assert cluster.coordinated == ccqs
    assert sum(len(answer.outcomes) for answer in cluster.answers) == ccqs
    assert cluster.ratio() <= RATIO_MAX


class _Forgetful(CoordinatorElections):
    """Knows only what nodes have answered, not what was offered since."""

    def election(self, options: ElectionOptions) -> Election:
        return Election(options=options)


class _ForgetfulMachine(Continuous):
    elections_type = _Forgetful


def test_election_without_counting_offers_does_not_spread() -> None:
    ratios = []
    for machine in (Continuous, _ForgetfulMachine):
        cluster = Cluster(6, 2, seed=4, machine=machine)
        for _ in range(2):
            cluster.submit(150)
            cluster.settle()
        assert cluster.coordinated == 300
        ratios.append(cluster.ratio())
    assert ratios[0] <= RATIO_MAX < ratios[1]
