"""A worker of a cluster with one copy while a node is away."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from pushed_channel import NOON
from waiting import wait_until
from webhook_receiver import WebhookReceiver

import galileo
from galileo.errors import TransientError

BROKERS = [f"broker{number}" for number in range(12)]


@pytest.fixture
def running(no_evaluator: dict[str, Any]) -> Iterator[galileo.LocalCluster]:
    with galileo.LocalCluster(nodes=3, settings={"evaluator": no_evaluator}) as made:
        yield made


@pytest.mark.slow
def test_what_other_nodes_have_is_pushed_while_a_node_is_away(
    running: galileo.LocalCluster,
) -> None:
    features = [galileo.Feature("number", type="int"), galileo.Feature("pm10")]
    place = {"latitude": [1.0], "longitude": [1.0], "time": [NOON], "pm10": [50.0]}
    with WebhookReceiver() as receiver, running.client(timeout="3s") as client, running.worker():
        client.create_dataset(galileo.Schema("air", features, geohash_precision=3))
        client.create_channel(galileo.Channel("smog", "air", "pm10 > :least", period="100ms"))
        for broker in BROKERS:
            client.create_broker(galileo.Broker(broker, galileo.Webhook(receiver.url)))
            ids = [f"{broker}-{number}" for number in range(20)]
            client.subscribe("smog", {"id": ids, "least": [1.0] * 20}, broker=broker)
        client.ingest("air", place | {"number": [1]})
        wait_until(lambda: len(set(receiver.pairs())) == 20 * len(BROKERS))
        running.nodes[2].kill()
        for latitude in range(-80, 90, 10):  # Those of the node that is away are refused.
            with contextlib.suppress(TransientError):
                client.ingest("air", place | {"latitude": [float(latitude)], "number": [2]})
        wait_until(lambda: len(reached(receiver, 2)) >= len(BROKERS) / 3)


def reached(receiver: WebhookReceiver, number: int) -> set[str]:
    """The brokers that have got an observation."""
    pairs = receiver.pairs("number")
    return {name.partition("-")[0] for name, value in pairs if value == number}
