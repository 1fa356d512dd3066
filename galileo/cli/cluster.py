"""`galileo serve`, `evaluator`, `up`, `status`, `topology`: the processes of a cluster."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import click

from galileo import config as configuration
from galileo.cli.live import Part, Screen, follow
from galileo.cli.output import failing_well
from galileo.cli.session import Session, json_option
from galileo.client import Client, ClusterStatus, NodeStatus
from galileo.cluster import LocalCluster
from galileo.errors import TryAgain
from galileo.model.times import seconds
from galileo.server.evaluation import evaluator_options
from galileo.server.logs import start_logging
from galileo.server.main import serve as serve_node
from galileo.spark import evaluator as spark_evaluator

PORT = 7701
DRAIN_LOOK_S = 0.2

_config = click.option(
    "--config",
    "path",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file of the node; see docs/configuration.md.",
)
_overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Stronger than the file and the environment; repeat it for others.",
)


@click.command()
@_config
@_overrides
@click.pass_obj
@failing_well
def serve(session: Session, *, path: Path, overrides: tuple[str, ...]) -> None:
    """Run one node until it is told to stop.

    \b
    Example:
      galileo serve --config node-1.toml --set node.directory=/data/galileo
    """
    start_logging()
    serve_node(configuration.load(path, overrides=overrides))


@click.command()
@_config
@_overrides
@click.pass_obj
@failing_well
def evaluator(session: Session, *, path: Path, overrides: tuple[str, ...]) -> None:
    """Run this host's Spark evaluator by hand; nodes start one themselves when they need it.

    \b
    Example:
      galileo evaluator --config node-1.toml --set "evaluator.master=spark://head:7077"
    """
    start_logging()
    options = evaluator_options(configuration.load(path, overrides=overrides))
    click.get_current_context().exit(spark_evaluator.main(options))


@click.command()
@click.option("--nodes", "count", default=3, show_default=True, help="How many node processes.")
@click.option("--groups", default=2, show_default=True, help="How many groups.")
@click.option("--port", default=PORT, show_default=True, help="Of the first node.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the data stays; without it a temporary one, removed at the end.",
)
@json_option
@click.pass_obj
@failing_well
def up(session: Session, *, count: int, groups: int, port: int, directory: Path | None) -> None:
    """Run a cluster on this machine until Ctrl-C.

    \b
    Example:
      galileo up --nodes 3 --directory ~/galileo-data
    """
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with LocalCluster(nodes=count, groups=groups, directory=directory, port=port) as cluster:
        session.output.value(
            {"addresses": cluster.addresses, "directory": str(cluster.directory)},
            words=f"{count} nodes at {', '.join(cluster.addresses)}; data in "
            f"{cluster.directory}. Ctrl-C stops them.",
        )
        stopped.wait()


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
            "disk MB": sum(one["bytes_on_disk"] for one in node.datasets) / 1e6,
            "memory MB": node.memory_bytes / 1e6,
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
