"""Executions of channels by the number of subscribers (Big Active Data, section 7).

The tweets and the subscriptions are those of `benchmarks.channels`. The number of subscribers grows
while cluster and database run, and all sides get the same tweets in turn. Each has to store as many
notifications as a count of the subscriptions says. A side that takes longer than the period is left
out from then on, as its channel would fall behind.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks import channels, channels_glued, clusters, postgis
from benchmarks.channels import LOCAL, NEARBY, Executions, Period, Polling
from benchmarks.channels_glued import STAGED, WAYS, Glued
from benchmarks.evaluation import plots
from benchmarks.evaluation.page import Block, extent, picture, seconds, table, times
from benchmarks.evaluation.plots import Axes, Line
from benchmarks.evaluation.sizes import Sizes
from benchmarks.figures import quantity
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.cluster import free_ports

PERIOD_S = 10.0
TWEETS_PER_S = channels.ROWS / PERIOD_S
AT_ONCE = 4_000_000
"""Subscriptions in a call."""
WARM_UPS = 2
"""Micro-batches that do not count: Spark's JVM compiles what runs often only after a while."""
GLUED = "filtered, copied"
"""The fastest way in which Spark joins."""
GALILEO = "Galileo"
POLLED = "PostgreSQL, polled"
SPARK_JOINS = "glued, Spark joins"
POSTGRESQL_JOINS = "glued, PostgreSQL joins"


@dataclass(frozen=True, slots=True)
class Point:
    """Executions with so many subscribers.

    Attributes:
        notifications: of the last execution.
        execution_s: seconds of each execution.
        whole_s: the same with the moves that come before it, if subscribers move.
    """

    subscribers: int
    notifications: int
    execution_s: tuple[float, ...]
    whole_s: tuple[float, ...]

    @classmethod
    def of(cls, subscribers: int, periods: Sequence[Period]) -> Point:
        return cls(
            subscribers,
            periods[-1].notifications,
            tuple(one.execution_s for one in periods),
            tuple(one.whole_s for one in periods),
        )


@dataclass(frozen=True, slots=True)
class Side:
    """A system, with a point for each number of subscribers up to the first that is too many."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """Seconds of micro-batches of a glued system."""

    name: str
    execution_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Gluing:
    """The ways to glue, with as many subscriptions."""

    subscribers: int
    notifications: int
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class Local:
    """Attributes:
    server: the version of PostgreSQL; "" without it.
    """

    server: str
    sides: tuple[Side, ...]


@dataclass(frozen=True, slots=True)
class Nearby:
    server: str
    sides: tuple[Side, ...]


Trial = Callable[[pa.Table], Period]


class _Local:
    """Subscribers to areas, as many as there are so far, in some of the systems.

    Args:
        galileo: a channel in a cluster; None without.
        database: tables in PostgreSQL; None without.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        galileo: Executions | None = None,
        database: Polling | None = None,
    ) -> None:
        self.subscribers = 0
        self._say, self._galileo, self._database = say, galileo, database
        self._of_area = np.zeros(channels.AREAS, np.int64)
        self._numbers = count()

    def grow(self, subscribers: int) -> None:
        """Stores further subscriptions."""
        while self.subscribers < subscribers:
            rows = channels.subscriptions_of(
                LOCAL, min(AT_ONCE, subscribers - self.subscribers), first=self.subscribers
            )
            for system in (self._galileo, self._database):
                if system is not None:
                    system.subscribe(rows)
            areas = rows.column("area").to_numpy().astype(np.int64)
            self._of_area += np.bincount(areas, minlength=channels.AREAS)
            self.subscribers += len(rows)
        self._say(f"{self.subscribers:,} subscriptions")
        if self._galileo is not None:
            self.period({GALILEO: self._galileo.period})  # It builds the index.

    def period(self, trials: Mapping[str, Trial]) -> dict[str, Period]:
        """One period of each, with the same tweets."""
        tweets = channels.tweets_of(next(self._numbers))
        hateful = tweets.column("area").filter(tweets.column("hateful")).to_numpy()
        expected, periods = int(self._of_area[hateful].sum()), {}
        for name, trial in trials.items():
            periods[name] = trial(tweets)
            found, took_s = periods[name].notifications, periods[name].execution_s
            if found != expected:
                raise AssertionError(f"{name}: expected {expected:,} notifications, got {found:,}")
            self._say(f"{name}: {found:,} notifications in {took_s:.2f} s")
        return periods

    def sides(
        self, trials: Mapping[str, Trial], counts: Sequence[int], *, runs: int
    ) -> tuple[Side, ...]:
        """Points of each, until it takes longer than the period."""
        points: dict[str, list[Point]] = {name: [] for name in trials}
        running = dict(trials)
        for subscribers in counts:
            if not running:
                break
            self.grow(subscribers)
            periods = [self.period(running) for _ in range(runs)]
            for name in list(running):
                points[name].append(Point.of(subscribers, [one[name] for one in periods]))
                if not _is_within(points[name][-1]):
                    del running[name]
        return tuple(Side(name, tuple(of_side)) for name, of_side in points.items())


