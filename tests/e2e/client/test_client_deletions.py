"""Deletion by a condition in datasets without a key, against a list of the observations."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises

import galileo
from galileo.errors import InputError
from galileo.rdf import IncrementalGraph

STATIONS = "abcd"
PLACES = ((40.02, -100.03), (40.31, -100.4), (52.1, 13.2), (-33.5, 151.5))
CONDITIONS = (
    "temperature > 60",
    "station = 'b'",
    "T_AFTER(datetime, TIMESTAMP('2024-01-01T02:20:00Z'))",
    "T_BEFORE(datetime, TIMESTAMP('2024-01-01T00:30:00Z')) AND station <> 'a'",
    "S_INTERSECTS(geometry, BBOX(-100.2, 39, -99, 41))",
    "temperature IS NULL",
)


@pytest.fixture
def name(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    """An empty dataset of coarse blocks, whose paths have several observations."""
    name = fresh_name("gauges")
    features = [
        galileo.Feature("station", type="text"),
        galileo.Feature("temperature"),
        galileo.Feature("note", type="text", indexed=False),
    ]
    client.create_dataset(galileo.Schema(name, features, geohash_precision=2, time_bucket="1h"))
    return name


def reports(chance: random.Random, count: int) -> pa.Table:
    places = [chance.choice(PLACES) for _ in range(count)]
    return pa.table(
        {
            "latitude": [latitude for latitude, _ in places],
            "longitude": [longitude for _, longitude in places],
            "time": [
                f"2024-01-01T{chance.randrange(4):02d}:{chance.randrange(60):02d}:00Z"
                for _ in places
            ],
            "station": [chance.choice(STATIONS) for _ in places],
            "temperature": [chance.choice([None, *range(0, 100, 20)]) for _ in places],
            "note": [str(chance.random()) for _ in places],
        },
        schema=pa.schema(
            [
                ("latitude", pa.float64()),
                ("longitude", pa.float64()),
                ("time", pa.string()),
                ("station", pa.string()),
                ("temperature", pa.float64()),
                ("note", pa.string()),
            ]
        ),
    )


def notes(rows: Any) -> list[str]:
    return sorted(rows.column("note").to_pylist())


@pytest.mark.parametrize("seed", range(3))
def test_delete_by_conditions_leaves_what_does_not_match(
    client: galileo.Client, name: str, seed: int
) -> None:
    chance, left = random.Random(seed), list[str]()
    for _ in range(3):
        batch = reports(chance, 150)
        client.ingest(name, batch)
        left += batch.column("note").to_pylist()
        for condition in chance.sample(CONDITIONS, 2):
            matching = notes(client.select(name, condition))
            then = client.query(name, condition)
            receipt = client.delete(name, condition)
            assert receipt.rows == len(matching)
            left = sorted(set(left) - set(matching))
            assert notes(client.select(name)) == left
            assert client.count(name, condition) == 0
            assert notes(client.read(then, exact=True)) == matching
        check_doors(client, name, left)
        again = client.delete(name, condition)
        assert (again.rows, again.batches) == (0, 0)


def check_doors(client: galileo.Client, name: str, left: list[str]) -> None:
    """Every call that reads agrees about how many observations there are."""
    assert client.count(name) == len(left)
    assert client.describe(name).observations == len(left)
    labels = client.query(name)
    assert sum(labels.table.column("rows").to_pylist()) == len(left)
    assert notes(client.read(labels)) == left
    page, ids, found = client.select_page(name, limit=100), list[str](), list[str]()
    while True:
        ids += page.table.column("id").to_pylist()
        found += page.table.column("note").to_pylist()
        if page.next is None:
            break
        page = client.select_page(name, limit=100, after=page.next)
    assert sorted(found) == left
    assert client.read_ids(name, ids).column("note").to_pylist() == found
    total = client.aggregate(name, by=["station"], statistics={"temperature": "count"})
    assert total.to_pandas()["observations"].sum() == len(left)
    wanted = {"temperature": ["median", "std", "last"]}
    [whole] = client.aggregate(name, statistics=wanted).table.to_pylist()
    check_whole(whole, client.read(labels).to_pandas())


def check_whole(group: dict[str, Any], frame: pd.DataFrame) -> None:
    warmth = frame["temperature"]
    found = [group[f"temperature_{name}"] for name in ("median", "std", "last")]
    newest = frame[frame["time"] == frame.dropna(subset="temperature")["time"].max()]
    expected = [warmth.median(), warmth.std(), newest["temperature"].max()]
    assert found == pytest.approx([None if pd.isna(one) else one for one in expected])


def test_delete_ids_of_others_stay(client: galileo.Client, name: str) -> None:
    client.ingest(name, reports(random.Random(5), 200))
    page = client.select_page(name, "T_AFTER(datetime, TIMESTAMP('2024-01-01T01:30:00Z'))")
    kept = dict(zip(*(page.table.column(n).to_pylist() for n in ("note", "id")), strict=True))
    client.delete(name, "T_BEFORE(datetime, TIMESTAMP('2024-01-01T01:15:00Z'))")
    after = client.select_page(name, "T_AFTER(datetime, TIMESTAMP('2024-01-01T01:30:00Z'))")
    pairs = zip(*(after.table.column(n).to_pylist() for n in ("note", "id")), strict=True)
    assert dict(pairs) == kept


def test_delete_all_then_ingest_again(client: galileo.Client, name: str) -> None:
    rows = reports(random.Random(7), 50)
    client.ingest(name, rows)
    assert client.delete(name, "").rows == 50
    assert client.count(name) == 0
    client.ingest(name, rows)
    assert client.count(name) == 50


def test_delete_rows_without_a_key_are_refused(client: galileo.Client, name: str) -> None:
    rows = reports(random.Random(9), 3)
    client.ingest(name, rows)
    with raises(InputError, expected="key", dataset=name):
        client.delete(name, rows)
    assert client.count(name) == 3


# --- continuous queries --------------------------------------------------------------------------


def held_by(labels: Any) -> dict[tuple[int, ...], int]:
    """The rows of each label by its place."""
    columns = (labels.table.column(n).to_pylist() for n in ("partition", "sequence", "row", "rows"))
    return {place: rows for *place, rows in zip(*columns, strict=True) for place in [tuple(place)]}


def fold(held: dict[tuple[int, ...], int], update: galileo.Update) -> None:
    """As the documentation tells readers."""
    assert update.withdrawn is not None
    for place in held_by(update.withdrawn):
        held.pop(place, None)
    held |= held_by(update.labels)


@pytest.mark.parametrize("seed", range(2))
def test_continuous_query_withdraws_what_is_deleted(
    client: galileo.Client, name: str, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    client.ingest(name, reports(chance, 120))
    ccq = client.submit(name, "temperature > 30", interval="1s", expiration="1h")
    held, token = held_by(ccq.initial), ccq.token
    tokens = [(token, dict(held))]
    for _ in range(6):
        if chance.random() < 0.5:
            client.ingest(name, reports(chance, 60))
        client.delete(name, chance.choice(CONDITIONS[1:5]))
        for _ in range(chance.randrange(3)):
            update = client.fetch(ccq, token=token, wait="2s")
            fold(held, update)
            token = update.token
            tokens.append((token, dict(held)))
    until_current(client, ccq, name, held, token)
    check_spool(client, ccq, name, tmp_path / "updates.spool")
    for token, then in tokens:
        until_current(client, ccq, name, then, token)
    client.cancel(ccq)


def check_spool(client: galileo.Client, ccq: galileo.Ccq, name: str, path: Path) -> None:
    """A spool and an RDF graph of updates from the first token on have what matches."""
    deadline = time.monotonic() + 60.0
    expected = held_by(client.query(name, "temperature > 30"))
    graph = IncrementalGraph(ccq.initial.schema)
    graph.add(ccq.initial)
    with galileo.Spool(path) as spool:
        spool.store(ccq.id, galileo.Update(ccq.initial, ccq.token))
        while held_by(spool.labels()) != expected:
            assert time.monotonic() < deadline, f"{held_by(spool.labels()).items() ^ expected}"
            update = client.fetch(ccq, token=spool.token, wait="1s")
            spool.store(ccq.id, update)
            graph.add(update.labels, withdrawn=update.withdrawn, reset=update.reset)
    assert held_by(graph.labels) == expected
    graph.close()


def until_current(
    client: galileo.Client,
    ccq: galileo.Ccq,
    name: str,
    held: dict[tuple[int, ...], int],
    token: str,
) -> None:
    """Follows until the reader has what matches; fails if it never does."""
    deadline = time.monotonic() + 60.0
    expected = held_by(client.query(name, "temperature > 30"))
    while held != expected:
        assert time.monotonic() < deadline, f"{held.items() ^ expected.items()}"
        update = client.fetch(ccq, token=token, wait="1s")
        fold(held, update)
        token = update.token
