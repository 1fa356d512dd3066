"""Runs job requests as Spark jobs; repeats a failed job in halves to isolate the item at fault."""

from __future__ import annotations

import itertools
import logging
import threading
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from galileo.errors import Cancelled, GalileoError, InternalError, SamplerFailed
from galileo.match_batch import to_bytes
from galileo.spark.java import summarise_error
from galileo.spark.job import (
    EMPTY_REQUEST,
    FAILED,
    ROW_SCHEMA,
    Group,
    Job,
    JobLimits,
    JobRequest,
    Outcome,
    merge_rows,
)
from galileo.spark.task import JobTask
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.status import error_to_pb

WARM_UP_JOBS = 4

log = logging.getLogger(__name__)


class Engine(Protocol):
    """Runs a job; `session.SparkEngine` implements it."""

    @property
    def tasks(self) -> int: ...

    def failure(self) -> str:
        """Why its session is lost; "" while it is not. May block."""
        ...

    def run(
        self, function: JobTask, *, row_schema: pa.Schema, tag: str, tasks: int
    ) -> pa.Table: ...

    def cancel(self, tag: str) -> None: ...


class EngineLost(Exception):
    """The session is unusable; the process ends and is replaced. Never sent to callers."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A request under evaluation, which can be cancelled."""

    request: JobRequest
    tag: str
    cancelled: threading.Event = field(default_factory=threading.Event)


class JobRunner:
    """Runs requests on the engine. Blocks; one call at a time.

    Attributes:
        evaluations: number of jobs with items.
        empty_jobs: number of jobs without, which keep the Python workers alive.
    """

    def __init__(self, engine: Engine, limits: JobLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._numbers = itertools.count()
        self.evaluations = 0
        self.empty_jobs = 0

    def warm_up(self) -> None:
        """Starts the Python workers and their imports. Raises EngineLost if that fails."""
        for _ in range(WARM_UP_JOBS):
            self.keep_warm()

    def keep_warm(self) -> None:
        """Runs an empty job. Raises EngineLost if it fails."""
        try:
            self._run_job(EMPTY_REQUEST, "warm-up")
        except Exception as error:
            raise EngineLost(f"an empty job failed: {summarise_error(error)}") from error

    def cancel(self, run: Run) -> None:
        """Cancels a run; repeat it until the run ends, since a job can start just after."""
        run.cancelled.set()
        try:
            self._engine.cancel(run.tag)
        except Exception as error:
            log.warning("job %s could not be cancelled: %s", run.tag, summarise_error(error))

    def evaluate(self, run: Run) -> list[Outcome]:
        """One outcome for each group.

        A job that fails as a whole is repeated in halves, so that an item that ends the worker's
        process fails alone, at the cost of some more jobs.

        Raises:
            Cancelled: the run was cancelled.
            EngineLost: the session ended.
        """
        return self._evaluate(run, run.request)

    def _evaluate(self, run: Run, request: JobRequest) -> list[Outcome]:
        if run.cancelled.is_set():
            raise Cancelled("the caller cancelled this cycle")
        try:
            return merge_rows(self._run_job(request, run.tag), len(request.groups))
        except Exception as error:
            self._check_usable(run, error)
            if len(request) < 2:
                return [_failed_outcome(group, error) for group in request.groups]
        first, second, split = request.halves()
        return split.merge(self._evaluate(run, first), self._evaluate(run, second))

    def _check_usable(self, run: Run, error: Exception) -> None:
        """Returns if the run can be repeated in parts after an error; raises otherwise."""
        if run.cancelled.is_set():
            raise Cancelled("the caller cancelled this cycle") from error
        self.keep_warm()  # Raises if the session itself fails.
        log.warning("job %s failed and is repeated in parts: %s", run.tag, summarise_error(error))

    def _run_job(self, request: JobRequest, tag: str) -> pa.Table:
        if len(request):
            self.evaluations += 1
        else:
            self.empty_jobs += 1
        job = Job(
            number=next(self._numbers),
            groups=request.groups,
            node_requests=request.node_requests(),
            tasks=self._engine.tasks,
            limits=self._limits,
        )
        return self._engine.run(JobTask(job), row_schema=ROW_SCHEMA, tag=tag, tasks=job.tasks)


def _failed_outcome(group: Group, error: Exception) -> Outcome:
    """The failure of the only item of a group; an empty outcome if it has none."""
    if len(group) == 0:
        return Outcome()
    log.error("a job of one query failed", exc_info=error)
    failure: GalileoError = InternalError(FAILED)
    if group.samplers.any():
        failure = SamplerFailed(
            f"the process that ran the sampler failed: {summarise_error(error)}"
        )
    message = peers_pb2.MatchFailure(
        items=to_bytes(np.zeros(1, dtype=np.uint32)), error=error_to_pb(failure)
    )
    return Outcome(failures=[message])
