"""Tables: their definition, the versions that rows become, and where keys are."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
import shapely
from expected_errors import raises

from galileo.errors import InvalidObservations, InvalidSchema
from galileo.model.schema import Feature, Schema
from galileo.model.stored_schema import stored_schema_from_json
from galileo.model.table import (
    KEY_BYTES_MAX,
    Table,
    deleted_rows,
    hashes_of,
    index_versions,
    partitions_of,
    versions_of,
)

COLUMNS = {"id": "text", "beds": "int", "open": "bool", "height": "float", "since": "time"}
SHELTERS = Table("shelters", COLUMNS, key="id").spread(8)


@pytest.mark.parametrize(
    ("columns", "key", "expected"),
    [
        ({}, "id", "columns"),
        ([("id", "text")], "id", "columns"),
        ({"my id": "text"}, "my id", "column_name"),
        ({"id": "text", "deleted": "bool"}, "id", "free_name"),
        ({"id": "uuid"}, "id", "column_type"),
        ({"id": "text"}, "name", "key"),
        ({"id": "text"}, [], "key"),
        ({"id": "text"}, ["id", "id"], "key"),
        ({"id": "float"}, "id", "key_type"),
        ({"id": "bool"}, "id", "key_type"),
        ({"id": "text", "place": "geometry"}, ["id", "place"], "key_type"),
    ],
)
def test_table_of_a_wrong_definition_is_refused(columns, key, expected) -> None:
    with raises(InvalidSchema, expected=expected):
        Table("shelters", columns, key)


def test_table_as_json_is_read_back_and_told_from_a_dataset() -> None:
    table = Table(
        "calibrations", {"station": "int", "valid_from": "time"}, ["station", "valid_from"]
    )
    for one in (table, table.spread(4), table.spread(4).of_generation(3)):
        assert stored_schema_from_json(one.to_json()) == one
    dataset = Schema("calibrations", [Feature("temperature")])
    assert stored_schema_from_json(dataset.to_json()) == dataset
    with raises(InvalidSchema, expected="table"):
        Table.from_json(dataset.to_json())
    assert table.spread(4).spread(8).partitions == 4, "it is spread once"
    assert table.of_generation(2).key == "calibrations@2"


def test_versions_of_rows_have_nulls_in_columns_that_are_not_given() -> None:
    rows = pa.table(
        {
            "id": pa.array(["a", "b"]).dictionary_encode(),
            "height": [1.5, float("nan")],
            "since": [dt.datetime(2014, 3, 1), None],
        }
    )
    versions = versions_of(SHELTERS, rows)
    assert versions.schema == SHELTERS.observation_schema
    since = dt.datetime(2014, 3, 1, tzinfo=dt.UTC)
    nothing = {"beds": None, "open": None, "deleted": False}
    assert versions.to_pylist() == [
        {"id": "a", "height": 1.5, "since": since} | nothing,
        {"id": "b", "height": None, "since": None} | nothing,
    ]


SITES = Table("sites", {"id": "text", "place": "geometry", "area": "geometry"}, key="id").spread(8)
PLACE = shapely.to_wkb(shapely.Point(1, 2))


def test_geometries_are_stored_as_wkb_in_any_form_they_come() -> None:
    assert stored_schema_from_json(SITES.to_json()) == SITES
    assert SITES.geometry_columns == ("place", "area")
    rows = pa.table({"id": ["a", "b", "c"], "place": ["POINT Z (1 2 3)", None, "point(1 2)"]})
    versions = versions_of(SITES, rows)
    assert versions.schema == SITES.observation_schema
    assert versions.column("place").to_pylist() == [PLACE, None, PLACE]
    assert versions.column("area").null_count == 3
    assert versions_of(SITES, versions, is_sent=True).equals(versions)
    [deleted] = versions_of(SITES, deleted_rows(SITES, rows.slice(0, 1))).to_pylist()
    assert deleted == {"id": "a", "place": None, "area": None, "deleted": True}


@pytest.mark.parametrize(
    ("values", "details"),
    [
        (["POINT (1 2)", "POINT (1 91)"], {"expected": "degrees", "column": "area", "row": 1}),
        (["home", None], {"expected": "geometry_type", "column": "area", "row": 0}),
        ([1, 2], {"expected": "column_type", "column": "area", "row": None}),
    ],
)
def test_geometries_that_queries_refuse_are_refused(values, details) -> None:
    with raises(InvalidObservations, **details):
        versions_of(SITES, pa.table({"id": ["a", "b"], "area": values}))


def test_geometries_in_another_coordinate_reference_system_are_refused() -> None:
    field = pa.field("area", pa.string(), metadata={"ARROW:extension:name": "geoarrow.wkt"})
    crs = {"ARROW:extension:metadata": '{"crs": "EPSG:3857"}'}
    field = field.with_metadata(field.metadata | {k.encode(): v for k, v in crs.items()})
    rows = pa.table([["a"], ["POINT (1 2)"]], schema=pa.schema([("id", pa.string()), field]))
    with raises(InvalidObservations, expected="crs", column="area"):
        versions_of(SITES, rows)


def test_sent_rows_take_no_more_memory_than_they_say() -> None:
    text = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(1_000_000, np.int8)), pa.array(["x" * 1_000])
    )
    with raises(InvalidObservations, column="id"):
        versions_of(SITES, pa.table({"id": text}), is_sent=True)
    blocks = pa.DictionaryArray.from_arrays(
        pa.array([0], pa.int8()), pa.array([b"x"], pa.binary(1))
    )
    with raises(InvalidObservations, expected="column_type", column="id"):
        versions_of(SITES, pa.table({"id": blocks}), is_sent=True)
    views = pa.array([PLACE] * 3, pa.binary_view())
    with raises(InvalidObservations, expected="column_type", column="place"):
        versions_of(SITES, pa.table({"id": ["a", "b", "c"], "place": views}), is_sent=True)


def test_deletions_of_rows_name_the_key_alone() -> None:
    keys = pa.table({"id": ["a"], "note": ["ignored"]})
    [deleted] = versions_of(SHELTERS, deleted_rows(SHELTERS, keys)).to_pylist()
    assert deleted == dict.fromkeys(COLUMNS) | {"id": "a", "deleted": True}


@pytest.mark.parametrize(
    ("rows", "details"),
    [
        ({"beds": [1]}, {"missing_columns": ["id"], "unknown_columns": []}),
        ({"id": ["a"], "bed": [1]}, {"missing_columns": [], "unknown_columns": ["bed"]}),
        ({"id": ["a", None]}, {"expected": "key", "column": "id", "row": 1}),
        ({"id": [1]}, {"expected": "column_type", "column": "id"}),
        ({"id": ["a"], "beds": ["many"]}, {"expected": "column_type", "column": "beds"}),
        ({"id": ["a"], "beds": [1.5]}, {"expected": "column_type", "column": "beds"}),
        ({"id": ["a"], "since": ["yesterday"]}, {"expected": "column_type", "column": "since"}),
        ({"id": ["a", "x" * (KEY_BYTES_MAX + 1)]}, {"expected": "key", "column": "id", "row": 1}),
    ],
)
def test_versions_of_rows_that_do_not_fit_are_refused(rows, details) -> None:
    with raises(InvalidObservations, **details):
        versions_of(SHELTERS, pa.table(rows))


def test_versions_of_a_column_given_twice_are_refused() -> None:
    rows = pa.table([["a"], ["b"]], names=["id", "id"])
    with raises(InvalidObservations, expected="columns_of_table"):
        versions_of(SHELTERS, rows)


def test_index_versions_splits_by_the_hash_of_the_key_in_order() -> None:
    chance = np.random.default_rng(1)
    names = pa.array([f"k{n}" for n in chance.integers(0, 40, 500)])
    versions = versions_of(SHELTERS, pa.table({"id": names, "beds": np.arange(500)}))
    parts = index_versions(SHELTERS, versions)
    partition_of = {
        name: int(place)
        for name, place in zip(
            names.to_pylist(), partitions_of(SHELTERS, hashes_of(SHELTERS, versions)), strict=True
        )
    }
    assert 1 < len(parts) <= 8
    for partition, (rows, paths) in parts.items():
        expected = [row for row in versions.to_pylist() if partition_of[row["id"]] == partition]
        assert rows.to_pylist() == expected
        assert paths.schema == SHELTERS.path_schema
        assert paths.num_rows == rows.num_rows
        alone = hashes_of(SHELTERS, rows)
        assert paths.column("high").to_numpy().tolist() == alone[:, 0].tolist()
        assert paths.column("low").to_numpy().tolist() == alone[:, 1].tolist()
    assert index_versions(SHELTERS, versions.slice(0, 0)) == {}


def test_hashes_of_keys_of_several_columns_differ_with_any_of_them() -> None:
    table = Table("parts", {"a": "text", "b": "text", "n": "int"}, ["a", "b", "n"]).spread(4)
    rows = pa.table({"a": ["x", "xy", "", "x"], "b": ["yz", "z", "xyz", "yz"], "n": [1, 1, 1, 2]})
    assert len(np.unique(hashes_of(table, versions_of(table, rows)), axis=0)) == 4
