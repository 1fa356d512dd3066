"""The processes of the continuous plane: how each is found, killed and brought back, or stopped."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

import psutil

from faults.registry import Trial
from faults.standing_world import World
from galileo.local_node import LocalNode

DOWN_S = (0.0, 4.0)

Find: TypeAlias = Callable[[World], psutil.Process | None]


@dataclass(frozen=True, slots=True)
class Victim:
    """Something that can be killed or stopped.

    Attributes:
        name: of its kind.
        kill: SIGKILL, and what brings it back where nobody else does.
        paused: SIGSTOP before the block, SIGCONT after it.
    """

    name: str
    kill: Callable[[Trial, World], None]
    paused: Callable[[Trial, World], AbstractContextManager[None]]


# --- nodes -------------------------------------------------------------------------------------


def _coordinator(trial: Trial, world: World) -> LocalNode:
    return world.coordinator()


def _other(trial: Trial, world: World) -> LocalNode:
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
    _node("other node", _other),
    _of_spark("evaluator", _evaluator),
    _of_spark("JVM", _java),
    _of_spark("worker", _worker),
    Victim("client", _kill_client, _client_paused),
)
