"""Brokers: under which name, and by which sink, subscriptions of channels get their notifications.

A broker without a sink *pulls*: a program of its own follows channels. For one with a sink, workers
follow them and *push* the notifications to an endpoint. (Wang, Carey and Tsotras, "Subscribing to
Big Data at Scale", 2020, sections 4.1.5 and 4.2.)

Brokers are the rows of the table `BROKERS`. The workers that run are the rows of `WORKERS`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from string import Formatter
from typing import Any, ClassVar, TypeAlias
from urllib.parse import SplitResult, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import (
    Forbidden,
    GalileoError,
    InputError,
    InvalidObservations,
    InvalidSchema,
    UnknownBroker,
    reason_of,
)
from galileo.model.channel import Channel
from galileo.model.schema import absence, dataset_name, read_json
from galileo.model.table import Table, in_system
from galileo.model.times import MICROS, Duration, seconds

HOLD_MAX_S = 90 * 86_400.0
"""The longest hold of a broker or of a reader of a dataset, which is assumed while a node cannot
read which ones there are.
"""
BROKERS = in_system(
    Table(
        "galileo.brokers",
        {"name": "text", "definition": "text", "paused": "text", "revision": "int"},
        key="name",
    )
)
"""`definition`: JSON of `Broker.to_dict`, "" of one that was dropped; `paused`: why nothing is
delivered, "" if it is; `revision`: how often the row was changed, so that workers begin again when
a broker is created once more or resumed.
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
        secret: the name of the signing secret in the rules of each worker; "": requests are not
            signed.

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
        secret: the name of the secret "user:password"; "" without.
        wis2: URL of an HTTP gateway of the cluster, to which messages then link: they are WIS2
            notification messages. "": they are GeoJSON features.
        metadata_id: of WIS2 messages, the identifier of the discovery metadata of the dataset, such
            as "urn:wmo:md:ch-meteoswiss:air".

    Example:
        >>> galileo.Mqtt("mqtts://broker.example.org", topic="smog/{subscription}").topic
        'smog/{subscription}'
    """

    kind: ClassVar[str] = "mqtt"
    url: str
    topic: str = "galileo/{channel}/{subscription}"
    secret: str = ""
    wis2: str = ""
    metadata_id: str = ""

    def __post_init__(self) -> None:
        parts = _url(self.url, ("mqtts", "mqtt"))
        if parts.path.strip("/") or parts.query:
            raise _wrong("a URL such as 'mqtts://broker.example.org:8883'", self.url, "url")
        _topic(self.topic, "a topic without '+' and '#', such as 'galileo/{channel}'", "+#")
        _secret(self.secret)
        if self.wis2:
            _url(self.wis2, ("https", "http"))
        if bool(self.wis2) != bool(re.fullmatch(r"urn:wmo:md:[^\s:]+:\S+", self.metadata_id)):
            wanted = "metadata_id='urn:wmo:md:centre:dataset' with wis2=, and without it none"
            raise _wrong(wanted, self.metadata_id, "metadata_id")


@dataclass(frozen=True, slots=True)
class Kafka:
    """Messages to a topic of Kafka, one for each notification, with the subscription as the key.

    Args:
        servers: addresses, "host:port", separated by commas.
        topic: of the messages; {channel} and {broker} stand for these.
        secret: the name of the secret with settings of TLS and SASL, a line "name=value" for each;
            "" without.

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
        attempts_max: how often a chunk of notifications is sent that the endpoint fails to take,
            before it is halved, and in the end one notification becomes a dead letter. None:
            without end.
        age_max: for how long that is tried, such as "10m". None: without end.
        hold: for how long results of a channel that it has not acknowledged are kept beyond the
            channel's `keep`, such as "30d"; at most 90 days. None: not at all.

    Attributes:
        hold_us: microseconds; 0: results are not held.
        age_max_us: microseconds; None: there is no bound.
        paused: why nothing is pushed at present; "" if it is. The cluster sets it.

    Example:
        >>> galileo.Broker("ops", galileo.Webhook("https://example.org/alerts")).sink.kind
        'webhook'
    """

    name: str
    sink: Sink | None
    channels: tuple[str, ...]
    hold_us: int
    attempts_max: int | None
    age_max_us: int | None
    paused: str

    def __init__(
        self,
        name: str,
        sink: Sink | None = None,
        *,
        channels: Sequence[str] = (),
        hold: Duration | None = None,
        attempts_max: int | None = None,
        age_max: Duration | None = None,
        paused: str = "",
    ) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise _wrong("a name of at most 200 characters without '/'", name, "broker_name")
        if sink is not None and not isinstance(sink, Sink):
            raise _wrong("a galileo.Webhook, Mqtt, Kafka or Into as the sink", sink, "sink")
        if isinstance(channels, str):
            raise _wrong("a list of the names of channels", channels, "channels")
        if attempts_max is not None and (type(attempts_max) is not int or attempts_max < 1):
            raise _wrong("a number of attempts of at least 1", attempts_max, "attempts_max")
        if isinstance(sink, Into | None) and not attempts_max is age_max is None:
            raise _wrong("bounds of attempts with a sink outside of the cluster", sink, "sink")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "sink", sink)
        object.__setattr__(self, "channels", tuple(map(dataset_name, channels)))
        object.__setattr__(self, "hold_us", 0 if hold is None else _hold_us(hold))
        object.__setattr__(self, "attempts_max", attempts_max)
        object.__setattr__(self, "age_max_us", None if age_max is None else _age_us(age_max))
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
            "attempts_max": self.attempts_max,
            "age_max_us": self.age_max_us,
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
            age_max = raw.get("age_max_us")
            return Broker(
                raw["name"],
                sink,
                channels=raw.get("channels", ()),
                hold=hold or None,
                attempts_max=raw.get("attempts_max"),
                age_max=None if age_max is None else int(age_max) / MICROS,
                paused=raw.get("paused", ""),
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
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


def stored_broker(row: Mapping[str, Any]) -> Broker | None:
    """The broker of a row of `BROKERS`; None if it was dropped.

    A broker whose definition cannot be read is paused for that reason, has no sink, and holds
    results as long as any broker can, so that other brokers go on and lists name this one.
    """
    if not row["definition"]:
        return None
    try:
        stored = Broker.from_json(row["definition"])
        if stored.name != row["name"]:
            raise _wrong(f"the definition of {row['name']!r:.200}", stored.name, "broker_name")
        return Broker.from_dict(stored.to_dict() | {"paused": row["paused"] or ""})
    except GalileoError as error:
        reason = f"its definition cannot be read: {error.message}; create it again, or drop it"
        damaged = Broker("damaged", hold=HOLD_MAX_S, paused=reason)
        object.__setattr__(damaged, "name", row["name"])  # Whatever it is: it can be dropped.
        return damaged


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


def check_names(names: pa.Array | pa.ChunkedArray) -> None:
    """Raises InvalidObservations if one of some texts is no name of a broker; null may stand.

    Values of other types are not checked.
    """
    if not (pa.types.is_string(names.type) or pa.types.is_large_string(names.type)):
        return
    wrong = names.filter(pc.invert(pc.match_substring_regex(names, rf"\A{NAME.pattern}\z")))
    if len(wrong):
        raise InvalidObservations(
            "expected the name of a broker, of at most 200 characters without '/', got "
            f"{wrong[0].as_py()!r:.200}",
            expected="broker_name",
        )


def brokers_of(rows: pa.Table) -> dict[str, Broker]:
    """The brokers in rows of `BROKERS`, by name, without those that were dropped."""
    stored = filter(None, map(stored_broker, rows.to_pylist()))
    return {broker.name: broker for broker in stored}


def check_changed(
    channels: Sequence[Channel], brokers: Mapping[str, Broker], rows: pa.Table
) -> None:
    """Raises InputError if rows of `BROKERS` make a broker that `check_circles` refuses."""
    kept = brokers.keys() - set(rows.column("name").to_pylist())
    check_circles(channels, [*map(brokers.__getitem__, kept), *brokers_of(rows).values()])


def check_circles(channels: Sequence[Channel], brokers: Sequence[Broker]) -> None:
    """Raises InputError if channels read what brokers store of their notifications."""
    targets = defaultdict[str, set[str]](set)
    for channel in channels:
        for broker in brokers:
            if isinstance(broker.sink, Into) and broker.takes(channel.name):
                for source in channel.sources:
                    targets[source].add(broker.sink.target)
    for source in sorted(targets):
        reached, pending = set[str](), {source}
        while pending:
            pending = set().union(*(targets.get(name, set()) for name in pending)) - reached
            reached |= pending
        if source in reached:
            raise InputError(
                "expected sinks whose rows do not come back to their channels, got a circle "
                f"through {source!r}; store into another dataset or table, or name the channels of "
                "the broker",
                parameter="sink",
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
    try:  # A format such as {channel:1000000000} would make a topic of any length.
        fields = {field[1:] for field in Formatter().parse(topic) if field[1] is not None}
    except (TypeError, ValueError):
        fields = {("?", None, None)}
    if not fields <= {(name, "", None) for name in _TOPIC_FIELDS}:
        raise _wrong(f"{wanted}, with {{channel}} and the like", topic, "topic")
    filled = topic.format(**dict.fromkeys(_TOPIC_FIELDS, "x"))
    if not 1 <= len(filled) <= 249 or set(filled) & set(refused + "\0"):
        raise _wrong(wanted, topic, "topic")


def _hold_us(hold: Duration) -> int:
    hold_s = seconds(hold)
    if not 1 / MICROS <= hold_s <= HOLD_MAX_S:
        raise _wrong("results to be held for at most 90 days", hold, "hold")
    return round(hold_s * MICROS)


def _age_us(age: Duration) -> int:
    if (age_s := seconds(age)) < 0:
        raise _wrong("a time of at least 0 seconds", age, "age_max")
    return round(age_s * MICROS)


def _secret(name: Any) -> None:
    if name != "" and (not isinstance(name, str) or not _SECRET.fullmatch(name)):
        raise _wrong("the name of a secret of the workers", name, "secret")


def _wrong(wanted: str, value: Any, expected: str) -> InvalidSchema:
    return InvalidSchema(f"expected {wanted}, got {value!r:.200}", expected=expected)
