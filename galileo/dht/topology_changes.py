"""Changes of a cluster's topology: pure functions, each applied to the value of the register.

A cluster begins with the topology of its configuration files. The first change records what that
topology decided (`Founding`), so that nodes can be added and removed while every block stays where
it is. Each function returns its argument where nothing is left to do, so a repeated command is
harmless.

Ranges are cut anew in two changes. The first proposes them: from then on, queries ask their
partitions, too. The second activates them, when every node knows the proposal: from then on, rows
are stored by them. So every node asks a partition before it can have a row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from galileo.dht import placement
from galileo.dht.rack_spread import in_rounds
from galileo.dht.register import VOTERS_MAX
from galileo.dht.topology import (
    NO_DISK,
    NODES_MAX,
    REPLICAS_MAX,
    SYSTEM,
    Founding,
    Group,
    NodeInfo,
    RangeMap,
    Topology,
)
from galileo.errors import ConfigError, InputError, Unavailable
from galileo.hashing import text64
from galileo.model.forks import history_of, next_history


def pin(topology: Topology) -> Topology:
    """Records the owners and ordinals of the first topology."""
    if topology.founding is not None:
        return topology
    unmoved = placement.owners(replace(topology, moved=()))
    ordinals = topology.ordinals
    groups = tuple(
        replace(
            group,
            nodes=tuple(replace(node, ordinal=ordinals[node.name]) for node in group.nodes),
        )
        for group in topology.groups
    )
    founding = Founding(
        fingerprint=topology.fingerprint,
        owners=tuple(unmoved[partition] for partition in topology.partitions),
        ordinals=max(ordinals.values()) + 1,
        disks=("",) * len(topology.partitions),
    )
    return replace(topology, groups=groups, founding=founding)


def set_replicas(topology: Topology, count: int) -> Topology:
    """Changes the number of copies of each partition.

    Leaders then add members to the sets of their partitions, or drop some, one after the other.

    Raises:
        InputError: there cannot be so many.
    """
    if count == topology.replicas:
        return topology
    if not 1 <= count <= REPLICAS_MAX:
        raise InputError(f"expected 1 to {REPLICAS_MAX} copies, got {count}", parameter="replicas")
    return replace(pin(topology), replicas=count)


def unfounded(topology: Topology, owned: Collection[int]) -> frozenset[int]:
    """Of the partitions that a node may found, those that have not begun in any directory."""
    founding = topology.founding
    if founding is None:
        return frozenset(owned)
    return frozenset(
        p for p in owned if not (founding.system if p == SYSTEM else founding.disks[p])
    )


def identify(topology: Topology, name: str, identity: str, owned: Collection[int]) -> Topology:
    """Records the directory with which a node began, unless another one is recorded.

    It alone founds partitions: another directory of the node may replace a lost one, whose
    partitions other nodes have, or which is to be put back. The first one that is recorded founds
    the system partition.

    Args:
        topology: as it is.
        name: of the node.
        identity: of its directory.
        owned: the partitions that the node may found: those that it owns, as it knows itself, and
            the system partition, unless the directory was a member of its set.
    """
    known = known_node(topology, name).identity
    if known and (known != identity or not unfounded(topology, owned)):
        return topology
    pinned = pin(topology)
    node = replace(pinned.by_name[name], identity=identity)
    return _set_founder(_replace_node(pinned, name, node), node, owned)


def set_rack(topology: Topology, name: str, rack: str) -> Topology:
    """Records in which rack a node is; leaders then spread copies anew.

    Raises:
        InputError: there is no such node.
        ConfigError: it is no name of a rack.
    """
    node = known_node(topology, name)
    if topology.founding is not None and node.rack == rack:
        return topology
    pinned = pin(topology)
    return _replace_node(pinned, name, replace(pinned.by_name[name], rack=rack))


def _set_founder(topology: Topology, node: NodeInfo, owned: Collection[int]) -> Topology:
    """Has the partitions that a node owns begin in its directory, if in none yet."""
    founding, here = topology.founding, unfounded(topology, owned)
    if founding is None or not here:
        return topology
    owners = tuple(node.name if p in here else one for p, one in enumerate(founding.owners))
    disks = tuple(node.identity if p in here else one for p, one in enumerate(founding.disks))
    system = node.identity if SYSTEM in here else founding.system
    founding = replace(founding, owners=owners, disks=disks, system=system)
    return replace(topology, founding=founding)


def _founded(topology: Topology, name: str) -> frozenset[int]:
    """The partitions whose first owner a node is."""
    founding = topology.founding
    assert founding is not None
    return frozenset(p for p, owner in enumerate(founding.owners) if owner == name)


def add_node(
    topology: Topology, node: NodeInfo, *, group: str = "", is_new_group: bool = False
) -> Topology:
    """Adds a node without partitions, or the first one of a new group with those of that group.

    Args:
        topology: as it is.
        node: with the random identity of its directory, or none if it is only announced and will
            join later; its ordinal is assigned here.
        group: that it joins; the one with the fewest nodes when empty.
        is_new_group: whether the group is made, without ranges.

    Raises:
        InputError: there is no such group, or the name or the address is taken, or the new group
            exists.
        ConfigError: the cluster had as many nodes as it can have.
    """
    known = topology.by_name.get(node.name)
    if known is not None:
        if known.identity == node.identity:
            return topology
        if is_expected(known) and known.address == node.address:
            known = replace(known, identity=node.identity)
            topology = _replace_node(topology, node.name, known)
            return _set_founder(topology, known, _founded(topology, node.name))
        raise InputError(
            f"expected a name that no node of cluster {topology.cluster!r} has, got "
            f"{node.name!r}, a node at {known.address}; choose another name, or remove that node "
            "first",
            node=node.name,
        )
    for other in topology.nodes:
        if other.address == node.address:
            raise InputError(
                f"expected an address that no node has, got {node.address}, which is that of node "
                f"{other.name!r}; choose another port",
                node=other.name,
                address=node.address,
            )
    pinned = pin(topology)
    founding = pinned.founding
    assert founding is not None
    if founding.ordinals >= NODES_MAX:
        raise ConfigError(
            f"expected at most {NODES_MAX} nodes in the life of a cluster, got one more; create a "
            "new cluster and copy the data"
        )
    joined = replace(node, ordinal=founding.ordinals, joined=True, leaving=False)
    counted = replace(founding, ordinals=founding.ordinals + 1)
    if is_new_group:
        new = _add_group(replace(pinned, founding=counted), Group(group, (joined,)))
        return _set_founder(new, joined, _founded(new, joined.name))
    number = _group_number(pinned, group)
    groups = [
        replace(one, nodes=(*one.nodes, joined)) if position == number else one
        for position, one in enumerate(pinned.groups)
    ]
    return replace(pinned, groups=tuple(groups), founding=counted)


def _add_group(topology: Topology, group: Group) -> Topology:
    """Adds a group of one node, which has all its partitions."""
    names = [one.name for one in topology.groups]
    if group.name in names:
        raise InputError(
            f"expected the name of a new group, got {group.name!r}; groups: {', '.join(names)}. "
            "Choose another name, or add the node to this group",
            group=group.name,
        )
    founding = topology.founding
    assert founding is not None
    count = topology.partitions_per_group
    owners = (*founding.owners, *[group.nodes[0].name] * count)
    disks = (*founding.disks, *[""] * count)
    return replace(
        topology,
        groups=(*topology.groups, group),
        founding=replace(founding, owners=owners, disks=disks),
    )


def propose_ranges(topology: Topology, ranges: RangeMap) -> Topology:
    """Announces the next ranges; queries ask their partitions from now on.

    Raises:
        InputError: others are announced already, or a group with a range has a node that has not
            joined yet.
        ConfigError: they are no ranges.
    """
    if topology.pending_ranges == ranges or is_current(topology, ranges):
        return topology
    if topology.pending_ranges is not None:
        raise InputError(
            "other ranges are announced already and wait for nodes that are down; take them back "
            "first",
            expected="no_pending_ranges",
        )
    proposed = replace(pin(topology), pending_ranges=ranges)
    owned = placement.partitions_by_node(proposed)
    groups = {group for _, group in ranges}
    for group in sorted(groups):
        for node in proposed.groups[group].nodes:
            if is_expected(node) and owned[node.name]:
                raise InputError(
                    f"node {node.name!r} has partitions of group {proposed.groups[group].name!r}, "
                    "and has not joined yet; start it first",
                    node=node.name,
                    group=proposed.groups[group].name,
                )
    return proposed


def activate_ranges(topology: Topology, ranges: RangeMap, *, known_version: int) -> Topology:
    """Makes announced ranges the present ones.

    Args:
        topology: as it is.
        ranges: the announced ones.
        known_version: of the topology that every node has.

    Raises:
        InputError: they were taken back.
        Unavailable: the topology has changed since; a node may not know that.
    """
    if is_current(topology, ranges):
        return topology
    if topology.version != known_version:
        raise Unavailable("the topology has changed meanwhile; try again", after_s=0.0)
    if topology.pending_ranges != ranges:
        raise InputError("these ranges were taken back meanwhile", expected="pending_ranges")
    former = (*topology.former_ranges, topology.ranges)
    return replace(topology, ranges=ranges, former_ranges=former, pending_ranges=None)


def withdraw_ranges(topology: Topology) -> Topology:
    """Takes announced ranges back; no row was stored by them."""
    return topology if topology.pending_ranges is None else replace(topology, pending_ranges=None)


def is_current(topology: Topology, ranges: RangeMap) -> bool:
    """Whether these are the present ranges, and no others are announced."""
    return topology.pending_ranges is None and topology.ranges == ranges


def set_leaving(topology: Topology, name: str, *, is_leaving: bool) -> Topology:
    """Marks a node that is being removed, or takes the mark back.

    Raises:
        InputError: there is no such node, or it is the last of its group.
    """
    node = known_node(topology, name)
    if node.leaving == is_leaving:
        return topology
    group = topology.group_of(name)
    if is_leaving and not any(not one.leaving and one.name != name for one in group.nodes):
        raise InputError(
            f"node {name!r} is the last of group {group.name!r}, whose partitions need a node; add "
            "another node to this group first",
            node=name,
        )
    pinned = pin(topology)
    return _replace_node(pinned, name, replace(pinned.by_name[name], leaving=is_leaving))


def remove_node(topology: Topology, name: str) -> Topology:
    """Removes a node that is in no replica set.

    Raises:
        InputError: it is the last node of its group.
    """
    if name not in topology.by_name:
        return topology
    set_leaving(topology, name, is_leaving=True)
    pinned = _without_founder(topology, name)
    groups = tuple(
        replace(group, nodes=tuple(node for node in group.nodes if node.name != name))
        for group in pinned.groups
    )
    return replace(pinned, groups=groups)


def _without_founder(topology: Topology, name: str) -> Topology:
    """Has no partition begin at a node any more; who leads them is known to nodes alone."""
    pinned = pin(topology)
    founding, group = pinned.founding, pinned.group_of(name)
    assert founding is not None
    heir = next(node.name for node in group.nodes if node.name != name and not node.leaving)
    owners = tuple(heir if owner == name else owner for owner in founding.owners)
    disks = tuple(
        NO_DISK if owner == name else disk
        for owner, disk in zip(founding.owners, founding.disks, strict=True)
    )
    moved = tuple(move for move in pinned.moved if move.node != name)
    pins = tuple(one for one in pinned.pins if one[1] != name)
    is_founder = founding.system == pinned.by_name[name].identity
    system = NO_DISK if is_founder else founding.system
    founding = replace(founding, owners=owners, disks=disks, system=system)
    return replace(pinned, founding=founding, moved=moved, pins=pins)


def pin_partitions(topology: Topology, partitions: Collection[int], to: str) -> Topology:
    """Has a node lead some partitions of its group, whatever their ranking says.

    Raises:
        InputError: there is no such node, it is being removed, or a partition is of another group.
    """
    node, group = known_node(topology, to), topology.group_of(to)
    if node.leaving:
        raise InputError(
            f"node {to!r} is being removed and takes no partitions; name another node", node=to
        )
    own = placement.partitions_of_group(topology, topology.groups.index(group))
    for partition in partitions:
        if partition not in own:
            raise InputError(
                f"expected a partition of group {group.name!r}, that is {own[0]} to "
                f"{own[-1]}, since node {to!r} is of this group; got {partition}",
                partition=partition,
                group=group.name,
            )
    pins = dict(topology.pins) | dict.fromkeys(partitions, to)
    if pins == dict(topology.pins):
        return topology
    return replace(pin(topology), pins=tuple(sorted(pins.items())))


def found_anew(
    topology: Topology, name: str, partitions: Collection[int], *, lost: str, now: float
) -> Topology:
    """Has a node found partitions again, empty, whose only copy was in its lost directory.

    They begin a later history, so that readers learn that their commits are lost.

    The directory with which the node runs founds them (`identify`).

    Args:
        topology: as it is.
        name: of the node.
        partitions: of which the lost directory had the only copy.
        lost: the identity of the directory. Where it is not that of the node any more, nothing
            changes, so that the same change has its effect once.
        now: seconds since 1970.

    Raises:
        InputError: there is no such node.
    """
    if known_node(topology, name).identity != lost:
        return topology
    pinned = pin(topology)
    founding = pinned.founding
    assert founding is not None
    owners = tuple(name if p in partitions else one for p, one in enumerate(founding.owners))
    disks = tuple("" if p in partitions else one for p, one in enumerate(founding.disks))
    system = "" if SYSTEM in partitions else founding.system
    known = [*dict(founding.histories).values(), *(history_of(m.number) for m in topology.moved)]
    begun = dict.fromkeys(partitions, next_history(max(known, default=0), now))
    histories = tuple(sorted((dict(founding.histories) | begun).items()))
    node = replace(pinned.by_name[name], identity="")
    founding = replace(founding, owners=owners, disks=disks, system=system, histories=histories)
    return _replace_node(replace(pinned, founding=founding), name, node)


def check_receiver(topology: Topology, name: str, *, of: str) -> None:
    """Raises InputError unless a node can take all partitions of another."""
    node = known_node(topology, name)
    group = topology.group_of(of)
    if name == of or node.leaving or topology.group_of(name) != group:
        others = [one.name for one in group.nodes if one.name != of and not one.leaving]
        raise InputError(
            f"expected a node of group {group.name!r} to take the partitions of node {of!r}, that "
            f"is {', '.join(others) or 'none'}; got {name!r}",
            node=name,
        )


def successor(topology: Topology, name: str) -> str:
    """The node that removes another from the topology, which it leaves."""
    others = [node.name for node in topology.nodes if node.name != name and not node.leaving]
    return max(others, key=lambda other: text64("successor", name, other))


def voters(topology: Topology, former: Collection[str] = ()) -> tuple[str, ...]:
    """The nodes that store the register: an odd number, up to five.

    They are in as many racks as there are. Within that, former voters stay as far as there is room;
    the nodes that are oldest by their ordinals join them.
    """
    count = len(_staying(topology))
    return _oldest(topology, min(VOTERS_MAX, count - (count + 1) % 2), former)


def system_copies(topology: Topology) -> int:
    """How many copies the system partition has: an odd number, up to five.

    A cluster of two nodes has two where its data has two, and is as available as its data. Where
    the data has one copy, two would be lost to the cluster as soon as either node is down.
    """
    count = len(_staying(topology))
    if count == 2 and topology.is_replicated:
        return 2
    return min(VOTERS_MAX, count - (count + 1) % 2)


def _staying(topology: Topology) -> list[str]:
    return [node.name for node in topology.nodes if not (node.leaving or is_expected(node))]


def _oldest(topology: Topology, count: int, former: Collection[str]) -> tuple[str, ...]:
    ordinals = topology.ordinals
    ranking = sorted(_staying(topology), key=lambda name: (name not in former, ordinals[name]))
    domains = {node.name: node.fault_domain for node in topology.nodes}
    return tuple(sorted(in_rounds(ranking, domains)[:count], key=ordinals.__getitem__))


def first_voters(topology: Topology) -> tuple[str, ...]:
    """The voters before any change: of the initial nodes, which all files name, without racks."""
    groups = tuple(
        replace(group, nodes=tuple(replace(node, rack="") for node in group.founders))
        for group in topology.groups
    )
    return voters(replace(topology, groups=groups, moved=()))


def is_expected(node: NodeInfo) -> bool:
    """Whether the node was announced, and has not joined yet."""
    return node.joined and not node.identity


def known_node(topology: Topology, name: str) -> NodeInfo:
    """The node of that name. Raises InputError if there is none."""
    if name not in topology.by_name:
        raise InputError(
            f"node {name!r} does not exist; nodes: {', '.join(sorted(topology.by_name))}", node=name
        )
    return topology.by_name[name]


def _group_number(topology: Topology, name: str) -> int:
    names = [group.name for group in topology.groups]
    if not name:
        return min(range(len(names)), key=lambda number: len(topology.groups[number].nodes))
    if name not in names:
        raise InputError(f"group {name!r} does not exist; groups: {', '.join(names)}", group=name)
    return names.index(name)


def _replace_node(topology: Topology, name: str, node: NodeInfo) -> Topology:
    groups = tuple(
        Group(group.name, tuple(node if one.name == name else one for one in group.nodes))
        for group in topology.groups
    )
    return replace(topology, groups=groups)
