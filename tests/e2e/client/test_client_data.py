"""Create, ingest, query and read, against pandas on the same data."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from parameters import keep_quick

import galileo
from galileo.errors import BatchConflict, InputError, InvalidObservations
from galileo.geo import geohash
from galileo.labels import parse_label
from galileo.model.schema import Feature, Schema

Fresh = Callable[[str], str]

START = pd.Timestamp("2014-03-01", tz="UTC")
STATIONS = ["alpha", "beta", "beta/2", "gamma~", "Ümläut"]


def schema(name: str) -> Schema:
    features = [
        Feature("temperature", "K"),
        Feature("count", type="int"),
        Feature("station", type="text"),
        Feature("wet", type="bool"),
        Feature("note", type="text", indexed=False),
    ]
    return Schema(name, features, geohash_precision=3, time_bucket="1h")


def frame(rows: int, seed: int = 0) -> pd.DataFrame:
    """Over North America and two days, a tenth of each feature missing; `note` is unique."""
    rng = np.random.default_rng(seed)

    def some(values: Any, dtype: str) -> pd.Series:
        return pd.Series(values, dtype=dtype).mask(pd.Series(rng.random(rows) < 0.1))

    return pd.DataFrame(
        {
            "latitude": np.round(rng.uniform(25, 50, rows), 3),
            "longitude": np.round(rng.uniform(-125, -65, rows), 3),
            "time": START + pd.to_timedelta(rng.integers(0, 48 * 60, rows), unit="min"),
            "temperature": some(np.round(rng.uniform(250, 310, rows)), "Float64"),
            "count": some(rng.integers(-3, 4, rows), "Int64"),
            "station": some(rng.choice(STATIONS, rows), "string"),
            "wet": some(rng.random(rows) < 0.5, "boolean"),
            "note": pd.Series([f"{seed}-{number}" for number in range(rows)], dtype="string"),
        }
    )


@dataclass(frozen=True)
class Stored:
    """A dataset with all of `frame` in it."""

    name: str
    frame: pd.DataFrame


@pytest.fixture(scope="module")
def stored(client: galileo.Client, fresh_name: Fresh) -> Stored:
    name, data = fresh_name("truth"), frame(4000)
    client.create_dataset(schema(name))
    client.ingest(name, data, batch_rows=1000)
    return Stored(name, data)


def notes(table: pa.Table) -> list[str]:
    return sorted(table.column("note").to_pylist())


# --- queries against pandas ----------------------------------------------------------------------

Predicate = tuple[str, Callable[[pd.DataFrame], pd.Series]]

kelvins = st.integers(245, 315)


@st.composite
def comparisons(draw: st.DrawFn) -> Predicate:
    kind = draw(
        st.sampled_from(["t", "between", "count", "in", "like", "wet", "null", "time", "box"])
    )
    if kind == "t":
        sign, number = draw(st.sampled_from(["<", "<=", "=", "<>", ">", ">="])), draw(kelvins)
        method = {"<": "lt", "<=": "le", "=": "eq", "<>": "ne", ">": "gt", ">=": "ge"}[sign]
        return f"temperature {sign} {number}", lambda f: getattr(f["temperature"], method)(number)
    if kind == "between":
        low, high = sorted([draw(kelvins), draw(kelvins)])
        return (
            f"temperature BETWEEN {low} AND {high}",
            lambda f: (f["temperature"] >= low) & (f["temperature"] <= high),
        )
    if kind == "count":
        number = draw(st.integers(-4, 4))
        return f"count > {number}", lambda f: f["count"] > number
    if kind == "in":
        names = draw(st.lists(st.sampled_from([*STATIONS, "nowhere"]), min_size=1, max_size=3))
        texts = ", ".join(f"'{name}'" for name in names)

        def within(f: pd.DataFrame) -> pd.Series:
            return f["station"].isin(names).astype("boolean").mask(f["station"].isna())

        return f"station IN ({texts})", within
    if kind == "like":
        return "station LIKE 'beta%'", lambda f: f["station"].str.startswith("beta")
    if kind == "wet":
        return "wet = true", lambda f: f["wet"]
    if kind == "null":
        name = draw(st.sampled_from(["temperature", "count", "station", "wet"]))
        return f"{name} IS NULL", lambda f: f[name].isna().astype("boolean")
    if kind == "time":
        moment = START + pd.Timedelta(minutes=draw(st.integers(-60, 49 * 60)))
        text = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        return (
            f"T_BEFORE(datetime, TIMESTAMP('{text}'))",
            lambda f: (f["time"] < moment).astype("boolean"),
        )
    west, east = sorted(draw(st.tuples(st.integers(-130, -60), st.integers(-130, -60))))
    south, north = sorted(draw(st.tuples(st.integers(20, 55), st.integers(20, 55))))
    return (
        f"S_INTERSECTS(geometry, BBOX({west}, {south}, {east + 1}, {north + 1}))",
        lambda f: (
            f["longitude"].between(west, east + 1) & f["latitude"].between(south, north + 1)
        ).astype("boolean"),
    )


def joined(inner: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
    def both(pair: tuple[Predicate, Predicate]) -> Predicate:
        (a, f), (b, g) = pair
        return f"({a}) AND ({b})", lambda data: f(data) & g(data)

    def either(pair: tuple[Predicate, Predicate]) -> Predicate:
        (a, f), (b, g) = pair
        return f"({a}) OR ({b})", lambda data: f(data) | g(data)

    def negated(one: Predicate) -> Predicate:
        return f"NOT ({one[0]})", lambda data: ~one[1](data)

    pairs = st.tuples(inner, inner)
    return pairs.map(both) | pairs.map(either) | inner.map(negated)


@examples(40)
@given(st.recursive(comparisons(), joined, max_leaves=4))
def test_query_equals_pandas(client: galileo.Client, stored: Stored, predicate: Predicate) -> None:
    """Missing values make a predicate unknown, in pandas' three-valued logic as in SQL's."""
    text, truth = predicate
    expected = stored.frame[truth(stored.frame).fillna(False).astype(bool)]
    labels = client.query(stored.name, text)
    assert labels.complete
    assert notes(client.read(labels)) == sorted(expected["note"]), text
    cells = geohash.encode(expected["latitude"], expected["longitude"], 3)
    assert set(geohash.to_text(cells, 3).to_pylist()) <= set(labels.geohashes().to_pylist())


def test_read_returns_observations_as_ingested(client: galileo.Client, stored: Stored) -> None:
    back = client.read(client.query(stored.name))
    brought = pa.Table.from_pandas(stored.frame, preserve_index=False).cast(back.schema)
    assert back.sort_by("note").equals(brought.sort_by("note"))


def test_query_returns_one_label_per_block_part_and_tuple(
    client: galileo.Client, stored: Stored
) -> None:
    """Four commits, so a block part for each in which the tuple occurs."""
    data = stored.frame.assign(
        cell=geohash.encode(stored.frame["latitude"], stored.frame["longitude"], 3),
        bucket=stored.frame["time"].dt.floor("h"),
        commit=np.arange(len(stored.frame)) // 1000,
    )
    levels = ["cell", "bucket", "temperature", "count", "station", "wet", "commit"]
    labels = client.query(stored.name)
    assert len(labels) == len(data.groupby(levels, dropna=False))
    assert labels.table.column("rows").to_numpy().sum() == len(data)


def test_labels_to_pandas_has_columns_and_label_texts(
    client: galileo.Client, stored: Stored
) -> None:
    labels = client.query(stored.name, "station = 'beta/2' AND wet = true AND count = 2")
    shown = labels.to_pandas()
    assert list(shown.columns) == [
        *("geohash", "time", "temperature", "count", "station", "wet"),
        *("block", "partition", "sequence", "label"),
    ]
    assert set(shown["station"]) == {"beta/2"}
    for row in shown.to_dict("records"):
        parsed = parse_label(labels.schema, row["label"])
        assert parsed["geohash"] == row["geohash"]
        assert parsed["station"] == "beta/2"
        assert row["label"].startswith(row["block"] + "/")


def test_labels_sparql_counts_labels(client: galileo.Client, stored: Stored) -> None:
    labels = client.query(stored.name, "temperature > 300 AND station = 'alpha'")
    found = labels.sparql("SELECT (COUNT(?p) AS ?n) WHERE { ?p f:temperature ?t }")
    assert found.rows == [{"n": len(labels)}]
    assert len(labels) > 10


def test_read_not_exact_returns_whole_blocks(client: galileo.Client, stored: Stored) -> None:
    labels = client.query(stored.name, "S_INTERSECTS(geometry, BBOX(-100, 30, -90, 40))")
    exact, whole = client.read(labels), client.read(labels, exact=False)
    assert whole.num_rows == labels.table.column("rows").to_numpy().sum()
    assert set(notes(exact)) < set(notes(whole))


def test_read_batches_equals_read(client: galileo.Client, stored: Stored) -> None:
    labels = client.query(stored.name, "temperature > 290")
    pieces = list(client.read_batches(labels))
    assert len(pieces) > 1
    assert notes(pa.concat_tables(pieces)) == notes(client.read(labels))


def test_read_batches_can_be_closed_early(client: galileo.Client, stored: Stored) -> None:
    pieces = client.read_batches(client.query(stored.name))
    assert next(pieces).num_rows > 0
    pieces.close()  # type: ignore[attr-defined]
    assert client.status().complete


def test_read_of_some_labels_returns_their_rows_only(
    client: galileo.Client, stored: Stored
) -> None:
    labels = client.query(stored.name, "temperature > 290")
    some = labels.where(np.arange(len(labels)) % 3 == 0)
    assert 0 < client.read(some).num_rows < client.read(labels).num_rows
    assert client.read(labels.slice(0, 0)).num_rows == 0


# --- ingest --------------------------------------------------------------------------------------


@pytest.fixture
def dataset(client: galileo.Client, fresh_name: Fresh) -> str:
    name = fresh_name("inputs")
    client.create_dataset(schema(name))
    return name


def tables(data: pd.DataFrame, size: int) -> Iterator[pa.Table]:
    for start in range(0, len(data), size):
        yield pa.Table.from_pandas(data.iloc[start : start + size], preserve_index=False)


INPUTS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "a DataFrame": lambda data: data,
    "a DataFrame with an index": lambda data: data.set_index(np.arange(len(data)) * 7),
    "a table": lambda data: pa.Table.from_pandas(data),
    "a table of chunks": lambda data: pa.concat_tables(tables(data, 70)),
    "a record batch": lambda data: pa.RecordBatch.from_pandas(data),
    "a reader": lambda data: pa.Table.from_pandas(data).to_reader(90),
    "a list of DataFrames": lambda data: [data.iloc[:100], data.iloc[100:]],
    "a generator of tables": lambda data: tables(data, 80),
    "columns in another order": lambda data: data[data.columns[::-1]],
    "naive times": lambda data: data.assign(time=data["time"].dt.tz_localize(None)),
    "times as texts": lambda data: data.assign(time=data["time"].dt.strftime("%Y-%m-%dT%H:%M:%SZ")),
    "another zone": lambda data: data.assign(time=data["time"].dt.tz_convert("Asia/Tokyo")),
    "longitudes to 360": lambda data: data.assign(longitude=data["longitude"] + 360),
    "categories": lambda data: data.assign(station=data["station"].astype("category")),
}


QUICK = ("a DataFrame with an index", "a reader", "a generator of tables", "longitudes to 360")
"""Of each way in, one; tests/unit/formats/test_formats_memory.py has the columns of all kinds."""


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k in QUICK else pytest.mark.slow) for k in INPUTS]
)
def test_ingest_of_every_supported_type_stores_the_same(
    client: galileo.Client, dataset: str, kind: str
) -> None:
    data = frame(250, seed=5)
    receipt = client.ingest(dataset, INPUTS[kind](data), batch_rows=60)
    assert receipt.rows == 250
    assert receipt.duplicate_rows == 0
    back = client.read(client.query(dataset)).sort_by("note")
    expected = pa.Table.from_pandas(data.sort_values("note"), preserve_index=False)
    for name in ("note", "station", "temperature", "count", "wet"):
        assert back.column(name).to_pylist() == expected.column(name).to_pylist(), name
    assert np.allclose(back.column("longitude"), expected.column("longitude"), rtol=0, atol=1e-9)
    assert back.column("time").to_pylist() == expected.column("time").to_pylist()


@pytest.mark.parametrize("data", [[], frame(3).iloc[:0], iter([frame(3).iloc[:0]])])
def test_ingest_of_no_rows_stores_nothing(client: galileo.Client, dataset: str, data: Any) -> None:
    receipt = client.ingest(dataset, data)
    assert (receipt.rows, receipt.batches, len(receipt.reached)) == (0, 0, 0)


def test_ingest_progress_reports_durable_rows(client: galileo.Client, dataset: str) -> None:
    result: list[int] = []
    receipt = client.ingest(dataset, frame(950), batch_rows=100, progress=result.append)
    assert sorted(result) == [50, *[100] * 9]
    assert (receipt.rows, receipt.batches) == (950, 10)
    assert receipt.paths == len(client.query(dataset))


def test_ingest_repeated_by_a_producer_is_a_duplicate(client: galileo.Client, dataset: str) -> None:
    data = frame(500)
    first = client.ingest(dataset, data, producer="radar-7", batch_rows=120)
    assert (first.producer, first.duplicate_rows) == ("radar-7", 0)
    again = client.ingest(dataset, data, producer="radar-7", batch_rows=120)
    assert (again.rows, again.duplicate_rows, again.paths) == (500, 500, first.paths)
    assert again.reached == first.reached
    assert client.read(client.query(dataset)).num_rows == 500


def test_ingest_of_a_longer_stream_stores_the_rest(client: galileo.Client, dataset: str) -> None:
    """As after an ingest that broke off."""
    data = frame(500)
    client.ingest(dataset, data.iloc[:200], producer="p", batch_rows=100)
    receipt = client.ingest(dataset, data, producer="p", batch_rows=100)
    assert (receipt.rows, receipt.duplicate_rows) == (500, 200)
    assert notes(client.read(client.query(dataset))) == sorted(data["note"])


def test_ingest_with_other_batch_sizes_is_a_conflict(client: galileo.Client, dataset: str) -> None:
    data = frame(500)
    client.ingest(dataset, data, producer="p", batch_rows=250)
    with raises(BatchConflict, producer="p"):
        client.ingest(dataset, data, producer="p", batch_rows=240)
    assert set(notes(client.read(client.query(dataset)))) == set(data["note"])


def test_ingest_with_restarted_batch_numbers_is_a_conflict(
    client: galileo.Client, dataset: str
) -> None:
    """One row per call: each call's only batch has the number 0."""
    client.ingest(dataset, frame(1).assign(note="first"), producer="sensor-7")
    with raises(BatchConflict, sequence=1):
        client.ingest(dataset, frame(1).assign(note="second"), producer="sensor-7")
    assert notes(client.read(client.query(dataset))) == ["first"]


