"""The topology: groups, nodes, partitions and geohash ranges, as one immutable value.

The hash table is zero-hop: every node and client has the whole topology, so each can locate a block
without a request (paper, III.A). A topology is numbered; a higher version replaces a lower one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.errors import ConfigError, InputError, reason_of
from galileo.geo import geohash
from galileo.hashing import text64
from galileo.model.table import SYSTEM as SYSTEM

PORT = 7701
"""The default port of a node."""
NODES_MAX = 1024
PARTITIONS_PER_GROUP_MAX = 1024
PARTITIONS_MAX = 16_384
"""Partitions of a cluster: requests name some or all of them, and have cursors of them."""
PARTITIONS_PER_GROUP = 4
"""The default of a configuration file, and the least of `derive_partitions`."""
PARTITIONS_PER_NODE = 2
REPLICAS_MAX = 5
NO_DISK = "-"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")

RangeMap: TypeAlias = tuple[tuple[str, int], ...]
"""(first geohash, group number), sorted; each range ends where the next begins, the first begins at
""."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node: its name, `host:port`, and its weight in its group.

    `ordinal` identifies the node for ever: the terms of two nodes must never be equal. -1 stands
    for its position among the initial nodes.

    `joined`: it was added to a cluster with data. It has only partitions that were moved to it, and
    needs an ordinal of its own.

    `leaving`: it is being removed; no partition is moved to it.

    `identity`: random name of its first directory, if it joined by command or partitions are
    replicated.

    `rack`: nodes of one rack can fail together, so the copies of a partition are spread over racks.
    Empty: the node counts as a rack of its own.
    """

    name: str
    address: str
    weight: float = 1.0
    ordinal: int = -1
    joined: bool = False
    leaving: bool = False
    identity: str = ""
    rack: str = ""

    def __post_init__(self) -> None:
        _check_name("node", self.name)
        if self.rack:
            _check_name("rack", self.rack)
        if not is_address(self.address):
            raise ConfigError(
                f"expected host:port as address of node {self.name!r}, got {self.address!r}",
                expected="address",
                node=self.name,
            )
        if not 0 < self.weight < math.inf:
            raise ConfigError(
                f"expected a finite weight above zero for node {self.name!r}, got {self.weight}",
                expected="weight",
                node=self.name,
            )
        if self.joined and self.ordinal < 0:
            raise ConfigError(
                f"expected an ordinal for node {self.name!r}, which joined later; give it a number "
                f"below {NODES_MAX} that no node of this cluster ever had",
                expected="ordinal",
                node=self.name,
            )

    @property
    def fault_domain(self) -> str:
        """Its rack, or what stands for the node alone; a blank is in no name of a rack."""
        return self.rack or f"node {self.name}"


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that share the geohash ranges of one part of the world."""

    name: str
    nodes: tuple[NodeInfo, ...]

    def __post_init__(self) -> None:
        _check_name("group", self.name)
        if not self.nodes:
            raise ConfigError(
                f"expected at least one node in group {self.name!r}",
                expected="node",
                group=self.name,
            )

    @property
    def founders(self) -> tuple[NodeInfo, ...]:
        """The initial nodes."""
        return tuple(node for node in self.nodes if not node.joined)

    @property
    def present(self) -> tuple[NodeInfo, ...]:
        """The nodes that have joined and are not being removed."""
        return tuple(
            node for node in self.nodes if not node.leaving and (node.identity or not node.joined)
        )


@dataclass(frozen=True, slots=True, order=True)
class Move:
    """A move of a partition to a node; `number` counts the moves of the partition, from 1.

    Only the owner of a partition moves it, so no two moves of one partition have the same number.
    """

    partition: int
    number: int
    node: str


