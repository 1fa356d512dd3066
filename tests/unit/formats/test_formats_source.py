"""What holds for every format: binding, skipping, batches, digests, suggested schemas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.arrays import rebatch
from galileo.errors import InputError, InvalidObservations, InvalidSchema, UnknownProperty
from galileo.formats import CsvOptions, Mapping, Source, open_source, suggest_schema
from galileo.formats.schema_suggestion import DEFAULT_INDEXED_MAX
from galileo.model.observations import normalise
from galileo.model.schema import Feature, Schema

TEXT = """lat,lon,time,t,rh,station
10,20,2020-01-01T00:00Z,1.5,40,A
11,21,2020-01-01T00:00Z,,,
12,22,2020-01-01T01:00Z,,50,B
,23,2020-01-01T01:00Z,2.5,60,C
14,24,,2.5,60,D
15,200,2020-01-01T02:00Z,3.5,70,NA
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "points.csv"
    file.write_text(TEXT)
    return file


def read(source: Source, rows_max: int = 65_536) -> pa.Table:
    return pa.concat_tables(source.batches(rows_max))


def test_source_rows_without_place_time_or_value_are_skipped(path: Path) -> None:
    source = open_source(path)
    table = read(source)
    assert table.column("t").to_pylist() == [1.5, None, 3.5]
    assert table.column("latitude").to_pylist() == [10.0, 12.0, 15.0]
    assert (source.rows, source.skipped) == (6, 3)


def test_source_skips_rows_without_mapped_feature(path: Path) -> None:
    source = open_source(path, mapping=Mapping.parse(["t=t"]))
    assert read(source).column("t").to_pylist() == [1.5, 3.5]
    assert source.skipped == 4


def test_source_second_read_counts_anew(path: Path) -> None:
    source = open_source(path)
    assert read(source).equals(read(source))
    assert source.skipped == 3


def test_suggest_schema_of_source_fits_its_rows(path: Path) -> None:
    source = open_source(path)
    schema = suggest_schema(source, "points", geohash_precision=4, time_bucket="1d")
    assert schema == Schema(
        "points",
        [Feature("t"), Feature("rh", type="int"), Feature("station", type="text")],
        geohash_precision=4,
        time_bucket="1d",
    )
    assert normalise(schema, read(source)).column("longitude").to_pylist() == [20.0, 22.0, -160.0]


def test_source_columns_keep_order_of_mapping(path: Path) -> None:
    mapping = Mapping.parse(["humidity=rh", "kelvin=celsius_to_kelvin(t)", "speed=hypot(t, rh)"])
    source = open_source(path, mapping=mapping)
    assert source.features == {
        "humidity": "rh",
        "kelvin": "celsius_to_kelvin(t)",
        "speed": "hypot(t, rh)",
    }
    table = read(source)
    assert table.column_names[3:] == ["humidity", "kelvin", "speed"]
    assert table.column("kelvin").to_pylist() == [274.65, None, 276.65]
    assert [f.unit for f in suggest_schema(source, "x").features] == ["", "K", ""]


def test_source_schema_decides_features_and_types(path: Path) -> None:
    schema = Schema("x", [Feature("rh"), Feature("station", type="text"), Feature("t")])
    table = read(open_source(path, schema=schema))
    assert table.schema.equals(
        pa.schema([(f.name, f.type) for f in schema.observation_schema]), check_metadata=False
    )
    assert table.column("rh").to_pylist() == [40.0, 50.0, 70.0]


def test_source_feature_without_variable_raises(path: Path) -> None:
    schema = Schema("x", [Feature("t"), Feature("gust")])
    with raises(InputError, expected="mapped_feature", feature="gust"):
        read(open_source(path, schema=schema))


