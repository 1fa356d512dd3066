from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from galileo.errors import GalileoWarning
from galileo.formats import Mapping, open_source
from galileo.formats.sentinels import USUAL, SentinelSearch
from galileo.formats.type_conversion import null_sentinels


def found(*pieces: pa.Array) -> list[GalileoWarning]:
    search = SentinelSearch()
    for piece in pieces:
        search.add("t", piece)
    return search.warnings()


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        ([-9999, -9999, -9999, 21.5, -3.0], pa.float64(), "-9999 in 3 of 5 rows"),
        ([-999.9, -999.9, -999.9, 21.5], pa.float32(), "-999.9 in 3 of 4 rows"),
        ([999, 999, 999, 180, 360], pa.int16(), "999 in 3 of 5 rows"),
        ([1e20, 1e20, 1e20, 1e20, None, float("nan"), 5.0], pa.float64(), "1e+20 in 4 of 7 rows"),
        ([-99, -99, -99], pa.int64(), "-99 in 3 of 3 rows"),
    ],
)
def test_sentinel_search_recurring_sentinel_is_reported(
    values: list[float], kind: pa.DataType, said: str
) -> None:
    [warning] = found(pa.array(values).cast(kind))
    words = f"variable 't' is {said}, and {said.split()[0]} was stored as a number; "
    assert str(warning).startswith(words)
    assert str(warning).endswith(f"with missing={said.split()[0]}")
    assert warning.command_message.endswith(f"with --missing {said.split()[0]}")


@pytest.mark.parametrize("value", USUAL)
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_sentinel_search_names_each_sentinel_so_that_it_is_read_as_missing(
    value: float, kind: pa.DataType
) -> None:
    column = pa.array([value] * 3, pa.float64()).cast(kind)
    [warning] = found(column)
    assert null_sentinels(column, [warning.details["number"]]).null_count == 3


@pytest.mark.parametrize(
    "column",
    [
        pa.array([-9999.0, -9999.0, 21.5]),
        pa.array([999, 999, 999, 1000, 1001, 3]),
        pa.array(np.arange(20_000) // 5),
        pa.array([-9998.0] * 5 + [3.0]),
        pa.array(["-9999"] * 5),
        pa.array([True] * 5),
        pa.array([None, None], pa.float64()),
        pa.array([], pa.int8()),
    ],
    ids=["twice", "in the range", "a ramp", "unusual", "text", "bool", "nulls", "empty"],
)
def test_sentinel_search_other_values_are_not_reported(column: pa.Array) -> None:
    assert found(column) == []


def test_sentinel_search_pieces_are_counted_together() -> None:
    [words] = found(pa.array([-999.0, 980.0]), pa.array([-999.0]), pa.array([1030.0, -999.0]))
    assert "-999 in 3 of 5 rows" in str(words)
    assert found(pa.array([999] * 3), pa.array([500, 3000])) == []


def test_sentinel_search_given_sentinels_are_not_reported(tmp_path: Path) -> None:
    file = tmp_path / "tower.csv"
    rows = [f"40,-105,2014-03-01T0{n}:00Z,{-9999 if n % 2 else n}" for n in range(8)]
    file.write_text("\n".join(["latitude,longitude,time,temp", *rows, ""]))
    for sources, missing, count in (
        (None, None, 1),
        ({"kelvin": "temp + 273.15"}, None, 1),
        (None, -9999, 0),
    ):
        source = open_source(file, mapping=Mapping.of(sources, missing))
        assert sum(table.num_rows for table in source.batches()) == (4 if missing else 8)
        assert len(source.warnings()) == count
