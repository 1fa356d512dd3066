"""`galileo up`, `status`, `topology`, `drain`: a cluster as a whole."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cli.lazy import CommandGroup
from galileo.cli.live_display import Frame, Panel, refresh_loop
from galileo.cli.output import Output, counted, handle_errors, size_of_bytes
from galileo.cli.session import Session, in_session, json_option, require_complete_option
from galileo.client import Client, ClusterStatus, NodeStatus
from galileo.cluster import LocalCluster
from galileo.dht import placement
from galileo.dht.topology import (
    NODES_MAX,
    REPLICAS_MAX,
    Group,
    NodeInfo,
    Topology,
    balanced_ranges,
    partition_name,
)
from galileo.errors import InputError, TransientError, reason_of
from galileo.geo import geohash
from galileo.local_node import LocalNode
from galileo.model.quotas import NO_RATE
from galileo.model.times import duration_text, seconds

PORT = 7701
GATEWAY_PORT = 7790
CELLS_OF_PAGE = 100_000
DRAIN_LOOK_S = 0.2
LOOK_S = 0.5
RESTARTS_MAX = 3
"""Of each node by `galileo up`."""


@click.command()
@click.option("--nodes", "count", default=3, show_default=True, help="How many node processes.")
@click.option("--groups", type=int, help="How many groups.  [default: 1, or as the directory has]")
@click.option(
    "--replicas",
    type=click.IntRange(1, REPLICAS_MAX),
    help="Copies of each partition.  [default: 3 if groups have three nodes, else 1; or as the "
    "directory has]",
)
@click.option("--port", default=PORT, show_default=True, help="Port of the first node.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the data; by default a temporary one, removed at the end.",
)
@click.option("--gateway", is_flag=True, help="Run an HTTP gateway, too; see docs/http.md.")
@click.option(
    "--gateway-port", default=GATEWAY_PORT, show_default=True, help="Port of the gateway."
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Set a key of every node's configuration; repeat it for others.",
)
@in_session
def up(
    session: Session,
    *,
    count: int,
    groups: int | None,
    replicas: int | None,
    port: int,
    directory: Path | None,
    gateway: bool,
    gateway_port: int,
    overrides: tuple[str, ...],
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    A node that ends is reported on standard error and restarted, up to three times.

    \b
    Example:
      galileo up --nodes 3 --directory ~/galileo-data
      galileo up --nodes 3 --replicas 1
      galileo up --gateway
      galileo up --set samplers.uploads=sandboxed
    """
    settings = _settings(overrides)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    cluster = LocalCluster(
        nodes=count,
        groups=groups,
        replicas=replicas,
        directory=directory,
        port=port,
        settings=settings,
        proof=session.local_proof,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(cluster)
        value = {"addresses": cluster.addresses, "directory": str(cluster.directory)}
        words = f"{counted(count, 'node')} at {', '.join(cluster.addresses)}\n"
        if gateway:
            value["gateway"] = stack.enter_context(cluster.gateway(port=gateway_port)).url
            words += f"gateway at {value['gateway']}, its map at {value['gateway']}/map\n"
        words += f"data and logs in {cluster.directory}\nStop with Ctrl-C."
        session.output.value(value, words=words)
        supervise(session.output, cluster.nodes, stopped)
    session.output.note("stopped")


def supervise(output: Output, nodes: Sequence[LocalNode], stopped: threading.Event) -> None:
    """Reports nodes that end, and restarts each of them a few times, until `stopped` is set."""
    ended: Counter[str] = Counter()
    while not stopped.wait(LOOK_S):
        for node in nodes:
            if node.running or ended[node.name] > RESTARTS_MAX:
                continue
            ended[node.name] += 1
            attempt = ended[node.name]
            if attempt <= RESTARTS_MAX:
                what = f"restarting it, attempt {attempt} of {RESTARTS_MAX}"
                node.start()
            else:
                what = "it stays down, and answers are partial; stop the cluster with Ctrl-C, see"
                what += " the log, and run galileo up again"
            output.note(f"{node.name} has ended: {what}. Its log is {node.log}")


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
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option("--interval", default="2s", show_default=True, help="Refresh interval, with --watch.")
@click.option("--times", type=click.IntRange(1), help="Number of refreshes, with --watch.")
@in_session
def status(session: Session, *, watch: bool, interval: str, times: int | None) -> None:
    """Show every node: its state, load, data and continuous queries.

    \b
    Example:
      galileo status --json | jq '.nodes[].state'
      galileo status --watch --interval 5s
    """
    every_s = seconds(interval)
    with session.client() as client:

        def poll() -> Frame:
            status = client.status()
            facts = {"complete": status.complete, "nodes": status.nodes}
            return Frame((Panel(_status_rows(status), words=remarks(status)),), facts)

        refresh_loop(session.output, poll, every_s=every_s, times=times if watch else 1)


def _status_rows(status: ClusterStatus) -> list[dict[str, Any]]:
    return [
        answered_only(
            node,
            {
                "node": node.name,
                "state": node.state,
                "address": node.address,
                "rows": sum(dataset["rows"] for dataset in node.datasets),
                "disk": size_of_bytes(sum(dataset["bytes_on_disk"] for dataset in node.datasets)),
                "memory": size_of_bytes(node.memory_bytes),
                "host CPU": f"{100 * node.cpu_share:.0f} %",
                "CCQs": node.ccqs_coordinated,
                "group": node.group,
                "cache": size_of_bytes(node.cache_bytes),
                "held": size_of_bytes(node.held_bytes),
                "spilled": size_of_bytes(node.spilled_bytes),
            },
        )
        for node in status.nodes
    ]


def answered_only(node: NodeStatus, row: dict[str, Any]) -> dict[str, Any]:
    """The row; of an unreachable node with empty cells for all that it did not report."""
    known = ("node", "state", "address", "group")
    is_reachable = node.state != "unreachable"
    return {name: value if is_reachable or name in known else None for name, value in row.items()}


def remarks(status: ClusterStatus) -> str:
    """What is not as it should be."""
    lines = [f"{node.name} does not answer" for node in status.nodes if node.state == "unreachable"]
    for node in status.nodes:
        lines += [f"{node.name}: stopped: {reason}" for reason in node.stopped]
        if node.evaluator_problem:
            lines.append(f"{node.name}: evaluates no queries: {node.evaluator_problem}")
        if node.under_replicated:
            partitions = ", ".join(map(partition_name, node.under_replicated))
            lines.append(f"{node.name}: too few copies of partitions {partitions}")
        lines += [f"{node.name}: {pending}" for pending in node.pending]
        lines += [f"{node.name}: damaged: {damage}" for damage in node.damaged]
        lines += [f"{node.name}: copies differ: {difference}" for difference in node.diverged]
        lines += [f"{node.name}: not executed: {reason}" for reason in node.channels_failing]
        if held := _held_back(node):
            lines.append(f"{node.name}: held back by readers: {held}")
    # Each node reports what it knows, which is most often the same.
    losses = dict.fromkeys(loss for node in status.nodes for loss in node.lost)
    lines += [f"commits are lost: {loss} (see galileo doctor)" for loss in losses]
    return "\n".join(lines)


@click.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="Let the node accept continuous queries again.")
@click.option(
    "--timeout",
    default="60s",
    show_default=True,
    help="Wait for up to this long until the node coordinates none.",
)
@in_session
def drain(session: Session, *, node: str, undo: bool, timeout: str) -> None:
    """Hand a node's continuous queries to other nodes before it is stopped.

    Waits until the node coordinates none. Its data stays on its disk; while the node is down,
    answers are partial.

    \b
    Example:
      galileo drain n2
    """
    with session.client() as client:
        client.drain(node, undo=undo)
        left = 0 if undo else _drained(session, client, node, timeout_s=seconds(timeout))
    if left:
        raise TransientError(
            f"{node} still coordinates {counted(left, 'continuous query')} after {timeout}. It "
            "keeps handing them over; check with galileo status that other nodes are up, and run "
            "galileo drain again"
        )
    words = (
        f"{node} accepts continuous queries again"
        if undo
        else f"{node} coordinates no continuous query; {node} can be stopped now"
    )
    session.output.value({"node": node, "draining": not undo}, words=words)


