"""Corrections of a keyed dataset, compared with a dataset without a key, PostgreSQL and DuckDB.

Stations report once an hour; the key of a reading is its station and hour. The benchmark has four
parts; the second one is the area `deletions`:

- Index of a node, in this process: keys with many revisions, before and after these are cleaned.
  DuckDB has the same versions in memory, and chooses the newest of each key in the query. Its key
  is one whole number, which is less to compare than the station and the hour.
- Deletion by a condition that one row in a hundred meets. PostgreSQL has an index on its column.
  After each deletion all places have as many rows, and none that matches. InfluxDB, in which users
  delete by a condition, too, is not compared: it was not installed.
- Disk after two years of corrections: see `benchmarks.corrected_disk`.
- Ingest: new keys, then the same keys once more with other values, each batch durable by itself.
  All ways get the same rows in turn. PostgreSQL gets them by `\\copy` into an unlogged table, from
  which one statement inserts them `ON CONFLICT DO UPDATE`; DuckDB gets them as Arrow tables, in
  this process, by `INSERT OR REPLACE` into a file. Both have the index of their primary key alone.

Processor time of Galileo is that of the nodes and of this process, of PostgreSQL that of the server
with all of its processes and of `psql`, of DuckDB that of this process.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pyarrow.csv as pcsv

import galileo
from benchmarks import clusters, corrected_disk, graph_duckdb, groups_duckdb, postgis, weather
from benchmarks.figures import Figure, Goal, Peer, Spread, Subject, calls_for
from benchmarks.processes import processor_seconds
from benchmarks.sizes import Bench, NotInstalled
from galileo.client import Client
from galileo.graph.columns import Commits
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model.grouping import Grouping
from galileo.model.keyed import index_versions
from galileo.model.times import times_from_micros
from galileo.node.keyed_index import KeyedIndex
from galileo.query import parse

FEATURES = [
    galileo.Feature("station", type="text"),
    galileo.Feature("temperature", "K"),
    galileo.Feature("humidity", "%"),
    galileo.Feature("quality", type="int"),
    galileo.Feature("revision", type="int"),
]
KEYED = galileo.Schema("keyed", FEATURES, key="station")
PLAIN = galileo.Schema("plain", FEATURES)
PARTS = 100
"""Different values of `quality`; each is that of as many readings."""

NEW_OF_PLAIN, REPLACED_OF_PLAIN, OF_POSTGRES = 0.7, 0.5, 5.0
REST_SHARE, LOOK_S, REST_S = 0.25, 0.5, 60.0

REVISIONS = 60
PARTITION = 0
QUERY = "temperature > 320"
PRECISION = 3
"""Characters of the cells by which versions are counted."""
BEFORE_MAX, AFTER_MAX, OF_DUCKDB_MAX = 4.0, 1.5, 1.0
BYTES_MAX = 64
RUN_S = 0.02

Processor = Callable[[], float]
"""Processor seconds that some processes have used so far."""


def measure(bench: Bench) -> Iterator[Figure]:
    """Rows a second and seconds; the ingest last, since it takes longest.

    Raises:
        NotInstalled: PostgreSQL or DuckDB is not installed.
    """
    try:
        duckdb = importlib.import_module("duckdb")
    except ImportError:
        raise NotInstalled("DuckDB is not installed: pip install duckdb") from None
    yield from _of_index(bench, duckdb)
    count = bench.sizes.corrected
    rows = readings(count, stations=bench.sizes.paths_per_batch, revision=0)
    yield from corrected_disk.measure(bench, KEYED, rows)
    with _places(bench) as places, _in_duckdb(bench, duckdb) as embedded:
        bench.say(f"PostgreSQL {postgis.versions()['PostgreSQL']}, DuckDB {duckdb.__version__}")
        ways = (places.keyed, places.plain, places.server, embedded)
        yield from _of_ingest(bench, ways)


def measure_deletions(bench: Bench) -> Iterator[Figure]:
    """Seconds.

    Raises:
        NotInstalled: PostgreSQL is not installed.
    """
    with _places(bench) as places:
        yield from _of_deletions(bench, places)


@dataclass(frozen=True, slots=True)
class _Places:
    """A node and a server, and the ways to store rows in them."""

    client: Client
    session: postgis.Session
    keyed: _Way
    plain: _Way
    server: _Way


@contextmanager
def _places(bench: Bench) -> Iterator[_Places]:
    with (
        postgis.running() as session,
        clusters.cluster(bench.directory, nodes=1) as running,
        running.client(timeout=clusters.PATIENCE) as client,
    ):
        processor = _of_cluster(running)
        keyed, plain = (_in_galileo(client, processor, schema) for schema in (KEYED, PLAIN))
        server = _in_postgres(session, _of_server(session))
        yield _Places(client, session, keyed, plain, server)


def readings(count: int, *, stations: int, revision: int) -> pa.Table:
    """Readings of all stations, hour by hour; all revisions have the same keys."""
    places, chance = np.random.default_rng(5), np.random.default_rng(revision)
    latitude = places.uniform(*weather.LATITUDES, stations)
    longitude = places.uniform(*weather.LONGITUDES, stations)
    hour, station = np.divmod(np.arange(count), stations)
    names = pa.array([f"buoy-{number:06}" for number in range(stations)])
    columns = [
        pa.array(latitude.take(station)),
        pa.array(longitude.take(station)),
        times_from_micros(weather.START_US + hour * weather.HOUR_US),
        names.take(pa.array(station)),
        pa.array(chance.normal(283.0, 12.0, count)),
        pa.array(100.0 * np.sqrt(chance.random(count))),
        pa.array(places.permutation(count) % PARTS),
        pa.array(np.full(count, revision)),
    ]
    return pa.table(columns, schema=KEYED.observation_schema)


# --- processor time ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Costs:
    """What several runs have taken, in seconds."""

    processor: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)

    def take(self, work: Callable[[], object], processor: Processor) -> None:
        """Does work, and notes what it takes."""
        begun, used = time.perf_counter(), processor()
        work()
        self.clock.append(time.perf_counter() - begun)
        self.processor.append(processor() - used)


def _of_cluster(running: galileo.LocalCluster) -> Processor:
    def processor() -> float:
        nodes = [node.pid for node in running.nodes if node.pid is not None]
        return time.process_time() + sum(map(processor_seconds, nodes))

    return processor


def _of_server(session: postgis.Session) -> Processor:
    """Of the server and `psql`; a process that has ended, such as a vacuum, counts as it was."""
    [backend] = session.ask("SELECT pg_backend_pid()")[1]
    server = psutil.Process(int(backend)).parent()
    assert server is not None, "expected the parent of the process of a connection"
    own = psutil.Process().children(recursive=True)
    [psql] = [process.pid for process in own if process.name() == "psql"]
    used = dict[int, float]()

    def processor() -> float:
        for pid in (psql, server.pid, *(one.pid for one in server.children(recursive=True))):
            try:
                used[pid] = processor_seconds(pid)
            except ProcessLookupError:
                continue
        return sum(used.values())

    return processor


def _wait_for_rest(processor: Processor) -> None:
    """Returns when the nodes have done what they do after an answer, such as merging runs."""
    deadline = time.monotonic() + REST_S
    while time.monotonic() < deadline:
        used = processor()
        time.sleep(LOOK_S)
        if processor() - used < REST_SHARE * LOOK_S:
            return
    raise AssertionError(f"the nodes do not come to rest in {REST_S:.0f} s")


# --- ingest ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows, and a CSV file of them that the server's user can read."""

    rows: pa.Table
    file: Path


