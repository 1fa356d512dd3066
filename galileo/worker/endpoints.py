"""What a worker pushes to: the protocol of endpoints, their errors, and how one is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from galileo.client.async_client import AsyncClient
from galileo.client.notification_json import document
from galileo.client.results import Notifications
from galileo.model.broker import Kafka, Mqtt, Sink, Webhook
from galileo.redaction import printable
from galileo.worker.addresses import AddressPolicy
from galileo.worker.options import WorkerOptions
from galileo.worker.secrets import read_secret

EVENT_TYPE, GONE_TYPE = "galileo.notifications", "galileo.gone"
REASON_CHARACTERS_MAX = 1_000
"""Of the reason of a failure, which is stored and shown."""


class DeliveryError(Exception):
    """The endpoint has not accepted a chunk, and may later.

    Args:
        reason: why, perhaps in words of the endpoint; secrets and control characters in it are
            replaced, and a long one is cut.
        after_s: how long to wait at least.
    """

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        self.reason = printable(reason)[:REASON_CHARACTERS_MAX]
        super().__init__(self.reason)
        self.after_s = after_s


class RefusedError(DeliveryError):
    """It refuses what is in the chunk, and will again.

    Args:
        reason: why.
        numbers: of the notifications of the chunk that are refused, where the others are accepted;
            none if it is not known which ones are to blame.
    """

    def __init__(self, reason: str, numbers: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.numbers = numbers


class DisabledError(DeliveryError):
    """It accepts nothing until someone changes the broker or the endpoint."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Notifications that are delivered together.

    Attributes:
        channel: its name.
        dataset: of the observations.
        broker: its name.
        stream: names channel, generation, broker and partition.
        offset: the number of the first notification in its execution.
        notifications: of one execution; none where there is only something gone.
        acknowledged: changes when someone moves the position, say to deliver once more.
    """

    channel: str
    dataset: str
    broker: str
    stream: str
    offset: int
    notifications: Notifications
    acknowledged: int = 0

    @property
    def key(self) -> str:
        """Names what is in the chunk; the same at each attempt, also of another worker."""
        if self.notifications.gone:
            ranges = (f"{one.first}-{one.last}" for one in self.notifications.gone)
            return f"{self.stream}/gone/{','.join(ranges)}"
        return f"{self.key_of(0)}-{self.offset + len(self.notifications) - 1}"

    def key_of(self, number: int) -> str:
        """Names the notification with this number in the chunk, as `key` does."""
        return f"{self.stream}/{self.notifications.execution}/{self.offset + number}"

    @property
    def document(self) -> bytes:
        """The whole chunk as one JSON document."""
        names = {"channel": self.channel, "broker": self.broker, "offset": self.offset}
        return document(self.notifications, **names)

    @property
    def attributes(self) -> Mapping[str, str]:
        """The attributes of a CloudEvent (version 1.0) with the chunk, but for its id."""
        return {
            "specversion": "1.0",
            "type": GONE_TYPE if self.notifications.gone else EVENT_TYPE,
            "source": f"/channels/{self.channel}",
            "subject": self.broker,
        }


class Endpoint(Protocol):
    """Where a broker's notifications go.

    Attributes:
        pairs_max: the most notifications that it takes at once; 0: those of a whole execution.
    """

    pairs_max: int

    async def deliver(self, chunk: Chunk) -> None:
        """Returns when all of a chunk is accepted.

        Raises:
            DeliveryError: it is not, or this is not known. The endpoint is closed, unless the error
                is a RefusedError, and a new one is opened for the next attempt.
        """

    async def close(self) -> None:
        """Closes connections."""


async def open_endpoint(
    sink: Sink, client: AsyncClient, options: WorkerOptions, policy: AddressPolicy
) -> Endpoint:
    """The endpoint of a sink.

    Raises:
        DeliveryError: it cannot be reached.
        ConfigError: its secret is missing or not for it, or its address is not allowed.
        MissingExtra: its library is not installed.
    """
    # Each protocol has a library of its own, which is imported where it is used.
    if isinstance(sink, Webhook):
        from galileo.worker.webhook import WebhookEndpoint

        return WebhookEndpoint(sink, partial(read_secret, options.secrets, sink), policy)
    if isinstance(sink, Mqtt):
        from galileo.worker.mqtt import MqttEndpoint

        return await MqttEndpoint.connect(sink, read_secret(options.secrets, sink), policy)
    if isinstance(sink, Kafka):
        from galileo.worker.kafka import KafkaEndpoint

        return await KafkaEndpoint.connect(sink, read_secret(options.secrets, sink), policy)
    from galileo.worker.into import IntoEndpoint

    return IntoEndpoint(sink, client)
