"""Work as Spark jobs: one job a tick, and what becomes of the others when one item ruins it."""

from __future__ import annotations

import itertools
import logging
import threading
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from galileo.errors import Cancelled, GalileoError, InternalError, SamplerFailed
from galileo.matches import to_bytes
from galileo.spark.failures import brief
from galileo.spark.task import TickTask
from galileo.spark.tick import (
    NOTHING,
    ROW_SCHEMA,
    Group,
    Outcome,
    Tick,
    TickLimits,
    Work,
    outcomes_of,
)
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.status import error_to_pb

WARM_UP_JOBS = 4

log = logging.getLogger(__name__)


class Engine(Protocol):
    """What runs a job; `session.SparkEngine`."""

    @property
    def tasks(self) -> int: ...

    def alive(self) -> bool:
        """Whether its process runs; a session that does not answer may still be alive."""
        ...

    def run(self, function: TickTask, *, row_schema: pa.Schema, tag: str) -> pa.Table: ...

    def cancel(self, tag: str) -> None: ...


class EngineLost(Exception):
    """The session is of no more use; this process has to be replaced. Never leaves it."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One piece of work on its way through the engine, which can be called off."""

    work: Work
    tag: str
    called_off: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """Runs work on the engine. Blocks; one call at a time.

    Attributes:
        evaluations: jobs so far that looked for something.
        empty_jobs: so far, which only keep the Python workers.
    """

    def __init__(self, engine: Engine, limits: TickLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._numbers = itertools.count()
        self.evaluations = 0
        self.empty_jobs = 0

    def warm_up(self) -> None:
        """Starts the Python workers, with everything imported that a tick needs.

        Raises:
            EngineLost: a job without work fails.
        """
        for _ in range(WARM_UP_JOBS):
            self.keep_warm()

    def keep_warm(self) -> None:
        """Runs a job without work. Raises EngineLost where that fails."""
        try:
            self._job(NOTHING, "warm-up")
        except Exception as error:
            raise EngineLost(f"a job without work failed: {brief(error)}") from error

    def cancel(self, run: Run) -> None:
        """Calls a run off; to be repeated, for a job can start just after."""
        run.called_off.set()
        try:
            self._engine.cancel(run.tag)
        except Exception as error:
            log.warning("job %s could not be called off: %s", run.tag, brief(error))

    def evaluate(self, run: Run) -> list[Outcome]:
        """One outcome per group.

        A job that fails as a whole is repeated in halves: the item that takes the worker's
        process down with it fails alone, at the price of some more jobs.

        Raises:
            Cancelled: it was called off.
            EngineLost: the session ended.
        """
        return self._evaluate(run, run.work)

    def _evaluate(self, run: Run, work: Work) -> list[Outcome]:
        if run.called_off.is_set():
            raise Cancelled("the caller did not wait for this cycle")
        try:
            return outcomes_of(self._job(work, run.tag), len(work.groups))
        except Exception as error:
            self._judge(run, error)
            if len(work) < 2:
                return [_fatal(group, error) for group in work.groups]
        first, second, seam = work.halves()
        return seam.joined(self._evaluate(run, first), self._evaluate(run, second))

    def _judge(self, run: Run, error: Exception) -> None:
        """Raises what a failed job means for the whole run; returns where parts may do better."""
        if run.called_off.is_set():
            raise Cancelled("the caller did not wait for this cycle") from error
        self.keep_warm()  # Whether it is the session that fails.
        log.warning("job %s failed and is repeated in parts: %s", run.tag, brief(error))

    def _job(self, work: Work, tag: str) -> pa.Table:
        if len(work):
            self.evaluations += 1
        else:
            self.empty_jobs += 1
        tick = Tick(
            number=next(self._numbers),
            groups=work.groups,
            shares=work.shares(),
            tasks=self._engine.tasks,
            limits=self._limits,
        )
        return self._engine.run(TickTask(tick), row_schema=ROW_SCHEMA, tag=tag)


def _fatal(group: Group, error: Exception) -> Outcome:
    """The failure of the one item of a group, if it has one."""
    if len(group) == 0:
        return Outcome()
    found: GalileoError = InternalError(
        f"a cycle's job failed: {brief(error)}; see the evaluator's log"
    )
    if group.samplers.any():
        found = SamplerFailed(f"the process that ran the sampler failed: {brief(error)}")
    failure = peers_pb2.MatchFailure(
        items=to_bytes(np.zeros(1, dtype=np.uint32)), error=error_to_pb(found)
    )
    return Outcome(failures=[failure])
