"""Keyed datasets of a cluster of processes, compared with a dict of their observations by key."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from expected_errors import raises
from waiting import wait_until

import galileo
from galileo.cli.main import main
from galileo.cursor import Cursor
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import (
    Conflict,
    DuplicateKey,
    GalileoError,
    InputError,
    InvalidObservations,
    QuerySyntaxError,
    UnknownDataset,
    UnknownProperty,
)
from galileo.geo import geohash

START = dt.datetime(2014, 3, 1, tzinfo=dt.UTC)
PLACES = ((10.0, 20.0), (10.5, 20.5), (-50.0, 20.0), (40.0, -100.0), (60.0, 130.0))
"""The first two are in one cell."""
STATIONS = (None, "", "a", "b", "c")
HOURS = 3
FEATURES = [
    galileo.Feature("station", type="text"),
    galileo.Feature("temperature", "K"),
    galileo.Feature("waves", type="int"),
    galileo.Feature("remark", type="text", indexed=False),
]
COLUMNS = pa.schema(
    [
        ("latitude", pa.float64()),
        ("longitude", pa.float64()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("station", pa.string()),
        ("temperature", pa.float64()),
        ("waves", pa.int64()),
        ("remark", pa.string()),
    ]
)
Key: TypeAlias = tuple[str, dt.datetime, str | None]
Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = dict[Key, Row]
NORTH = "S_INTERSECTS(geometry, BBOX(-180, 0, 180, 90))"
QUERIES: dict[str, Callable[[Row], bool]] = {
    "": lambda row: True,
    "temperature > 290": lambda row: row["temperature"] is not None and row["temperature"] > 290,
    "station = 'a' OR waves < 3": lambda row: row["station"] == "a" or row["waves"] < 3,
    "station IS NULL AND temperature <= 290": lambda row: (
        row["station"] is None and row["temperature"] is not None and row["temperature"] <= 290
    ),
    NORTH: lambda row: row["latitude"] >= 0,
    "datetime < TIMESTAMP('2014-03-01T01:20:00Z')": lambda row: (
        row["time"] < START + dt.timedelta(minutes=80)
    ),
    "temperature > 1000": lambda row: False,
}
FEATURES_ALONE = [text for text in QUERIES if "datetime" not in text and text != NORTH]
"""Those whose labels match exactly."""
HEARD_S = 30.0
"""Time in which a node hears of all commits, on a busy machine."""
EVERY_FEATURE = tuple(feature.name for feature in FEATURES)


@pytest.fixture
def client(cluster: galileo.LocalCluster) -> Iterator[galileo.Client]:
    """One of its own, for it keeps schemas."""
    with cluster.client() as made:
        yield made


@pytest.fixture
def name(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    """An empty keyed dataset."""
    name = fresh_name("buoys")
    client.create_dataset(schema_of(name))
    return name


def schema_of(name: str) -> galileo.Schema:
    return galileo.Schema(name, FEATURES, key="station", geohash_precision=2, time_bucket="1h")


def key_of(row: Row) -> Key:
    cell = geohash.to_text(geohash.encode([row["latitude"]], [row["longitude"]], 2), 2)[0].as_py()
    return cell, row["time"].replace(minute=0, second=0, microsecond=0), row["station"]


def by_key(rows: Iterable[Row]) -> Rows:
    """Rows by their keys, of which none is there twice."""
    listed = list(rows)
    keyed = {key_of(row): row for row in listed}
    assert len(keyed) == len(listed), "a key is there twice"
    return keyed


def table_of(rows: Iterable[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), COLUMNS)


def applied(before: Rows, changes: pa.Table) -> Rows:
    """The rows after some changes."""
    changed = by_key(changes.to_pylist())
    after = {key: row for key, row in before.items() if key not in changed}
    return after | {key: row for key, row in changed.items() if not row.pop("deleted")}


class Buoys:
    """A keyed dataset, the dict that says what it has to have, and random writes to both.

    Attributes:
        rows: that count.
        written: of the last step the keys that it has changed; of a deleted one None.
        changed_at: the step at which a key was last written.
        cursors: after each step.
        states: the rows after each step.
    """

    def __init__(self, client: galileo.Client, name: str, seed: int, directory: Path) -> None:
        self.client, self.name, self.directory = client, name, directory
        self.chance = random.Random(seed)
        self.rows: Rows = {}
        self.written: dict[Key, Row | None] = {}
        self.changed_at: dict[Key, int] = {}
        self.numbers = 0
        self.cursors, self.states = [self.cursor()], [dict[Key, Row]()]
        self.topology = Topology.from_json(client.topology_json())

    def cursor(self) -> Cursor:
        return self.client.version(self.name, require_complete=True).cursor

    def step(self, kind: str) -> None:
        """One write of a kind, which is the name of a method."""
        self.written = {}
        getattr(self, kind)()
        for key in self.written:
            self.changed_at[key] = len(self.cursors) - 1
        self.cursors.append(self.cursor())
        self.states.append(dict(self.rows))

    def note(self, key: Key, row: Row | None) -> None:
        self.rows.pop(key, None)
        self.rows |= {} if row is None else {key: row}
        self.written[key] = row

    # --- rows --------------------------------------------------------------------------------

    def row(self) -> Row:
        """A random row; no two have the same time."""
        self.numbers += 1
        latitude, longitude = self.chance.choice(PLACES)
        minutes = self.chance.randrange(60 * HOURS)
        return {
            "latitude": latitude + self.chance.randrange(10) / 100,
            "longitude": longitude,
            "time": START + dt.timedelta(minutes=minutes, microseconds=self.numbers),
            "station": self.chance.choice(STATIONS),
            "temperature": self.chance.choice([None, *map(float, range(270, 310))]),
            "waves": self.chance.randrange(8),
            "remark": self.chance.choice([None, f"remark {self.numbers}"]),
        }

    def some(self, count: int) -> list[Row]:
        """Rows of random keys, of which some are there."""
        return [
            self.again(row) if self.rows and self.chance.random() < 0.3 else row
            for row in (self.row() for _ in range(count))
        ]

    def again(self, row: Row) -> Row:
        """A row with the key of one that is there, at another place and time of its block."""
        there = self.chance.choice(list(self.rows.values()))
        block = {name: there[name] for name in ("latitude", "longitude", "station")}
        start = there["time"].replace(minute=0, second=0, microsecond=0)
        moment = start + dt.timedelta(microseconds=self.numbers)
        return row | block | {"time": moment}

    def distinct(self, count: int) -> Rows:
        return {key_of(row): row for row in self.some(count)}

    # --- kinds of writes ---------------------------------------------------------------------

    def ingest(self) -> None:
        """In many batches, in which keys come again."""
        rows = self.some(self.chance.randint(1, 40))
        batch_rows = self.chance.choice([2, 7, 100])
        data = table_of(rows) if self.chance.random() < 0.7 else table_of(rows).to_pandas()
        receipt = self.client.ingest(self.name, data, batch_rows=batch_rows)
        batches = [rows[n : n + batch_rows] for n in range(0, len(rows), batch_rows)]
        stored = sum(len({*map(key_of, batch)}) for batch in batches)  # The last row of each key.
        assert (receipt.rows, receipt.batches) == (stored, len(batches))
        times = [round(row["time"].timestamp() * 1e6) for row in rows]
        assert (receipt.start_us, receipt.end_us) == (min(times), max(times))
        for row in rows:
            self.note(key_of(row), row)

    def delete_rows(self) -> None:
        """Of keys that are there, and of others; columns that are no key do not count."""
        rows = self.distinct(self.chance.randint(1, 12))
        table = table_of(rows.values())
        table = table if self.chance.random() < 0.5 else table.drop_columns(["waves", "remark"])
        assert self.client.delete(self.name, table, batch_rows=5).rows == len(rows)
        for key in rows:
            self.note(key, None)

    def delete_file(self) -> None:
        rows = self.distinct(self.chance.randint(1, 12))
        table, file = table_of(rows.values()), self.directory / f"{self.numbers}.parquet"
        if self.chance.random() < 0.5:
            pq.write_table(table.drop_columns(["temperature"]), file)
        else:  # A missing text and an empty one are the same in a CSV file.
            rows = {key: row for key, row in rows.items() if row["station"] != ""}
            file = file.with_suffix(".csv")
            pa.csv.write_csv(table_of(rows.values()), file)
        assert self.client.delete(self.name, file).rows == len(rows)
        for key in rows:
            self.note(key, None)

    def delete_matching(self) -> None:
        warm, waves = 300 + self.chance.randrange(10), self.chance.randrange(8)
        condition, matches = self.chance.choice(
            [
                (
                    f"temperature > {warm} AND waves <> {waves}",
                    lambda row: (row["temperature"] or 0) > warm and row["waves"] != waves,
                ),
                (
                    (galileo.f.waves == waves) & galileo.f.station.is_null(),
                    lambda row: row["waves"] == waves and row["station"] is None,
                ),
                (
                    {"op": "=", "args": [{"property": "waves"}, waves]},
                    lambda row: row["waves"] == waves,
                ),
                (
                    f"{NORTH} AND datetime < TIMESTAMP('2014-03-01T00:30:00Z')",
                    lambda row: row["latitude"] >= 0 and row["time"].minute < 30
                    and row["time"].hour == 0,
                ),
            ]
        )  # fmt: skip
        before = self.cursors[-1]
        receipt = self.client.delete(self.name, condition)
        matching = [key for key, row in self.rows.items() if matches(row)]
        assert receipt.rows == len(matching)
        assert receipt.evaluated == before
        for key in matching:
            self.note(key, None)

    def replace(self) -> None:
        """Corrects places and times of some rows; others get their keys, or keep theirs."""
        there = list(self.rows.values())
        old = self.chance.sample(there, min(len(there), self.chance.randint(1, 6)))
        new = [row | {"waves": 9} for row in self.distinct(len(old)).values()]
        new += [row | {"remark": "kept"} for row in old[:1] if key_of(row) not in by_key(new)]
        data, replaces = table_of(new), table_of(old)
        receipt = self.client.ingest(self.name, data, replaces=replaces, batch_rows=3)
        assert receipt.rows == len(new)
        for row in old:
            if key_of(row) not in by_key(new):
                self.note(key_of(row), None)
        for row in new:
            self.note(key_of(row), row)
        assert self.cursor().covers(receipt.reached)

    def write_unchanged(self) -> None:
        """Under the condition that keys have not changed since a cursor, which may be old."""
        rows = self.distinct(self.chance.randint(1, 4))
        since = self.chance.randrange(max(0, len(self.cursors) - 4), len(self.cursors))
        stale = {key for key in rows if self.changed_at.get(key, -1) >= since}
        is_deletion, error = self.chance.random() < 0.3, None
        options = {"unchanged_since": self.cursors[since]}
        try:
            if is_deletion:
                self.client.delete(self.name, table_of(rows.values()), **options)
            else:
                self.client.ingest(self.name, table_of(rows.values()), **options)
        except Conflict as raised:
            error = raised
        assert (error is not None) == bool(stale)
        if error is not None:
            assert error.details["key"] in [shown_key(key) for key in stale]
            assert len(error.details["cursor"]) == 1
        places = self.places(rows)
        refused = {places[key] for key in stale}
        changes = self.client.changes(self.name, self.cursors[-1]).rows
        stored = {
            key: None if row.pop("deleted") else row
            for key, row in by_key(changes.to_pylist()).items()
        }
        assert not refused.intersection(places[key] for key in stored)
        assert error is not None or stored.keys() == rows.keys()
        for key, row in stored.items():  # Perhaps not all, of a call that has failed.
            assert row == (None if is_deletion else rows[key])
            self.note(key, row)

    def places(self, rows: Rows) -> dict[Key, int]:
        """The partition of each key."""
        schema = self.client.schema(self.name)
        found = placement.partitions_of_rows(self.topology, schema, table_of(rows.values()))
        return dict(zip(rows, found.tolist(), strict=True))

    # --- answers -----------------------------------------------------------------------------

    def selected(self, query: Any = "", **options: Any) -> Rows:
        return by_key(self.client.select(self.name, query, **options).to_pylist())

    def compare(self) -> None:
        """Every call that reads has the rows of the dict."""
        assert self.selected() == self.rows
        for query, matches in self.chance.sample(list(QUERIES.items()), 3):
            expected = {key: row for key, row in self.rows.items() if matches(row)}
            assert self.selected(query) == expected, query
            assert self.client.count(self.name, query) == len(expected), query
        expected = {key: row for key, row in self.rows.items() if matches(row)}
        self.compare_rows(query, expected)
        self.compare_analyses(query, expected)
        self.compare_whole()
        self.compare_cursors()

    def compare_rows(self, query: str, expected: Rows) -> None:
        client, name, latest = self.client, self.name, sorted_by_time(expected.values())[::-1]
        some = client.select(name, query, columns=["waves", "remark"]).to_pylist()
        wanted = [{"waves": row["waves"], "remark": row["remark"]} for row in latest]
        assert sorted(map(str, some)) == sorted(map(str, wanted))
        limit = self.chance.randint(0, 9)
        assert (
            client.select(name, query, limit=limit, order_by="-time").to_pylist()
            == (latest[:limit])
        )
        ordered = client.select(name, query, order_by="time").to_pylist()
        assert ordered == latest[::-1]
        few = by_key(client.select(name, query, limit=limit).to_pylist())
        assert len(few) == min(limit, len(expected))
        assert few.items() <= expected.items()
        labels = client.query(name, query, require_complete=True)
        assert by_key(client.read(labels).to_pylist()) == expected
        if query in FEATURES_ALONE:
            assert len(labels) == len(expected)
        pieces = client.select_batches(name, query)
        assert by_key(row for piece in pieces for row in piece.to_pylist()) == expected
        paged, page = list[Row](), client.select_page(name, query, limit=4)
        while True:
            assert len(page) <= 4
            ids = page.table["id"].to_pylist()
            rows = page.table.drop_columns("id").to_pylist()
            assert client.read_ids(name, ids).drop_columns("id").to_pylist() == rows
            paged += rows
            if page.next is None:
                break
            page = client.select_page(name, query, limit=4, after=page.next)
        assert by_key(paged) == expected

    def compare_analyses(self, query: str, expected: Rows) -> None:
        client, name = self.client, self.name
        wanted = {"waves": ["sum", "max", "p90"], "temperature": ["count", "min", "std"]}
        groups = client.aggregate(name, query, by=["station"], statistics=wanted).table.to_pylist()
        assert {group["station"]: group["observations"] for group in groups} == Counter(
            row["station"] for row in expected.values()
        )
        for group in groups:
            members = [row for row in expected.values() if row["station"] == group["station"]]
            waves = [row["waves"] for row in members]
            warmth = [row["temperature"] for row in members if row["temperature"] is not None]
            assert (group["waves_sum"], group["waves_max"]) == (sum(waves), max(waves))
            assert group["waves_p90"] == pytest.approx(np.quantile(waves, 0.9))
            assert group["temperature_count"] == len(warmth)
            std = np.std(warmth, ddof=1) if len(warmth) > 1 else None
            assert group["temperature_std"] == pytest.approx(std)
            assert group["temperature_min"] == min(warmth, default=None)
        newest = client.latest(name, query, by="station").table.select(COLUMNS.names).to_pylist()
        last = {row["station"]: row for row in sorted_by_time(expected.values())}
        assert {row["station"]: row for row in newest} == last
        nearest = client.nearest(name, query, latitude=10.0, longitude=20.0, k=3).table
        distances = nearest.column(nearest.column_names[-1]).to_pylist()
        assert len(distances) == min(3, len(expected))
        assert by_key(nearest.select(COLUMNS.names).to_pylist()).items() <= expected.items()

    def compare_estimate(self, query: str, expected: Rows) -> None:
        """Bounds are of all commits that a node has heard of, and soon it has of all."""
        deadline = time.monotonic() + HEARD_S
        while True:
            estimate = self.client.estimate(self.name, query, feature="waves", quantiles=[0.5])
            is_heard = estimate.complete and estimate.low <= len(expected) <= estimate.high
            if is_heard or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        if not estimate.complete:
            return
        assert estimate.low <= len(expected) <= estimate.high, query
        waves = sorted(row["waves"] for row in expected.values())
        for median in estimate.quantiles if waves else ():
            assert median.low <= waves[(len(waves) - 1) // 2] <= median.high, query

    def compare_whole(self) -> None:
        known = self.client.describe(self.name, require_complete=True)
        assert (known.observations, known.paths) == (len(self.rows), len(self.rows))
        stations = Counter(row["station"] for row in self.rows.values())
        assert known.feature("station").nulls == stations.pop(None, 0)
        waves = [row["waves"] for row in self.rows.values()]
        assert known.feature("waves").maximum == max(waves, default=None)
        summary = self.client.summarise(self.name, feature="waves")
        assert (summary.observations, summary.total) == (len(waves), sum(waves))
        page = self.client.children(self.name, order=["station", "waves"])
        counted = {child["value"]: child["observations"] for child in page.table.to_pylist()}
        assert counted == Counter(row["station"] for row in self.rows.values())

    def compare_cursors(self) -> None:
        """The rows at cursors of earlier steps, and the changes since then."""
        count = len(self.cursors)
        for number in self.chance.sample(range(count), min(count, 3)):
            cursor, before = self.cursors[number], self.states[number]
            query, matches = self.chance.choice(list(QUERIES.items()))
            expected = {key: row for key, row in before.items() if matches(row)}
            assert self.selected(query, at=cursor) == expected
            pieces = self.client.select_batches(self.name, query, at=cursor)
            assert by_key(row for piece in pieces for row in piece.to_pylist()) == expected
            ordered = sorted_by_time(expected.values())
            first = self.client.select(self.name, query, at=cursor, order_by="time", limit=2)
            assert first.to_pylist() == ordered[:2]
            changes = self.client.changes(self.name, cursor)
            assert changes.cursor == self.cursors[-1]
            assert applied(before, changes.rows) == self.rows
            later = self.chance.randrange(number, count)
            changes = self.client.changes(self.name, cursor, until=self.cursors[later])
            assert applied(before, changes.rows) == self.states[later]


def sorted_by_time(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["time"])


def shown_key(key: Key) -> list[Any]:
    cell, bucket, station = key
    return [cell, bucket.strftime("%Y-%m-%dT%H:%M:%SZ"), station]


KINDS = ("ingest", "delete_rows", "delete_file", "delete_matching", "replace", "write_unchanged")


def kinds_of(chance: random.Random, count: int) -> list[str]:
    """Random kinds of writes, each of which is there; the first one is no deletion."""
    weights = (4, 2, 1, 2, 2, 4)
    drawn = chance.choices(KINDS, weights, k=count - len(KINDS) - 1)
    rest = [*KINDS, *drawn]
    chance.shuffle(rest)
    return ["ingest", *rest]


@pytest.mark.parametrize(
    ("seed", "steps", "every"),
    [(0, 8, 3), *(pytest.param(seed, 60, 1, marks=pytest.mark.slow) for seed in range(1, 6))],
)
def test_every_answer_is_that_of_a_dict(
    client: galileo.Client, name: str, tmp_path: Path, seed: int, steps: int, every: int
) -> None:
    """Answers are compared after `every` steps."""
    buoys = Buoys(client, name, seed, tmp_path)
    buoys.compare()
    for number, kind in enumerate(kinds_of(random.Random(seed), steps), start=1):
        buoys.step(kind)
        if number % every == 0 or number == steps:
            buoys.compare()
    for query in FEATURES_ALONE:
        matches = QUERIES[query]
        expected = {key: row for key, row in buoys.rows.items() if matches(row)}
        buoys.compare_estimate(query, expected)
    assert len(buoys.changed_at) > 20


@pytest.mark.slow
def test_changes_are_those_of_a_table_with_the_same_key(
    client: galileo.Client, name: str, tmp_path: Path
) -> None:
    beds = f"{name}-table"
    columns = {"cell": "text", "bucket": "time", "station": "text"}
    values = {"temperature": "float", "waves": "int", "remark": "text"}
    client.create_table(galileo.Table(beds, columns | values, key=list(columns)))
    buoys, cursors = Buoys(client, name, 7, tmp_path), [client.table(beds).cursor]

    def table_row(key: Key, row: Mapping[str, Any]) -> Row:
        named = dict(zip(columns, (key[0], key[1], str(key[2])), strict=True))
        return named | {name: row.get(name) for name in values}

    def changes_of_table(since: int) -> list[Row]:
        return in_order(client.changes(beds, cursors[since]).rows.to_pylist())

    def changes_of_dataset(since: int) -> list[Row]:
        changes = by_key(client.changes(name, buoys.cursors[since]).rows.to_pylist())
        return in_order(
            table_row(key, row) | {"deleted": row["deleted"]} for key, row in changes.items()
        )

    def in_order(rows: Iterable[Row]) -> list[Row]:
        return sorted(rows, key=lambda row: [row[column] for column in columns])

    for kind in kinds_of(random.Random(7), 9):
        buoys.step(kind)
        deleted = [table_row(key, {}) for key, row in buoys.written.items() if row is None]
        stored = [table_row(key, row) for key, row in buoys.written.items() if row is not None]
        if deleted:
            client.delete(beds, pa.Table.from_pylist(deleted))
        if stored:
            client.upsert(beds, pa.Table.from_pylist(stored))
        cursors.append(client.table(beds).cursor)
        for since in (len(cursors) - 2, random.Random(len(cursors)).randrange(len(cursors))):
            assert changes_of_dataset(since) == changes_of_table(since)
    rows = in_order(table_row(key, row) for key, row in buoys.rows.items())
    assert in_order(client.table(beds).rows.to_pylist()) == rows


# --- several clients -----------------------------------------------------------------------------


def reading(number: int, temperature: float) -> Row:
    """One of many keys, all over the world."""
    return {
        "latitude": -80.0 + number * 7 % 160,
        "longitude": -170.0 + number * 11 % 340,
        "time": START + dt.timedelta(hours=number % 24),
        "station": f"s{number}",
        "temperature": temperature,
        "waves": number,
        "remark": None,
    }


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.slow
async def test_a_deletion_by_condition_loses_no_row_that_is_corrected_meanwhile(
    cluster: galileo.LocalCluster, client: galileo.Client, name: str, seed: int
) -> None:
    """Both begin at once; of one key, the correction may be before or behind the deletion."""
    count, wrong, right = 300, 900.0, 300.0
    client.ingest(name, table_of(reading(n, wrong) for n in range(count)))
    corrected = random.Random(seed).sample(range(count), count // 2)
    deleted = 0

    async def correct(other: galileo.AsyncClient, numbers: list[int]) -> None:
        for first in range(0, len(numbers), 5):
            rows = table_of(reading(n, right) for n in numbers[first : first + 5])
            await other.ingest(name, rows)

    async def delete(other: galileo.AsyncClient) -> int:
        return (await other.delete(name, "temperature > 400")).rows

    async with galileo.AsyncClient(*cluster.addresses) as one, cluster_client(cluster) as other:
        async with asyncio.TaskGroup() as group:
            for part in range(3):
                group.create_task(correct(one, corrected[part::3]))
            deletion = group.create_task(delete(other))
        deleted = deletion.result()
        assert (await other.delete(name, "temperature > 400")).rows == 0
    assert count // 2 <= deleted <= count
    left = client.select(name).to_pylist()
    assert by_key(left) == by_key(reading(n, right) for n in corrected)


def cluster_client(cluster: galileo.LocalCluster) -> galileo.AsyncClient:
    return galileo.AsyncClient(cluster.addresses[-1])


@pytest.mark.slow
async def test_counters_of_many_writers_lose_no_increment(
    cluster: galileo.LocalCluster, client: galileo.Client, name: str
) -> None:
    acknowledged: list[int] = []

    async def count(other: galileo.AsyncClient) -> None:
        for _ in range(4):
            while True:
                at = (await other.version(name, require_complete=True)).cursor
                seen = await other.select(name, "station = 's1'", at=at, columns=["waves"])
                value = (seen["waves"].to_pylist() or [0])[0] + 1
                row = table_of([reading(1, 280.0) | {"waves": value}])
                try:
                    await other.ingest(name, row, unchanged_since=at)
                except Conflict:
                    continue
                acknowledged.append(value)
                break

    async with galileo.AsyncClient(*cluster.addresses) as one, cluster_client(cluster) as other:
        await asyncio.gather(*(count(one) for _ in range(3)), *(count(other) for _ in range(3)))
    assert sorted(acknowledged) == list(range(1, 25))
    assert client.select(name)["waves"].to_pylist() == [24]


def test_a_repeated_batch_does_not_replace_what_came_later(
    client: galileo.Client, name: str
) -> None:
    first, second = table_of([reading(1, 270.0)]), table_of([reading(1, 280.0)])
    receipt = client.ingest(name, first, producer="mast")
    client.ingest(name, second)
    again = client.ingest(name, first, producer="mast")
    assert (again.duplicate_rows, again.reached) == (1, receipt.reached)
    assert client.select(name).to_pylist() == second.to_pylist()
    deletion = client.delete(name, first, producer="gone")
    client.ingest(name, second)
    assert client.delete(name, first, producer="gone").reached == deletion.reached
    assert client.select(name).to_pylist() == second.to_pylist()


# --- bad input -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unchanged(cluster: galileo.LocalCluster, fresh_name: Callable[[str], str]) -> str:
    """A keyed dataset with one row, for calls that are refused."""
    name = fresh_name("buoys")
    with cluster.client() as client:
        client.create_dataset(schema_of(name))
        client.ingest(name, table_of([OTHER | {"waves": 7}]))
    return name


@pytest.fixture
def plain(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    """A dataset without a key, and with the same row twice."""
    name = fresh_name("plain")
    client.create_dataset(galileo.Schema(name, FEATURES, geohash_precision=2))
    client.ingest(name, table_of([reading(1, 280.0)] * 2))
    return name


ROW, OTHER = reading(1, 290.0), reading(2, 290.0)
FAR = Cursor(dict.fromkeys(range(64), 10**6))
Call: TypeAlias = Callable[[galileo.Client, str], Any]


@pytest.mark.parametrize(
    ("call", "error", "details"),
    [
        (
            lambda c, n: c.ingest(n, table_of([ROW]), unchanged_since=FAR),
            InputError,
            {"parameter": "unchanged_since"},
        ),
        (
            lambda c, n: c.delete(n, table_of([ROW]), unchanged_since=FAR),
            InputError,
            {"parameter": "unchanged_since"},
        ),
        (lambda c, n: c.ingest(n, table_of([ROW]), unchanged_since="now"), InputError, {}),
        (lambda c, n: c.select(n, at=FAR), InputError, {}),
        (lambda c, n: list(c.select_batches(n, at=FAR)), InputError, {}),
        (lambda c, n: c.select(n, at="now"), InputError, {}),
        (lambda c, n: c.changes(n, Cursor(), until=FAR), InputError, {"parameter": "at"}),
        (
            lambda c, n: c.ingest(n, table_of([OTHER, ROW, ROW]), unchanged_since=Cursor()),
            DuplicateKey,
            {"key": shown_key(key_of(ROW))},
        ),
        (
            lambda c, n: c.ingest(
                n, table_of([OTHER, ROW, ROW]), unchanged_since=Cursor(), batch_rows=1
            ),
            DuplicateKey,
            {"key": shown_key(key_of(ROW))},
        ),
        (
            lambda c, n: c.delete(n, table_of([OTHER, ROW, ROW]), unchanged_since=Cursor()),
            DuplicateKey,
            {"key": shown_key(key_of(ROW))},
        ),
        (
            lambda c, n: c.ingest(n, table_of([ROW]).append_column("deleted", [[1]])),
            InvalidObservations,
            {"expected": "bool", "column": "deleted"},
        ),
        (
            lambda c, n: c.ingest(
                n, table_of([ROW]).append_column("deleted", pa.nulls(1, pa.bool_()))
            ),
            InvalidObservations,
            {"column": "deleted"},
        ),
        (
            lambda c, n: c.delete(n, table_of([ROW]).drop_columns(["station"])),
            InvalidObservations,
            {"missing_columns": ["station"]},
        ),
        (
            lambda c, n: c.delete(n, table_of([ROW]).drop_columns(["time"])),
            InvalidObservations,
            {"missing_columns": ["time"]},
        ),
        (lambda c, n: c.delete(n, ["s1"]), InputError, {}),
        (lambda c, n: c.delete(n, "temperature >"), QuerySyntaxError, {}),
        (lambda c, n: c.delete(n, "temprature > 3"), UnknownProperty, {}),
        (lambda c, n: c.delete(n, galileo.f.wind > 3), UnknownProperty, {}),
        (
            lambda c, n: c.delete(n, "waves > 3", producer="me"),
            InputError,
            {"parameter": "producer"},
        ),
        (
            lambda c, n: c.delete(n, "waves > 3", unchanged_since=Cursor()),
            InputError,
            {"parameter": "unchanged_since"},
        ),
        (lambda c, n: c.delete(n + "-absent", "waves > 3"), UnknownDataset, {}),
        (lambda c, n: c.delete(n, Path("absent.csv")), InputError, {}),
    ],
)
def test_wrong_calls_are_refused_and_nothing_changes(
    client: galileo.Client, unchanged: str, call: Call, error: type[GalileoError], details: Row
) -> None:
    before = client.version(unchanged).cursor
    with raises(error, **details):
        call(client, unchanged)
    assert client.select(unchanged, "waves = 7").to_pylist() == [OTHER | {"waves": 7}]
    assert client.version(unchanged).cursor == before


@pytest.mark.parametrize(
    "call",
    [
        lambda c, n: c.ingest(n, table_of([ROW]), unchanged_since=Cursor()),
        lambda c, n: c.ingest(n, table_of([ROW]), replaces=table_of([ROW])),
        lambda c, n: c.delete(n, table_of([ROW])),
        lambda c, n: c.delete(n, Path("rows.csv")),
        lambda c, n: c.changes(n, Cursor()),
    ],
)
def test_calls_about_keys_are_refused_for_datasets_without_one(
    client: galileo.Client, plain: str, call: Call
) -> None:
    before = client.version(plain).cursor
    with raises(InputError, expected="key", dataset=plain):
        call(client, plain)
    assert client.version(plain).cursor == before
    with pytest.raises(InvalidObservations):
        client.ingest(plain, table_of([ROW]).append_column("deleted", [[True]]))
    assert client.count(plain) == 2


def test_a_plain_dataset_is_read_at_a_cursor(client: galileo.Client, plain: str) -> None:
    before = client.version(plain).cursor
    client.ingest(plain, table_of([OTHER]))
    assert client.select(plain, at=before)["waves"].to_pylist() == [1, 1]
    assert client.select(plain, at=Cursor()).num_rows == 0
    assert client.select(plain).num_rows == 3


def test_a_cursor_of_another_dataset_is_refused_once_it_is_past_the_end(
    client: galileo.Client, name: str, plain: str
) -> None:
    rows = table_of(reading(n, 280.0) for n in range(200))
    for _ in range(3):
        client.ingest(plain, rows)
    foreign = client.version(plain).cursor
    with raises(InputError, parameter="unchanged_since"):
        client.ingest(name, rows, unchanged_since=foreign)
    with pytest.raises(InputError):
        client.select(name, at=foreign)
    assert client.count(name) == 0


def test_rows_of_one_call_may_replace_and_delete(client: galileo.Client, name: str) -> None:
    client.ingest(name, table_of([ROW, OTHER]))
    rows = table_of([ROW | {"waves": 8}, OTHER]).append_column("deleted", [[False, True]])
    assert client.ingest(name, rows).rows == 2
    assert client.select(name).to_pylist() == [ROW | {"waves": 8}]


# --- features, samplers, SPARQL ------------------------------------------------------------------


def test_features_are_added_to_rows_that_are_replaced(
    cluster: galileo.LocalCluster, client: galileo.Client, name: str
) -> None:
    rows = [reading(n, 280.0 + n) for n in range(12)]
    client.ingest(name, table_of(rows))
    with cluster.client() as other, cluster.client() as third:
        before = other.version(name).cursor
        assert third.changes(name, before).rows.num_rows == 0
        client.add_features(
            name, [galileo.Feature("salinity"), galileo.Feature("mast", type="int")]
        )
        wide = table_of(rows[:4]).append_column("salinity", [[30.0, 31.0, 32.0, None]])
        client.ingest(name, wide.append_column("mast", [[1, 2, 3, 4]]))
        known = third.changes(name, before).rows  # Of the features that this client knows.
        assert by_key(known.to_pylist()) == by_key(row | {"deleted": False} for row in rows[:4])
        other.ingest(name, table_of([rows[1] | {"waves": 99}]))  # Of a client that knows less.
        nothing = {"salinity": None, "mast": None}
        expected = by_key(row | nothing for row in rows)
        for number, (salinity, mast) in enumerate([(30.0, 1), (None, None), (32.0, 3), (None, 4)]):
            expected[key_of(rows[number])] |= {"salinity": salinity, "mast": mast}
        expected[key_of(rows[1])]["waves"] = 99
        for each in (client, other):
            assert by_key(each.select(name, "waves >= 0").to_pylist()) == expected
            assert each.count(name, "salinity >= 30") == 2
            assert each.count(name, "mast IS NULL") == 9
            changes = by_key(each.changes(name, before).rows.to_pylist())
            changed = {key: row for key, row in expected.items() if key in changes}
            assert changes == {key: row | {"deleted": False} for key, row in changed.items()}
            assert len(changes) == 4
        old = by_key(client.select(name, at=before).to_pylist())
        assert old == by_key(row | nothing for row in rows)
        assert other.delete(name, "salinity > 31").rows == 1
        assert client.delete(name, "mast IS NULL AND waves < 99").rows == 8
        left = [row for row in expected.values() if row["mast"] == 1 or row["mast"] == 4]
        left.append(expected[key_of(rows[1])])
        assert by_key(other.select(name).to_pylist()) == by_key(left)
        assert client.describe(name).feature("mast").maximum == 4


@pytest.fixture
def replaced(client: galileo.Client, name: str) -> list[Row]:
    """Rows of a dataset of which others were replaced and deleted."""
    client.ingest(name, table_of(reading(n, 200.0) for n in range(30)))
    rows = [reading(n, 280.0 + n) for n in range(20)]
    client.ingest(name, table_of(rows))
    assert client.delete(name, galileo.f.temperature == 200.0).rows == 10
    return rows


@pytest.mark.slow
def test_samplers_sample_what_counts(
    client: galileo.Client, name: str, replaced: list[Row]
) -> None:
    every = client.query(name, sampler=galileo.sampler("uniform", fraction=1.0, seed=3))
    assert by_key(client.read(every).to_pylist()) == by_key(replaced)
    some = client.query(name, sampler=galileo.sampler("reservoir", n=5, seed=3))
    assert len(some) == 5
    assert by_key(client.read(some).to_pylist()).items() <= by_key(replaced).items()


def test_labels_in_sparql_are_of_what_counts(
    client: galileo.Client, name: str, replaced: list[Row]
) -> None:
    labels = client.query(name, "temperature >= 295")
    answer = labels.sparql("SELECT ?t { ?p a g:Path ; f:temperature ?t } ORDER BY ?t")
    expected = [row["temperature"] for row in replaced if row["temperature"] >= 295]
    assert [row["t"] for row in answer.rows] == expected


def test_labels_of_before_read_what_counted_then(
    client: galileo.Client, name: str, replaced: list[Row]
) -> None:
    labels = client.query(name)
    client.ingest(name, table_of(row | {"waves": -1} for row in replaced[:5]))
    client.delete(name, "")
    assert client.count(name) == 0
    assert by_key(client.read(labels).to_pylist()) == by_key(replaced)
    assert by_key(client.select(name, at=labels.frontier).to_pylist()) == by_key(replaced)


def test_dropped_dataset_is_gone_and_its_name_is_free(
    client: galileo.Client, name: str, replaced: list[Row]
) -> None:
    before = client.version(name).cursor
    client.drop_dataset(name)
    with raises(UnknownDataset):
        client.delete(name, "")
    client.create_dataset(schema_of(name))
    assert client.count(name) == 0
    client.ingest(name, table_of(replaced[:1]))
    assert client.select(name).to_pylist() == replaced[:1]
    with raises(InputError, parameter="unchanged_since"):
        client.ingest(name, table_of(replaced), unchanged_since=before)
    assert client.count(name) == 1


def test_what_is_replaced_stays_if_it_cannot_be_read(
    client: galileo.Client, name: str, replaced: list[Row]
) -> None:
    """The new rows are durable by then; the call can be repeated."""
    new = table_of([reading(77, 290.0)])
    with raises(InvalidObservations):
        client.ingest(name, new, replaces={"station": ["s1"]})
    assert by_key(client.select(name).to_pylist()) == by_key([*replaced, *new.to_pylist()])
    client.ingest(name, new, replaces=table_of(replaced[:3]))
    assert by_key(client.select(name).to_pylist()) == by_key([*replaced[3:], *new.to_pylist()])


# --- clusters of their own -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_backup_of_a_keyed_dataset_is_restored(
    tmp_path: Path, no_evaluator: Row, replicas: int
) -> None:
    place = tmp_path / "cluster"
    settings = {"evaluator": no_evaluator}

    def run(*arguments: Any) -> None:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output

    def await_whole(client: galileo.Client) -> None:
        def is_whole() -> bool:
            status = client.status()
            return status.complete and not status.under_replicated

        wait_until(is_whole, what="all copies")

    with galileo.LocalCluster(3, 1, place, replicas=replicas, settings=settings) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(schema_of("buoys"))
        client.ingest("buoys", table_of(reading(n, 200.0) for n in range(300)))
        client.ingest("buoys", table_of(reading(n, 290.0) for n in range(0, 300, 2)))
        client.delete("buoys", "waves > 250")
        await_whole(client)
        expected, before = client.select("buoys").to_pylist(), client.version("buoys").cursor
        assert len(expected) == 251
        for node in cluster.nodes:
            run("backup", place / node.name, tmp_path / f"backup-{node.name}")
        client.delete("buoys", "waves = 9")
        names = [node.name for node in cluster.nodes]
    for node_name in names:
        shutil.rmtree(place / node_name)
        run("restore", tmp_path / f"backup-{node_name}", place / node_name)
    with galileo.LocalCluster(3, 1, place, replicas=replicas, settings=settings) as cluster:
        client = cluster.client(timeout="60s")
        await_whole(client)
        assert by_key(client.select("buoys").to_pylist()) == by_key(expected)
        assert client.changes("buoys", before).rows.num_rows == 0
        client.ingest("buoys", table_of([reading(9, 300.0)]), unchanged_since=before)
        assert client.count("buoys") == 251
        assert client.count("buoys", "temperature = 300") == 1
