"""Brokers and their sinks as values."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.errors import InputError, InvalidObservations, InvalidSchema
from galileo.model.broker import Broker, check_circles, check_names, stored_broker


@pytest.mark.parametrize(
    "sink",
    [
        None,
        galileo.Webhook("https://example.org/alerts?x=1", secret="ops.2"),
        galileo.Webhook("http://[::1]:8080"),
        galileo.Mqtt("mqtts://example.org", topic="{broker}/{channel}/{subscription}"),
        galileo.Mqtt("mqtt://a", wis2="https://a.org", metadata_id="urn:wmo:md:ch-a:air"),
        galileo.Kafka("a:9092,b:9092", topic="alerts"),
        galileo.Into("alerts"),
    ],
)
def test_broker_is_the_same_after_json(sink: Any) -> None:
    broker = Broker("ops of the north", sink, channels=["smog"], hold="36h")
    assert Broker.from_json(json.dumps(broker.to_dict())) == broker


def test_bounds_are_the_same_after_json() -> None:
    broker = Broker("ops", galileo.Webhook("https://a.org"), attempts_max=3, age_max="10m")
    assert Broker.from_json(json.dumps(broker.to_dict())) == broker
    assert (broker.attempts_max, broker.age_max_us) == (3, 600 * 10**6)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: galileo.Broker(""), "broker_name"),
        (lambda: galileo.Broker("a/b"), "broker_name"),
        (lambda: galileo.Broker("a", "https://example.org"), "sink"),
        (lambda: galileo.Broker("a", channels="smog"), "channels"),
        (lambda: galileo.Broker("a", hold="91d"), "hold"),
        (lambda: galileo.Webhook("ftp://example.org"), "url"),
        (lambda: galileo.Webhook("https://"), "url"),
        (lambda: galileo.Webhook("https://user:password@example.org"), "url"),
        (lambda: galileo.Webhook("https://example.org/\n"), "url"),
        (lambda: galileo.Webhook("https://example.org:99999"), "url"),
        (lambda: galileo.Webhook("https://example.org", secret="../key"), "secret"),
        (lambda: galileo.Mqtt("mqtt://example.org/topic"), "url"),
        (lambda: galileo.Mqtt("mqtt://example.org", topic="smog/#"), "topic"),
        (lambda: galileo.Mqtt("mqtt://example.org", topic="{pm10}"), "topic"),
        (lambda: galileo.Mqtt("mqtt://example.org", topic="{channel.__class__}"), "topic"),
        (lambda: galileo.Mqtt("mqtt://example.org", topic="{channel:1500000000}"), "topic"),
        (lambda: galileo.Mqtt("mqtt://example.org", topic="{channel:{broker}}"), "topic"),
        (lambda: galileo.Mqtt("mqtt://example.org", topic="{channel!r}"), "topic"),
        (lambda: galileo.Mqtt("mqtt://a.org", wis2="https://a.org"), "metadata_id"),
        (lambda: galileo.Mqtt("mqtt://a.org", metadata_id="urn:wmo:md:a:b"), "metadata_id"),
        (lambda: galileo.Mqtt("mqtt://a", wis2="http://a", metadata_id="a:b"), "metadata_id"),
        (lambda: Broker("a", galileo.Webhook("https://a.org"), attempts_max=0), "attempts_max"),
        (lambda: Broker("a", galileo.Webhook("https://a.org"), attempts_max=True), "attempts_max"),
        (lambda: Broker("a", galileo.Into("alerts"), attempts_max=3), "sink"),
        (lambda: Broker("a", age_max="1h"), "sink"),
        (lambda: galileo.Kafka("example.org", topic="a"), "servers"),
        (lambda: galileo.Kafka("a:9092", topic="{subscription}"), "topic"),
        (lambda: galileo.Kafka("a:9092", topic="a b"), "topic"),
        (lambda: galileo.Into("Not A Name"), "dataset_name"),
        (lambda: Broker.from_json('{"name": "a", "sink": {"kind": "fax"}}'), "broker"),
        (lambda: Broker.from_json('{"name": "a", "sink": {"kind": "into"}}'), "broker"),
        (lambda: Broker.from_json("[]"), "broker"),
    ],
)
def test_wrong_values_are_refused_with_what_is_expected(make: Any, expected: str) -> None:
    with pytest.raises(InvalidSchema) as refused:
        make()
    assert refused.value.details["expected"] == expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
FIELDS = ("name", "sink", "channels", "hold_us", "attempts_max", "age_max_us")
SINK_FIELDS = ("kind", "url", "topic", "secret", "servers", "target", "wis2")
DEFINITIONS = st.dictionaries(st.sampled_from(FIELDS), VALUES) | VALUES
SINKS = st.dictionaries(st.sampled_from(SINK_FIELDS), VALUES | st.sampled_from(["mqtt", "into"]))


@given(
    definition=st.builds(
        lambda raw, sink: json.dumps(raw | {"sink": sink} if isinstance(raw, dict) else raw),
        DEFINITIONS,
        SINKS | st.none(),
    )
    | st.text(min_size=1, max_size=20)
)
def test_stored_broker_of_any_definition_is_the_broker_or_one_that_is_paused(
    definition: str,
) -> None:
    row = {"name": "mail", "definition": definition, "paused": None, "revision": 1}
    broker = stored_broker(row)
    assert broker is not None
    assert broker.name == "mail"
    if not broker.paused:
        assert Broker.from_json(definition) == broker
        return
    assert "cannot be read" in broker.paused
    assert not broker.takes("smog")
    assert broker.holds("smog", has_position=True)


def test_stored_broker_reads_rows_as_they_are() -> None:
    mail = Broker("mail", galileo.Into("alerts"), hold="1d")
    row = {"name": "mail", "definition": json.dumps(mail.to_dict()), "paused": "by hand"}
    assert stored_broker(row) == Broker("mail", galileo.Into("alerts"), hold="1d", paused="by hand")
    assert stored_broker(row | {"definition": ""}) is None
    other = stored_broker(row | {"name": "a/b"})
    assert other is not None
    assert (other.name, other.sink) == ("a/b", None)


def test_broker_takes_all_channels_or_those_it_names() -> None:
    sink = galileo.Into("alerts")
    assert Broker("ops", sink).takes("smog")
    assert Broker("ops", sink, channels=["smog"]).takes("smog")
    assert not Broker("ops", sink, channels=["near"]).takes("smog")
    assert not Broker("ops").takes("smog")


def test_hold_is_a_duration() -> None:
    assert Broker("mail", hold="90d").hold_us == 90 * 86_400 * 10**6
    assert Broker("mail").hold_us == 0
    for wrong in ("soon", 0, "-1d"):
        with pytest.raises(InputError):
            Broker("mail", hold=wrong)


@pytest.mark.parametrize("has_position", [True, False])
def test_broker_holds_the_channels_it_names_or_those_with_a_position(has_position: bool) -> None:
    named = Broker("mail", channels=["smog"], hold="1d")
    assert named.holds("smog", has_position=has_position)
    assert not named.holds("near", has_position=has_position)
    assert Broker("mail", hold="1d").holds("smog", has_position=has_position) == has_position
    assert not Broker("mail", channels=["smog"]).holds("smog", has_position=has_position)


def channel(name: str, dataset: str, **options: Any) -> galileo.Channel:
    return galileo.Channel(name, dataset, "pm10 > :least", **options)


def into(name: str, target: str, *channels: str) -> Broker:
    return Broker(name, galileo.Into(target), channels=channels)


@pytest.mark.parametrize(
    ("channels", "brokers"),
    [
        ([channel("smog", "air")], [into("a", "air")]),
        (
            [channel("smog", "air"), channel("high", "b")],
            [into("a", "b", "smog"), into("c", "air")],
        ),
        (
            [channel("one", "a"), channel("two", "b"), channel("three", "c")],
            [into("x", "b", "one"), into("y", "c", "two"), into("z", "a", "three")],
        ),
        (
            [channel("near", "air", new="either", lookup={"ships": ":ship"})],
            [into("a", "ships", "near")],
        ),
        ([channel("near", "air", new="both")], [into("a", "near.subscriptions", "near")]),
    ],
)
def test_sinks_that_feed_their_channels_are_refused(channels: Any, brokers: Any) -> None:
    with pytest.raises(InputError) as refused:
        check_circles(channels, brokers)
    assert "circle" in refused.value.message


@pytest.mark.parametrize(
    ("channels", "brokers"),
    [
        ([channel("smog", "air")], [into("a", "alerts"), Broker("b")]),
        ([channel("smog", "air"), channel("high", "b")], [into("a", "b", "smog")]),
        ([channel("smog", "air"), channel("other", "b")], [into("a", "air", "other")]),
        (
            [channel("near", "air", lookup={"ships": ":ship"})],
            [into("a", "ships", "near")],
        ),
    ],
)
def test_sinks_in_a_row_are_no_circle(channels: Any, brokers: Any) -> None:
    check_circles(channels, brokers)


@pytest.mark.parametrize("name", ["", "a/b", "a" * 201, "a\n"])
def test_subscriptions_name_brokers_that_could_be_created(name: str) -> None:
    with pytest.raises(InvalidSchema):
        Broker(name)
    with pytest.raises(InvalidObservations):
        check_names(pa.array(["ops", None, name]))
    check_names(pa.chunked_array([["ops", None]]))
    check_names(pa.array([1]))
