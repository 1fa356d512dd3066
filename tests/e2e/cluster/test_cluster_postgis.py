"""Continuous queries against PostGIS that is polled: each update equals the rows that are new.

`scripts/differential --against postgis-ccq` runs it; it needs PostgreSQL with PostGIS and starts a
server of its own. In each round the same random observations go into both: late ones, some with
nulls, over many partitions, a part of them sent twice as a client does whose answer was lost. Then
each continuous query is fetched until it has everything of the round, and the observations behind
its labels are compared with the rows of PostGIS that match and were in no round before, by their
numbers, and one query is asked anew. With copies, another node is down every `ROUNDS_DOWN` rounds.
What the two mean differently by a place is kept out as in `test_query_postgis.py`: no observation
lies within `EDGE` of an edge or `RING_M` of a circle.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pytest
import shapely
from fault_injection.nodes import kill_another

import galileo
from benchmarks import postgis
from galileo.client import Ccq, Client
from galileo.geo.circles import Circle, metres
from galileo.model.schema import Feature, Schema

ROUNDS = int(os.environ.get("GALILEO_DIFFERENTIAL_CASES", "200"))
SEED = int(os.environ.get("GALILEO_DIFFERENTIAL_SEED", "1"))
ROWS_MAX = 400
REPEATED = 0.3
INTERVAL, EXPIRATION, PATIENCE = "250ms", "6h", "120s"
ROUND_S = 180.0
ROUNDS_DOWN = 20
EDGE, RING_M = 1e-6, 10.0
"""Degrees, metres."""
START_US, WEEK_US = 1_393_632_000_000_000, 7 * 86_400_000_000

SCHEMA = Schema(
    "gauges",
    [
        Feature("level", unit="m"),
        Feature("count", type="int"),
        Feature("river", type="text"),
        Feature("number", type="int", indexed=False),
    ],
    geohash_precision=4,
)
RIVERS = ("Aare", "Aller", "Rhein", "Rhone", "Main", "Mosel", "O'er")
STAR = "POLYGON((-60 -20, 5 10, 70 -20, 30 30, 60 60, 5 45, -50 65, -20 20, -60 -20))"
HOLE = "(-90 -40, 90 -40, 90 40, -90 40, -90 -40)"
RING = f"POLYGON((-170 -80, 170 -80, 170 80, -170 80, -170 -80), {HOLE})"
POINT, RADIUS_M = (8.5, 47.4), 3_000_000

pytestmark = pytest.mark.skipif(
    os.environ.get("GALILEO_DIFFERENTIAL_AGAINST") != "postgis-ccq",
    reason="runs a PostgreSQL server: scripts/differential --against postgis-ccq",
)

_POINT = f"POINT({POINT[0]} {POINT[1]})"
_WITHIN = f"ST_DWithin(place::geography, 'SRID=4326;{_POINT}'::geography, {RADIUS_M}, false)"
QUERIES = {
    f"S_INTERSECTS(geometry, {STAR})": f"ST_Intersects(ST_GeomFromText('{STAR}', 4326), place)",
    f"S_INTERSECTS(geometry, {RING}) AND level > 2.5": (
        f"ST_Intersects(ST_GeomFromText('{RING}', 4326), place) AND level > 2.5"
    ),
    f"DWITHIN(geometry, {_POINT}, {RADIUS_M}) OR level > 5.5": f"{_WITHIN} OR level > 5.5",
    "level BETWEEN 1.5 AND 4 AND count >= 3": "level BETWEEN 1.5 AND 4 AND count >= 3",
    "NOT (level > 2 OR count < 4)": "NOT (level > 2 OR count < 4)",
    "river LIKE 'R%' OR count IN (1, 7)": "river LIKE 'R%' OR count IN (1, 7)",
    "river IS NULL AND NOT level IS NULL": "river IS NULL AND NOT level IS NULL",
    "NOT river LIKE '%e_' AND level <> 3": "NOT river LIKE '%e_' AND level <> 3",
    f"river = 'O''er' OR (S_INTERSECTS(geometry, {STAR}) AND NOT count = 5)": (
        f"river = 'O''er' OR (ST_Intersects(ST_GeomFromText('{STAR}', 4326), place) "
        "AND NOT count = 5)"
    ),
    "T_AFTER(datetime, TIMESTAMP('2014-03-04T00:00:00Z')) AND level < 3": (
        "time > '2014-03-04T00:00:00Z' AND level < 3"
    ),
    "": "true",
}
"""CQL2, and what PostGIS is asked."""


@pytest.fixture
def session():
    try:
        with postgis.running() as running:
            yield running
    except postgis.NoServer as error:
        pytest.skip(str(error))


@pytest.fixture
def shared():
    """A directory that the server's user may read, as those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="postgis-ccq-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@dataclass
