"""Values in the names of directories, as Hive, Spark and pyarrow write partitions, are columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from galileo.formats import Mapping, open_source, suggest_schema
from galileo.formats.arrow_files import partition_of
from galileo.model.schema import Feature, Schema


@pytest.fixture
def table() -> pa.Table:
    rows = 40
    return pa.table(
        {
            "latitude": np.linspace(10, 50, rows),
            "longitude": np.linspace(-5, 5, rows),
            "time": pa.array(pd.date_range("2020-01-01", periods=rows, freq="h", tz="UTC")),
            "t": np.arange(float(rows)),
            "station": pa.array([f"A/{row % 3} %" if row % 4 else None for row in range(rows)]),
            "run": pa.array([row % 2 for row in range(rows)]),
        }
    )


def written(table: pa.Table, path: Path) -> list[Path]:
    pads.write_dataset(
        table,
        path,
        format="parquet",
        partitioning=pads.partitioning(
            pa.schema([table.schema.field("run"), table.schema.field("station")]), flavor="hive"
        ),
    )
    return sorted(path.rglob("*.parquet"))


def test_partitions_are_columns_as_in_pyarrow(tmp_path: Path, table: pa.Table) -> None:
    files = written(table, tmp_path / "stations")
    assert len(files) == 7
    source = open_source(files[0])
    assert {f.name: f.type for f in suggest_schema(source, "x").features} == {
        "t": "float",
        "run": "int",
        "station": "text",
    }
    schema = Schema(
        "x", [Feature("t"), Feature("run", type="int"), Feature("station", type="text")]
    )
    read = pa.concat_tables(
        part for file in files for part in open_source(file, schema=schema).batches()
    )
    expected = table.select(read.column_names).sort_by("t")
    assert read.sort_by("t").to_pylist() == expected.to_pylist()


def test_partition_is_part_of_the_digest_and_other_directories_are_not(
    tmp_path: Path, table: pa.Table
) -> None:
    digests = []
    for name in ("run=1", "run=2", "elsewhere", "again"):
        path = tmp_path / name / "part-0.parquet"
        path.parent.mkdir()
        pq.write_table(table.drop_columns(["run"]), path)
        digests.append(open_source(path).digest())
    assert len(set(digests)) == 3
    assert digests[2] == digests[3]


def test_columns_of_the_file_have_priority(tmp_path: Path, table: pa.Table) -> None:
    path = tmp_path / "run=7" / "part-0.parquet"
    path.parent.mkdir()
    pq.write_table(table, path)
    read = pa.concat_tables(open_source(path).batches())
    assert read.column("run").to_pylist() == table.column("run").to_pylist()


def test_time_in_the_names_of_directories(tmp_path: Path, table: pa.Table) -> None:
    path = tmp_path / "year=2014" / "month=03" / "day=1" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(table.drop_columns(["time"]), path)
    for maps in ([], ["time=year,month,day"]):
        source = open_source(path, mapping=Mapping.parse(maps))
        times = pa.concat_tables(source.batches()).column("time")
        assert set(times.to_pylist()) == {pd.Timestamp("2014-03-01", tz="UTC")}


def test_only_constants_are_read(tmp_path: Path, table: pa.Table) -> None:
    path = tmp_path / "run=7" / "part-0.parquet"
    path.parent.mkdir()
    pq.write_table(table.select(["t"]), path)
    mapping = Mapping.parse(["latitude=1", "longitude=2", "time=@2020-01-01", "run=run"])
    read = pa.concat_tables(open_source(path, mapping=mapping).batches())
    assert read.column("run").to_pylist() == [7] * table.num_rows


def test_values_of_partitions() -> None:
    assert partition_of(
        Path("a=1/b=007/c=x%20y/d=__HIVE_DEFAULT_PARTITION__/e=-5/=2/f/g=1.5/h=")
    ) == {
        "a": 1,
        "b": "007",
        "c": "x y",
        "d": None,
        "e": -5,
        "g": "1.5",
    }
    assert partition_of(Path("n=9223372036854775808/x")) == {"n": "9223372036854775808"}
