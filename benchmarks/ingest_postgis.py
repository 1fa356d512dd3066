"""How fast observations become durable, compared with COPY into an indexed PostGIS table.

Both get the same batches, each durable by itself: Galileo through its client and gRPC, PostGIS by
`\\copy` from files in PostgreSQL's binary format, made beforehand, over a Unix socket. The table
has a geometry, which the server makes of the coordinates, with a GiST index, and a B-tree on the
time: what it takes to ask for places and times, as Galileo's metadata graph lets one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from benchmarks import clusters, postgis
from benchmarks.figures import Figure, Goal, Peer, in_turn
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.model.schema import Feature, Schema

FEATURES = ("temperature", "humidity", "wind_speed")
SCHEMA = Schema("forecast", [Feature(name) for name in FEATURES])
OBSERVATIONS_PER_S = 300_000

_COLUMNS = ("latitude", "longitude", "time", *FEATURES)


def measure(bench: Bench) -> Iterator[Figure]:
    """Observations a second of both.

    Raises:
        postgis.NoServer: PostGIS is not installed.
    """
    rows, count = bench.sizes.copied
    table = clusters.forecast(rows * count, stride=bench.sizes.stride).select(_COLUMNS)
    batches = [table.slice(number * rows, rows) for number in range(count)]
    with (
        postgis.running() as session,
        clusters.cluster(bench.directory, nodes=1) as running,
        running.client() as client,
    ):
        client.create_dataset(SCHEMA)
        server, extension = postgis.versions().values()
        name = f"PostgreSQL {server} with PostGIS {extension}"
        bench.say(f"{count} batches of {rows:,} observations; {name}")
        with _files(batches) as files:
            yield _measured(bench, client, session, table=table, files=files, peer=name)


def _measured(
    bench: Bench,
    client: Client,
    session: postgis.Session,
    *,
    table: pa.Table,
    files: Sequence[Path],
    peer: str,
) -> Figure:
    _make_table(session)
    total, rows = table.num_rows, table.num_rows // len(files)

    def copy() -> None:
        columns = ", ".join(_COLUMNS)
        for file in files:
            command = f"\\copy observations ({columns}) FROM '{file}' (FORMAT binary)"
            session.ask(f"{command}\nSELECT 1")

    through, copied = in_turn(
        clusters.ingesting(client, table, dataset=SCHEMA.name, rows=rows),
        copy,
        runs=bench.sizes.runs,
        warm_up=True,
    )
    found = int(session.ask("SELECT count(*) FROM observations WHERE place IS NOT NULL")[1][0])
    if found != total * (bench.sizes.runs + 1):
        raise AssertionError(f"expected all observations in PostGIS, got {found}")
    return Figure(
        f"through gRPC, durable, 1 node: {len(files)} batches of {rows:,} with 6 columns",
        "observations/s",
        through.per_second(total),
        (Peer(f"COPY into an indexed table, {peer}", copied.per_second(total)),),
        (Goal("at least", OBSERVATIONS_PER_S),),
    )


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
    with tempfile.TemporaryDirectory(prefix="copy-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        files = [directory / f"{number}.copy" for number in range(len(batches))]
        for file, batch in zip(files, batches, strict=True):
            file.write_bytes(postgis.binary_copy(batch))
        yield files