def test_source_unmapped_feature_is_null(path: Path) -> None:
    schema = Schema("x", [Feature("t"), Feature("gust"), Feature("humidity")])
    mapping = Mapping.parse(["humidity=rh"])
    source = open_source(path, schema=schema, mapping=mapping)
    table = read(source)
    assert table.column("gust").to_pylist() == [None] * 3
    assert table.column("humidity").to_pylist() == [40.0, 50.0, 70.0]
    assert table.column("t").to_pylist() == [1.5, None, 3.5]
    assert source.features["gust"] == ""


def test_source_mapping_to_unknown_feature_raises(path: Path) -> None:
    schema = Schema("x", [Feature("temperature")])
    with raises(InvalidSchema, expected="known_feature", feature="temperatur"):
        read(open_source(path, schema=schema, mapping=Mapping.parse(["temperatur=t"])))


def test_source_mapping_from_unknown_variable_raises(path: Path) -> None:
    with raises(UnknownProperty, nearest=None, variable="temp"):
        read(open_source(path, mapping=Mapping.parse(["t=temp"])))


def test_source_value_of_other_type_raises_with_row(path: Path) -> None:
    path.write_text(TEXT + "1,2,2020-01-01,warm,1,E\n")
    schema = Schema("x", [Feature("t")])
    with raises(InvalidObservations, row=6, column="t"):
        read(open_source(path, schema=schema))


# --- batches and digests ---------------------------------------------------------------------


@given(st.lists(st.integers(0, 7), max_size=12), st.integers(1, 9))
def test_rebatch_random_pieces_gives_full_batches(pieces: list[int], rows_max: int) -> None:
    numbers = iter(range(sum(pieces)))
    tables = [
        pa.table({"n": pa.array([next(numbers) for _ in range(size)], pa.int64())})
        for size in pieces
    ]

    def arriving() -> Iterator[pa.Table]:
        yield from tables

    batches = list(rebatch(arriving(), rows_max=rows_max))
    assert [n for batch in batches for n in batch.column("n").to_pylist()] == list(
        range(sum(pieces))
    )
    assert all(batch.num_rows == rows_max for batch in batches[:-1])
    assert all(0 < batch.num_rows <= rows_max for batch in batches)


