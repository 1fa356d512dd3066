"""Pushes to Kafka: a message for each notification, by an idempotent producer."""

from __future__ import annotations

from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from galileo.client.ingestion import in_thread
from galileo.client.notification_json import MEDIA_TYPE, features
from galileo.errors import ConfigError
from galileo.model.broker import Kafka
from galileo.worker.addresses import AddressPolicy
from galileo.worker.endpoints import (
    Chunk,
    DeliveryError,
    DisabledError,
    RefusedError,
    check_host,
)

TIMEOUT_S = 30.0
Headers: TypeAlias = list[tuple[str, str | bytes | None]]
_REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
}
_DISABLED = {
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
}


class KafkaEndpoint:
    """A producer of one topic for each channel.

    Args:
        sink: which servers and topic.
        producer: of them.
    """

    pairs_max = 1_000

    def __init__(self, sink: Kafka, producer: Producer) -> None:
        self._sink = sink
        self._producer = producer
        self._is_closed = False

    @classmethod
    async def connect(cls, sink: Kafka, secret: str, policy: AddressPolicy) -> KafkaEndpoint:
        """An endpoint; errors as `open_endpoint`.

        Args:
            sink: which servers and topic.
            secret: further settings of librdkafka, "name=value" on each line.
            policy: which addresses the servers may have.
        """
        for server in sink.servers.split(","):
            host, _, port = server.rpartition(":")
            await check_host(policy, host, int(port))
        settings: dict[str, Any] = _settings(secret) | {
            "bootstrap.servers": sink.servers,
            "enable.idempotence": True,
            "message.timeout.ms": int(TIMEOUT_S * 1_000),
        }
        try:
            producer = await in_thread(Producer, settings)
        except KafkaException as error:
            raise ConfigError(f"expected settings of librdkafka: {error}") from error
        return cls(sink, producer)

    async def deliver(self, chunk: Chunk) -> None:
        await in_thread(self._deliver, chunk)

    async def close(self) -> None:
        """Also drops what is not sent yet, which would otherwise come after newer messages."""
        self._is_closed = True
        await in_thread(self._producer.purge)
        await in_thread(self._producer.flush, 0)

    def _deliver(self, chunk: Chunk) -> None:
        topic = self._sink.topic.format(channel=chunk.channel, broker=chunk.broker)
        failures: dict[int, DeliveryError] = {}

        def produce(number: int, subscription: str, text: str, key: str) -> None:
            def on_delivery(error: KafkaError | None, _: Any) -> None:
                if error is not None:
                    failures[number] = _error(error)

            headers: Headers = [*common, ("ce_id", key.encode())]
            try:
                self._produce(topic, subscription, text, headers, on_delivery)
            except RefusedError as error:
                failures[number] = error

        common = _headers(chunk)
        if chunk.notifications.gone:
            produce(0, "", chunk.document.decode(), chunk.key)
        names = chunk.notifications.subscriptions()
        texts = features(chunk.notifications)
        for number, (name, text) in enumerate(zip(names, texts, strict=True)):
            produce(number, name.as_py(), text.as_py(), chunk.key_of(number))
        left = self._producer.flush(TIMEOUT_S + 5.0)
        for failure in failures.values():
            if not isinstance(failure, RefusedError):
                raise failure
        if left:
            raise DeliveryError(f"{left} messages were not acknowledged")
        if failures:
            raise RefusedError(next(iter(failures.values())).reason, sorted(failures))

    def _produce(
        self,
        topic: str,
        key: str,
        text: str,
        headers: Headers,
        on_delivery: Any,
    ) -> None:
        while not self._is_closed:
            try:
                self._producer.produce(
                    topic, text.encode(), key.encode(), on_delivery=on_delivery, headers=headers
                )
                self._producer.poll(0)
                return
            except BufferError:  # The queue of the producer is full.
                self._producer.poll(0.1)
            except KafkaException as error:
                raise _error(error.args[0]) from error


def _headers(chunk: Chunk) -> Headers:
    events: Headers = [(f"ce_{name}", value.encode()) for name, value in chunk.attributes.items()]
    return [*events, ("content-type", MEDIA_TYPE.encode())]


def _settings(secret: str) -> dict[str, str]:
    lines = [line.strip() for line in secret.splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    if not all(sign for _, sign, _ in pairs):
        raise ConfigError("expected a secret of Kafka of lines such as 'sasl.username=ops'")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _error(error: KafkaError) -> DeliveryError:
    reason = error.str()
    if error.code() in _REFUSED:
        return RefusedError(reason)
    if error.code() in _DISABLED:
        return DisabledError(reason)
    return DeliveryError(reason)