def _drained(session: Session, client: Client, node: str, *, timeout_s: float) -> int:
    """How many the node still coordinates when that is none, or when the time is over."""
    deadline = time.monotonic() + timeout_s
    with session.output.progress(unit="queries left") as bar:
        task = bar.add_task(f"draining {node}")
        while True:
            present = next(status for status in client.status().nodes if status.name == node)
            left = present.ccqs_coordinated
            bar.update(task, completed=left)
            if (present.state == "draining" and not left) or time.monotonic() >= deadline:
                return left
            time.sleep(DRAIN_LOOK_S)


def _held_back(node: NodeStatus) -> str:
    """What retention would drop if no reader had still to fetch it."""
    facts = []
    for dataset in node.datasets:
        size = sum(held["bytes"] for held in dataset["held_back"])
        by = sorted({name for held in dataset["held_back"] for name in held["readers"]})
        if size:
            names = ", ".join(by) or "unknown readers"
            facts.append(f"{dataset['dataset']}: {size / 1e6:,.1f} MB by {names}")
    return "; ".join(facts)


@click.command()
@in_session
def whoami(session: Session) -> None:
    """Show the user name the cluster knows you by, your quotas, and what you use of them.

    \b
    Example:
      galileo whoami --json | jq '.quotas.ccqs_max'
    """
    with session.client() as client:
        identity = client.whoami()
    if session.output.as_json:
        session.output.value(identity)
        return
    words = [
        f"user: {identity.name or 'anonymous (the cluster has no access control)'}",
        *([f"roles: {', '.join(identity.roles)}"] if identity.roles else []),
        f"datasets: {', '.join(identity.datasets) or 'none'}",
        *([f"brokers: {', '.join(identity.brokers)}"] if identity.brokers else []),
    ]
    session.output.value(None, words="\n".join(words))
    rows = [
        {
            "quota": quota,
            "bound": _bound(quota, usage.bound),
            "used": usage.used,
            "per": usage.counted,
        }
        for quota, usage in identity.quotas.items()
    ]
    session.output.rows(rows, title="Quotas", empty="You have no quotas.")
    if rows:
        session.output.value(None, words="The limits of the nodes' configuration apply, too.")


