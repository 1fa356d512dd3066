import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.ccq.packing import pack, unpack
from galileo.errors import DataDamaged
from galileo.labels import to_ipc
from galileo.model.times import TIME_TYPE

int64s = st.integers(-(2**63), 2**63 - 1)
rows = st.lists(
    st.tuples(
        st.integers(0, 2**64 - 1) | st.integers(0, 3),
        int64s | st.integers(0, 3),
        st.none() | st.floats(width=64),
        st.none() | int64s,
        st.none() | st.text(max_size=5),
        st.none() | st.booleans(),
        st.integers(-(2**31), 2**31 - 1),
    ),
    max_size=40,
)
SCHEMA = pa.schema(
    [
        pa.field("cell", pa.uint64()),
        pa.field("bucket", TIME_TYPE),
        pa.field("f", pa.float64()),
        pa.field("i", pa.int64()),
        pa.field("t", pa.string()),
        pa.field("b", pa.bool_()),
        pa.field("row", pa.int32()),
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


@given(rows, st.booleans(), st.integers(1, 3))
def test_packing_round_trips_bit_for_bit(lines, compressed, repeats):
    table = table_of(lines * repeats)
    back = unpack(pack(table, compressed=compressed))
    assert back.schema == table.schema
    assert bits(back) == bits(table)
    back.validate(full=True)


@given(rows)
def test_chunked_and_sliced_columns_pack_too(lines):
    table = table_of(lines)
    whole = pa.concat_tables([table, table.slice(1)])
    assert bits(unpack(pack(whole.slice(1), compressed=False))) == bits(whole.slice(1))


def ordinary(count: int) -> pa.Table:
    rng = np.random.default_rng(1)
    return pa.table(
        {
            "cell": pa.array(np.sort(rng.integers(0, 50, count)).astype(np.uint64) << 40),
            "f": pa.array(np.round(rng.normal(290, 5, count), 1)),
            "t": pa.array([("north", "south")[i % 2] for i in range(count)]),
            "row": pa.array(np.arange(count, dtype=np.int32)),
        }
    )


def test_packed_labels_take_a_fraction_of_the_memory():
    table = ordinary(10_000)
    plain, packed = pack(table, compressed=False).bytes, pack(table, compressed=True).bytes
    assert plain < table.nbytes / 3
    assert packed < plain
    assert len(to_ipc(table)) > 3 * plain


def test_damaged_memory_is_noticed():
    packed = pack(ordinary(1000), compressed=True)
    data = packed.columns[0].codes.codes
    object.__setattr__(data, "size", data.size + 1)
    with pytest.raises(DataDamaged, match="expected a cache column"):
        unpack(packed)