@dataclass(frozen=True, slots=True)
class _Way:
    """A place that rows are stored in.

    Attributes:
        name: in words.
        begin: makes it empty.
        store: stores batches, each durable by itself.
        counts: how many rows it has, and how many of them are of a revision.
        processor: of all processes that take part.
        settle: called before a time is taken.
    """

    name: str
    begin: Callable[[], None]
    store: Callable[[Sequence[_Batch]], None]
    counts: Callable[[int], tuple[int, int]]
    processor: Processor
    settle: Callable[[], None] = lambda: None


PHASES = ("new", "replaced")

_Taken = dict[tuple[str, str], _Costs]
"""By phase and name of the way."""


def _of_ingest(bench: Bench, ways: Sequence[_Way]) -> Iterator[Figure]:
    size, count = bench.sizes.paths_per_batch, bench.sizes.keyed
    costs: _Taken = {(phase, way.name): _Costs() for phase in PHASES for way in ways}
    with postgis.readable_directory() as directory:
        revisions = [
            _batches(readings(count, stations=size, revision=number), size, directory / phase)
            for number, phase in enumerate(PHASES)
        ]
        _store_revisions(ways, [batches[:1] for batches in revisions], costs={})
        for number in range(bench.sizes.runs):
            bench.say(f"round {number + 1}: {count:,} rows, new and again, in {len(ways)} places")
            _store_revisions(ways[:: -1 if number % 2 else 1], revisions, costs=costs)
    yield from _ingest_figures(costs, [way.name for way in ways], rows=count, size=size)


