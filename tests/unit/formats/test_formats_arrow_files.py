from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from expected_errors import raises

from galileo.errors import InputError, InvalidObservations
from galileo.formats import Mapping, open_source, suggest_schema
from galileo.model.schema import Feature

MOMENT = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
TABLE = pa.table(
    {
        "time": pa.array([MOMENT, None, MOMENT, MOMENT], pa.timestamp("ns", tz="UTC")),
        "t": pa.array([1.0, 2.0, float("nan"), None], pa.float32()),
        "lat": pa.array([1, 2, 3, 4], pa.int32()),
        "name": pa.array(["a", "b", "a", None]).dictionary_encode(),
        "lon": pa.array([5.0, 6.0, 7.0, 8.0]),
        "flag": pa.array([True, False, None, None]),
        "many": pa.array([[1], [2], [3], [4]]),
        "count": pa.array([1, None, 3, None], pa.uint8()),
    }
)


def write_parquet(path: Path) -> None:
    pq.write_table(TABLE, path, row_group_size=3)


def write_feather(path: Path) -> None:
    feather.write_feather(TABLE, path, chunksize=3)


def write_stream(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=3)


WRITERS = pytest.mark.parametrize(
    ("write", "format"),
    [(write_parquet, "parquet"), (write_feather, "arrow"), (write_stream, "arrow")],
)


@WRITERS
def test_arrow_file_typed_columns_keep_types(
    tmp_path: Path, write: Callable[[Path], None], format: str
) -> None:
    path = tmp_path / "file.data"
    write(path)
    source = open_source(path)
    assert source.format == format
    assert source.rows in (4, None)
    assert suggest_schema(source, "x").features == (
        Feature("t", type="float32"),
        Feature("name", type="text"),
        Feature("flag", type="bool"),
        Feature("count", type="int"),
    )
    table = pa.concat_tables(source.batches())
    assert source.skipped == 2
    assert table.to_pylist() == [
        {"latitude": 1.0, "longitude": 5.0, "time": MOMENT, "t": 1.0, "name": "a"}
        | {"flag": True, "count": 1},
        {"latitude": 3.0, "longitude": 7.0, "time": MOMENT, "t": None, "name": "a"}
        | {"flag": None, "count": 3},
    ]


@WRITERS
def test_arrow_file_truncated_raises(
    tmp_path: Path, write: Callable[[Path], None], format: str
) -> None:
    path = tmp_path / "file.data"
    write(path)
    path.write_bytes(path.read_bytes()[:-40])
    with raises(InputError, expected="whole_file"):
        list(open_source(path).batches())


def test_arrow_file_numeric_times_without_unit_raises(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"lat": [1.0], "lon": [2.0], "time": [1500], "t": [3.0]}), path)
    with raises(InvalidObservations, expected="times", column="time"):
        list(open_source(path).batches())
    source = open_source(path, mapping=Mapping.parse(["time=epoch_ms(time)", "t=t"]))
    moment = next(source.batches()).column("time").to_pylist()[0]
    assert moment == dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, dt.UTC)


def test_arrow_file_many_row_groups_give_even_batches(tmp_path: Path) -> None:
    rows = 10_000
    table = pa.table(
        {"lat": np.zeros(rows), "lon": np.zeros(rows), "time": [MOMENT] * rows, "n": range(rows)}
    )
    path = tmp_path / "file.parquet"
    pq.write_table(table, path, row_group_size=777)
    batches = list(open_source(path).batches(4096))
    assert [batch.num_rows for batch in batches] == [4096, 4096, 1808]
    assert pa.concat_tables(batches).column("n").to_pylist() == list(range(rows))


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_arrow_file_invalid_utf8_raises(tmp_path: Path, format: str) -> None:
    buffers = [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    damaged = pa.table(
        {
            "lat": [1.0],
            "lon": [2.0],
            "time": pa.array([MOMENT]),
            "name": pa.Array.from_buffers(pa.string(), 1, buffers),
        }
    )
    path = tmp_path / "damaged"
    pq.write_table(damaged, path) if format == "parquet" else feather.write_feather(damaged, path)
    with raises(InputError, expected="whole_file"):
        list(open_source(path, format=format).batches())


def test_arrow_file_offsets_outside_file_raises(tmp_path: Path) -> None:
    """Arrow reads what lies behind: without a look at the offsets the process ends."""
    table = TABLE.select(["lat", "lon", "time"]).slice(0, 1).append_column("name", [["K" * 77]])
    path = tmp_path / "damaged"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    offsets = np.array([0, 77], np.int32).tobytes()
    data = path.read_bytes()
    before, _, behind = data.rpartition(offsets)
    path.write_bytes(before + np.array([0, 1 << 30], np.int32).tobytes() + behind)
    with raises(InputError, expected="whole_file", format="Arrow IPC"):
        list(open_source(path, format="arrow").batches())


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_arrow_file_huge_dictionary_texts_raises(tmp_path: Path, format: str) -> None:
    rows = 70_000
    codes = pa.array(np.zeros(rows, np.int32))
    columns = {
        "latitude": np.zeros(rows),
        "longitude": np.zeros(rows),
        "time": pa.array(np.zeros(rows, np.int64)).cast(pa.timestamp("us")),
        "t": np.zeros(rows),
        "note": pa.DictionaryArray.from_arrays(codes, pa.array(["x" * 100_000])),
    }
    path, table = tmp_path / "small", pa.table(columns)
    if format == "parquet":
        pq.write_table(table, path, compression="zstd", store_schema=False)
    else:
        feather.write_feather(table, path, compression="zstd")
    assert path.stat().st_size < 200_000
    with raises(InputError, column="note", bound=268435456):
        list(open_source(path).batches())
    mapping = Mapping.parse(["t=t"])
    assert sum(map(len, open_source(path, mapping=mapping).batches())) == rows


def test_arrow_file_too_many_columns_raises(tmp_path: Path) -> None:
    path = tmp_path / "wide"
    feather.write_feather(pa.table({f"c{number}": [1] for number in range(5000)}), path)
    with raises(InputError, expected="columns", bound=4096):
        open_source(path)