class Reader:
    """One continuous query, and its polled counterpart."""

    client: Client
    ccq: Ccq
    condition: str
    token: str
    numbers: list[int] = field(default_factory=list)
    updates: int = 0

    def round(self, reached: galileo.Cursor) -> list[int]:
        """The numbers of the observations behind everything up to the end of a round."""
        found: list[int] = []
        deadline = time.monotonic() + ROUND_S
        while True:
            update = self.client.fetch(self.ccq.id, token=self.token, wait="10s")
            self.token = update.token
            self.updates += bool(len(update.labels))
            if len(update.labels):
                labels = update.labels
                assert labels.query == self.ccq.info.query
                found += self.client.read(labels).column("number").to_pylist()
            if update.labels.frontier.covers(reached):
                self.numbers += found
                return sorted(found)
            assert time.monotonic() < deadline, f"{self.ccq.info.query} has not reached {reached}"


@pytest.mark.parametrize("replicas", [1, 3])
def test_updates_equal_new_rows_of_a_polled_postgis(session, shared, capsys, replicas):
    random = np.random.default_rng(SEED)
    session.ask(
        "CREATE TABLE gauges (number int PRIMARY KEY, latitude float8, longitude float8, "
        "time timestamptz, level float8, count int, river text, place "
        "geometry(Point, 4326) GENERATED ALWAYS AS "
        "(ST_SetSRID(ST_MakePoint(longitude, latitude), 4326)) STORED)"
    )
    session.ask("CREATE TABLE seen (query int, number int, PRIMARY KEY (query, number))")
    groups = 2 if replicas == 1 else 1
    with galileo.LocalCluster(nodes=3, groups=groups, replicas=replicas) as cluster:
        client = cluster.client(timeout=PATIENCE)
        client.create_dataset(SCHEMA)
        readers = []
        for text, condition in QUERIES.items():
            ccq = client.submit("gauges", text, interval=INTERVAL, expiration=EXPIRATION)
            assert len(ccq.initial) == 0
            readers.append(Reader(client, ccq, condition, ccq.token))
        counts = {"observations": 0, "sent twice": 0, "compared": 0, "empty": 0, "killed": 0}
        for number in range(ROUNDS):
            if replicas > 1 and number % ROUNDS_DOWN == 0:
                kill_another(cluster, client, int(random.integers(len(cluster.nodes))))
                counts["killed"] += 1
            table = observations(random, first=counts["observations"])
            counts["observations"] += table.num_rows
            reached = ingest(client, table, random, counts, name=f"round-{number}")
            insert(session, shared, table)
            for query, reader in enumerate(readers):
                expected = polled(session, query, reader.condition)
                got = reader.round(reached)
                assert got == expected, (SEED, number, reader.ccq.info.query)
                counts["compared"] += len(got)
                counts["empty"] += not got
            reader = readers[int(random.integers(len(readers)))]
            assert asked(client, reader) == matching(session, reader.condition), (SEED, number)
        for reader in readers:
            assert len(set(reader.numbers)) == len(reader.numbers)
        assert min(len(reader.numbers) for reader in readers) > 0
        updates = sum(reader.updates for reader in readers)
        with capsys.disabled():
            print(
                f"\n{ROUNDS} rounds of {len(readers)} continuous queries: "
                f"{counts['observations']:,} observations, {counts['sent twice']:,} sent twice; "
                f"{updates:,} updates with {counts['compared']:,} observations in all, the same "
                f"as PostGIS; {counts['empty']:,} times nothing matched; "
                f"{ROUNDS} queries asked anew, {counts['killed']} nodes killed"
            )


