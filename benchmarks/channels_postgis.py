"""Polygons as subscriptions of a channel, from ingest to their broker, and a trigger in PostGIS.

Every polygon is a subscription of one channel, on a cluster of one node; a broker follows. A run
ingests observations and ends when the broker has every notification as Arrow rows. All of them are
compared with what a tree of the polygons finds, and their number with PostGIS's. PostGIS has the
polygons in a table with an index, and a trigger that notifies of every polygon that a new point
lies in; the points come by COPY, and a session listens. It gets a tenth of them, as it is slower.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from galileo.client import Client, Notifications

DATASET, CHANNEL, BROKER = "points", "polygons", "reader"
PERIOD_S = 0.5
WAIT_MAX = "15m"
"""For the next notifications of a run."""
ROWS_PER_S = 300_000
PEER_SHARE = 10
SUBSCRIBED_PER_S = 20_000


def measure(bench: Bench) -> Iterator[Figure]:
    """Subscriptions a second, then rows a second.

    Raises:
        postgis.NoServer: PostGIS is not installed.
    """
    world, rows = World(2), bench.sizes.many_rows * PEER_SHARE
    polygons = world.polygons(bench.sizes.many_polygons)
    tables = [numbered(world.observations(rows)) for _ in range(bench.sizes.runs + 1)]
    with (
        postgis.readable_directory() as directory,
        postgis.running() as session,
        clusters.cluster(bench.directory, nodes=1) as running,
        running.client(timeout=clusters.PATIENCE) as client,
    ):
        trigger = _Trigger(session, polygons, directory=directory)
        subscribing_s = _subscribe(client, polygons)
        yield Figure(
            f"{len(polygons):,} polygons subscribed in one call, durable, 1 node",
            "subscriptions/s",
            Spread.of([len(polygons) / subscribing_s]),
            goals=(Goal("at least", SUBSCRIBED_PER_S),),
        )
        runs = list(_runs(bench, client, tables, trigger=trigger, polygons=polygons))
    yield Figure(
        f"{len(polygons):,} polygons: {rows:,} observations from ingest to the broker that "
        f"follows, 1 node, period {PERIOD_S:g} s",
        "rows/s",
        Spread.of([ours for ours, _ in runs[1:]]).per_second(rows),
        (
            Peer(
                "PostGIS: COPY, trigger, NOTIFY",
                Spread.of([theirs for _, theirs in runs[1:]]).per_second(rows // PEER_SHARE),
            ),
        ),
        (Goal("at least", ROWS_PER_S),),
    )


def numbered(observations: pa.Table) -> pa.Table:
    return observations.append_column("number", pa.array(np.arange(observations.num_rows)))


# --- Galileo ---------------------------------------------------------------------------------


def _subscribe(client: Client, polygons: Sequence[str]) -> float:
    """Seconds that it takes; a subscription has the number of its polygon as id."""
    features = [*schema(DATASET).features, galileo.Feature("number", type="int", indexed=False)]
    client.create_dataset(galileo.Schema(DATASET, features, geohash_precision=5, time_bucket="1h"))
    client.create_channel(
        galileo.Channel(
            CHANNEL,
            DATASET,
            "S_INTERSECTS(geometry, :area)",
            period=PERIOD_S,
            columns=["number"],
        )
    )
    ids = np.char.mod("%d", np.arange(len(polygons)))
    started = time.perf_counter()
    client.subscribe(CHANNEL, pa.table({"id": ids, "area": polygons}), broker=BROKER)
    return time.perf_counter() - started


def _runs(
    bench: Bench,
    client: Client,
    tables: Sequence[pa.Table],
    *,
    trigger: _Trigger,
    polygons: Sequence[str],
) -> Iterator[tuple[float, float]]:
    """Seconds of each run, here and in PostGIS; the first one warms both up."""
    tree = shapely.STRtree(shapely.from_wkt(np.array(polygons)))
    batches = client.follow(CHANNEL, BROKER, wait=WAIT_MAX)
    for number, table in enumerate(tables):
        expected = pairs_of(tree, table)
        took_s, notifications = _run(client, batches, table, expected=len(expected))
        check(notifications, expected)
        share = table.slice(0, table.num_rows // PEER_SHARE)
        copied_s, met = trigger.copy(share)
        if met != np.count_nonzero(expected[:, 1] < share.num_rows):
            raise AssertionError(f"PostGIS has {met:,} notifications, which are not those of ours")
        bench.say(f"run {number} of {len(tables) - 1}: {took_s:.2f} s, PostGIS {copied_s:.2f} s")
        yield took_s, copied_s


def _run(
    client: Client, batches: Iterator[Notifications], table: pa.Table, *, expected: int
) -> tuple[float, pa.Table]:
    """Seconds from the call of ingest until all notifications are here, and those."""
    parts = list[pa.Table]()
    with ThreadPoolExecutor(1) as pool:
        started = time.perf_counter()
        storing = pool.submit(client.ingest, DATASET, table)
        while sum(part.num_rows for part in parts) < expected:
            parts.append(next(batches).to_arrow())
        took_s = time.perf_counter() - started
        storing.result()
    return took_s, pa.concat_tables(parts)


# --- what has to be found ----------------------------------------------------------------------

Pairs = npt.NDArray[np.int64]
"""Polygon and observation, in order; shape (n, 2)."""


def pairs_of(tree: shapely.STRtree, table: pa.Table) -> Pairs:
    """Each observation with the polygons that it lies in, by the tree alone."""
    places = shapely.points(*(table.column(n).to_numpy() for n in ("longitude", "latitude")))
    number, polygon = tree.query(places, predicate="intersects")
    return _in_order(np.stack([polygon, number], axis=1))


def check(notifications: pa.Table, expected: Pairs) -> None:
    """Every pair is there, once.

    Raises:
        AssertionError: it is not.
    """
    polygon = pc.cast(notifications.column("subscription"), pa.int64()).to_numpy()
    pairs = _in_order(np.stack([polygon, notifications.column("number").to_numpy()], axis=1))
    if not np.array_equal(pairs, expected):
        raise AssertionError(
            f"expected {len(expected):,} notifications, got {len(pairs):,}, or others"
        )


def _in_order(pairs: Pairs) -> Pairs:
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


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
            _FUNCTION,
            "CREATE TRIGGER met AFTER INSERT ON points REFERENCING NEW TABLE AS fresh "
            "FOR EACH STATEMENT EXECUTE FUNCTION notify_met()",
            "LISTEN met",
        ):
            session.ask(statement)

    def copy(self, table: pa.Table) -> tuple[float, int]:
        """Seconds until all notifications of the points have arrived, and their number."""
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
        return took_s, shown
