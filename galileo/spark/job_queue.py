"""The queue of the evaluator: requests that arrive during a job are joined into the next job."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from galileo.cycle import CycleAnswer, CycleRequest
from galileo.errors import GalileoError, Overloaded, Unavailable
from galileo.spark.calls import JobAnswer
from galileo.spark.job import count_items
from galileo.spark.job_runner import EngineLost, JobRunner, Run

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Limits of a queue.

    Attributes:
        requests_max: waiting requests.
        items_max: queries of one job.
        keep_warm_s: seconds without a job after which an empty one runs; 0: never.
        cancel_again_s: seconds between two attempts to cancel a job.
        cancel_timeout_s: seconds after which a cancelled job that runs ends the session.
        probe_timeout_s: seconds after which an empty job that runs ends the session.
    """

    requests_max: int
    items_max: int = 200_000
    keep_warm_s: float = 0.0
    cancel_again_s: float = 1.0
    cancel_timeout_s: float = 20.0
    probe_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    requests: tuple[CycleRequest, ...]
    done: asyncio.Future[JobAnswer]

    def __len__(self) -> int:
        """Number of items."""
        return count_items(self.requests)


class JobQueue:
    """Waiting requests, and the run in progress."""

    def __init__(
        self, jobs: JobRunner, *, threads: ThreadPoolExecutor, options: QueueOptions
    ) -> None:
        self._jobs = jobs
        self._threads = threads
        self._options = options
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._tags = itertools.count()
        self._running = False

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    async def submit(self, requests: tuple[CycleRequest, ...]) -> JobAnswer:
        """Evaluates the requests of a call; cancelling the caller cancels it.

        Raises:
            Overloaded: too many calls wait, or this one has too many items.
            Unavailable: the session ended.
        """
        requests_max, items_max = self._options.requests_max, self._options.items_max
        waiting = _Waiting(requests, asyncio.get_running_loop().create_future())
        if len(self._waiting) >= requests_max or len(waiting) > items_max:
            raise Overloaded(
                f"expected at most {requests_max} waiting requests of {items_max} queries, "
                f"got one of {len(waiting)} behind {len(self._waiting)}; try again later",
                after_s=1.0,
                bound=requests_max,
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
            await asyncio.wait_for(self._arrived.wait(), self._options.keep_warm_s or None)
        except TimeoutError:
            await self._probe()
            return
        if batch := self._next_batch():
            await self._evaluate(batch)

    def _next_batch(self) -> list[_Waiting]:
        """Removes the oldest requests, as many as fit one job; skips those that were cancelled."""
        batch: list[_Waiting] = []
        room = self._options.items_max
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
        started = time.monotonic()
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
            rest, job_s = iter(answers), time.monotonic() - started
            for waiting in batch:
                own = tuple(map(tuple, itertools.islice(rest, len(waiting.requests))))
                _resolve(waiting, JobAnswer(own, job_s))
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
        done, _ = await asyncio.wait({probe}, timeout=self._options.probe_timeout_s)
        if not done:
            raise EngineLost(f"an empty job took more than {self._options.probe_timeout_s:g} s")
        probe.result()

    async def _end(self, job: asyncio.Future[list[list[CycleAnswer]]], run: Run) -> None:
        """Cancels the job until it has ended. Raises EngineLost if it does not end."""
        deadline = time.monotonic() + self._options.cancel_timeout_s
        cancelling: asyncio.Future[None] | None = None
        while not job.done():
            if time.monotonic() > deadline:
                raise EngineLost("a cancelled job does not end")
            # Not awaited: a JVM that hangs does not answer this call either.
            if cancelling is None or cancelling.done():
                cancelling = asyncio.ensure_future(self._in_thread(lambda: self._jobs.cancel(run)))
            await asyncio.wait({job}, timeout=self._options.cancel_again_s)

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def _ended() -> Unavailable:
    return Unavailable("the evaluator is ending; try again", after_s=1.0)


def _resolve(waiting: _Waiting, result: JobAnswer | GalileoError) -> None:
    if waiting.done.done():
        return
    if isinstance(result, GalileoError):
        waiting.done.set_exception(result)
    else:
        waiting.done.set_result(result)