def _batches(table: pa.Table, size: int, directory: Path) -> list[_Batch]:
    directory.mkdir()
    directory.chmod(0o755)
    batches = list[_Batch]()
    for start in range(0, table.num_rows, size):
        rows = table.slice(start, size).combine_chunks()
        batches.append(_Batch(rows, directory / f"{start}.csv"))
        pcsv.write_csv(rows, batches[-1].file)
    return batches


def _store_revisions(
    ways: Sequence[_Way], revisions: Sequence[Sequence[_Batch]], *, costs: _Taken
) -> None:
    """Stores the first revision in each way, then the second one, and notes what that takes."""
    for way in ways:
        way.begin()
    for phase, batches in zip(PHASES, revisions, strict=True):
        for way in ways:
            way.settle()
            costs.setdefault((phase, way.name), _Costs()).take(
                partial(way.store, batches), way.processor
            )
    rows = sum(batch.rows.num_rows for batch in revisions[1])
    for way in ways:
        every = len(PHASES) * rows if way.name == PLAIN.name else rows
        if (counts := way.counts(1)) != (every, rows):
            raise AssertionError(f"expected {every} rows, {rows} new, {way.name} has {counts}")


def _ingest_figures(
    costs: _Taken, names: Sequence[str], *, rows: int, size: int
) -> Iterator[Figure]:
    words = {"new": f"{rows:,} new keys", "replaced": f"{rows:,} keys replaced"}
    of_plain = {"new": NEW_OF_PLAIN, "replaced": REPLACED_OF_PLAIN}
    keyed, plain, *others = names
    for phase in PHASES:
        what = f"{words[phase]} in batches of {size:,}, durable, 1 node, a second of"
        for name, clock, peers, goals in (
            (f"{what} processor time", "processor", [plain], [of_plain[phase]]),
            (f"{what} processor time, beside databases", "processor", others, [OF_POSTGRES]),
            (f"{what} the clock", "clock", [plain, *others], []),
        ):
            mine, *compared = (
                Spread.of(getattr(costs[phase, way], clock)).per_second(rows)
                for way in (keyed, *peers)
            )
            yield Figure(
                name,
                "rows/s",
                mine,
                tuple(Peer(*pair) for pair in zip(map(_words, peers), compared, strict=True)),
                tuple(Goal("at least", goal, of_peer=True) for goal in goals),
            )


def _words(name: str) -> str:
    return "the same rows, dataset without a key" if name == PLAIN.name else name


def _in_galileo(client: Client, processor: Processor, schema: galileo.Schema) -> _Way:
    name = schema.name

    def begin() -> None:
        if name in {known.name for known in client.datasets()}:
            client.drop_dataset(name)
        client.create_dataset(schema)

    def store(batches: Sequence[_Batch]) -> None:
        rows = pa.concat_tables([batch.rows for batch in batches])
        client.ingest(name, rows, batch_rows=batches[0].rows.num_rows)

    def counts(revision: int) -> tuple[int, int]:
        return client.count(name), client.count(name, f"revision = {revision}")

    return _Way(name, begin, store, counts, processor, partial(_wait_for_rest, processor))


COLUMNS = (
    "latitude double precision, longitude double precision, time timestamptz, station text, "
    "temperature double precision, humidity double precision, quality bigint, revision bigint"
)