OTHERS = ("subset", "superset", "another place", "another value")


def other_rows(rows: pd.DataFrame, kind: str, column: str) -> pd.DataFrame:
    """Rows that are not a batch's, in some way that a single partition may not see."""
    if kind == "subset":
        return rows.iloc[:-1]
    if kind == "superset":
        return pd.concat([rows, rows.tail(1).assign(**{column: "more"})])
    if kind == "another place":
        place = {"latitude": -45.0, "longitude": 170.0}
        return rows.assign(**({name: place[name] for name in place if name in rows} or {"id": "z"}))
    return rows.assign(**{column: "other"})


@pytest.mark.parametrize(
    ("kind", "count"),
    keep_quick(itertools.product(OTHERS, [1, 40]), ("another value", 40), ("superset", 40)),
)
def test_ingest_of_another_batch_under_a_used_number_stores_nothing(
    client: galileo.Client, dataset: str, kind: str, count: int
) -> None:
    rows = frame(count)
    other = other_rows(rows, kind, "note")
    if not len(other):
        return
    client.ingest(dataset, rows, producer="buoy", first_batch=3)
    with pytest.raises(BatchConflict):
        client.ingest(dataset, other, producer="buoy", first_batch=3)
    assert client.count(dataset) == count
    shuffled = rows.sample(frac=1.0, random_state=1)
    again = client.ingest(dataset, shuffled, producer="buoy", first_batch=3)
    assert (again.rows, again.duplicate_rows) == (count, count)
    assert client.ingest(dataset, other, producer="buoy", first_batch=4).duplicate_rows == 0
    assert client.ingest(dataset, other, producer="gauge", first_batch=3).duplicate_rows == 0


