"""`galileo retention`: for how long a dataset's observations are kept."""

from __future__ import annotations

import datetime as dt
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from galileo.cli.lazy import CommandGroup
from galileo.cli.output import counted
from galileo.cli.session import Session, in_session
from galileo.client import NodeStatus, RetentionReport
from galileo.errors import InputError
from galileo.model.retention import Retention
from galileo.model.times import duration_text

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?")


@dataclass(frozen=True, slots=True)
class HeldResults:
    """Results of a channel that are older than its `keep` and wait for a broker.

    Attributes:
        channel: its name.
        broker: likewise; "" where nodes cannot read which brokers hold results.
        bytes: of the files, at all nodes.
        since: when the oldest of them were made, about.
    """

    channel: str
    broker: str
    bytes: int
    since: dt.datetime


@dataclass(frozen=True, slots=True)
class HeldCommits:
    """Observations that the retention of a dataset would drop, and that wait for a named reader.

    Attributes:
        dataset: its name.
        reader: likewise.
        bytes: of the files, at all nodes.
        since: the time of the newest observation in the oldest of them.
    """

    dataset: str
    reader: str
    bytes: int
    since: dt.datetime


@click.group(cls=CommandGroup)
def retention() -> None:
    """Retention: how long observations are kept, by age, by size or by both.

    \b
    Example:
      galileo retention set nam --age 30d --size 10GB
      galileo retention show nam
    """


@retention.command("set")
@click.argument("dataset")
@click.argument("keep", type=click.Choice(["none"]), required=False)
@click.option("--age", help="Drop files all of whose observations are older, such as 30d.")
@click.option("--size", help="Bytes of the dataset's files that each node keeps, such as 10GB.")
@click.option(
    "--past-readers",
    is_flag=True,
    help="Also drop what readers have not fetched, of continuous queries and named ones.",
)
@in_session
def set_(
    session: Session,
    *,
    dataset: str,
    keep: str | None,
    age: str | None,
    size: str | None,
    past_readers: bool,
) -> None:
    """Change a dataset's retention; "none" keeps everything from now on.

    \b
    Example:
      galileo retention set nam --age 30d --size 10GB
      galileo retention set nam none
    """
    policy = None
    if not (keep or age or size):
        raise InputError(
            "say what to keep: --age, --size or both, or none to keep everything from now on"
        )
    if keep is None:
        policy = Retention(
            age, bytes=None if size is None else size_of(size), past_readers=past_readers
        )
    elif age or size or past_readers:
        raise InputError("expected none, or --age and --size, got both")
    with session.client() as client:
        client.set_retention(dataset, policy)
    session.output.value(_format_policy(policy), words=f"{dataset}: {in_words(policy)}")


@retention.command()
@click.argument("dataset")
@in_session
def show(session: Session, *, dataset: str) -> None:
    """Show a dataset's retention, its named readers, and what is kept for readers.

    Named readers are streams of Spark, and programs that store their positions; see the
    documentation of storage. Those of continuous queries are shown by what is kept for them.

    \b
    Example:
      galileo retention show nam --json
    """
    with session.client() as client:
        policy = client.retention(dataset)
        readers = client.readers(dataset)
        status = client.status()
    rows = [
        {"node": node.name, **_held(held)}
        for node in status.nodes
        for stored in node.datasets
        if stored["dataset"] == dataset
        for held in stored["held_back"]
    ]
    if session.output.as_json:
        facts = {"retention": _format_policy(policy), "held_back": rows, "readers": readers}
        session.output.value(facts)
        return
    session.output.value(None, words=f"{dataset}: {in_words(policy)}")
    session.output.rows(
        [
            {
                "reader": reader.name,
                "hold": duration_text(reader.hold_s),
                "commits behind": reader.behind,
                "stored at": f"{reader.stored_at:%Y-%m-%d %H:%M:%SZ}",
            }
            for reader in readers
        ]
    )
    session.output.rows(rows)