def _in_postgres(session: postgis.Session, processor: Processor) -> _Way:
    key = ("station", "time")
    others = [name for name in KEYED.observation_schema.names if name not in key]
    replaced = ", ".join(f"{name} = excluded.{name}" for name in others)

    def begin() -> None:
        session.ask("DROP TABLE IF EXISTS readings, incoming")
        session.ask(f"CREATE TABLE readings ({COLUMNS}, PRIMARY KEY ({', '.join(key)}))")
        session.ask(f"CREATE UNLOGGED TABLE incoming ({COLUMNS})")

    def store(batches: Sequence[_Batch]) -> None:
        for batch in batches:
            session.ask("TRUNCATE incoming")
            session.ask(f"\\copy incoming FROM '{batch.file}' CSV HEADER \nSELECT 1")
            session.ask(
                "INSERT INTO readings SELECT * FROM incoming "
                f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {replaced}"
            )

    def counts(revision: int) -> tuple[int, int]:
        every, some = session.ask(_COUNTS.format(revision))[1]
        return int(every), int(some)

    return _Way(f"PostgreSQL {postgis.versions()['PostgreSQL']}", begin, store, counts, processor)


_COUNTS = (
    "SELECT count(*) FROM readings UNION ALL SELECT count(*) FROM readings WHERE revision = {}"
)


@contextmanager
def _in_duckdb(bench: Bench, duckdb: Any) -> Iterator[_Way]:
    threads = {"threads": graph_duckdb.THREADS}
    database = duckdb.connect(str(bench.directory / "corrections.duckdb"), config=threads)
    database.execute("SET TimeZone = 'UTC'")

    def begin() -> None:
        database.execute("DROP TABLE IF EXISTS readings")
        database.execute(f"CREATE TABLE readings ({COLUMNS}, PRIMARY KEY (station, time))")

    def store(batches: Sequence[_Batch]) -> None:
        for batch in batches:
            database.register("incoming", batch.rows)
            database.execute("INSERT OR REPLACE INTO readings SELECT * FROM incoming")
            database.unregister("incoming")

    def counts(revision: int) -> tuple[int, int]:
        every, some = database.execute(_COUNTS.format(revision)).fetchall()
        return every[0], some[0]

    try:
        yield _Way(f"DuckDB {duckdb.__version__}", begin, store, counts, time.process_time)
    finally:
        database.close()


# --- deletion ----------------------------------------------------------------------------------


def _of_deletions(bench: Bench, places: _Places) -> Iterator[Figure]:
    """Each run deletes the readings of another quality, in all places."""
    client, session, server = places.client, places.session, places.server
    size, count = bench.sizes.paths_per_batch, bench.sizes.deleted
    ways = (places.keyed, places.plain, server)
    with postgis.readable_directory() as directory:
        batches = _batches(readings(count, stations=size, revision=0), size, directory / "whole")
        for way in ways:
            bench.say(f"{count:,} rows into {way.name}")
            way.begin()
            way.store(batches)
    session.ask("CREATE INDEX ON readings (quality)")
    session.ask("VACUUM ANALYZE readings")
    costs = _Costs(), _Costs(), _Costs()
    for part in range(bench.sizes.runs + 1):
        bench.say(f"quality {part} in {len(ways)} places")
        condition = f"quality = {part}"
        # The first run is not counted.
        taken = (_Costs(), _Costs(), _Costs()) if part == 0 else costs
        for way, cost in zip(ways[:-1], taken, strict=False):
            way.settle()
            cost.take(partial(client.delete, way.name, condition), way.processor)
            if found := client.count(way.name, condition):
                raise AssertionError(f"{found} rows of {way.name} match after their deletion")
        statement = f"DELETE FROM readings WHERE {condition}"
        taken[-1].take(partial(session.ask, statement), server.processor)
        took = ", ".join(f"{cost.clock[-1]:.2f} s" for cost in taken)
        bench.say(f"{took} in {', '.join(way.name for way in ways)}")
        left = [way.counts(0) for way in ways]
        if len(set(left)) > 1:
            raise AssertionError(f"{left} rows are left")
    for clock, words in (("processor", "processor time"), ("clock", "the clock")):
        *mine, other = (Spread.of(getattr(cost, clock)) for cost in costs)
        for kind, spread in zip(("of a keyed dataset", "without a key"), mine, strict=True):
            yield Figure(
                f"deleting {count // PARTS:,} of {count:,} rows {kind} by a condition, 1 node, "
                f"{words}",
                "s",
                spread,
                (Peer(f"DELETE with an index, {server.name}", other),),
                (Goal("at most", 1 / OF_POSTGRES, of_peer=True),) if clock == "processor" else (),
            )