@dataclass(frozen=True, slots=True)
class Founding:
    """What the first topology of a cluster decided for good; recorded when nodes change.

    Attributes:
        fingerprint: of the first topology, which identifies the cluster.
        owners: the first node of each partition.
        ordinals: how many were assigned; the next node gets this one.
        disks: for each partition, the directory with which it begins, by its random name. "": not
            known yet; `NO_DISK`: it has begun, and is at other nodes.
        system: the same for the system partition.
        histories: the history in which partitions began anew, by partition; see `model.forks`. A
            directory with an earlier one was given up for lost.
    """

    fingerprint: int
    owners: tuple[str, ...]
    ordinals: int
    disks: tuple[str, ...] = ()
    system: str = ""
    histories: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Topology:
    """Attributes:
    cluster: name of the cluster.
    groups: their order numbers them; a new group is the last.
    ranges: where new rows go. A group without a range gets none.
    partitions_per_group: group g owns the partitions g·n to g·n + n - 1.
    version: a higher one replaces a lower one; 1 is the topology of the files.
    moved: the leader of each partition, as far as one is known, with its term as the number.
    founding: of a cluster whose nodes were changed by command.
    former_ranges: the ranges before, oldest first. Rows stay where they were stored, so queries
        ask the partitions of all of them. Their number plus 1 is the *range epoch*.
    pending_ranges: the ranges of the next epoch, while nodes learn of them. Queries ask their
        partitions, too, but no row is stored by them yet.
    replicas: the copies of each partition, on different nodes of its group.
    pins: the node that should lead a partition where a command has named one, by partition.
    """

    cluster: str
    groups: tuple[Group, ...]
    ranges: RangeMap
    partitions_per_group: int = PARTITIONS_PER_GROUP
    version: int = 1
    moved: tuple[Move, ...] = ()
    founding: Founding | None = None
    former_ranges: tuple[RangeMap, ...] = ()
    pending_ranges: RangeMap | None = None
    replicas: int = 1
    pins: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        _check_name("cluster", self.cluster)
        if not self.groups:
            raise ConfigError(
                "expected at least one group in the topology, got none", expected="group"
            )
        names = [node.name for node in self.nodes]
        _check_unique("node name", names)
        _check_unique("node address", [node.address for node in self.nodes])
        _check_unique("group name", [group.name for group in self.groups])
        if len(names) > NODES_MAX:
            raise ConfigError(
                f"expected at most {NODES_MAX} nodes, got {len(names)}",
                expected="nodes",
                bound=NODES_MAX,
            )
        if not 1 <= self.partitions_per_group <= PARTITIONS_PER_GROUP_MAX:
            raise ConfigError(
                f"expected 1 to {PARTITIONS_PER_GROUP_MAX} partitions_per_group, "
                f"got {self.partitions_per_group}",
                expected="partitions_per_group",
                bound=PARTITIONS_PER_GROUP_MAX,
            )
        if len(self.partitions) > PARTITIONS_MAX:
            raise ConfigError(
                f"expected a cluster of at most {PARTITIONS_MAX:,} partitions, got "
                f"{len(self.groups)} groups of {self.partitions_per_group}; choose fewer "
                "partitions_per_group",
                expected="partitions",
                bound=PARTITIONS_MAX,
            )
        if not 1 <= self.replicas <= REPLICAS_MAX:
            raise ConfigError(
                f"expected 1 to {REPLICAS_MAX} replicas, got {self.replicas}",
                expected="replicas",
                bound=REPLICAS_MAX,
            )
        ordinals = [str(ordinal) for ordinal in self.ordinals.values()]
        _check_unique("node ordinal", ordinals)
        if max(self.ordinals.values()) >= NODES_MAX:
            raise ConfigError(
                f"expected node ordinals below {NODES_MAX}, got {', '.join(ordinals)}"
            )
        for ranges in self.readable_ranges:
            self._check_ranges(ranges)
        self._check_moves()
        self._check_founders()

    def _check_founders(self) -> None:
        for group in self.groups if self.founding is None else ():
            if not group.founders:
                raise ConfigError(
                    f"expected a node in group {group.name!r} that did not join later, got none",
                    expected="initial_node",
                    group=group.name,
                )

    def _check_moves(self) -> None:
        for move in self.moved:
            if move.partition == SYSTEM and move.node in self.by_name:
                continue
            group = move.partition // self.partitions_per_group
            if not 0 <= group < len(self.groups):
                raise ConfigError(
                    f"expected partitions of this cluster, got {move.partition}",
                    expected="partition",
                    partition=move.partition,
                )
            members = [node.name for node in self.groups[group].nodes]
            if move.node not in members:
                raise ConfigError(
                    f"partition {move.partition} was moved to node {move.node!r}, which group "
                    f"{self.groups[group].name!r} does not have, only {', '.join(members)}; add it "
                    "to the [cluster] table",
                    expected="node_of_group",
                    partition=move.partition,
                    node=move.node,
                )

    def _check_ranges(self, ranges: RangeMap) -> None:
        starts = [start for start, _ in ranges]
        if not starts or starts[0] != "" or starts != sorted(set(starts)):
            raise ConfigError(
                f"expected sorted geohash ranges that begin at '', got {starts}",
                expected="sorted_ranges",
            )
        try:
            cells = first_cells(ranges)
        except InputError as error:
            raise ConfigError(
                f"expected ranges that start at geohashes: {error}", expected="geohash_ranges"
            ) from error
        if len(np.unique(cells)) < len(cells):
            raise ConfigError(
                f"expected ranges of which none is empty, got {starts}", expected="distinct_ranges"
            )
        wrong = [group for _, group in ranges if not 0 <= group < len(self.groups)]
        if wrong:
            raise ConfigError(
                f"expected group numbers below {len(self.groups)}, got {wrong}",
                expected="group_number",
            )

    @property
    def is_replicated(self) -> bool:
        return self.replicas > 1

    def has_copies(self, partitions: Iterable[int]) -> bool:
        """Whether another node can take over one of some partitions of data, or the system's."""
        return self.is_replicated or SYSTEM in partitions

    @cached_property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """All nodes, group by group."""
        return tuple(node for group in self.groups for node in group.nodes)

    @cached_property
    def founders(self) -> tuple[NodeInfo, ...]:
        """The initial nodes of the cluster; without a `founding`, an index is an ordinal."""
        return tuple(node for node in self.nodes if not node.joined)

    @cached_property
    def by_name(self) -> Mapping[str, NodeInfo]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def fault_domains(self) -> Mapping[str, str]:
        """The fault domain of each node."""
        return {node.name: node.fault_domain for node in self.nodes}

    @property
    def range_epoch(self) -> int:
        """The number of the present ranges, from 1; each change increases it by one."""
        return len(self.former_ranges) + 1

    @property
    def readable_ranges(self) -> tuple[RangeMap, ...]:
        """All ranges by which rows may have been stored, oldest first."""
        pending = () if self.pending_ranges is None else (self.pending_ranges,)
        return (*self.former_ranges, self.ranges, *pending)

    @property
    def partitions(self) -> range:
        return range(len(self.groups) * self.partitions_per_group)

    def group_of(self, node: str) -> Group:
        """The group of a node.

        Raises:
            ConfigError: the node does not exist.
        """
        for group in self.groups:
            if any(member.name == node for member in group.nodes):
                return group
        raise ConfigError(
            f"expected a node of {sorted(self.by_name)}, got {node!r}",
            expected="known_node",
            node=str(node),
        )

    @cached_property
    def ordinals(self) -> Mapping[str, int]:
        """The number of each node, unique and below `NODES_MAX`."""
        positions = {node.name: position for position, node in enumerate(self.founders)}
        return {
            node.name: positions[node.name] if node.ordinal < 0 else node.ordinal
            for node in self.nodes
        }

    @cached_property
    def placement_json(self) -> str:
        """The part of the topology that decides the initial placement and the numbering of terms.

        It has no addresses, no nodes that joined later, no moves. Nodes of one cluster must agree
        on it, and it must not change once there is data.
        """
        groups = [
            [[node.name, node.weight, self.ordinals[node.name]] for node in group.founders]
            for group in self.groups
        ]
        return json.dumps([groups, self.ranges, self.partitions_per_group])

    @cached_property
    def fingerprint(self) -> int:
        """64-bit hash of the first topology's `placement_json`, which identifies the cluster."""
        if self.founding is not None:
            return self.founding.fingerprint
        return text64("topology", self.placement_json)

    def to_json(self) -> str:
        raw = {
            "name": self.cluster,
            "version": self.version,
            "partitions_per_group": self.partitions_per_group,
            "replicas": self.replicas,
            "ranges": [list(pair) for pair in self.ranges],
            "former_ranges": [[list(pair) for pair in one] for one in self.former_ranges],
            "pending_ranges": self.pending_ranges,
            "groups": [
                {
                    "name": group.name,
                    "nodes": [
                        {
                            "name": n.name,
                            "address": n.address,
                            "weight": n.weight,
                            "ordinal": n.ordinal,
                            "joined": n.joined,
                            "leaving": n.leaving,
                            "identity": n.identity,
                            "rack": n.rack,
                        }
                        for n in group.nodes
                    ],
                }
                for group in self.groups
            ],
            "moved": [[move.partition, move.number, move.node] for move in self.moved],
            "founding": None if self.founding is None else asdict(self.founding),
            "pins": [list(pin) for pin in self.pins],
        }
        return json.dumps(raw, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Topology:
        try:
            return Topology.from_dict(json.loads(text))
        except ValueError as error:
            raise ConfigError(f"expected a topology in JSON: {error}", expected="json") from error

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> Topology:
        """The topology of a mapping as written by `to_json`; `ranges` is optional."""
        try:
            groups = tuple(
                Group(group["name"], tuple(map(node_of, group["nodes"]))) for group in raw["groups"]
            )
            ranges, pending = raw.get("ranges"), raw.get("pending_ranges")
            return Topology(
                cluster=raw.get("name", "galileo"),
                groups=groups,
                ranges=even_ranges(len(groups) or 1)  # without groups it is refused all the same
                if ranges is None
                else _range_map(ranges),
                partitions_per_group=number_of(raw, "partitions_per_group"),
                version=number_of(raw, "version"),
                moved=tuple(Move(int(p), int(n), str(node)) for p, n, node in raw.get("moved", ())),
                founding=_founding(raw.get("founding")),
                former_ranges=tuple(map(_range_map, raw.get("former_ranges", ()))),
                pending_ranges=None if pending is None else _range_map(pending),
                replicas=number_of(raw, "replicas"),
                pins=tuple((int(p), str(node)) for p, node in raw.get("pins", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"expected a topology with groups and nodes: {reason_of(error)}",
                expected="topology",
            ) from error


NUMBERS = {"partitions_per_group": PARTITIONS_PER_GROUP, "version": 1, "replicas": 1}
"""The keys of a topology that are whole numbers, and their defaults."""


def number_of(raw: Mapping[str, Any], key: str) -> int:
    """The value of one of `NUMBERS`. Raises ConfigError."""
    value = raw.get(key, NUMBERS[key])
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigError(f"expected a whole number for {key}, got {value!r}", key=key) from None


def node_of(raw: Any) -> NodeInfo:
    """The node of a mapping. Raises ConfigError."""
    try:
        return NodeInfo(**raw)
    except TypeError:
        raise ConfigError(
            "expected a node with a name, an address, and perhaps a rack and a number as weight, "
            f"got {raw!r:.200}",
            expected="node",
        ) from None


def _range_map(raw: Iterable[tuple[Any, Any]]) -> RangeMap:
    return tuple((str(start), int(group)) for start, group in raw)


def first_cells(ranges: RangeMap) -> geohash.Cells:
    """The first cell of each range, at the highest precision."""
    starts = [geohash.prefix_range(start, geohash.PRECISION_MAX)[0] for start, _ in ranges]
    return np.array(starts, dtype=np.uint64)


def _founding(raw: Mapping[str, Any] | None) -> Founding | None:
    if raw is None:
        return None
    owners = tuple(map(str, raw["owners"]))
    disks = tuple(map(str, raw["disks"]))
    ordinals, system = int(raw["ordinals"]), str(raw["system"])
    histories = tuple((int(p), int(history)) for p, history in raw["histories"])
    return Founding(int(raw["fingerprint"]), owners, ordinals, disks, system, histories)


def partition_name(partition: int) -> str:
    """What a partition is called where people read of it."""
    return "system" if partition == SYSTEM else str(partition)


def with_port(address: str) -> str:
    """The address with the default port if it has none: "host" or "[::1]"."""
    has_port = ":" in address and not address.endswith("]")
    is_host = bool(address) and not re.search(r"[\s,/]", address)
    return f"{address}:{PORT}" if is_host and not has_port else address


def is_address(text: object) -> bool:
    """Whether the text is one `host:port`, and no URL."""
    host, _, port = str(text).rpartition(":")
    return (
        bool(host)
        and not re.search(r"[\s,/]", host)
        and port.isascii()
        and port.isdigit()
        and 0 < int(port) < 65536
    )


def even_ranges(groups: int) -> RangeMap:
    """The 32 one-character ranges, dealt to the groups in turn; for use without a sample."""
    letters = geohash.ALPHABET.decode()
    return tuple(
        ("" if position == 0 else letter, position % groups)
        for position, letter in enumerate(letters)
    )


def derive_partitions(nodes_per_group: int) -> int:
    """The partitions per group of a new cluster whose largest group has that many nodes.

    A multiple of the nodes, so that all get the same number; see decision 0040.
    """
    wanted = max(PARTITIONS_PER_GROUP, PARTITIONS_PER_NODE * nodes_per_group)
    return min(wanted, PARTITIONS_PER_GROUP_MAX)


def balanced_ranges(
    cells: geohash.Cells,
    precision: int,
    *,
    groups: int,
    counts: npt.NDArray[np.int64] | None = None,
) -> RangeMap:
    """One contiguous range for each group, cut so that a sample spreads evenly.

    Args:
        cells: of a sample of observations, at `precision`.
        precision: of the cells; cut points have at most this many characters.
        groups: how many ranges to make.
        counts: the observations of each entry of `cells`; one each when absent.

    Raises:
        ConfigError: the sample has too few distinct cells to cut.
    """
    order = np.argsort(cells)
    ordered = cells[order]
    ends = np.cumsum(np.ones(len(cells), dtype=np.int64) if counts is None else counts[order])
    if len(ordered) == 0:
        raise ConfigError(
            "expected a sample with at least one observation, got none", expected="observations"
        )
    positions = [int(ends[-1]) * number // groups for number in range(1, groups)]
    cuts = ordered[np.searchsorted(ends, positions, side="right")]
    if len(np.unique([ordered[0], *cuts])) != groups:
        raise ConfigError(
            f"expected a sample that spreads over {groups} groups, got too few distinct cells; "
            "use a larger sample or a higher precision",
            expected="larger_sample",
        )
    starts = ["", *geohash.to_text(cuts, precision).to_pylist()]
    return tuple((start, number) for number, start in enumerate(starts))


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"expected a {what} name of a-z, 0-9, '_', '.', '-' (at most 64), got {name!r}",
            expected="name",
            name=what,
        )


def _check_unique(what: str, values: Sequence[str]) -> None:
    twice = _repeated(values)
    if twice:
        raise ConfigError(
            f"expected each {what} once, got {', '.join(twice)} again", expected="unique", name=what
        )


def _repeated(values: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return sorted({value for value in values if value in seen or seen.add(value)})  # type: ignore[func-returns-value]