@click.group(cls=CommandGroup, invoke_without_command=True)
@json_option
@click.pass_context
def topology(context: click.Context) -> None:
    """Show the groups, their nodes with their racks, and their geohash ranges.

    \b
    Example:
      galileo topology --json
      galileo topology suggest --dataset nam
    """
    if context.invoked_subcommand is None:
        _show_topology(context.obj)


@handle_errors
def _show_topology(session: Session) -> None:
    with session.client() as client:
        topology = json.loads(client.topology_json())
    if session.output.as_json:
        session.output.value(topology)
        return
    pending = topology.get("pending_ranges")
    session.output.rows(
        [
            {
                "group": group["name"],
                "node": node["name"],
                "address": node["address"],
                "rack": node.get("rack", ""),
                "geohashes": ranges_of_group(topology["ranges"], number),
            }
            | ({} if pending is None else {"announced": ranges_of_group(pending, number)})
            for number, group in enumerate(topology["groups"])
            for node in group["nodes"]
        ]
    )


@topology.command()
@click.option("--dataset", required=True, help="The dataset whose observations are counted.")
@click.option(
    "--groups",
    type=click.IntRange(1, NODES_MAX),
    help="How many groups the new cluster will have.  [default: as many as now]",
)
@require_complete_option
@in_session
def suggest(session: Session, *, dataset: str, groups: int | None, require_complete: bool) -> None:
    """Suggest geohash ranges for data like that of a dataset.

    Counts the observations of each cell from metadata, and cuts the cells into one range for each
    group. Also prints how even the present and the suggested ranges are: the observations of the
    busiest node by those of the mean node, where 1.00 is even. galileo topology cut puts the ranges
    into force.

    \b
    Example:
      galileo topology suggest --dataset nam --groups 4
    """
    with session.client() as client:
        now = Topology.from_json(client.topology_json())
        precision = client.schema(dataset).geohash_precision
        cells, rows, missing = _rows_by_cell(client, dataset, require_complete=require_complete)
    session.output.warn_partial(missing)
    if not len(cells):
        raise InputError(f"expected observations in dataset {dataset!r}, got none; ingest some")
    count = groups or len(now.groups)
    ranges = balanced_ranges(cells, precision, groups=count, counts=rows)
    present = placement.rows_by_group(now, cells, rows, precision=precision)
    equal = _even_groups(now.cluster, ranges)
    suggested = placement.rows_by_group(equal, cells, rows, precision=precision)
    loads = placement.relative_loads(now, present)
    facts = {
        "ranges": [list(pair) for pair in ranges],
        "present": round(max(loads.values()), 4),
        "present_without_data": sum(load == 0 for load in loads.values()),
        "suggested": round(max(placement.relative_loads(equal, suggested).values()), 4),
        "observations": int(rows.sum()),
        "cells": len(cells),
        "complete": not missing,
    }
    session.output.value(facts, words=_suggestion(facts))