@pytest.mark.parametrize(
    ("writer", "kind"),
    keep_quick(
        itertools.product(["upsert", "subscribe", "delete"], OTHERS),
        *(("upsert", "another value"), ("subscribe", "subset"), ("delete", "another place")),
    ),
)
def test_table_write_of_another_batch_under_a_used_number_stores_nothing(
    client: galileo.Client,
    dataset: str,
    fresh_name: Callable[[str], str],
    writer: str,
    kind: str,
) -> None:
    name = fresh_name("kept")
    ids = [f"s{number}" for number in range(20)]
    rows = pd.DataFrame({"id": ids, "broker" if writer == "subscribe" else "port": "ops"})
    column = rows.columns[1]
    if writer == "subscribe":
        rows = rows.assign(least=280.0)
        client.create_channel(galileo.Channel(name, dataset, "temperature > :least"))
        table, write = f"{name}.subscriptions", client.subscribe
    else:
        client.create_table(galileo.Table(name, {"id": "text", "port": "text"}, key="id"))
        table, write = name, client.upsert
    other = other_rows(rows, kind, column)
    if writer == "delete":
        client.upsert(name, pd.concat([rows, other]).drop_duplicates("id"))
        rows, other = rows[["id"]], other[["id"]].drop_duplicates()
        if len(other) == len(rows) and kind != "another place":
            return
        write = client.delete
    write(name, rows, producer="buoy", first_batch=3)
    before = client.table(table).rows.sort_by("id")
    with pytest.raises(BatchConflict):
        write(name, other, producer="buoy", first_batch=3)
    assert client.table(table).rows.sort_by("id").equals(before)
    assert write(name, rows, producer="buoy", first_batch=3).duplicate_rows == 20
    assert write(name, other, producer="buoy", first_batch=4).duplicate_rows == 0


