"""Columns of files and tables that Galileo did not write: names, missing values, empty files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.client.table_formats import WRITERS as EXPORTS
from galileo.errors import InputError
from galileo.formats import Source, open_source, suggest_schema
from galileo.formats.mapping import Mapping
from galileo.formats.memory import open_table
from galileo.formats.reader import NOWHERE, Reader
from galileo.formats.variables import VariableInfo, default_features
from galileo.model.observations import normalise
from galileo.model.schema import Feature, Schema

PLACE = {"latitude": 40.0, "longitude": -105.0, "time": "2014-03-01T00:00:00Z"}
Row = dict[str, Any]


def write_geojson(path: Path, rows: list[Row]) -> None:
    features = [
        {
            "type": "Feature",
            "geometry": {"type": "Point", "coordinates": [row["longitude"], row["latitude"]]},
            "properties": {k: v for k, v in row.items() if k not in ("latitude", "longitude")},
        }
        for row in rows
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))


def write_ndjson(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def table_of_rows(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows)


def write_csv(path: Path, rows: list[Row]) -> None:
    pa.csv.write_csv(table_of_rows(rows), path)


def write_arrow(path: Path, rows: list[Row]) -> None:
    table = table_of_rows(rows)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[Path, list[Row]], None]] = {
    "geojson": write_geojson,
    "ndjson": write_ndjson,
    "csv": write_csv,
    "parquet": lambda path, rows: pa.parquet.write_table(table_of_rows(rows), path),
    "arrow": write_arrow,
}


def source_of(
    form: str, path: Path, rows: list[Row], *, mapping: Mapping, schema: Schema | None = None
) -> Source:
    if form == "frame":
        reader = open_table(table_of_rows(rows).to_pandas(), mapping)
        return Source(None, reader, format="", mapping=mapping, schema=schema)
    WRITERS[form](path, rows)
    return open_source(path, format=form, mapping=mapping, schema=schema)


def values(source: Source) -> list[Row]:
    return [row for batch in source.batches() for row in batch.drop_columns([*PLACE]).to_pylist()]


FORMS = [*WRITERS, "frame"]


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "names", [("T", "t"), ("t", "T"), ("pm2.5", "pm2_5"), ("t", "T", "t_2"), ("a b", "A-B", "a_b")]
)
def test_columns_with_similar_names_are_features_of_their_own(
    tmp_path: Path, form: str, names: tuple[str, ...]
) -> None:
    path, row = tmp_path / "x", PLACE | {name: i + 0.5 for i, name in enumerate(names)}
    created = source_of(form, path, [row], mapping=Mapping())
    schema = suggest_schema(created, "x", index=list(created.features)[1:])
    read = created.bound_to(schema)
    assert read.features == created.features
    [stored] = values(read)
    assert {read.features[k]: v for k, v in stored.items()} == {n: row[n] for n in names}
    # Another file of the feed, in which a column has no value, keeps the others in their features.
    later = source_of(form, path, [row | {names[0]: None}], mapping=Mapping(), schema=schema)
    kept = {k: None if created.features[k] == names[0] else v for k, v in stored.items()}
    assert values(later) == [kept]


NAME = st.text("aA1_. -é", min_size=1, max_size=4)


@given(st.lists(st.tuples(NAME, st.booleans()), min_size=1, max_size=8, unique_by=lambda v: v[0]))
def test_names_of_features_are_distinct_and_found_again(columns: list[tuple[str, bool]]) -> None:
    """`columns`: names, and whether the column has a value."""

    def infos(empty: str | None = None) -> list[VariableInfo]:
        return [
            VariableInfo(name, type="float" if full and name != empty else None, default=full)
            for name, full in columns
        ]

    full = [name for name, is_full in columns if is_full]
    if not full:
        return
    pairs = dict(default_features(infos()))
    assert sorted(pairs.values()) == sorted(full)
    assert all(Feature(name).name == name for name in pairs)
    for feature, name in pairs.items():
        assert name == feature or feature not in [other for other, _ in columns]
    schema = Schema("x", [Feature(name) for name in pairs])
    for empty in (None, *full):
        reader = Reader(NOWHERE, infos(empty), 1, lambda names: ())
        bound = Source(None, reader, format="", mapping=Mapping(), schema=schema)
        assert bound.features == pairs


def test_file_wider_than_a_dataset_is_bound_by_name(tmp_path: Path) -> None:
    path, row = tmp_path / "x", PLACE | {f"c{number}": 1.5 for number in range(300)}
    schema = Schema("x", [Feature("c7")])
    assert values(source_of("csv", path, [row], mapping=Mapping(), schema=schema)) == [{"c7": 1.5}]
    row = (
        PLACE
        | {f"{name}" * 70: 1.5 for name in "абвг"}
        | {f"\N{EURO SIGN}{i}": 2.5 for i in range(300)}
    )
    row |= {chr(0x4E00 + number): 3.5 for number in range(300)} | {"c7": 0.5}
    assert values(source_of("csv", path, [row], mapping=Mapping(), schema=schema)) == [{"c7": 0.5}]


# --- columns and files without values --------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mapped", [(), ("v=v", "gust=gust", "n=n", "s=s", "b=b")])
def test_column_without_a_value_is_null(tmp_path: Path, form: str, mapped: tuple[str, ...]) -> None:
    features = [
        Feature("v"), Feature("gust"), Feature("n", type="int"), Feature("s", type="text"),
        Feature("b", type="bool"),
    ]  # fmt: skip
    row = {"v": 1.5, "gust": None, "n": None, "s": None, "b": None}
    mapping = Mapping.of(Mapping.parse(mapped), -999)
    path, schema = tmp_path / "x", Schema("x", features)
    assert values(source_of(form, path, [PLACE | row], mapping=mapping, schema=schema)) == [row]


@pytest.mark.parametrize("form", FORMS)
def test_expression_of_a_column_without_a_value_has_the_type_of_the_others(
    tmp_path: Path, form: str
) -> None:
    mapping = Mapping.parse(["s=coalesce(gust, name)", "w=coalesce(gust, v)", "g=nullif(gust, 9)"])
    rows = [PLACE | {"gust": None, "name": "a", "v": 2.5}]
    source = source_of(form, tmp_path / "x", rows, mapping=mapping)
    assert values(source) == [{"s": "a", "w": 2.5, "g": None}]
    with raises(InputError, expected="value", feature="g"):  # No value tells its type.
        suggest_schema(source, "x")


@pytest.mark.parametrize("form", FORMS)
def test_row_without_a_place_or_time_in_the_whole_file_is_skipped(
    tmp_path: Path, form: str
) -> None:
    for name in PLACE:
        if form == "geojson" and name != "time":
            continue
        rows = [PLACE | {name: None, "v": 1.5}] * 2
        source = source_of(form, tmp_path / "x", rows, mapping=Mapping())
        assert (values(source), source.skipped) == ([], 2)


def test_geojson_without_any_geometry_has_no_place(tmp_path: Path) -> None:
    path = tmp_path / "x.geojson"
    feature = {"type": "Feature", "geometry": None, "properties": {"time": "2014-03-01", "v": 1.5}}
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    source = open_source(path)
    assert (values(source), source.skipped) == ([], 1)


EMPTY = {
    "geojson": b'{"type": "FeatureCollection", "features": []}',
    "ndjson": b"",
    "csv": b"latitude,longitude,time,v,n\n",
    "csv without a newline": b"latitude,longitude,time,v,n",
    "ndjson of a blank line": b"\n",
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("mapped", [(), ("v=v",)])
def test_file_without_rows_is_empty_to_a_dataset_and_creates_none(
    tmp_path: Path, name: str, mapped: tuple[str, ...]
) -> None:
    path, schema = tmp_path / "x", Schema("x", [Feature("v"), Feature("n", type="int")])
    path.write_bytes(EMPTY[name])
    mapping, form = Mapping.parse(mapped), name.split()[0]
    source = open_source(path, format=form, mapping=mapping, schema=schema)
    assert (values(source), source.rows, source.skipped) == ([], 0, 0)
    with pytest.raises(InputError):
        suggest_schema(open_source(path, format=form, mapping=mapping), "x")


def test_parquet_without_rows_is_empty_and_has_types(tmp_path: Path) -> None:
    path, table = tmp_path / "x", table_of_rows([PLACE | {"v": 1.5, "n": 1}]).slice(0, 0)
    pa.parquet.write_table(table, path)
    schema = suggest_schema(open_source(path), "x")
    assert [feature.type for feature in schema.features] == ["float", "int"]
    assert values(open_source(path, schema=schema)) == []


# --- there and back --------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["parquet", "arrow", "ndjson", "geojson", "geoparquet"])
def test_exported_observations_are_read_as_they_were(tmp_path: Path, form: str) -> None:
    rows = [
        {"v": 1.5, "n": (1 << 53) + 1, "s": "", "b": True, "gust": None},
        {"v": None, "n": None, "s": "NA", "b": False, "gust": None},
        {"v": -0.0, "n": -(1 << 63), "s": None, "b": None, "gust": None},
        {"v": 1e300, "n": 0, "s": 'null "\n\\', "b": None, "gust": None},
    ]
    types: dict[str, Any] = {"v": "float", "n": "int", "s": "text", "b": "bool", "gust": "float"}
    schema = Schema("x", [Feature(name, type=kind) for name, kind in types.items()])
    table = normalise(schema, pa.Table.from_pylist([PLACE | row for row in rows]))
    path = tmp_path / "x"
    with path.open("wb") as sink:
        writer = EXPORTS[form](sink, table.schema)
        writer.write(table)
        writer.close()
    reader = {"geoparquet": "parquet"}.get(form, form)
    read = open_source(path, format=reader, schema=schema)
    found = pa.concat_tables(normalise(schema, batch) for batch in read.batches())
    assert found.select([*types]).to_pylist() == rows
    assert found.select([*PLACE]).equals(table.select([*PLACE]))
