"""The jobs of the evaluator: requests that arrive during one are joined into the next.

A job is cancelled when all callers of its requests stop waiting. One that fails is repeated in
halves, so that an item that ends the process of its worker fails alone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from galileo.cycle import Answers, CycleAnswer, CycleRequest, ItemFailure
from galileo.errors import (
    Cancelled,
    GalileoError,
    InternalError,
    Overloaded,
    SamplerFailed,
    Unavailable,
)
from galileo.packs import PackColumns
from galileo.spark.jvm import summarise_error
from galileo.spark.options import EvaluatorOptions
from galileo.spark.task import FAILED, Job

if TYPE_CHECKING:
    from galileo.spark.session import SparkEngine

WARM_UP_JOBS = 4
WAITING_MAX = 64
"""Calls that can wait for the running job."""
ITEMS_MAX = 200_000
"""Queries of one job."""
KEEP_WARM_S = 45.0
"""After this time without a job an empty one runs, since Spark ends Python workers that are idle
for 60 s.
"""
CANCEL_AGAIN_S = 1.0
"""Pause between two attempts to cancel a job."""
CANCEL_TIMEOUT_S = 20.0
"""A cancelled job that still runs after it ends the session."""
PROBE_TIMEOUT_S = 30.0
"""An empty job that still runs after it ends the session."""

Result = TypeVar("Result")
log = logging.getLogger(__name__)


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

    def __init__(self, engine: SparkEngine, options: EvaluatorOptions) -> None:
        self._engine = engine
        self._options = options
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

        A job that fails as a whole is repeated in halves, at the cost of some more jobs.

        Raises:
            Cancelled: the run was cancelled.
            EngineLost: the session ended.
        """
        if run.cancelled.is_set():
            raise Cancelled("the caller cancelled this cycle")
        try:
            return self._run_job(run.requests, run.tag)
        except Exception as error:
            self._check_usable(run, error)
            if count_items(run.requests) < 2:
                return [_failed(request, error) for request in run.requests]
        halved = [self.evaluate(replace(run, requests=half)) for half in halves(run.requests)]
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
        job = Job(next(self._numbers), requests, self._engine.tasks, self._options)
        answers: list[list[CycleAnswer]] = [[] for _ in requests]
        for number, answer in self._engine.run(job, tag=tag):
            answers[number].append(answer)
        return answers


def count_items(requests: Sequence[CycleRequest]) -> int:
    return sum(map(len, requests))


def halves(
    requests: Sequence[CycleRequest],
) -> tuple[tuple[CycleRequest, ...], tuple[CycleRequest, ...]]:
    """As many requests twice, with half of the items each; needs at least two items."""
    left = count_items(requests) // 2
    first, second = [], []
    for request in requests:
        first.append(request.slice(0, left))
        second.append(request.slice(left, len(request)))
        left = max(0, left - len(request))
    return tuple(first), tuple(second)


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


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    requests: tuple[CycleRequest, ...]
    done: asyncio.Future[Answers]

    def __len__(self) -> int:
        """Number of items."""
        return count_items(self.requests)