class _Database:
    """PostgreSQL, and glued systems over its tables."""

    def __init__(self, session: SparkSession, server: postgis.Session, *, tcp_port: int) -> None:
        self._session, self._server, self._tcp_port = session, server, tcp_port
        self.polling = Polling(server, LOCAL)

    @contextmanager
    def glued(self, *ways: str) -> Iterator[list[Glued]]:
        """Systems that run within the block."""
        with postgis.readable_directory() as directory, ExitStack() as stack:
            systems = [
                Glued(
                    self._session,
                    self._server,
                    tcp_port=self._tcp_port,
                    directory=directory / str(number),
                    way=way,
                )
                for number, way in enumerate(ways)
            ]
            for system in systems:
                stack.enter_context(system.running())
            yield systems


@contextmanager
def _database() -> Iterator[_Database]:
    [tcp_port] = free_ports(1)
    with channels_glued.spark() as session, postgis.running(tcp_port=tcp_port) as server:
        yield _Database(session, server, tcp_port=tcp_port)


def measure_gluing(sizes: Sizes, bench: Bench) -> Gluing:
    """All ways to glue, in turn.

    Raises:
        NotInstalled: PostgreSQL or its JDBC driver is not.
    """
    with _database() as database, database.glued(*WAYS) as systems:
        local = _Local(bench.say, database=database.polling)
        local.grow(sizes.glued_subscribers)
        trials = {way: system.period for way, system in zip(WAYS, systems, strict=True)}
        rounds = [local.period(trials) for _ in range(WARM_UPS + sizes.subscriber_runs)]
    ways = tuple(Way(way, tuple(one[way].execution_s for one in rounds[WARM_UPS:])) for way in WAYS)
    return Gluing(sizes.glued_subscribers, rounds[-1][STAGED].notifications, ways)


def measure_local(sizes: Sizes, bench: Bench) -> Local:
    """All systems, with more and more subscriptions.

    Raises:
        NotInstalled: PostgreSQL or its JDBC driver is not.
    """
    with (
        _database() as database,
        _client(bench) as client,
        database.glued(GLUED, STAGED) as (joining, carrying),
    ):
        polling, galileo = database.polling, Executions(client, LOCAL)
        local = _Local(bench.say, galileo=galileo, database=polling)
        glued = {SPARK_JOINS: joining.period, POSTGRESQL_JOINS: carrying.period}
        local.grow(sizes.subscribers[0])
        for _ in range(WARM_UPS):
            local.period(glued)
        trials = {GALILEO: galileo.period, POLLED: polling.period, **glued}
        sides = local.sides(trials, sizes.subscribers, runs=sizes.subscriber_runs)
    return Local(polling.version, sides)


def measure_most_peers(sizes: Sizes, bench: Bench) -> Local:
    """PostgreSQL and the glued systems, with more subscriptions until they take too long.

    Raises:
        NotInstalled: PostgreSQL or its JDBC driver is not.
    """
    with _database() as database, database.glued(GLUED, STAGED) as (joining, carrying):
        local = _Local(bench.say, database=database.polling)
        glued = {SPARK_JOINS: joining.period, POSTGRESQL_JOINS: carrying.period}
        local.grow(sizes.glued_subscribers)
        for _ in range(WARM_UPS):
            local.period(glued)
        sides = local.sides(
            {POLLED: database.polling.period, **glued},
            sizes.most_peer_subscribers,
            runs=sizes.most_runs,
        )
        return Local(database.polling.version, sides)


def measure_most(sizes: Sizes, bench: Bench) -> Local:
    """Galileo alone, with more subscriptions than the others can serve."""
    with _client(bench) as client:
        galileo = Executions(client, LOCAL)
        local = _Local(bench.say, galileo=galileo)
        trials = {GALILEO: galileo.period}
        return Local("", local.sides(trials, sizes.most_subscribers, runs=sizes.most_runs))


