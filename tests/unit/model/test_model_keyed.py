"""Keyed datasets: their definition, the versions that observations become, and their keys."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import DuplicateKey, InvalidObservations, InvalidSchema
from galileo.model.keyed import (
    deleted_rows,
    folded,
    hashes_of,
    ids_of,
    index_versions,
    key_of,
    keys_of_ids,
    placed_keys,
    refuse_duplicates,
    sent_rows,
    still_held,
)
from galileo.model.observations import normalise
from galileo.model.schema import (
    KEY_FEATURES_MAX,
    VERSION_SCHEMA,
    Feature,
    Schema,
    StoredSchema,
)
from galileo.model.stored_schema import stored_schema_from_json

FEATURES = [
    Feature("station", type="text"),
    Feature("number", type="int"),
    Feature("is_moored", type="bool"),
    Feature("height"),
    Feature("remark", type="text", indexed=False),
]
KEY = ("station", "number", "is_moored")
BUOYS = Schema("buoys", FEATURES, geohash_precision=2, time_bucket="1h", key=KEY)
PLAIN = Schema("buoys", FEATURES, geohash_precision=2, time_bucket="1h")
START = dt.datetime(2012, 3, 1, tzinfo=dt.UTC)
ROW = {
    "latitude": 50.0,
    "longitude": 5.0,
    "time": START,
    "station": "a",
    "number": 1,
    "is_moored": True,
    "height": 0.5,
    "remark": None,
}


def row(**values: Any) -> dict[str, Any]:
    return ROW | values


def table_of(rows: list[dict[str, Any]], schema: Schema = BUOYS) -> pa.Table:
    """Normalised observations."""
    if rows and "deleted" in rows[0]:
        return normalise(schema, pa.Table.from_pylist(rows, schema.version_schema))
    return normalise(schema, pa.Table.from_pylist(rows, schema.observation_schema))


def by_hemisphere(cells: Any, _: Any) -> Any:
    """The partitions 0 and 1, of the south and the north."""
    return ((cells >> np.uint64(8)) & np.uint64(1)).astype(np.int32)


# --- the definition ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("place", "key"),
        (["station", "place"], "key"),
        ([1], "key"),
        (["station", "station"], "key"),
        ("height", "key_type"),
        ("remark", "key_type"),
    ],
)
def test_schema_with_a_wrong_key_is_refused(key: Any, expected: str) -> None:
    with raises(InvalidSchema, expected=expected):
        Schema("buoys", FEATURES, key=key)


def test_key_has_eight_features_at_most() -> None:
    features = [Feature(f"part_{number}", type="int") for number in range(KEY_FEATURES_MAX + 1)]
    names = [feature.name for feature in features]
    assert Schema("buoys", features, key=names[1:]).key_features == tuple(names[1:])
    with raises(InvalidSchema, expected="key", bound=KEY_FEATURES_MAX):
        Schema("buoys", features, key=names)


def test_name_of_the_column_of_deletions_is_taken_in_keyed_datasets_alone() -> None:
    features = [Feature("station", type="text"), Feature("deleted", type="bool")]
    assert Schema("buoys", features).feature("deleted") is not None
    with raises(InvalidSchema, expected="free_name", feature="deleted"):
        Schema("buoys", features, key="station")
    with raises(InvalidSchema, expected="free_name", feature="deleted"):
        BUOYS.with_features([Feature("deleted", type="bool")])


def test_one_name_is_a_key_of_one_feature() -> None:
    schema = Schema("buoys", FEATURES, key="station")
    assert schema.key_features == ("station",)
    assert schema == Schema("buoys", FEATURES, key=["station"])
    assert (schema.is_keyed, PLAIN.is_keyed) == (True, False)
    assert schema != PLAIN.placed_by(0)


def test_schema_as_json_is_read_back() -> None:
    added = BUOYS.with_features([Feature("salinity")])
    for schema in (BUOYS, BUOYS.placed_by(3), added.placed_by(2).of_generation(4), PLAIN):
        assert Schema.from_dict(schema.to_dict()) == schema
        assert stored_schema_from_json(schema.to_json()) == schema
    assert {"key", "range_epoch"}.isdisjoint(PLAIN.to_dict())


@pytest.mark.parametrize("key", [["place"], ["height"], 3, [["station"]]])
def test_dict_with_a_wrong_key_is_refused(key: Any) -> None:
    with pytest.raises(InvalidSchema):
        Schema.from_dict(BUOYS.to_dict() | {"key": key})


def test_wanted_schema_does_not_name_the_ranges_that_the_cluster_chose() -> None:
    created = BUOYS.placed_by(2)
    assert created.range_epoch == 2
    assert created.is_wanted(BUOYS)
    assert created.is_wanted(BUOYS.placed_by(1))
    others: list[StoredSchema] = [PLAIN, Schema("buoys", FEATURES, key=KEY)]
    assert not any(created.is_wanted(other) for other in others)
    assert created.placed_by(2) == created
    assert PLAIN.placed_by(2) is PLAIN


def test_columns_say_whether_rows_are_deleted_in_keyed_datasets_alone() -> None:
    assert BUOYS.version_schema.names == [*BUOYS.observation_schema.names, "deleted"]
    assert BUOYS.path_schema.names == [*BUOYS.graph_schema.names, *VERSION_SCHEMA.names]
    assert PLAIN.version_schema == PLAIN.observation_schema == BUOYS.observation_schema
    assert PLAIN.path_schema == PLAIN.graph_schema == BUOYS.graph_schema


# --- observations --------------------------------------------------------------------------------


def test_rows_without_a_column_of_deletions_delete_nothing() -> None:
    rows = pa.Table.from_pylist([row(), row(number=2)], BUOYS.observation_schema)
    normal = normalise(BUOYS, rows)
    assert normal.schema == BUOYS.version_schema
    assert normal.column("deleted").to_pylist() == [False, False]
    assert normalise(PLAIN, rows).schema == PLAIN.observation_schema


def test_column_of_deletions_is_kept() -> None:
    rows = [row(deleted=True), row(number=2, deleted=False)]
    normal = normalise(BUOYS, pa.Table.from_pylist(rows, BUOYS.version_schema))
    assert normal.column("deleted").to_pylist() == [True, False]
    assert normalise(BUOYS, normal) == normal
    assert normalise(BUOYS, normal.select(normal.column_names[::-1])) == normal


@pytest.mark.parametrize(
    "deleted",
    [
        pa.array([0, 1]),
        pa.array(["yes", "no"]),
        pa.array([True, None]),
        pa.nulls(2, pa.bool_()),
        pa.nulls(2),
    ],
)
def test_column_of_deletions_of_another_type_or_with_nulls_is_refused(deleted: pa.Array) -> None:
    rows = pa.Table.from_pylist([row(), row(number=2)], BUOYS.observation_schema)
    with raises(InvalidObservations, expected="bool", column="deleted"):
        normalise(BUOYS, rows.append_column("deleted", deleted))


def test_dataset_without_a_key_refuses_deletions() -> None:
    rows = pa.Table.from_pylist([row(deleted=False)], BUOYS.version_schema)
    with pytest.raises(InvalidObservations):
        normalise(PLAIN, rows)


def test_deleted_rows_have_the_key_and_nothing_else() -> None:
    rows = deleted_rows(BUOYS, table_of([row(), row(number=None, height=2.0)]).drop(["remark"]))
    normal = normalise(BUOYS, rows)
    assert normal.column("deleted").to_pylist() == [True, True]
    for name in ("height", "remark"):
        assert normal.column(name).null_count == 2
    assert normal.column("number").to_pylist() == [1, None]
    assert (hashes_of(BUOYS, normal) == hashes_of(BUOYS, table_of([row(), row(number=None)]))).all()


def test_deleted_rows_without_a_part_of_the_key_are_refused() -> None:
    rows = deleted_rows(BUOYS, table_of([row()]).drop(["number"]))
    with pytest.raises(InvalidObservations):
        normalise(BUOYS, rows)


# --- versions ------------------------------------------------------------------------------------

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "latitude": st.sampled_from([-60.0, -59.99, 50.0, 60.0]),
            "longitude": st.just(5.0),
            "time": st.sampled_from([0, 59, 60]).map(lambda m: START + dt.timedelta(minutes=m)),
            "station": st.sampled_from([None, "", "a", "ab"]),
            "number": st.sampled_from([None, 0, 1, -1]),
            "is_moored": st.sampled_from([None, False, True]),
            "height": st.floats(0, 9),
            "remark": st.none(),
            "deleted": st.booleans(),
        }
    ),
    max_size=30,
)


@given(rows=ROWS, repeats=st.lists(st.integers(0, 29), max_size=20))
@examples(100)
def test_index_versions_keeps_the_last_row_of_each_key(
    rows: list[dict[str, Any]], repeats: list[int]
) -> None:
    """Against a dict of the keys as people see them."""
    rows = rows + [rows[n] | {"height": 10.0 + n} for n in repeats if n < len(rows)]
    versions = table_of(rows) if rows else BUOYS.version_schema.empty_table()
    last = {tuple(key_of(BUOYS, versions, n)): n for n in range(len(rows))}
    since = np.arange(100, 100 + len(rows))
    parts = index_versions(BUOYS, versions, place=by_hemisphere, since=since)
    kept = list[int]()
    for stored, batch in parts.values():
        assert stored.schema == BUOYS.observation_schema
        assert batch.schema == BUOYS.path_schema
        assert batch.column("row").to_pylist() == list(range(stored.num_rows))
        kept += [moment - 100 for moment in batch.column("since").to_pylist()]
    together = [
        one | {"deleted": is_deleted}
        for stored, batch in parts.values()
        for one, is_deleted in zip(
            stored.to_pylist(), batch.column("deleted").to_pylist(), strict=True
        )
    ]
    assert sorted(kept) == sorted(last.values())
    assert together == versions.take(pa.array(kept, pa.int64())).to_pylist()
    hashes = [
        tuple(pair)
        for _, batch in parts.values()
        for pair in zip(*(batch.column(half).to_pylist() for half in ("high", "low")), strict=True)
    ]
    assert hashes == [tuple(pair) for pair in hashes_of(BUOYS, versions)[kept].tolist()]
    assert len({*hashes}) == len(last)


@pytest.mark.parametrize(
    "other",
    [
        {"latitude": 70.0},
        {"time": START + dt.timedelta(hours=1)},
        {"station": None},
        {"station": ""},
        {"number": 0},
        {"number": None},
        {"is_moored": False},
        {"is_moored": None},
    ],
)
def test_rows_of_other_blocks_or_values_are_other_keys(other: dict[str, Any]) -> None:
    refuse_duplicates(BUOYS, table_of([row(), row(**other)]))
    assert len(index_of([row(), row(**other)])) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"station": None}, {"station": ""}),
        ({"number": None}, {"number": 0}),
        ({"is_moored": None}, {"is_moored": False}),
        ({"number": None, "is_moored": False}, {"number": 0, "is_moored": None}),
    ],
)
def test_null_is_a_value_of_its_own(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert len(index_of([row(**first), row(**second)])) == 2
    assert len(index_of([row(**first), row(**first)])) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"latitude": 50.1},
        {"time": START + dt.timedelta(minutes=59)},
        {"height": None},
        {"remark": "x"},
    ],
)
def test_other_rows_of_a_key_replace_each_other(other: dict[str, Any]) -> None:
    assert index_of([row(), row(**other)]) == [row(**other)]
    with raises(DuplicateKey, key=["u0", "2012-03-01T00:00:00Z", "a", 1, True]):
        refuse_duplicates(BUOYS, table_of([row(number=7), row(), row(**other)]))


def test_added_feature_is_no_part_of_the_key() -> None:
    wide = BUOYS.with_features([Feature("salinity", type="int")])
    rows = table_of([row(salinity=1)], wide)
    assert (hashes_of(wide, rows) == hashes_of(BUOYS, table_of([row()]))).all()


def test_rows_that_are_sent_to_an_owner_are_indexed_as_at_the_sender() -> None:
    versions = table_of([row(deleted=True), row(number=2, deleted=False), row(deleted=False)])
    [(stored, batch)] = index_versions(BUOYS, versions, place=everywhere).values()
    sent = sent_rows(stored, batch)
    assert sent.schema == BUOYS.version_schema
    [(again, same)] = index_versions(BUOYS, sent, place=everywhere).values()
    assert (again, same) == (stored, batch)


def everywhere(cells: Any, _: Any) -> Any:
    return np.zeros(len(cells), dtype=np.int32)


def index_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that are stored of some."""
    parts = index_versions(BUOYS, table_of(rows), place=everywhere)
    return [one for stored, _ in parts.values() for one in stored.to_pylist()]


