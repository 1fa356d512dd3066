"""Every kind of process of the continuous plane, killed or stopped, under a stream."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil
from faults.registry import Scenario, Trial
from faults.standing_world import World, standing, wait_for_updates

from galileo.cluster import LocalNode
from galileo.testing.faults.needs import SIGNALS

PAUSE_S = (3.0, 6.0)
"""Longer than `membership.dead_after_s`."""
LONG_PAUSE_S = 20.0
"""Longer than an evaluator may be silent before it is replaced."""
LONG_PAUSES = 0.1
DOWN_S = (0.0, 4.0)
CALM_S = (0.5, 3.0)
PATIENT = 0.7
"""Share of the faults after which every reader is to get an update before the next one."""
UPDATES_S = 180.0


@dataclass(frozen=True, slots=True)
class Victim:
    """Something that can be killed or stopped.

    Attributes:
        name: of its kind.
        kill: SIGKILL, and whatever brings it back.
        pause: SIGSTOP within the block.
    """

    name: str
    kill: Callable[[Trial, World], None]
    pause: Callable[[World], contextlib.AbstractContextManager[bool]]


# --- nodes -------------------------------------------------------------------------------------


def _other(trial: Trial, world: World) -> LocalNode:
    coordinator = world.coordinator()
    return trial.random.choice([one for one in world.cluster.nodes if one is not coordinator])


def _kill_node(trial: Trial, node: LocalNode) -> None:
    node.kill()
    time.sleep(trial.random.uniform(*DOWN_S))
    node.restart()


@contextlib.contextmanager
def _node_paused(node: LocalNode) -> Iterator[bool]:
    node.pause()
    try:
        yield True
    finally:
        node.resume()


# --- the evaluator's family --------------------------------------------------------------------


def _evaluator(world: World) -> psutil.Process | None:
    return world.evaluator()


def _java(world: World) -> psutil.Process | None:
    return next((one for one in _family(world) if _name(one).startswith("java")), None)


def _worker(world: World) -> psutil.Process | None:
    """A Python worker of Spark, not the process from which they are forked."""
    family = [one for one in _family(world) if _name(one).startswith("python")]
    known = set(family)
    forked = [one for one in family if (parent := _parent(one)) is not None and parent in known]
    return forked[-1] if forked else None


def _family(world: World) -> list[psutil.Process]:
    evaluator = world.evaluator()
    with contextlib.suppress(psutil.NoSuchProcess):
        return evaluator.children(recursive=True) if evaluator is not None else []
    return []


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def _parent(process: psutil.Process) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.parent()
    return None


def _of_spark(name: str, find: Callable[[World], psutil.Process | None]) -> Victim:
    def kill(trial: Trial, world: World) -> None:
        process = find(world)
        trial.counts[f"no {name} to kill"] += process is None
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    @contextlib.contextmanager
    def pause(world: World) -> Iterator[bool]:
        process = find(world)
        if process is None:
            yield False
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
        try:
            yield True
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    return Victim(name, kill, pause)


# --- the client --------------------------------------------------------------------------------


def _kill_client(trial: Trial, world: World) -> None:
    world.spooler.kill()
    time.sleep(trial.random.uniform(*DOWN_S))
    world.spooler.start()


@contextlib.contextmanager
def _client_paused(world: World) -> Iterator[bool]:
    world.spooler.signal(signal.SIGSTOP)
    try:
        yield True
    finally:
        world.spooler.signal(signal.SIGCONT)


@contextlib.contextmanager
def _paused_other(world: World) -> Iterator[bool]:
    coordinator = world.coordinator()
    node = next(one for one in world.cluster.nodes if one is not coordinator)
    with _node_paused(node):
        yield True


VICTIMS = (
    Victim(
        "coordinator",
        lambda trial, world: _kill_node(trial, world.coordinator()),
        lambda world: _node_paused(world.coordinator()),
    ),
    Victim(
        "other node", lambda trial, world: _kill_node(trial, _other(trial, world)), _paused_other
    ),
    _of_spark("evaluator", _evaluator),
    _of_spark("JVM", _java),
    _of_spark("worker", _worker),
    Victim("client", _kill_client, _client_paused),
)


# --- scenarios ---------------------------------------------------------------------------------


def kills(trial: Trial) -> None:
    _befall(trial, [lambda victim=victim: _kill(trial, victim) for victim in VICTIMS])