def measure_nearby(sizes: Sizes, bench: Bench) -> Nearby:
    """Galileo and PostgreSQL, with more and more subscribers of whom a third moves.

    Raises:
        NotInstalled: PostgreSQL is not.
    """
    points: dict[str, list[Point]] = {GALILEO: [], POLLED: []}
    numbers, before = count(), 0
    with _client(bench) as client, postgis.running() as server:
        executions, polling = Executions(client, NEARBY), Polling(server, NEARBY)
        for subscribers in sizes.nearby_subscribers:
            rows = channels.subscriptions_of(NEARBY, subscribers - before, first=before)
            executions.subscribe(rows)
            polling.subscribe(rows)
            before = subscribers
            periods = []
            for _ in range(sizes.subscriber_runs + 1):
                number = next(numbers)
                moved, tweets = channels.moved_of(subscribers, number), channels.tweets_of(number)
                ours, theirs = executions.period(tweets, moved), polling.period(tweets, moved)
                found, joined = ours.notifications, theirs.notifications
                if found != joined:
                    raise AssertionError(f"expected {joined:,} notifications, got {found:,}")
                bench.say(
                    f"{subscribers:,} subscribers, {found:,} notifications: "
                    f"{ours.whole_s:.2f} s, polled {theirs.whole_s:.2f} s"
                )
                periods.append((ours, theirs))
            of_sides = zip(*periods[1:], strict=True)  # The first one builds the index.
            for name, of_side in zip(points, of_sides, strict=True):
                points[name].append(Point.of(subscribers, of_side))
    return Nearby(
        polling.version, tuple(Side(name, tuple(of_side)) for name, of_side in points.items())
    )


@contextmanager
def _client(bench: Bench) -> Iterator[Client]:
    with (
        clusters.cluster(bench.directory, nodes=channels.NODES, groups=1) as running,
        running.client(timeout=clusters.PATIENCE) as client,
    ):
        yield client


def _is_within(point: Point) -> bool:
    """Whether the channel keeps its period."""
    return statistics.median(point.execution_s) <= PERIOD_S


def tell_gluing(taken: Gluing) -> Block:
    rows = [
        (_way(one.name), seconds(one.execution_s), extent(one.execution_s)) for one in taken.ways
    ]
    fastest = min(taken.ways, key=lambda one: statistics.median(one.execution_s))
    return Block(
        table(("the glued system", "a micro-batch", "lowest to highest"), rows),
        {},
        [
            (
                f"A glued system, {taken.subscribers:,} subscriptions, {taken.notifications:,} "
                "notifications",
                "shown as curves",
                f"{seconds(fastest.execution_s)} in the fastest way ({_way(fastest.name)})",
            )
        ],
    )


def tell_local(taken: Local) -> Block:
    sides, name = taken.sides, "bad-subscribers.svg"
    what = f"NewLocal, {sides[0].points[-1].subscribers:,} subscriptions: an execution"
    axes = _axes(f"NewLocal, {TWEETS_PER_S:.0f} tweets a second", "subscriptions", sides)
    return Block(
        [
            *_executions(sides, "subscriptions"),
            "",
            picture(name, "Seconds of an execution by the number of subscriptions"),
            *_within_period(taken),
        ],
        {name: lambda: plots.lines(axes, [*_lines(sides), _period(sides)])},
        [(what, "shown as curves", _medians(sides))],
    )


def tell_most_peers(taken: Local) -> Block:
    what = f"NewLocal: most subscriptions within {PERIOD_S:g} s, others"
    return _tell_most(taken, what, "shown as curves")


def tell_most(taken: Local) -> Block:
    what = f"NewLocal: most subscriptions within {PERIOD_S:g} s"
    return _tell_most(taken, what, "up to 4,000,000, six nodes")


def _tell_most(taken: Local, what: str, paper: str) -> Block:
    most = "; ".join(_most(side) for side in taken.sides)
    lines = [*_executions(taken.sides, "subscriptions"), *_within_period(taken)]
    return Block(lines, {}, [(what, paper, most)])


def _within_period(taken: Local) -> list[str]:
    return [
        "",
        "The most subscriptions that were measured within the period:",
        "",
        *(f"- {_most(side)}" for side in taken.sides),
        *(["", f"{taken.server}."] if taken.server else []),
    ]


