"""MQTT, with a real server (mosquitto)."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pandas as pd
import pytest
import pytest_asyncio
from made_up_notifications import chunk, nothing_but_gone
from mosquitto import START_TIMEOUT_S, MosquittoServer, needs_mosquitto
from paho.mqtt.enums import CallbackAPIVersion
from proving import Certified

import galileo
from galileo.errors import ConfigError
from galileo.worker.addresses import AddressPolicy
from galileo.worker.endpoints import DeliveryError, DisabledError, RefusedError
from galileo.worker.mqtt import MqttEndpoint
from galileo.worker.secrets import Secret

HERE = AddressPolicy(["127.0.0.1"])
MANY = [(tuple(range(20)), tuple(f"s{number}" for number in range(50)))]
pytestmark = needs_mosquitto


@pytest.fixture
def start(tmp_path: Path, unused_tcp_port: int) -> Iterator[Callable[..., MosquittoServer]]:
    """Starts a server with some settings."""
    running: list[MosquittoServer] = []

    def started(*settings: str) -> MosquittoServer:
        running.append(MosquittoServer(tmp_path, unused_tcp_port, *settings))
        running[0].start()
        return running[0]

    yield started
    for server in running:
        server.stop()


class Subscriber:
    """A client that keeps all messages."""

    def __init__(self, port: int) -> None:
        self.got: list[mqtt.MQTTMessage] = []
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.on_message = lambda client, data, message: self.got.append(message)
        self._client.connect("127.0.0.1", port)
        self._client.subscribe("smog/#", qos=1)
        self._client.loop_start()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def wait_for(self, count: int) -> list[mqtt.MQTTMessage]:
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(self.got) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.got


@pytest_asyncio.fixture
async def open_endpoint() -> AsyncIterator[Callable[..., object]]:
    opened: list[MqttEndpoint] = []

    async def endpoint(
        server: MosquittoServer,
        text: str = "",
        wis2: str = "",
        *,
        url: str = "",
        policy: AddressPolicy = HERE,
        insecure: bool = True,
    ) -> MqttEndpoint:
        metadata_id = "urn:wmo:md:ch-example:air" if wis2 else ""
        sink = galileo.Mqtt(
            url or server.url, topic="smog/{subscription}", wis2=wis2, metadata_id=metadata_id
        )
        secret = Secret("ops", ("*",), insecure=insecure, _text=text) if text else None
        opened.append(await MqttEndpoint.connect(sink, secret, policy))
        return opened[-1]

    yield endpoint
    for one in opened:
        await one.close()


async def test_each_notification_is_a_message_in_order(start, open_endpoint) -> None:
    server = start("allow_anonymous true")
    subscriber = Subscriber(server.port)
    endpoint = await open_endpoint(server)
    sent = chunk(MANY)
    await endpoint.deliver(sent)
    got = subscriber.wait_for(1_000)
    subscriber.close()
    expected = sent.notifications.to_arrow()
    assert [message.topic for message in got] == [
        f"smog/{name}" for name in expected["subscription"].to_pylist()
    ]
    features = [json.loads(message.payload) for message in got]
    assert [one["properties"]["pm10"] for one in features] == expected["pm10"].to_pylist()
    assert all(message.qos == 1 for message in got)
    properties = dict(got[3].properties.UserProperty)
    assert properties["id"] == "smog/ops/2/7/3"
    assert got[3].properties.ContentType == "application/geo+json"


async def test_messages_of_wis2_link_to_a_gateway(start, open_endpoint) -> None:
    server = start("allow_anonymous true")
    subscriber = Subscriber(server.port)
    endpoint = await open_endpoint(server, wis2="https://gateway.example.org/")
    sent = chunk([((0,), ("anna", "bert"))])
    await endpoint.deliver(sent)
    await endpoint.deliver(sent)
    got = [json.loads(message.payload) for message in subscriber.wait_for(4)]
    subscriber.close()
    assert [one["id"] for one in got[:2]] == [one["id"] for one in got[2:]]
    assert str(uuid.UUID(got[0]["id"])) != got[1]["id"]
    first = got[0]
    assert first["type"] == "Feature"
    assert first["conformsTo"] == ["http://wis.wmo.int/spec/wnm/1/conf/core"]
    assert first["geometry"] == {"type": "Point", "coordinates": [8, 47]}
    assert first["properties"]["data_id"] == "smog/anna/smog/ops/2/7/0"
    assert first["properties"]["datetime"] == "2024-06-01T12:00:00Z"
    assert pd.Timestamp(first["properties"]["pubtime"]).tz is not None
    assert first["properties"]["metadata_id"] == "urn:wmo:md:ch-example:air"
    assert first["properties"]["cache"] is False
    content = first["properties"]["content"]
    digest = hashlib.sha512(content["value"].encode()).digest()
    assert first["properties"]["integrity"] == {
        "method": "sha512",
        "value": base64.b64encode(digest).decode(),
    }
    assert content["size"] == len(content["value"].encode())
    assert json.loads(content["value"])["subscription"] == "anna"
    [link] = first["links"]
    assert link["rel"] == "canonical"
    assert link["href"] == (
        "https://gateway.example.org/collections/air/items?"
        "bbox=8,47,8,47&datetime=2024-06-01T12:00:00Z"
    )


async def test_what_has_a_meaning_in_topics_is_encoded(start, open_endpoint) -> None:
    server = start("allow_anonymous true")
    subscriber = Subscriber(server.port)
    endpoint = await open_endpoint(server)
    await endpoint.deliver(chunk([((0,), ("a/b", "#", "ä%"))]))
    got = subscriber.wait_for(3)
    subscriber.close()
    assert [message.topic for message in got] == ["smog/a%2Fb", "smog/%23", "smog/ä%25"]


async def test_a_connection_that_ends_is_not_opened_again_and_leaves_no_copies(
    start, open_endpoint
) -> None:
    server = start("allow_anonymous true")
    endpoint = await open_endpoint(server)
    server.stop()
    for _ in range(3):
        with pytest.raises(DeliveryError) as failed:
            await endpoint.deliver(chunk(MANY))
        assert type(failed.value) is DeliveryError
    server.start()
    subscriber = Subscriber(server.port)
    with pytest.raises(DeliveryError):
        await endpoint.deliver(chunk())
    await (await open_endpoint(server)).deliver(chunk([((0,), ("last",))]))
    assert [message.topic for message in subscriber.wait_for(1)] == ["smog/last"]
    subscriber.close()


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    """A file of passwords with that of one user."""
    path = tmp_path / "passwords"
    command = ["mosquitto_passwd", "-c", "-b", str(path), "ops", "right"]
    subprocess.run(command, check=True, capture_output=True)
    return path


async def test_a_wrong_password_disables_the_broker(start, open_endpoint, passwords: Path) -> None:
    server = start("allow_anonymous false", f"password_file {passwords}")
    with pytest.raises(DisabledError):
        await open_endpoint(server, "ops:wrong")
    await (await open_endpoint(server, "ops:right")).deliver(chunk())


async def test_a_password_is_not_sent_without_tls_unless_its_rule_allows_that(
    start, open_endpoint
) -> None:
    server = start("allow_anonymous true")
    with pytest.raises(ConfigError, match="without TLS"):
        await open_endpoint(server, "ops:right", insecure=False)


async def test_tls_is_for_the_name_at_the_address_that_was_checked(
    start, open_endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is known to the policy alone: a library that looks it up again finds nothing."""
    files = Certified.made(tmp_path).of("node", "mqtt", hosts=("mqtt.example",))
    monkeypatch.setenv("SSL_CERT_FILE", str(files / "authority.pem"))
    pair = (f"certfile {files / 'certificate.pem'}", f"keyfile {files / 'key.pem'}")
    server = start("allow_anonymous true", *pair)

    async def look_up(host: str, port: int) -> list[str]:
        return addresses

    policy = AddressPolicy(["127.0.0.0/8"], look_up=look_up)
    addresses = ["127.0.0.2", "127.0.0.1"]  # Nothing listens at the first one.
    url = f"mqtts://mqtt.example:{server.port}"
    endpoint = await open_endpoint(server, "ops:right", url=url, policy=policy, insecure=False)
    await endpoint.deliver(chunk())
    with pytest.raises(DeliveryError, match="certificate"):
        await open_endpoint(server, url=url.replace("mqtt.", "other."), policy=policy)
    addresses = ["127.0.0.1", "10.0.0.1"]
    with pytest.raises(ConfigError):
        await open_endpoint(server, url=url, policy=policy)


