"""Repetitive channels of real nodes, compared with loops over all pairs: what matches now."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from channel_rounds import TEMPLATE, Delivered, Rounds, matches
from waiting import until

from galileo.model.channel import Channel
from galileo.model.times import MICROS
from galileo.node import channel_executor, channel_matching, channel_observations
from galileo.node.channel_observations import HISTORY_AGE_S

PERIOD_S = 60.0
WAIT_S = 20.0


class RunningClock:
    """Begins at a time, seconds since 1970."""

    def __init__(self, at: float) -> None:
        self.monotonic, self._shift = time.monotonic, at - time.monotonic()

    def wall(self) -> float:
        return self.monotonic() + self._shift


def histories_of(node: Any) -> list[Any]:
    return [*node.channels._observations._histories.get("alerts", {}).values()]


class Repeats(Rounds):
    """Rounds at times of one clock; the oracle knows when executions were due.

    Attributes:
        times: of the observations, microseconds.
        due_us: of the last executions.
    """

    def __init__(
        self, cluster: Any, seed: int = 0, *, age_max: str | None = None, period_s: float = PERIOD_S
    ) -> None:
        made = Channel("alerts", "nam", TEMPLATE, new="none", period=period_s, age_max=age_max)
        super().__init__(cluster, made, seed)
        self.times: dict[str, int] = {}
        self.due_us = 0
        self.set_clock()

    @property
    def now_us(self) -> int:
        return round(self.cluster.clock.wall() * MICROS)

    async def restart(self, name: str) -> None:
        await self.cluster.restart(name)
        self.set_clock()
        self.hear()

    def wait(self, seconds: float = PERIOD_S) -> None:
        self.cluster.clock.now += seconds

    def is_in_period(self, pause_s: float) -> bool:
        """Whether the clock is in the period of the last executions after a pause."""
        return self.channel.due_us(self.cluster.clock.wall() + pause_s) == self.due_us

    def any_time(self) -> int:
        """Of the last hour, or ahead of the clock."""
        return self.now_us - round(self.chance.uniform(-0.5, 6.0) * PERIOD_S * MICROS)

    async def observe(self, count: int) -> None:
        known = len(self.observations)
        await super().observe(count)
        self.times |= zip([*self.observations][known:], self.sent_us, strict=True)

    def due(self) -> Counter[Delivered]:
        """All that matches, if no execution was due in this period before."""
        due_us = self.channel.due_us(self.cluster.clock.wall())
        if due_us == self.due_us:
            return Counter()
        self.due_us = due_us
        oldest_us = due_us - (self.channel.age_max_us or due_us)
        return Counter(
            (subscription[0], name, one, False)
            for name, subscription in self.subscriptions.items()
            for one, value in self.observations.items()
            if self.times[one] >= oldest_us and matches(subscription, value)
        )

    def failures(self) -> list[str]:
        return [
            one.failure
            for node in self.cluster.nodes
            for one in node.channels.progress("alerts").values()
            if one.failure
        ]

    async def try_all(self) -> None:
        """Each node tries an execution once."""
        self.hear()
        for node in self.cluster.nodes:
            await node.channels.execute("alerts")


@pytest.mark.parametrize(
    ("age_max", "seed", "rounds"),
    [
        (None, 0, 5),
        ("5m", 1, 7),
        *(
            pytest.param(age_max, seed, 16, marks=pytest.mark.slow)
            for age_max in (None, "5m")
            for seed in range(2, 5)
        ),
    ],
)
async def test_each_period_delivers_all_that_loops_find(
    cluster: Any, age_max: str | None, seed: int, rounds: int
) -> None:
    world = Repeats(cluster, seed, age_max=age_max)
    await world.begin()
    await world.subscribe(10)
    await world.observe(10)
    total = 0
    for number in range(rounds):
        pause_s = world.chance.choice([0.3, 1.0, 1.0, 3.0]) * PERIOD_S
        is_in_period = world.is_in_period(pause_s)
        # A partition without subscriptions has no execution, and one later in the period.
        for _ in range(0 if is_in_period else world.chance.randrange(3)):
            await world.subscribe(world.chance.randint(1, 8))
        for _ in range(world.chance.randrange(3)):
            await world.observe(world.chance.randint(1, 6))
        world.wait(pause_s)
        await world.execute()
        delivered = await world.delivered()
        assert delivered == world.due(), f"round {number}"
        assert not (delivered and is_in_period)
        total += delivered.total()
        await disturb(world, number)
        await world.execute()
        assert not await world.delivered(), "the period was executed before"
    assert total > 30


async def disturb(world: Repeats, number: int) -> None:
    """A node restarts, or a partition moves."""
    cluster, kind = world.cluster, number % 4
    if kind == 1:
        await world.restart(world.chance.choice("abc"))
    elif kind == 3:
        of_a = cluster["a"].partitions
        partition = world.chance.choice(sorted(of_a | cluster["c"].partitions))
        await cluster.move(partition, to="c" if partition in of_a else "a")


async def test_a_second_attempt_has_the_bound_of_the_first(cluster: Any) -> None:
    """What was young enough when the execution was due is delivered by a later attempt."""
    world = Repeats(cluster, age_max="1m")
    await world.begin()
    await world.subscribe(15)
    world.wait(PERIOD_S - world.now_us / MICROS % PERIOD_S)
    world.any_time = lambda: world.now_us - round(0.99 * PERIOD_S * MICROS)
    for _ in range(4):
        await world.observe(6)
    await world.execute()
    first = await world.delivered()
    assert first == world.due()
    world.wait()
    for _ in range(4):
        await world.observe(6)
    await world.restart("a")  # Its history is to be read again.
    cluster.network.away = {"b"}
    await cluster["a"].channels.execute("alerts")
    assert any("cannot all be read" in failure for failure in world.failures())
    world.wait(0.7 * PERIOD_S)
    cluster.network.away = set()
    await world.execute()
    delivered = await world.delivered()
    assert delivered == world.due()
    assert delivered


async def test_a_clock_that_is_behind_waits_and_says_so(cluster: Any) -> None:
    world = Repeats(cluster, age_max="150s")
    await world.begin()
    await world.subscribe(15)
    await world.observe(20)
    world.wait()
    await world.execute()
    assert await world.delivered() == world.due()
    world.wait(-PERIOD_S)
    await world.try_all()
    failures = world.failures()
    assert failures
    assert all("clock of this node is behind" in failure for failure in failures)
    assert not await world.delivered()
    world.wait(2 * PERIOD_S)
    await world.execute()
    assert await world.delivered() == world.due()


async def test_a_history_of_a_later_bound_is_not_used_for_an_earlier_one(cluster: Any) -> None:
    """A node whose clock was ahead takes a partition over that another one has executed."""
    world = Repeats(cluster, age_max="1m")
    await world.begin()
    await world.subscribe(15)
    partition = min(cluster["c"].partitions)
    world.any_time = lambda: world.now_us
    await world.observe(20)
    world.hear()
    for name in ("b", "c"):
        await cluster[name].channels.execute("alerts")
    first = await world.delivered()
    world.wait(3 * PERIOD_S)
    await cluster["a"].channels.execute("alerts")
    assert not await world.delivered(), "all are too old for the clock that is ahead"
    world.wait(-2 * PERIOD_S)
    await cluster.move(partition, to="a")
    world.any_time = lambda: world.now_us - round(0.9 * PERIOD_S * MICROS)
    await world.observe(20)
    await cluster["c"].channels.execute("alerts")
    world.hear()
    await cluster["a"].channels.execute("alerts")
    again = await world.delivered()
    names = {name for _, name, *_ in again}
    assert names
    assert Counter(one for one in first if one[1] in names) <= again


async def test_a_result_that_is_too_large_fails_and_says_so(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Repeats(cluster)
    await world.begin()
    await world.subscribe(15)
    await world.observe(20)
    monkeypatch.setattr(channel_executor, "BYTES_MAX", 1_000)
    await world.try_all()
    failures = world.failures()
    assert failures
    assert all("expected at most 1,000 bytes" in failure for failure in failures)
    monkeypatch.undo()
    await world.execute()
    delivered, due = await world.delivered(), world.due()
    assert delivered
    assert delivered == due


async def test_too_much_for_a_broker_fails_and_says_so(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Repeats(cluster)
    await world.begin()
    await world.subscribe(15)
    await world.observe(20)
    with monkeypatch.context() as patch:
        patch.setattr(channel_matching, "SHARE_BYTES_MAX", 10)
        await world.try_all()
    failures = world.failures()
    assert failures
    assert all("use several brokers" in failure for failure in failures)
    await world.execute()
    delivered, due = await world.delivered(), world.due()
    assert delivered
    assert delivered == due


async def test_too_many_observations_fail_whether_they_are_new_or_known(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Repeats(cluster, age_max="150s")
    await world.begin()
    await world.subscribe(15)
    world.any_time = lambda: world.now_us
    await world.observe(12)
    for rows_max, more in ((8, 0), (20, 12)):
        await world.observe(more)
        monkeypatch.setattr(channel_observations, "HISTORY_ROWS_MAX", rows_max)
        await world.try_all()
        failures = world.failures()
        assert failures
        assert all(f"at most {rows_max} observations" in failure for failure in failures)
        monkeypatch.undo()
        await world.execute()
        assert await world.delivered() == world.due()
        world.wait()
    monkeypatch.setattr(channel_observations, "HISTORY_ROWS_MAX", 1)
    world.wait(3 * PERIOD_S)  # All are too old, and are read no more.
    await world.execute()
    assert not await world.delivered()


async def test_the_memory_holds_no_observations_that_are_too_old(cluster: Any) -> None:
    world = Repeats(cluster, age_max="150s")
    await world.begin()
    await world.subscribe(15)
    world.any_time = lambda: world.now_us
    sizes = []
    for _ in range(6):
        await world.observe(10)
        await world.execute()
        assert await world.delivered() == world.due()
        histories = [one for node in cluster.nodes for one in histories_of(node)]
        sizes.append(max(one.rows.observations.num_rows for one in histories))
        world.wait()
    assert sizes[0] == 10
    assert max(sizes) <= 30


async def test_a_long_period_keeps_no_observations_in_memory(cluster: Any) -> None:
    world = Repeats(cluster, period_s=HISTORY_AGE_S)
    await world.begin()
    await world.subscribe(15)
    for _ in range(2):
        await world.observe(20)
        await world.execute()
        assert await world.delivered() == world.due()
        assert not any(histories_of(node) for node in cluster.nodes)
        world.wait(HISTORY_AGE_S)


async def test_what_retention_drops_is_delivered_no_more(cluster: Any) -> None:
    world = Repeats(cluster)
    await world.begin()
    await world.subscribe(15)
    for _ in range(3):
        await world.observe(20)
    await world.execute()
    assert await world.delivered() == world.due()
    for node in cluster.nodes:
        shard = node.catalog.shard("nam")
        for partition, journal in shard.own.items():
            journal.seal()
            for file in journal.log_files():
                shard.drop(partition, file.last)
    world.observations.clear()
    world.wait(HISTORY_AGE_S)
    await world.execute()
    assert await world.delivered() == world.due() == Counter()


async def test_an_attempt_that_failed_is_repeated_within_the_period(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Repeats(cluster)
    await world.begin()
    await world.subscribe(15)
    await world.observe(20)
    await world.execute()
    assert await world.delivered() == world.due()
    await world.restart("a")
    cluster.clock = RunningClock(world.due_us / MICROS + PERIOD_S - 0.05)
    world.set_clock()
    monkeypatch.setattr(channel_executor, "RETRY_S", 0.01)
    cluster.network.away = {"b"}
    running = asyncio.create_task(cluster["a"].channels.run())
    try:
        await until(lambda: bool(world.failures()))
        assert any("cannot all be read" in failure for failure in world.failures())
        cluster.network.away = set()
        await until(lambda: not world.failures())
        assert await world.delivered()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
