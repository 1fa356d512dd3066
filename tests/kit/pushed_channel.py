"""A channel whose notifications are pushed, as fixtures and helpers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pandas as pd
import pytest
from executions import await_executed
from webhook_receiver import WebhookReceiver

import galileo

Fresh = Callable[[str], str]
NOON = pd.Timestamp("2026-05-02T12:00Z")


@pytest.fixture
def client(cluster: galileo.LocalCluster) -> Iterator[galileo.Client]:
    with cluster.client() as made:
        yield made


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as running:
        yield running


@pytest.fixture
def channel(client: galileo.Client, fresh_name: Fresh) -> Iterator[str]:
    """A channel of a dataset of the same name with `air-` before it; with their brokers removed."""
    name = fresh_name("pushed")
    features = [galileo.Feature("number", type="int"), galileo.Feature("pm10")]
    client.create_dataset(galileo.Schema(f"air-{name}", features, geohash_precision=3))
    client.create_channel(galileo.Channel(name, f"air-{name}", "pm10 > :least", period="100ms"))
    yield name
    for broker in client.brokers():
        client.drop_broker(broker.name)
    client.drop_dataset(name)


def observe(client: galileo.Client, channel: str, numbers: Sequence[int | None]) -> None:
    """Ingests observations that match all, and waits until they are executed."""
    place = {"latitude": 1.0, "longitude": 1.0, "time": NOON, "pm10": 50.0}
    rows = pd.DataFrame([place | {"number": number} for number in numbers])
    rows["number"] = rows["number"].astype("Int64")
    await_executed(client, channel, client.ingest(f"air-{channel}", rows).reached)


def subscribe(client: galileo.Client, channel: str, broker: str, count: int = 20) -> list[str]:
    ids = [f"{broker}{number}" for number in range(count)]
    client.subscribe(channel, {"id": ids, "least": [9.0] * count}, broker=broker)
    return ids


def product(ids: list[str], numbers: list[int]) -> list[tuple[str, int]]:
    return sorted((subscription, number) for subscription in ids for number in numbers)