def test_ingest_without_a_producer_stores_rows_again(client: galileo.Client, dataset: str) -> None:
    one, two = client.ingest(dataset, frame(50)), client.ingest(dataset, frame(50))
    assert one.producer != two.producer
    assert client.read(client.query(dataset)).num_rows == 100


def test_query_after_ingest_finds_it_at_every_node(
    cluster: galileo.LocalCluster, client: galileo.Client, dataset: str
) -> None:
    """At every node, and with no pause in between."""
    for number in range(12):
        with galileo.connect(cluster.addresses[number % 3]) as one:
            row = frame(1, seed=number).assign(temperature=1000.0 + number)
            receipt = one.ingest(dataset, row)
            labels = one.query(dataset, f"temperature = {1000 + number}")
            assert notes(one.read(labels)) == [f"{number}-0"]
            assert labels.frontier.covers(receipt.reached)


@pytest.mark.slow
def test_ingest_of_a_stream_with_an_invalid_table_keeps_the_others(
    client: galileo.Client, dataset: str, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = frame(100), frame(100, seed=1)
    bad.loc[7, "latitude"] = 91.0
    result: list[int] = []

    def stream() -> Iterator[pd.DataFrame]:
        while not result:
            yield good.iloc[: 100 if not result else 0]
        yield bad

    with raises(InvalidObservations, row=7):
        client.ingest(dataset, stream(), batch_rows=100, producer="p", progress=result.append)
    kept = notes(client.read(client.query(dataset)))
    assert set(kept) == set(good["note"])
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_ingest_of_a_failing_iterator_raises_its_error(
    client: galileo.Client, dataset: str
) -> None:
    def stream() -> Iterator[pd.DataFrame]:
        yield frame(10)
        raise ZeroDivisionError("the sensor is gone")

    with pytest.raises(ZeroDivisionError):
        client.ingest(dataset, stream())


@pytest.mark.slow
def test_ingest_with_many_failed_batches_logs_no_asyncio_error(
    client: galileo.Client, dataset: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.ingest(dataset, frame(400), producer="p", batch_rows=100)
    with pytest.raises(BatchConflict):
        client.ingest(dataset, frame(200), producer="p", batch_rows=50)
    gc.collect()
    assert client.status().complete
    assert not [record for record in caplog.records if record.name == "asyncio"]


# --- the cluster and the client ------------------------------------------------------------------


def test_status_has_every_node_and_all_rows(
    cluster: galileo.LocalCluster, client: galileo.Client, stored: Stored
) -> None:
    status = client.status()
    assert status.complete
    assert [(node.name, node.address) for node in status.nodes] == [
        ("node-1", cluster.addresses[0]),
        ("node-3", cluster.addresses[2]),
        ("node-2", cluster.addresses[1]),
    ]
    assert [node.pid for node in status.nodes] == [cluster.node(n.name).pid for n in status.nodes]
    assert all(node.memory_bytes > 0 and node.uptime_s > 0 for node in status.nodes)
    facts = [one for node in status.nodes for one in node.datasets if one["dataset"] == stored.name]
    assert sum(one["rows"] for one in facts) == 4000
    assert all(one["bytes_on_disk"] > 0 for one in facts)


def test_datasets_lists_schemas(client: galileo.Client, stored: Stored) -> None:
    found = {one.name: one for one in client.datasets()}
    assert found[stored.name] == schema(stored.name) == client.schema(stored.name)


def test_client_closed_ends_its_iterators(cluster: galileo.LocalCluster, stored: Stored) -> None:
    one = galileo.connect(*cluster.addresses)
    pieces = one.read_batches(one.query(stored.name))
    next(pieces)
    one.close()
    with raises(InputError):
        next(pieces)


# --- coroutines ----------------------------------------------------------------------------------


async def test_async_client_runs_calls_concurrently(
    cluster: galileo.LocalCluster, stored: Stored
) -> None:
    async with galileo.AsyncClient(cluster.addresses[0]) as client:
        answers = await asyncio.gather(
            *(client.query(stored.name, f"temperature > {250 + n}") for n in range(20))
        )
    sizes = [len(labels) for labels in answers]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1] > 0
