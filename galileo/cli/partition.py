"""`galileo partition move`: move partitions from node to node."""

from __future__ import annotations

import time
from typing import Any

import click

from galileo.cli.lazy import CommandGroup
from galileo.cli.session import Session, in_session
from galileo.client import Client
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import InputError


@click.group(cls=CommandGroup)
def partition() -> None:
    """Partitions: move them between nodes.

    \b
    Example:
      galileo partition move 3 --to storm-4
    """


@partition.command()
@click.argument("partitions", nargs=-1, type=click.IntRange(min=0), metavar="[PARTITION]...")
@click.option("--to", required=True, metavar="NODE", help="The node that receives the partitions.")
@click.option(
    "--from", "source", default="", metavar="NODE", help="Move all partitions of this node."
)
@click.option("--dry-run", is_flag=True, help="Print what would be moved, and stop.")
@in_session
def move(
    session: Session, *, partitions: tuple[int, ...], to: str, source: str, dry_run: bool
) -> None:
    """Move partitions to another node of their group, without downtime.

    The node becomes a member of the partition's replica set, gets all that it lacks, and takes the
    lead. By themselves, nodes have equal shares of the partitions of their group; a partition that
    was moved stays where it was moved to. A move goes on after Ctrl-C.

    \b
    Example:
      galileo partition move --to storm-4 --from storm-2
      galileo partition move 3 5 --to storm-1
    """
    with session.client() as client:
        topology = Topology.from_json(client.topology_json())
        selected = _select(topology, partitions, to=to, source=source)
        rows = [
            {"partition": p, "from": placement.owner(topology, p), "to": to}
            | ({} if dry_run else _move(session, client, p, to=to))
            for p in selected
        ]
    title = "Would move" if dry_run else "Moved"
    session.output.rows(
        rows,
        title=f"{title} {len(rows)} partitions",
        empty=f"{to} already has all of these partitions.",
    )


def _select(
    topology: Topology, partitions: tuple[int, ...], *, to: str, source: str
) -> tuple[int, ...]:
    """The partitions to move that `to` does not own yet."""
    for name in filter(None, (to, source)):
        if name not in topology.by_name:
            known = ", ".join(sorted(topology.by_name))
            raise InputError(f"node {name!r} does not exist; nodes: {known}")
    if partitions and source:
        raise InputError("expected partitions or --from, got both")
    unknown = sorted(set(partitions) - set(topology.partitions))
    if unknown:
        raise InputError(
            f"expected partitions from 0 to {topology.partitions[-1]}, "
            f"got {', '.join(map(str, unknown))}"
        )
    if not (partitions or source):
        raise InputError("expected partitions, or --from with a node whose partitions move")
    candidates = partitions or tuple(sorted(placement.partitions_by_node(topology)[source]))
    return tuple(p for p in dict.fromkeys(candidates) if placement.owner(topology, p) != to)


def _move(session: Session, client: Client, partition: int, *, to: str) -> dict[str, Any]:
    """Moves one partition; its duration."""
    began = time.monotonic()
    with session.output.progress(unit="") as bar:
        task = bar.add_task(f"partition {partition}")
        for step in client.move(partition, to=to):
            bar.update(task, description=f"partition {partition}: {step.stage}")
    return {"seconds": round(time.monotonic() - began, 2)}
