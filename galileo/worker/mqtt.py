"""Pushes to an MQTT server: version 5, quality of service 1, a message for each notification."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from galileo.client.notification_json import MEDIA_TYPE, features
from galileo.model.broker import Mqtt
from galileo.worker.addresses import AddressPolicy
from galileo.worker.endpoints import (
    Chunk,
    DeliveryError,
    DisabledError,
    RefusedError,
    check_host,
)
from galileo.worker.wis2 import message

PORTS = {"mqtt": 1883, "mqtts": 8883}
TIMEOUT_S = 30.0
PACKET_BYTES_MAX = 268_435_460
"""Of the protocol; a server may announce less."""
HEAD_BYTES_MAX = 1_024
"""Of a message besides topic, key and payload."""
IN_FLIGHT_MAX = 256
"""Messages that wait for their acknowledgements."""
KEEP_ALIVE_S = 30
_UNUSABLE = "/+#"
_REFUSED = ("Packet too large", "Payload format invalid", "Topic name invalid")
_DISABLED = ("Not authorized", "Bad user name or password", "Banned", "Bad authentication method")


class MqttEndpoint:
    """A connection to an MQTT server; paho's thread serves it, and connects again by itself."""

    pairs_max = 10_000

    def __init__(self, sink: Mqtt, client: mqtt.Client) -> None:
        self._sink = sink
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._connected: asyncio.Future[ReasonCode] = self._loop.create_future()
        self._packet_bytes_max = PACKET_BYTES_MAX
        self._waiting: dict[int, asyncio.Future[ReasonCode]] = {}
        client.on_connect = self._on_connect
        client.on_publish = self._on_publish
        client.on_disconnect = self._on_disconnect

    @classmethod
    async def connect(cls, sink: Mqtt, secret: str, policy: AddressPolicy) -> MqttEndpoint:
        """A connected endpoint; errors as `open_endpoint`.

        Args:
            sink: which server.
            secret: "user:password"; "" for none.
            policy: which addresses may be reached.
        """
        parts = urlsplit(sink.url)
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        await check_host(policy, host, port)
        client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        client.max_inflight_messages_set(IN_FLIGHT_MAX)
        if secret:
            user, _, password = secret.partition(":")
            client.username_pw_set(user, password)
        if parts.scheme == "mqtts":
            client.tls_set()
        endpoint = cls(sink, client)
        client.connect_async(host, port, keepalive=KEEP_ALIVE_S)
        client.loop_start()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                code = await endpoint._connected
        except BaseException as error:
            await endpoint.close()
            if isinstance(error, TimeoutError):
                raise DeliveryError(f"{host}:{port} has not accepted a connection") from error
            raise
        if code.is_failure:
            await endpoint.close()
            raise _error(code)
        return endpoint

    async def deliver(self, chunk: Chunk) -> None:
        texts = await asyncio.to_thread(features, chunk.notifications)
        names = await asyncio.to_thread(chunk.notifications.subscriptions)
        answers: list[asyncio.Future[ReasonCode]] = []
        try:
            async with asyncio.timeout(TIMEOUT_S) as timeout:
                for number, (name, text) in enumerate(zip(names, texts, strict=True)):
                    if number >= IN_FLIGHT_MAX:
                        await self._accepted(answers[number - IN_FLIGHT_MAX])
                        timeout.reschedule(self._loop.time() + TIMEOUT_S)
                    answers.append(self._publish(chunk, number, name.as_py(), str(text)))
                for answer in answers[-IN_FLIGHT_MAX:]:
                    await self._accepted(answer)
        except TimeoutError as error:
            raise DeliveryError(f"no acknowledgement within {TIMEOUT_S:g} s") from error
        finally:
            for answer in answers:
                if not answer.cancel() and not answer.cancelled():
                    answer.exception()  # Another one is raised; asyncio would log this one.

    async def close(self) -> None:
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)

    def _publish(
        self, chunk: Chunk, number: int, subscription: str, text: str
    ) -> asyncio.Future[ReasonCode]:
        names = {
            "channel": chunk.channel,
            "broker": chunk.broker,
            "subscription": subscription,
        }
        topic = self._sink.topic.format(
            **{name: _topic_level(value) for name, value in names.items()}
        )
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = MEDIA_TYPE
        attributes = {**chunk.attributes, "id": chunk.key_of(number)}
        properties.UserProperty = list(attributes.items())
        if self._sink.wis2:
            text = message(
                text,
                gateway=self._sink.wis2,
                dataset=chunk.dataset,
                topic=topic,
                key=chunk.key_of(number),
            )
        size = len(text.encode()) + len(topic.encode()) + len(chunk.key) + HEAD_BYTES_MAX
        if size > self._packet_bytes_max:
            raise RefusedError(f"the server takes messages up to {self._packet_bytes_max} bytes")
        answer: asyncio.Future[ReasonCode] = self._loop.create_future()
        try:
            sent = self._client.publish(topic, text, qos=1, properties=properties)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        if sent.rc != mqtt.MQTT_ERR_SUCCESS:
            raise DeliveryError(mqtt.error_string(sent.rc))
        # Callbacks reach the loop after this function has returned.
        self._waiting[sent.mid] = answer
        answer.add_done_callback(lambda _: self._waiting.pop(sent.mid, None))
        return answer

    async def _accepted(self, answer: asyncio.Future[ReasonCode]) -> None:
        code = await answer
        if code.is_failure:
            raise _error(code)

    def _on_connect(
        self, client: Any, data: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        self._packet_bytes_max = getattr(properties, "MaximumPacketSize", self._packet_bytes_max)
        self._loop.call_soon_threadsafe(_settle, self._connected, code)

    def _on_publish(self, client: Any, data: Any, mid: int, code: ReasonCode, _: Any) -> None:
        self._loop.call_soon_threadsafe(self._acknowledge, mid, code)

    def _on_disconnect(self, client: Any, data: Any, flags: Any, code: ReasonCode, _: Any) -> None:
        self._loop.call_soon_threadsafe(self._disconnect, code)

    def _acknowledge(self, mid: int, code: ReasonCode) -> None:
        if mid in self._waiting:
            _settle(self._waiting[mid], code)

    def _disconnect(self, code: ReasonCode) -> None:
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(DeliveryError(f"disconnected: {code}"))


def _settle(answer: asyncio.Future[ReasonCode], code: ReasonCode) -> None:
    if not answer.done():
        answer.set_result(code)


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
