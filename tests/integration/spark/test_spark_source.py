"""The data source in an embedded session, against the client."""

from __future__ import annotations

import datetime as dt
import gc
import json
import os
import re
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from parameters import keep_quick
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from spark_line import behind_a_line
from waiting import wait_until

import galileo
import galileo.spark
from galileo.cursor import EMPTY_CURSOR
from galileo.model.times import times_from_micros
from galileo.spark.source.columns import requested_columns, spark_columns
from galileo.spark.source.cursor_stream import discover
from galileo.spark.source.options import FAIL, LABELS, SourceOptions
from galileo.spark.source.plan import splits
from galileo.spark.source.reading import ReadSpec, batches
from galileo.spark.source.spark_to_cql import conjunction

ROOT = Path(__file__).parents[3]
ROWS = 20_000
COMMITS = 8
BOX = "S_INTERSECTS(geometry, BBOX(-100, -40, 60, 50))"
START_US = 1_330_560_000_000_000

Make = Callable[[str], str]


def made(rows: int, *, first: int = 0) -> pa.Table:
    """Observations, each with a number of its own."""
    random = np.random.default_rng(first + 1)
    numbers = np.arange(first, first + rows)
    return pa.table(
        {
            "latitude": random.uniform(-80, 80, rows),
            "longitude": random.uniform(-180, 180, rows),
            "time": times_from_micros(START_US + random.integers(0, 36_000_000_000, rows)),
            "temperature": pa.array(random.uniform(250, 310, rows), mask=numbers % 10 == 0),
            "station": pa.array([f"K{number % 50}" for number in numbers]),
            "number": pa.array(numbers),
        }
    )


def schema(name: str) -> galileo.Schema:
    features = [
        galileo.Feature("temperature", "K"),
        galileo.Feature("station", "1", type="text"),
        galileo.Feature("number", "1", type="int", indexed=False),
    ]
    return galileo.Schema(name, features)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        # The second compiler and the parallel collector cost more than such short jobs take.
        given = os.environ["JDK_JAVA_OPTIONS"]
        options = f"{given} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        patch.setenv("JDK_JAVA_OPTIONS", options)
        session = galileo.spark.start_session(
            "local[2, 3]", heap_mb=1_024, settings={"spark.sql.shuffle.partitions": "2"}
        )
    yield session
    session.stop()


@pytest.fixture(scope="module")
def air(client: galileo.Client, fresh_name: Make) -> str:
    name = fresh_name("air")
    client.create_dataset(schema(name))
    client.ingest(name, made(ROWS), batch_rows=ROWS // COMMITS)
    return name


@pytest.fixture
def empty(client: galileo.Client, fresh_name: Make) -> str:
    name = fresh_name("copy")
    client.create_dataset(schema(name))
    return name


@pytest.fixture(scope="module")
def load(spark: SparkSession, cluster: galileo.LocalCluster) -> Callable[..., DataFrame]:
    """`load(dataset, option=...)`: by the format's name alone."""

    def read(dataset: str, **options: Any) -> DataFrame:
        reader = spark.read.format("galileo").option("address", cluster.addresses[0])
        return reader.options(dataset=dataset, **options).load()

    return read


def numbers(frame: DataFrame) -> list[int]:
    return sorted(frame.select("number").toArrow().column("number").to_pylist())


def tasks(frame: DataFrame) -> int:
    return frame.rdd.getNumPartitions()


def plan(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    frame.explain("formatted")
    return capsys.readouterr().out


def same(found: pa.Table, expected: pa.Table) -> bool:
    ordered = [table.sort_by("number").combine_chunks() for table in (found, expected)]
    return ordered[0].to_pydict() == ordered[1].to_pydict()


# --- reading -------------------------------------------------------------------------------------


def test_load_reads_everything_as_stored(
    load: Any, air: str, client: galileo.Client, spark: SparkSession
) -> None:
    frame = load(air)
    assert [f.simpleString() for f in frame.schema] == [
        *("latitude:double", "longitude:double", "time:timestamp"),
        *("temperature:double", "station:string", "number:bigint"),
    ]
    assert [f.name for f in frame.schema if not f.nullable] == ["latitude", "longitude", "time"]
    assert same(frame.toArrow(), client.select(air))

    # Within the test, so that it travels as code: workers do not find this module.
    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"count": [gc.get_freeze_count()]})

    counts = spark.range(0, 2, 1, 2).mapInArrow(frozen, "count long").toArrow().column("count")
    assert max(counts.to_pylist()) > 10_000, "PySpark's collections look at every loaded module"
    many = load(air, rows_per_task=1_000)
    assert tasks(many) > tasks(frame) > 1
    assert numbers(many) == list(range(ROWS))


def test_load_selects_columns_and_checks_the_schema(
    load: Any, air: str, cluster: Any, spark: SparkSession
) -> None:
    frame = load(air, columns="number, time")
    assert frame.columns == ["number", "time"]
    assert numbers(frame) == list(range(ROWS))
    reader = spark.read.format("galileo").options(address=cluster.addresses[0], dataset=air)
    assert numbers(reader.schema("number long, station string").load()) == list(range(ROWS))
    with pytest.raises(PySparkException, match="expected column 'number' of dataset"):
        reader.schema("number double").load().count()


