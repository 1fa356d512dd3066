"""Limits of time that a stopped or busy machine does not use up."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from expected_errors import raises
from galileo_sandbox import bubblewrap, channel, protocol
from galileo_sandbox.probe import unavailable_reason
from galileo_sandbox.sampler import SandboxedSampler

from galileo import samplers
from galileo.errors import SamplerFailed
from galileo.sampler_package import archive_of
from galileo.sampler_runtime import SandboxLimits
from galileo.testing.conformance import sample_labels

SLEEPY = b"""
import time

import numpy as np


class Sleepy:
    def sample(self, labels, *, seed):
        time.sleep(1.5)
        return np.ones(len(labels), dtype=bool)
"""
LABELS = sample_labels()


@pytest.fixture
def sleepy() -> Iterator[SandboxedSampler]:
    if (reason := unavailable_reason()) is not None:
        pytest.skip(reason)
    archive = archive_of({"kind.py": SLEEPY}, name="sleepy", entry="kind:Sleepy")
    limits = SandboxLimits(wall_s=0.5)
    made = SandboxedSampler(archive, samplers.sampler("sleepy", seed=1), limits=limits)
    yield made
    made.close()


def test_response_reader_response_during_stop_is_in_time() -> None:
    answered, answers = os.pipe()
    printed, prints = os.pipe()
    try:
        answer = protocol.ANSWER.pack(protocol.MASK, 2)
        os.write(answers, answer + b"\1\0" + answer + b"\1")
        found = channel.ResponseReader(answered, printed, printed_max=10)
        over = {"sizes": {protocol.MASK: range(2, 3)}, "until": lambda: 0.0, "look": lambda: None}
        assert found.next(**over) == (protocol.MASK, b"\1\0")
        with pytest.raises(TimeoutError):
            found.next(**over)
    finally:
        for descriptor in (answered, answers, printed, prints):
            os.close(descriptor)


@pytest.mark.slow
def test_sandboxed_sampler_wait_for_processor_is_not_counted(
    sleepy: SandboxedSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        # As a machine would say that has something else to do all the time.
        patched.setattr(bubblewrap.Child, "run_queue_wait_s", lambda _: time.monotonic())
        assert sleepy.sample(LABELS, seed=1).all()
    with raises(SamplerFailed, limit="wall_s"):
        sleepy.sample(LABELS, seed=1)


def test_child_run_queue_wait_s_is_known(sleepy: SandboxedSampler) -> None:
    assert sleepy._process is not None
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not say how long a process waited")
    assert sleepy._process._child.run_queue_wait_s() > 0
