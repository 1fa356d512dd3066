"""Schemas: what they refuse, and what they say about themselves."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest
from expected_errors import raises
from generated_schemas import schemas
from hypothesis import given

from galileo.errors import InputError, InvalidSchema
from galileo.model.schema import (
    FEATURES_MAX,
    RESERVED,
    Feature,
    Schema,
    dataset_name,
    features_from_json,
    features_to_json,
    nearest_name,
)


@given(schemas)
def test_schema_json_and_pickle_round_trip_is_equal(schema: Schema) -> None:
    assert Schema.from_json(schema.to_json()) == schema
    assert Schema.from_dict(schema.to_dict()) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert hash(Schema.from_json(schema.to_json())) == hash(schema)


@given(schemas)
def test_schema_arrow_schemas_keep_order_of_features(schema: Schema) -> None:
    every = [feature.name for feature in schema.features]
    indexed = [feature.name for feature in schema.features if feature.indexed]
    assert schema.observation_schema.names == ["latitude", "longitude", "time", *every]
    assert schema.path_schema.names == ["cell", "bucket", *indexed, "row", "rows"]
    assert schema.label_schema.names == [*schema.path_schema.names, "partition", "sequence"]
    for feature in schema.features:
        field = schema.observation_schema.field(feature.name)
        assert (field.type, field.nullable) == (feature.arrow_type, True)


def test_schema_feature_is_found_by_name() -> None:
    schema = Schema("nam", [Feature("temperature", "K"), Feature("humidity", "%", indexed=False)])
    assert schema.feature("humidity") == Feature("humidity", "%", indexed=False)
    assert schema.feature("Humidity") is None
    assert [feature.name for feature in schema.indexed] == ["temperature"]
    assert schema.nearest("temprature") == "temperature"
    assert schema.nearest("xyz") is None


def test_nearest_name_other_case_is_found() -> None:
    assert nearest_name("TEMP", ["pressure", "Temp"]) == "Temp"


def test_schema_time_bucket_is_exact_to_microsecond() -> None:
    schema = Schema("nam", [Feature("t")], time_bucket="1500ms")
    assert schema.time_bucket_us == 1_500_000


@pytest.mark.parametrize("name", ["", "1t", "a-b", "a b", "é", "x" * 65, None, 5])
def test_feature_invalid_name_raises(name: str) -> None:
    with raises(InvalidSchema, expected="feature_name"):
        Feature(name)


@pytest.mark.parametrize("name", [*sorted(RESERVED), "Time"])
def test_feature_reserved_name_raises(name: str) -> None:
    with raises(InvalidSchema, expected="free_name", feature=name):
        Feature(name)


def test_feature_unknown_type_raises() -> None:
    with raises(InvalidSchema, expected="feature_type", feature="t"):
        Feature("t", type="double")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "Nam", "-a", ".a", "a/b", "a" * 65, "é", None])
def test_dataset_name_invalid_name_raises(name: object) -> None:
    with raises(InvalidSchema, expected="dataset_name"):
        dataset_name(name)


@pytest.mark.parametrize("count", [0, FEATURES_MAX + 1])
def test_schema_feature_count_out_of_bounds_raises(count: int) -> None:
    with raises(InvalidSchema, expected="features", bound=256):
        Schema("nam", [Feature(f"f{i}") for i in range(count)])


def test_schema_duplicate_feature_raises() -> None:
    with raises(InvalidSchema, expected="unique", feature="t"):
        Schema("nam", [Feature("t"), Feature("u"), Feature("t", "K")])


@pytest.mark.parametrize("precision", [0, 13, 5.5, 5.0, True, "5", None])
def test_schema_invalid_precision_raises(precision: int) -> None:
    with raises(InvalidSchema, expected="precision", bound=12):
        Schema("nam", [Feature("t")], geohash_precision=precision)


@pytest.mark.parametrize("width", ["999ms", "367d", 0.5])
def test_schema_time_bucket_out_of_bounds_raises(width: str | float) -> None:
    with raises(InvalidSchema, expected="time_bucket"):
        Schema("nam", [Feature("t")], time_bucket=width)


def test_schema_time_bucket_of_other_text_raises() -> None:
    with raises(InputError, expected="duration"):
        Schema("nam", [Feature("t")], time_bucket="hourly")


@pytest.mark.parametrize(
    "damage",
    [
        {"name": None},
        {"features": [{"name": "t", "colour": "red"}]},
        {"features": [5]},
        {"features": 5},
        {"geohash_precision": "many"},
        {"time_bucket_us": None},
        {"time_bucket_us": float("inf")},
    ],
)
def test_schema_from_dict_invalid_value_raises(damage: dict[str, object]) -> None:
    raw = Schema("nam", [Feature("t")]).to_dict() | damage
    with pytest.raises(InvalidSchema):
        Schema.from_dict(raw)
    with pytest.raises(InvalidSchema):
        Schema.from_json(json.dumps(raw))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "json"), ("{", "json"), ("[]", "schema"), ("5", "schema"), ('{"name": "nam"}', "schema")],
)
def test_schema_from_json_other_text_raises(text: str, expected: str) -> None:
    with raises(InvalidSchema, expected=expected):
        Schema.from_json(text)


def test_schema_arrow_types_match_feature_types() -> None:
    schema = Schema("nam", [Feature("a"), Feature("b", type="int"), Feature("c", type="text")])
    kinds = [schema.observation_schema.field(name).type for name in "abc"]
    assert kinds == [pa.float64(), pa.int64(), pa.string()]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("lat", "latitude"), ("Temprature", "temperature"), ("nods", None), ("t", None), ("x", None)],
)
def test_nearest_name_similar_or_prefix_is_found(name: str, nearest: str | None) -> None:
    assert nearest_name(name, ["latitude", "temperature", "snow"]) == nearest


def test_schema_narrowed_to_names_keeps_the_last_named_feature() -> None:
    base = Schema("air", [Feature("heat")])
    wider = base.with_features([Feature(name) for name in ("gust", "site", "wet")])
    assert wider.narrowed_to(["heat", "nothing"]) == base
    assert wider.narrowed_to(["heat", "site"]) == wider.narrowed(2)
    assert wider.narrowed_to(wider.observation_schema.names) is wider
    assert base.narrowed_to([]) is base


def test_features_from_json_of_features_are_the_same() -> None:
    features = (Feature("gust", "m/s"), Feature("site", type="text", indexed=False))
    assert features_from_json(features_to_json(features)) == features


@pytest.mark.parametrize("text", ["", "3", "[3]", '[{"title":"gust"}]', '[{"name":"a b"}]'])
def test_features_from_json_of_something_else_are_refused(text: str) -> None:
    with pytest.raises(InvalidSchema):
        features_from_json(text)


def test_too_many_features_in_json_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[object]()
    monkeypatch.setattr("galileo.model.schema.Feature", lambda **given: made.append(given))
    text = json.dumps([{"name": "n"}] * (FEATURES_MAX + 1))
    with pytest.raises(InvalidSchema):
        features_from_json(text)
    with pytest.raises(InvalidSchema):
        Schema.from_dict({"name": "wide", "features": json.loads(text)})
    assert not made
