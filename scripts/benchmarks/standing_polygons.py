"""Polygons as continuous queries, from ingest to cache, beside a trigger in PostGIS.

Every polygon is a CCQ of its own on a cluster of one node with embedded Spark. A run ingests
observations and ends when every CCQ has been evaluated up to them; afterwards the results of a
thousand are fetched and compared with what PostGIS says of the same cells. PostGIS has the
polygons in a table with an index, and a trigger that notifies of every polygon that a new point
lies in; the points come by COPY, and a session listens.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

import galileo
from benchmarks import clusters, postgis
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.ingest_postgis import binary_copy
from benchmarks.sizes import Bench
from benchmarks.standing_world import World, schema
from galileo.cursor import Cursor
from galileo.geo import geohash

DATASET = "polygons"
INTERVAL_S = 0.5
EXPIRATION = "1d"
AT_ONCE = 64
SAMPLE = 16
"""CCQs that are looked at to know that all have been evaluated: one cycle serves all."""
FETCHED = 1_000
"""CCQs of which the results are compared, about."""
TIMEOUT_S = 300.0
ROWS_PER_S = 75_000
SETTINGS = {"limits": {"ccqs_max": 1_000_000}}


def measure(bench: Bench) -> Iterator[Figure]:
    """Submission, then rows a second.

    Raises:
        postgis.NoServer: PostGIS is not installed.
    """
    world = World(2)
    polygons = world.polygons(bench.sizes.standing_polygons)
    tables = [world.observations(bench.sizes.standing_rows) for _ in range(bench.sizes.runs + 1)]
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
    with tempfile.TemporaryDirectory(prefix="standing-bench-") as name:
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
    client = galileo.AsyncClient(*running.addresses, patience=clusters.PATIENCE)
    bench.say(f"submitting {len(polygons):,} polygons")
    started = time.perf_counter()
    ccqs = runner.run(_submitted(client, polygons))
    submitting_s = time.perf_counter() - started
    yield Figure(
        f"submissions of continuous queries, {AT_ONCE} at a time, 1 node",
        "CCQs/s",
        Spread.of([len(ccqs) / submitting_s]),
    )
    ours, theirs = [], []
    for number, table in enumerate(tables):
        took_s = runner.run(_cached(client, ccqs, table))
        copied_s = trigger.copy(table)
        bench.say(f"run {number} of {len(tables) - 1}: {took_s:.2f} s, PostGIS {copied_s:.2f} s")
        if number:
            ours.append(took_s)
            theirs.append(copied_s)
    step = max(1, len(ccqs) // FETCHED)
    bench.say(f"fetching the results of {len(ccqs[::step]):,} polygons")
    found = runner.run(_fetched(client, ccqs[::step]))
    runner.run(client.close())
    expected = trigger.met_cells(tables, step=step)
    if found != expected:
        raise AssertionError(f"expected {expected:,} labels, as PostGIS finds, got {found:,}")
    rows = tables[0].num_rows
    yield Figure(
        f"{len(polygons):,} polygons: {rows:,} observations from ingest to all caches, 1 node, "
        f"interval {INTERVAL_S:g} s",
        "rows/s",
        Spread.of(ours).per_second(rows),
        (Peer("PostGIS: COPY, trigger, NOTIFY", Spread.of(theirs).per_second(rows)),),
        (Goal("at least", ROWS_PER_S),),
    )


# --- Galileo ---------------------------------------------------------------------------------


async def _submitted(client: galileo.AsyncClient, polygons: Sequence[str]) -> list[Any]:
    await client.create_dataset(schema(DATASET))
    gate = asyncio.Semaphore(AT_ONCE)

    async def submit(polygon: str) -> Any:
        async with gate:
            query = f"S_INTERSECTS(geometry, {polygon})"
            return await client.submit(DATASET, query, interval=INTERVAL_S, expiration=EXPIRATION)

    return list(await asyncio.gather(*map(submit, polygons)))


async def _cached(client: galileo.AsyncClient, ccqs: Sequence[Any], table: pa.Table) -> float:
    """Seconds from the call of ingest until CCQs from all over have been evaluated up to it."""
    started = time.perf_counter()
    reached = (await client.ingest(DATASET, table)).reached
    for ccq in [*ccqs[:: max(1, len(ccqs) // SAMPLE)], ccqs[-1]]:
        await _evaluated(client, ccq, reached, deadline=started + TIMEOUT_S)
    return time.perf_counter() - started


async def _evaluated(
    client: galileo.AsyncClient, ccq: Any, reached: Cursor, *, deadline: float
) -> None:
    while not (await client.fetch(ccq.id, token=ccq.token)).frontier.covers(reached):
        if time.perf_counter() > deadline:
            raise AssertionError(f"{ccq.id} was not evaluated within {TIMEOUT_S:g} s")
        await asyncio.sleep(0.01)


async def _fetched(client: galileo.AsyncClient, ccqs: Sequence[Any]) -> int:
    """Number of labels since submission."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def fetch(ccq: Any) -> int:
        async with gate:
            update = await client.fetch(ccq.id, token=ccq.token)
            found = len(update.labels)
            while update.more:
                update = await client.fetch(ccq.id, token=update.token)
                found += len(update.labels)
            return found

    return sum(await asyncio.gather(*map(fetch, ccqs)))


# --- PostGIS ---------------------------------------------------------------------------------

_FUNCTION = """CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
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
            "FOR EACH STATEMENT EXECUTE FUNCTION tell()",
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
        told = sum(line.startswith("Asynchronous notification") for line in lines)
        join = "points f JOIN polygons p ON ST_Intersects(p.shape, f.place)"
        _, (met,) = self._session.ask(f"SELECT count(*) FROM {join} WHERE f.id > {before}")
        if told != int(met):
            raise AssertionError(f"expected {met} notifications, psql showed {told}")
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
