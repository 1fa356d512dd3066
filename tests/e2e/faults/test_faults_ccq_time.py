"""Wall clocks that jump, messages that are late, and responses that are lost."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from fault_injection.ccq_world import (
    DATASET,
    INTERVAL,
    World,
    ccq_world,
    three_nodes,
    wait_for_updates,
)
from fault_injection.clocks import READ_AGAIN_S, WallClock
from fault_injection.proxies import Proxies, proxied
from fault_injection.requirements import CLOCKS
from fault_injection.trial import Trial

from galileo.client import Ccq

HOLDS = "the readers by watch, fetch and spool are handed every label once, in order"
JUMPS_S = (3_600.0, -3_600.0, 0.0)
SHORT = "20m"
"""An expiration that a jump passes."""
SHORT_FOR_S = 600.0
"""The longest that it is looked at, which is well before it comes."""
KILLED = 0.5
"""Share of the later jumps after which a node is killed, and starts with its wrong clock."""
UPDATES_S = 300.0


@pytest.mark.fault(
    "clock-jumps",
    "wall clock jump",
    needs=(CLOCKS,),
    rounds=6,
    lasting=True,
    holds="wall clocks of nodes jump by an hour, either way, while they run and before they start: "
    "no result changes and nothing expires",
)
def test_clock_jumps(trial: Trial) -> None:
    """First without restarts, beside a query that is to outlive the jumps; then with restarts.

    A node reckons from its clock once when an expiration comes, when it first sees the query. One
    that starts with a wrong clock is wrong about it by as much, so the second part is without it.
    The evaluator, its JVM and its workers have the clock of the node that started them.
    """
    cluster, clocks = three_nodes(trial), {}
    for node in cluster.nodes:
        clocks[node.name] = WallClock(trial.directory / f"{node.name}.time")
        node.prefix = clocks[node.name].prefix
    with ccq_world(trial, cluster) as world:
        short = world.client.submit(
            DATASET, "temperature > 1000", interval=INTERVAL, expiration=SHORT
        )
        ends_at, is_over = time.monotonic() + SHORT_FOR_S, False
        for _ in trial.each_round():
            _jump(trial, clocks)
            if is_over and trial.random.random() < KILLED:
                _restart_random(trial, world)
            wait_for_updates(world, timeout_s=UPDATES_S)
            if not is_over and (trial.share_done >= 0.5 or time.monotonic() > ends_at):
                _end(trial, world, short)
                is_over = True
        if is_over:
            _restart_random(trial, world)
            wait_for_updates(world, timeout_s=UPDATES_S)


def _jump(trial: Trial, clocks: dict[str, WallClock]) -> None:
    name, offset_s = trial.random.choice([*clocks]), trial.random.choice(JUMPS_S)
    trial.say(f"the clock of {name} jumps to {offset_s:+.0f} s")
    clocks[name].jump(offset_s)
    trial.counts[f"jumps to {offset_s:+.0f} s"] += 1
    time.sleep(1.5 * READ_AGAIN_S)


def _restart_random(trial: Trial, world: World) -> None:
    """Kills a node, which starts with whatever its clock says by now."""
    node = trial.random.choice(world.cluster.nodes)
    trial.say(f"kill {node.name}")
    node.kill()
    node.restart()
    trial.counts["restarts"] += 1


def _end(trial: Trial, world: World, short: Ccq) -> None:
    """A clock that jumps has ended nothing whose time has not come."""
    alive = {one.id for one in world.client.list_ccqs()}
    trial.expect(short.id in alive, f"a query with an expiration of {SHORT} has ended before it")
    trial.counts["outlived jumps"] += short.id in alive
    if short.id in alive:
        world.client.cancel(short.id)


DELAYED_S = (4.0, 8.0)
DELAYS_S = ((0.0, 0.05), (0.05, 0.3), (0.0, 0.8))
"""Least and most; below `membership.failure_timeout_s`, beyond which silence means death."""
SILENT_S = (0.2, 3.0)
CALM_S = (0.5, 2.0)
UPDATES_S = 300.0

Fault = Callable[[Trial, Proxies], None]


@pytest.mark.fault(
    "delays",
    "delay, reorder",
    rounds=4,
    lasting=True,
    holds=f"what passes between processes comes up to 0.8 s late and overtakes: {HOLDS}, later, "
    "and no node counts as dead",
)
def test_delays(trial: Trial) -> None:
    _befall(trial, _delay)
    trial.expect(
        trial.counts["nodes held dead"] == 0, "a node counted as dead, though it was only slow"
    )


@pytest.mark.fault(
    "lost-answers",
    "retry storm",
    rounds=5,
    lasting=True,
    holds=f"requests arrive, answers do not, and are sent again: {HOLDS}, and nothing is "
    "stored twice",
)
def test_lost_answers(trial: Trial) -> None:
    _befall(trial, _lose)
    trial.expect(trial.counts["answers dropped"] > 0, "no answer was lost; nothing was tried")


def _befall(trial: Trial, fault: Fault) -> None:
    cluster = three_nodes(trial)
    with (
        proxied(cluster, seed=trial.random.randrange(2**31)) as proxies,
        ccq_world(trial, cluster) as world,
    ):
        for _ in trial.each_round():
            fault(trial, proxies)
            nodes = world.client.status().nodes
            trial.counts["nodes held dead"] += sum(node.state == "unreachable" for node in nodes)
            wait_for_updates(world, timeout_s=UPDATES_S)
            time.sleep(trial.random.uniform(*CALM_S))
        trial.counts.update(proxies.counts)


def _delay(trial: Trial, proxies: Proxies) -> None:
    proxies.delay_s = trial.random.choice(DELAYS_S)
    least, most = (round(1e3 * one) for one in proxies.delay_s)
    trial.say(f"each piece takes {least} to {most} ms")
    time.sleep(trial.random.uniform(*DELAYED_S))
    proxies.delay_s = (0.0, 0.0)


def _lose(trial: Trial, proxies: Proxies) -> None:
    """Cuts off responses for a while; requests still arrive."""
    seconds = trial.random.uniform(*SILENT_S)
    trial.say(f"no answer for {seconds:.1f} s")
    proxies.cut_answers()
    time.sleep(seconds)
    proxies.heal()
