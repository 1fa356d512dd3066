"""Brokers: under which name, and by which sink, subscriptions of channels get their notifications.

A broker without a sink *pulls*: a program of its own follows channels. For one with a sink, workers
follow them and *push* the notifications to an endpoint. (Wang, Carey and Tsotras, "Subscribing to
Big Data at Scale", 2020, sections 4.1.5 and 4.2.)

Brokers are the rows of the table `BROKERS`. The workers that run are the rows of `WORKERS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from string import Formatter
from typing import Any, ClassVar, TypeAlias
from urllib.parse import SplitResult, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import Forbidden, InvalidSchema, UnknownBroker, reason_of
from galileo.model.schema import absence, dataset_name, read_json
from galileo.model.table import Table
from galileo.model.times import MICROS, Duration, seconds

HOLD_MAX_S = 90 * 86_400.0
"""The longest hold of a broker or of a reader of a dataset, which is assumed while a node cannot
read which ones there are.
"""
BROKERS = Table(
    "galileo.brokers",
    {"name": "text", "definition": "text", "paused": "text", "revision": "int"},
    key="name",
)
"""`definition`: JSON of `Broker.to_dict`, "" of one that was dropped; `paused`: why nothing is
delivered, "" if it is.
"""
WORKERS = Table("galileo.workers", {"name": "text", "beat": "int"}, key="name")
"""`beat`: a number that grows while the worker runs."""

PATTERN = re.compile(r"[^\x00-\x1f\x7f/\ud800-\udfff]{1,200}")
"""A pattern of names of brokers, in which `*` stands for any text, and `?` for any character."""
PATTERNS_MAX = 50
"""Patterns of one principal, which go with each part of a batch from node to node."""

NAME = re.compile(r"[^\x00-\x1f\x7f/]{1,200}")
"""The name of a broker, or of a reader of a dataset."""
_SECRET = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")
_TOPIC_FIELDS = ("channel", "broker", "subscription")


@dataclass(frozen=True, slots=True)
class Webhook:
    """Requests to a URL, each with up to some thousand notifications in one JSON document.

    Args:
        url: "https://..." or "http://...", without a user and password.
        secret: the name of the file with the signing secret, in the directory of secrets of each
            worker; "": requests are not signed.

    Example:
        >>> galileo.Webhook("https://example.org/alerts", secret="alerts").url
        'https://example.org/alerts'
    """

    kind: ClassVar[str] = "webhook"
    url: str
    secret: str = ""

    def __post_init__(self) -> None:
        _url(self.url, ("https", "http"))
        _secret(self.secret)


@dataclass(frozen=True, slots=True)
class Mqtt:
    """Messages to an MQTT server (version 5, quality of service 1), one for each notification.

    Args:
        url: "mqtts://host:port" or "mqtt://host:port"; the ports are 8883 and 1883 if absent.
        topic: of a message; {channel}, {broker} and {subscription} stand for these.
        secret: the name of the file with "user:password"; "" without.
        wis2: URL of an HTTP gateway of the cluster, to which messages then link: they are WIS2
            notification messages. "": they are GeoJSON features.

    Example:
        >>> galileo.Mqtt("mqtts://broker.example.org", topic="smog/{subscription}").topic
        'smog/{subscription}'
    """

    kind: ClassVar[str] = "mqtt"
    url: str
    topic: str = "galileo/{channel}/{subscription}"
    secret: str = ""
    wis2: str = ""

    def __post_init__(self) -> None:
        parts = _url(self.url, ("mqtts", "mqtt"))
        if parts.path.strip("/") or parts.query:
            raise _wrong("a URL such as 'mqtts://broker.example.org:8883'", self.url, "url")
        _topic(self.topic, "a topic without '+' and '#', such as 'galileo/{channel}'", "+#")
        _secret(self.secret)
        if self.wis2:
            _url(self.wis2, ("https", "http"))


@dataclass(frozen=True, slots=True)
class Kafka:
    """Messages to a topic of Kafka, one for each notification, with the subscription as the key.

    Args:
        servers: addresses, "host:port", separated by commas.
        topic: of the messages; {channel} and {broker} stand for these.
        secret: the name of the file with further settings of librdkafka, a line "name=value" for
            each, such as those of TLS and SASL; "" without.

    Example:
        >>> galileo.Kafka("kafka-1:9092,kafka-2:9092", topic="alerts").topic
        'alerts'
    """

    kind: ClassVar[str] = "kafka"
    servers: str
    topic: str = "{channel}"
    secret: str = ""

    def __post_init__(self) -> None:
        names = self.servers.split(",") if isinstance(self.servers, str) else []
        if not names or not all(re.fullmatch(r"[^\s:/]+:\d{1,5}", name) for name in names):
            raise _wrong("addresses such as 'kafka-1:9092,kafka-2:9092'", self.servers, "servers")
        _topic(self.topic, "a topic of letters, digits, '.', '_' and '-'", "/+# ")
        if "{subscription}" in self.topic:
            raise _wrong("a topic with {channel} and {broker} alone", self.topic, "topic")
        _secret(self.secret)


@dataclass(frozen=True, slots=True)
class Into:
    """Rows of a dataset or table of the same cluster; each notification is stored once.

    A table gets a row for each notification, a dataset each observation that has matched once for
    each execution and partition.

    Args:
        target: name of the dataset or table, whose columns are among those of the notifications.

    Example:
        >>> galileo.Into("alerts-of-today").target
        'alerts-of-today'
    """

    kind: ClassVar[str] = "into"
    target: str

    def __post_init__(self) -> None:
        dataset_name(self.target)


Sink: TypeAlias = Webhook | Mqtt | Kafka | Into
SINKS: Mapping[str, type[Sink]] = {sink.kind: sink for sink in (Webhook, Mqtt, Kafka, Into)}


@dataclass(frozen=True, slots=True, init=False)
class Broker:
    """A broker of channels.

    Args:
        name: as subscriptions have it.
        sink: where workers push notifications to; None: the broker pulls them.
        channels: whose notifications are pushed, and whose results are held; none: those of all
            channels, and those in which it has a position.
        hold: for how long results of a channel that it has not acknowledged are kept beyond the
            channel's `keep`, such as "30d"; at most 90 days. None: not at all.

    Attributes:
        hold_us: microseconds; 0: results are not held.
        paused: why nothing is pushed at present; "" if it is. The cluster sets it.

    Example:
        >>> galileo.Broker("ops", galileo.Webhook("https://example.org/alerts")).sink.kind
        'webhook'
    """

    name: str
    sink: Sink | None
    channels: tuple[str, ...]
    hold_us: int
    paused: str

    def __init__(
        self,
        name: str,
        sink: Sink | None = None,
        *,
        channels: Sequence[str] = (),
        hold: Duration | None = None,
        paused: str = "",
    ) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise _wrong("a name of at most 200 characters without '/'", name, "broker_name")
        if sink is not None and not isinstance(sink, Sink):
            raise _wrong("a galileo.Webhook, Mqtt, Kafka or Into as the sink", sink, "sink")
        if isinstance(channels, str):
            raise _wrong("a list of the names of channels", channels, "channels")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "sink", sink)
        object.__setattr__(self, "channels", tuple(map(dataset_name, channels)))
        object.__setattr__(self, "hold_us", 0 if hold is None else _hold_us(hold))
        object.__setattr__(self, "paused", paused)

    def takes(self, channel: str) -> bool:
        """Whether notifications of a channel are pushed.

        Example:
            >>> galileo.Broker("ops", galileo.Into("alerts"), channels=["smog"]).takes("near")
            False
        """
        return self.sink is not None and (not self.channels or channel in self.channels)

    def holds(self, channel: str, *, has_position: bool) -> bool:
        """Whether results of a channel wait for this broker.

        Example:
            >>> galileo.Broker("mail", hold="30d").holds("smog", has_position=False)
            False
            >>> mail = galileo.Broker("mail", channels=["smog"], hold="30d")
            >>> mail.holds("smog", has_position=False)
            True
        """
        is_meant = channel in self.channels if self.channels else has_position
        return self.hold_us > 0 and is_meant

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, which `from_dict` reads.

        Example:
            >>> galileo.Broker("ops", galileo.Into("alerts")).to_dict()["sink"]
            {'kind': 'into', 'target': 'alerts'}
        """
        sink = None if self.sink is None else {"kind": self.sink.kind, **asdict(self.sink)}
        return {
            "name": self.name,
            "sink": sink,
            "channels": list(self.channels),
            "hold_us": self.hold_us,
        }

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> Broker:
        """The inverse of `to_dict`; the values may have `paused`, too.

        Raises:
            InvalidSchema: it is no broker.

        Example:
            >>> ops = galileo.Broker("ops", galileo.Into("alerts"))
            >>> galileo.Broker.from_dict(ops.to_dict()) == ops
            True
        """
        try:
            given = raw.get("sink")
            sink = None
            if given is not None:
                fields = dict(given)
                sink = SINKS[fields.pop("kind")](**fields)
            hold = int(raw.get("hold_us", 0)) / MICROS
            return Broker(
                raw["name"],
                sink,
                channels=raw.get("channels", ()),
                hold=hold or None,
                paused=raw.get("paused", ""),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidSchema(
                "expected a broker as `Broker.to_dict` gives it, with a sink of the kind "
                f"{', '.join(SINKS)}: {reason_of(error)}",
                expected="broker",
            ) from error

    @staticmethod
    def from_json(text: str) -> Broker:
        """The inverse of `json.dumps(broker.to_dict())`; errors as `from_dict`.

        Example:
            >>> galileo.Broker.from_json('{"name": "mail"}').sink is None
            True
        """
        return Broker.from_dict(read_json(text, "broker"))


def match_brokers(patterns: Sequence[str], names: pa.Array | pa.ChunkedArray) -> Any:
    """Mask of the names that match one of the patterns, of the same kind; null does not."""
    literal = map(re.escape, patterns)
    parts = [text.replace(r"\*", ".*").replace(r"\?", ".") for text in literal]
    is_match = pc.match_substring_regex(names, rf"\A(?s:{'|'.join(parts)})\z")
    return pc.fill_null(is_match, False)


def check_brokers(patterns: Sequence[str], names: pa.Array | pa.ChunkedArray) -> None:
    """Raises Forbidden if one of some brokers matches none of the patterns of a caller."""
    others = names.filter(pc.invert(match_brokers(patterns, names)))
    if len(others):
        raise Forbidden(
            f"expected a broker that you may use ({', '.join(patterns)}), got "
            f"{others[0].as_py()!r:.200}; ask an administrator of the cluster for others",
            broker=others[0].as_py(),
        )


def unknown_broker(name: str, names: Sequence[str]) -> UnknownBroker:
    """The error about an unknown broker; it suggests the nearest of `names`."""
    words, close = absence("broker", name, names)
    return UnknownBroker(words, broker=name, nearest=close)


def _url(url: Any, schemes: Sequence[str]) -> SplitResult:
    wanted = f"a URL such as '{schemes[0]}://example.org', without user and password"
    try:
        parts: SplitResult = urlsplit(url)
        is_right = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except (AttributeError, TypeError, ValueError):
        is_right = False
    if not is_right or "@" in parts.netloc or re.search(r"\s|[\x00-\x1f\x7f]", url):
        raise _wrong(wanted, url, "url")
    return parts


def _topic(topic: Any, wanted: str, refused: str) -> None:
    try:
        names = {name for _, name, *_ in Formatter().parse(topic) if name is not None}
        filled = topic.format(**dict.fromkeys(_TOPIC_FIELDS, "x"))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        names, filled = {"?"}, ""
    if not names <= set(_TOPIC_FIELDS):
        raise _wrong(f"{wanted}, with {{channel}} and the like", topic, "topic")
    if not 1 <= len(filled) <= 249 or set(filled) & set(refused + "\0"):
        raise _wrong(wanted, topic, "topic")


def _hold_us(hold: Duration) -> int:
    hold_s = seconds(hold)
    if not 1 / MICROS <= hold_s <= HOLD_MAX_S:
        raise _wrong("results to be held for at most 90 days", hold, "hold")
    return round(hold_s * MICROS)


def _secret(name: Any) -> None:
    if name != "" and (not isinstance(name, str) or not _SECRET.fullmatch(name)):
        raise _wrong("the name of a file in the directory of secrets", name, "secret")


def _wrong(wanted: str, value: Any, expected: str) -> InvalidSchema:
    return InvalidSchema(f"expected {wanted}, got {value!r:.200}", expected=expected)
