"""How fast polygons and distances select observations, against PostGIS with a GiST index.

Both hold the same points in memory and must return the same ids. PostGIS answers to `psql` over
a Unix socket; Galileo parses the query, scans its metadata graph for the labels, gathers the
observations of their blocks and filters them exactly, in this process. By itself:

    PYTHONPATH=scripts:. python -m benchmarks.spatial_postgis [--points 1000000] [--runs 7]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pcsv

from benchmarks import postgis
from benchmarks.figures import Figure, Peer, Spread, quantity
from benchmarks.machine import Machine
from benchmarks.measure import in_turn
from benchmarks.sizes import FULL, Bench
from galileo.graph.metadata import MetadataGraph
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
RING = "(-110.5 35, -99.5 33.5, -96 40, -104 45.5, -111 41.5, -110.5 35)"
CENTRE = "-105 40"
RADIUS_M = 50_000

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Question:
    """One selection, in CQL2 and in SQL."""

    name: str
    cql2: str
    sql: str


QUESTIONS = (
    Question(
        "polygon of 5 corners",
        f"S_INTERSECTS(geometry, POLYGON({RING}))",
        "SELECT id FROM points WHERE ST_Intersects(flat, "
        f"ST_GeomFromText('POLYGON({RING})', 4326))",
    ),
    Question(
        "within 50 km",
        f"DWITHIN(geometry, POINT({CENTRE}), {RADIUS_M})",
        "SELECT id FROM points WHERE ST_DWithin(round, "
        f"ST_GeogFromText('POINT({CENTRE})'), {RADIUS_M}, false)",
    ),
)
"""The polygon lies on the plane of longitude and latitude, the distance on the sphere: as here."""


class Galileo:
    """The points as one commit's paths in a metadata graph, and its sorted observations."""

    def __init__(self, table: pa.Table) -> None:
        self._table, batch = paths.index(SCHEMA, table)
        self._graph = MetadataGraph(SCHEMA)
        self._graph.insert(batch, partition=0, sequence=1)
        self.blocks = self._graph.count()

    def scan(self, cql2: str) -> pa.Table:
        """The labels that match."""
        return self._graph.scan(parse(cql2, SCHEMA))

    def select(self, cql2: str) -> Ids:
        """The ids of the observations that match exactly."""
        query = parse(cql2, SCHEMA)
        labels = self._graph.scan(query)
        first, count = (labels.column(name).to_numpy() for name in ("row", "rows"))
        begin = np.repeat(first - (np.cumsum(count) - count), count)
        near = self._table.take(pa.array(begin + np.arange(len(begin))))
        found = near.column("id").to_numpy()[query.match_observations(near)]
        return np.asarray(found, dtype=np.int64)


def measure(bench: Bench, *, points: int = 1_000_000) -> Iterator[Figure]:
    """One figure per question, Galileo's time beside PostGIS's two.

    Raises:
        postgis.NoServer: PostGIS is not installed.
    """
    table = world(points)
    galileo = Galileo(table)
    with postgis.running() as session:
        loaded(session, table, directory=bench.directory)
        versions = session.ask("SELECT version(), postgis_full_version()")[1][0]
        bench.say(f"{points:,} points, {galileo.blocks:,} blocks; {versions}")
        for question in QUESTIONS:
            yield asked(question, galileo, session, bench=bench)


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
    pcsv.write_csv(table.select(["id", "longitude", "latitude"]), file)
    for statement in (
        "CREATE TABLE raw (id bigint, longitude float8, latitude float8)",
        f"\\copy raw FROM '{file}' CSV HEADER \nSELECT 1",
        "CREATE TABLE points AS SELECT id, ST_SetSRID(ST_MakePoint(longitude, latitude), 4326) "
        "AS flat, ST_MakePoint(longitude, latitude)::geography AS round FROM raw",
        "CREATE INDEX flat ON points USING gist (flat)",
        "CREATE INDEX round ON points USING gist (round)",
        "CLUSTER points USING flat",
        "VACUUM ANALYZE points",
    ):
        session.ask(statement)


def asked(
    question: Question, galileo: Galileo, session: postgis.Session, *, bench: Bench
) -> Figure:
    """The times of one question, taken in turn; first the answers are compared."""
    found = np.sort(galileo.select(question.cql2))
    rows = np.array(sorted(int(row) for row in session.ask(question.sql)[1]), dtype=np.int64)
    if not np.array_equal(found, rows):
        differing = np.setxor1d(found, rows)
        raise AssertionError(f"{question.name}: {len(differing)} ids differ: {differing[:5]}")
    fetched: list[float] = []
    inside: list[float] = []

    def by_postgis() -> None:
        fetched.append(session.ask(question.sql, rows_to=Path(os.devnull))[0])
        inside.append(executed(question, session))

    select, scan, _ = in_turn(
        lambda: galileo.select(question.cql2),
        lambda: galileo.scan(question.cql2),
        by_postgis,
        runs=bench.sizes.runs,
    )
    runs = bench.sizes.runs
    peers = (
        Peer("Galileo's label scan alone", scan),
        Peer("PostGIS, ids fetched by psql", Spread.of(fetched[-runs:])),
        Peer("PostGIS, within the server", Spread.of(inside[-runs:])),
    )
    return Figure(f"{question.name}: {len(found):,} ids", "s", select, peers)


def executed(question: Question, session: postgis.Session) -> float:
    """Seconds of planning and execution within the server, without sending rows."""
    plan = session.ask(f"EXPLAIN (ANALYZE, TIMING OFF) {question.sql}")[1]
    if not any("Index Scan" in line for line in plan):
        raise AssertionError(f"expected PostGIS to use its GiST index, got {plan}")
    times = [line.split(": ")[1] for line in plan if "Time:" in line]
    return sum(float(time.removesuffix(" ms")) for time in times) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description="Polygons and distances, against PostGIS.")
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=7)
    given = parser.parse_args()
    sizes = type(FULL)(runs=given.runs)
    with tempfile.TemporaryDirectory(prefix="galileo-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        print(_machine(Machine.here(directory)))
        try:
            for figure in measure(Bench(sizes, directory, print), points=given.points):
                _show(figure)
        except postgis.NoServer as error:
            print(f"skipped: {error}", file=sys.stderr)
    return 0


def _machine(machine: Machine) -> str:
    packages = ", ".join(f"{name} {number}" for name, number in machine.packages.items())
    return f"{machine.cpu}, {machine.cores} cores, load {machine.load[0]:.1f}; {packages}"


def _show(figure: Figure) -> None:
    lines = [("Galileo, labels and exact filter", figure.spread)]
    lines += [(peer.name, peer.spread) for peer in figure.peers]
    print(figure.name)
    for name, spread in lines:
        low, high = (quantity(value, figure.unit) for value in (spread.low, spread.high))
        print(f"  {name}: {quantity(spread.median, figure.unit)} ({low} to {high}, {spread.runs})")


if __name__ == "__main__":
    sys.exit(main())
