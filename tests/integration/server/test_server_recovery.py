"""What a recovery writes into the directory of a survivor, and what members of the old set do."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest
from simulator.instant_replicas import LOG, InstantReplicas

from galileo.dht.register import Ballot, Entry, RegisterState, node_of, seat_of
from galileo.dht.topology import SYSTEM, Topology
from galileo.errors import InputError
from galileo.model.forks import BEGIN_S, history_of
from galileo.node.replication import replicas
from galileo.replication.values import ORDINALS, Epochs, Member, ReplicaSet, ReplicaState
from galileo.server import recovery, topology_register
from galileo.storage.store import Store

NODES = ("a", "b", "c", "d", "e")


def free_addresses(count: int) -> list[str]:
    """Different ones, since all are taken at a time."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def topology(addresses: Mapping[str, str] | None = None) -> Topology:
    given = dict(addresses or {})
    free = [one for one in free_addresses(2 * len(NODES)) if one not in given.values()]
    nodes = [{"name": name, "address": given.get(name) or free.pop()} for name in NODES]
    group = {"name": "g", "nodes": nodes, "ranges": [""]}
    return Topology.from_json(json.dumps({"replicas": 5, "groups": [group]}))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "a", wall=lambda: 1.5e9) as store:
        yield store


def members(store: Store, names: Collection[str]) -> frozenset[Member]:
    return frozenset(Member(name, store.identity if name == "a" else f"{name}-0") for name in names)


def keep(
    store: Store, *sets: Collection[str], system: str = "", suspect: int = 0, where: str = ""
) -> None:
    """Keeps the states of partitions with these voters, and a topology that all nodes vote on."""
    voters_of = dict[int, Collection[str]](enumerate(sets)) | ({SYSTEM: system} if system else {})
    states = {
        partition: ReplicaState(
            ReplicaSet(7 * ORDINALS, 2, members(store, names)),
            9 * ORDINALS + 1,
            7 * ORDINALS,
            {LOG: suspect} if suspect else {},
        )
        for partition, names in voters_of.items()
    }
    store.save_batch(
        replicas.KIND, {str(p): replicas.encode_state(state) for p, state in states.items()}
    )
    voters = tuple(seat_of(one.node, one.disk) for one in sorted(members(store, NODES)))
    addresses = {"b": where} if where else {}
    chosen = Ballot(12_289, Entry(3, voters, voters, topology(addresses).to_json()))
    topology_register.save_state(store, RegisterState(12_289, 12_289, chosen, chosen))


def plan(store: Store, *lost: str) -> recovery.Recovery:
    return recovery.plan(store, set(lost), now=1.8e9, progress=lambda _: None)


def test_plan_without_a_majority_leaves_the_survivors_in_a_later_term(store: Store) -> None:
    keep(store, "abc", "ade")
    found = plan(store, "b", "c")
    assert found.states.keys() == {0}
    state = found.states[0]
    assert state.set is not None
    assert state.set.voters == members(store, "a")
    assert state.set.term == state.promised > 9 * ORDINALS + 1
    assert state.set.history == history_of(state.promised) == int(1.8e9) - BEGIN_S
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


@pytest.mark.parametrize(("lost", "recovered"), [("bc", {0, SYSTEM}), ("cde", {SYSTEM})])
def test_plan_recovers_the_system_partition_as_any_other(
    store: Store, lost: str, recovered: set[int]
) -> None:
    keep(store, "abc", system="abcde" if lost == "cde" else "abc")
    recovery.carry_out(store, plan(store, *lost))
    states = replicas.load_states(store)
    assert {p for p, state in states.items() if len(state.set.voters) < 3} == recovered


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


def survivors(states: Mapping[Member, tuple[ReplicaState, Epochs]]) -> InstantReplicas:
    """What 20 seconds make of these members."""
    cluster = InstantReplicas()
    for member, (state, epochs) in states.items():
        cluster.start(member, NODES.index(member.node), state, epochs)
    cluster.run(20.0)
    return cluster


def old_state(store: Store, names: str, *, term: int, promised: int) -> ReplicaState:
    return ReplicaState(ReplicaSet(term, 2, members(store, names)), promised, 8 * ORDINALS)


def test_members_of_the_old_set_that_come_back_never_lead(store: Store) -> None:
    """They have a majority of the old set, and later commits of terms that A has not heard of."""
    keep(store, "abc")
    (a,), (b,), (c,) = (members(store, name) for name in "abc")
    epochs = Epochs(((1, 7 * ORDINALS),), 10)
    later = old_state(store, "abc", term=300 * ORDINALS, promised=300 * ORDINALS + 1)
    cluster = survivors(
        {
            a: (plan(store, "b", "c").states[0], epochs),
            b: (later, epochs.extend(8 * ORDINALS, 12)),
            c: (later, epochs.extend(8 * ORDINALS, 12)),
        }
    )
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
    cluster = survivors({a: (new, epochs), b: (second, longest)})
    assert cluster.led
    assert {machine.logs[LOG].committed for machine in cluster.machines.values()} == {15}
