"""Polygons as continuous queries, from ingest to their reader, and a trigger in PostGIS.

Every polygon is a CCQ of its own on a cluster of one node with embedded Spark; one client watches
all of them. A run ingests observations and ends when the client has every label of every CCQ as
Arrow rows. All labels are compared with what a search of the polygons by the bounds of cells finds,
and those of a thousand CCQs with what PostGIS says of the same cells. PostGIS has the polygons in a
table with an index, and a trigger that notifies of every polygon that a new point lies in; the
points come by COPY, and a session listens.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import shapely

import galileo
from benchmarks import clusters, postgis
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.postgis import binary_copy
from benchmarks.query_world import World, schema
from benchmarks.sizes import Bench
from galileo.geo import geohash

DATASET = "polygons"
INTERVAL_S = 0.5
EXPIRATION = "1d"
AT_ONCE = 64
SINGLY = 200
"""Polygons that are also submitted one by one, and cancelled."""
COMPARED = 1_000
"""CCQs of which the results are compared with PostGIS, about."""
TIMEOUT_S = 900.0
ROWS_PER_S = 75_000
SUBMITTED_PER_S = 2_000
SETTINGS = {"limits": {"ccqs_max": 1_000_000}}


def measure_polygons(bench: Bench) -> Iterator[Figure]:
    """Submission, then rows a second.

    Raises:
        postgis.NoServer: PostGIS is not installed.
    """
    world = World(2)
    polygons = world.polygons(bench.sizes.many_polygons)
    tables = [world.observations(bench.sizes.many_rows) for _ in range(bench.sizes.runs + 1)]
    with (
        _readable_directory() as directory,
        postgis.running() as session,
        clusters.cluster(bench.directory, nodes=1, settings=SETTINGS) as running,
        clusters.warm_evaluator(running),
        asyncio.Runner() as runner,
    ):
        trigger = _Trigger(session, polygons, directory=directory)
        yield from _measured(
            bench, running, runner, trigger=trigger, polygons=polygons, tables=tables
        )


@contextmanager
def _readable_directory() -> Iterator[Path]:
    """One whose files the server's user can read."""
    with tempfile.TemporaryDirectory(prefix="many-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


def _measured(
    bench: Bench,
    running: galileo.LocalCluster,
    runner: asyncio.Runner,
    *,
    trigger: _Trigger,
    polygons: Sequence[str],
    tables: Sequence[pa.Table],
) -> Iterator[Figure]:
    client = galileo.AsyncClient(*running.addresses, timeout=clusters.PATIENCE)
    bench.say(f"submitting {len(polygons):,} polygons")
    runner.run(client.create_dataset(schema(DATASET)))
    one_by_one_s = runner.run(_submitted_singly(client, polygons[:SINGLY]))
    started = time.perf_counter()
    tokens = runner.run(_submitted(client, polygons))
    submitting_s = time.perf_counter() - started
    yield Figure(
        "continuous queries submitted with one call, 1 node",
        "CCQs/s",
        Spread.of([len(tokens) / submitting_s]),
        (
            Peer(
                f"one by one, {AT_ONCE} at a time, with their initial results",
                Spread.of([len(polygons[:SINGLY]) / one_by_one_s]),
            ),
        ),
        (Goal("at least", SUBMITTED_PER_S),),
    )
    met = [met_cells(polygons, table) for table in tables]
    runs = runner.run(_delivered(bench, client, tokens, tables, met, trigger))
    runner.run(client.close())
    _compare_with_postgis(trigger, tables, met, polygons=len(polygons))
    rows = tables[0].num_rows
    yield Figure(
        f"{len(polygons):,} polygons: {rows:,} observations from ingest to the reader of all "
        f"CCQs, 1 node, interval {INTERVAL_S:g} s",
        "rows/s",
        Spread.of([ours for ours, _ in runs]).per_second(rows),
        (
            Peer(
                "PostGIS: COPY, trigger, NOTIFY",
                Spread.of([theirs for _, theirs in runs]).per_second(rows),
            ),
        ),
        (Goal("at least", ROWS_PER_S),),
    )


# --- Galileo ---------------------------------------------------------------------------------


async def _submitted_singly(client: galileo.AsyncClient, polygons: Sequence[str]) -> float:
    """Seconds that it takes; the CCQs are gone afterwards."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def submit(polygon: str) -> str:
        async with gate:
            query = f"S_INTERSECTS(geometry, {polygon})"
            return (await client.submit(DATASET, query, interval="1h", expiration=EXPIRATION)).id

    started = time.perf_counter()
    ccq_ids = await asyncio.gather(*map(submit, polygons))
    took_s = time.perf_counter() - started
    await asyncio.gather(*map(client.cancel, ccq_ids))
    return took_s


async def _submitted(client: galileo.AsyncClient, polygons: Sequence[str]) -> dict[str, str]:
    """The tokens of all, in their order."""
    done = await client.submit_many(
        [
            galileo.Submission(
                DATASET,
                f"S_INTERSECTS(geometry, {polygon})",
                interval=INTERVAL_S,
                expiration=EXPIRATION,
            )
            for polygon in polygons
        ]
    )
    for one in done:
        if one.error is not None:
            raise one.error
    return {one.id: one.token for one in done}


async def _delivered(
    bench: Bench,
    client: galileo.AsyncClient,
    tokens: dict[str, str],
    tables: Sequence[pa.Table],
    met: Sequence[Met],
    trigger: _Trigger,
) -> list[tuple[float, float]]:
    """Seconds of each run but the first, here and in PostGIS."""
    runs = []
    numbers = pa.array([*tokens], pa.string())
    async with _watching(client, tokens) as come:
        for number, (table, expected) in enumerate(zip(tables, met, strict=True)):
            took_s, labels = await _run(client, come, table, expected=len(expected))
            found = pc.index_in(labels.column("ccq"), numbers).to_numpy()
            check(found, labels, expected)
            copied_s = await asyncio.to_thread(trigger.copy, table)
            bench.say(
                f"run {number} of {len(tables) - 1}: {took_s:.2f} s, PostGIS {copied_s:.2f} s"
            )
            if number:
                runs.append((took_s, copied_s))
    return runs


@asynccontextmanager
async def _watching(
    client: galileo.AsyncClient, tokens: dict[str, str]
) -> AsyncIterator[asyncio.Queue[pa.Table]]:
    """All new labels as they come."""
    come: asyncio.Queue[pa.Table] = asyncio.Queue()

    async def watch() -> None:
        async for updates in client.watch_many(tokens):
            if updates.errors:
                raise next(iter(updates.errors.values()))
            come.put_nowait(await asyncio.to_thread(updates.to_arrow))

    task = asyncio.create_task(watch())
    try:
        yield come
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _run(
    client: galileo.AsyncClient, come: asyncio.Queue[pa.Table], table: pa.Table, *, expected: int
) -> tuple[float, pa.Table]:
    """Seconds from the call of ingest until all labels are here, and the labels."""
    started = time.perf_counter()
    storing = asyncio.create_task(client.ingest(DATASET, table))
    found: list[pa.Table] = []
    async with asyncio.timeout(TIMEOUT_S):
        while sum(one.num_rows for one in found) < expected:
            found.append(await come.get())
        took_s = time.perf_counter() - started
        await storing
    return took_s, pa.concat_tables(found)


# --- what has to be found ----------------------------------------------------------------------

Met = npt.NDArray[np.uint64]
"""Polygon and cell of each path that meets a polygon, in order; shape (n, 2)."""


def met_cells(polygons: Sequence[str], table: pa.Table) -> Met:
    """By the bounds of the cells alone, without covers or prefixes."""
    precision = schema(DATASET).geohash_precision
    latitude, longitude = (table.column(n).to_numpy() for n in ("latitude", "longitude"))
    cells, counts = np.unique(geohash.encode(latitude, longitude, precision), return_counts=True)
    boxes = shapely.box(*geohash.bounds(cells, precision))
    shapes = shapely.from_wkt(np.array(polygons))
    at, polygon = shapely.STRtree(shapes).query(boxes, predicate="intersects")
    pairs = np.stack([polygon.astype(np.uint64), cells[at].astype(np.uint64)], axis=1)
    return _in_order(np.repeat(pairs, counts[at], axis=0))


def check(found: npt.NDArray[np.int64], labels: pa.Table, expected: Met) -> None:
    """Every path that meets a polygon is there for it, once.

    Raises:
        AssertionError: it is not.
    """
    names = ("partition", "sequence", "row")
    places = np.stack([found, *(labels.column(name).to_numpy() for name in names)], axis=1)
    if len(np.unique(places, axis=0)) != len(places):
        raise AssertionError("expected each label of a query once, got some again")
    cells = labels.column("cell").to_numpy().astype(np.uint64)
    got = _in_order(np.stack([found.astype(np.uint64), cells], axis=1))
    if not np.array_equal(got, expected):
        raise AssertionError(f"expected {len(expected):,} labels, got {len(got):,}, or others")


def _in_order(pairs: Met) -> Met:
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _compare_with_postgis(
    trigger: _Trigger, tables: Sequence[pa.Table], met: Sequence[Met], *, polygons: int
) -> None:
    step = max(1, polygons // COMPARED)
    ours = sum(int((one[:, 0] % step == 0).sum()) for one in met)
    theirs = trigger.met_cells(tables, step=step)
    if ours != theirs:
        raise AssertionError(f"expected {theirs:,} labels, as PostGIS finds, got {ours:,}")


# --- PostGIS ---------------------------------------------------------------------------------

_FUNCTION = """CREATE FUNCTION notify_met() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('met', p.id || ':' || f.id)
    FROM fresh f JOIN polygons p ON ST_Intersects(p.shape, f.place);
    RETURN NULL;
END $$"""


class _Trigger:
    """The polygons in PostGIS, and the trigger that notifies of those that a point lies in."""

    def __init__(
        self, session: postgis.Session, polygons: Sequence[str], *, directory: Path
    ) -> None:
        self._session = session
        self._directory = directory
        self._copied = 0
        file = directory / "polygons.csv"
        pcsv.write_csv(pa.table({"id": np.arange(len(polygons)), "wkt": polygons}), file)
        place = "ST_SetSRID(ST_MakePoint(longitude, latitude), 4326)"
        for statement in (
            "CREATE TABLE raw (id int, wkt text)",
            f"\\copy raw FROM '{file}' CSV HEADER \nSELECT 1",
            "CREATE TABLE polygons AS SELECT id, ST_GeomFromText(wkt, 4326) AS shape FROM raw",
            "CREATE INDEX ON polygons USING gist (shape)",
            "ANALYZE polygons",
            "CREATE TABLE points (id int GENERATED ALWAYS AS IDENTITY, "
            "longitude float8, latitude float8, time timestamptz, "
            f"place geometry(Point, 4326) GENERATED ALWAYS AS ({place}) STORED)",
            "CREATE TABLE cells (west float8, south float8, east float8, north float8, count int)",
            _FUNCTION,
            "CREATE TRIGGER met AFTER INSERT ON points REFERENCING NEW TABLE AS fresh "
            "FOR EACH STATEMENT EXECUTE FUNCTION notify_met()",
            "LISTEN met",
        ):
            session.ask(statement)

    def copy(self, table: pa.Table) -> float:
        """Seconds until the points are committed and all notifications have arrived."""
        file, before = self._directory / "points.copy", self._copied
        self._copied += table.num_rows
        file.write_bytes(binary_copy(table.select(["longitude", "latitude", "time"])))
        command = f"\\copy points (longitude, latitude, time) FROM '{file}' (FORMAT binary)"
        started = time.perf_counter()
        _, lines = self._session.ask(f"{command} \nSELECT 1")
        took_s = time.perf_counter() - started
        shown = sum(line.startswith("Asynchronous notification") for line in lines)
        join = "points f JOIN polygons p ON ST_Intersects(p.shape, f.place)"
        _, (met,) = self._session.ask(f"SELECT count(*) FROM {join} WHERE f.id > {before}")
        if shown != int(met):
            raise AssertionError(f"expected {met} notifications, psql showed {shown}")
        return took_s

    def met_cells(self, tables: Sequence[pa.Table], *, step: int) -> int:
        """Pairs of a row and one of every `step` polygons, where the row's cell meets it."""
        latitude, longitude = (
            np.concatenate([table.column(name).to_numpy() for table in tables])
            for name in ("latitude", "longitude")
        )
        precision = schema(DATASET).geohash_precision
        encoded = geohash.encode(latitude, longitude, precision)
        cells, counts = np.unique(encoded, return_counts=True)
        names = ("west", "south", "east", "north")
        columns = dict(zip(names, geohash.bounds(cells, precision), strict=True))
        file = self._directory / "cells.csv"
        pcsv.write_csv(pa.table({**columns, "count": counts}), file)
        self._session.ask(f"\\copy cells FROM '{file}' CSV HEADER \nSELECT 1")
        box = "ST_MakeEnvelope(west, south, east, north, 4326)"
        _, (met,) = self._session.ask(
            f"SELECT sum(count) FROM cells JOIN polygons ON ST_Intersects(shape, {box}) "
            f"WHERE id % {step} = 0"
        )
        return int(met)
