"""How fast polygons and distances select observations, against PostGIS with GiST indexes.

Like for like: this process asks two server processes for the same rows, and gets the same columns
as an Arrow table from both. One is a Galileo node, asked through gRPC; the other is PostgreSQL,
asked over a Unix socket through ADBC, with statements that it has prepared. Then both only count,
and at last both are measured without the way there and back: Galileo in this process, PostgreSQL
by what it says of its own planning and execution.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pcsv

import galileo
from benchmarks import clusters, postgis
from benchmarks.figures import Figure, Goal, Peer, Spread, in_turn
from benchmarks.sizes import Bench, NotInstalled
from galileo.client import Client
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model import paths
from galileo.model.schema import Feature, Schema
from galileo.model.times import micros, times_from_micros
from galileo.query import parse

WEST, SOUTH, EAST, NORTH = -125.0, 25.0, -67.0, 49.0
SCHEMA = Schema(
    "points",
    [Feature("id", type="int", indexed=False)],
    geohash_precision=4,
    time_bucket="1d",
)
COLUMNS = ("latitude", "longitude", "time", "id")
RING = ((-110.5, 35), (-99.5, 33.5), (-96, 40), (-104, 45.5), (-111, 41.5), (-110.5, 35))
CENTRE = (-105.0, 40.0)
RADII_M = (50_000, 200_000)
RUN_S = 0.05
POINTS = 1_000_000
PLACES = 400
"""Different places of a question that is asked anew; far more than a node keeps the covers of."""
FASTER = Goal("at most", 1.0, of_peer=True)

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Question:
    """One selection: its CQL2 and its condition in SQL, for a place that is moved by degrees."""

    name: str
    cql2: Callable[[float], str]
    sql: Callable[[float], str]

    def moved(self) -> Iterator[float]:
        """The same sort of place elsewhere, over and over, none twice within `PLACES`."""
        return itertools.cycle(np.linspace(-1, 1, PLACES).tolist())


def _ring(moved: float) -> str:
    return "(" + ", ".join(f"{x + moved:.6f} {y:g}" for x, y in RING) + ")"


def _circle(radius_m: int) -> Question:
    return Question(
        f"within {radius_m // 1000} km",
        lambda moved: f"DWITHIN(geometry, POINT({CENTRE[0] + moved:.6f} {CENTRE[1]}), {radius_m})",
        lambda moved: (
            f"ST_DWithin(round, ST_GeogFromText('POINT({CENTRE[0] + moved:.6f} {CENTRE[1]})'), "
            f"{radius_m}, false)"
        ),
    )


QUESTIONS = (
    Question(
        "polygon of 5 corners",
        lambda moved: f"S_INTERSECTS(geometry, POLYGON({_ring(moved)}))",
        lambda moved: f"ST_Intersects(flat, ST_GeomFromText('POLYGON({_ring(moved)})', 4326))",
    ),
    *map(_circle, RADII_M),
)
"""The polygon lies on the plane of longitude and latitude, the distance on the sphere: as here."""


class InProcess:
    """The points as one commit's paths in a metadata graph, and its sorted observations."""

    def __init__(self, table: pa.Table) -> None:
        self._table, batch = paths.index(SCHEMA, table)
        self._graph = MetadataGraph(SCHEMA)
        self._graph.insert(batch, partition=0, sequence=1)
        self.blocks = self._graph.count()

    def select(self, cql2: str) -> pa.Table:
        """The observations that match exactly, read where their labels say."""
        query = parse(cql2, SCHEMA)
        labels = self._graph.scan(query)
        first, count = (labels.column(name).to_numpy() for name in ("row", "rows"))
        begin = np.repeat(first - (np.cumsum(count) - count), count)
        near = self._table.take(pa.array(begin + np.arange(len(begin))))
        cells = {name: labels.column(name).to_numpy() for name in ("cell", "bucket")}
        keep = np.repeat(query.must_match_paths(cells), count)
        open_ = np.flatnonzero(~keep)
        keep[open_] = query.match_observations(near.take(pa.array(open_)))
        return near.filter(pa.array(keep))


