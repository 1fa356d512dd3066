"""`galileo top`: nodes and continuous queries, refreshed."""

from __future__ import annotations

import time
from typing import Any

import click

from galileo.cli.ccq import query_text
from galileo.cli.cluster import answered_only, remarks
from galileo.cli.live_display import Frame, Panel, refresh_loop
from galileo.cli.output import size_of_bytes, time_left
from galileo.cli.session import Session, in_session
from galileo.client import CcqInfo, Client, ClusterStatus, NodeStatus
from galileo.model.times import seconds

QUERY_SHOWN = 48
"""Characters of a query in the table."""


@click.command()
@click.option("--interval", default="2s", show_default=True, help="Refresh interval.")
@click.option("--once", is_flag=True, help="Show the screen once.")
@click.option("--times", type=click.IntRange(1), help="Number of refreshes.")
@in_session
def top(session: Session, *, interval: str, once: bool, times: int | None) -> None:
    """Show nodes and continuous queries, refreshed until Ctrl-C.

    On a terminal the table is redrawn; in a pipe the tables follow each other.

    \b
    Example:
      galileo top --interval 5s
      galileo top --once --json | jq '.nodes[].load'
    """
    with session.client() as client:
        poller = ClusterPoller(client)
        every_s = seconds(interval)
        refresh_loop(session.output, poller.poll, every_s=every_s, times=1 if once else times)


class ClusterPoller:
    """Polls the status of a cluster, and computes rates from two polls."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._rows: dict[str, tuple[float, int]] = {}

    def poll(self) -> Frame:
        """The nodes with the observations that each stored a second since the last poll."""
        status, ccqs, now = self._client.status(), self._client.list_ccqs(), time.time()
        rates = {node.name: self._rate(node) for node in status.nodes}
        panels = (
            Panel(
                [_node(node, rates[node.name]) for node in status.nodes],
                title=_title(status),
                words=remarks(status),
            ),
            Panel(
                [_ccq(ccq, now) for ccq in ccqs],
                title="Continuous queries",
                words="" if ccqs else "No continuous queries.",
            ),
        )
        return Frame(panels, {"complete": status.complete, "nodes": status.nodes, "ccqs": ccqs})

    def _rate(self, node: NodeStatus) -> float | None:
        stored, now = sum(int(dataset["rows"]) for dataset in node.datasets), time.monotonic()
        before = self._rows.get(node.name)
        if node.state != "unreachable":
            self._rows[node.name] = (now, stored)
        if before is None or node.state == "unreachable":
            return None
        return max(0, stored - before[1]) / max(now - before[0], 1e-9)


def _title(status: ClusterStatus) -> str:
    up = sum(node.state == "up" for node in status.nodes)
    return f"{up} of {len(status.nodes)} nodes are up"


def _node(node: NodeStatus, rate: float | None) -> dict[str, Any]:
    row = {
        "node": node.name,
        "state": node.state,
        "rows": sum(dataset["rows"] for dataset in node.datasets),
        "rows/s": "" if rate is None else f"{rate:,.0f}",
        "calls": calls_of_clients(node),
        "CCQs": node.ccqs_coordinated,
        "memory": size_of_bytes(node.memory_bytes),
        "host CPU": f"{100 * node.cpu_share:.0f} %",
        "load": round(node.load, 1),
        "cache": size_of_bytes(node.cache_bytes),
        "group": node.group,
    }
    return answered_only(node, row)


def calls_of_clients(node: NodeStatus) -> int:
    """Calls under way, without those by which nodes keep in touch and status is asked for."""
    return sum(count for name, count in node.calls.items() if not name.startswith("Cluster/"))


def _ccq(ccq: CcqInfo, now: float) -> dict[str, Any]:
    text = query_text(ccq.query)
    query = text if len(text) <= QUERY_SHOWN else f"{text[:QUERY_SHOWN]}…"
    return {
        "id": ccq.id,
        "dataset": ccq.dataset,
        "query": query,
        "state": ccq.state,
        "every": f"{ccq.interval_s:g}s",
        "ends in": time_left(max(0.0, ccq.expires_at - now)),
        "coordinator": ccq.coordinator,
    }