# --- index -------------------------------------------------------------------------------------


def _of_index(bench: Bench, duckdb: Any) -> Iterator[Figure]:
    keys, size = bench.sizes.paths_few, bench.sizes.paths_per_batch
    bench.say(f"{REVISIONS} revisions of {keys:,} keys in commits of {size:,}")
    history = _History(keys, size)
    with _versions_in_duckdb(duckdb, history) as database:
        asked = _Asked(bench, history, database)
        yield from asked.figures("before cleaning", BEFORE_MAX)
        history.clean()
        yield from asked.figures("after cleaning", AFTER_MAX)
    more = (history.index.memory_bytes() - history.plain.memory_bytes()) / keys
    yield Figure(
        "memory of the index for each row after cleaning, more than without a key",
        "B",
        Spread.of([more]),
        goals=(Goal("at most", BYTES_MAX),),
    )


class _History:
    """An index of all revisions, and graphs without a key.

    Attributes:
        index: each commit has keys in no order; every revision has all keys.
        every: a graph of the same paths.
        plain: a graph of the last revision alone.
        versions: key, commit, and the columns of a path of each version.
    """

    def __init__(self, keys: int, size: int) -> None:
        self.keys, self.size, self.sequence = keys, size, 0
        self.index, self.every, self.plain = (
            KeyedIndex(KEYED),
            MetadataGraph(PLAIN),
            MetadataGraph(PLAIN),
        )
        self.versions = list[pa.RecordBatch]()
        self._since = np.zeros(keys, dtype=np.int64)
        chance = np.random.default_rng(3)
        for number in range(REVISIONS):
            self._rows = readings(keys, stations=size, revision=number)
            order = chance.permutation(keys)
            for start in range(0, keys, size):
                self._commit(order[start : start + size])
        self._insert_plain()

    def _commit(self, keys: npt.NDArray[np.int64]) -> None:
        paths = self._store(keys)
        self._since[keys] = self.sequence
        place = {"partition": PARTITION, "sequence": self.sequence}
        self.every.insert(paths.select(KEYED.graph_schema.names), **place)
        self.every.maintain()
        sequence = pa.array(np.full(len(keys), self.sequence))
        self.versions.append(paths.append_column("sequence", sequence))

    def _store(
        self, keys: npt.NDArray[np.int64], since: npt.NDArray[np.int64] | None = None
    ) -> pa.RecordBatch:
        """Inserts the present rows of some keys into the index as its next commit."""
        self.sequence += 1
        paths = _paths(self._rows.take(pa.array(keys)), since)
        commit, count = Commits.of(PARTITION, [self.sequence]), np.array([paths.num_rows])
        self.index.insert_many(paths, commit, count)
        self.index.maintain()
        return paths

    def _insert_plain(self) -> None:
        for number, start in enumerate(range(0, self.keys, self.size), start=1):
            paths = _paths(self._rows.slice(start, self.size)).select(KEYED.graph_schema.names)
            self.plain.insert(paths, partition=PARTITION, sequence=number)
            self.plain.maintain()

    def clean(self) -> None:
        """Does what `TableCleaner` does: copies what counts, and drops what was there before."""
        last = self.sequence
        for start in range(0, self.keys, self.size):
            keys = np.arange(start, min(start + self.size, self.keys))
            self._store(keys, self._since[keys])
        self.index.drop_before(PARTITION, last + 1)
        while self.index.maintain():
            pass


