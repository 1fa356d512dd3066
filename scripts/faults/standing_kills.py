"""Every kind of process of the continuous plane, killed or stopped at random under a stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from fault_injection.requirements import SIGNALS

from faults.registry import Scenario, Trial
from faults.standing_victims import VICTIMS, Victim
from faults.standing_world import World, standing, wait_for_updates

PAUSE_S = (3.0, 6.0)
"""Longer than `membership.failure_timeout_s`."""
LONG_PAUSE_S, LONG_PAUSES = 20.0, 0.1
"""Longer than an evaluator may be silent before it is replaced; and how many of the pauses."""
CALM_S = (0.5, 3.0)
PATIENT = 0.6
"""Share of the faults after which every reader gets an update before the next one."""
UPDATES_S = 300.0

Fault = tuple[Literal["kill", "pause"], Victim]


def kill_all(trial: Trial) -> None:
    _befall(trial, [("kill", victim) for victim in VICTIMS])


def pause_all(trial: Trial) -> None:
    _befall(trial, [("pause", victim) for victim in VICTIMS])


def storm(trial: Trial) -> None:
    _befall(trial, [("kill", one) for one in VICTIMS] + [("pause", one) for one in VICTIMS])


def _befall(trial: Trial, kinds: Sequence[Fault]) -> None:
    """All kinds of faults in a random order, then again, for so many rounds."""
    waiting: list[Fault] = []
    with standing(trial) as world:
        started = time.monotonic()
        for _ in trial.each_round():
            waiting = waiting or trial.random.sample(kinds, len(kinds))
            _one(trial, world, waiting.pop())
        trial.counts["seconds of streaming"] = int(time.monotonic() - started)


def _one(trial: Trial, world: World, fault: Fault) -> None:
    how, victim = fault
    trial.say(f"{how} {victim.name}")
    if how == "kill":
        victim.kill(trial, world)
    else:
        is_long = trial.random.random() < LONG_PAUSES
        with victim.paused(trial, world):
            time.sleep(LONG_PAUSE_S if is_long else trial.random.uniform(*PAUSE_S))
    trial.counts[f"{how} {victim.name}"] += 1
    if trial.random.random() < PATIENT:
        wait_for_updates(world, timeout_s=UPDATES_S)
    else:
        time.sleep(trial.random.uniform(*CALM_S))


_HOLDS = (
    "the readers by watch, fetch and spool are handed every label once, in order, and no "
    "frontier is ahead of what was handed out"
)

SCENARIOS = (
    Scenario(
        "standing-kills",
        f"SIGKILL of coordinator, other node, evaluator, JVM, Spark worker and client: {_HOLDS}",
        (SIGNALS,),
        6,
        kill_all,
        is_lasting=True,
        row="crash",
    ),
    Scenario(
        "standing-pauses",
        f"the same stopped for longer than the failure detector waits, and continued: {_HOLDS}",
        (SIGNALS,),
        6,
        pause_all,
        is_lasting=True,
        row="pause past the timeout, then wake",
    ),
    Scenario(
        "standing-storm",
        f"both, in random order: {_HOLDS}",
        (SIGNALS,),
        12,
        storm,
        is_lasting=True,
        row="crash",
    ),
)
