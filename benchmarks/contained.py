"""What it costs to contain a sampler: its start, and calls compared with the same code uncontained.

The sampler is the installed distribution's own `uniform`, sent as users send theirs.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from galileo_sandbox.sampler import SandboxedSampler

from benchmarks.figures import Figure, Goal, Peer, Spread, in_turn
from benchmarks.label_size import nam_result
from benchmarks.sizes import Bench, NotInstalled
from galileo import samplers
from galileo.labels import LabelSet
from galileo.sampler_package import sampler_archive
from galileo.sampler_runtime import unavailable_reason

SAMPLERS = Path(__file__).resolve().parents[1] / "plugins" / "samplers"
SPEC = samplers.sampler("uniform", fraction=0.1, seed=7)
PLAIN = ["-c", "import galileo.samplers"]
RUN_S = 0.05
CALLS = 5
GOAL_LABELS, TIMES_MAX = 1_000_000, 1.5


def measure(bench: Bench) -> Iterator[Figure]:
    # One that passes, such as a busy machine's, is none when it is looked for again.
    if unavailable_reason() is not None and (reason := unavailable_reason()) is not None:
        raise NotInstalled(f"samplers cannot be contained here: {reason}")
    yield _start(runs=bench.sizes.cold_starts)
    result = nam_result(bench.sizes.stride, least=max(bench.sizes.labels))
    contained = _started()
    try:
        for count in bench.sizes.labels:
            labels = result.slice(0, count)
            yield _call(contained, labels, runs=bench.sizes.runs)
            yield _work(contained, labels, runs=bench.sizes.runs)
    finally:
        contained.close()


def _started() -> SandboxedSampler:
    return SandboxedSampler(sampler_archive(SAMPLERS, name="uniform"), SPEC)


def _start(*, runs: int) -> Figure:
    """From an archive to a sampler that can be asked, compared with a plain interpreter."""

    def plain() -> None:
        subprocess.run([sys.executable, *PLAIN], check=True)

    started, imported = in_turn(lambda: _started().close(), plain, runs=runs)
    peer = Peer("a new interpreter that imports galileo.samplers", imported)
    return Figure("start and end a contained sampler", "s", started, (peer,))


def _call(contained: SandboxedSampler, labels: LabelSet, *, runs: int) -> Figure:
    plain = samplers.load(SPEC)
    expected = plain.sample(labels, seed=SPEC.seed)
    if not np.array_equal(contained.sample(labels, seed=SPEC.seed), expected):
        raise AssertionError("expected the same labels contained and uncontained, got others")
    spread, peer = in_turn(
        lambda: contained.sample(labels, seed=SPEC.seed),
        lambda: plain.sample(labels, seed=SPEC.seed),
        runs=runs,
        run_s=RUN_S,
    )
    goal = Goal("at most", TIMES_MAX, of_peer=True)
    return Figure(
        f"uniform, contained, of {len(labels):,} labels",
        "s",
        spread,
        (Peer("uncontained", peer),),
        (goal,) if len(labels) == GOAL_LABELS else (),
    )


def _work(contained: SandboxedSampler, labels: LabelSet, *, runs: int) -> Figure:
    """Processor time of both processes, which a busy machine changes little."""
    plain = samplers.load(SPEC)
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        for sampler, times in zip((contained, plain), taken, strict=True):
            before = time.process_time() + contained.cpu_s()
            for _ in range(CALLS):
                sampler.sample(labels, seed=SPEC.seed)
            times.append((time.process_time() + contained.cpu_s() - before) / CALLS)
    name = f"uniform, contained, of {len(labels):,} labels: processor time"
    peer = Peer("uncontained", Spread.of(taken[1]))
    return Figure(name, "s", Spread.of(taken[0]), (peer,))