async def test_a_topic_without_permission_disables_the_broker(
    start, open_endpoint, tmp_path: Path
) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic readwrite smog/anna\n")
    server = start("allow_anonymous true", f"acl_file {rules}")
    endpoint = await open_endpoint(server)
    await endpoint.deliver(chunk([((0,), ("anna",))]))
    with pytest.raises(DisabledError):
        await endpoint.deliver(chunk([((0,), ("bert",))]))


async def test_messages_that_are_too_large_are_refused(start, open_endpoint) -> None:
    server = start("allow_anonymous true", "max_packet_size 4000")
    endpoint = await open_endpoint(server)
    subscriber = Subscriber(server.port)
    with pytest.raises(RefusedError) as refused:
        await endpoint.deliver(chunk([((0,), ("anna", "s" * 3_000, "bert"))]))
    assert refused.value.numbers == [1]
    assert len(subscriber.wait_for(2)) == 2
    subscriber.close()


async def test_a_topic_that_is_too_long_is_refused(start, open_endpoint) -> None:
    endpoint = await open_endpoint(start("allow_anonymous true"))
    with pytest.raises(RefusedError) as refused:
        await endpoint.deliver(chunk([((0,), ("s" * 70_000,))]))
    assert refused.value.numbers == [0]


async def test_what_is_gone_is_said_once_for_all_subscriptions(start, open_endpoint) -> None:
    server = start("allow_anonymous true")
    subscriber = Subscriber(server.port)
    await (await open_endpoint(server)).deliver(nothing_but_gone())
    [message] = subscriber.wait_for(1)
    subscriber.close()
    assert message.topic == "smog/"
    assert json.loads(message.payload)["gone"] == [
        {"partition": 2, "first": 3, "last": 7, "commits": 5}
    ]
    attributes = dict(message.properties.UserProperty)
    assert (attributes["type"], attributes["id"]) == ("galileo.gone", "smog/ops/2/gone/3-7")
