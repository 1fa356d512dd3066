"""`galileo node`: add nodes, remove them, and accept the loss of a directory."""

from __future__ import annotations

import click

from galileo.cli.lazy import CommandGroup
from galileo.cli.session import Session, in_session
from galileo.client import Client
from galileo.client.node_removal import RemovalProgress
from galileo.client.scrubs import ScrubProgress
from galileo.dht import placement
from galileo.dht.topology import Topology


@click.group(cls=CommandGroup)
def node() -> None:
    """Nodes of the cluster: list, add, remove, replace and scrub them.

    \b
    Example:
      galileo node list
      galileo node remove storm-2
    """


@node.command("list")
@in_session
def list_nodes(session: Session) -> None:
    """List the nodes, with their state and their partitions.

    \b
    Example:
      galileo node list --json | jq -r '.[].node'
    """
    with session.client() as client:
        topology = Topology.from_json(client.topology_json())
        states = {one.name: one.state for one in client.status().nodes}
    owned = placement.partitions_by_node(topology)
    session.output.rows(
        [
            {
                "node": one.name,
                "group": group.name,
                "address": one.address,
                "state": "leaving" if one.leaving else states.get(one.name, "unreachable"),
                "weight": one.weight,
                "rack": one.rack,
                "partitions": len(owned[one.name]),
            }
            for group in topology.groups
            for one in group.nodes
        ]
    )


@node.command()
@click.argument("name", metavar="NODE")
@click.argument("address", metavar="HOST:PORT")
@click.option("--group", default="", help="Its group; the one with the fewest nodes by default.")
@click.option(
    "--weight",
    default=1.0,
    type=click.FloatRange(min=0, min_open=True),
    show_default=True,
    help="Its share of the partitions, relative to other nodes of the group.",
)
@click.option("--rack", default="", help="Its rack; nodes of one rack can fail together.")
@click.option("--new-group", is_flag=True, help="Make the group, with this node as its first.")
@in_session
def add(
    session: Session,
    *,
    name: str,
    address: str,
    group: str,
    weight: float,
    rack: str,
    new_group: bool,
) -> None:
    """Announce a node that will join with galileo serve --join.

    A node that joins announces itself. Use this command for the first node of a new group, and
    where only administrators may add nodes. A new group stores nothing before galileo topology cut.

    \b
    Example:
      galileo node add storm-4 10.0.0.14:7701 --group west
      galileo node add storm-5 10.0.0.15:7701 --group east --new-group
    """
    with session.client() as client:
        client.add_node(name, address, group=group, weight=weight, rack=rack, new_group=new_group)
    then = "; then run galileo topology cut" if new_group else ""
    words = f"start {name} with: galileo serve --join{then}"
    session.output.value({"node": name, "address": address}, words=words)


@node.command()
@click.argument("name", metavar="NODE")
@click.option(
    "--undo", is_flag=True, help="End the removal; the node gets its share of the partitions again."
)
@click.option("--lost", is_flag=True, help="The node is gone for good; others have copies.")
@in_session
def remove(session: Session, *, name: str, undo: bool, lost: bool) -> None:
    """Remove a node: its partitions and continuous queries move to others, then it stops.

    The node goes on by itself after Ctrl-C, and after a restart; the same command shows the
    progress again. Its directory can be deleted afterwards.

    \b
    Example:
      galileo node remove storm-2
      galileo node remove storm-2 --undo
      galileo node remove storm-2 --lost
    """
    if undo and lost:
        raise click.UsageError("--undo and --lost exclude each other")
    with session.client() as client:
        if undo:
            client.keep_node(name)
            session.output.value({"node": name, "removed": False}, words=f"{name} stays")
            return
        _remove(session, client, name, to="", lost=lost)
    session.output.value({"node": name, "removed": True}, words=f"{name} is removed")


@node.command()
@click.argument("name", metavar="OLD")
@click.argument("successor", metavar="NEW")
@in_session
def replace(session: Session, *, name: str, successor: str) -> None:
    """Remove a node after another has taken all its partitions.

    Start the new node with galileo serve --join, in the group of the old one, before. Ctrl-C does
    not end it, see galileo node remove.

    \b
    Example:
      galileo node replace storm-2 storm-5
    """
    with session.client() as client:
        _remove(session, client, name, to=successor)
    words = f"{successor} has replaced {name}"
    session.output.value({"node": name, "replaced_by": successor}, words=words)


@node.command()
@click.argument("name", metavar="NODE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@in_session
def forget(session: Session, *, name: str, yes: bool) -> None:
    """Accept the loss of a node's directory: the node then serves its partitions, empty.

    Use it where no node has a copy of a partition, as in clusters with one copy. A node that starts
    with an empty directory does not serve such partitions of its lost one. If that can be put back,
    stop the node and put it back; otherwise restore a backup. After this command, what only the
    directory held is gone for good.

    \b
    Example:
      galileo node forget storm-2
    """
    if not yes:
        click.confirm(f"Everything that only {name} held is lost then. Go on?", abort=True)
    with session.client() as client:
        partitions = client.forget_node(name)
    words = f"{len(partitions)} partitions of {name} begin anew"
    session.output.value({"node": name, "partitions": list(partitions)}, words=words)


@node.command()
@click.argument("names", nargs=-1, metavar="[NODE]...")
@in_session
def scrub(session: Session, *, names: tuple[str, ...]) -> None:
    """Read all stored commits again from the disks now, and list damaged files.

    Nodes do so by themselves within storage.scrub_days. Where other nodes have copies, a damaged
    file is copied from them. After Ctrl-C the nodes go on; the same command shows the progress
    again. The exit code is 1 if there is damage, or if a node did not answer.

    \b
    Example:
      galileo node scrub
      galileo node scrub storm-2
    """
    progress: dict[str, ScrubProgress] = {}
    with session.client() as client, session.output.progress(unit="bytes") as bar:
        task = bar.add_task("scrubbing")
        for step in client.scrub(*names):
            progress[step.node] = step
            bar.update(
                task,
                completed=sum(one.bytes_done for one in progress.values()),
                total=sum(one.bytes_total for one in progress.values()),
            )
    session.output.rows(
        [
            {
                "node": one.node,
                "MB": round(one.bytes_total / 1e6, 1),
                "damaged files": len(one.damages),
                "problem": one.failure or "; ".join(one.damages),
            }
            for _, one in sorted(progress.items())
        ],
        title=f"Scrubbed {len(progress)} nodes",
    )
    if any(one.failure or one.damages for one in progress.values()):
        click.get_current_context().exit(1)


def _remove(session: Session, client: Client, name: str, *, to: str, lost: bool = False) -> None:
    with session.output.progress(unit="") as bar:
        task = bar.add_task(f"removing {name}")
        for step in client.remove_node(name, to=to, lost=lost):
            bar.update(task, description=_stage(step))


def _stage(step: RemovalProgress) -> str:
    if step.stage == "move" and step.left:
        return f"moving partitions, {step.left} left"
    words = {"move": "moving partitions", "drain": "handing queries over", "done": "removed"}
    return words.get(step.stage, step.stage)
