"""Runs job requests as Spark jobs; repeats a failed job in halves to isolate the item at fault."""

from __future__ import annotations

import itertools
import logging
import threading
from dataclasses import dataclass, field
from typing import Protocol

from galileo.cycle import CycleAnswer, CycleRequest, ItemFailure
from galileo.errors import Cancelled, GalileoError, InternalError, SamplerFailed
from galileo.packs import PackColumns
from galileo.spark.java import summarise_error
from galileo.spark.job import FAILED, Job, JobLimits, count_items, halves

WARM_UP_JOBS = 4

log = logging.getLogger(__name__)


class Engine(Protocol):
    """Runs a job; `session.SparkEngine` implements it."""

    @property
    def tasks(self) -> int: ...

    def failure(self) -> str:
        """Why its session is lost; "" while it is not. May block."""
        ...

    def run(self, job: Job, *, tag: str) -> list[tuple[int, CycleAnswer]]: ...

    def cancel(self, tag: str) -> None: ...


class EngineLost(Exception):
    """The session is unusable; the process ends and is replaced. Never sent to callers."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Requests under evaluation, which can be cancelled."""

    requests: tuple[CycleRequest, ...]
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
            self._run_job((), "warm-up")
        except Exception as error:
            raise EngineLost(f"an empty job failed: {summarise_error(error)}") from error

    def cancel(self, run: Run) -> None:
        """Cancels a run; repeat it until the run ends, since a job can start just after."""
        run.cancelled.set()
        try:
            self._engine.cancel(run.tag)
        except Exception as error:
            log.warning("job %s could not be cancelled: %s", run.tag, summarise_error(error))

    def evaluate(self, run: Run) -> list[list[CycleAnswer]]:
        """The answers to each request.

        A job that fails as a whole is repeated in halves, so that an item that ends the worker's
        process fails alone, at the cost of some more jobs.

        Raises:
            Cancelled: the run was cancelled.
            EngineLost: the session ended.
        """
        return self._evaluate(run, run.requests)

    def _evaluate(self, run: Run, requests: tuple[CycleRequest, ...]) -> list[list[CycleAnswer]]:
        if run.cancelled.is_set():
            raise Cancelled("the caller cancelled this cycle")
        try:
            return self._run_job(requests, run.tag)
        except Exception as error:
            self._check_usable(run, error)
            if count_items(requests) < 2:
                return [_failed(request, error) for request in requests]
        first, second = halves(requests)
        halved = (self._evaluate(run, first), self._evaluate(run, second))
        return [one + other for one, other in zip(*halved, strict=True)]

    def _check_usable(self, run: Run, error: Exception) -> None:
        """Returns if the run can be repeated in parts after an error; raises otherwise."""
        if run.cancelled.is_set():
            raise Cancelled("the caller cancelled this cycle") from error
        self.keep_warm()  # Raises if the session itself fails.
        log.warning("job %s failed and is repeated in parts: %s", run.tag, summarise_error(error))

    def _run_job(self, requests: tuple[CycleRequest, ...], tag: str) -> list[list[CycleAnswer]]:
        if count_items(requests):
            self.evaluations += 1
        else:
            self.empty_jobs += 1
        job = Job(next(self._numbers), requests, self._engine.tasks, self._limits)
        answers: list[list[CycleAnswer]] = [[] for _ in requests]
        for number, answer in self._engine.run(job, tag=tag):
            answers[number].append(answer)
        return answers


def _failed(request: CycleRequest, error: Exception) -> list[CycleAnswer]:
    """The failure of the only item of a request; nothing if it has none."""
    if len(request) == 0:
        return []
    log.error("a job of one query failed", exc_info=error)
    failure: GalileoError = InternalError(FAILED)
    if request.samplers.any():
        failure = SamplerFailed(
            f"the process that ran the sampler failed: {summarise_error(error)}"
        )
    failures = (ItemFailure(request.items, failure),)
    return [CycleAnswer((), PackColumns.of({}), request.items[:0], failures)]
