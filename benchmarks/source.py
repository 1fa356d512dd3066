"""Reading a whole dataset through Spark, compared with two ways to the same number of rows.

Parquet files of the same rows are what people would use otherwise. A Python data source that makes
its batches in memory shows what Spark's interface to Python data sources costs by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import galileo
import galileo.spark
from benchmarks import clusters
from benchmarks.clusters import DATASET, fill
from benchmarks.figures import Figure, Goal, Peer, in_turn
from benchmarks.sizes import Bench
from galileo.model.times import micros, times_from_micros

RANDOM = "random"
NODES = 2
SHARE_OF_PARQUET = 0.5
FILES = 8
WARM_UPS = 4
"""Rounds that do not count: Spark's JVM compiles what runs often only after a while."""
ROWS_PER_BATCH = 65_536
IN_MEMORY = "memory"
DAY_US = 86_400_000_000


def measure(bench: Bench) -> Iterator[Figure]:
    with clusters.cluster(bench.directory, nodes=NODES) as running:
        client = running.client(timeout=clusters.PATIENCE)
        clusters.create_dataset(running, client, DATASET)
        fill(client, bench, labels=bench.sizes.source_rows)
        clusters.create_dataset(running, client, RANDOM)
        client.ingest(RANDOM, _random_tables(bench.sizes.source_rows))
        session = galileo.spark.start_session("local[2]")
        session.dataSource.register(MemorySource)
        try:
            for dataset, values in ((DATASET, "a forecast"), (RANDOM, "random values")):
                yield from _beside_parquet(
                    session, running.addresses[0], bench, dataset=dataset, values=values
                )
        finally:
            session.stop()


def _random_tables(rows: int) -> Iterator[pa.Table]:
    """Observations of which no value comes twice, which no encoding makes smaller."""
    generator = np.random.default_rng(7)
    features = [feature.name for feature in clusters.schema(RANDOM).features]
    first_us = micros(clusters.START)
    for start in range(0, rows, ROWS_PER_BATCH):
        size = min(ROWS_PER_BATCH, rows - start)
        columns = {
            "latitude": generator.uniform(-80, 80, size),
            "longitude": generator.uniform(-180, 180, size),
            "time": times_from_micros(first_us + generator.integers(0, DAY_US, size)),
        }
        yield pa.table(columns | {name: generator.uniform(0, 100, size) for name in features})


def _beside_parquet(
    session: SparkSession, address: str, bench: Bench, *, dataset: str, values: str
) -> Iterator[Figure]:
    files = str(Path(bench.directory) / f"parquet-{dataset}")
    rows = bench.sizes.source_rows

    def ours() -> DataFrame:
        return galileo.spark.read(session, address, dataset)

    def parquet() -> DataFrame:
        return session.read.parquet(files)

    def memory() -> DataFrame:
        return session.read.format(IN_MEMORY).schema(ours().schema).option("rows", rows).load()

    bench.say("writing the same rows to Parquet files")
    ours().coalesce(FILES).write.mode("overwrite").parquet(files)
    found, expected = _sums(ours()), _sums(parquet())
    if not np.allclose(found, expected, rtol=1e-9):
        raise AssertionError(f"expected the same rows from both, got sums {found}, not {expected}")
    goal = Goal("at least", SHARE_OF_PARQUET, of_peer=True)
    for name, action in (("every row read", _all_rows), ("every column aggregated", _sums)):
        subjects = [_on(action, load) for load in (ours, parquet, memory)]
        in_turn(*subjects, runs=WARM_UPS, warm_up=False)
        mine, theirs, made = in_turn(*subjects, runs=bench.sizes.runs, warm_up=False)
        peers = (
            Peer("Parquet files", theirs.per_second(rows)),
            Peer("a Python data source that reads nothing", made.per_second(rows)),
        )
        label = f"{rows:,} observations of {values}, {name}"
        yield Figure(label, "rows/s", mine.per_second(rows), peers, (goal,))


class MemorySource(DataSource):  # type: ignore[misc]
    """Rows of which each task makes one batch and repeats it."""

    @classmethod
    def name(cls) -> str:
        return IN_MEMORY

    def reader(self, schema: StructType) -> DataSourceReader:
        return _MemoryReader(to_arrow_schema(schema, timezone="UTC"), int(self.options["rows"]))


class _MemoryReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, schema: pa.Schema, rows: int) -> None:
        self._schema = schema
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(FILES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        values = pa.array(np.random.default_rng(partition.value).uniform(0, 100, ROWS_PER_BATCH))
        columns = [
            pa.array(np.arange(ROWS_PER_BATCH), pa.int64()).cast(field.type)
            if pa.types.is_timestamp(field.type)
            else values
            for field in self._schema
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        for start in range(0, self._rows // FILES, ROWS_PER_BATCH):
            yield batch.slice(0, self._rows // FILES - start)


def _on(
    action: Callable[[DataFrame], object], load: Callable[[], DataFrame]
) -> Callable[[], object]:
    return lambda: action(load())


def _all_rows(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _sums(frame: DataFrame) -> list[float]:
    """What depends on every value."""
    seconds = F.sum(F.col("time").cast("double"))
    sums = [F.sum(name) for name, kind in frame.dtypes if kind == "double"]
    [row] = frame.agg(F.count(F.lit(1)), seconds, *sums).collect()
    return [float(value) for value in row]
