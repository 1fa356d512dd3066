"""Label sets: text and back, selection, order, and the bytes that travel."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import example, given
from hypothesis import strategies as st

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import InputError
from galileo.geo import geohash
from galileo.labels import LabelSet, first_commits, from_ipc, parse_label, to_ipc
from galileo.model.schema import Feature, Schema
from galileo.model.times import TIME_MAX_US, TIME_MIN_US, iso

SCHEMA = Schema(
    "nam.v1",
    [
        Feature("t"),
        Feature("hidden", indexed=False),
        Feature("station", type="text"),
        Feature("count", type="int"),
        Feature("wet", type="bool"),
    ],
)
INDEXED = ("t", "station", "count", "wet")

labels = st.fixed_dictionaries(
    {
        "cell": st.integers(0, 2**25 - 1),
        "bucket": st.integers(TIME_MIN_US, TIME_MAX_US),
        "t": st.none() | st.floats(allow_nan=False),
        "station": st.none() | st.text(st.characters(codec="utf-8"), max_size=8),
        "count": st.none() | st.integers(-(2**63), 2**63 - 1),
        "wet": st.none() | st.booleans(),
        "row": st.integers(0, 2**31 - 1),
        "rows": st.integers(1, 2**31 - 1),
        "partition": st.integers(0, 5),
        "sequence": st.integers(1, 2**63 - 1),
    }
)
SIMPLE = {
    "cell": geohash.cell_from_text("9xjqb"),
    "bucket": 1_330_581_600_000_000,
    "t": 290.5,
    "station": "KDEN",
    "count": 45,
    "wet": None,
    "row": 0,
    "rows": 2,
    "partition": 3,
    "sequence": 17,
}


def label_set(rows: list[dict[str, Any]], **answer: Any) -> LabelSet:
    return LabelSet(SCHEMA, pa.Table.from_pylist(rows, schema=SCHEMA.label_schema), **answer)


def commits(*places: tuple[int, int, int]) -> LabelSet:
    """Labels that differ in partition, sequence and row alone."""
    return label_set([SIMPLE | {"partition": p, "sequence": s, "row": r} for p, s, r in places])


def places(found: LabelSet) -> list[tuple[int, int, int]]:
    columns = (found.partitions, found.sequences, found.rows)
    return list(zip(*(column.tolist() for column in columns), strict=True))


# --- text ------------------------------------------------------------------------------------


def test_label_set_texts_are_paths() -> None:
    text = "nam.v1/9xjqb/2012-03-01T06:00:00Z/290.5/KDEN/45/~/p3.17.0"
    assert label_set([SIMPLE]).texts().to_pylist() == [text]
    assert label_set([SIMPLE]).blocks().to_pylist() == ["nam.v1/9xjqb/2012-03-01T06:00:00Z"]


@given(st.lists(labels, min_size=1, max_size=5))
@example([SIMPLE | {"station": text} for text in ("", "~", "%", "/", "%2F", "%25", "%257E", "a\0")])
@example([SIMPLE | {"t": value} for value in (0.0, -0.0, math.inf, -math.inf, 5e-324, 1e16, 0.1)])
def test_parse_label_random_labels_round_trip(rows: list[dict[str, Any]]) -> None:
    for text, row in zip(label_set(rows).texts().to_pylist(), rows, strict=True):
        parsed = parse_label(SCHEMA, text)
        assert parsed.pop("geohash") == geohash.to_text([row["cell"]], 5)[0].as_py()
        assert parsed.pop("time") == row["bucket"]
        assert parsed == {name: row[name] for name in (*INDEXED, "partition", "sequence", "row")}


@given(labels, labels)
def test_label_set_texts_of_distinct_paths_differ(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    path = [name for name in SCHEMA.label_schema.names if name != "rows"]
    same = all(one[name] == other[name] for name in path)
    first, second = label_set([one, other]).texts().to_pylist()
    assert (first == second) == same


def test_label_set_no_indexed_features_has_short_text() -> None:
    schema = Schema("s", [Feature("t", indexed=False)])
    row = {name: SIMPLE[name] for name in schema.label_schema.names}
    labels_ = LabelSet(schema, pa.Table.from_pylist([row], schema=schema.label_schema))
    text = labels_.texts()[0].as_py()
    assert text == "s/9xjqb/2012-03-01T06:00:00Z/p3.17.0"
    assert parse_label(schema, text)["sequence"] == 17


GOOD = "nam.v1/9xjqb/2012-03-01T06:00:00Z/290.5/KDEN/45/true/p3.17.0"


@pytest.mark.parametrize(
    ("part", "damaged"),
    [
        ("nam.v1", "nam"),
        ("nam.v1/", ""),
        ("9xjqb", "9xj"),
        ("9xjqb", "9xjqa"),
        ("9xjqb", ""),
        ("2012-03-01T06:00:00Z", "soon"),
        ("2012-03-01T06:00:00Z", "now"),
        ("290.5", "warm"),
        ("290.5", ""),
        ("45", "45.0"),
        ("45", "1e3"),
        ("true", "True"),
        ("true", "yes"),
        ("true", ""),
        ("/true", ""),
        ("/true", "/true/true"),
        ("p3.17.0", "p3.17"),
        ("p3.17.0", "3.17.0"),
        ("p3.17.0", "p3.17.0 "),
        ("p3.17.0", "p3.-1.0"),
        ("p3.17.0", "p\u0663.17.0"),
        ("290.5", "nan"),
        ("290.5", "2_90.5"),
        ("290.5", "\u0662"),
        ("45", "4_5"),
        ("45", "9223372036854775808"),
        ("45", " 45"),
    ],
)
def test_parse_label_invalid_text_raises(part: str, damaged: str) -> None:
    assert parse_label(SCHEMA, GOOD)["wet"] is True
    with raises(InputError, expected="path_label", dataset="nam.v1"):
        parse_label(SCHEMA, GOOD.replace(part, damaged))


# --- columns that people see -----------------------------------------------------------------


def test_label_set_to_arrow_has_columns_of_label() -> None:
    table = label_set([SIMPLE, SIMPLE | {"station": None, "row": 2}]).to_arrow()
    assert table.column_names == [
        "geohash",
        "time",
        *INDEXED,
        "block",
        "partition",
        "sequence",
        "label",
    ]
    assert table.column("geohash").to_pylist() == ["9xjqb", "9xjqb"]
    assert iso(table.column("time").cast(pa.int64())[0].as_py()) == "2012-03-01T06:00:00Z"
    assert table.column("station").to_pylist() == ["KDEN", None]
    assert table.column("block").to_pylist() == ["nam.v1/9xjqb/2012-03-01T06:00:00Z"] * 2
    assert table.column("sequence").to_pylist() == [17, 17]
    assert (
        table.column("label").to_pylist()
        == label_set([SIMPLE, SIMPLE | {"station": None, "row": 2}]).texts().to_pylist()
    )


def test_label_set_to_pandas_has_columns_of_arrow() -> None:
    found = label_set([SIMPLE])
    frame = found.to_pandas()
    assert list(frame.columns) == found.to_arrow().column_names
    assert frame["label"].tolist() == found.texts().to_pylist()
    assert frame["time"][0].isoformat() == "2012-03-01T06:00:00+00:00"


def test_label_set_empty_has_every_column() -> None:
    empty = LabelSet.empty(SCHEMA)
    assert len(empty) == 0
    assert empty.texts().to_pylist() == []
    assert empty.to_arrow().schema.names == label_set([SIMPLE]).to_arrow().schema.names
    assert len(empty.after(EMPTY_CURSOR)) == len(empty.in_commit_order()) == 0
    assert LabelSet.concat(SCHEMA, [empty, empty]).table.schema.equals(SCHEMA.label_schema)


def test_label_set_several_chunks_equal_one() -> None:
    rows = [SIMPLE | {"row": row, "station": f"s{row}"} for row in range(4)]
    chunked = LabelSet.concat(SCHEMA, [label_set(rows[:1]), label_set([]), label_set(rows[1:])])
    assert chunked.table.column("row").num_chunks > 1
    assert chunked.texts().equals(label_set(rows).texts())
    assert chunked.to_arrow().equals(label_set(rows).to_arrow())
    assert chunked.cells.tolist() == label_set(rows).cells.tolist()


def test_label_set_answering_keeps_frontier_missing_and_query() -> None:
    found = label_set([SIMPLE]).answering(frontier=Cursor({3: 17}), missing=[5, 2], query="{}")
    assert (found.frontier, found.missing, found.query) == (Cursor({3: 17}), (2, 5), "{}")
    assert not found.complete
    assert repr(found) == "<LabelSet nam.v1: 1 labels, partitions [2, 5] missing>"
    for derived in (found.slice(0, 1), found.in_commit_order(), found.after(EMPTY_CURSOR)):
        assert (derived.frontier, derived.missing, derived.query) == (
            found.frontier,
            found.missing,
            found.query,
        )
    assert label_set([SIMPLE]).complete


# --- selection and order ---------------------------------------------------------------------

small_places = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 3)))
cursors = st.dictionaries(st.integers(0, 4), st.integers(0, 5)).map(Cursor)


@given(small_places)
def test_label_set_in_commit_order_random_labels_are_sorted(
    each: list[tuple[int, int, int]],
) -> None:
    assert places(commits(*each).in_commit_order()) == sorted(each)


@given(small_places, cursors)
def test_label_set_after_and_until_random_cursor_split_labels(
    each: list[tuple[int, int, int]], cursor: Cursor
) -> None:
    found = commits(*each)
    assert places(found.after(cursor)) == [place for place in each if place[1] > cursor[place[0]]]
    assert places(found.until(cursor)) == [place for place in each if place[1] <= cursor[place[0]]]


@given(small_places, st.integers(0, 5), st.integers(0, 5))
def test_label_set_slice_random_bounds_equals_list(
    each: list[tuple[int, int, int]], start: int, length: int
) -> None:
    assert places(commits(*each).slice(start, start + length)) == each[start : start + length]


def test_label_set_where_mask_selects_rows() -> None:
    found = commits((0, 1, 0), (0, 1, 1), (0, 2, 0)).where(np.array([True, False, True]))
    assert places(found) == [(0, 1, 0), (0, 2, 0)]


# --- bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@given(rows=st.lists(labels, max_size=5))
def test_to_ipc_random_labels_round_trip(
    compression: str | None, rows: list[dict[str, Any]]
) -> None:
    table = label_set(rows).table
    assert from_ipc(to_ipc(table, compression=compression), SCHEMA.label_schema).equals(table)


@pytest.mark.parametrize(
    "other",
    [
        SCHEMA.path_schema,
        SCHEMA.observation_schema,
        pa.schema([*SCHEMA.label_schema][::-1]),
        SCHEMA.label_schema.set(0, pa.field("cell", pa.int64(), nullable=False)),
        SCHEMA.label_schema.set(0, pa.field("cell", pa.uint64(), nullable=True)),
    ],
)
def test_from_ipc_other_schema_raises(other: pa.Schema) -> None:
    with raises(InputError, expected="columns"):
        from_ipc(to_ipc(other.empty_table()), SCHEMA.label_schema)


def test_from_ipc_null_in_required_column_raises() -> None:
    data = to_ipc(label_set([SIMPLE | {"sequence": None}]).table)
    with raises(InputError, expected="no_nulls", column="sequence"):
        from_ipc(data, SCHEMA.label_schema)


@pytest.mark.parametrize("data", [b"", b"\0", b"not an Arrow stream", b"\xff" * 64])
def test_from_ipc_other_bytes_raises(data: bytes) -> None:
    with raises(InputError, expected="arrow_stream"):
        from_ipc(data, SCHEMA.label_schema)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_from_ipc_damaged_bytes_raises_or_gives_valid_table(compression: str | None) -> None:
    """Whether values changed is for a checksum to say; here nothing may crash or be malformed."""
    rows = [SIMPLE | {"row": row, "t": [None, 1.5][row % 2]} for row in range(20)]
    data = to_ipc(label_set(rows).table, compression=compression)
    generator = random.Random(20120301)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(
            data[: generator.choice([len(data), generator.randrange(1, len(data))])]
        )
        for _ in range(generator.choice([1, 2, 4])):
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        try:
            table = from_ipc(bytes(damaged), SCHEMA.label_schema)
        except InputError:
            refused += 1
        else:
            assert table.schema.equals(SCHEMA.label_schema)
            table.validate(full=True)
    assert refused > 1000


# --- cutting at whole commits ----------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 4)), unique=True, max_size=40
    ),
    st.integers(1, 20),
)
def test_first_commits_random_labels_repeated_gives_all(
    given_places: list[tuple[int, int, int]], labels_max: int
) -> None:
    rest, reached = commits(*given_places), Cursor(dict.fromkeys(range(4), 12))
    found: list[tuple[int, int, int]] = []
    cursor = EMPTY_CURSOR
    while cursor != reached:
        kept, cut = first_commits(rest.after(cursor), reached=reached, labels_max=labels_max)
        assert cut.covers(cursor)
        assert cut != cursor
        assert len(kept) <= labels_max or len({place[:2] for place in places(kept)}) == 1
        found += places(kept)
        cursor = cut
    assert sorted(found) == sorted(given_places)


def test_first_commits_partitions_take_turns() -> None:
    labels = commits(*[(p, s, 0) for p in (0, 1) for s in range(1, 11)])
    kept, cut = first_commits(labels, reached=Cursor({0: 10, 1: 10}), labels_max=6)
    assert places(kept) == [(p, s, 0) for p in (0, 1) for s in (1, 2, 3)]
    assert cut == Cursor({0: 3, 1: 3})


def test_first_commits_large_commit_is_whole() -> None:
    labels = commits(*[(0, 3, row) for row in range(10)], (1, 1, 0))
    kept, cut = first_commits(labels, reached=Cursor({0: 3, 1: 1}), labels_max=5)
    assert places(kept) == [(1, 1, 0)]
    assert cut == Cursor({0: 2, 1: 1})
    alone = commits(*[(0, 3, row) for row in range(10)])
    kept, cut = first_commits(alone, reached=Cursor({0: 3}), labels_max=5)
    assert (len(kept), cut) == (10, Cursor({0: 3}))