@topology.command()
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), required=False
)
@click.option("--undo", is_flag=True, help="Take ranges back that are not in force yet.")
@in_session
def cut(session: Session, *, file: str | None, undo: bool) -> None:
    """Cut the geohash ranges of the groups anew, while the cluster works.

    FILE has the ranges in JSON: pairs of the geohash where a range begins, and the name or number
    of its group. A dash reads them from standard input. What galileo topology suggest --json prints
    is accepted, too. New observations are stored by the new ranges; the others stay where they are.

    The ranges come into force when every node knows them. Ctrl-C leaves them announced, which
    changes nothing; the same command goes on.

    \b
    Example:
      galileo topology cut ranges.json
      galileo topology cut --undo
    """
    if undo == (file is not None):
        raise click.UsageError("expected either FILE or --undo")
    with session.client() as client:
        if file is None:
            client.keep_ranges()
            session.output.value({"ranges": None}, words="no ranges are announced any more")
            return
        with click.open_file(file) as stream:
            ranges = _named_ranges(stream.read(), Topology.from_json(client.topology_json()))
        with session.output.progress(unit="") as bar:
            task = bar.add_task("announcing the ranges")
            for step in client.set_ranges(ranges):
                waiting = f"waiting for {', '.join(step.waiting)}" if step.waiting else step.stage
                bar.update(task, description=waiting)
    words = "rows are stored by these ranges from now on"
    session.output.value({"ranges": [list(pair) for pair in ranges]}, words=words)


@topology.command()
@click.argument("count", type=click.IntRange(1, REPLICAS_MAX))
@in_session
def replicas(session: Session, *, count: int) -> None:
    """Change the number of copies of each partition to COUNT, while the cluster works.

    Nodes make or delete copies at once; galileo status says how many partitions lack some. Copies
    are deleted when the remaining ones have everything. With one copy, a lost disk loses its data.

    \b
    Example:
      galileo topology replicas 3
      galileo topology replicas 1
    """
    with session.client() as client:
        client.set_replicas(count)
    copies = "1 copy" if count == 1 else f"{count} copies"
    words = f"each partition has {copies}, as soon as that is done; see galileo status"
    session.output.value({"replicas": count}, words=words)