class Statements:
    """PostGIS as a client program has it: one connection, each statement prepared at first use."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._prepared: dict[str, Any] = {}

    def again(self, sql: str) -> pa.Table:
        """The rows of a statement that is kept."""
        cursor = self._prepared.get(sql)
        if cursor is None:
            cursor = self._prepared[sql] = self._connection.cursor()
            cursor.adbc_prepare(sql)
        return self._fetched(cursor, sql)

    def anew(self, sql: str) -> pa.Table:
        """The rows of a statement that is not asked again."""
        with self._connection.cursor() as cursor:
            return self._fetched(cursor, sql)

    def _fetched(self, cursor: Any, sql: str) -> pa.Table:
        cursor.execute(sql)
        return cursor.fetch_arrow_table()

    def close(self) -> None:
        for cursor in self._prepared.values():
            cursor.close()


@dataclass(frozen=True, slots=True)
class Sides:
    """Everything that is asked, with the same points."""

    client: Client
    statements: Statements
    session: postgis.Session
    here: InProcess


def measure(bench: Bench) -> Iterator[Figure]:
    """Figures of each question, Galileo's time and PostGIS's.

    Raises:
        NotInstalled: PostGIS or the driver is not installed.
    """
    table = world(POINTS)
    with sides(bench, table) as both:
        for question in QUESTIONS:
            yield from asked(question, both, bench=bench)


@contextmanager
def sides(bench: Bench, table: pa.Table) -> Iterator[Sides]:
    """The servers with the points, and this process's ways to them."""
    try:
        driver = importlib.import_module("adbc_driver_postgresql.dbapi")
    except ImportError:
        raise NotInstalled(
            "the PostgreSQL driver is not installed: pip install adbc-driver-postgresql"
        ) from None
    with postgis.running() as session:
        loaded(session, table, directory=bench.directory)
        versions = session.ask("SELECT version(), postgis_full_version()")[1][0]
        socket = session.ask("SHOW unix_socket_directories")[1][0]
        here = InProcess(table)
        bench.say(f"{table.num_rows:,} points, {here.blocks:,} blocks; {versions}")
        with (
            clusters.cluster(bench.directory, nodes=1) as running,
            galileo.connect(*running.addresses) as client,
            driver.connect(f"postgresql://{postgis.USER}@/postgres?host={socket}") as connection,
        ):
            client.create_dataset(SCHEMA)
            # As one load, as CLUSTER makes of the points on the other side.
            client.ingest(SCHEMA.name, table, batch_rows=table.num_rows)
            statements = Statements(connection)
            yield Sides(client, statements, session, here)
            statements.close()


def world(points: int) -> pa.Table:
    """Points all over the United States, at times of one day, numbered."""
    random = np.random.default_rng(1)
    columns = {
        "latitude": random.uniform(SOUTH, NORTH, points),
        "longitude": random.uniform(WEST, EAST, points),
        "time": times_from_micros(
            micros("2012-03-01") + random.integers(0, 86_400_000_000, points)
        ),
        "id": np.arange(points),
    }
    return pa.table(columns, schema=SCHEMA.observation_schema)


def loaded(session: postgis.Session, table: pa.Table, *, directory: Path) -> None:
    """The same points in PostGIS, indexed both ways and stored in the order of an index."""
    file = directory / "points.csv"
    pcsv.write_csv(table.select(["id", "longitude", "latitude", "time"]), file)
    for statement in (
        "CREATE TABLE raw (id bigint, longitude float8, latitude float8, time timestamptz)",
        f"\\copy raw FROM '{file}' CSV HEADER \nSELECT 1",
        "CREATE TABLE points AS SELECT *, ST_SetSRID(ST_MakePoint(longitude, latitude), 4326) "
        "AS flat, ST_MakePoint(longitude, latitude)::geography AS round FROM raw",
        "CREATE INDEX flat ON points USING gist (flat)",
        "CREATE INDEX round ON points USING gist (round)",
        "CLUSTER points USING flat",
        "VACUUM ANALYZE points",
    ):
        session.ask(statement)


