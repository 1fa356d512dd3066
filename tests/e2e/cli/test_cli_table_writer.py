"""Tables in pieces, read back from what was written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.cli.table_writer import format_of, writing
from galileo.client.json_lines import json_lines
from galileo.errors import InputError
from galileo.model.times import TIME_TYPE

SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("temperature", pa.float64()),
        pa.field("station", pa.string()),
        pa.field("wet", pa.bool_()),
        pa.field('a "name"\n', pa.string()),
    ]
)
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.floats(),
        st.none() | st.text(st.characters(exclude_categories=["Cs"])),
        st.none() | st.booleans(),
        st.none() | st.sampled_from(["\\", '"', "\x00\x1f\n", "/~%"]),
    ),
    min_size=1,
    max_size=20,
)


def table_of(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.table(arrays, schema=SCHEMA)


def plain(value: Any) -> Any:
    """What JSON cannot say is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@given(ROWS)
def test_json_lines_equal_the_rows(rows: list[tuple[Any, ...]]) -> None:
    lines = json_lines(table_of(rows)).to_pylist()
    assert all("\n" not in line for line in lines)
    result = [list(json.loads(line).items()) for line in lines]
    assert result == [
        [(n, plain(v)) for n, v in zip(SCHEMA.names, row, strict=True)] for row in rows
    ]


def test_json_lines_write_times_as_iso_8601() -> None:
    times = pa.table({"time": pa.array([1_393_632_000_000_000], TIME_TYPE)})
    assert json_lines(times).to_pylist() == ['{"time":"2014-03-01T00:00:00Z"}']


def lines_of(path: str) -> pa.Table:
    return pa.Table.from_pylist([json.loads(line) for line in Path(path).read_text().splitlines()])


READERS = {
    "a.csv": pyarrow.csv.read_csv,
    "a.parquet": pyarrow.parquet.read_table,
    "a.arrow": pyarrow.feather.read_table,
    "a.feather": pyarrow.feather.read_table,
    "a.ndjson": lines_of,
    "a.jsonl": lines_of,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("pieces", [0, 1, 7])
def test_writing_of_pieces_makes_one_table(tmp_path: Path, name: str, pieces: int) -> None:
    path = tmp_path / name
    schema = pa.schema([("number", pa.int64()), ("station", pa.string())])
    format = format_of(str(path), None)
    with writing(str(path), schema, format=format, group_rows=25) as writer:
        for piece in range(pieces):
            numbers = list(range(10 * piece, 10 * piece + 10))
            writer.write(pa.table([numbers, [f"s{n}" for n in numbers]], schema=schema))
        assert not path.exists(), "a file that has its name is whole"
    if pieces or not name.endswith(("ndjson", "jsonl")):
        table = READERS[name](str(path))
        assert table.column("number").to_pylist() == list(range(10 * pieces))
        assert table.column("station").to_pylist() == [f"s{n}" for n in range(10 * pieces)]
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_writing_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("as it was")

    def broken() -> None:
        with writing(str(path), SCHEMA, format="csv"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert path.read_text() == "as it was"
    assert [one.name for one in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize(
    ("output", "given", "wanted"),
    [
        ("a.CSV", None, "csv"),
        ("a.data", "parquet", "parquet"),
        ("a.csv", "ndjson", "ndjson"),
        ("-", None, "ndjson"),
        ("-", "csv", "csv"),
    ],
)
def test_format_of_prefers_the_given_format(output: str, given: str | None, wanted: str) -> None:
    assert format_of(output, given) == wanted


@pytest.mark.parametrize(("output", "given"), [("a.xlsx", None), ("a", None), ("-", "parquet")])
def test_format_of_an_unknown_format_is_refused(output: str, given: str | None) -> None:
    with raises(InputError):
        format_of(output, given)


def test_writing_to_a_missing_directory_is_refused(tmp_path: Path) -> None:
    def write() -> None:
        with writing(str(tmp_path / "absent" / "a.csv"), SCHEMA, format="csv"):
            raise AssertionError("not reached")

    with raises(InputError, file=str(tmp_path / "absent" / "a.csv")):
        write()
