"""Whatever nodes and clients tell each other comes late, overtakes, or its answer never comes."""

from __future__ import annotations

import time
from collections.abc import Callable

from fault_injection.proxies import Proxies, proxied
from fault_injection.requirements import SIGNALS

from faults.registry import Scenario, Trial
from faults.standing_world import standing, three_nodes, wait_for_updates

DELAYED_S = (4.0, 8.0)
DELAYS_S = ((0.0, 0.05), (0.05, 0.3), (0.0, 0.8))
"""Least and most; below `membership.failure_timeout_s`, beyond which silence means death."""
SILENT_S = (0.2, 3.0)
CALM_S = (0.5, 2.0)
UPDATES_S = 300.0

Fault = Callable[[Trial, Proxies], None]


def delay(trial: Trial) -> None:
    _befall(trial, _delay)
    trial.expect(
        trial.counts["nodes held dead"] == 0, "a node counted as dead, though it was only slow"
    )


def lose_answers(trial: Trial) -> None:
    _befall(trial, _lose)
    trial.expect(trial.counts["answers dropped"] > 0, "no answer was lost; nothing was tried")


def _befall(trial: Trial, fault: Fault) -> None:
    cluster = three_nodes(trial)
    with (
        proxied(cluster, seed=trial.random.randrange(2**31)) as proxies,
        standing(trial, cluster) as world,
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
    """What was asked for in the meantime is done, and nobody hears of it."""
    seconds = trial.random.uniform(*SILENT_S)
    trial.say(f"no answer for {seconds:.1f} s")
    proxies.cut_answers()
    time.sleep(seconds)
    proxies.heal()


_HOLDS = "the readers by watch, fetch and spool are handed every label once, in order"

SCENARIOS = (
    Scenario(
        "delays",
        f"what passes between processes comes up to 0.8 s late and overtakes: {_HOLDS}, later, "
        "and no node counts as dead",
        (SIGNALS,),
        4,
        delay,
        is_lasting=True,
        row="delay, reorder",
    ),
    Scenario(
        "lost-answers",
        f"requests arrive, answers do not, and everybody asks again: {_HOLDS}, and nothing is "
        "stored twice",
        (SIGNALS,),
        5,
        lose_answers,
        is_lasting=True,
        row="retry storm",
    ),
)
