"""How fast observations become durable, compared with COPY into an indexed PostGIS table.

Both get the same batches, each durable by itself: Galileo through its client and gRPC, PostGIS by
`\\copy` from files in PostgreSQL's binary format, made beforehand, over a Unix socket. The table
has a geometry, which the server makes of the coordinates, with a GiST index, and a B-tree on the
time: what it takes to ask for places and times, as Galileo's metadata graph lets one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from benchmarks import clusters, postgis
from benchmarks.figures import Figure, Goal, Peer, in_turn
from benchmarks.sizes import Bench
from galileo.model.schema import Feature, Schema

FEATURES = ("temperature", "humidity", "wind_speed")
SCHEMA = Schema("forecast", [Feature(name) for name in FEATURES])
OBSERVATIONS_PER_S = 300_000

COLUMNS = ("latitude", "longitude", "time", *FEATURES)


def measure(bench: Bench) -> Iterator[Figure]:
    """Observations a second of both.

    Raises:
        postgis.NoServer: PostGIS is not installed.
    """
    rows, count = bench.sizes.copied
    forecast = clusters.forecast(rows * count, stride=bench.sizes.stride)
    with (
        postgis.running() as session,
        clusters.cluster(bench.directory, nodes=1) as running,
        running.client() as client,
        copying(session, forecast, rows=rows) as (copy, table),
    ):
        client.create_dataset(SCHEMA)
        server, extension = postgis.versions().values()
        name = f"PostgreSQL {server} with PostGIS {extension}"
        bench.say(f"{count} batches of {rows:,} observations; {name}")
        through, copied = in_turn(
            clusters.ingesting(client, table, dataset=SCHEMA.name, rows=rows),
            copy,
            runs=bench.sizes.runs,
            warm_up=True,
        )
    yield Figure(
        f"through gRPC, durable, 1 node: {count} batches of {rows:,} with 6 columns",
        "observations/s",
        through.per_second(table.num_rows),
        (Peer(f"COPY into an indexed table, {name}", copied.per_second(table.num_rows)),),
        (Goal("at least", OBSERVATIONS_PER_S),),
    )


@contextmanager
def copying(
    session: postgis.Session, table: pa.Table, *, rows: int
) -> Iterator[tuple[Callable[[], None], pa.Table]]:
    """What copies a table in batches into an indexed one; all of it is new each time.

    Yields:
        The call, and the columns that it copies.

    Raises:
        AssertionError: at the end, if the server has not as many observations as were copied.
    """
    table, copied = table.select(COLUMNS), 0
    _make_table(session)
    batches = [table.slice(start, rows) for start in range(0, table.num_rows, rows)]
    with _files(batches) as files:

        def copy() -> None:
            nonlocal copied
            columns = ", ".join(COLUMNS)
            for file in files:
                command = f"\\copy observations ({columns}) FROM '{file}' (FORMAT binary)"
                session.ask(f"{command}\nSELECT 1")
            copied += table.num_rows

        yield copy, table
    found = session.ask("SELECT count(*) FROM observations WHERE place IS NOT NULL")[1]
    if int(found[0]) != copied:
        raise AssertionError(f"expected {copied} observations in PostGIS, got {found}")


def _make_table(session: postgis.Session) -> None:
    """Commits are synchronous, as they are unless one says otherwise."""
    columns = ", ".join(f"{name} double precision" for name in ("latitude", "longitude", *FEATURES))
    place = "ST_SetSRID(ST_MakePoint(longitude, latitude), 4326)"
    for statement in (
        f"CREATE TABLE observations (time timestamptz, {columns}, "
        f"place geometry(Point, 4326) GENERATED ALWAYS AS ({place}) STORED)",
        "CREATE INDEX ON observations USING gist (place)",
        "CREATE INDEX ON observations (time)",
    ):
        session.ask(statement)
    if (found := session.ask("SHOW synchronous_commit")[1]) != ["on"]:
        raise AssertionError(f"expected synchronous commits, got {found}")


@contextmanager
def _files(batches: Sequence[pa.Table]) -> Iterator[list[Path]]:
    """A file for each batch, where the server's user can read it."""
    with postgis.readable_directory() as directory:
        files = [directory / f"{number}.copy" for number in range(len(batches))]
        for file, batch in zip(files, batches, strict=True):
            file.write_bytes(postgis.binary_copy(batch))
        yield files
