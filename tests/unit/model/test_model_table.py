"""Tables: their definition, the versions that rows become, and where keys are."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.errors import InvalidObservations, InvalidSchema
from galileo.model.schema import Feature, Schema
from galileo.model.stored_schema import stored_schema_from_json
from galileo.model.table import (
    KEY_BYTES_MAX,
    Table,
    deletions_of,
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


def test_deletions_of_rows_name_the_key_alone() -> None:
    [deleted] = deletions_of(SHELTERS, pa.table({"id": ["a"], "note": ["ignored"]})).to_pylist()
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
