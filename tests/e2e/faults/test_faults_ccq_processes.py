"""Kill or stop every kind of process that serves continuous queries."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import psutil
import pytest
from fault_injection.ccq_world import World, ccq_world, wait_for_updates
from fault_injection.trial import Trial

from galileo.local_node import LocalNode

HOLDS = (
    "the readers by watch, fetch and spool are handed every label once, in order, and no "
    "frontier is ahead of what was handed out"
)
DOWN_S = (0.0, 4.0)

Find: TypeAlias = Callable[[World], psutil.Process | None]


@dataclass(frozen=True, slots=True)
class Victim:
    """Something that can be killed or stopped.

    Attributes:
        name: of its kind.
        kill: SIGKILL, and what brings it back where nothing else does.
        paused: SIGSTOP before the block, SIGCONT after it.
    """

    name: str
    kill: Callable[[Trial, World], None]
    paused: Callable[[Trial, World], AbstractContextManager[None]]


# --- nodes -------------------------------------------------------------------------------------


def _coordinator(trial: Trial, world: World) -> LocalNode:
    return world.coordinator()


def _other_node(trial: Trial, world: World) -> LocalNode:
    coordinator = world.coordinator()
    return trial.random.choice([one for one in world.cluster.nodes if one is not coordinator])


def _node(name: str, find: Callable[[Trial, World], LocalNode]) -> Victim:
    def kill(trial: Trial, world: World) -> None:
        node = find(trial, world)
        node.kill()
        time.sleep(trial.random.uniform(*DOWN_S))
        node.restart()

    @contextlib.contextmanager
    def paused(trial: Trial, world: World) -> Iterator[None]:
        node = find(trial, world)
        node.pause()
        try:
            yield
        finally:
            node.resume()

    return Victim(name, kill, paused)


# --- the evaluator and its family ----------------------------------------------------------------


def _evaluator(world: World) -> psutil.Process | None:
    return world.evaluator()


def _java(world: World) -> psutil.Process | None:
    return next((one for one in _family(world) if one.name().startswith("java")), None)


def _worker(world: World) -> psutil.Process | None:
    """A Python worker of Spark, not the process that they are forked from."""
    family = [one for one in _family(world) if one.name().startswith("python")]
    forked = [one for one in family if one.parent() in family]
    return forked[-1] if forked else None


def _family(world: World) -> list[psutil.Process]:
    evaluator = world.evaluator()
    return evaluator.children(recursive=True) if evaluator is not None else []


def _of_spark(name: str, look: Find) -> Victim:
    def find(trial: Trial, world: World) -> psutil.Process | None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = look(world)
            if process is not None:
                return process
        trial.counts[f"times without {name}"] += 1
        return None

    def kill(trial: Trial, world: World) -> None:
        process = find(trial, world)
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    @contextlib.contextmanager
    def paused(trial: Trial, world: World) -> Iterator[None]:
        process = find(trial, world)
        with contextlib.suppress(psutil.NoSuchProcess):
            if process is not None:
                process.suspend()
        try:
            yield
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process is not None:
                    process.resume()

    return Victim(name, kill, paused)


# --- the client ----------------------------------------------------------------------------------


def _kill_client(trial: Trial, world: World) -> None:
    world.spooler.kill()
    time.sleep(trial.random.uniform(*DOWN_S))
    world.spooler.start()


@contextlib.contextmanager
def _client_paused(trial: Trial, world: World) -> Iterator[None]:
    world.spooler.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        world.spooler.signal(signal.SIGCONT)


VICTIMS = (
    _node("coordinator", _coordinator),
    _node("other node", _other_node),
    _of_spark("evaluator", _evaluator),
    _of_spark("JVM", _java),
    _of_spark("worker", _worker),
    Victim("client", _kill_client, _client_paused),
)


PAUSE_S = (3.0, 6.0)
"""Longer than `membership.failure_timeout_s`."""
LONG_PAUSE_S, LONG_PAUSES = 20.0, 0.1
"""Longer than an evaluator may be silent before it is replaced; and how many of the pauses."""
CALM_S = (0.5, 3.0)
PATIENT = 0.6
"""Share of the faults after which every reader gets an update before the next one."""
UPDATES_S = 300.0

Fault = tuple[Literal["kill", "pause"], Victim]


@pytest.mark.fault(
    "ccq-kills",
    "crash",
    rounds=6,
    lasting=True,
    holds=f"SIGKILL of coordinator, other node, evaluator, JVM, Spark worker and client: {HOLDS}",
)
def test_ccq_kills(trial: Trial) -> None:
    _befall(trial, [("kill", victim) for victim in VICTIMS])


@pytest.mark.fault(
    "ccq-pauses",
    "pause past the timeout, then wake",
    rounds=6,
    lasting=True,
    holds=f"the same stopped for longer than the failure detector waits, and continued: {HOLDS}",
)
def test_ccq_pauses(trial: Trial) -> None:
    _befall(trial, [("pause", victim) for victim in VICTIMS])


@pytest.mark.fault(
    "ccq-storm",
    "crash",
    rounds=12,
    lasting=True,
    holds=f"both, in random order: {HOLDS}",
)
def test_ccq_storm(trial: Trial) -> None:
    _befall(trial, [("kill", one) for one in VICTIMS] + [("pause", one) for one in VICTIMS])


def _befall(trial: Trial, kinds: Sequence[Fault]) -> None:
    """All kinds of faults in a random order, then again, for so many rounds."""
    waiting: list[Fault] = []
    with ccq_world(trial) as world:
        started = time.monotonic()
        for _ in trial.each_round():
            waiting = waiting or trial.random.sample(kinds, len(kinds))
            _apply(trial, world, waiting.pop())
        trial.counts["seconds of streaming"] = int(time.monotonic() - started)


def _apply(trial: Trial, world: World, fault: Fault) -> None:
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
