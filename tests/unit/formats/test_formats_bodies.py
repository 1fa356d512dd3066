"""Bodies that unpack to far more than they are: refused before the memory is allocated."""

from __future__ import annotations

import base64
import io
import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expected_errors import raises
from parameters import keep_quick

from galileo.errors import InputError, MessageTooLarge
from galileo.formats.memory_file import MemoryFile
from galileo.formats.parquet_pages import check_parquet
from galileo.formats.strict_source import StrictSource
from galileo.model.schema import Feature, Schema
from galileo.packing import arrow_streams
from galileo.packing.arrow_streams import check_unpacked

SCHEMA = Schema("s", [Feature("t"), Feature("note", type="text")])
MOST = 1 << 20
COLUMNS = {"lat": [1.0], "lon": [2.0], "time": pa.array([0], pa.timestamp("us", "UTC"))}


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def stream(table: pa.Table, compression: str | None = "zstd", *, is_file: bool = False) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    opened = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with opened(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def file(table: pa.Table) -> bytes:
    return stream(table, is_file=True)


def repeated_texts(count: int) -> bytes:
    """By hand: a schema whose texts are all the longest one, which Arrow would copy each time."""
    texts = {f"{number:06}": "" for number in range(count)} | {"long": "x" * 4 * count}
    schema = pa.schema([("t", pa.float64())], metadata=texts)
    data = bytearray(stream(schema.empty_table()))
    (size,) = struct.unpack_from("<i", data, 4)
    head = memoryview(data)[8 : 8 + size]
    (root,) = struct.unpack_from("<I", head, 0)
    table = arrow_streams._table(head, root, arrow_streams._HEADER)
    assert table is not None
    vector = arrow_streams._table(head, table, arrow_streams._SCHEMA_TEXTS)
    assert vector is not None
    pairs = arrow_streams._tables(head, table, arrow_streams._SCHEMA_TEXTS)

    def length(pair: int) -> int:
        return int(struct.unpack_from("<I", head, arrow_streams._table(head, pair, 1) or 0)[0])

    longest = max(pairs, key=length)
    for place in range(vector + 4, vector + 4 + 4 * len(pairs), 4):
        if place < longest:
            struct.pack_into("<I", head, place, longest - place)
    return bytes(data)


@pytest.fixture
def body() -> Iterator[MemoryFile]:
    with MemoryFile() as opened:
        yield opened


def allocated(work: Callable[[], object]) -> int:
    """Bytes that Arrow took at most."""
    kept = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(pool)
    try:
        work()
        return int(pool.max_memory())
    finally:
        pa.set_memory_pool(kept)


@pytest.mark.parametrize("written", [parquet, stream, file])
def test_honest_bodies_are_read_whole(body: MemoryFile, written: Callable[..., bytes]) -> None:
    rows = 3_000
    table = pa.table(
        {name: pa.concat_arrays([pa.array(values)] * rows) for name, values in COLUMNS.items()}
        | {"t": np.arange(rows) * 1.0, "note": pa.array(["a" * 100] * rows).dictionary_encode()}
    )
    body.write(written(table))
    (read,) = StrictSource(
        body.path, "parquet" if written is parquet else "arrow", SCHEMA
    ).batches()
    assert read["t"].to_pylist() == table["t"].to_pylist()
    assert read["note"].to_pylist() == ["a" * 100] * rows


@pytest.mark.parametrize("options", [{}, {"data_page_version": "2.0"}, {"use_dictionary": False}])
def test_long_text_of_parquet_is_refused_before_it_is_unpacked(options: dict[str, Any]) -> None:
    data = pa.py_buffer(
        parquet(pa.table({"note": ["x" * (3 * MOST)]}), compression="zstd", **options)
    )
    assert data.size < 20_000

    def refuse() -> None:
        with raises(InputError, expected="page_bytes"):
            check_parquet(data, bytes_max=MOST)

    assert allocated(refuse) < MOST
    check_parquet(data, bytes_max=8 * MOST)


def test_size_of_a_page_counts_though_the_footer_lies() -> None:
    data = parquet(pa.table({"note": ["x" * (3 * MOST)]}), compression="zstd", use_dictionary=False)
    size = pq.read_metadata(io.BytesIO(data)).row_group(0).column(0).total_uncompressed_size

    def varint(number: int) -> bytes:
        groups = [number << 1 >> shift & 127 for shift in range(0, 28, 7)]
        return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])

    lying = data.replace(varint(size), varint(1 << 21))
    column = pq.read_metadata(io.BytesIO(lying)).row_group(0).column(0)
    assert lying != data
    assert column.total_uncompressed_size == 1 << 21
    with raises(InputError, expected="page_bytes"):
        check_parquet(pa.py_buffer(lying), bytes_max=5 * MOST // 2)


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_texts_whose_number_arrow_believes_are_refused(body: MemoryFile, encoding: str) -> None:
    table = pa.table({**COLUMNS, "t": [1.0], "note": ["a"]})
    body.write(parquet(table, use_dictionary=False, column_encoding={"note": encoding}))
    with raises(InputError, expected="encoding"):
        StrictSource(body.path, "parquet", SCHEMA)


@pytest.mark.parametrize(
    "start", keep_quick(["", "lat,lon,time,t\n", "lat,lon,time,t\n1,2,2012-03-01,1\n"], "")
)
def test_many_fields_of_a_line_of_csv_take_bounded_memory(body: MemoryFile, start: str) -> None:
    data = f"{start}{'ab,' * (1 << 20)}\n1\n".encode()
    body.write(data)
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            StrictSource(body.path, "csv", SCHEMA)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * len(data) + (32 << 20)


def test_wide_footer_is_refused_before_arrow_reads_it() -> None:
    data = pa.py_buffer(parquet(pa.table({f"c{number}": [1] for number in range(9_000)})))
    with raises(InputError, expected="footer"):
        check_parquet(data, bytes_max=MOST)


@pytest.mark.parametrize("is_file", [True, False])
def test_packed_batches_of_arrow_are_refused_before_they_are_unpacked(is_file: bool) -> None:
    few = pa.table({"t": np.zeros(MOST // 16)})
    table = pa.concat_tables([few] * 3)
    check_unpacked(pa.py_buffer(stream(table, is_file=is_file)), bytes_max=MOST)  # One at a time.
    for wrong in (
        pa.table({"t": np.zeros(MOST)}),
        pa.table({"note": pa.array(["x" * 2 * MOST]).dictionary_encode()}),
    ):
        data = pa.py_buffer(stream(wrong, is_file=is_file))
        with raises(MessageTooLarge, expected="bytes", bound=MOST):
            check_unpacked(data, bytes_max=MOST)


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_texts_of_a_schema_that_repeat_are_refused(format: str) -> None:
    data = repeated_texts(2_000)
    check = check_unpacked
    if format == "parquet":  # Which has the schema of Arrow as a text.
        check = check_parquet
        metadata = {"ARROW:schema": base64.b64encode(data).decode()}
        sink = io.BytesIO()
        writer = pq.ParquetWriter(sink, pa.schema([("t", pa.float64())]), store_schema=False)
        writer.add_key_value_metadata(metadata)
        writer.close()
        data = sink.getvalue()
    with raises(MessageTooLarge, expected="schema_bytes"):
        check(pa.py_buffer(data), bytes_max=1 << 30)


@pytest.mark.parametrize("written", [parquet, stream, file])
def test_damaged_heads_raise_known_errors_only(
    written: Callable[..., bytes], body: MemoryFile
) -> None:
    data = written(pa.table({**COLUMNS, "t": [1.0], "note": ["a"]}))
    for place in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 0x55
        check = check_parquet if written is parquet else check_unpacked
        try:
            check(pa.py_buffer(bytes(damaged)), bytes_max=MOST)
        except (InputError, ValueError, OSError, pa.ArrowException):
            continue


def test_lines_and_features_with_many_names_are_refused(body: MemoryFile) -> None:
    place = {"lat": 1, "lon": 2, "time": 0}
    body.write("\n".join(json.dumps({**place, f"n{n}": 1}) for n in range(6_000)).encode())
    with raises(InputError, expected="columns"):
        StrictSource(Path(body.path), "ndjson", SCHEMA)
