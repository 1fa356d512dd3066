"""Recovery of partitions that have lost a majority of their copies for good.

The command works on the directory of a stopped node. The new replica set of a partition is the old
one without the members of lost nodes. It begins a later history: members of the old set which come
back learn that they are out, and readers learn that commits may be lost. The
survivors of the new set elect their leader as ever: each log is taken from the member that joined
the latest term and has most of it. Therefore the command is needed in one directory; the other
survivors learn the set from its member. In several directories it does no harm, because none of
the sets elects without the members that it shares with the others.

The register of the topology may have lost its majority with the same directories. The seats of lost
nodes are then opened for the directories with which these nodes start next.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from galileo.dht.register import (
    LOTS,
    NODES_MAX,
    Ballot,
    RegisterState,
    directory_of,
    node_of,
)
from galileo.dht.topology import Topology
from galileo.errors import InputError
from galileo.model.forks import first_of, history_of, next_history
from galileo.node.replication import replicas
from galileo.replication.values import ReplicaState
from galileo.server import topology_register
from galileo.storage.store import Store

LOTS_AHEAD = LOTS << 20
"""More ballots than voters that are cut off can have used since this node heard them."""
CONNECT_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class SurvivingLog:
    """What the directory has of a dataset in a partition.

    Attributes:
        term: the last whose leader's log it has taken over.
        committed: the last sequence that it knows to be acknowledged.
        last: the last sequence that it has; what follows is lost, unless another survivor has it.
        suspect: up to where it had commits before damage, 0 without damage.
        survivors: the nodes of the new set.
    """

    partition: int
    dataset: str
    term: int
    committed: int
    last: int
    suspect: int
    survivors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a recovery writes.

    Attributes:
        states: of the partitions that have lost a majority.
        register: that of the topology; None if it keeps its majority.
        logs: of these partitions.
    """

    states: Mapping[int, ReplicaState]
    register: RegisterState | None
    logs: tuple[SurvivingLog, ...]

    @property
    def is_empty(self) -> bool:
        return not self.states and self.register is None


def plan(
    store: Store, lost: Collection[str], *, now: float, progress: Callable[[int], None]
) -> Recovery:
    """What has to be written after the loss of nodes; changes nothing about copies.

    Args:
        store: opened, not recovered.
        lost: nodes whose directories do not exist any more.
        now: seconds since 1970.
        progress: called with numbers of commits that were read.

    Raises:
        InputError: the directory has no copies, a node is unknown, alive, or this one, a majority
            of the copies is left, or a log here is damaged.
    """
    states = replicas.load_states(store)
    register = topology_register.load_state(store)
    if not states or register is None:
        raise InputError(
            "expected the directory of a node of a cluster with copies, got an empty one; the data "
            "of lost nodes is in backups alone",
            expected="copies",
        )
    topology = topology_register.topology_of(register.chosen.entry)
    _check_lost(topology, lost)
    survived = dict(_survivors(store, states, lost, now=now))
    reformed = _reformed(register, lost)
    is_whole = not survived and reformed is None
    if is_whole and _are_voters(states, lost):
        raise InputError(
            "expected partitions that have lost a majority of their copies, got none; start the "
            "other nodes, and they elect leaders by themselves",
            expected="lost_majority",
        )
    store.recover(lambda _, __, commits: progress(len(commits.counts)))
    damaged = sorted({p for _, p in store.damaged if p in survived})
    if damaged:
        raise InputError(
            f"expected sound copies, but partitions {damaged} are damaged in this directory; "
            "recover in the directory of another survivor, or restore a backup",
            expected="sound_copies",
            partitions=damaged,
        )
    return Recovery(survived, reformed, tuple(_logs(store, states, survived)))


def carry_out(store: Store, recovery: Recovery) -> None:
    """Writes what was planned. After a crash the same plan is made again, or has nothing to do.

    Raises:
        PartitionReadOnly: the disk refuses.
    """
    if recovery.register is not None:
        topology_register.save_state(store, recovery.register)
    store.save_batch(
        replicas.KIND,
        {str(p): replicas.encode_state(state) for p, state in recovery.states.items()},
    )


def _check_lost(topology: Topology, lost: Collection[str]) -> None:
    unknown = sorted(set(lost) - topology.by_name.keys())
    if unknown:
        raise InputError(
            f"expected nodes of {sorted(topology.by_name)} as lost, got {unknown}",
            expected="nodes",
        )
    for name in sorted(lost):
        address = topology.by_name[name].address
        if _is_open(address):
            raise InputError(
                f"expected {name} to be lost for good, but a process answers at its address "
                f"{address}; stop it. If its directory is intact, start all nodes instead",
                expected="lost_node",
                node=name,
            )


def _is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False


def _are_voters(states: Mapping[int, ReplicaState], lost: Collection[str]) -> bool:
    sets = [state.set for state in states.values() if state.set is not None]
    return any(member.node in lost for one in sets for member in one.voters)


def _survivors(
    store: Store, states: Mapping[int, ReplicaState], lost: Collection[str], *, now: float
) -> Iterator[tuple[int, ReplicaState]]:
    """The new states of the partitions that need one."""
    for partition, state in states.items():
        current = state.set
        me = [] if current is None else [m for m in current.voters if m.disk == store.identity]
        if current is None or not me:
            continue
        if me[0].node in lost:
            raise InputError(
                f"expected other nodes as lost, got {me[0].node}, whose directory this is",
                expected="other_nodes",
                node=me[0].node,
            )
        left = frozenset(member for member in current.voters if member.node not in lost)
        if current.is_majority(left):
            continue
        known = history_of(max(state.promised, current.term))
        term = first_of(next_history(known, now)) - 1
        new = replace(
            current, term=term, number=current.number + 1, voters=left, learners=frozenset()
        )
        yield (
            partition,
            replace(state, set=new, promised=term, suspect=MappingProxyType({})),
        )


def _reformed(state: RegisterState, lost: Collection[str]) -> RegisterState | None:
    """The register with open seats for lost voters, None if it has a majority without them."""
    entry = state.accepted.entry  # If it is not known to be chosen, it may be.
    gone = {seat for seat in entry.voters if node_of(seat) in lost and directory_of(seat)}
    if 2 * (len(entry.voters) - len(gone)) > len(entry.voters):
        return None
    voters = tuple(node_of(seat) if seat in gone else seat for seat in entry.voters)
    known = max(state.promised, state.used, state.accepted.number)
    number = (known // NODES_MAX + LOTS_AHEAD) * NODES_MAX + known % NODES_MAX
    new = replace(entry, version=entry.version + 1, voters=voters, former=voters)
    ballot = Ballot(number, new)
    return replace(state, promised=number, accepted=ballot, chosen=ballot)


def _logs(
    store: Store, states: Mapping[int, ReplicaState], survived: Mapping[int, ReplicaState]
) -> Iterator[SurvivingLog]:
    for dataset, partition in sorted(store.partitions_on_disk(), key=lambda one: one[::-1]):
        if partition not in survived:
            continue
        journal, current = store.journal(dataset, partition), survived[partition].set
        assert current is not None
        yield SurvivingLog(
            partition,
            dataset,
            states[partition].joined,
            journal.last_sequence,
            journal.end_sequence,
            states[partition].suspect.get(dataset, 0),
            tuple(sorted(member.node for member in current.voters)),
        )