# --- ids -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from("abc"), st.booleans()), max_size=9))
def test_id_has_the_partition_and_the_hash_of_the_key(keys: list[tuple[int, str, bool]]) -> None:
    rows = table_of([row(station=station, is_moored=moored) for _, station, moored in keys])
    places = np.array([place for place, *_ in keys], dtype=np.int32)
    ids = ids_of(BUOYS, places, rows).to_pylist()
    halves = [(int(high), int(low)) for high, low in hashes_of(BUOYS, rows)]
    pairs = zip(places.tolist(), halves, strict=True)
    assert ids == [f"p{place}.{high:016x}{low:016x}" for place, (high, low) in pairs]
    sought = keys_of_ids(ids)
    assert sought is not None
    found, hashes = placed_keys(BUOYS, sought)
    assert found.tolist() == places.tolist()
    assert [tuple(map(int, pair)) for pair in hashes] == halves


@pytest.mark.parametrize(
    "wrong",
    ["", "p1", "p1.17.3", f"p1.{31 * 'a'}", f"p1.{32 * 'A'}", f"p1.{33 * 'a'}", 7, f"1.{32 * 'a'}"],
)
def test_keys_of_ids_of_other_texts_is_none(wrong: Any) -> None:
    assert keys_of_ids([f"p1.{32 * 'a'}", wrong]) is None