def _paths(rows: pa.Table, since: npt.NDArray[np.int64] | None = None) -> pa.RecordBatch:
    def here(cells: npt.NDArray[np.uint64], _: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        return np.full(len(cells), PARTITION, dtype=np.int32)

    rows = rows.append_column("deleted", pa.array(np.zeros(rows.num_rows, dtype=np.bool_)))
    return index_versions(KEYED, rows, place=here, since=since)[PARTITION][1]


@contextmanager
def _versions_in_duckdb(duckdb: Any, history: _History) -> Iterator[Any]:
    database = duckdb.connect(":memory:", config={"threads": 1})
    database.execute("SET TimeZone = 'UTC'")
    database.register("stored", pa.Table.from_batches(history.versions))
    names = ", ".join(KEYED.graph_schema.names)
    database.execute(f"CREATE TABLE versions AS SELECT high AS key, sequence, {names} FROM stored")
    database.unregister("stored")
    history.versions.clear()
    try:
        yield database
    finally:
        database.close()


CURRENT = (
    "SELECT * FROM versions QUALIFY row_number() OVER (PARTITION BY key ORDER BY sequence DESC) = 1"
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Asks the index, the graphs and DuckDB the same, in turn."""

    bench: Bench
    history: _History
    database: Any

    def figures(self, when: str, limit: float) -> Iterator[Figure]:
        grouping = Grouping.of([f"cell:{PRECISION}"], {})
        shift = 5 * (KEYED.geohash_precision - PRECISION)
        columns = f"cell >> {shift} AS cell, count(*) AS observations"
        yield from self._compare(
            f"rows of `{QUERY}`, {when}",
            lambda graph: graph.scan(parse(QUERY, graph.schema)),
            f"SELECT * FROM ({CURRENT}) WHERE {QUERY}",
            limit,
        )
        yield from self._compare(
            f"rows by cells of {PRECISION} characters, {when}",
            lambda graph: groups_duckdb.groups(graph, "", grouping),
            f"SELECT {columns} FROM ({CURRENT}) GROUP BY ALL ORDER BY ALL",
            limit,
        )

    def _compare(
        self, name: str, ask: Callable[[MetadataGraph], pa.Table], statement: str, limit: float
    ) -> Iterator[Figure]:
        history = self.history
        graphs = (history.index.graph, history.plain, history.every)

        def select() -> pa.Table:
            return self.database.sql(statement).to_arrow_table()

        _check(ask(history.index.graph), ask(history.plain), select())
        subjects: list[Subject] = [*(partial(ask, graph) for graph in graphs), select]
        keyed, plain, every, theirs = _processor_in_turn(subjects, runs=self.bench.sizes.runs)
        rows = f"{history.keys:,} keys with {REVISIONS} revisions: {name}"
        beside = Peer("all revisions as rows without a key", every)
        yield Figure(
            rows,
            "s",
            keyed,
            (Peer("the last revision without a key", plain), beside),
            (Goal("at most", limit, of_peer=True),),
        )
        yield Figure(
            f"{rows}, beside DuckDB",
            "s",
            keyed,
            (Peer("QUALIFY row_number() = 1, DuckDB, 1 thread", theirs),),
            (Goal("at most", OF_DUCKDB_MAX, of_peer=True),),
        )


def _processor_in_turn(subjects: Sequence[Subject], *, runs: int) -> list[Spread]:
    """As of `in_turn`, but in processor seconds; each subject uses one thread."""

    def mean_s(subject: Subject, calls: int) -> float:
        begun = time.process_time()
        for _ in range(calls):
            subject()
        return (time.process_time() - begun) / calls

    calls = [calls_for(RUN_S, mean_s(subject, 1)) for subject in subjects]
    rounds = [list(map(mean_s, subjects, calls)) for _ in range(runs)]
    return [Spread.of(values) for values in zip(*rounds, strict=True)]


def _check(*answers: pa.Table) -> None:
    """Raises AssertionError if answers differ in their temperatures, or else in their counts."""
    name = next(n for n in ("temperature", "observations") if n in answers[0].column_names)
    values = [np.sort(answer.column(name).to_numpy()) for answer in answers]
    if not len(values[0]) or not all(np.array_equal(values[0], other) for other in values):
        raise AssertionError(f"the index, the graph and DuckDB differ about {name!r}")