def observations(random, *, first: int) -> pa.Table:
    """Of any place and any hour of a week, so that most are older than what came before."""
    count = int(random.integers(1, ROWS_MAX))
    latitude, longitude = places(random, count)
    late = random.random(count) < 0.5
    times = START_US + np.where(
        late, random.integers(0, WEEK_US, count), random.integers(0, WEEK_US // 7, count)
    )
    return pa.table(
        {
            "latitude": latitude,
            "longitude": longitude,
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "level": nullable(random, np.round(random.uniform(0, 6, count) * 2) / 2),
            "count": nullable(random, random.integers(0, 9, count)),
            "river": nullable(random, random.choice(RIVERS, count)),
            "number": np.arange(first, first + count),
        }
    ).cast(SCHEMA.observation_schema)


def nullable(random, values) -> pa.Array:
    return pa.array(values.tolist(), mask=random.random(len(values)) < 0.15)


def places(random, count: int):
    """Away from edges and circles; half of them in one part of the world."""
    shapes = [shapely.boundary(shapely.from_wkt(text)) for text in (STAR, RING)]
    circle = Circle(POINT[1], POINT[0], RADIUS_M)
    latitude, longitude = np.zeros(0), np.zeros(0)
    while len(latitude) < count:
        near = random.random(count) < 0.5
        y = np.where(near, random.uniform(30, 60, count), random.uniform(-89, 89, count))
        x = np.where(near, random.uniform(-10, 30, count), random.uniform(-180, 180, count))
        gap = np.min([shapely.distance(edge, shapely.points(x, y)) for edge in shapes], axis=0)
        away = np.abs(metres(circle.half_chords(y, x)) - RADIUS_M) > RING_M
        clear = (gap > EDGE) & away
        latitude, longitude = np.append(latitude, y[clear]), np.append(longitude, x[clear])
    return latitude[:count], longitude[:count]


def ingest(client: Client, table: pa.Table, random, counts: dict[str, int], *, name: str):
    """In batches of random size; now and then all or some of them again, under the same name."""
    rows = int(random.integers(1, table.num_rows + 1))
    receipt = client.ingest("gauges", table, producer=name, batch_rows=rows)
    # What a node has stored, and could not answer before it was killed, is sent again.
    assert receipt.rows == table.num_rows
    assert receipt.duplicate_rows == 0 or counts["killed"]
    if random.random() < REPEATED:
        again = client.ingest("gauges", table, producer=name, batch_rows=rows)
        assert again.duplicate_rows == table.num_rows
        counts["sent twice"] += table.num_rows
    return receipt.reached


def insert(session, directory: Path, table: pa.Table) -> None:
    file = directory / "round.csv"
    columns = ["number", "latitude", "longitude", "time", "level", "count", "river"]
    pcsv.write_csv(table.select(columns), file)
    session.ask(f"\\copy gauges ({', '.join(columns)}) FROM '{file}' CSV HEADER \nSELECT 1")


def asked(client: Client, reader: Reader) -> list[int]:
    """The numbers of all that a query finds."""
    labels = client.query("gauges", reader.ccq.info.query)
    assert labels.complete
    return sorted(client.read(labels).column("number").to_pylist())


def matching(session, condition: str) -> list[int]:
    _, rows = session.ask(f"SELECT number FROM gauges WHERE ({condition}) ORDER BY number")
    return [int(row) for row in rows]


def polled(session, query: int, condition: str) -> list[int]:
    """What matches and was not seen before."""
    old = f"SELECT FROM seen WHERE seen.query = {query} AND seen.number = gauges.number"
    _, rows = session.ask(
        f"WITH new AS (INSERT INTO seen SELECT {query}, number FROM gauges WHERE ({condition}) "
        f"AND NOT EXISTS ({old}) RETURNING number) SELECT number FROM new ORDER BY number"
    )
    return [int(row) for row in rows]
