"""Kafka, with the mock cluster of librdkafka, which speaks the protocol over TCP."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from made_up_notifications import chunk, nothing_but_gone
from proving import Certified

import galileo
from galileo.errors import ConfigError
from galileo.worker.addresses import AddressPolicy
from galileo.worker.endpoints import DeliveryError, DisabledError, RefusedError
from galileo.worker.kafka import KafkaEndpoint
from galileo.worker.secrets import Secret

HERE = AddressPolicy(["127.0.0.1"])


def secret(text: str, *hosts: str) -> Secret:
    return Secret("ops", hosts or ("*",), insecure=False, _text=text)


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
    endpoint = await KafkaEndpoint.connect(sink, None, HERE)
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
    endpoint = await KafkaEndpoint.connect(sink, secret("max_request_size=1500"), HERE)
    with pytest.raises(RefusedError) as refused:
        await endpoint.deliver(chunk([((0,), ("anna", "s" * 3_000, "bert"))]))
    assert refused.value.numbers == [1]
    await endpoint.close()
    assert sorted(one.key() for one in consumed(servers, "large", 2)) == [b"anna", b"bert"]


async def test_what_is_gone_is_a_message_without_a_key(servers: str) -> None:
    endpoint = await KafkaEndpoint.connect(galileo.Kafka(servers, topic="gone"), None, HERE)
    await endpoint.deliver(nothing_but_gone())
    await endpoint.close()
    [message] = consumed(servers, "gone", 1)
    assert json.loads(message.value())["gone"] == [
        {"partition": 2, "first": 3, "last": 7, "commits": 5}
    ]
    assert dict(message.headers())["ce_type"] == b"galileo.gone"


async def test_an_endpoint_that_is_closed_sends_nothing_later() -> None:
    holder = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    [broker] = holder.list_topics(timeout=30).brokers.values()
    sink = galileo.Kafka(f"{broker.host}:{broker.port}", topic="closed")
    endpoint = await KafkaEndpoint.connect(sink, None, HERE)
    await endpoint.deliver(chunk())
    del holder  # From here on its cluster is away.
    tasks = len(asyncio.all_tasks(endpoint._loop))
    delivery = asyncio.create_task(endpoint.deliver(chunk(MANY)))
    for _ in range(1_000):
        await asyncio.sleep(0.01)
        if len(asyncio.all_tasks(endpoint._loop)) > tasks:
            break
    delivery.cancel()
    await endpoint.close()
    assert not endpoint._thread.is_alive()
    assert endpoint._loop.is_closed()
    with pytest.raises(asyncio.CancelledError):
        await delivery


async def test_settings_come_from_the_secret(servers: str) -> None:
    sink = galileo.Kafka(servers, topic="settings", secret="ops")
    for text in (
        "sasl_plain_username",
        "no.such.setting=1",
        "max_request_size=x",
        "compression_type=x",
    ):
        with pytest.raises(ConfigError):
            await KafkaEndpoint.connect(sink, secret(text), HERE)
    text = "# comment\ncompression_type = lz4\n"
    endpoint = await KafkaEndpoint.connect(sink, secret(text), HERE)
    await endpoint.deliver(chunk())
    await endpoint.close()
    assert len(consumed(servers, "settings", 4)) == 4


async def test_servers_that_are_away_are_tried_again_later(unused_tcp_port: int) -> None:
    sink = galileo.Kafka(f"127.0.0.1:{unused_tcp_port}", topic="away")
    with pytest.raises(DeliveryError) as failed:
        await KafkaEndpoint.connect(sink, None, HERE)
    assert type(failed.value) is DeliveryError


async def test_a_server_that_says_nothing_is_left(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("galileo.worker.kafka.TIMEOUT_S", 0.2)
    gone = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        gone.set()

    server = await asyncio.start_server(listen, "127.0.0.1", unused_tcp_port)
    sink = galileo.Kafka(f"127.0.0.1:{unused_tcp_port}", topic="silent")
    with pytest.raises(DeliveryError) as failed:
        await KafkaEndpoint.connect(sink, None, HERE)
    assert type(failed.value) is DeliveryError
    await gone.wait()
    server.close()


async def test_servers_that_are_named_by_servers_are_checked(servers: str) -> None:
    """The mock cluster says that its servers are at 127.0.0.1."""
    names = servers.replace("127.0.0.1", "kafka.example")

    async def look_up(host: str, port: int) -> list[str]:
        return {"kafka.example": ["127.0.0.1"]}.get(host, [host])

    sink = galileo.Kafka(names, topic="named", secret="ops")
    policy = AddressPolicy(["kafka.example"], look_up=look_up)
    with pytest.raises((ConfigError, DisabledError), match=r"public address of host '127.0.0.1'"):
        await _pushed(sink, None, policy)
    policy = AddressPolicy(["kafka.example", "127.0.0.1"], look_up=look_up)
    bound = secret("compression_type=gzip", "kafka.example")
    with pytest.raises((ConfigError, DisabledError), match=r"host that the secret 'ops' is for"):
        await _pushed(sink, bound, policy)
    await _pushed(sink, secret("compression_type=gzip"), policy)
    assert len(consumed(servers, "named", 4)) == 4


async def _pushed(sink: galileo.Kafka, given: Secret | None, policy: AddressPolicy) -> None:
    endpoint = await KafkaEndpoint.connect(sink, given, policy)
    try:
        await endpoint.deliver(chunk())
    finally:
        await endpoint.close()


async def test_tls_is_for_the_name_at_the_address_that_was_checked(tmp_path: Path) -> None:
    """The name is known to the policy alone: a library that looks it up again finds nothing."""
    certified = Certified.made(tmp_path)
    files = certified.of("node", "kafka", hosts=("kafka.example",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files / "certificate.pem", files / "key.pem")
    names: list[str] = []
    context.sni_callback = lambda connection, name, _: names.append(name)
    received = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1):  # The handshake is over: the client has verified the name.
            received.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]

    async def look_up(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    policy = AddressPolicy(["127.0.0.1"], look_up=look_up)
    text = f"security_protocol=SSL\ncafile={files / 'authority.pem'}"
    for host, is_right in (("other.example", False), ("kafka.example", True)):
        sink = galileo.Kafka(f"{host}:{port}", secret="ops")
        with pytest.raises(DeliveryError):
            await KafkaEndpoint.connect(sink, secret(text), policy)
        assert received.is_set() == is_right
    assert names == ["other.example", "kafka.example"]
    server.close()
