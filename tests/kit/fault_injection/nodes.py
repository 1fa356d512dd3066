"""Nodes with small files, so that a few batches meet every kind of file, and their disks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from waiting import wait_until

from fault_injection.disks import FLAGS, LoopDisk
from fault_injection.ledger import Ledger, Producer, numbered_schema
from fault_injection.trial import Trial
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.dht import placement
from galileo.dht.topology import SYSTEM, Topology
from galileo.dht.topology_changes import system_copies
from galileo.local_node import LocalNode

DATASET = "numbered"
SMALL_FILES = {"segment_bytes_max": 60_000, "compaction": False}
MERGING = {
    "segment_bytes_max": 30_000,
    "compaction": True,
    "compaction_bytes_min": 60_000,
    "compaction_interval_s": 0.3,
}
PATIENCE = "120s"
PARTITIONS = 2
PRODUCERS = 2
WHOLE_S = 120.0
PAUSE_MAX_S = 0.25
DISK_BYTES = 256 << 20


@contextlib.contextmanager
def one_node(
    place: Path,
    *,
    storage: dict[str, Any] | None = None,
    data: Path | None = None,
    create: bool = True,
) -> Iterator[tuple[LocalCluster, Ledger]]:
    """A running node with an empty dataset, and a ledger of it.

    Args:
        place: for its configuration and log, and its data.
        storage: settings of that section.
        data: a directory for its data alone, on a disk of its own.
        create: whether to create the dataset; it is in `data` already otherwise.
    """
    settings: dict[str, dict[str, Any]] = {"storage": storage or SMALL_FILES}
    if data is not None:
        settings["node"] = {"directory": str(data)}
    cluster = LocalCluster(1, 1, place, partitions_per_group=PARTITIONS, settings=settings)
    with cluster:
        if create:
            cluster.client(timeout=PATIENCE).create_dataset(numbered_schema(DATASET))
        yield cluster, Ledger(DATASET)


def send(ledger: Ledger, client: Client, *, batches: int) -> None:
    for _ in range(batches):
        ledger.send(client)


def is_whole(client: Client) -> bool:
    """Whether all nodes answer, and each partition has a leader and all its copies."""
    status = client.status()
    return status.complete and not status.under_replicated


def has_shares(client: Client) -> bool:
    """Whether each partition is whole, and led by the node that should lead it."""
    topology = Topology.from_json(client.topology_json())
    first = {partition: nodes[0] for partition, nodes in placement.rankings(topology).items()}
    moved = {move.partition: move.node for move in topology.moved}
    return {**placement.owners(topology), **moved} == first and is_whole(client)


def kill_another(cluster: LocalCluster, client: Client, number: int) -> None:
    """Starts the nodes that are down, and kills one when all copies are there."""
    for node in cluster.nodes:
        if not node.running:
            node.start()
            node.wait()
    wait_until(lambda: is_whole(client), what="all copies", timeout_s=WHOLE_S)
    cluster.nodes[number].kill()


@contextlib.contextmanager
def producing(cluster: LocalCluster, ledger: Ledger) -> Iterator[None]:
    """Clients that send within the block and through every fault; each ends its last batch."""
    producers = [Producer(ledger, cluster.client(timeout=PATIENCE)) for _ in range(PRODUCERS)]
    for producer in producers:
        producer.start()
    try:
        yield
    finally:
        for producer in producers:
            producer.stop()


def wait_acknowledged(ledger: Ledger) -> None:
    """Returns when the node has acknowledged something more."""
    seen = ledger.acknowledged
    wait_until(lambda: ledger.acknowledged > seen, what="an acknowledgement")


def left_behind(topology: Topology, cluster: LocalCluster) -> list[str]:
    """Directories of partitions at nodes that do not have them, in a cluster with one copy."""
    owners = {partition: {node} for partition, node in placement.owners(topology).items()}
    copies = system_copies(topology)
    owners[SYSTEM] = set(placement.rankings(topology)[SYSTEM][:copies])
    return [
        str(path)
        for node in cluster.nodes
        for path in (cluster.directory / node.name / "journals").glob("*/*")
        if not path.name.isdecimal() or node.name not in owners[int(path.name)]
    ]


@contextlib.contextmanager
def node_disks(directory: Path, count: int) -> Iterator[Mapping[str, LoopDisk]]:
    """A file system for each of the first nodes of the cluster in `directory / "cluster"`, by name.

    The names stand for directories on these file systems.
    """
    place = directory / "cluster"
    with contextlib.ExitStack() as stack:
        disks = {}
        for number in range(1, count + 1):
            name = f"node-{number}"
            disk = LoopDisk(directory / f"disk-{number}", size_bytes=DISK_BYTES)
            disks[name] = stack.enter_context(disk)
            place.mkdir(exist_ok=True)
            (disk.directory / name).mkdir()
            (place / name).symlink_to(disk.directory / name)
        yield disks


def cut_power(trial: Trial, nodes: Sequence[LocalNode], disks: Mapping[str, LoopDisk]) -> None:
    """Stops all nodes, and then all output to their disks; the nodes are killed next."""
    for node in nodes:
        node.pause()
    for node in nodes:
        flag = trial.random.choice((1, 2, 2))
        disks[node.name].cut_power(flag=flag)
        trial.counts[f"cuts, {FLAGS[flag]}"] += 1
