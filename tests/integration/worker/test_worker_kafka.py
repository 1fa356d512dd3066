"""Kafka, with the mock cluster of librdkafka, which speaks the protocol over TCP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from made_up_notifications import chunk, nothing_but_gone

import galileo
from galileo.errors import ConfigError
from galileo.worker.addresses import AddressPolicy
from galileo.worker.endpoints import DeliveryError, RefusedError
from galileo.worker.kafka import KafkaEndpoint

HERE = AddressPolicy(["127.0.0.1"])
MANY = [(tuple(range(20)), tuple(f"s{number}" for number in range(50)))]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    holder = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 2, "log_level": 0})
    brokers = holder.list_topics(timeout=30).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    holder.flush(0)


def consumed(servers: str, topic: str, count: int) -> list:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g"})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    got: list = []
    for _ in range(60):
        got += [one for one in consumer.consume(count, 1.0) if not one.error()]
        if len(got) >= count:
            break
    consumer.close()
    return got


async def test_each_notification_is_a_message_with_its_subscription_as_key(servers: str) -> None:
    sink = galileo.Kafka(servers, topic="{channel}-{broker}")
    endpoint = await KafkaEndpoint.connect(sink, "", HERE)
    sent = chunk(MANY)
    await endpoint.deliver(sent)
    await endpoint.close()
    got = consumed(servers, "smog-ops", 1_000)
    assert len(got) == 1_000
    expected = sent.notifications.to_arrow()
    by_key = {f"smog/ops/2/7/{number}": row for number, row in enumerate(expected.to_pylist())}
    of_subscription: dict[str, list[int]] = {}
    for message in got:
        key = dict(message.headers())["ce_id"].decode()
        row = by_key.pop(key)
        assert message.key().decode() == row["subscription"]
        assert json.loads(message.value())["properties"]["pm10"] == row["pm10"]
        of_subscription.setdefault(row["subscription"], []).append(int(key.split("/")[-1]))
    assert not by_key
    assert all(numbers == sorted(numbers) for numbers in of_subscription.values())


async def test_messages_that_are_too_large_are_refused(servers: str) -> None:
    sink = galileo.Kafka(servers, topic="large")
    endpoint = await KafkaEndpoint.connect(sink, "message.max.bytes=1500", HERE)
    with pytest.raises(RefusedError) as refused:
        await endpoint.deliver(chunk([((0,), ("anna", "s" * 3_000, "bert"))]))
    assert refused.value.numbers == [1]
    await endpoint.close()
    assert sorted(one.key() for one in consumed(servers, "large", 2)) == [b"anna", b"bert"]


async def test_what_is_gone_is_a_message_without_a_key(servers: str) -> None:
    endpoint = await KafkaEndpoint.connect(galileo.Kafka(servers, topic="gone"), "", HERE)
    await endpoint.deliver(nothing_but_gone())
    await endpoint.close()
    [message] = consumed(servers, "gone", 1)
    assert json.loads(message.value())["gone"] == [{"partition": 2, "first": 3, "last": 7}]
    assert dict(message.headers())["ce_type"] == b"galileo.gone"


async def test_an_endpoint_that_is_closed_sends_nothing_later(unused_tcp_port: int) -> None:
    sink = galileo.Kafka(f"127.0.0.1:{unused_tcp_port}", topic="away")
    endpoint = await KafkaEndpoint.connect(sink, "log_level=0", HERE)
    delivery = asyncio.create_task(endpoint.deliver(chunk()))
    for _ in range(1_000):
        await asyncio.sleep(0.01)
        if len(endpoint._producer):
            break
    delivery.cancel()
    await endpoint.close()
    assert not len(endpoint._producer)


async def test_settings_of_the_library_come_from_the_secret(servers: str) -> None:
    sink = galileo.Kafka(servers, topic="settings")
    for secret in ("sasl.username", "no.such.setting=1"):
        with pytest.raises(ConfigError):
            await KafkaEndpoint.connect(sink, secret, HERE)
    secret = "# comment\ncompression.type = lz4\n"
    endpoint = await KafkaEndpoint.connect(sink, secret, HERE)
    await endpoint.deliver(chunk())
    await endpoint.close()
    assert len(consumed(servers, "settings", 4)) == 4


async def test_servers_that_are_away_are_tried_again_later(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("galileo.worker.kafka.TIMEOUT_S", 1.0)
    sink = galileo.Kafka(f"127.0.0.1:{unused_tcp_port}", topic="away")
    endpoint = await KafkaEndpoint.connect(sink, "log_level=0", HERE)
    with pytest.raises(DeliveryError) as failed:
        await endpoint.deliver(chunk())
    assert type(failed.value) is DeliveryError
    await endpoint.close()