@pytest.mark.parametrize("key", [(), ("station",)])
@pytest.mark.parametrize("seed", range(20))
def test_folded_equals_one_update_after_the_other(key: tuple[str, ...], seed: int) -> None:
    features = [Feature("station", type="text"), Feature("level", type="int")]
    schema = Schema("buoys", features, key=key)
    rng = np.random.default_rng(seed)

    def labels(count: int) -> pa.Table:
        chosen = rng.choice(12, count, replace=False)
        numbers = {"cell": chosen % 3, "row": chosen, "sequence": rng.integers(0, 2, count)}
        columns = {
            field.name: pa.array(numbers.get(field.name, np.zeros(count, dtype=np.int64)))
            for field in schema.label_schema
        }
        columns["station"] = pa.array([f"s{number // 3}" for number in chosen], pa.string())
        arrays = [columns[field.name].cast(field.type) for field in schema.label_schema]
        return pa.table(arrays, schema=schema.label_schema)

    updates = [(labels(rng.integers(5)), labels(rng.integers(5))) for _ in range(12)]
    held = schema.label_schema.empty_table()
    for withdrawn, new in updates:
        kept = still_held(schema, held, withdrawn=withdrawn, new=new)
        held = pa.concat_tables([kept, new])
    assert folded(schema, updates).equals(held)
