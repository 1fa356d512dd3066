"""Channels: what they refuse, and what is stored of them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError, InvalidSchema
from galileo.model.channel import (
    BROKER,
    ID,
    KEEP_MIN_S,
    NAME_MAX,
    PERIOD_MAX_S,
    PERIOD_MIN_S,
    SUBSCRIPTIONS,
    Channel,
)
from galileo.model.enrichment import Lookup, Within
from galileo.model.schema import Feature, Schema
from galileo.model.stored_schema import stored_schema_from_json
from galileo.model.table import Table
from galileo.model.times import TIME_MIN_US, times_from_micros

AIR = Schema("air", [Feature("temperature", "K"), Feature("kind", type="text")])
HOT = Channel("hot", "air", "temperature > :least", columns=["time", "kind"])
BOUND = HOT.bound(AIR, [("least", "float"), ("name", "text")], start={3: 7, 1: 2}, partitions=4)

plain = st.builds(
    Channel,
    st.from_regex(r"[a-z][a-z0-9_-]{0,40}", fullmatch=True),
    st.from_regex(r"[a-z][a-z0-9_-]{0,63}", fullmatch=True),
    st.text(min_size=1).filter(str.strip),
    period=st.floats(PERIOD_MIN_S, PERIOD_MAX_S),
    columns=st.lists(st.sampled_from(AIR.observation_schema.names), unique=True),
    keep=st.floats(KEEP_MIN_S, 1e9),
)
repetitive = st.builds(
    lambda age_max: Channel("now", "air", "temperature > :least", new="none", age_max=age_max),
    st.none() | st.floats(1e-6, 1e9),
)
positions = st.dictionaries(st.integers(0, 4095), st.integers(1, 2**40), max_size=5)


@given(plain | repetitive, st.integers(0, 9))
def test_channel_json_round_trip_is_equal(channel: Channel, generation: int) -> None:
    for one in (channel, channel.of_generation(generation)):
        assert Channel.from_json(one.to_json()) == one
        assert stored_schema_from_json(one.to_json()) == one
        assert one.is_wanted(channel)


@given(plain | repetitive, positions)
def test_bound_channel_json_round_trip_is_equal(channel: Channel, start: dict[int, int]) -> None:
    bound = channel.bound(AIR, [("least", "float")], start=start, partitions=3)
    again = Channel.from_json(bound.of_generation(2).to_json())
    assert again == bound.of_generation(2)
    assert dict(again.start) == start
    assert again.is_wanted(channel)
    assert bound.extends(again.of_generation(0))


def test_channel_as_json_is_told_from_a_table_and_a_dataset() -> None:
    assert isinstance(stored_schema_from_json(BOUND.to_json()), Channel)
    assert isinstance(stored_schema_from_json(BOUND.subscriptions.to_json()), Table)
    assert isinstance(stored_schema_from_json(AIR.to_json()), Schema)


def test_channel_has_a_table_of_its_subscriptions() -> None:
    table = BOUND.subscriptions
    assert table.name == HOT.subscription_table == "hot" + SUBSCRIPTIONS
    assert table.partitions == BOUND.partitions == 4
    columns = {ID: "text", BROKER: "text", "least": "float", "name": "text"}
    assert table == Table(table.name, columns, key=ID).spread(4)


def test_channel_delivers_its_columns_or_all() -> None:
    assert BOUND.delivered_schema.names == ["time", "kind"]
    whole = Channel("hot", "air", "temperature > :least").bound(AIR, [], start={}, partitions=1)
    assert whole.delivered_schema == AIR.observation_schema


def test_channel_of_another_definition_is_not_the_same() -> None:
    others = [
        Channel("hot", "air", "temperature < :least", columns=["time", "kind"]),
        Channel("hot", "sea", "temperature > :least", columns=["time", "kind"]),
        Channel("hot", "air", "temperature > :least", columns=["kind", "time"]),
        Channel("hot", "air", "temperature > :least", columns=["time", "kind"], period="5s"),
        Channel("hot", "air", "temperature > :least", columns=["time", "kind"], keep="1d"),
    ]
    assert not any(BOUND.is_wanted(other) for other in [*others, AIR, BOUND.subscriptions])


def test_channel_of_unknown_columns_is_refused_when_it_is_bound() -> None:
    channel = Channel("hot", "air", "temperature > :least", columns=["time", "humidity"])
    with raises(InputError, parameter="columns"):
        channel.bound(AIR, [], start={}, partitions=1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "h" * (NAME_MAX + 1)}, "channel_name"),
        ({"name": f"hot{SUBSCRIPTIONS}"}, "channel_name"),
        ({"name": "Hot Things"}, "dataset_name"),
        ({"dataset": ""}, "dataset_name"),
        ({"template": ""}, "template"),
        ({"template": " \n"}, "template"),
        ({"template": None}, "template"),
        ({"period": "90ms"}, "period"),
        ({"period": "400d"}, "period"),
        ({"period": 0}, "positive_duration"),
        ({"period": float("nan")}, "positive_duration"),
        ({"keep": "999ms"}, "keep"),
        ({"keep": -1}, "positive_duration"),
        ({"columns": "time"}, "columns"),
        ({"columns": ["time", "time"]}, "columns"),
        ({"columns": [5]}, "columns"),
        ({"new": "nothing"}, "new"),
        ({"new": None}, "new"),
        ({"new": "none", "leave": True}, "leave"),
        ({"age_max": "1h"}, "age_max"),
        ({"new": "either", "age_max": "1h"}, "age_max"),
        ({"new": "none", "age_max": "1 fathom"}, "duration"),
        ({"new": "none", "age_max": 0}, "positive_duration"),
    ],
)
def test_channel_of_a_wrong_definition_is_refused(changes: dict[str, Any], expected: str) -> None:
    wanted = {"name": "hot", "dataset": "air", "template": "temperature > :least", **changes}
    places = [wanted.pop(name) for name in ("name", "dataset", "template")]
    with raises(InputError if expected.endswith("duration") else InvalidSchema, expected=expected):
        Channel(*places, **wanted)


@pytest.mark.parametrize("name", sorted(BOUND.to_dict()))
@pytest.mark.parametrize("value", [None, -1.5, "x", [5], [[5]], {}])
def test_channel_from_other_json_is_refused_or_equal(name: str, value: Any) -> None:
    """No value makes another error than that of wrong input."""
    raw = {**BOUND.to_dict(), name: value}
    try:
        channel = Channel.from_json(json.dumps(raw))
    except (InvalidSchema, InputError):
        return
    assert Channel.from_json(channel.to_json()) == channel


@pytest.mark.parametrize("name", ["name", "dataset", "template", "period_us", "columns", "keep_us"])
def test_channel_from_json_without_a_value_is_refused(name: str) -> None:
    raw = BOUND.to_dict()
    del raw[name]
    with raises(InvalidSchema, expected="channel"):
        Channel.from_dict(raw)


@pytest.mark.parametrize("text", ["", "[1", "[]", "5", "null", '"x"', "[" * 100_000])
def test_channel_from_a_text_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchema):
        Channel.from_json(text)


def test_executions_are_as_new_as_the_last_of_them() -> None:
    at = times_from_micros(pa.array([5, 9, 7], pa.int64()).to_numpy())
    paths = pa.RecordBatch.from_arrays(
        [at, pa.array([0, 1, 2], pa.int32())], schema=HOT.path_schema
    )
    assert HOT.newest_us(paths) == 9
    assert HOT.newest_us(paths.slice(0, 0)) == TIME_MIN_US


RATINGS = Table("ratings", {"kind": "text", "stars": "int"}, "kind").spread(4)
ZONES = Table("zones", {"id": "text", "area": "geometry"}, "id").spread(4)
STEPS = (Lookup("ratings", "kind"), Within("zones"))


def enriched(**given: Any) -> Channel:
    channel = Channel("hot", "air", "temperature > :least", enrich=STEPS, **given)
    return channel.bound(AIR, [], start={}, partitions=4, references=[RATINGS, ZONES])


def test_enriched_channel_json_round_trip_is_equal() -> None:
    bound = enriched()
    assert Channel.from_json(bound.to_json()) == bound
    assert Channel.from_json(bound.unbound.to_json()) == bound.unbound
    assert bound.is_wanted(bound.unbound)
    assert not bound.is_wanted(HOT)


def test_enriched_channel_delivers_what_its_steps_add() -> None:
    added = ["ratings.stars", "zones"]
    whole = enriched()
    assert whole.delivered_schema.names == [*AIR.observation_schema.names, *added]
    few = enriched(columns=["time"])
    assert few.delivered_schema.names == ["time", *added]
    assert few.observed_schema.names == ["time"]
    assert few.needed_columns == ("kind", "latitude", "longitude")


def test_execution_of_an_enriched_channel_has_the_cut_of_its_tables() -> None:
    added = set(enriched().observation_schema.names) - set(BOUND.observation_schema.names)
    assert added == {"references", "reference_partitions", "reference_until"}


@pytest.mark.parametrize(
    "table", ["other.subscriptions", "other.dead-letters", "left", "subscription"]
)
def test_enrichment_by_a_table_of_a_channel_or_with_the_name_of_a_column_is_refused(
    table: str,
) -> None:
    with raises(InvalidSchema, expected="table"):
        Channel("hot", "air", "temperature > :least", enrich=[Within(table)])


def test_enrichment_that_does_not_fit_the_dataset_is_refused() -> None:
    channel = Channel("hot", "air", "temperature > :least", enrich=[Lookup("ratings", "town")])
    with raises(InputError, parameter="on"):
        channel.bound(AIR, [], start={}, partitions=4, references=[RATINGS])


# --- lookups of subscriptions ----------------------------------------------------------------

LOOKUP = {"ratings": ":kind", "limits": {":a": "x", ":b": "y"}}
LIMITS = Table("limits", {"x": "int", "y": "text", "least": "float"}, ["x", "y"]).spread(4)


def test_channel_with_lookups_json_round_trip_is_equal() -> None:
    made = Channel("hot", "air", "temperature > limits.least", lookup=LOOKUP)
    assert made.to_dict()["lookup"] == LOOKUP
    assert [(step.table, step.on) for step in made.lookup] == [
        ("limits", (("a", "x"), ("b", "y"))),
        ("ratings", "kind"),
    ]
    bound = made.bound(AIR, [], start={}, partitions=4, references=[LIMITS, RATINGS])
    assert Channel.from_json(bound.to_json()) == bound
    assert bound.is_wanted(made)
    assert bound.reference_tables == {"ratings": RATINGS, "limits": LIMITS}
    assert bound.delivered_schema == AIR.observation_schema
    assert bound.observation_schema == enriched().observation_schema
    assert "lookup" not in HOT.to_dict()


@pytest.mark.parametrize(
    "lookup",
    [
        "officers",
        ["officers"],
        {"officers": "officer"},
        {"officers": ":"},
        {"officers": ":a b"},
        {"officers": {}},
        {"officers": {"a": "x"}},
        {"officers": {":a": "x", ":b": 3}},
        {"officers": 3},
        {f"t{number}": ":a" for number in range(17)},
    ],
)
def test_lookups_that_name_no_parameters_are_refused(lookup: Any) -> None:
    with raises(InputError, parameter="lookup"):
        Channel("hot", "air", "temperature > officers.least", lookup=lookup)


def test_lookups_of_tables_of_channels_and_of_enrichment_are_refused() -> None:
    text = "temperature > ratings.stars"
    for table in ("other.subscriptions", "other.dead-letters"):
        with raises(InvalidSchema, expected="table"):
            Channel("hot", "air", text, lookup={table: ":kind"})
    with raises(InvalidSchema, expected="table"):
        Channel("hot", "air", text, lookup={"ratings": ":kind"}, enrich=STEPS)
