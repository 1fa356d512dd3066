"""Brokers and their sinks as values."""

from __future__ import annotations

import json
from typing import Any

import pytest

import galileo
from galileo.errors import InputError, InvalidSchema
from galileo.model.broker import Broker


@pytest.mark.parametrize(
    "sink",
    [
        None,
        galileo.Webhook("https://example.org/alerts?x=1", secret="ops.2"),
        galileo.Webhook("http://[::1]:8080"),
        galileo.Mqtt("mqtts://example.org", topic="{broker}/{channel}/{subscription}"),
        galileo.Kafka("a:9092,b:9092", topic="alerts"),
        galileo.Into("alerts"),
    ],
)
def test_broker_is_the_same_after_json(sink: Any) -> None:
    broker = Broker("ops of the north", sink, channels=["smog"], hold="36h")
    assert Broker.from_json(json.dumps(broker.to_dict())) == broker


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
