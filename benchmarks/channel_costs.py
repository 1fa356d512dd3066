"""What a channel costs those that ingest and subscribe, on a cluster that works.

The channel is that of NewNearby (`benchmarks.channels`), with circles of 500 m, so that few tweets
match. The same tweets are ingested in turn into a dataset with the channel and into one without.
Then tweets come in once a second while subscriptions are stored, many in a call and one in a call.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

import galileo
from benchmarks import channels, clusters
from benchmarks.figures import Figure, Goal, Peer, Spread, in_turn
from benchmarks.sizes import Bench
from galileo.client import AsyncClient, Client
from galileo.cursor import EMPTY_CURSOR, Cursor

PLAIN, WATCHED, CHANNEL = "plain", "watched", "few"
TEMPLATE = f"hateful = TRUE AND S_DWITHIN(geometry, :place, {channels.UNSEEN_M:.0f})"
BATCH_ROWS = 65_536
MANY_ROWS = 10_000
TOGETHER = 64
PERIOD_S = 1.0
TWEETS_PER_S = 160


def measure(bench: Bench) -> Iterator[Figure]:
    """Observations and subscriptions a second."""
    with (
        clusters.cluster(bench.directory, nodes=channels.NODES, groups=1) as running,
        running.client(timeout=clusters.PATIENCE) as client,
    ):
        for name in (PLAIN, WATCHED):
            client.create_dataset(galileo.Schema(name, channels.FEATURES, geohash_precision=4))
        client.create_channel(galileo.Channel(CHANNEL, WATCHED, TEMPLATE, period=PERIOD_S))
        there = channels.subscriptions_of(channels.NEARBY, bench.sizes.watching)
        client.subscribe(CHANNEL, there, broker=channels.BROKER)
        yield _ingest(bench, client)
        yield from _subscribe(bench, client, running.addresses)


def _ingest(bench: Bench, client: Client) -> Figure:
    """Both ways in turn; the executions of one run are over before the next one begins.

    Each way is the first one of two as often as the second one, which finds nodes that still merge
    what they got just before.
    """
    table = channels.tweets_of(0, rows=bench.sizes.watched)
    reached = EMPTY_CURSOR

    def ingesting(name: str) -> Callable[[], None]:
        def ingest() -> None:
            nonlocal reached
            receipt = client.ingest(name, table, batch_rows=BATCH_ROWS)
            if name == WATCHED:
                reached = receipt.reached

        return ingest

    first, watched, again, last = in_turn(
        ingesting(PLAIN),
        ingesting(WATCHED),
        ingesting(WATCHED),
        ingesting(PLAIN),
        runs=5 * bench.sizes.runs,
        before=lambda: _executed(client, reached),
    )
    watched = Spread.of([*watched.values, *again.values])
    plain = Spread.of([*first.values, *last.values])
    count = table.num_rows
    return Figure(
        f"ingesting {count:,} tweets under a channel with {bench.sizes.watching:,} subscriptions, "
        f"{channels.NODES} nodes",
        "observations/s",
        watched.per_second(count),
        (Peer("without a channel", plain.per_second(count)),),
        (Goal("at least", 0.98, of_peer=True),),
    )


def _executed(client: Client, reached: Cursor) -> None:
    """Returns when all partitions of the channel have matched so far."""
    deadline = time.monotonic() + channels.SETTLED_S
    while not all(one.cut.covers(reached) for one in client.describe_channel(CHANNEL)):
        if time.monotonic() > deadline:
            raise AssertionError("the executions do not come to an end")
        time.sleep(channels.LOOK_S)


def _subscribe(bench: Bench, client: Client, addresses: Sequence[str]) -> Iterator[Figure]:
    """Subscriptions a second while tweets come and executions run, which must not be late."""
    runs, singles = bench.sizes.runs, bench.sizes.singles
    rows = channels.subscriptions_of(channels.NEARBY, MANY_ROWS)
    numbers = itertools.count()
    executions = list[float]()

    def one_by_one() -> None:
        for _ in range(singles):
            client.subscribe(CHANNEL, _single(next(numbers)), broker=channels.BROKER)

    with _tweeting(client, executions):
        [many] = in_turn(
            lambda: client.subscribe(CHANNEL, rows, broker=channels.BROKER), runs=3 * runs
        )
        [alone] = in_turn(one_by_one, runs=runs)
        together = asyncio.run(_together(addresses, runs=runs, count=4 * singles))
    name = "subscribing while the channel runs, durable"
    yield Figure(
        f"{name}: {MANY_ROWS:,} in a call",
        "subscriptions/s",
        many.per_second(MANY_ROWS),
        goals=(Goal("at least", 10_000),),
    )
    yield Figure(
        f"{name}: one in a call, {TOGETHER} calls at a time",
        "subscriptions/s",
        together.per_second(4 * singles),
        goals=(Goal("at least", 500),),
    )
    yield Figure(
        f"{name}: one in a call, one call after the other",
        "subscriptions/s",
        alone.per_second(singles),
    )
    yield Figure(
        f"an execution of {TWEETS_PER_S} tweets meanwhile",
        "s",
        Spread.of(executions),
        goals=(Goal("at most", PERIOD_S),),
    )
    bench.say(f"load {os.getloadavg()[0]:.1f}")


async def _together(addresses: Sequence[str], *, runs: int, count: int) -> Spread:
    """Seconds of so many calls, of which some are under way at the same time."""
    numbers, took = iter(range(runs * count + count)), list[float]()
    async with AsyncClient(*addresses, timeout=clusters.PATIENCE) as client:

        async def subscribe(some: Iterator[int]) -> None:
            for number in some:
                await client.subscribe(CHANNEL, _single(number), broker=channels.BROKER)

        for _ in range(runs + 1):
            some = itertools.islice(numbers, count)
            begun = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(TOGETHER):
                    group.create_task(subscribe(some))
            took.append(time.perf_counter() - begun)
    return Spread.of(took[1:])


def _single(number: int) -> pa.Table:
    place = f"POINT ({-125 + number % 60} {25 + number % 24})"
    return pa.table({"id": [f"single-{number}"], "place": [place]})


@contextmanager
def _tweeting(client: Client, executions: list[float]) -> Iterator[None]:
    """Tweets come in each second, from a thread; notes how long the executions take."""
    ending, errors = threading.Event(), list[BaseException]()

    def tweet() -> None:
        try:
            for number in itertools.count(1):
                if ending.wait(PERIOD_S):
                    return
                client.ingest(WATCHED, channels.tweets_of(number, rows=TWEETS_PER_S))
                partitions = client.describe_channel(CHANNEL)
                executions.append(max(one.took_s for one in partitions))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=tweet, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
    if errors:
        raise errors[0]
