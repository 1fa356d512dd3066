"""What a recovery writes into the directory of a survivor, and what members of the old set do."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from galileo.dht.register import Ballot, Entry, RegisterState, node_of, seat_of
from galileo.dht.topology import Topology
from galileo.errors import InputError
from galileo.node.replication import replicas
from galileo.replication.machine import Replica
from galileo.replication.messages import (
    LogSynced,
    Message,
    MessageArrived,
    ReplicaEvent,
    ReplicaTicked,
    ResetLog,
    SaveReplicaState,
    SendMessage,
    StateSaved,
    TruncateLog,
    WriteFrames,
)
from galileo.replication.values import ORDINALS, Epochs, Member, ReplicaSet, ReplicaState
from galileo.server import recovery, topology_register
from galileo.storage.store import Store

NODES = ("a", "b", "c", "d", "e")
LOG = "log"


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def topology(addresses: Mapping[str, str] | None = None) -> Topology:
    nodes = [
        {"name": name, "address": (addresses or {}).get(name) or free_address()} for name in NODES
    ]
    group = {"name": "g", "nodes": nodes, "ranges": [""]}
    return Topology.from_json(json.dumps({"replicas": 5, "groups": [group]}))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "a", wall=lambda: 1.5e9) as store:
        yield store


def members(store: Store, names: Collection[str]) -> frozenset[Member]:
    return frozenset(Member(name, store.identity if name == "a" else f"{name}-0") for name in names)


def keep(store: Store, *sets: Collection[str], suspect: int = 0, where: str = "") -> None:
    """Keeps the states of partitions with these voters, and a topology that all nodes vote on."""
    states = {
        partition: ReplicaState(
            ReplicaSet(7 * ORDINALS, 2, members(store, names)),
            9 * ORDINALS + 1,
            7 * ORDINALS,
            {LOG: suspect} if suspect else {},
        )
        for partition, names in enumerate(sets)
    }
    store.save_batch(
        replicas.KIND, {str(p): replicas.encode_state(state) for p, state in states.items()}
    )
    voters = tuple(seat_of(one.node, one.disk) for one in sorted(members(store, NODES)))
    addresses = {"b": where} if where else {}
    chosen = Ballot(12_289, Entry(3, voters, voters, topology(addresses).to_json()))
    topology_register.save_state(store, RegisterState(12_289, 12_289, chosen, chosen))


def plan(store: Store, *lost: str) -> recovery.Recovery:
    return recovery.plan(store, set(lost), progress=lambda _: None)


def test_plan_without_a_majority_leaves_the_survivors_in_a_later_term(store: Store) -> None:
    keep(store, "abc", "ade")
    found = plan(store, "b", "c")
    assert found.states.keys() == {0}
    state = found.states[0]
    assert state.set is not None
    assert state.set.voters == members(store, "a")
    assert state.set.term == state.promised > 9 * ORDINALS + 1
    assert state.joined == 7 * ORDINALS
    assert found.register is None


def test_plan_after_a_recovery_finds_nothing_to_do(store: Store, tmp_path: Path) -> None:
    keep(store, "abcde", "abc")
    recovery.carry_out(store, plan(store, "b", "c", "d"))
    store.close()
    with Store.open(tmp_path / "a", wall=lambda: 1.5e9) as again:
        assert plan(again, "b", "c", "d").is_empty


def test_recovery_that_is_interrupted_is_completed_by_the_same_plan(
    store: Store, tmp_path: Path
) -> None:
    """The topology is written first, then the states of all partitions at once."""
    keep(store, "abcde", "abc")
    first = plan(store, "b", "c", "d")
    recovery.carry_out(store, recovery.Recovery({}, first.register, ()))
    store.close()
    with Store.open(tmp_path / "a", wall=lambda: 1.5e9) as again:
        second = plan(again, "b", "c", "d")
    assert (second.states, second.register) == (first.states, None)


def test_plan_with_a_majority_left_is_refused(store: Store) -> None:
    keep(store, "abcde")
    with pytest.raises(InputError) as caught:
        plan(store, "b", "c")
    assert caught.value.details["expected"] == "lost_majority"


def test_plan_for_a_lost_node_that_runs_is_refused(store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        keep(store, "abc", where=f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(InputError) as caught:
            plan(store, "b", "c")
    assert (caught.value.details["expected"], caught.value.details["node"]) == ("lost_node", "b")


@pytest.mark.parametrize(("lost", "expected"), [(("b", "x"), "nodes"), (("a", "b"), "other_nodes")])
def test_plan_with_nodes_that_cannot_be_lost_is_refused(
    store: Store, lost: tuple[str, ...], expected: str
) -> None:
    keep(store, "abc")
    with pytest.raises(InputError) as caught:
        plan(store, *lost)
    assert caught.value.details["expected"] == expected


def test_plan_in_a_directory_without_copies_is_refused(store: Store) -> None:
    with pytest.raises(InputError) as caught:
        plan(store, "b")
    assert caught.value.details["expected"] == "copies"


def test_plan_of_a_suspect_copy_forgets_what_is_lost(store: Store) -> None:
    keep(store, "abc", suspect=12)
    assert dict(plan(store, "b", "c").states[0].suspect) == {}


def test_plan_opens_the_seats_of_lost_nodes_when_the_topology_has_no_majority(
    store: Store,
) -> None:
    keep(store, "abc")
    found = plan(store, "b", "c", "d").register
    assert found is not None
    entry = found.chosen.entry
    assert [node_of(seat) for seat in entry.voters] == list(NODES)
    assert [seat for seat in entry.voters if "@" not in seat] == ["b", "c", "d"]
    assert (entry.version, entry.former) == (4, entry.voters)
    assert found.chosen.number == found.promised > 12_289


class Survivors:
    """Machines whose disks and lines work at once."""

    def __init__(self, states: Mapping[Member, tuple[ReplicaState, Epochs]]) -> None:
        self.now = 0.0
        self.led: set[Member] = set()
        self.machines = {
            member: Replica(
                member,
                NODES.index(member.node),
                state=state,
                logs={LOG: (epochs, 0)},
                now=0.0,
            )
            for member, (state, epochs) in states.items()
        }
        self._under_way: deque[tuple[Member, Member, Message]] = deque()

    def run(self, seconds: float = 20.0) -> None:
        while self.now < seconds:
            self.now += 0.05
            for member in self.machines:
                self.step(member, ReplicaTicked())
            while self._under_way:
                sender, target, message = self._under_way.popleft()
                if target in self.machines:
                    self.step(target, MessageArrived(sender, message))
            self.led |= {one for one, machine in self.machines.items() if machine.is_open}

    def step(self, member: Member, event: ReplicaEvent) -> None:
        machine = self.machines[member]
        for effect in machine.step(event, self.now):
            if isinstance(effect, SendMessage):
                self._under_way.append((member, effect.to, effect.message))
            elif isinstance(effect, SaveReplicaState):
                self.step(member, StateSaved(effect.state))
            elif isinstance(effect, WriteFrames | TruncateLog | ResetLog):
                self.step(member, LogSynced(effect.log, machine.logs[effect.log].end))
        machine.check()


def old_state(store: Store, names: str, *, term: int, promised: int) -> ReplicaState:
    return ReplicaState(ReplicaSet(term, 2, members(store, names)), promised, 8 * ORDINALS)


def test_members_of_the_old_set_that_come_back_never_lead(store: Store) -> None:
    """They have a majority of the old set, and later commits of terms that A has not heard of."""
    keep(store, "abc")
    (a,), (b,), (c,) = (members(store, name) for name in "abc")
    epochs = Epochs(((1, 7 * ORDINALS),), 10)
    later = old_state(store, "abc", term=300 * ORDINALS, promised=300 * ORDINALS + 1)
    cluster = Survivors(
        {
            a: (plan(store, "b", "c").states[0], epochs),
            b: (later, epochs.extend(8 * ORDINALS, 12)),
            c: (later, epochs.extend(8 * ORDINALS, 12)),
        }
    )
    cluster.run()
    assert cluster.led == {a}
    assert cluster.machines[a].logs[LOG].committed == 10


@pytest.mark.parametrize("recovered", ["a", "ab"])
def test_survivors_elect_the_longest_log_of_the_latest_term(store: Store, recovered: str) -> None:
    """Whether one directory was recovered or both; B has more than A."""
    keep(store, "abcde")
    (a,), (b,) = (members(store, name) for name in "ab")
    new = plan(store, "c", "d", "e").states[0]
    assert new.set is not None
    assert new.set.voters == {a, b}
    epochs = Epochs(((1, 7 * ORDINALS),), 10)
    old = old_state(store, "abcde", term=7 * ORDINALS, promised=9 * ORDINALS)
    longest = epochs.extend(8 * ORDINALS, 15)
    second = ReplicaState(new.set, new.promised, old.joined) if "b" in recovered else old
    cluster = Survivors({a: (new, epochs), b: (second, longest)})
    cluster.run()
    assert cluster.led
    assert {machine.logs[LOG].committed for machine in cluster.machines.values()} == {15}
