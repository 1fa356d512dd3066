"""Channels: subscriptions by the million, and one execution for all, compared with PostgreSQL.

The experiments are NewLocal, NewNearby and UnseenNearby of Wang, Carey and Tsotras, "Subscribing to
Big Data at Scale" (2020, section 7.2). Of 160 tweets a second a tenth is hateful, and subscribers
learn of those in their area, or near the place where they are. Of the latter a third move in each
period of ten seconds, and in the last experiment they learn of old tweets, too, once of each. The
paper's own numbers are of six nodes.

The peer is the strongest that does without a stream processor: once a period one statement joins
what is past a sequence with the subscriptions, by an index, and inserts the matches into a table.
Both have stored their matches durably when the clock stops. Both must find as many.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import shapely

import galileo
from benchmarks import clusters, postgis
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.cursor import Cursor
from galileo.model.times import times_from_micros

NODES = 3
ROWS = 1_600
"""Tweets of a period of ten seconds."""
HATEFUL = 0.1
AREAS = 400
RADIUS_M = 30_000.0
UNSEEN_M = 500.0
OLD = 1_000_000_000
"""The first number of old tweets."""
PERIOD = "1s"
SETTLED_S = 600.0
LOOK_S = 0.05
FOLLOWED = "500ms"
"""A broker that has had nothing new for so long has every notification."""
NOON_US = 1_772_000_000_000_000
BROKER = "ops"
FEATURES = [
    galileo.Feature("number", type="int", indexed=False),
    galileo.Feature("area", type="int"),
    galileo.Feature("hateful", type="bool"),
    galileo.Feature("text", type="text", indexed=False),
]


@dataclass(frozen=True)
class Scene:
    """An experiment.

    Attributes:
        template: of the channel.
        columns: of the table of subscriptions in PostgreSQL, without `id`.
        indexes: of that table.
        join: the condition of PostgreSQL.
        execution_s: the goal.
    """

    name: str
    template: str
    columns: str
    indexes: tuple[str, ...]
    join: str
    execution_s: float


LOCAL = Scene(
    "local",
    "hateful = TRUE AND area = :area",
    "area bigint",
    ("(area)",),
    "s.area = t.area",
    2.5,
)
NEARBY = Scene(
    "nearby",
    f"hateful = TRUE AND S_DWITHIN(geometry, :place, {RADIUS_M:.0f})",
    "place geography",
    ("USING gist (place)", "(id)"),
    f"ST_DWithin(s.place, ST_Point(t.longitude, t.latitude)::geography, {RADIUS_M}, false)",
    2.5,
)


def measure(bench: Bench) -> Iterator[Figure]:
    """Subscriptions a second, seconds of an execution, and bytes of a subscription.

    Raises:
        postgis.NoServer: PostgreSQL is not installed.
    """
    for scene, count in ((LOCAL, bench.sizes.local), (NEARBY, bench.sizes.nearby)):
        yield from _measure(bench, scene, count)
    yield from _measure_unseen(bench, bench.sizes.unseen)


@dataclass(frozen=True, slots=True)
class Period:
    """What one side did in a period.

    Attributes:
        moves_s: seconds in which the subscribers that moved were stored.
        execution_s: seconds of the execution, whose notifications are durable then.
        notifications: how many.
    """

    moves_s: float
    execution_s: float
    notifications: int

    @property
    def whole_s(self) -> float:
        return self.moves_s + self.execution_s


def _measure(bench: Bench, scene: Scene, count: int) -> Iterator[Figure]:
    subscriptions = subscriptions_of(scene, count)
    with (
        clusters.cluster(bench.directory, nodes=NODES, groups=1) as running,
        running.client(timeout=clusters.PATIENCE) as client,
        postgis.running() as session,
    ):
        polling = Polling(session, scene)
        polling.subscribe(subscriptions)
        executions = Executions(client, scene)
        took_s = executions.subscribe(subscriptions)
        yield Figure(
            f"{scene.name}: {count:,} subscriptions in one call, durable, {NODES} nodes, one copy",
            "subscriptions/s",
            Spread.of([count / took_s]),
            goals=(Goal("at least", 150_000),),
        )
        ours, theirs = list[Period](), list[Period]()
        for number in range(bench.sizes.runs + 1):
            moved = moved_of(count, number) if scene is NEARBY else None
            tweets = tweets_of(number)
            mine, polled = (side.period(tweets, moved) for side in (executions, polling))
            found, joined = mine.notifications, polled.notifications
            if found != joined:
                raise AssertionError(f"expected {joined:,} notifications, got {found:,}")
            if number:  # The first one builds the index.
                ours.append(mine)
                theirs.append(polled)
            bench.say(
                f"{scene.name}: {found:,} in {mine.execution_s:.2f} s, "
                f"polled {polled.execution_s:.2f} s"
            )
        peer = Peer(
            f"INSERT ... SELECT, {polling.version}", Spread.of([one.execution_s for one in theirs])
        )
        yield Figure(
            f"{scene.name}: an execution of {ROWS:,} tweets, {found:,} notifications, durable",
            "s",
            Spread.of([one.execution_s for one in ours]),
            (peer,),
            (Goal("at most", scene.execution_s), Goal("at most", 1 / 3, of_peer=True)),
        )
        if moved is not None:
            rows = moved.num_rows
            moves, moves_theirs = (
                Spread.of([one.moves_s for one in side]).per_second(rows) for side in (ours, theirs)
            )
            yield Figure(
                f"{scene.name}: {rows:,} subscribers that move, durable",
                "rows/s",
                moves,
                (Peer(f"UPDATE, {polling.version}", moves_theirs),),
                (Goal("at least", 33_000),),
            )
        yield _memory(client, scene, count)


class Executions:
    """The channel of a scene in a cluster, and a broker that reads all of its notifications."""

    def __init__(self, client: Client, scene: Scene) -> None:
        self._client, self._name, self._token = client, scene.name, ""
        client.create_dataset(galileo.Schema("tweets", FEATURES, geohash_precision=4))
        client.create_channel(galileo.Channel(scene.name, "tweets", scene.template, period=PERIOD))

    def subscribe(self, subscriptions: pa.Table) -> float:
        """Seconds of the call that stores them."""
        begun = time.perf_counter()
        self._client.subscribe(self._name, subscriptions, broker=BROKER)
        return time.perf_counter() - begun

    def period(self, tweets: pa.Table, moved: pa.Table | None = None) -> Period:
        """Stores the subscribers that moved, then new tweets, and waits for the execution."""
        moves_s = 0.0 if moved is None else self.subscribe(moved)
        reached = self._client.ingest("tweets", tweets).reached
        execution_s = settled(self._client, self._name, reached)
        found = 0
        for batch in self._client.follow(self._name, BROKER, token=self._token, wait=FOLLOWED):
            found, self._token = found + len(batch), batch.token
        return Period(moves_s, execution_s, found)


def _measure_unseen(bench: Bench, count: int) -> Iterator[Figure]:
    """Subscribers who move also learn of old tweets, of each once."""
    with (
        clusters.cluster(bench.directory, nodes=NODES, groups=1) as running,
        running.client(timeout=clusters.PATIENCE) as client,
    ):
        client.create_dataset(galileo.Schema("tweets", FEATURES, geohash_precision=4))
        old = tweets_of(-1, rows=2 * count, hateful=1.0)
        client.ingest("tweets", old)
        template = f"hateful = TRUE AND S_DWITHIN(geometry, :place, {UNSEEN_M:.0f})"
        client.create_channel(
            galileo.Channel("unseen", "tweets", template, period=PERIOD, new="either")
        )
        client.subscribe("unseen", subscriptions_of(NEARBY, count), broker=BROKER)
        took, token, found = list[float](), "", 0
        for number in range(bench.sizes.runs + 1):
            client.subscribe("unseen", moved_of(count, number), broker=BROKER)
            reached = client.ingest("tweets", tweets_of(number)).reached
            took.append(settled(client, "unseen", reached))
            for batch in client.follow("unseen", BROKER, token=token, wait="2s"):
                found, token = found + len(batch), batch.token
            bench.say(f"unseen: {found:,} pairs so far, {took[-1]:.2f} s")
        yield Figure(
            f"unseen: an execution with {count:,} subscribers, of whom a third has moved, and "
            f"{2 * count:,} old tweets",
            "s",
            Spread.of(took[1:]),
            goals=(Goal("at most", 5.0),),
        )


def _memory(client: Client, scene: Scene, count: int) -> Figure:
    index = sum(one.index_bytes for one in client.describe_channel(scene.name))
    table = sum(
        one["graph_bytes"]
        for node in client.status().nodes
        for one in node.datasets
        if one["dataset"] == f"{scene.name}.subscriptions"
    )
    most = 64 if scene is LOCAL else 192
    return Figure(
        f"{scene.name}: memory of a subscription",
        "B",
        Spread.of([(index + table) / count]),
        goals=(Goal("at most", most),),
    )


def settled(client: Client, channel: str, reached: Cursor) -> float:
    """Waits until commits are matched; the seconds of the partition that took longest."""
    took: dict[int, dict[int, float]] = defaultdict(dict)
    before = {one.partition: one.execution for one in client.describe_channel(channel)}
    [of_all] = [one.partitions for one in client.channels() if one.name == channel]
    deadline = time.monotonic() + SETTLED_S
    while time.monotonic() < deadline:
        partitions = client.describe_channel(channel)
        for one in partitions:
            if one.failure:
                raise AssertionError(one.failure)
            if one.execution > before.get(one.partition, 0):
                took[one.partition][one.execution] = one.took_s
        is_complete = len(partitions) == of_all
        if is_complete and all(one.cut.covers(reached) for one in partitions):
            return max(sum(of_one.values()) for of_one in took.values())
        time.sleep(LOOK_S)
    raise AssertionError("the executions do not come to an end")


def subscriptions_of(scene: Scene, count: int, *, first: int = 0) -> pa.Table:
    """Each with an id of eight characters, and an area or a place of its own.

    Args:
        scene: where the places or areas are.
        count: how many.
        first: the number of the first one; those of each such number are further ones.
    """
    chance = np.random.default_rng(3 + first)
    ids = _ids(np.arange(first, first + count))
    if scene is LOCAL:
        return pa.table({"id": ids, "area": chance.integers(0, AREAS, count).astype(np.float64)})
    return pa.table({"id": ids, "place": _places(chance, count)})


def moved_of(count: int, number: int) -> pa.Table:
    """A third of the subscribers, in new places."""
    chance = np.random.default_rng(50 + number)
    ids = _ids(np.arange(number % 3, count, 3))
    return pa.table({"id": ids, "place": _places(chance, len(ids))})


def _ids(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 7, "0")
    return pc.binary_join_element_wise("s", digits, "")


def _places(chance: np.random.Generator, count: int) -> pa.Array:
    """Points in North America as WKB."""
    places = shapely.points(chance.uniform(-125, -65, count), chance.uniform(25, 49, count))
    return pa.array(shapely.to_wkb(places), pa.binary())


def tweets_of(number: int, *, rows: int = ROWS, hateful: float = HATEFUL) -> pa.Table:
    """About 140 bytes each, in North America; those of each number from 0 on are further ones."""
    chance = np.random.default_rng(100 + number)
    return pa.table(
        {
            "latitude": chance.uniform(25, 49, rows),
            "longitude": chance.uniform(-125, -65, rows),
            "time": times_from_micros(np.full(rows, NOON_US + number)),
            "number": np.arange(rows) + (number * rows if number >= 0 else OLD),
            "area": chance.integers(0, AREAS, rows),
            "hateful": chance.random(rows) < hateful,
            "text": ["x" * 100] * rows,
        }
    )


class Polling:
    """The same in PostgreSQL, which polls once a period."""

    def __init__(self, session: postgis.Session, scene: Scene) -> None:
        self._session, self._scene = session, scene
        self.version = f"PostgreSQL {postgis.versions()['PostgreSQL']}"
        session.ask(f"CREATE TABLE subscriptions (id text, {scene.columns})")
        session.ask(
            "CREATE TABLE tweets (latitude double precision, longitude double precision, "
            "time timestamptz, number bigint, area bigint, hateful bool, text text)"
        )
        session.ask("CREATE INDEX ON tweets (number)")
        session.ask("CREATE TABLE notifications (id text, number bigint)")
        session.ask("CREATE UNLOGGED TABLE incoming (id text, place text, area float)")

    def subscribe(self, subscriptions: pa.Table) -> None:
        """Stores them, and builds the indexes anew, which are best then."""
        scene, names = self._scene, [f"by_{n}" for n in range(len(self._scene.indexes))]
        self._session.ask(f"DROP INDEX IF EXISTS {', '.join(names)}")
        value = "area::bigint" if scene is LOCAL else "ST_GeomFromWKB(decode(place, 'hex'))"
        self._session.ask("TRUNCATE incoming")
        self._copy("incoming", _for_copy(subscriptions))
        self._session.ask(f"INSERT INTO subscriptions SELECT id, {value} FROM incoming")
        for name, index in zip(names, scene.indexes, strict=True):
            self._session.ask(f"CREATE INDEX {name} ON subscriptions {index}")
        self._session.ask("VACUUM ANALYZE subscriptions")

    def period(self, tweets: pa.Table, moved: pa.Table | None = None) -> Period:
        """Gives the subscribers that moved new places, and runs the statement for new tweets."""
        moves_s = 0.0 if moved is None else self._move(moved)
        first = tweets.column("number")[0].as_py()
        self._copy("tweets", tweets)
        self._session.ask("TRUNCATE notifications")
        polled_s, _ = self._session.ask(
            "INSERT INTO notifications SELECT s.id, t.number FROM tweets t JOIN subscriptions s "
            f"ON {self._scene.join} WHERE t.hateful AND t.number >= {first}"
        )
        [rows] = self._session.ask("SELECT count(*) FROM notifications")[1]
        return Period(moves_s, polled_s, int(rows))

    def _move(self, moved: pa.Table) -> float:
        self._session.ask("TRUNCATE incoming")
        copied_s = self._copy("incoming", _for_copy(moved))
        updated_s, _ = self._session.ask(
            "UPDATE subscriptions s SET place = ST_GeomFromWKB(decode(i.place, 'hex')) "
            "FROM incoming i WHERE i.id = s.id"
        )
        return copied_s + updated_s

    def _copy(self, table: str, rows: pa.Table) -> float:
        """Seconds of a COPY."""
        with postgis.readable_directory() as directory:
            file = directory / "rows.csv"
            pcsv.write_csv(rows, file)
            columns = ", ".join(rows.column_names)
            copied = f"\\copy {table} ({columns}) FROM '{file}' CSV HEADER \nSELECT 1"
            began = time.perf_counter()
            self._session.ask(copied)
            return time.perf_counter() - began


def _for_copy(subscriptions: pa.Table) -> pa.Table:
    """Subscriptions with places as hexadecimal text."""
    if "place" not in subscriptions.column_names:
        return subscriptions
    texts = shapely.to_wkb(
        shapely.from_wkb(subscriptions.column("place").to_numpy(zero_copy_only=False)), hex=True
    )
    return pa.table({"id": subscriptions.column("id"), "place": pa.array(texts, pa.string())})
