"""Schemas: what they refuse, and what they say about themselves."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError, InvalidSchema
from galileo.geo.geohash import PRECISION_MAX
from galileo.model.schema import (
    ARROW_TYPES,
    FEATURES_MAX,
    RESERVED,
    Feature,
    Schema,
    dataset_name,
    nearest_name,
)

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(
    lambda name: name.lower() not in RESERVED
)
features = st.builds(
    Feature,
    names,
    unit=st.text(max_size=5),
    type=st.sampled_from(sorted(ARROW_TYPES)),
    indexed=st.booleans(),
)
schemas = st.builds(
    Schema,
    st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,63}", fullmatch=True),
    st.lists(features, min_size=1, max_size=6, unique_by=lambda feature: feature.name),
    geohash_precision=st.integers(1, PRECISION_MAX),
    time_bucket=st.integers(10**6, 366 * 86400 * 10**6).map(lambda us: us / 10**6),
)


@given(schemas)
def test_a_schema_survives_json_and_pickle(schema: Schema) -> None:
    assert Schema.from_json(schema.to_json()) == schema
    assert Schema.from_dict(schema.to_dict()) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert hash(Schema.from_json(schema.to_json())) == hash(schema)


@given(schemas)
def test_the_three_arrow_schemas_have_the_features_in_order(schema: Schema) -> None:
    every = [feature.name for feature in schema.features]
    indexed = [feature.name for feature in schema.features if feature.indexed]
    assert schema.observation_schema.names == ["latitude", "longitude", "time", *every]
    assert schema.path_schema.names == ["cell", "bucket", *indexed, "row", "rows"]
    assert schema.label_schema.names == [*schema.path_schema.names, "partition", "sequence"]
    for feature in schema.features:
        field = schema.observation_schema.field(feature.name)
        assert (field.type, field.nullable) == (feature.arrow_type, True)


def test_features_are_found_by_name() -> None:
    schema = Schema("nam", [Feature("temperature", "K"), Feature("humidity", "%", indexed=False)])
    assert schema.feature("humidity") == Feature("humidity", "%", indexed=False)
    assert schema.feature("Humidity") is None
    assert [feature.name for feature in schema.indexed] == ["temperature"]
    assert schema.nearest("temprature") == "temperature"
    assert schema.nearest("xyz") is None


def test_the_nearest_name_ignores_case() -> None:
    assert nearest_name("TEMP", ["pressure", "Temp"]) == "Temp"


def test_a_bucket_is_kept_to_the_microsecond() -> None:
    schema = Schema("nam", [Feature("t")], time_bucket="1500ms")
    assert schema.time_bucket_us == 1_500_000


@pytest.mark.parametrize("name", ["", "1t", "a-b", "a b", "é", "x" * 65, None, 5])
def test_a_feature_name_that_is_unfit_is_refused(name: str) -> None:
    with pytest.raises(InvalidSchema, match="expected a feature name of letters"):
        Feature(name)


@pytest.mark.parametrize("name", [*sorted(RESERVED), "Time"])
def test_a_reserved_feature_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidSchema, match=f"the feature name '{name}' is taken"):
        Feature(name)


def test_an_unknown_feature_type_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="the type float, int, text or bool"):
        Feature("t", type="double")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "Nam", "-a", ".a", "a/b", "a" * 65, "é", None])
def test_a_dataset_name_that_is_unfit_is_refused(name: object) -> None:
    with pytest.raises(InvalidSchema, match="expected a dataset name of a-z"):
        dataset_name(name)


@pytest.mark.parametrize("count", [0, FEATURES_MAX + 1])
def test_the_number_of_features_is_bounded(count: int) -> None:
    with pytest.raises(InvalidSchema, match=f"expected 1 to 256 features, got {count}"):
        Schema("nam", [Feature(f"f{i}") for i in range(count)])


def test_a_feature_named_twice_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="feature 't' is given twice"):
        Schema("nam", [Feature("t"), Feature("u"), Feature("t", "K")])


@pytest.mark.parametrize("precision", [0, 13, 5.5, 5.0, True, "5", None])
def test_a_precision_that_is_no_whole_number_from_1_to_12_is_refused(precision: int) -> None:
    with pytest.raises(InvalidSchema, match="expected a geohash_precision from 1 to 12"):
        Schema("nam", [Feature("t")], geohash_precision=precision)


@pytest.mark.parametrize("width", ["999ms", "367d", 0.5])
def test_a_bucket_out_of_bounds_is_refused(width: str | float) -> None:
    with pytest.raises(InvalidSchema, match="expected a time_bucket from 1s to 366d"):
        Schema("nam", [Feature("t")], time_bucket=width)


def test_a_bucket_that_is_no_duration_is_refused() -> None:
    with pytest.raises(InputError, match="expected a duration"):
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
def test_a_damaged_description_is_refused(damage: dict[str, object]) -> None:
    raw = Schema("nam", [Feature("t")]).to_dict() | damage
    with pytest.raises(InvalidSchema):
        Schema.from_dict(raw)
    with pytest.raises(InvalidSchema):
        Schema.from_json(json.dumps(raw))


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"name": "nam"}'])
def test_text_that_describes_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchema, match="expected a schema"):
        Schema.from_json(text)


def test_arrow_types_are_those_of_the_store() -> None:
    schema = Schema("nam", [Feature("a"), Feature("b", type="int"), Feature("c", type="text")])
    kinds = [schema.observation_schema.field(name).type for name in "abc"]
    assert kinds == [pa.float64(), pa.int64(), pa.string()]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("lat", "latitude"), ("Temprature", "temperature"), ("nods", None), ("t", None), ("x", None)],
)
def test_the_nearest_name_is_near_or_begins_so(name: str, nearest: str | None) -> None:
    assert nearest_name(name, ["latitude", "temperature", "snow"]) == nearest
