"""Each type of Arrow at each entry point: rows with the same values, or an error of Galileo."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expected_errors import raises

from galileo.arrays import held_by_floats, plain, plain_type
from galileo.client.geometry_objects import with_wkb
from galileo.errors import GalileoError, InvalidObservations
from galileo.formats import Source, open_source, suggest_schema
from galileo.formats.arrow_files import scan_parquet
from galileo.formats.mapping import Mapping
from galileo.formats.memory import is_table, named_tables, open_table, plain_tables
from galileo.formats.strict_source import StrictSource
from galileo.formats.table_files import open_rows
from galileo.model.observations import normalise
from galileo.model.schema import Feature, FeatureType, Schema
from galileo.model.table import Table, versions_of

UTC = dt.UTC
NOON = dt.datetime(2014, 3, 1, 12)


def runs(values: pa.Array) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int32()), values)


def coded(values: pa.Array) -> pa.Array:
    """Rows of the first value, null and the second one."""
    return pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.int8()), values)


def union(kind: str) -> pa.Array:
    types, children = pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a"] * 3)]
    if kind == "sparse":
        return pa.UnionArray.from_sparse(types, children)
    return pa.UnionArray.from_dense(types, pa.array([0, 0, 1], pa.int32()), children)


SIMPLE: list[tuple[list[Any], list[pa.DataType]]] = [
    ([None, None, None], [pa.null()]),
    ([True, None, False], [pa.bool_()]),
    (
        [7, None, 3],
        [
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
            *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        ],
    ),
    ([1.5, None, -2.0], [pa.float16(), pa.float32(), pa.float64()]),
    (
        [Decimal("1.25"), None, Decimal("3.00")],
        [pa.decimal32(5, 2), pa.decimal64(9, 2), pa.decimal128(20, 2), pa.decimal256(60, 2)],
    ),
    ([Decimal(12), None, Decimal(3)], [pa.decimal32(5), pa.decimal64(9), pa.decimal128(38)]),
    (["a", None, "b" * 20], [pa.string(), pa.large_string(), pa.string_view()]),
    (
        [b"aa", None, b"bb"],
        [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)],
    ),
    ([NOON.date(), None, NOON.date()], [pa.date32(), pa.date64()]),
    (
        [NOON.time(), None, NOON.time()],
        [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
    ),
    ([NOON, None, NOON], [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")]),
    (
        [NOON.replace(tzinfo=UTC), None, NOON.replace(tzinfo=UTC)],
        [pa.timestamp("us", "UTC"), pa.timestamp("ns", "America/Denver")],
    ),
    ([dt.timedelta(hours=1), None, dt.timedelta(1)], [pa.duration("s"), pa.duration("ns")]),
    ([(1, 2, 3), None, (0, 0, 1)], [pa.month_day_nano_interval()]),
    (
        [[8.0, 50.0, 9.0, 51.0], None, [1.0, 2.0, 3.0, 4.0]],
        [
            *(pa.list_(pa.float64()), pa.large_list(pa.float64()), pa.list_(pa.float64(), 4)),
            *(pa.list_view(pa.float64()), pa.large_list_view(pa.float32())),
        ],
    ),
    ([["a"], None, ["b", "c"]], [pa.list_(pa.string()), pa.list_view(pa.string_view())]),
    ([[[8.0, 50.0]], None, [[1.0, 2.0]]], [pa.list_(pa.list_(pa.float64(), 2))]),
    ([[None], None, []], [pa.list_(pa.null())]),
    ([{"x": 8.0, "y": 50.0}, None, {"x": 1.0, "y": 2.0}],
     [pa.struct({"x": pa.float64(), "y": pa.float64()})]),
    ([{}, None, {}], [pa.struct({})]),
    ([[("a", 1)], None, []], [pa.map_(pa.string(), pa.int64())]),
]  # fmt: skip
TEXTS, NUMBERS = pa.array(["a", "b" * 20]), pa.array([1, 2])
COLUMNS: list[pa.Array] = [
    *(pa.array(values, kind) for values, kinds in SIMPLE for kind in kinds),
    *(union(kind) for kind in ("sparse", "dense")),
    *map(
        coded,
        [
            *(TEXTS, TEXTS.cast(pa.large_string()), TEXTS.cast(pa.string_view())),
            *(NUMBERS, NUMBERS.cast(pa.float16()), NUMBERS.cast(pa.decimal128(21, 2))),
            *(pa.array([NOON, NOON]), pa.array([True, False]), pa.nulls(2)),
            *(pa.array([b"a", b"b"]), pa.array([b"a", b"b"], pa.binary_view())),
            pa.array([[1], [2]]),
        ],
    ),
    *map(
        runs,
        [
            *(pa.array(["a", None, "b"]), pa.array(["a", None, "b"], pa.string_view())),
            *(pa.array([1, None, 2]), coded(TEXTS), pa.array([NOON] * 3), pa.nulls(3)),
        ],
    ),
    pa.array([bytes(16), None, b"1" * 16], pa.uuid()),
    pa.array(["{}", None, "[1]"], pa.json_()),
    pa.array([1, None, 0], pa.bool8()),
    pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((3, 2))),
    pa.ExtensionArray.from_storage(pa.opaque(pa.null(), "x", "y"), pa.nulls(3)),
]  # fmt: skip
EACH = [pytest.param(column, id=str(column.type)) for column in COLUMNS]


def each_at(*doors: str) -> list[Any]:
    """Each type at each door; the quick tests have each type at one of them."""
    return [
        pytest.param(
            door,
            column,
            id=f"{door}-{column.type}",
            marks=() if (number + index) % len(doors) == 0 else pytest.mark.slow,
        )
        for index, door in enumerate(doors)
        for number, column in enumerate(COLUMNS)
    ]


KINDS: tuple[FeatureType, ...] = ("float", "int", "text", "bool")
LATITUDES = pa.array([40.0, 41.0, 42.0])
TIMES = pa.array([NOON.replace(tzinfo=UTC)] * 3, pa.timestamp("us", "UTC"))


def table_with(column: pa.Array, *, name: str = "x") -> pa.Table:
    others = {"latitude": LATITUDES, "longitude": LATITUDES, "time": TIMES, "v": LATITUDES}
    return pa.table(others | {name: column})


def same(stored: Any, given: Any) -> bool:
    """Whether a stored value is the value that was given."""
    if given is None or stored is None:
        return given is None and stored is None
    if isinstance(stored, str):
        return stored == str(given) or isinstance(given, int | float | dt.date | dt.time | Decimal)
    if isinstance(stored, dt.datetime):
        at = dt.datetime.combine(given, dt.time()) if type(given) is dt.date else given
        return stored == (at if at.tzinfo else at.replace(tzinfo=UTC))
    return math.isclose(float(stored), float(given), rel_tol=1e-15)


def check(read: Callable[[], pa.Table], column: pa.Array, *, name: str = "x") -> bool:
    """Whether rows come, which have the given values; else an error of Galileo."""
    try:
        table = read()
    except GalileoError:
        return False
    table.validate(full=True)
    if name in table.column_names:
        pairs = list(zip(table.column(name).to_pylist(), column.to_pylist(), strict=True))
        assert all(same(*pair) for pair in pairs), pairs
    return True


def stored(source: Source, schema: Schema | None = None) -> pa.Table:
    schema = schema or suggest_schema(source, "x")
    batches = [normalise(schema, table) for table in source.bound_to(schema).batches()]
    return pa.concat_tables([schema.observation_schema.empty_table(), *batches])


def in_memory(table: pa.Table, texts: str = "") -> Source:
    mapping = Mapping.parse(texts.split())
    return Source(None, open_table(table, mapping), format="", mapping=mapping, schema=None)


def written(path: Path, table: pa.Table, form: str) -> bool:
    """Whether Arrow can write the table in a format."""
    try:
        if form == "parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
    except (pa.ArrowException, NotImplementedError):
        return False
    return True


@pytest.mark.parametrize("column", EACH)
def test_plain_column_has_the_values_of_each_slice(column: pa.Array) -> None:
    chunks = pa.chunked_array([column.slice(0, 1), column.slice(1)])
    for values in (column, column.slice(1), column.slice(1, 1), column.slice(3), chunks):
        converted = plain(values)
        converted.validate(full=True)
        assert converted.type == plain_type(column.type)
        if not isinstance(column, pa.ExtensionArray):
            assert converted.to_pylist() == values.to_pylist()
    assert plain(pa.chunked_array([], column.type)).type == plain_type(column.type)


@pytest.mark.parametrize("column", EACH)
def test_table_of_each_type_is_normalised_or_refused(column: pa.Array) -> None:
    taken = [
        kind
        for kind in KINDS
        if check(
            lambda kind=kind: normalise(
                Schema("x", [Feature("v"), Feature("x", type=kind)]), table_with(column)
            ),
            column,
        )
    ]
    is_null = pa.types.is_null(plain_type(column.type))
    assert taken == list(KINDS) or (len(taken) <= 2 and not is_null)
    schema = Schema("x", [Feature("v")])
    for name in ("latitude", "longitude", "time"):
        check(lambda name=name: normalise(schema, table_with(column, name=name)), column)


@pytest.mark.parametrize(("form", "column"), each_at("memory", "parquet", "arrow"))
def test_source_of_each_type_is_read_or_refused(
    tmp_path: Path, form: str, column: pa.Array
) -> None:
    def opened(table: pa.Table, texts: str = "") -> Source:
        if form == "memory":
            return in_memory(table, texts)
        path.parent.mkdir(exist_ok=True)
        if not written(path, table, form):
            pytest.skip(f"Arrow writes no {form} of {column.type}")
        return open_source(path, format=form, mapping=Mapping.parse(texts.split()))

    path = tmp_path / form / "x"
    # What cannot be a feature is left out and keeps no row from being stored.
    whole = stored(opened(table_with(column)))
    assert whole.num_rows == 3
    check(lambda: whole, column)
    for kind in KINDS:
        schema = Schema("x", [Feature("v"), Feature("x", type=kind)])
        check(lambda schema=schema: stored(opened(table_with(column), "v=v x=x"), schema), column)
        check(lambda schema=schema: stored(opened(table_with(column)), schema), column)
    for name in ("latitude", "longitude", "time"):
        check(lambda name=name: stored(opened(table_with(column, name=name), "v=v")), column)
    check(lambda: stored(opened(table_with(column), "time=epoch_s(x) v=v")), column)
    check(lambda: stored(opened(table_with(column), "time=x,v,v v=v")), column)
    check(lambda: stored(opened(table_with(column), "w=coalesce(x,v) z=x*2 y=nullif(x,1)")), column)
    if form != "memory" and path.exists():
        for kind in KINDS:
            strict = Schema("x", [Feature("v"), Feature("x", type=kind)])
            opened(table_with(column))
            check(
                lambda strict=strict: pa.concat_tables(StrictSource(path, form, strict).batches()),
                column,
            )


@pytest.mark.parametrize(("library", "column"), each_at("pandas", "pandas of Arrow", "polars"))
def test_frame_of_each_type_is_read_or_refused(library: str, column: pa.Array) -> None:
    try:
        if library == "pandas":
            frame: Any = table_with(column).to_pandas()
        elif library == "pandas of Arrow":
            pd = pytest.importorskip("pandas")
            frame = table_with(column).to_pandas(types_mapper=pd.ArrowDtype)
        else:
            frame = pytest.importorskip("polars").from_arrow(table_with(column))
    except BaseException:  # The library does not know the type; polars panics.
        pytest.skip(f"{library} takes no {column.type}")
    assert is_table(frame)
    check(lambda: stored(in_memory(frame)), column, name="")
    for kind in KINDS:
        schema = Schema("x", [Feature("v"), Feature("x", type=kind)])
        check(
            lambda schema=schema: pa.concat_tables(
                normalise(schema, piece) for piece in named_tables(frame)
            ),
            column,
            name="",
        )
        table = Table("t", {"time": "time", "x": kind}, key="time")
        check(
            lambda table=table: pa.concat_tables(
                versions_of(table, piece)
                for piece in plain_tables(with_wkb(frame[["time", "x"]], table.geometry_columns))
            ),
            column,
            name="",
        )


@pytest.mark.parametrize("column", EACH)
def test_rows_of_each_type_are_stored_in_a_table_or_refused(
    tmp_path: Path, column: pa.Array
) -> None:
    rows = pa.table({"id": ["a", "b", "c"], "x": column})
    paths = [tmp_path / f"x.{form}" for form in ("parquet", "arrow")]
    paths = [path for path in paths if written(path, rows, path.suffix[1:])]
    kinds: tuple[Any, ...] = (*KINDS, "time", "geometry")
    for kind, key in [
        *((kind, "id") for kind in kinds),
        ("int", "x"),
        ("text", "x"),
        ("time", "x"),
    ]:
        table = Table("t", {"id": "text", "x": kind}, key=key)
        name = "" if kind == "geometry" else "x"
        check(lambda table=table: versions_of(table, rows), column, name=name)
        for path in paths:
            check(
                lambda table=table, path=path: versions_of(
                    table, pa.concat_tables(open_rows(path, table.arrow_schema))
                ),
                column,
                name=name,
            )


# --- exact values and memory -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "is_held"),
    [
        ([10**16, None, -(1 << 63)], True),
        ([(1 << 53) + 1], False),
        ([(1 << 63) - 1], False),
    ],
)
def test_integers_become_floats_if_these_are_exact(values: list[Any], is_held: bool) -> None:
    column = pa.array(values)
    schema = Schema("x", [Feature("x")])
    where = {name: [1.0] * len(values) for name in ("latitude", "longitude")}
    table = pa.table(where | {"time": [NOON] * len(values), "x": column})
    reads = [
        lambda: normalise(schema, table).column("x"),
        lambda: stored(in_memory(table, "x=coalesce(x,x)"), schema).column("x"),
        lambda: versions_of(
            Table("t", {"i": "int", "x": "float"}, key="i"),
            pa.table({"i": range(len(values)), "x": column}),
        ).column("x"),
    ]
    for read in reads:
        if is_held:
            kept = [None if v is None else int(v) for v in read().to_pylist()]
            assert kept == values[: len(kept)] or kept == [v for v in values if v is not None]
        else:
            with pytest.raises(GalileoError) as refused:
                read()
            assert re.search("9007199254740993|9223372036854775807", refused.value.message)


def test_exactness_of_random_integers_is_that_of_python() -> None:
    random = np.random.default_rng(7)
    numbers = random.integers(-(1 << 63), 1 << 63, 2_000, dtype=np.int64)
    numbers >>= random.integers(0, 63, 2_000)
    numbers = np.concatenate([numbers, numbers << random.integers(0, 12, 2_000), [-(1 << 63), 0]])
    expected = [int(float(number)) == number for number in numbers.tolist()]
    assert held_by_floats(pa.array(numbers)).tolist() == expected
    unsigned = numbers.astype(np.uint64)
    expected = [int(float(number)) == number for number in unsigned.tolist()]
    assert held_by_floats(pa.array(unsigned)).tolist() == expected


@pytest.mark.parametrize("kind", [pa.decimal128(38), pa.decimal256(60)])
def test_whole_decimals_are_exact_integers(kind: pa.DataType) -> None:
    """The sum of integers is such a column in DuckDB (HUGEINT)."""
    numbers = [(1 << 62) + 1, None, -3]
    schema = Schema("x", [Feature("v"), Feature("x", type="int")])
    table = table_with(pa.array([None if n is None else Decimal(n) for n in numbers], kind))
    assert normalise(schema, table).column("x").to_pylist() == numbers
    assert stored(in_memory(table, "v=v x=nullif(x,4)"), schema).column("x").to_pylist() == numbers
    table = table_with(pa.array([Decimal(1 << 63)] * 3, kind))
    for read in (lambda: normalise(schema, table), lambda: stored(in_memory(table), schema)):
        with pytest.raises(GalileoError) as refused:
            read()
        assert "int" in refused.value.message


def test_text_that_runs_or_codes_repeat_is_bounded() -> None:
    text = pa.array(["a" * (1 << 20)])
    for texts in (
        text,
        text.cast(pa.string_view()),
        coded(pa.array(["", "a" * (1 << 20)])).slice(2),
    ):
        column = pa.RunEndEncodedArray.from_arrays(pa.array([300], pa.int32()), texts)
        where = {name: np.ones(300) for name in ("latitude", "longitude", "v")}
        table = pa.table(where | {"time": [NOON] * 300, "x": column})
        schema = Schema("x", [Feature("v"), Feature("x", type="text")])
        with raises(InvalidObservations, column="x", bound=256 << 20):
            normalise(schema, table)


def test_parquet_texts_of_each_encoding_are_read(tmp_path: Path) -> None:
    texts = pa.array([f"station-{row % 7}-{row}" for row in range(1_000)])
    where = {name: np.ones(1_000) for name in ("latitude", "longitude")}
    table = pa.table(where | {"time": [NOON] * 1_000, "s": texts})
    path = tmp_path / "x.parquet"
    for encoding in ("PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
        for version in ("1.0", "2.0"):
            pq.write_table(
                table,
                path,
                use_dictionary=False,
                column_encoding={"s": encoding},
                data_page_version=version,
                row_group_size=300,
            )
            assert stored(open_source(path)).column("s").combine_chunks().equals(texts)
            rows = pa.concat_tables(open_rows(path, pa.schema([])))
            assert rows.column("s").cast(pa.string()).combine_chunks().equals(texts)


def test_parquet_texts_whose_row_groups_have_different_encodings_are_read(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    rows, path = 4_096, tmp_path / "x.parquet"
    texts = "CASE WHEN i < 2048 THEN 'same' ELSE 'station-' || i * 7919 END"
    with duckdb.connect() as database:
        database.execute(
            f"COPY (SELECT 1.0 AS latitude, 2.0 AS longitude, TIMESTAMP '2020-01-01' AS time, "
            f"{texts} AS s FROM range({rows}) t(i) ORDER BY i) TO '{path}' "
            "(FORMAT parquet, PARQUET_VERSION v2, ROW_GROUP_SIZE 2048)"
        )
    groups = map(pq.ParquetFile(path).metadata.row_group, range(2))
    encodings = [group.column(3).encodings for group in groups]
    assert encodings == [("RLE_DICTIONARY",), ("DELTA_LENGTH_BYTE_ARRAY",)]
    column = pa.concat_tables(open_source(path).batches()).column("s")
    assert column.to_pylist()[2_047:2_050:2] == ["same", f"station-{2_049 * 7_919}"]


def test_parquet_texts_with_long_common_beginnings_take_little_memory(tmp_path: Path) -> None:
    rows, path = 200, tmp_path / "x.parquet"
    where = {name: np.ones(rows) for name in ("latitude", "longitude")}
    texts = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["a" * (1 << 20)])
    table = pa.table(where | {"time": [NOON] * rows, "s": texts.cast(pa.string())})
    pq.write_table(
        table, path, use_dictionary=False, column_encoding={"s": "DELTA_BYTE_ARRAY"},
        write_statistics=False,
    )  # fmt: skip
    assert path.stat().st_size < 1 << 16
    del table, texts
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    sizes = [pool.bytes_allocated() - before for _ in scan_parquet(path)]
    assert sum(map(len, open_rows(path, pa.schema([])))) == rows
    assert max(sizes) < 192 << 20
