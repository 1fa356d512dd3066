"""`galileo broker`: brokers of channels, and the sinks that workers push their notifications to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import click

from galileo.cli.lazy import CommandGroup
from galileo.cli.output import counted, size_of_bytes
from galileo.cli.retention import HeldResults, held_results
from galileo.cli.session import Session, in_session
from galileo.client import Client
from galileo.client.results import Delivery
from galileo.errors import InputError
from galileo.model.broker import Broker, Into, Kafka, Mqtt, Sink, Webhook
from galileo.model.times import MICROS, duration_text


@click.group(cls=CommandGroup)
def broker() -> None:
    """Brokers of channels, and the sinks that workers push their notifications to.

    \b
    Example:
      galileo broker create ops --webhook https://example.org/alerts --secret ops
      galileo broker list
      galileo worker --secrets /etc/galileo/secrets.toml
    """


@broker.command()
@click.argument("name")
@click.option("--webhook", metavar="URL", help="Push to this URL by POST.")
@click.option("--mqtt", metavar="URL", help="Push to this server, such as mqtts://host:8883.")
@click.option("--kafka", metavar="SERVERS", help="Push to these servers, host:port,host:port.")
@click.option("--into", metavar="NAME", help="Store in this dataset or table of the cluster.")
@click.option(
    "--topic",
    help="Topic for --mqtt or --kafka. {channel}, {broker} and, with --mqtt, {subscription} are "
    "replaced by their names.",
)
@click.option(
    "--wis2",
    default="",
    metavar="URL",
    help="With --mqtt: WIS2 messages, which link to this gateway.",
)
@click.option(
    "--metadata-id",
    default="",
    metavar="URN",
    help="With --wis2: of the discovery metadata, urn:wmo:md:CENTRE:DATASET.",
)
@click.option("--secret", default="", metavar="NAME", help="A secret in the rules of the workers.")
@click.option("--channel", "channels", multiple=True, help="Push for this channel.  [default: all]")
@click.option(
    "--hold",
    metavar="DURATION",
    help="Keep results that the broker has not acknowledged for so long beyond the channel's "
    "keep, such as 30d.",
)
@click.option(
    "--attempts-max",
    type=int,
    help="Send what the endpoint fails to take so often, then make it dead letters.  [default: for "
    "ever]",
)
@click.option("--age-max", help="Try for so long, such as 10m.  [default: for ever]")
@in_session
def create(
    session: Session,
    *,
    name: str,
    webhook: str | None,
    mqtt: str | None,
    kafka: str | None,
    into: str | None,
    topic: str | None,
    wis2: str,
    metadata_id: str,
    secret: str,
    channels: tuple[str, ...],
    hold: str | None,
    attempts_max: int | None,
    age_max: str | None,
) -> None:
    """Create the broker NAME, or replace it; running workers adopt it within seconds.

    Without a sink, it is a name for programs that follow channels. With --hold, the results of its
    channels are kept until it has acknowledged them, for DURATION at most beyond what the channels
    keep. Its channels are those that --channel names, or those in which it has a position.

    \b
    Example:
      galileo broker create ops --webhook https://example.org/alerts --secret ops
      galileo broker create live --mqtt mqtts://mqtt.example.org \\
          --topic "smog/{subscription}" --channel smog
      galileo broker create history --into alerts
      galileo broker create mail --channel smog --hold 30d
    """
    topics = {} if topic is None else {"topic": topic}
    given: list[Sink] = []
    if webhook is not None:
        given.append(Webhook(webhook, secret=secret))
    if mqtt is not None:
        given.append(Mqtt(mqtt, secret=secret, wis2=wis2, metadata_id=metadata_id, **topics))
    if kafka is not None:
        given.append(Kafka(kafka, secret=secret, **topics))
    if into is not None:
        given.append(Into(into))
    if len(given) > 1:
        raise InputError(
            "expected one of --webhook, --mqtt, --kafka and --into, got several", parameter="sink"
        )
    if topic is not None and mqtt is None and kafka is None:
        raise InputError("--topic needs --mqtt or --kafka; add one", parameter="topic")
    if (wis2 or metadata_id) and mqtt is None:
        raise InputError("WIS2 needs --mqtt; add it", parameter="wis2")
    if secret and webhook is None and mqtt is None and kafka is None:
        raise InputError("--secret needs --webhook, --mqtt or --kafka; add one", parameter="secret")
    created = Broker(
        name,
        given[0] if given else None,
        channels=channels,
        hold=hold,
        attempts_max=attempts_max,
        age_max=age_max,
    )
    with session.client() as client:
        is_new = name not in {one.name for one in client.brokers()}
        client.create_broker(created)
    words = f"{'created' if is_new else 'changed'} broker {name}"
    session.output.value(created.to_dict(), words=words)


@broker.command("list")
@in_session
def list_brokers(session: Session) -> None:
    """List the brokers that were created, and what channels keep for them beyond their keep.

    \b
    Example:
      galileo broker list
    """
    with session.client() as client:
        brokers = client.brokers()
        held = _held(client, brokers)
    if session.output.as_json:
        session.output.value(
            [
                one.to_dict() | {"paused": one.paused, "held": held.get(one.name, [])}
                for one in brokers
            ]
        )
        return
    rows = [
        {
            "broker": one.name,
            "sink": _words(one.sink),
            "channels": ", ".join(one.channels) or "all",
            "hold": duration_text(one.hold_us / MICROS) if one.hold_us else "",
            "held": ", ".join(map(_size, held.get(one.name, []))),
            "paused": one.paused,
        }
        for one in brokers
    ]
    session.output.rows(rows, empty="No broker was created.")


@broker.command()
@click.argument("channel")
@in_session
def status(session: Session, *, channel: str) -> None:
    """Show how far the brokers of CHANNEL are, and why an endpoint takes nothing.

    "behind" is the number of executions after the position of a broker, with notifications for it
    or without; "gone" is how many of them were deleted before they were pushed.

    \b
    Example:
      galileo broker status smog
    """
    with session.client() as client:
        found = client.deliveries(channel)
        paused = {one.name: one.paused for one in client.brokers() if one.paused}
        letters = len(client.table(f"{channel}.dead-letters"))
    if session.output.as_json:
        session.output.value({"deliveries": found, "dead_letters": letters, "paused": paused})
        return
    rows = [
        {
            "broker": one.broker,
            "worker": one.worker,
            "behind": one.behind,
            "gone": one.gone,
            "failure": _failure(one, paused.get(one.broker, "")),
        }
        for one in found
    ]
    session.output.rows(rows, empty="No broker of this channel has a position.")
    if letters:
        session.output.note(
            f"galileo: {counted(letters, 'dead letter')}; galileo table show {channel}.dead-letters"
        )


@broker.command()
@click.argument("name")
@click.option("--reason", default="paused by hand", show_default=True, help="For lists of brokers.")
@in_session
def pause(session: Session, *, name: str, reason: str) -> None:
    """Stop pushing for the broker NAME; its notifications are kept.

    \b
    Example:
      galileo broker pause ops --reason "the endpoint moves"
    """
    with session.client() as client:
        client.pause_broker(name, reason)
    session.output.value({"paused": reason}, words=f"paused broker {name}")


@broker.command()
@click.argument("name")
@in_session
def resume(session: Session, *, name: str) -> None:
    """Go on with pushing for the broker NAME.

    \b
    Example:
      galileo broker resume ops
    """
    with session.client() as client:
        client.resume_broker(name)
    session.output.value({"paused": ""}, words=f"resumed broker {name}")


@broker.command()
@click.argument("channel")
@click.argument("name")
@click.option("--token", default="", help="Deliver what came after it; else all that is kept.")
@in_session
def replay(session: Session, *, channel: str, name: str, token: str) -> None:
    """Deliver notifications of CHANNEL to the broker NAME once more.

    They have the same keys as before.

    \b
    Example:
      galileo broker replay smog ops
    """
    with session.client() as client:
        client.acknowledge(channel, name, token)
    session.output.value({"token": token}, words=f"broker {name} of {channel} is replayed")


@broker.command()
@click.argument("name")
@in_session
def drop(session: Session, *, name: str) -> None:
    """Remove the broker NAME; its subscriptions, notifications and positions stay.

    \b
    Example:
      galileo broker drop ops
    """
    with session.client() as client:
        client.drop_broker(name)
    session.output.value({"dropped": name}, words=f"dropped broker {name}")


def _failure(delivery: Delivery, paused: str) -> str:
    """Why nothing is taken, since when, and until when the worker waits."""
    if paused:
        return f"paused: {paused}"
    if delivery.failed_at is None:
        return delivery.failure
    until = f", again by {delivery.retry_at:%H:%M:%SZ}" if delivery.retry_at else ""
    return f"{delivery.failure} ({delivery.failed_at:%Y-%m-%d %H:%M:%SZ}{until})"


def _held(client: Client, brokers: Sequence[Broker]) -> dict[str, list[HeldResults]]:
    """The results that wait for brokers, by their names."""
    if not any(one.hold_us for one in brokers):
        return {}
    channels = [channel.name for channel in client.channels()]
    held = defaultdict[str, list[HeldResults]](list)
    for one in held_results(client.status().nodes, channels):
        held[one.broker].append(one)
    return held


def _size(held: HeldResults) -> str:
    return f"{held.channel}: {size_of_bytes(held.bytes)} since {held.since:%Y-%m-%d %H:%M:%SZ}"


def _words(sink: Sink | None) -> str:
    if sink is None:
        return "none: it pulls"
    if isinstance(sink, Into):
        return f"into {sink.target}"
    return sink.servers if isinstance(sink, Kafka) else sink.url
