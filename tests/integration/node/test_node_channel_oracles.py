"""Channels compared with databases: a live query of PGlite, and PostGIS that is polled.

`scripts/differential --against pglite` and `--against postgis-channels` run it. In each round
subscriptions move, appear and vanish, and observations come; the databases get the same rows in one
transaction. Of a live query rows that appear are entries, and rows that disappear are exits; of
PostGIS the difference of two polls. No observation lies within `RING_M` of a circle, where the two
may calculate differently.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pytest
import shapely
from channel_rounds import BROKERS, START_US, Delivered, Rounds

from benchmarks import postgis
from galileo.geo.circles import EARTH_RADIUS_M
from galileo.model.channel import Channel
from galileo.model.times import TIME_TYPE

COUNT = int(os.environ.get("GALILEO_DIFFERENTIAL_CASES", "200"))
SEED = int(os.environ.get("GALILEO_DIFFERENTIAL_SEED", "1"))
AGAINST = os.environ.get("GALILEO_DIFFERENTIAL_AGAINST")
PGLITE = Path(os.environ.get("GALILEO_PGLITE", "pglite"))
"""Where npm has installed it."""
RING_M = 10.0
OBSERVATIONS_MAX = 400
TEMPLATE = "S_DWITHIN(geometry, :place, :metres) AND temperature >= :least"
CHANGES = 12
Pair = tuple[str, str]
Change = tuple[set[Pair], set[Pair]]
"""The pairs of a subscription and an observation that appear, and that disappear."""

SCHEMA = """
CREATE TABLE observations (name text PRIMARY KEY, latitude float8, longitude float8, value float8);
CREATE TABLE subscriptions (name text PRIMARY KEY, latitude float8, longitude float8,
    metres float8, least float8);
"""
JOINED = """
SELECT s.name || '/' || o.name AS pair FROM subscriptions s JOIN observations o
ON o.value >= s.least AND {near}
"""
HAVERSINE = f"""
2 * {EARTH_RADIUS_M} * asin(least(1, sqrt(
    power(sin(radians(o.latitude - s.latitude) / 2), 2)
    + cos(radians(o.latitude)) * cos(radians(s.latitude))
    * power(sin(radians(o.longitude - s.longitude) / 2), 2)))) <= s.metres
"""
GEOGRAPHY = """
ST_DWithin(ST_MakePoint(o.longitude, o.latitude)::geography,
    ST_MakePoint(s.longitude, s.latitude)::geography, s.metres, false)
"""


class Database(Protocol):
    """What calculates the pairs."""

    def apply(self, statements: Sequence[str]) -> Change:
        """Executes statements in one transaction; the pairs that come and go with them."""
        ...


class LiveQuery:
    """A live query of PGlite, in a process of Node.js."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def apply(self, statements: Sequence[str]) -> Change:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(statements), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"PGlite has ended with {self._process.wait(timeout=10)}"
        answer = json.loads(line)
        return pairs(answer["entered"]), pairs(answer["left"])


class PolledTables:
    """PostGIS, asked for all pairs in each round."""

    def __init__(self, session: postgis.Session) -> None:
        self._session = session
        self._known = set[Pair]()
        self._session.ask(" ".join(SCHEMA.split()).rstrip(";"))

    def apply(self, statements: Sequence[str]) -> Change:
        self._session.ask("; ".join(["BEGIN", *statements, "COMMIT"]))
        known = self._known
        query = " ".join(JOINED.format(near=GEOGRAPHY).split())
        self._known = pairs(row for row in self._session.ask(query)[1] if "/" in row)
        return self._known - known, known - self._known


def pairs(texts: Any) -> set[Pair]:
    found = set[Pair]()
    for text in texts:
        subscription, _, observation = text.strip().partition("/")
        found.add((subscription, observation))
    return found


