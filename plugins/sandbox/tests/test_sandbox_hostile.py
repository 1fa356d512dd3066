"""Uploaded code that tries to get out, and what stops it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from galileo_sandbox.confinement import this_machine
from galileo_sandbox.probe import unavailable_reason
from galileo_sandbox.sampler import SandboxedSampler
from hostile import ATTEMPTS, Attempt, listing
from hostile_sampler import hostile_archive

from galileo.errors import SamplerFailed
from galileo.labels import LabelSet
from galileo.sampler_runtime import SandboxLimits
from galileo.samplers import sampler
from galileo.testing.conformance import sample_labels

LIMITS = SandboxLimits(
    memory_bytes=1 << 30, cpu_s=30.0, wall_s=60.0, output_bytes=100_000, open_files=32, threads=8
)
SHORT_CPU = replace(LIMITS, cpu_s=0.5)
"""For what computes for ever; on a busy machine 1 GiB takes as much time."""
HURRIED = replace(LIMITS, wall_s=3.0)
"""For what takes so long in any case; a busy machine is slow at all else, too."""
SLOW, COMPUTED = "took longer than", "of CPU time"
LIMITS_OF = {SLOW: HURRIED, COMPUTED: SHORT_CPU}
QUICK = ("announce an endless answer", "compute for ever", "exit")
"""Of the attempts that end a process, whose successor takes long to start, those always made."""


@pytest.fixture(scope="module")
def labels() -> LabelSet:
    return sample_labels()


@pytest.fixture(scope="module")
def server() -> Iterator[socket.socket]:
    """A server on the loopback, which must not hear anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


@pytest.fixture(scope="module")
def abstract_server(server: socket.socket) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0galileo-canary-{server.getsockname()[1]}")
        listening.listen()
        listening.setblocking(False)
        yield listening


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("node")
    (directory / "data").write_text("secret")
    return directory


@pytest.fixture(scope="module")
def start(
    server: socket.socket, abstract_server: socket.socket, place: Path
) -> Iterator[Callable[[SandboxLimits], SandboxedSampler]]:
    """A contained sampler for each limits, kept for all attempts."""
    if (reason := unavailable_reason()) is not None:
        pytest.skip(reason)
    machine = this_machine()
    assert machine is not None
    archive = hostile_archive(dict(machine.numbers))
    options = {"parent": os.getpid(), "port": server.getsockname()[1], "place": str(place)}
    started: dict[SandboxLimits, SandboxedSampler] = {}

    def one(limits: SandboxLimits) -> SandboxedSampler:
        if limits not in started:
            spec = sampler("hostile", seed=0, **options)
            started[limits] = SandboxedSampler(archive, spec, limits=limits)
        return started[limits]

    os.environ["GALILEO_TEST_SECRET"] = "secret"
    yield one
    del os.environ["GALILEO_TEST_SECRET"]
    for contained in started.values():
        contained.close()


@pytest.mark.parametrize(
    ("number", "attempt"),
    [
        pytest.param(
            number,
            attempt,
            id=attempt.what,
            marks=[pytest.mark.slow] if attempt.ends and attempt.what not in QUICK else [],
        )
        for number, attempt in enumerate(ATTEMPTS)
    ],
)
def test_sandbox_hostile_attempt_fails_alone(
    number: int,
    attempt: Attempt,
    start: Callable[[SandboxLimits], SandboxedSampler],
    labels: LabelSet,
) -> None:
    hostile = start(LIMITS_OF.get(attempt.error, LIMITS))
    with pytest.raises(SamplerFailed) as failed:
        hostile.sample(labels, seed=number)
    assert re.search(attempt.error, failed.value.message), failed.value.message
    assert (hostile.pid is None) == attempt.ends
    assert np.array_equal(hostile.sample(labels, seed=len(ATTEMPTS)), np.ones(len(labels), bool))


def test_sandbox_page_lists_attempts() -> None:
    page = Path(__file__).parents[3] / "docs" / "sandbox.md"
    assert listing() in page.read_text(), f"put this into docs/sandbox.md:\n{listing()}"


def test_sandbox_servers_of_host_are_unreachable(
    server: socket.socket,
    abstract_server: socket.socket,
    start: Callable[[SandboxLimits], SandboxedSampler],
    place: Path,
) -> None:
    start(LIMITS)
    for listening in (server, abstract_server):
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert (place / "data").read_text() == "secret"
    assert [one.name for one in place.iterdir()] == ["data"]
