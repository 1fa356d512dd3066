"""What is packed comes back to the bit, and what is damaged is never believed."""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import example, given
from hypothesis import strategies as st

from galileo.errors import CorruptData, InputError
from galileo.labels import to_ipc
from galileo.model.times import TIME_TYPE
from galileo.packing import ROWS_MAX, Compression, pack, streams, unpack
from galileo.packing.bits import encode_bits
from galileo.packing.integers import _Encoding, decode_numbers, encode_numbers
from galileo.packing.tables import FORMAT_VERSION

int64s = st.integers(-(2**63), 2**63 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
decimals = st.integers(-40_000, 40_000).map(lambda tenths: tenths / 10)
floats = decimals | decimals | st.floats(width=64) | st.floats(width=32)
rows = st.lists(
    st.tuples(
        st.integers(0, 2**64 - 1) | st.integers(0, 3),
        int64s | st.integers(0, 3),
        st.none() | floats,
        st.none() | st.floats(width=32),
        st.none() | int64s,
        st.none() | st.text(max_size=5),
        st.none() | st.booleans(),
        int32s | st.integers(0, 5),
        int32s | st.integers(1, 3),
    ),
    max_size=40,
)
SCHEMA = pa.schema(
    [
        pa.field("cell", pa.uint64(), nullable=False),
        pa.field("bucket", TIME_TYPE, nullable=False),
        pa.field("f", pa.float64()),
        pa.field("single", pa.float64()),
        pa.field("i", pa.int64()),
        pa.field("t", pa.string()),
        pa.field("b", pa.bool_()),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("rows", pa.int32(), nullable=False),
    ]
)


def table_of(lines) -> pa.Table:
    columns = list(zip(*lines, strict=True)) or [()] * len(SCHEMA)
    arrays = [
        pa.array(list(column), pa.int64()).cast(TIME_TYPE)
        if field.type == TIME_TYPE
        else pa.array(list(column), field.type)
        for column, field in zip(columns, SCHEMA, strict=True)
    ]
    return pa.table(arrays, schema=SCHEMA)


def bits(table: pa.Table) -> list:
    """Values in a form in which NaN payloads and signed zeros differ."""

    def plain(value):
        return struct.pack("d", value) if isinstance(value, float) else value

    columns = [
        table.column(f.name).cast(pa.int64()) if f.type == TIME_TYPE else table.column(f.name)
        for f in table.schema
    ]
    return [[plain(value) for value in column.to_pylist()] for column in columns]


def there_and_back(table: pa.Table, *, compression: Compression) -> pa.Table:
    back = unpack(pack(table, compression), table.schema)
    back.validate(full=True)
    return back


NOTHING = (0, 0, None, None, None, None, None, 0, 1)


@given(rows, st.sampled_from(Compression), st.integers(1, 60))
@example([NOTHING], True, 1)
@example([NOTHING], False, 80)
def test_pack_random_table_round_trips_bits(lines, compression, repeats):
    table = table_of(lines * repeats)
    back = there_and_back(table, compression=compression)
    assert back.schema == table.schema
    assert bits(back) == bits(table)


@given(rows)
def test_pack_chunked_and_sliced_table_round_trips(lines):
    table = table_of(lines)
    whole = pa.concat_tables([table, table.slice(1)]).slice(1)
    assert bits(there_and_back(whole, compression=Compression.NONE)) == bits(whole)


PAYLOADS = np.array(
    [0x7FF8000000000001, 0xFFF8DEADBEEF0001, 0x8000000000000000, 0x7FF0000000000001, 1],
    dtype=np.uint64,
).view(np.float64)


@pytest.mark.parametrize("every", [1, 7, 40])
def test_pack_special_floats_among_decimals_keep_bits(every: int) -> None:
    values = np.round(np.random.default_rng(2).normal(290, 5, 3_000), 1)
    values[::every] = np.resize(PAYLOADS, len(values[::every]))
    table = pa.table({"f": pa.array(values, from_pandas=False)})
    back = there_and_back(table, compression=Compression.LZ4)["f"].to_numpy()
    assert np.array_equal(back.view(np.uint64), values.view(np.uint64))


@pytest.mark.parametrize("values", [[], [7], [2**64 - 1, 0], [0] * 5_000])
@pytest.mark.parametrize("compression", Compression)
def test_pack_small_table_round_trips(values: list[int], compression: Compression) -> None:
    table = pa.table({"cell": pa.array(values, pa.uint64())})
    assert there_and_back(table, compression=compression).equals(table)


def many(count: int, *, seed: int = 1) -> pa.Table:
    """Labels as nodes make them: by commit, then cell, then values."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(1, 4, count).astype(np.int32)
    schema = pa.schema(
        [
            pa.field("cell", pa.uint64(), nullable=False),
            pa.field("bucket", TIME_TYPE, nullable=False),
            pa.field("f", pa.float64()),
            pa.field("t", pa.string()),
            pa.field("row", pa.int32(), nullable=False),
            pa.field("rows", pa.int32(), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("sequence", pa.int64(), nullable=False),
        ]
    )
    columns = [
        np.sort(rng.integers(0, count * 50, count)).astype(np.uint64) + (1 << 24),
        pa.array(np.repeat(3_600_000_000, count)).cast(TIME_TYPE),
        np.round(290 + np.cumsum(rng.normal(0, 0.2, count)), 1),
        pa.array(np.array(["north", "south"])[rng.integers(0, 2, count)]),
        (np.cumsum(steps) - steps).astype(np.int32),
        steps,
        np.sort(rng.integers(0, 4, count)).astype(np.int32),
        np.sort(rng.integers(1, 9, count)),
    ]
    return pa.table(columns, schema=schema)


@pytest.mark.parametrize("count", [65, 1_000, 20_000, ROWS_MAX])
def test_pack_many_labels_round_trip_in_any_order(count: int) -> None:
    table = many(count)
    assert there_and_back(table, compression=Compression.LZ4).equals(table)
    shuffled = table.take(np.random.default_rng(3).permutation(count))
    assert there_and_back(shuffled, compression=Compression.NONE).equals(shuffled)


def test_pack_many_labels_takes_fraction_of_memory() -> None:
    table = many(50_000)
    plain, packed = len(pack(table, Compression.NONE)), len(pack(table, Compression.LZ4))
    assert packed <= plain < 3.0 * len(table)
    assert plain < len(to_ipc(table, compression="lz4")) / 3


def test_pack_consecutive_rows_take_no_bytes() -> None:
    table = many(50_000)
    scattered = table.set_column(
        table.schema.get_field_index("row"),
        table.schema.field("row"),
        table["row"].take(np.random.default_rng(3).permutation(len(table))),
    )
    assert len(pack(scattered, Compression.LZ4)) - len(pack(table, Compression.LZ4)) > 50_000


def test_pack_any_column_takes_its_entropy() -> None:
    """Bits of a value, for columns that each have one thing to be found."""
    rng, count = np.random.default_rng(4), 20_000
    hours = pa.array(rng.integers(0, 200, count) * 3_600_000_000).cast(TIME_TYPE)
    columns = {
        "the same": (pa.array(np.full(count, 7)), 0.1),
        "ascending": (pa.array(np.cumsum(rng.integers(0, 8, count))), 5.0),
        "a few runs": (pa.array(np.repeat(rng.integers(0, 2**60, 20), count // 20)), 0.2),
        "few wide numbers, shuffled": (hours, 10.0),
        "tenths": (pa.array(np.round(rng.uniform(0, 100, count), 1)), 10.1),
        "single precision": (pa.array(rng.random(count).astype(np.float32), pa.float64()), 32.1),
        "doubles": (pa.array(rng.random(count)), 64.1),
        "few texts": (pa.array(np.array(["a", "b", "c"])[rng.integers(0, 3, count)]), 2.1),
        "mostly missing": (pa.array([None] * (count - 9) + [1.5] * 9, pa.float64()), 0.2),
    }
    for name, (column, most) in columns.items():
        data = pack(pa.table({"c": column}), Compression.NONE)
        assert 8 * len(data) / count <= most, name


def test_pack_too_many_rows_raises_value_error() -> None:
    with pytest.raises(ValueError, match="at most 65536 rows"):
        pack(pa.table({"cell": np.zeros(ROWS_MAX + 1, dtype=np.uint64)}), Compression.NONE)


# --- what comes over the wire --------------------------------------------------------------------


def test_unpack_any_flipped_byte_raises() -> None:
    table = many(70)
    data = pack(table, Compression.LZ4)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 0x40
        with pytest.raises((CorruptData, InputError)):
            unpack(bytes(flipped), table.schema)


@pytest.mark.parametrize("cut", [0, 3, 6, 40])
def test_unpack_truncated_raises_corrupt_data(cut: int) -> None:
    data = pack(many(70), Compression.NONE)
    with raises(CorruptData):
        unpack(data[:cut], many(70).schema)


def test_unpack_other_version_raises() -> None:
    data = bytearray(pack(many(3), Compression.NONE))
    data[2] = FORMAT_VERSION + 1
    with raises(InputError, expected="format_version"):
        unpack(bytes(data), many(3).schema)


def test_unpack_other_columns_raises() -> None:
    data = pack(many(3), Compression.NONE)
    with raises(InputError, expected="columns"):
        unpack(data, pa.schema([pa.field("cell", pa.uint64())]))


def test_unpack_null_in_required_column_raises() -> None:
    holey = pa.table({"cell": pa.array([1, None, 3], pa.uint64())})
    data = pack(holey, Compression.NONE)
    with raises(InputError, expected="no_nulls", column="cell"):
        unpack(data, pa.schema([pa.field("cell", pa.uint64(), nullable=False)]))


def test_unpack_null_in_rows_raises_corrupt_data() -> None:
    holey = pa.table({"row": pa.array([0, 3], pa.int32()), "rows": pa.array([3, None], pa.int32())})
    whole = pa.schema([pa.field(name, pa.int32(), nullable=False) for name in holey.column_names])
    plain = pa.table({"a": holey["row"].cast(pa.int64()), "rows": holey["rows"]})
    data = pack(plain, Compression.NONE)
    with pytest.raises(CorruptData):
        unpack(data, whole)


@given(st.data())
def test_unpack_forged_bytes_raises_known_errors_only(data) -> None:
    """A sender of packed labels can also compute a checksum."""
    table = many(data.draw(st.sampled_from([3, 70, 1_200])))
    packed = bytearray(pack(table, data.draw(st.sampled_from(Compression))))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(7, len(packed) - 1) | st.integers(7, 60))
        packed[place] = data.draw(st.integers(0, 255))
    packed[3:7] = google_crc32c.value(bytes(packed[7:])).to_bytes(4, "little")
    try:
        back = unpack(bytes(packed), table.schema)
    except (CorruptData, InputError):
        return
    back.validate(full=True)


# --- plain --------------------------------------------------------------------------------------


@given(rows)
@example([])
def test_pack_uncompressed_random_table_round_trips_bits(lines):
    table = table_of(lines)
    back = unpack(pack(table, Compression.STREAM), SCHEMA)
    assert back.schema == table.schema
    assert bits(back) == bits(table)


def test_unpack_uncompressed_other_schema_raises() -> None:
    data = pack(
        many(10).drop_columns(["t"]).append_column("u", pa.array(["x"] * 10)), Compression.STREAM
    )
    with raises(InputError, expected="labels_of_schema"):
        unpack(data, many(10).schema)


@pytest.mark.parametrize("where", range(0, 400, 7))
def test_unpack_uncompressed_damaged_raises(where: int) -> None:
    data = bytearray(pack(many(3), Compression.STREAM))
    data[where % len(data)] ^= 0x40
    with pytest.raises((CorruptData, InputError)):
        unpack(bytes(data), many(3).schema)


@pytest.mark.parametrize(("gaps", "is_damaged"), [([98, 0], False), ([99, 0], True)])
def test_decode_exceptions_beyond_the_last_number_raises(gaps: list[int], is_damaged: bool) -> None:
    writer = streams.ByteWriter()
    for number in (_Encoding.FOR, 0, 1, len(gaps)):  # 100 numbers of one bit
        writer.write_number(number)
    encode_bits(writer, np.zeros(100, dtype=np.uint64), width=1)
    for numbers, width in ((gaps, 7), ([1] * len(gaps), 1)):
        writer.write_number(width)
        writer.write_number(0)
        encode_bits(writer, np.array(numbers, dtype=np.uint64), width=width)
    reader = streams.ByteReader(writer.bytes())
    if is_damaged:
        with pytest.raises(CorruptData):
            decode_numbers(reader, count=100)
    else:
        assert decode_numbers(reader, count=100)[97:].tolist() == [0, 2, 2]


def test_unpack_uncompressed_no_stream_raises_corrupt_data() -> None:
    whole = pack(many(3), Compression.STREAM)
    head, content = whole[:3], whole[7:-40]
    forged = head + google_crc32c.value(content).to_bytes(4, "little") + content
    with raises(CorruptData):
        unpack(forged, many(3).schema)


def test_unpack_uncompressed_null_in_required_column_raises() -> None:
    table = pa.table({"row": pa.array([1, None], pa.int32())})
    required = pa.schema([pa.field("row", pa.int32(), nullable=False)])
    with pytest.raises(InputError):
        unpack(pack(table, Compression.STREAM), required)


def test_pack_uncompressed_too_many_rows_raises_value_error() -> None:
    with pytest.raises(ValueError, match="at most 65536 rows"):
        pack(pa.table({"cell": np.zeros(ROWS_MAX + 1, dtype=np.uint64)}), Compression.STREAM)


@pytest.mark.parametrize("long", [0, ROWS_MAX - 1])
def test_unpack_one_long_text_uses_little_memory(long: int) -> None:
    """What Arrow would allocate for it, 32 GiB, the allocator of nodes has not."""
    kept = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        texts = [None, *[""] * (ROWS_MAX - 1)]
        texts[long] = "x" * (1 << 20)
        table = pa.table({"station": pa.array(texts, pa.string())})
        assert unpack(pack(table, Compression.NONE), table.schema).equals(table)
    finally:
        pa.set_memory_pool(kept)


def test_unpack_long_text_for_every_row_raises_before_allocation() -> None:
    """A megabyte that 65,536 rows name would take 64 GiB."""
    schema = pa.schema([("station", pa.string())])
    writer = streams.ByteWriter()
    for number in (0, ROWS_MAX, 1, 0):
        writer.write_number(number)
    writer.write_number(0)
    writer.write_number(1)
    encode_numbers(writer, np.array([1 << 20], np.uint64))
    writer.write(b"x" * (1 << 20))
    encode_numbers(writer, np.zeros(ROWS_MAX, np.uint64))
    content = writer.bytes()
    checksum = google_crc32c.value(content).to_bytes(4, "little")
    bomb = b"GL" + bytes([FORMAT_VERSION]) + checksum + content
    with raises(CorruptData):
        unpack(bomb, schema)


@given(st.lists(st.none() | st.floats(width=32, allow_nan=False), max_size=40))
def test_pack_columns_of_32_bit_floats_round_trip(values: list[float | None]) -> None:
    table = pa.table({"t": pa.array(values, pa.float32())})
    for compression in Compression:
        found = unpack(pack(table, compression), table.schema)
        assert found.equals(table)