@pytest.mark.parametrize("rows_max", [1, 2, 3, 100])
def test_source_batches_repeat(path: Path, rows_max: int) -> None:
    first, second = (list(open_source(path).batches(rows_max)) for _ in range(2))
    assert len(first) == -(-3 // rows_max)
    assert all(a.equals(b) for a, b in zip(first, second, strict=True))


def test_source_batches_of_zero_rows_raises(path: Path) -> None:
    with raises(InputError, option="rows_max"):
        open_source(path).batches(0)


def test_source_digest_equal_for_equal_batches_only(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere.csv"
    copy.write_bytes(path.read_bytes())
    changed = tmp_path / "changed.csv"
    changed.write_text(TEXT.replace("1.5", "1.6"))
    schema = Schema("x", [Feature("t")])
    base = open_source(path).digest()
    assert base == open_source(path).digest() == open_source(copy).digest()
    others = [
        open_source(changed).digest(),
        open_source(path).digest(rows_max=10),
        open_source(path, mapping=Mapping.parse(["t=t"])).digest(),
        open_source(path, mapping=Mapping.parse(["t=rh"])).digest(),
        open_source(path, mapping=Mapping.parse(["time=@2020-01-01"])).digest(),
        open_source(path, mapping=Mapping.parse(["latitude=lon"])).digest(),
        open_source(path, mapping=Mapping.parse(["longitude=lat"])).digest(),
        open_source(path, mapping=Mapping(missing=(("rh", "50"),))).digest(),
        open_source(path, mapping=Mapping(csv=CsvOptions(time_zone="Europe/Berlin"))).digest(),
        open_source(path, schema=schema).digest(),
        open_source(path, schema=Schema("y", [Feature("t")])).digest(),
    ]
    assert len({base, *others}) == 1 + len(others)
    assert len(base) <= 64


# --- suggested schemas -----------------------------------------------------------------------


def test_suggest_schema_ids_and_late_columns_are_not_indexed(tmp_path: Path) -> None:
    rows = 50
    columns = {"lat": [1.0] * rows, "lon": [2.0] * rows, "time": ["2020-01-01"] * rows}
    columns |= {"kind": ["a", "b"] * (rows // 2)}
    columns |= {f"v{number}": [1.0] * rows for number in range(DEFAULT_INDEXED_MAX + 2)}
    path = tmp_path / "wide.csv"
    table = pa.table(columns | {"url": [f"http://{number}" for number in range(rows)]})
    path.write_text(table.to_pandas().to_csv(index=False))
    source = open_source(path)
    schema = suggest_schema(source, "wide")
    assert len(schema.indexed) == DEFAULT_INDEXED_MAX
    assert schema.indexed[0].name == "kind"
    assert schema.features[-1] == Feature("url", type="text", indexed=False)
    mapped = open_source(path, mapping=Mapping.parse(["link=url"]))
    assert suggest_schema(mapped, "wide").indexed == (Feature("link", type="text"),)


def test_suggest_schema_features_of_the_key_are_indexed(path: Path) -> None:
    source = open_source(path)
    schema = suggest_schema(source, "points", index=["rh"], key=["station"])
    assert schema.key_features == ("station",)
    assert [feature.name for feature in schema.indexed] == ["rh", "station"]
    with raises(InvalidSchema, feature="t"):
        suggest_schema(source, "points", key=["t"])
    with raises(UnknownProperty, nearest="station"):
        suggest_schema(source, "points", key=["stations"])


def test_suggest_schema_key_counts_among_the_features_indexed_by_default(tmp_path: Path) -> None:
    columns = {"lat": [1.0], "lon": [2.0], "time": ["2020-01-01"]}
    columns |= {f"v{number}": [1.0] for number in range(DEFAULT_INDEXED_MAX + 2)}
    path = tmp_path / "wide.csv"
    path.write_text(pa.table(columns | {"id": [7]}).to_pandas().to_csv(index=False))
    schema = suggest_schema(open_source(path), "wide", key=["id"])
    assert len(schema.indexed) == DEFAULT_INDEXED_MAX
    assert schema.indexed[-1].name == "id"


def test_suggest_schema_reserved_names_are_renamed(tmp_path: Path) -> None:
    path = tmp_path / "odd.parquet"
    table = pa.table(
        {"Lat": [1.0], "Lon": [2.0], "Time": ["2020-01-01"], "Wind Speed": [3.0], "block": [4]}
    )
    pq.write_table(table, path)
    plain = open_source(path)
    schema = suggest_schema(plain, "odd")
    assert [f.name for f in schema.features] == ["wind_speed", "block_value"]
    assert read(open_source(path, schema=schema)).equals(read(plain))


# --- features that were added to the dataset -----------------------------------------------------

BASE = Schema("air", [Feature("t"), Feature("rh")])


def test_source_without_an_added_feature_is_as_before(path: Path) -> None:
    wider = BASE.with_features([Feature("gust"), Feature("site", type="text")])
    before, after = open_source(path, schema=BASE), open_source(path, schema=wider)
    assert after.digest() == before.digest()
    assert after.features["gust"] == ""
    table = read(after)
    assert table.select(["t", "rh"]) == read(before).select(["t", "rh"])
    assert table.column("gust").null_count == table.num_rows


def test_source_with_an_added_feature_is_another_one(path: Path) -> None:
    wider = BASE.with_features([Feature("gust"), Feature("station", type="text")])
    before, after = open_source(path, schema=BASE), open_source(path, schema=wider)
    assert after.digest() != before.digest()
    assert set(read(after).column("station").to_pylist()) == {"A", "B", "NA"}


def test_source_without_a_first_feature_is_refused_also_with_added_ones(path: Path) -> None:
    wider = Schema("air", [Feature("t"), Feature("wind")]).with_features([Feature("rh")])
    with raises(InputError, expected="mapped_feature", feature="wind"):
        open_source(path, schema=wider).digest()
