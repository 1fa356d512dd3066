"""Rows of a table: written, read, found by key and followed, compared with PostgreSQL.

Both get the same rows in the same batches, each durable by itself. Galileo gets them through its
client and gRPC, PostgreSQL by `\\copy` from files into an unlogged table, from which one statement
inserts them `ON CONFLICT DO UPDATE`, over a Unix socket. All keys are there already, so each row
replaces another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

import galileo
from benchmarks import clusters, postgis
from benchmarks.figures import Figure, Goal, Peer, Spread, in_turn
from benchmarks.sizes import Bench
from galileo.client import Client

COLUMNS = {"id": "text", "latitude": "float", "longitude": "float", "owner": "text", "speed": "int"}
TABLE = galileo.Table("ships", COLUMNS, key="id")  # type: ignore[arg-type]
NODES = 3
BATCH_ROWS = 100_000
KEYS_FOUND = 1_000
CHANGED = 100
"""One row of so many changes before changes are read."""
ROWS_PER_S = 300_000


def measure(bench: Bench) -> Iterator[Figure]:
    """Rows a second of upserts and reads, and seconds of others.

    Raises:
        postgis.NoServer: PostgreSQL is not installed.
    """
    rows = rows_of(bench.sizes.keyed)
    with (
        postgis.running() as session,
        clusters.cluster(bench.directory, nodes=NODES, groups=1) as running,
        running.client(timeout=clusters.PATIENCE) as client,
        upserting(session, rows) as upsert,
    ):
        client.create_table(TABLE)
        server = f"PostgreSQL {postgis.versions()['PostgreSQL']}"
        bench.say(f"{rows.num_rows:,} rows of {rows.nbytes / rows.num_rows:.0f} bytes; {server}")
        ours, theirs = in_turn(
            lambda: client.upsert(TABLE.name, rows, batch_rows=BATCH_ROWS),
            upsert,
            runs=bench.sizes.runs,
            warm_up=True,
        )
        count = rows.num_rows
        peer = Peer(f"INSERT ON CONFLICT DO UPDATE, {server}", theirs.per_second(count))
        goals = (Goal("at least", ROWS_PER_S),)
        name = f"rows replaced in batches of {BATCH_ROWS:,}, durable, {NODES} nodes, one copy"
        yield Figure(name, "rows/s", ours.per_second(count), (peer,), goals)
        yield from _reads(bench, client, rows)


def _reads(bench: Bench, client: Client, rows: pa.Table) -> Iterator[Figure]:
    count, runs = rows.num_rows, bench.sizes.runs
    [whole] = in_turn(lambda: client.table(TABLE.name), runs=runs)
    yield Figure(f"reading all of {count:,} rows", "rows/s", whole.per_second(count))
    keys = rows.column("id").take(pa.array(np.linspace(0, count - 1, KEYS_FOUND, dtype=np.int64)))
    wanted = pa.table({"id": keys})
    [found] = in_turn(lambda: client.table(TABLE.name, keys=wanted), runs=runs)
    yield Figure(f"{KEYS_FOUND:,} rows by their keys", "s", found)
    before, few = client.table(TABLE.name).cursor, rows.slice(0, max(1, count // CHANGED))
    client.upsert(TABLE.name, few)
    [changes] = in_turn(lambda: client.changes(TABLE.name, before), runs=runs)
    yield Figure(f"{few.num_rows:,} changed rows after a cursor", "s", changes)
    nodes = client.status().nodes
    memory = sum(one["graph_bytes"] for node in nodes for one in node.datasets)
    versions = sum(one["rows"] for node in nodes for one in node.datasets)
    yield Figure("memory of the index for each version", "B", Spread.of([memory / versions]))


def rows_of(count: int) -> pa.Table:
    """Rows of about 60 bytes, each with a key of its own."""
    chance = np.random.default_rng(5)
    return pa.table(
        {
            "id": [f"vessel-{number:09}" for number in range(count)],
            "latitude": chance.uniform(-80, 80, count),
            "longitude": chance.uniform(-180, 180, count),
            "owner": [f"owner-{number % 5_000}" for number in range(count)],
            "speed": chance.integers(0, 40, count),
        }
    )


@contextmanager
def upserting(session: postgis.Session, rows: pa.Table) -> Iterator[Callable[[], None]]:
    """What upserts all rows into PostgreSQL, a batch at a time.

    Raises:
        AssertionError: at the end, if the server has not as many rows.
    """
    columns = (
        "id text, latitude double precision, longitude double precision, owner text, speed bigint"
    )
    session.ask(f"CREATE TABLE ships ({columns}, PRIMARY KEY (id))")
    session.ask(f"CREATE UNLOGGED TABLE incoming ({columns})")
    replaced = ", ".join(f"{name} = excluded.{name}" for name in rows.column_names[1:])
    with postgis.readable_directory() as directory:
        files = []
        for number, start in enumerate(range(0, rows.num_rows, BATCH_ROWS)):
            files.append(directory / f"{number}.csv")
            pcsv.write_csv(rows.slice(start, BATCH_ROWS), files[-1])

        def upsert() -> None:
            for file in files:
                session.ask("TRUNCATE incoming")
                session.ask(f"\\copy incoming FROM '{file}' CSV HEADER \nSELECT 1")
                session.ask(
                    "INSERT INTO ships SELECT * FROM incoming "
                    f"ON CONFLICT (id) DO UPDATE SET {replaced}"
                )

        yield upsert
    found = session.ask("SELECT count(*) FROM ships")[1]
    if int(found[0]) != rows.num_rows:
        raise AssertionError(f"expected {rows.num_rows} rows in PostgreSQL, got {found}")