@retention.command("drop-reader")
@click.argument("dataset")
@click.argument("name")
@in_session
def drop_reader(session: Session, *, dataset: str, name: str) -> None:
    """Remove the reader NAME of DATASET, for which retention waits no more.

    A stream of Spark that runs under this name creates it again.

    \b
    Example:
      galileo retention drop-reader nam nightly
    """
    with session.client() as client:
        client.drop_reader(dataset, name)
    session.output.value({"dropped": name}, words=f"dropped reader {name} of {dataset}")


@retention.command()
@click.argument("dataset")
@in_session
def apply(session: Session, *, dataset: str) -> None:
    """Apply a dataset's retention now.

    \b
    Example:
      galileo retention apply nam
    """
    with session.client() as client:
        reports = client.apply_retention(dataset)
    if session.output.as_json:
        session.output.value(list(reports))
    else:
        session.output.rows([_row(report) for report in reports])


def size_of(text: str) -> int:
    """Bytes of a size such as "10GB", "512MiB" or "1000000".

    Raises:
        InputError: it is none.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    unit = {**_UNITS, **_BINARY_UNITS}.get(match[2]) if match else None
    if match is None or unit is None:
        raise InputError(f"expected a size such as 10GB, 512MiB or 1000000, got {text!r}")
    return round(float(match[1]) * unit)


def in_words(policy: Retention | None) -> str:
    """A policy for people."""
    if policy is None:
        return "everything is kept"
    bounds = []
    if policy.age_s is not None:
        bounds.append(f"for {duration_text(policy.age_s)}")
    if policy.bytes is not None:
        bounds.append(f"up to {counted(policy.bytes, 'byte')} on each node")
    readers = "past readers" if policy.past_readers else "never past a reader"
    return f"kept {' and '.join(bounds)}, {readers}"


def held_results(nodes: Iterable[NodeStatus], channels: Collection[str]) -> list[HeldResults]:
    """What nodes keep for the brokers of channels, by channel and broker."""
    return [
        HeldResults(channel, broker, bytes=size, since=since)
        for (channel, broker), (size, since) in _held_by(nodes, channels)
    ]


def held_commits(
    nodes: Iterable[NodeStatus], readers: Mapping[str, Collection[str]]
) -> list[HeldCommits]:
    """What nodes keep for named readers, by dataset and reader.

    Args:
        nodes: of the cluster.
        readers: the names of the readers of each dataset.
    """
    return [
        HeldCommits(dataset, reader, bytes=size, since=since)
        for (dataset, reader), (size, since) in _held_by(nodes, readers)
        if reader in readers[dataset]
    ]


def _held_by(
    nodes: Iterable[NodeStatus], names: Collection[str]
) -> Iterator[tuple[tuple[str, str], tuple[int, dt.datetime]]]:
    """Bytes that are held and since when, by dataset or channel and reader; "" if not known."""
    parts = defaultdict[tuple[str, str], list[dict[str, Any]]](list)
    for node in nodes:
        for stored in node.datasets:
            for held in stored["held_back"] if stored["dataset"] in names else ():
                for reader in held["readers"] or [""]:
                    parts[stored["dataset"], reader].append(held)
    for both, of_both in sorted(parts.items()):
        since = dt.datetime.fromtimestamp(min(held["since"] for held in of_both), dt.UTC)
        yield both, (sum(held["bytes"] for held in of_both), since)


def _format_policy(policy: Retention | None) -> dict[str, Any] | None:
    return None if policy is None else policy.to_dict()


def _held(held: dict[str, Any]) -> dict[str, Any]:
    by = ", ".join(held["readers"]) or "unknown until all nodes answer"
    return {"partition": held["partition"], "bytes": held["bytes"], "held back by": by}


def _row(report: RetentionReport) -> dict[str, Any]:
    readers = sorted({name for held in report.held_back for name in held["readers"]})
    return {
        "node": report.node,
        "files": report.files,
        "commits": report.commits,
        "bytes": report.bytes,
        "held back": sum(held["bytes"] for held in report.held_back),
        "by": ", ".join(readers),
        "failures": "; ".join(report.failures),
    }