def asked(question: Question, both: Sides, *, bench: Bench) -> Iterator[Figure]:
    """The times of one question, taken in turn; first the answers are compared."""
    cql2, condition = question.cql2(0.0), question.sql(0.0)
    rows = f"SELECT {', '.join(COLUMNS)} FROM points WHERE {condition}"
    count = f"SELECT count(*) FROM points WHERE {condition}"
    found = checked(question, both, (cql2, rows, count))
    runs, name = bench.sizes.runs, f"{question.name}: {found:,} observations"

    select, theirs, call, nothing = in_turn(
        lambda: both.client.select(SCHEMA.name, cql2),
        lambda: both.statements.again(rows),
        both.client.topology_json,
        lambda: both.statements.again("SELECT 1"),
        runs=runs,
        run_s=RUN_S,
    )
    peers = (
        Peer("PostGIS, same columns over its socket", theirs),
        Peer("a call through gRPC that asks for no data", call),
        Peer("PostgreSQL, SELECT 1 over its socket", nothing),
    )
    yield Figure(f"{name}, all columns, through gRPC", "s", select, peers, (FASTER,))
    yield anew(question, both, name=name, runs=runs)
    counted, theirs = in_turn(
        lambda: both.client.count(SCHEMA.name, cql2),
        lambda: both.statements.again(count),
        runs=runs,
        run_s=RUN_S,
    )
    peer = Peer("PostGIS, count(*) over its socket", theirs)
    yield Figure(f"{name}, counted through gRPC", "s", counted, (peer,), (FASTER,))
    inside: list[float] = []
    here, _ = in_turn(
        lambda: both.here.select(cql2),
        lambda: inside.append(executed(rows, both.session)),
        runs=runs,
        run_s=RUN_S,
    )
    peer = Peer("PostGIS, planning and execution within the server", Spread.of(inside))
    yield Figure(f"{name}, all columns, in one process", "s", here, (peer,), (FASTER,))


def anew(question: Question, both: Sides, *, name: str, runs: int) -> Figure:
    """The time where every place is a new one, so that neither side has anything ready for it."""
    ours, other = question.moved(), question.moved()
    select, theirs = in_turn(
        lambda: both.client.select(SCHEMA.name, question.cql2(next(ours))),
        lambda: both.statements.anew(
            f"SELECT {', '.join(COLUMNS)} FROM points WHERE {question.sql(next(other))}"
        ),
        runs=runs,
        run_s=RUN_S,
    )
    peer = Peer("PostGIS, the same places, not prepared", theirs)
    title = f"{name} or so, all columns, through gRPC, another place each time"
    return Figure(title, "s", select, (peer,), (FASTER,))


def checked(question: Question, both: Sides, asking: tuple[str, str, str]) -> int:
    """How many observations all of them find, which must be the same ones, value by value."""
    cql2, rows, count = asking
    answers = [
        sorted_by_id(both.client.select(SCHEMA.name, cql2)),
        sorted_by_id(both.here.select(cql2)),
        sorted_by_id(both.statements.again(rows)),
    ]
    for other in answers[1:]:
        if not answers[0].equals(other.cast(answers[0].schema)):
            raise AssertionError(f"{question.name}: Galileo and PostGIS select different rows")
    found = answers[0].num_rows
    counts = both.client.count(SCHEMA.name, cql2), both.statements.again(count)[0][0].as_py()
    if counts != (found, found):
        raise AssertionError(f"{question.name}: expected counts of {found}, got {counts}")
    return int(found)


def sorted_by_id(table: pa.Table) -> pa.Table:
    return table.select(COLUMNS).sort_by("id").combine_chunks()


def executed(statement: str, session: postgis.Session) -> float:
    """Seconds of planning and execution within the server, without sending rows."""
    plan = session.ask(f"EXPLAIN (ANALYZE, TIMING OFF) {statement}")[1]
    if not any("Index Scan" in line for line in plan):
        raise AssertionError(f"expected PostGIS to use its GiST index, got {plan}")
    times = [line.split(": ")[1] for line in plan if "Time:" in line]
    return sum(float(time.removesuffix(" ms")) for time in times) / 1e3