class JobQueue:
    """Waiting requests, and the run in progress.

    Args:
        jobs: runs them.
        threads: in which they run, and are cancelled.
    """

    def __init__(self, jobs: JobRunner, *, threads: ThreadPoolExecutor) -> None:
        self._jobs = jobs
        self._threads = threads
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._tags = itertools.count()
        self._running = False

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    async def submit(self, requests: tuple[CycleRequest, ...]) -> Answers:
        """Evaluates the requests of a call; cancelling the caller cancels it.

        Raises:
            Overloaded: too many calls wait, or this one has too many items.
            Unavailable: the session ended.
        """
        waiting = _Waiting(requests, asyncio.get_running_loop().create_future())
        if len(self._waiting) >= WAITING_MAX or len(waiting) > ITEMS_MAX:
            raise Overloaded(
                f"expected at most {WAITING_MAX} waiting requests of {ITEMS_MAX} queries, "
                f"got one of {len(waiting)} behind {len(self._waiting)}; try again later",
                after_s=1.0,
                bound=WAITING_MAX,
            )
        self._waiting.append(waiting)
        self._arrived.set()
        return await waiting.done

    async def serve(self) -> None:
        """Runs jobs until cancelled.

        Raises:
            EngineLost: the session is unusable; all waiting requests fail with Unavailable.
        """
        try:
            while True:
                await self._serve_next()
        finally:
            for waiting in self._waiting:
                _resolve(waiting, _ended())

    async def _serve_next(self) -> None:
        try:
            await asyncio.wait_for(self._arrived.wait(), KEEP_WARM_S)
        except TimeoutError:
            await self._probe()
            return
        if batch := self._next_batch():
            await self._evaluate(batch)

    def _next_batch(self) -> list[_Waiting]:
        """Removes the oldest requests, as many as fit one job; skips those that were cancelled."""
        batch: list[_Waiting] = []
        room = ITEMS_MAX
        while self._waiting and len(self._waiting[0]) <= room:
            waiting = self._waiting.popleft()
            if not waiting.done.done():
                batch.append(waiting)
                room -= len(waiting)
        if not self._waiting:
            self._arrived.clear()
        return batch

    async def _evaluate(self, batch: list[_Waiting]) -> None:
        self._running = True
        try:
            answers = await self._run(batch)
        except GalileoError as error:
            for waiting in batch:
                _resolve(waiting, error)
        except BaseException:
            for waiting in batch:
                _resolve(waiting, _ended())
            raise
        else:
            rest = iter(answers)
            for waiting in batch:
                own = itertools.islice(rest, len(waiting.requests))
                _resolve(waiting, tuple(map(tuple, own)))
        finally:
            self._running = False

    async def _run(self, batch: list[_Waiting]) -> list[list[CycleAnswer]]:
        """Runs one job; cancels it when all of its requests are cancelled."""
        requests = tuple(request for waiting in batch for request in waiting.requests)
        run = Run(requests, f"job-{next(self._tags)}")
        job = asyncio.ensure_future(self._in_thread(lambda: self._jobs.evaluate(run)))
        while not job.done() and (pending := [w.done for w in batch if not w.done.done()]):
            ends: set[asyncio.Future[Any]] = {job, *pending}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await self._end(job, run)
        if run.cancelled.is_set():
            await self._probe()
        return job.result()

    async def _probe(self) -> None:
        """Runs an empty job. Raises EngineLost if it fails, or does not end in time."""
        probe = asyncio.ensure_future(self._in_thread(self._jobs.keep_warm))
        done, _ = await asyncio.wait({probe}, timeout=PROBE_TIMEOUT_S)
        if not done:
            raise EngineLost(f"an empty job took more than {PROBE_TIMEOUT_S:g} s")
        probe.result()

    async def _end(self, job: asyncio.Future[list[list[CycleAnswer]]], run: Run) -> None:
        """Cancels the job until it has ended. Raises EngineLost if it does not end."""
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        cancelling: asyncio.Future[None] | None = None
        while not job.done():
            if time.monotonic() > deadline:
                raise EngineLost("a cancelled job does not end")
            # Not awaited: a JVM that hangs does not answer this call either.
            if cancelling is None or cancelling.done():
                cancelling = asyncio.ensure_future(self._in_thread(lambda: self._jobs.cancel(run)))
            await asyncio.wait({job}, timeout=CANCEL_AGAIN_S)

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def _ended() -> Unavailable:
    return Unavailable("the evaluator is ending; try again", after_s=1.0)


def _resolve(waiting: _Waiting, result: Answers | GalileoError) -> None:
    if waiting.done.done():
        return
    if isinstance(result, GalileoError):
        waiting.done.set_exception(result)
    else:
        waiting.done.set_result(result)
