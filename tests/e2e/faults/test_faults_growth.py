"""A cluster gets nodes and copies and gives them up under load, by the commands."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from fault_injection.growth_world import Command, GrowthWorld, growth_world
from fault_injection.nodes import has_shares, is_whole, left_behind
from fault_injection.trial import Trial
from waiting import wait_until

from galileo.dht import placement
from galileo.errors import Unavailable
from galileo.local_node import LocalNode

ROW = "nodes restarted, replaced, added"
HOLDS = (
    "producers, queries and 101 continuous queries go on; every observation is stored once, a "
    "complete answer has all that was acknowledged before, and every label is delivered once"
)
NODES_MAX, NODES_MIN = 8, 3
COPIES_MAX = 3
SECOND, SECOND_FROM = "east", 7
"""The second group, and the number of nodes from which on nodes join it."""
STEP_S = 300.0
STOP_S = 60.0
DELAY_S = (0.0, 2.5)
"""From the beginning of a step to the kill that befalls it."""
DOWN_S = (2.0, 4.0)

Kill = Callable[[], None]
Victims = dict[str, Callable[[], Kill]]
"""By role: finds a process, and returns what kills it and brings it back."""


@pytest.mark.timeout(0)
@pytest.mark.fault(
    "cluster-growth",
    ROW,
    rounds=1,
    holds="a cluster grows from one node to eight and spreads its partitions after each, the last "
    "ones are of a second group, ranges are cut anew, and it shrinks to three, by its commands: "
    f"{HOLDS}",
)
def test_cluster_growth(trial: Trial) -> None:
    with growth_world(trial) as world:
        for _ in trial.each_round():
            _grow(world, lambda kind, victims: contextlib.nullcontext())
            _cut(world, lambda kind, victims: contextlib.nullcontext())
            _shrink(world, lambda kind, victims: contextlib.nullcontext())
    trial.expect(not trial.counts["queries incomplete"], "answers were incomplete")
    trial.expect(not trial.counts["commands repeated"], "commands failed")


@pytest.mark.timeout(0)
@pytest.mark.fault(
    "cluster-growth-kills",
    ROW,
    rounds=1,
    lasting=True,
    holds="the same, and amid each step one of its parties is killed, in turn: the node that "
    "joins, gives, takes or leaves, a voter of the register, the node that the command talks to, "
    f"the command, the coordinator of most continuous queries: {HOLDS}",
)
def test_cluster_growth_kills(trial: Trial) -> None:
    with growth_world(trial) as world:
        deck = Deck(trial)
        for _ in trial.each_round():
            _grow(world, deck.killing)
            _cut(world, deck.killing)
            _shrink(world, deck.killing)


@pytest.mark.timeout(0)
@pytest.mark.fault(
    "cluster-copies",
    ROW,
    rounds=1,
    holds="three nodes with one copy of each partition get three copies, and give them up again, "
    f"by the command: {HOLDS}",
)
def test_cluster_copies(trial: Trial) -> None:
    with growth_world(trial, nodes=COPIES_MAX) as world:
        for _ in trial.each_round():
            _change_copies(world, lambda kind, victims: contextlib.nullcontext())
    trial.expect(not trial.counts["queries incomplete"], "answers were incomplete")
    trial.expect(not trial.counts["commands repeated"], "commands failed")


@pytest.mark.timeout(0)
@pytest.mark.fault(
    "cluster-copies-kills",
    ROW,
    rounds=2,
    holds="the same, and amid each change a node that leads partitions, a voter of the register, "
    "the node that the command talks to, the command or the coordinator of most continuous queries "
    f"is killed: {HOLDS}",
)
def test_cluster_copies_kills(trial: Trial) -> None:
    with growth_world(trial, nodes=COPIES_MAX) as world:
        deck = Deck(trial)
        for _ in trial.each_round():
            _change_copies(world, deck.killing)


@dataclass(slots=True)
class Deck:
    """Kills the parties of each kind of step in turn."""

    trial: Trial
    _left: dict[str, list[str]] = field(default_factory=dict)

    @contextlib.contextmanager
    def killing(self, kind: str, victims: Victims) -> Iterator[None]:
        """Kills one of the parties at a random moment of the block, and brings it back."""
        left = self._left.setdefault(kind, [])
        if not left:
            left += self.trial.random.sample(sorted(victims), len(victims))
        role, ended, failures = left.pop(), threading.Event(), list[BaseException]()
        delay_s = self.trial.random.uniform(*DELAY_S)

        def run() -> None:
            try:
                kill = victims[role]()
                time.sleep(delay_s)
                when = "after" if ended.is_set() else "amid"
                self.trial.say(f"kill the {role} {when} the {kind}")
                self.trial.counts[f"kill of the {role} {when} a {kind}"] += 1
                kill()
            except BaseException as error:
                failures.append(error)

        killing = threading.Thread(target=run, daemon=True)
        killing.start()
        yield
        ended.set()
        killing.join(STEP_S)
        if failures:
            raise RuntimeError(f"the {role} could not be killed") from failures[0]


Hurt = Callable[[str, Victims], contextlib.AbstractContextManager[None]]


def _grow(world: GrowthWorld, hurt: Hurt) -> None:
    for number in range(len(world.cluster.nodes) + 1, NODES_MAX + 1):
        contact = world.cluster.nodes[0]
        groups = [group.name for group in world.topology.groups]
        group = SECOND if number >= SECOND_FROM else groups[0]
        new = world.cluster.join(group, new_group=group not in groups)
        victims = {"joining node": lambda new=new: _node(world, new), **_others(world, contact)}
        with world.step("join"), hurt("join", victims):
            new.start()
            wait_until(
                lambda count=number: _is_complete(world, count), what=new.name, timeout_s=STEP_S
            )
        _spread(world, hurt)
        world.check()


def _spread(world: GrowthWorld, hurt: Hurt) -> None:
    """Leaders move partitions to the nodes whose shares these are."""
    topology = world.topology
    owners, rankings = placement.owners(topology), placement.rankings(topology)
    moves = [(owner, rankings[p][0]) for p, owner in owners.items() if owner != rankings[p][0]]
    if not moves:
        return
    source, to = world.trial.random.choice(moves)
    victims = {
        "giver": lambda: _node(world, world.cluster.node(source)),
        "taker": lambda: _node(world, world.cluster.node(to)),
        **_others(world, world.trial.random.choice(world.cluster.nodes)),
    }
    with world.step("spread"), hurt("spread", victims):
        wait_until(lambda: has_shares(world.client), what="the shares", timeout_s=STEP_S)
    # A node that was killed at the end of the step may have led something.
    wait_until(lambda: has_shares(world.client), what="the shares", timeout_s=STEP_S)


def _cut(world: GrowthWorld, hurt: Hurt) -> None:
    """Gives the second group a part of the world, at another place in each round."""
    first = world.topology.groups[0].name
    border = world.trial.random.choice("456789bcdefg")
    ranges = world.trial.directory / "ranges.json"
    ranges.write_text(json.dumps([["", first], [border, SECOND]]))
    contact, other = world.trial.random.sample(world.cluster.nodes, 2)
    with world.step("cut"):
        command = Command(world.trial, contact, "topology", "cut", str(ranges))
        victims = {
            "command": lambda: command.kill,
            "other node": lambda: _node(world, other),
            **_others(world, contact),
        }
        with hurt("cut", victims):
            command.complete()
    world.check()


def _shrink(world: GrowthWorld, hurt: Hurt) -> None:
    while len(world.cluster.nodes) > NODES_MIN:
        groups = [group.nodes for group in world.topology.groups if len(group.nodes) > 1]
        leaving = world.cluster.node(world.trial.random.choice(sum(groups, ())).name)
        contact = world.trial.random.choice([n for n in world.cluster.nodes if n is not leaving])
        staying = [one for one in world.cluster.nodes if one not in (leaving, contact)]
        taker = world.trial.random.choice(staying)
        with world.step("removal"):
            command = Command(world.trial, contact, "node", "remove", leaving.name)
            victims = {
                "leaving node": lambda node=leaving: _node(world, node),
                "taker": lambda node=taker: _node(world, node),
                "command": lambda command=command: command.kill,
                **_others(world, contact),
            }
            with hurt("removal", victims):
                command.complete(is_done=f"node '{leaving.name}' does not exist")
        wait_until(
            lambda node=leaving: not node.running, what=f"{leaving.name} to stop", timeout_s=STOP_S
        )
        world.cluster.remove(leaving.name)
        count = len(world.cluster.nodes)
        wait_until(lambda count=count: _is_complete(world, count), what="all nodes", timeout_s=60.0)
        _spread(world, hurt)
        world.check()


def _change_copies(world: GrowthWorld, hurt: Hurt) -> None:
    """Has leaders make copies of all partitions, and drop them again."""
    for kind, count in (("copying", COPIES_MAX), ("reduction", 1)):
        contact, leader = world.trial.random.sample(world.cluster.nodes, 2)
        with world.step(kind):
            command = Command(world.trial, contact, "topology", "replicas", str(count))
            victims = {
                "command": lambda command=command: command.kill,
                "leader": lambda node=leader: _node(world, node),
                **_others(world, contact),
            }
            with hurt(kind, victims):
                command.complete()
            wait_until(lambda: _has_copies(world), what=f"{count} copies", timeout_s=STEP_S)
        world.check()


def _has_copies(world: GrowthWorld) -> bool:
    """Whether each partition has its copies, and its nodes alone have its files."""
    topology = world.topology
    is_tidy = topology.is_replicated or not left_behind(topology, world.cluster)
    return is_tidy and is_whole(world.client)


def _others(world: GrowthWorld, contact: LocalNode) -> Victims:
    return {
        "contact": lambda: _node(world, contact),
        "voter": lambda: _node(world, world.voter()),
        "coordinator": lambda: _node(world, world.coordinator()),
    }


def _node(world: GrowthWorld, node: LocalNode) -> Kill:
    def kill() -> None:
        began = time.monotonic()
        node.kill()
        time.sleep(world.trial.random.uniform(*DOWN_S))
        try:
            node.restart()
        except Unavailable as error:
            world.trial.expect("was removed" in str(error), f"{node.name} does not start: {error}")
        world.outages.append((began, time.monotonic()))

    return kill


def _is_complete(world: GrowthWorld, count: int) -> bool:
    status = world.client.status()
    return status.complete and len(status.nodes) == count