def _named_ranges(text: str, now: Topology) -> list[tuple[str, str]]:
    """The ranges of a file, with the names of their groups."""
    names = [group.name for group in now.groups]
    try:
        raw = json.loads(text)
        pairs = raw["ranges"] if isinstance(raw, dict) else raw
        return [
            (str(start), names[group] if isinstance(group, int) else str(group))
            for start, group in pairs
        ]
    except IndexError:
        raise InputError(
            f"expected numbers of groups from 0 to {len(names) - 1}, got another one; groups: "
            f"{', '.join(names)}. Make a group with galileo node add --new-group"
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            'expected ranges in JSON, such as [["", "west"], ["9x", "east"]]: ' + reason_of(error)
        ) from error


def _rows_by_cell(
    client: Client, dataset: str, *, require_complete: bool
) -> tuple[geohash.Cells, npt.NDArray[np.int64], tuple[int, ...]]:
    """The cells of a dataset, the observations of each, and partitions that could not be asked."""
    pages = [client.children(dataset, limit=CELLS_OF_PAGE, require_complete=require_complete)]
    while pages[-1].more:
        page = client.children(
            dataset, limit=CELLS_OF_PAGE, after=pages[-1].last, require_complete=require_complete
        )
        pages.append(page)
    counted = pa.concat_tables([page.table for page in pages])
    texts, rows = counted["value"].combine_chunks(), counted["observations"].to_numpy()
    missing = sorted({partition for page in pages for partition in page.missing})
    return geohash.from_text(texts), rows.astype(np.int64), tuple(missing)


def _even_groups(cluster: str, ranges: tuple[tuple[str, int], ...]) -> Topology:
    """A topology of groups of equal size with these ranges; its addresses are of no use."""
    groups = (
        Group(f"group-{n + 1}", (NodeInfo(f"node-{n + 1}", f"127.0.0.1:{n + 1}"),))
        for n in range(len(ranges))
    )
    return Topology(cluster, tuple(groups), ranges)


def _suggestion(facts: dict[str, Any]) -> str:
    without = facts["present_without_data"]
    idle = f"; {counted(without, 'node')} without data" if without else ""
    cells = counted(facts["cells"], "cell")
    return (
        f"# {counted(facts['observations'], 'observation')} in {cells}\n"
        "# busiest node by mean node:\n"
        f"#   present topology: {facts['present']:.2f}{idle}\n"
        f"#   suggested ranges: {facts['suggested']:.2f} with groups of equal size\n"
        "# For the files of a new cluster; galileo topology cut changes this one.\n"
        "[cluster]\n"
        f"ranges = {_range_rows(facts['ranges'])}"
    )


def _range_rows(ranges: Sequence[Sequence[Any]]) -> str:
    """The ranges as TOML, each on a line of its own."""
    return "\n".join(["[", *(f"    {json.dumps(pair)}," for pair in ranges), "]"])


def ranges_of_group(ranges: Sequence[tuple[str, int]], group: int) -> str:
    """The geohashes of a group, such as "0-3 8 [c,f2)"; adjacent ranges are joined.

    Args:
        ranges: where each one starts, ascending, and its group.
        group: the position of a group.
    """
    ends = [start for start, _ in ranges[1:]] + [""]
    joined: list[list[str]] = []
    for (start, owner), end in zip(ranges, ends, strict=True):
        if owner == group and joined and joined[-1][1] == start:
            joined[-1][1] = end
        elif owner == group:
            joined.append([start, end])
    return " ".join(_range(start, end) for start, end in joined)


def _range(start: str, end: str) -> str:
    """Whole first characters as "c-f", others as a half-open interval."""
    letters = geohash.ALPHABET.decode()
    first = start or letters[0]
    if len(first) > 1 or len(end) > 1:
        return f"[{first},{end})"
    last = letters[letters.index(end) - 1] if end else letters[-1]
    return first if first == last else f"{first}-{last}"


def _bound(quota: str, bound: float) -> str:
    if bound >= NO_RATE:
        return "unlimited"
    is_time = quota.endswith("_s") and not quota.endswith("_per_s")
    return duration_text(bound) if is_time else f"{bound:,.12g}"