@pytest.mark.slow
def test_load_pushes_the_query_to_nodes_and_shows_it_in_the_plan(
    spark: SparkSession,
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    air: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    query = f"temperature > 300 AND station LIKE 'K1%' AND {BOX}"
    frame = galileo.spark.read(spark, cluster.addresses[0], air, query=query)
    assert same(frame.toArrow(), client.select(air, query))
    shown = plan(frame, capsys)
    assert "GreaterThan(temperature,300.0), StringStartsWith(station,K1)]" in shown
    assert "Filter" not in shown.replace("PushedFilters", "")
    by_expression = galileo.spark.read(
        spark, cluster.addresses[0], air, query=galileo.f.temperature > 300, columns=["number"]
    )
    assert len(numbers(by_expression)) == client.count(air, "temperature > 300")


@pytest.mark.slow
@pytest.mark.parametrize("query", ["t = 4.3", "t IN (0.1, 4.3)", "qc = 'good'", "t < 1e39"])
def test_load_compares_32_bit_floats_and_flags_as_nodes_do(
    spark: SparkSession,
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    fresh_name: Make,
    query: str,
) -> None:
    name = fresh_name("float32")
    flagged = galileo.Feature("qc", type="int", flags={1: "good", 4: "bad"})
    client.create_dataset(galileo.Schema(name, [galileo.Feature("t", type="float32"), flagged]))
    stored = {"latitude": [1.0, 2.0, 3.0], "longitude": [1.0, 2.0, 3.0], "qc": [1, 4, 1]}
    times = pa.array([0, 1, 2], pa.timestamp("us", "UTC"))
    client.ingest(name, pa.table({**stored, "t": [4.3, 0.1, 2.0], "time": times}))
    frame = galileo.spark.read(spark, cluster.addresses[0], name, query=query)
    loaded, expected = frame.toArrow(), client.select(name, query)
    assert loaded.schema.field("t").type == pa.float32()
    rows = [sorted(table.to_pylist(), key=str) for table in (loaded, expected)]
    assert rows[0] == rows[1] != []
    frame.write.format("galileo").options(address=cluster.addresses[0], dataset=name).mode(
        "append"
    ).save()
    assert client.count(name, query) == 2 * len(rows[0])


@pytest.mark.slow
def test_load_filters_of_one_query_do_not_narrow_another(
    load: Any, air: str, client: galileo.Client
) -> None:
    frame = load(air)
    warm, cold = frame.where("temperature > 300"), frame.where("temperature < 260")
    warm.explain()
    count = client.count(air, "temperature > 300")
    assert warm.count() == count
    assert frame.count() == ROWS
    assert warm.union(cold).count() == count + client.count(air, "temperature < 260")


@pytest.mark.slow
def test_pushdown_all_pushes_all_filters(
    load: Any, air: str, client: galileo.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    condition = "temperature > 300 AND latitude > 10 AND number > 5 AND station IN ('K1', 'K2')"
    frame = load(air, pushdown="all").where(condition)
    shown = plan(frame, capsys)
    assert "GreaterThan(temperature,300.0), In(station, [K1,K2])" in shown
    assert "(latitude#" in shown.partition("Condition")[2]
    plain = load(air, pushdown="none").where(condition)
    assert "PushedFilters" not in plan(plain, capsys)
    assert numbers(frame) == numbers(plain) != []


def test_load_as_labels_reads_labels(load: Any, air: str, client: galileo.Client) -> None:
    query = f"temperature > 300 AND {BOX}"
    found = load(air, what="labels", query=query).toPandas()
    expected = client.query(air, query)
    assert len(found) == len(expected) > 0
    assert sorted(found["temperature"]) == sorted(expected.table.column("temperature").to_pylist())
    assert set(found["geohash"].str.len()) == {5}
    assert list(load(air, what="labels", columns="rows,geohash").columns) == ["rows", "geohash"]


@pytest.mark.slow
def test_load_as_labels_reads_moved_partitions(
    air: str, client: galileo.Client, cluster: galileo.LocalCluster
) -> None:
    options = SourceOptions.from_spark({"address": cluster.addresses[0], "dataset": air})
    known = discover(cluster.addresses, options)
    whole = spark_columns(known.schema, LABELS, ())
    asked = ReadSpec(
        known.schema.to_json(),
        LABELS,
        conjunction("", (), known.schema),
        requested_columns(known.schema, LABELS, whole),
        FAIL,
    )
    found = splits(
        known.topology, after=EMPTY_CURSOR, until=known.stored.published, weights={}, weight_max=1e9
    )
    assert len(found) > 1, "several nodes keep some"
    elsewhere = [replace(split, addresses=split.addresses[::-1]) for split in found]
    rows = sum(batch.num_rows for split in elsewhere for batch in batches(asked, split))
    assert rows == len(client.query(air))


@pytest.mark.slow
def test_load_excludes_later_commits(load: Any, empty: str, client: galileo.Client) -> None:
    client.ingest(empty, made(100))
    frame = load(empty)
    client.ingest(empty, made(100, first=100))
    assert numbers(frame) == list(range(100))
    assert numbers(load(empty)) == list(range(200))


@pytest.mark.slow
def test_load_and_write_of_a_dataset_that_gets_features(
    load: Any, empty: str, client: galileo.Client, spark: SparkSession, cluster: Any
) -> None:
    client.ingest(empty, made(200))
    before = load(empty)
    client.add_features(empty, [galileo.Feature("gust", "m/s")])
    gusts = pa.array([float(number) for number in range(200)])
    client.ingest(empty, made(200, first=200).append_column("gust", gusts))
    after = load(empty)
    assert after.columns == [*before.columns, "gust"]
    assert "gust" not in before.columns
    assert numbers(before) == list(range(200))
    assert numbers(after) == list(range(400))
    assert numbers(after.where("gust >= 150")) == list(range(350, 400))
    assert numbers(after.where("gust IS NULL")) == list(range(200))
    labels = load(empty, what=LABELS, query="gust >= 150")
    assert labels.count() == len(client.query(empty, "gust >= 150"))
    frame = spark.createDataFrame(made(50, first=400).to_pandas())
    writer = frame.write.format("galileo").option("address", cluster.addresses[0])
    writer.options(dataset=empty, job="old").mode("append").save()
    writer.options(dataset=empty, job="old").mode("append").save()
    assert client.count(empty) == 450
    assert client.count(empty, "gust IS NULL") == 250


@pytest.mark.parametrize(
    ("options", "message"),
    keep_quick(
        [
            ({"colums": "number"}, "got 'colums'; did you mean 'columns'"),
            ({"columns": "numbr"}, "got 'numbr'; did you mean 'number'"),
            ({"query": "temprature > 1"}, "no property 'temprature'"),
            ({"what": "blocks"}, "expected the option 'what' to be one of"),
            ({"rows_per_task": "many"}, "expected the option 'rows_per_task' to be a number"),
        ],
        ({"columns": "numbr"}, "got 'numbr'; did you mean 'number'"),
    ),
)
def test_load_with_invalid_options_is_refused(
    load: Any, air: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        load(air, **options).count()


def test_load_of_an_unknown_dataset_is_refused(load: Any) -> None:
    with pytest.raises(AnalysisException, match="does not exist"):
        load("nowhere")


# --- tables --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ships(client: galileo.Client, fresh_name: Make) -> str:
    """A table of rows that were replaced and deleted."""
    name = fresh_name("ships")
    columns = {"number": "int", "name": "text", "seen": "time", "draught": "float"}
    columns["place"] = "geometry"
    client.create_table(galileo.Table(name, columns, key="number"))
    numbers = np.arange(ROWS)
    rows = {"number": numbers, "name": [f"vessel {n}" for n in numbers], "draught": numbers / 2}
    client.upsert(name, rows | {"seen": times_from_micros(START_US + numbers)}, batch_rows=3_000)
    client.upsert(name, {"number": [7], "name": ["Aurora"], "place": ["POINT (-105.25 40.1)"]})
    client.delete(name, list(range(0, ROWS, 10)))
    return name


@pytest.mark.slow
def test_a_table_is_read_as_it_was_when_it_was_loaded(
    spark: SparkSession, cluster: galileo.LocalCluster, client: galileo.Client, ships: str
) -> None:
    reader = spark.read.format("galileo").options(address=cluster.addresses[0], table=ships)
    frame, expected = reader.load(), client.table(ships).rows
    client.upsert(ships, {"number": [1, ROWS], "name": ["Later", "New"]})
    assert [f.simpleString() for f in frame.schema] == [
        *("number:bigint", "name:string", "seen:timestamp", "draught:double", "place:binary"),
    ]
    assert same(frame.toArrow(), expected)
    [aurora] = frame.where("place is not null").collect()
    assert bytes(aurora.place) == struct.pack("<BI2d", 1, 1, -105.25, 40.1)
    few = reader.options(columns="name,number", rows_per_task=2_000).load()
    assert tasks(few) > 1
    found = few.where("number in (1, 7)").sort("number").collect()
    assert [row.name for row in found] == ["Later", "Aurora"]
    assert few.count() == ROWS * 9 // 10 + 1
    joined = spark.createDataFrame([(7, 3.5)], "number long, speed double").join(few, "number")
    assert joined.collect()[0].name == "Aurora"


@pytest.mark.slow
def test_a_table_without_rows_has_columns_and_wrong_options_are_refused(
    spark: SparkSession, cluster: galileo.LocalCluster, client: galileo.Client, fresh_name: Make
) -> None:
    name = fresh_name("empty")
    client.create_table(galileo.Table(name, {"id": "text"}, key="id"))
    reader = spark.read.format("galileo").options(address=cluster.addresses[0])
    assert reader.options(table=name).load().count() == 0
    for options, words in (
        ({"table": name, "dataset": name}, "no option 'dataset' with the option 'table'"),
        ({"table": name, "query": "id = 'a'"}, "no option 'query' with the option 'table'"),
        ({"table": name, "columns": "ids"}, "did you mean 'id'"),
        ({"table": f"{name}s"}, "does not exist"),
    ):
        fresh = spark.read.format("galileo").options(address=cluster.addresses[0], **options)
        with pytest.raises(PySparkException, match=words):
            fresh.load().count()
    stream = spark.readStream.format("galileo").options(address=cluster.addresses[0], table=name)
    with pytest.raises(PySparkException, match="expected the option what=changes"):
        stream.load().writeStream.format("memory").queryName("t").start().processAllAvailable()
    with pytest.raises(PySparkException, match="a stream; use readStream"):
        reader.options(what="changes").load().count()


def upsert(frame: DataFrame, cluster: galileo.LocalCluster, table: str, **options: Any) -> None:
    writer = frame.write.format("galileo").mode("append").options(**options)
    writer.options(address=cluster.addresses[0], table=table).save()


@pytest.fixture
def fleet(client: galileo.Client, fresh_name: Make) -> str:
    """A table of three rows."""
    name = fresh_name("fleet")
    columns = {"number": "int", "name": "text", "draught": "float", "place": "geometry"}
    client.create_table(galileo.Table(name, columns, key="number"))
    client.upsert(name, {"number": [1, 2, 3], "name": ["a", "b", "c"], "draught": [1.0, 2.0, 3.0]})
    return name


def fleet_rows(client: galileo.Client, fleet: str) -> dict[int, tuple[Any, ...]]:
    rows = client.table(fleet).rows.select(["number", "name", "draught"]).to_pylist()
    return {row["number"]: (row["name"], row["draught"]) for row in rows}


@pytest.mark.slow
def test_write_of_a_table_replaces_and_deletes_rows(
    spark: SparkSession, cluster: galileo.LocalCluster, client: galileo.Client, fleet: str
) -> None:
    schema = "number long, name string, draught double, deleted boolean"
    rows = [(2, "B", 5.0, False), (3, "c", 3.0, True), (4, "d", None, None)]
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    upsert(frame, cluster, fleet, job="first", batch_rows=2)
    expected = {1: ("a", 1.0), 2: ("B", 5.0), 4: ("d", None)}
    assert fleet_rows(client, fleet) == expected
    client.upsert(fleet, {"number": [4], "name": ["later"]})
    upsert(frame, cluster, fleet, job="first", batch_rows=2)
    expected[4] = ("later", None)
    assert fleet_rows(client, fleet) == expected, "the same job stores nothing twice"

    for changed, words in (
        (frame.withColumnRenamed("name", "nmae"), "unknown: nmae"),
        (frame.drop("number"), "missing: number"),
        (frame.union(frame).coalesce(1), r"each key \(number\) in one row"),
    ):
        with pytest.raises(PySparkException, match=words):
            upsert(changed, cluster, fleet)
    options = {"address": cluster.addresses[0], "table": fleet}
    with pytest.raises(PySparkException, match="expected mode 'append'"):
        frame.write.format("galileo").mode("overwrite").options(**options).save()
    assert fleet_rows(client, fleet) == expected


def follow_table(
    spark: SparkSession, address: str, source: str, target: str, **options: Any
) -> list[int]:
    """Applies by a stream what has changed in a table to another; rows of each micro-batch."""
    return follow(spark, address, {"table": source}, {"table": target}, **options)


def follow(
    spark: SparkSession,
    address: str,
    source: dict[str, str],
    target: dict[str, str],
    *,
    checkpoint: Path,
    prepare: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    **options: Any,
) -> list[int]:
    """As `follow_table`, of a table or keyed dataset; `prepare` makes the rows that are written."""
    given = {"address": address, "what": "changes", **source}
    query = (
        prepare(spark.readStream.format("galileo").options(**given | options).load())
        .writeStream.format("galileo")
        .options(address=address, checkpointLocation=str(checkpoint), **target)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [one.numInputRows for one in query.recentProgress if one.numInputRows]


def repeat_last_batch(checkpoint: Path) -> None:
    """As a crash between the sink and the log of what it has: the last micro-batch comes again."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.slow
def test_stream_of_changes_with_a_reader_is_waited_for(
    spark: SparkSession,
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    fleet: str,
    fresh_name: Make,
    tmp_path: Path,
) -> None:
    target = fresh_name("copied")
    [table] = [one for one in client.tables() if one.name == fleet]
    client.create_table(galileo.Table(target, dict(table.columns), key=[*table.key_columns]))
    client.upsert(fleet, {"number": [1, 2], "name": ["a", "b"]})
    reader = {"reader": "copier", "hold": "2s", "checkpoint": tmp_path / "checkpoint"}
    follow_table(spark, cluster.addresses[0], fleet, target, **reader)
    [known] = client.readers(fleet)
    assert (known.name, known.hold_s) == ("copier", 2.0)
    assert known.cursor == client.table(fleet).cursor, "a trigger looks once more when it has all"
    assert fleet_rows(client, target) == fleet_rows(client, fleet)
    client.delete(fleet, [1])
    [behind] = client.readers(fleet)
    assert (behind.behind, behind.stored_at) == (1, known.stored_at)
    follow_table(spark, cluster.addresses[0], fleet, target, **reader)
    assert fleet_rows(client, target) == fleet_rows(client, fleet)
    client.drop_reader(fleet, "copier")
    assert client.readers(fleet) == []


@pytest.mark.slow
def test_stream_of_changes_keeps_a_copy_of_a_table(
    spark: SparkSession,
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    fleet: str,
    fresh_name: Make,
    tmp_path: Path,
) -> None:
    copy, address = fresh_name("copy"), cluster.addresses[0]
    table = next(one for one in client.tables() if one.name == fleet)
    client.create_table(galileo.Table(copy, dict(table.columns), key="number"))
    frame = spark.readStream.format("galileo").options(address=address, table=fleet)
    fields = {field.name: field for field in frame.option("what", "changes").load().schema}
    assert fields["deleted"].dataType.simpleString() == "boolean"

    client.delete(fleet, [3])
    client.upsert(fleet, {"number": [2], "name": ["B"]})
    place = tmp_path / "checkpoint"
    assert follow_table(spark, address, fleet, copy, checkpoint=place) == [2]
    assert same(client.table(copy).rows, client.table(fleet).rows)

    before = client.table(copy).cursor
    client.upsert(fleet, {"number": [4], "name": ["d"], "place": ["POINT (1 2)"]})
    client.upsert(fleet, {"number": [4], "name": ["D"], "place": ["POINT (3 4)"]})
    client.delete(fleet, [1])
    assert follow_table(spark, address, fleet, copy, checkpoint=place) == [2], "each key once"
    assert same(client.table(copy).rows, client.table(fleet).rows)
    changed = client.changes(copy, before).rows.select(["number", "deleted"]).to_pylist()
    assert {row["number"]: row["deleted"] for row in changed} == {1: True, 4: False}

    after = client.table(copy).cursor
    repeat_last_batch(place)
    client.upsert(fleet, {"number": [6], "name": ["f"]})
    assert follow_table(spark, address, fleet, copy, checkpoint=place)[0] == 2
    changed = client.changes(copy, after).rows["number"].to_pylist()
    assert changed == [6], "the micro-batch that came again changed nothing"


@pytest.mark.slow
def test_stream_of_changes_starts_at_option_starting(
    spark: SparkSession,
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    ships: str,
    fresh_name: Make,
    tmp_path: Path,
) -> None:
    name, address = fresh_name("names"), cluster.addresses[0]
    client.create_table(galileo.Table(name, {"number": "int", "name": "text"}, key="number"))
    columns, cursor = "number,name,deleted", client.table(ships).cursor
    client.upsert(ships, {"number": [3, 4], "name": ["x", "y"]})
    client.delete(ships, [5])
    for place, starting, rows in (
        ("latest", "latest", []),
        ("cursor", json.dumps({str(p): s for p, s in cursor.items()}), [3]),
        ("earliest", "earliest", [client.table(ships).rows.num_rows]),
    ):
        options = {"checkpoint": tmp_path / place, "starting": starting, "columns": columns}
        found = follow_table(spark, address, ships, name, commits_per_task=1, **options)
        assert (starting, found) == (starting, rows)
    assert same(client.table(name).rows, client.table(ships).rows.select(["number", "name"]))


# --- keyed datasets ------------------------------------------------------------------------------


def keyed_schema(name: str) -> galileo.Schema:
    return galileo.Schema(name, schema("any").features, key="station", geohash_precision=1)


def reports(stations: Iterable[int], *, first: int = 0) -> pa.Table:
    """Observations of one hour, one of each station, which stays in its cell of four."""
    listed = np.array(list(stations))
    numbers = np.arange(first, first + len(listed))
    return pa.table(
        {
            "latitude": 50.0 + numbers % 10,
            "longitude": 1.0 + numbers % 10 + 45 * (listed % 4),
            "time": times_from_micros(START_US + numbers % 3_600 * 1_000_000),
            "temperature": pa.array(250.0 + numbers % 60, mask=numbers % 7 == 0),
            "station": pa.array([f"K{station}" for station in listed]),
            "number": pa.array(numbers),
        }
    )


def by_station(rows: pa.Table) -> dict[str, dict[str, Any]]:
    """Rows by their keys, of which none is there twice."""
    found = {row["station"]: row for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


@pytest.fixture
def buoys(client: galileo.Client, fresh_name: Make) -> str:
    """A keyed dataset with observations that were replaced and deleted."""
    name = fresh_name("buoys")
    client.create_dataset(keyed_schema(name))
    client.ingest(name, reports(range(200)))
    client.ingest(name, reports(range(0, 200, 3), first=1_000))
    client.delete(name, reports(range(0, 200, 5)))
    return name


@pytest.mark.slow
def test_stream_of_changes_keeps_copies_of_a_keyed_dataset(
    spark: SparkSession,
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    buoys: str,
    fresh_name: Make,
    tmp_path: Path,
) -> None:
    address, names = cluster.addresses[0], [fresh_name("copy"), fresh_name("warm")]
    for name in names:
        client.create_dataset(keyed_schema(name))
    copy, warm = ({"dataset": name} for name in names)
    source, place = {"dataset": buoys}, tmp_path / "copy"

    def filtered(changes: DataFrame) -> DataFrame:
        gone = "deleted OR NOT coalesce(temperature > 280, false)"
        return changes.withColumn("deleted", expr(gone))

    def apply() -> list[int]:
        batches = follow(spark, address, source, copy, checkpoint=place)
        follow(spark, address, source, warm, checkpoint=tmp_path / "warm", prepare=filtered)
        assert by_station(client.select(names[0])) == by_station(client.select(buoys))
        expected = by_station(client.select(buoys, "temperature > 280"))
        assert 0 < len(expected) < client.count(buoys)
        assert by_station(client.select(names[1])) == expected
        return batches

    assert apply() == [160], "deleted ones are no news to a new copy"
    after = client.version(buoys).cursor
    client.ingest(buoys, reports(range(80), first=2_011))
    client.ingest(buoys, reports(range(40), first=3_002))
    client.delete(buoys, "station = 'K7' OR station = 'K70'")
    before = client.version(names[0]).cursor
    assert apply() == [80], "each key once"
    changed = client.changes(names[0], before).rows
    assert by_station(changed) == by_station(client.changes(buoys, after).rows)
    assert changed.filter(changed["deleted"])["number"].null_count == 2

    before = client.version(names[0]).cursor
    repeat_last_batch(place)
    client.ingest(buoys, reports([500], first=9_000))
    assert apply() == [80, 1]
    changed = client.changes(names[0], before).rows["station"].to_pylist()
    assert changed == ["K500"], "the micro-batch that came again changed nothing"

    starting = json.dumps({str(p): s for p, s in after.items()})
    later, options = tmp_path / "later", {"starting": starting, "commits_per_task": 1}
    assert follow(spark, address, source, copy, checkpoint=later, **options) == [81]
    assert by_station(client.select(names[0])) == by_station(client.select(buoys))


@pytest.mark.slow
def test_stream_of_changes_with_wrong_options_is_refused(
    spark: SparkSession, load: Any, cluster: galileo.LocalCluster, air: str, buoys: str
) -> None:
    for dataset, options, words in (
        (buoys, {}, "expected the option what=changes: a stream of"),
        (buoys, {"what": "labels"}, "expected the option what=changes: a stream of"),
        (air, {"what": "changes"}, "expected a table or a keyed dataset, got the dataset"),
    ):
        reader = spark.readStream.format("galileo").options(
            address=cluster.addresses[0], dataset=dataset, **options
        )
        with pytest.raises(PySparkException, match=words):
            reader.load().writeStream.format("memory").queryName("t").start().processAllAvailable()
    with pytest.raises(PySparkException, match="a stream; use readStream"):
        load(buoys, what="changes").count()
    rows = spark.createDataFrame(reports([1]).to_pandas())
    with pytest.raises(PySparkException, match="true or false in every row of column 'deleted'"):
        save(rows.withColumn("deleted", expr("cast(null as boolean)")), cluster, buoys)
    with pytest.raises(PySparkException, match="unknown: deleted"):
        save(rows.withColumn("deleted", expr("false")), cluster, air)


CLEANING = """
import dataclasses, runpy, sys
from galileo.node.storage_node import StorageNode

def retain(node, readers, options, *, own=StorageNode.retain):
    own(node, readers, dataclasses.replace(options, table_age_s=0.3))

StorageNode.retain = retain
del sys.argv[:3]
runpy.run_module("galileo.server", run_name="__main__", alter_sys=True)
"""
"""The program of a node that cleans what is 0.3 seconds old: `CLEANING python -m galileo.server`"""


@pytest.mark.slow
def test_stream_of_changes_folds_to_a_keyed_dataset_that_is_cleaned(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = {"storage": {"segment_bytes_max": 4_096, "retention_check_s": 0.1}}
    running = galileo.LocalCluster(1, 1, tmp_path / "cluster", settings=settings)
    program = tmp_path / "cleaning.py"
    program.write_text(CLEANING)
    running.nodes[0].prefix = (sys.executable, str(program))
    random, folded, gone = np.random.default_rng(3), dict[str, Any](), list[int]()
    with running:
        address, client = running.addresses[0], running.client()
        client.create_dataset(keyed_schema("buoys"))
        source = spark.readStream.format("galileo").options(
            address=address, dataset="buoys", what="changes"
        )

        def fold(frame: DataFrame, _: int) -> None:
            rows = by_station(frame.toArrow())
            gone.append(sum(row["deleted"] for row in rows.values()))
            for station, row in rows.items():
                folded.pop(station, None)
                if row.pop("deleted"):
                    assert row["temperature"] is row["number"] is None
                else:
                    folded[station] = row

        def run(checkpoint: str, **options: str) -> None:
            query = source.options(**options).load().writeStream.foreachBatch(fold)
            query = query.option("checkpointLocation", str(tmp_path / checkpoint))
            query.trigger(availableNow=True).start().awaitTermination()

        def dropped_past(before: int) -> int:
            [node] = client.status().nodes
            [status] = [one for one in node.datasets if one["dataset"] == "buoys"]
            dropped = sum(status["dropped"].values())
            return dropped if dropped > before else 0

        cleaned = 0
        for turn in range(4):
            for step in range(8):
                stations = random.choice(150, 60, replace=False)
                client.ingest("buoys", reports(stations, first=1_000 * turn + 100 * step))
            client.delete("buoys", reports(random.choice(150, 20, replace=False)))
            if turn == 1:
                unread = client.version("buoys").cursor
            run("held", reader="folder", hold="1d")
            assert folded == by_station(client.select("buoys"))
            cleaned = wait_until(partial(dropped_past, cleaned), "cleaning")
        assert gone == [0, 20, 20, 20]

        starting = json.dumps({str(p): s for p, s in unread.items()})
        with pytest.raises(StreamingQueryException, match="begins anew with a new checkpoint"):
            run("unheld", starting=starting)
        folded.clear()
        run("anew", starting="earliest")
        assert folded == by_station(client.select("buoys"))


# --- bytes ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_load_with_columns_and_conditions_reads_fewer_bytes(spark: SparkSession) -> None:
    with behind_a_line() as (running, line):
        client = running.client()
        client.create_dataset(schema("air"))
        client.ingest("air", made(ROWS))

        def moved(**options: Any) -> tuple[int, int]:
            frame = galileo.spark.read(spark, running.addresses[0], "air", **options)
            before = line.bytes
            return len(frame.toArrow()), line.bytes - before

        rows, whole = moved()
        assert rows == ROWS
        assert whole > 8 * 5 * ROWS
        assert moved(columns=["number"])[1] < whole / 4
        rows, filtered = moved(query="temperature > 300")
        assert rows == client.count("air", "temperature > 300")
        assert filtered < whole * 2 * rows / ROWS
        frame = spark.read.format("galileo").options(address=running.addresses[0], dataset="air")
        warm = frame.option("pushdown", "all").load().where("temperature > 300")
        before = line.bytes
        assert len(warm.toArrow()) == rows
        assert line.bytes - before < whole * 2 * rows / ROWS


# --- writing -------------------------------------------------------------------------------------


def save(frame: DataFrame, cluster: galileo.LocalCluster, dataset: str, **options: Any) -> None:
    writer = frame.write.format("galileo").mode("append").options(**options)
    writer.options(address=cluster.addresses[0], dataset=dataset).save()


@pytest.mark.slow
def test_write_stores_rows_once(
    load: Any, air: str, empty: str, client: galileo.Client, cluster: galileo.LocalCluster
) -> None:
    frame = load(air, rows_per_task=2_000)
    save(frame, cluster, empty, job="first", batch_rows=700)
    assert same(client.select(empty), client.select(air))
    # The same rows of each task in another order, as a shuffle may give them.
    turned = frame.sortWithinPartitions("number", ascending=False)
    save(turned, cluster, empty, job="first", batch_rows=700)
    assert client.count(empty) == ROWS
    save(frame.where("number < 10"), cluster, empty)
    assert client.count(empty) == ROWS + 10


@pytest.mark.slow
def test_write_with_a_failed_task_stores_rows_once(
    load: Any,
    air: str,
    empty: str,
    client: galileo.Client,
    cluster: galileo.LocalCluster,
    tmp_path: Path,
) -> None:
    mark = tmp_path / "failed"

    def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not mark.exists():
            mark.touch()
            raise RuntimeError("the task fails behind its last row")

    frame = load(air).coalesce(1)
    broken = frame.mapInArrow(failing_once, frame.schema)
    save(broken, cluster, empty, order="as_given", batch_rows=1_000)
    assert mark.exists()
    assert numbers(load(empty)) == list(range(ROWS))


@pytest.mark.slow
def test_write_of_another_schema_is_refused_before_sending(
    load: Any, air: str, empty: str, client: galileo.Client, cluster: galileo.LocalCluster
) -> None:
    with pytest.raises(PySparkException, match="missing: number; unknown: n"):
        save(load(air).withColumnRenamed("number", "n"), cluster, empty)
    assert client.count(empty) == 0


@pytest.mark.slow
def test_write_with_overwrite_is_refused(
    load: Any, air: str, empty: str, client: galileo.Client, cluster: galileo.LocalCluster
) -> None:
    with pytest.raises(PySparkException, match="expected mode 'append'"):
        load(air).write.format("galileo").mode("overwrite").options(
            address=cluster.addresses[0], dataset=empty
        ).save()
    assert client.count(empty) == 0


# --- streams -------------------------------------------------------------------------------------


def copy(spark: SparkSession, address: str, source: str, target: str, **options: Any) -> list[int]:
    """Copies by a stream what there is by now; the rows of each micro-batch."""
    stream = spark.readStream.format("galileo").options(address=address, dataset=source)
    checkpoint = options.pop("checkpoint")
    query = (
        stream.options(**options)
        .load()
        .writeStream.format("galileo")
        .options(address=address, dataset=target, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [one.numInputRows for one in query.recentProgress]


@pytest.mark.slow
def test_stream_continues_from_its_checkpoint(
    spark: SparkSession,
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    empty: str,
    fresh_name: Make,
    tmp_path: Path,
) -> None:
    source, address = fresh_name("source"), cluster.addresses[0]
    client.create_dataset(schema(source))
    client.ingest(source, made(1_000), batch_rows=100)
    place = tmp_path / "checkpoint"
    batches = copy(spark, address, source, empty, checkpoint=place, commits_per_batch=40)
    assert sum(batches) == 1_000
    assert len([rows for rows in batches if rows]) > 1
    assert same(client.select(empty), client.select(source))
    client.ingest(source, made(500, first=1_000))
    assert sum(copy(spark, address, source, empty, checkpoint=place)) == 500
    assert numbers_of(client, empty) == list(range(1_500))
    repeat_last_batch(place)
    assert sum(copy(spark, address, source, empty, checkpoint=place)) == 500
    assert numbers_of(client, empty) == list(range(1_500))
    last = max((place / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    offset = json.loads(last.read_text().splitlines()[-1])
    assert all(partition.isdigit() for partition in offset)


def numbers_of(client: galileo.Client, dataset: str) -> list[int]:
    return sorted(client.select(dataset, columns=["number"]).column("number").to_pylist())


@pytest.mark.slow
def test_stream_starts_at_option_starting(
    spark: SparkSession,
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    empty: str,
    air: str,
    tmp_path: Path,
) -> None:
    address = cluster.addresses[0]
    assert sum(copy(spark, address, air, empty, checkpoint=tmp_path / "a", starting="latest")) == 0
    cursor = json.dumps({str(p): s - 1 for p, s in published(client, air).items()})
    rows = sum(copy(spark, address, air, empty, checkpoint=tmp_path / "b", starting=cursor))
    assert 0 < rows < ROWS
    assert client.count(empty) == rows
    rows = sum(
        copy(
            spark,
            address,
            air,
            empty,
            checkpoint=tmp_path / "c",
            query="temperature > 308",
        )
    )
    assert rows == client.count(air, "temperature > 308")


@pytest.mark.slow
def test_stream_gap_fails_or_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"storage": {"segment_bytes_max": 4_096, "compaction": False}}
    with galileo.LocalCluster(1, 1, settings=settings) as running:
        address, client = running.addresses[0], running.client()
        for name in ("source", "copy"):
            client.create_dataset(schema(name))
        client.ingest("source", made(ROWS), batch_rows=ROWS // COMMITS)
        client.set_retention("source", galileo.Retention("30d", past_readers=True))
        assert sum(report.commits for report in client.apply_retention("source")) > 0
        client.set_retention("source", None)
        client.ingest("source", made(300, first=ROWS))
        left = numbers_of(client, "source")
        assert 300 <= len(left) < ROWS
        beginning = json.dumps(dict.fromkeys(map(str, published(client, "source")), 0))
        wanted = {"starting": beginning, "checkpoint": tmp_path / "checkpoint"}
        with pytest.raises(StreamingQueryException, match="on_gap=skip"):
            copy(spark, address, "source", "copy", **wanted)
        assert sum(copy(spark, address, "source", "copy", on_gap="skip", **wanted)) == len(left)
        assert numbers_of(client, "copy") == left


@pytest.mark.slow
def test_stream_with_a_reader_misses_nothing_while_retention_applies(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = {
        "storage": {
            "segment_bytes_max": 4_096,
            "compaction": False,
            "retention_check_s": 600.0,
            "retention_min_age_s": 0.1,
        }
    }
    reader = {"reader": "nightly", "hold": "1d", "checkpoint": tmp_path / "checkpoint"}
    with galileo.LocalCluster(1, 1, settings=settings) as running:
        address, client = running.addresses[0], running.client()
        for name in ("source", "copy"):
            client.create_dataset(schema(name))
        client.set_retention("source", galileo.Retention("30m"))

        def ingest(first: int) -> None:
            rows = made(400, first=first)
            hours_ago = dt.datetime.now(dt.UTC) - dt.timedelta(hours=3)
            times = pa.array([hours_ago] * rows.num_rows, rows.schema.field("time").type)
            at = rows.column_names.index("time")
            client.ingest("source", rows.set_column(at, "time", times), batch_rows=20)

        def apply() -> list[str]:
            """Applies retention to all commits; the readers that hold some back."""
            client.apply_retention("source")
            time.sleep(0.3)
            [report] = client.apply_retention("source")
            return sorted({name for held in report.held_back for name in held["readers"]})

        ingest(0)
        assert sum(copy(spark, address, "source", "copy", commits_per_batch=30, **reader)) == 400
        [known] = client.readers("source")
        assert (known.name, known.behind, known.hold_s) == ("nightly", 0, 86_400.0)
        assert apply() == []
        left = set(numbers_of(client, "source"))
        assert len(left) < 400

        ingest(400)
        assert apply() == ["nightly"]
        assert set(numbers_of(client, "source")) >= set(range(400, 800))
        [known] = client.readers("source")
        assert known.behind > 0
        assert sum(copy(spark, address, "source", "copy", **reader)) == 400
        assert numbers_of(client, "copy") == list(range(800))
        assert apply() == []
        assert len(numbers_of(client, "source")) < 400

        # A reader that was dropped is not waited for, until its stream runs again.
        ingest(800)
        client.drop_reader("source", "nightly")
        assert client.readers("source") == []
        assert apply() == []
        assert len(numbers_of(client, "source")) < 400
        with pytest.raises(StreamingQueryException, match="on_gap=skip"):
            copy(spark, address, "source", "copy", **reader)
        assert [known.name for known in client.readers("source")] == ["nightly"]


@pytest.mark.parametrize(
    ("options", "message"),
    keep_quick(
        [
            ({"reader": "nightly", "hold": "7d"}, "with readStream alone"),
            ({"hold": "7d"}, "got 'hold' without 'reader'"),
            ({"reader": "nightly"}, "got 'reader' without 'hold'"),
            ({"reader": "a/b", "hold": "7d"}, "a name of at most 200 characters"),
            ({"reader": "nightly", "hold": "91d"}, "a hold of at most 90 days"),
        ],
        ({"reader": "nightly", "hold": "7d"}, "with readStream alone"),
    ),
)
def test_load_with_options_of_readers_is_refused(
    load: Any, air: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        load(air, **options).count()


def published(client: galileo.Client, dataset: str) -> dict[int, int]:
    """The last commit of each partition."""
    every: dict[int, int] = {}
    for node in client.status().nodes:
        for one in node.datasets:
            if one["dataset"] == dataset:
                every |= one["sequences"]
    return every


# --- what is documented --------------------------------------------------------------------------


@pytest.mark.slow
def test_spark_data_source_page_runs(
    spark: SparkSession, cluster: galileo.LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "spark-data-source.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "documented"}
    try:
        for code in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
            exec(
                compile(code.replace("127.0.0.1:7701", cluster.addresses[0]), "page", "exec"), names
            )
        assert names["spark"] is spark
        assert names["warm"].count() == 1
        assert "GreaterThan(temperature,290.0)" in capsys.readouterr().out
        assert names["client"].count("heat-warm") == 2
        assert names["client"].count("heat-copy") == 3
        assert names["client"].count("reports-warm") == 2
    finally:
        names["client"].close()


@pytest.mark.slow
def test_spark_notebook_runs(
    spark: SparkSession, cluster: galileo.LocalCluster, client: galileo.Client
) -> None:
    place = ROOT / "docs" / "notebooks" / "spark" / "data_source.ipynb"
    cells = [
        cell
        for cell in json.loads(place.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    names: dict[str, Any] = {
        **{"__name__": "__main__", "galileo": galileo, "spark": spark, "client": client},
        "address": cluster.addresses[0],
    }
    for cell in cells:
        if "cluster" not in cell["metadata"].get("tags", ()):
            exec(compile("".join(cell["source"]), place.name, "exec"), names)
    assert client.count("spark-copy") == client.count("spark-stations") == 2 * 200 * 144
    assert cells[-2]["outputs"][0]["data"]["text/plain"] == "(28800, 0, True)"