@contextmanager
def pglite() -> Iterator[LiveQuery]:
    node = shutil.which("node")
    if node is None or not (PGLITE / "node_modules/@electric-sql/pglite").is_dir():
        pytest.skip(f"needs Node.js and PGlite: npm install --prefix {PGLITE} @electric-sql/pglite")
    script = Path(__file__).parents[2] / "kit/pglite_live.mjs"
    query = JOINED.format(near=HAVERSINE)
    with subprocess.Popen(
        [node, script, PGLITE.absolute(), SCHEMA, query, "pair"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield LiveQuery(process)
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def polled() -> Iterator[PolledTables]:
    try:
        with postgis.running() as session:
            yield PolledTables(session)
    except postgis.NoServer as error:
        pytest.skip(str(error))


class Circles(Rounds):
    """Subscriptions are circles with a threshold.

    Attributes:
        statements: what a database has to execute in this round.
    """

    def __init__(self, cluster: Any, channel: Channel, seed: int) -> None:
        super().__init__(cluster, channel, seed)
        self.circles: dict[str, tuple[str, float, float, float]] = {}
        self.places: dict[str, tuple[float, float]] = {}
        self.statements: list[str] = []
        self.new: set[str] = set()
        self.before: dict[str, str] = {}

    async def subscribe(self, count: int) -> None:
        names = self.chance.sample([f"s{number}" for number in range(30)], k=count)
        rows = []
        for name in names:
            self.changed.add(name)
            self.circles.pop(name, None)
            self.statements.append(f"DELETE FROM subscriptions WHERE name = '{name}'")
            is_deleted = self.chance.random() < 0.25
            latitude, longitude, metres = self._circle()
            least, broker = self.chance.choice([250.0, 280.0]), self.chance.choice(BROKERS)
            place = shapely.to_wkb(shapely.Point(longitude, latitude))
            row = {"id": name, "broker": broker, "place": place, "metres": metres, "least": least}
            rows.append(row | {"deleted": is_deleted})
            if not is_deleted:
                self.circles[name] = broker, latitude, longitude, metres
                values = f"'{name}', {latitude}, {longitude}, {metres}, {least}"
                self.statements.append(f"INSERT INTO subscriptions VALUES ({values})")
        table = pa.Table.from_pylist(rows)
        await self._store(self.channel.subscription_table, table)

    async def observe(self, count: int) -> None:
        if len(self.places) + count > OBSERVATIONS_MAX:
            return
        names = [f"o{len(self.places) + number}" for number in range(count)]
        values = [self.chance.uniform(245, 325) for _ in names]
        for name, value in zip(names, values, strict=True):
            self.places[name] = latitude, longitude = self._place()
            row = f"'{name}', {latitude}, {longitude}, {value}"
            self.statements.append(f"INSERT INTO observations VALUES ({row})")
        places = [pa.array([self.places[name][axis] for name in names]) for axis in (0, 1)]
        times = pa.array([START_US] * count, pa.int64()).cast(TIME_TYPE)
        columns = [*places, times, pa.array(values), pa.array(names)]
        await self._store("nam", pa.table(columns, schema=self.cluster.schema.observation_schema))
        self.new |= set(names)

    def _circle(self) -> tuple[float, float, float]:
        while True:
            latitude, longitude = self.chance.uniform(30, 60), self.chance.uniform(-20, 20)
            metres = self.chance.uniform(1e5, 1.5e6)
            places = list(self.places.values())
            if all(abs(distance(latitude, longitude, *p) - metres) > RING_M for p in places):
                return latitude, longitude, metres

    def _place(self) -> tuple[float, float]:
        while True:
            place = self.chance.uniform(30, 60), self.chance.uniform(-20, 20)
            circles = [circle[1:] for circle in self.circles.values()]
            if all(abs(distance(*place, *c[:2]) - c[2]) > RING_M for c in circles):
                return place

    def due_by(self, database: Database) -> Counter[Delivered]:
        """What a round has to deliver by a database."""
        entered, left = database.apply(self.statements)
        now = {name: circle[0] for name, circle in self.circles.items()}
        due = Counter[Delivered]()
        for name, one in entered:
            is_new, is_changed = one in self.new, name in self.changed
            if self.channel.new == "observations" and not is_new:
                continue
            if self.channel.new == "both" and not (is_new and is_changed):
                continue
            due[now[name], name, one, False] += 1
        for name, one in left if self.channel.leave else ():
            due[self.before[name], name, one, True] += 1
        self.statements, self.changed, self.new, self.before = [], set(), set(), now
        return due


def distance(
    latitude: float, longitude: float, other_latitude: float, other_longitude: float
) -> float:
    """Metres between two places."""
    first, second, width = np.radians([latitude, other_latitude, other_longitude - longitude])
    half = np.sin((second - first) / 2) ** 2
    half += np.cos(first) * np.cos(second) * np.sin(width / 2) ** 2
    return float(2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(half)))


DATABASES = {"pglite": pglite, "postgis-channels": polled}


@pytest.mark.skipif(
    AGAINST not in DATABASES,
    reason="runs a database: scripts/differential --against pglite, or postgis-channels",
)
@pytest.mark.parametrize(
    "mode",
    [
        {"new": "observations"},
        {"new": "both"},
        {"new": "either"},
        {"new": "either", "leave": True},
    ],
)
async def test_channels_deliver_what_a_database_finds(
    cluster: Any, mode: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert AGAINST is not None
    totals = Counter[bool]()
    with DATABASES[AGAINST]() as database:
        rounds = Circles(cluster, Channel("alerts", "nam", TEMPLATE, **mode), seed=SEED)
        await rounds.begin()
        for number in range(COUNT):
            for _ in range(rounds.chance.randrange(3)):
                await rounds.subscribe(rounds.chance.randint(1, CHANGES))
            for _ in range(rounds.chance.randrange(3)):
                await rounds.observe(rounds.chance.randint(1, 3))
            await rounds.execute()
            delivered, due = await rounds.delivered(), rounds.due_by(database)
            assert delivered == due, f"round {number}"
            totals.update(left for *_, left in delivered.elements())
            if number % 50 == 49:
                await cluster.restart(rounds.chance.choice("abc"))
    assert totals[False]
    with capsys.disabled():
        print(f"\n{mode}: {COUNT} rounds, {totals[False]} entered, {totals[True]} left")
