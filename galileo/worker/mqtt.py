"""Pushes to an MQTT server: version 5, quality of service 1, a message for each notification."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from galileo.client.ingestion import in_thread
from galileo.client.notification_json import MEDIA_TYPE, features
from galileo.errors import ConfigError
from galileo.model.broker import Mqtt
from galileo.redaction import hide
from galileo.worker.addresses import AddressPolicy
from galileo.worker.endpoints import (
    Chunk,
    DeliveryError,
    DisabledError,
    RefusedError,
)
from galileo.worker.secrets import Secret
from galileo.worker.wis2 import message

PORTS = {"mqtt": 1883, "mqtts": 8883}
TIMEOUT_S = 30.0
PACKET_BYTES_MAX = 268_435_460
"""Of the protocol; a server may announce less."""
TOPIC_BYTES_MAX = 65_535
HEAD_BYTES_MAX = 1_024
"""Of a message besides topic, attributes and payload."""
IN_FLIGHT_MAX = 256
"""Messages that wait for their acknowledgements, and of a chunk."""
KEEP_ALIVE_S = 30
_UNUSABLE = "/+#"
_REFUSED = ("Packet too large", "Payload format invalid", "Topic name invalid")
_DISABLED = ("Not authorized", "Bad user name or password", "Banned", "Bad authentication method")


class MqttEndpoint:
    """A connection to an MQTT server, which paho's thread serves.

    It is never connected again: paho would send once more what it has, with the earlier secret, to
    whatever address the name has by then. The worker opens a new endpoint after each failure.
    """

    pairs_max = IN_FLIGHT_MAX

    def __init__(self, sink: Mqtt, client: mqtt.Client) -> None:
        self._sink = sink
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._packet_bytes_max = PACKET_BYTES_MAX
        self._ended = ""
        self._codes: dict[int, ReasonCode] = {}
        self._awaited = 0
        self._answered: asyncio.Future[ReasonCode] = self._loop.create_future()
        client.on_connect = self._on_connect
        client.on_publish = self._on_publish
        client.on_disconnect = self._on_disconnect

    @classmethod
    async def connect(
        cls, sink: Mqtt, secret: Secret | None, policy: AddressPolicy
    ) -> MqttEndpoint:
        """A connected endpoint; errors as `open_endpoint`.

        Args:
            sink: which server.
            secret: "user:password"; None for none.
            policy: which addresses may be reached.
        """
        parts = urlsplit(sink.url)
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5, reconnect_on_failure=False
        )
        client.max_inflight_messages_set(IN_FLIGHT_MAX)
        if secret is not None:
            user, _, password = secret.text_for(host).partition(":")
            hide(password)
            if parts.scheme != "mqtts" and not secret.insecure:
                raise ConfigError(
                    f"expected a URL such as 'mqtts://{host}' with the secret {secret.name!r}, got "
                    "one without TLS; set insecure = true in its rule if the network is trusted",
                    expected="secrets",
                )
            client.username_pw_set(user, password)
        if parts.scheme == "mqtts":
            client.tls_set_context(_context_for(host))
        endpoint = cls(sink, client)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                addresses = await policy.resolve(host, port)
                await in_thread(_connect, client, addresses, port)
                client.loop_start()
                code = await endpoint._answered
            if code.is_failure:
                raise _error(code)
        except BaseException as error:
            await endpoint.close()
            if isinstance(error, OSError):  # TimeoutError is one.
                reason = str(error) or f"no answer within {TIMEOUT_S:g} s"
                raise DeliveryError(f"{host}:{port}: {reason}") from error
            raise
        return endpoint

    async def deliver(self, chunk: Chunk) -> None:
        messages = await in_thread(self._messages, chunk)
        fitting = {n: one for n, one in messages.items() if one.size <= self._packet_bytes_max}
        refused = dict.fromkeys(
            messages.keys() - fitting.keys(),
            f"the server takes messages up to {self._packet_bytes_max} bytes",
        )
        self._codes.clear()
        self._awaited = len(fitting)
        self._answered = self._loop.create_future()
        if self._ended:
            raise DeliveryError(self._ended)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                numbers = await in_thread(self._publish, fitting)
                if fitting:
                    await self._answered
        except TimeoutError as error:
            raise DeliveryError(f"no acknowledgement within {TIMEOUT_S:g} s") from error
        for packet, code in sorted(self._codes.items()):
            if not code.is_failure:
                continue
            failure = _error(code)
            if not isinstance(failure, RefusedError):
                raise failure
            refused[numbers[packet]] = failure.reason
        if refused:
            raise RefusedError(next(iter(refused.values())), sorted(refused))

    async def close(self) -> None:
        self._ended = "closed"
        self._client.disconnect()
        await in_thread(self._client.loop_stop)
        # Without a cycle the client closes its sockets as soon as the endpoint is dropped.
        self._client.on_connect = self._client.on_publish = self._client.on_disconnect = None

    def _messages(self, chunk: Chunk) -> dict[int, _Message]:
        """The messages of a chunk by their numbers in it."""
        if chunk.notifications.gone:
            topic = self._topic(chunk, "")
            return {0: _Message.of(chunk, topic, chunk.document.decode(), chunk.key)}
        texts, names = features(chunk.notifications), chunk.notifications.subscriptions()
        messages = {}
        for number, (name, text) in enumerate(
            zip(names.to_pylist(), texts.to_pylist(), strict=True)
        ):
            topic, key = self._topic(chunk, name), chunk.key_of(number)
            if self._sink.wis2:
                text = message(text, sink=self._sink, dataset=chunk.dataset, topic=topic, key=key)
            messages[number] = _Message.of(chunk, topic, text, key)
        return messages

    def _topic(self, chunk: Chunk, subscription: str) -> str:
        names = {"channel": chunk.channel, "broker": chunk.broker, "subscription": subscription}
        return self._sink.topic.format(**{name: _topic_level(one) for name, one in names.items()})

    def _publish(self, messages: Mapping[int, _Message]) -> dict[int, int]:
        """Sends messages; their numbers by those of their packets. Runs in a thread."""
        numbers = {}
        for number, one in messages.items():
            if self._ended:  # Another worker may push by now.
                raise DeliveryError(self._ended)
            sent = self._client.publish(one.topic, one.payload, qos=1, properties=one.properties)
            if sent.rc != mqtt.MQTT_ERR_SUCCESS:
                raise DeliveryError(self._ended or mqtt.error_string(sent.rc))
            numbers[sent.mid] = number
        return numbers

    def _on_connect(
        self, client: Any, data: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        self._packet_bytes_max = getattr(properties, "MaximumPacketSize", self._packet_bytes_max)
        self._loop.call_soon_threadsafe(_settle, self._answered, code)

    def _on_publish(self, client: Any, data: Any, mid: int, code: ReasonCode, _: Any) -> None:
        self._codes[mid] = code
        if len(self._codes) == self._awaited:
            self._loop.call_soon_threadsafe(_settle, self._answered, code)

    def _on_disconnect(self, client: Any, data: Any, flags: Any, code: ReasonCode, _: Any) -> None:
        self._ended = self._ended or f"disconnected: {code}"
        self._loop.call_soon_threadsafe(_settle, self._answered, DeliveryError(self._ended))


@dataclass(frozen=True, slots=True)
class _Message:
    """What is published; its packet is smaller than `size`."""

    topic: str
    payload: bytes
    attributes: Mapping[str, str]

    @classmethod
    def of(cls, chunk: Chunk, topic: str, text: str, key: str) -> _Message:
        return cls(topic, text.encode(), {**chunk.attributes, "id": key})

    @property
    def size(self) -> int:
        topic_bytes = len(self.topic.encode())
        if topic_bytes > TOPIC_BYTES_MAX:
            return PACKET_BYTES_MAX + 1
        return len(self.payload) + topic_bytes + len(str(self.attributes).encode()) + HEAD_BYTES_MAX

    @property
    def properties(self) -> Properties:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = MEDIA_TYPE
        properties.UserProperty = list(self.attributes.items())
        return properties


def _settle(answer: asyncio.Future[ReasonCode], result: ReasonCode | DeliveryError) -> None:
    if answer.done():
        return
    if isinstance(result, DeliveryError):
        answer.set_exception(result)
        answer.exception()  # Perhaps it is not awaited; asyncio would log it.
    else:
        answer.set_result(result)


def _context_for(host: str) -> ssl.SSLContext:
    """TLS for a connection to an address of a host: its certificate has to have the host's name."""

    class Context(ssl.SSLContext):
        def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
            # Paho would leave the socket open if its own handshake failed.
            own = {"server_hostname": host, "do_handshake_on_connect": True}
            return super().wrap_socket(*args, **options | own)

    context = Context(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    return context


def _connect(client: mqtt.Client, addresses: Sequence[str], port: int) -> None:
    """Connects to the first address that answers; given a name, paho would look it up again."""
    failure: OSError = OSError("the name has no address")
    for address in addresses:
        try:
            client.connect(address, port, keepalive=KEEP_ALIVE_S)
        except OSError as error:
            failure = error
        else:
            return
    raise failure


def _topic_level(value: str) -> str:
    """A text as a level of a topic; what has a meaning there is percent-encoded."""
    return "".join(
        f"%{ord(sign):02X}" if sign in _UNUSABLE or sign < " " or sign == "%" else sign
        for sign in value
    )


def _error(code: ReasonCode) -> DeliveryError:
    name = code.getName()
    if name in _REFUSED:
        return RefusedError(name)
    if name in _DISABLED:
        return DisabledError(name)
    return DeliveryError(name)