def tell_nearby(taken: Nearby) -> Block:
    name = "bad-nearby.svg"
    galileo, polled = taken.sides
    rows = [
        (
            f"{ours.subscribers:,}",
            f"{ours.notifications:,}",
            *(seconds(one) for one in (ours.whole_s, theirs.whole_s)),
            times(statistics.median(theirs.whole_s), statistics.median(ours.whole_s)),
            *(seconds(one) for one in (ours.execution_s, theirs.execution_s)),
        )
        for ours, theirs in zip(galileo.points, polled.points, strict=True)
    ]
    head = (
        *("subscribers", "notifications", "whole, Galileo", "whole, PostgreSQL", "ratio"),
        *("execution, Galileo", "execution, PostgreSQL"),
    )
    axes = _axes("NewNearby, a third moves in each period", "subscribers", taken.sides)
    drawn = [
        *_lines(taken.sides, whole=True, suffix=", moves and execution"),
        *_lines(taken.sides, suffix=", execution"),
        _period(taken.sides),
    ]
    [last] = [_medians(taken.sides, whole=True)]
    return Block(
        [
            *table(head, rows, left=0),
            "",
            picture(name, "Seconds of a period's work by the number of subscribers"),
            "",
            f"{taken.server}.",
        ],
        {name: lambda: plots.lines(axes, drawn)},
        [
            (
                f"NewNearby, {galileo.points[-1].subscribers:,} subscribers: moves and execution",
                "140,000 in 30 s, two nodes",
                last,
            )
        ],
    )


def _way(name: str) -> str:
    """A way to glue, in words."""
    if name == STAGED:
        return "tweets stored in a table, PostgreSQL joins and inserts"
    read, stored = name.split(", ")
    subscriptions = {"all": "all subscriptions", "filtered": "subscriptions in areas of the tweets"}
    notifications = {"inserted": "JDBC batches", "copied": "files and COPY"}
    return f"{subscriptions[read]} by JDBC, Spark joins, {notifications[stored]}"


def _executions(sides: Sequence[Side], what: str) -> list[str]:
    longest = max(sides, key=lambda side: len(side.points)).points
    rows = [
        (
            f"{point.subscribers:,}",
            f"{point.notifications:,}",
            *(_cell(side.points[at : at + 1]) for side in sides),
        )
        for at, point in enumerate(longest)
    ]
    return table((what, "notifications", *(side.name for side in sides)), rows, left=0)


def _cell(points: Sequence[Point]) -> str:
    """Median and extremes."""
    if not points:
        return "not run"
    [point] = points
    return f"{seconds(point.execution_s)}, {extent(point.execution_s)}"


def _most(side: Side) -> str:
    """Of the numbers that were measured, the largest that is served within the period."""
    within = [point for point in side.points if _is_within(point)]
    last = side.points[-1]
    if not within:
        return f"{side.name}: fewer than {last.subscribers:,}, which took {_taken(last)}"
    most = f"{within[-1].subscribers:,} within {PERIOD_S:g} s ({_taken(within[-1])})"
    if _is_within(last):
        return f"{side.name}: at least {most}"
    return f"{side.name}: {most}; {last.subscribers:,} took {_taken(last)}"


def _taken(point: Point) -> str:
    longest = quantity(max(point.execution_s), "s")
    return f"{seconds(point.execution_s)}, longest {longest}"


def _medians(sides: Sequence[Side], *, whole: bool = False) -> str:
    """Of each side, with the most subscribers that were measured."""
    most = max(side.points[-1].subscribers for side in sides)
    lasts = {side.name: side.points[-1] for side in sides}
    return "; ".join(
        f"{name} {seconds(last.whole_s if whole else last.execution_s)}"
        for name, last in lasts.items()
        if last.subscribers == most
    )


def _lines(sides: Sequence[Side], *, whole: bool = False, suffix: str = "") -> list[Line]:
    drawn = []
    for side in sides:
        runs = [one.whole_s if whole else one.execution_s for one in side.points]
        x = [float(one.subscribers) for one in side.points]
        y, low, high = ([f(one) for one in runs] for f in (statistics.median, min, max))
        drawn.append(Line(side.name + suffix, x, y, low, high))
    return drawn


def _period(sides: Sequence[Side]) -> Line:
    x = [float(point.subscribers) for side in sides for point in side.points]
    ends = (min(x), max(x))
    return Line("the period", ends, (PERIOD_S, PERIOD_S), dashed=True)


def _axes(title: str, what: str, sides: Sequence[Side]) -> Axes:
    ticks = sorted({float(point.subscribers) for side in sides for point in side.points})
    return Axes(title, what, "s, median", log_x=True, log_y=True, x_ticks=ticks)
