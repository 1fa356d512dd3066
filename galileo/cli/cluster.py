"""`galileo up`, `status`, `topology`, `drain`: a cluster as a whole."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import click

from galileo.cli.live import Part, Screen, follow
from galileo.cli.output import failing_well
from galileo.cli.session import Session, json_option
from galileo.client import Client, ClusterStatus, NodeStatus
from galileo.cluster import LocalCluster
from galileo.errors import InputError, TryAgain
from galileo.model.times import seconds

PORT = 7701
DRAIN_LOOK_S = 0.2


@click.command()
@click.option("--nodes", "count", default=3, show_default=True, help="How many node processes.")
@click.option("--groups", default=2, show_default=True, help="How many groups.")
@click.option("--port", default=PORT, show_default=True, help="Of the first node.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the data stays; without it a temporary one, removed at the end.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="A key of every node's configuration.",
)
@json_option
@click.pass_obj
@failing_well
def up(
    session: Session,
    *,
    count: int,
    groups: int,
    port: int,
    directory: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    \b
    Example:
      galileo up --nodes 3 --directory ~/galileo-data
      galileo up --set samplers.sent=contained
    """
    settings = _settings(overrides)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with LocalCluster(
        nodes=count,
        groups=groups,
        directory=directory,
        port=port,
        settings=settings,
        proof=session.proof,
    ) as cluster:
        session.output.value(
            {"addresses": cluster.addresses, "directory": str(cluster.directory)},
            words=f"{count} nodes at {', '.join(cluster.addresses)}; data in "
            f"{cluster.directory}. Ctrl-C stops them.",
        )
        stopped.wait()


def _settings(overrides: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """What `--set` says; the nodes know the types of their keys."""
    settings: dict[str, dict[str, Any]] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        section, dot, key = name.strip().partition(".")
        if not equals or not dot or section == "cluster":
            raise InputError(f"expected section.key=value, of no [cluster], got {text!r}")
        settings.setdefault(section, {})[key] = value.strip()
    return settings


@click.command()
@click.option("--watch", is_flag=True, help="Go on showing it until Ctrl-C.")
@click.option("--interval", default="2s", show_default=True, help="Time between two looks.")
@click.option("--times", type=click.IntRange(1), help="With --watch, look so many times.")
@json_option
@click.pass_obj
@failing_well
def status(session: Session, *, watch: bool, interval: str, times: int | None) -> None:
    """Show every node: its state, load, data and continuous queries.

    \b
    Example:
      galileo status --json | jq '.nodes[].state'
      galileo status --watch --interval 5s
    """
    every_s = seconds(interval)
    with session.client() as client:

        def look() -> Screen:
            found = client.status()
            told = {"complete": found.complete, "nodes": found.nodes}
            return Screen((Part(_status_rows(found)),), told)

        follow(session.output, look, every_s=every_s, times=times if watch else 1)


def _status_rows(found: ClusterStatus) -> list[dict[str, Any]]:
    return [
        {
            "node": node.name,
            "group": node.group,
            "address": node.address,
            "state": node.state,
            "rows": sum(one["rows"] for one in node.datasets),
            "disk MB": round(sum(one["bytes_on_disk"] for one in node.datasets) / 1e6, 1),
            "memory MB": round(node.memory_bytes / 1e6),
            "CPU %": 100 * node.cpu_share,
            "CCQs": node.ccqs_coordinated,
            "cache MB": node.cache_bytes / 1e6,
            "held MB": node.held_bytes / 1e6,
            "spilled MB": node.spilled_bytes / 1e6,
            "stopped": "; ".join(node.stopped),
            "held back": _held_back(node),
        }
        for node in found.nodes
    ]


@click.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="Let the node take continuous queries on again.")
@click.option("--timeout", default="60s", show_default=True, help="How long to wait for the end.")
@json_option
@click.pass_obj
@failing_well
def drain(session: Session, *, node: str, undo: bool, timeout: str) -> None:
    """Hand a node's continuous queries to others, so that it can be stopped without a gap.

    Waits until the node coordinates none. Its data stays; while the node is down, answers lack it.

    \b
    Example:
      galileo drain n2
    """
    with session.client() as client:
        client.drain(node, undo=undo)
        left = 0 if undo else _drained(session, client, node, timeout_s=seconds(timeout))
    if left:
        raise TryAgain(
            f"node {node!r} still coordinates {left} continuous queries after {timeout}; is "
            "another node there to take them? It goes on giving them away"
        )
    words = "takes continuous queries on again" if undo else "coordinates no continuous query"
    session.output.value({"node": node, "draining": not undo}, words=f"node {node} {words}")


def _drained(session: Session, client: Client, node: str, *, timeout_s: float) -> int:
    """How many the node still coordinates when that is none, or when the time is over."""
    deadline = time.monotonic() + timeout_s
    with session.output.progress(unit="queries left") as bar:
        task = bar.add_task(f"draining {node}")
        while True:
            found = next(one for one in client.status().nodes if one.name == node)
            left = found.ccqs_coordinated
            bar.update(task, completed=left)
            if (found.state == "draining" and not left) or time.monotonic() >= deadline:
                return left
            time.sleep(DRAIN_LOOK_S)


def _held_back(node: NodeStatus) -> str:
    """What retention would drop, did not readers hold it back."""
    told = []
    for one in node.datasets:
        size = sum(held["bytes"] for held in one["held_back"])
        by = sorted({ccq for held in one["held_back"] for ccq in held["ccqs"]})
        if size:
            told.append(f"{one['dataset']}: {size / 1e6:,.1f} MB by {', '.join(by) or 'a restart'}")
    return "; ".join(told)


@click.command()
@json_option
@click.pass_obj
@failing_well
def whoami(session: Session) -> None:
    """Show who you are to the cluster, and your quotas with what you use of them.

    \b
    Example:
      galileo whoami --json | jq '.quotas.ccqs_max'
    """
    with session.client() as client:
        found = client.whoami()
    if session.output.as_json:
        session.output.value(found)
        return
    name = found.name or "nobody in particular"
    roles = f" ({', '.join(found.roles)})" if found.roles else ""
    words = f"You are {name}{roles}; datasets: {', '.join(found.datasets) or 'none'}."
    session.output.value(None, words=words)
    rows = [
        {"quota": quota, "bound": f"{one.bound:,.12g}", "used": one.used, "per": one.counted}
        for quota, one in found.quotas.items()
    ]
    session.output.rows(rows, title="Quotas", empty="You have no quotas.")


@click.command()
@json_option
@click.pass_obj
@failing_well
def topology(session: Session) -> None:
    """Show the groups, their nodes and their geohash ranges.

    \b
    Example:
      galileo topology --json
    """
    with session.client() as client:
        found = json.loads(client.topology_json())
    if session.output.as_json:
        session.output.value(found)
        return
    for number, group in enumerate(found["groups"]):
        ranges = [start or "0" for start, owner in found["ranges"] if owner == number]
        session.output.rows(
            [{"node": node["name"], "address": node["address"]} for node in group["nodes"]],
            title=f"{group['name']}: geohash ranges from {', '.join(ranges)}",
        )
