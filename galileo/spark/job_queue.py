"""How requests that wait become one job.

What arrives while a job runs is joined into the next one, whoever sent it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from galileo.errors import GalileoError, Overloaded, Unavailable
from galileo.spark.jobs import EngineLost, Jobs, Run
from galileo.spark.tick import NOTHING, Outcome, Work

ITEMS_MAX = 200_000
CANCEL_AGAIN_S = 1.0
CANCEL_TIMEOUT_S = 20.0

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Answer:
    """One outcome per group, and how long the job took that found them."""

    outcomes: Sequence[Outcome]
    job_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    work: Work
    done: asyncio.Future[Answer]


class JobQueue:
    """The requests that wait, and the one run that is under way."""

    def __init__(
        self, jobs: Jobs, *, threads: ThreadPoolExecutor, requests_max: int, keep_warm_s: float
    ) -> None:
        self._jobs = jobs
        self._threads = threads
        self._requests_max = requests_max
        self._keep_warm_s = keep_warm_s or None
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._tags = itertools.count()
        self._running = False

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    async def submit(self, work: Work) -> Answer:
        """The answer; cancelling the caller takes the request out of the job.

        Raises:
            Overloaded: too many requests wait, or this one has too many items.
            Unavailable: the session ended meanwhile.
        """
        if len(self._waiting) >= self._requests_max or len(work) > ITEMS_MAX:
            raise Overloaded(
                f"expected at most {self._requests_max} waiting requests of {ITEMS_MAX} queries, "
                f"got one of {len(work)} behind {len(self._waiting)}; try again later",
                after_s=1.0,
            )
        waiting = _Waiting(work, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        return await waiting.done

    async def serve(self) -> None:
        """Works the queue off until cancelled.

        Raises:
            EngineLost: the session is of no more use; everyone who waits is told.
        """
        try:
            while True:
                await self._turn()
        finally:
            for waiting in self._waiting:
                _settle(waiting, _ended())

    async def _turn(self) -> None:
        try:
            await asyncio.wait_for(self._arrived.wait(), self._keep_warm_s)
        except TimeoutError:
            await self._in_thread(self._jobs.keep_warm)
            return
        if batch := self._take():
            await self._work_off(batch)

    def _take(self) -> list[_Waiting]:
        """The oldest requests, as many as fit one job; those nobody waits for are dropped."""
        batch: list[_Waiting] = []
        room = ITEMS_MAX
        while self._waiting and len(self._waiting[0].work) <= room:
            waiting = self._waiting.popleft()
            if not waiting.done.done():
                batch.append(waiting)
                room -= len(waiting.work)
        if not self._waiting:
            self._arrived.clear()
        return batch

    async def _work_off(self, batch: list[_Waiting]) -> None:
        self._running = True
        started = time.monotonic()
        try:
            found = await self._run(batch)
        except GalileoError as error:
            for waiting in batch:
                _settle(waiting, error)
        except BaseException:
            for waiting in batch:
                _settle(waiting, _ended())
            raise
        else:
            rest, job_s = iter(found), time.monotonic() - started
            for waiting in batch:
                outcomes = list(itertools.islice(rest, len(waiting.work.groups)))
                _settle(waiting, Answer(outcomes, job_s))
        finally:
            self._running = False

    async def _run(self, batch: list[_Waiting]) -> list[Outcome]:
        """Runs one job; calls it off when nobody waits for it any more."""
        run = Run(sum((waiting.work for waiting in batch), NOTHING), f"tick-{next(self._tags)}")
        job = asyncio.ensure_future(self._in_thread(lambda: self._jobs.evaluate(run)))
        while not job.done() and (wanted := [w.done for w in batch if not w.done.done()]):
            ends: set[asyncio.Future[Any]] = {job, *wanted}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await self._call_off(job, run)
        return job.result()

    async def _call_off(self, job: asyncio.Future[list[Outcome]], run: Run) -> None:
        """Returns when the job has ended. Raises EngineLost where it will not."""
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        asking: asyncio.Future[None] | None = None
        while not job.done():
            if time.monotonic() > deadline:
                raise EngineLost("a job that was called off does not end")
            # Not awaited: a JVM that hangs does not answer this either.
            if asking is None or asking.done():
                asking = asyncio.ensure_future(self._in_thread(lambda: self._jobs.cancel(run)))
            await asyncio.wait({job}, timeout=CANCEL_AGAIN_S)

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def _ended() -> Unavailable:
    return Unavailable("the evaluator ends; try again", after_s=1.0)


def _settle(waiting: _Waiting, result: Answer | GalileoError) -> None:
    if waiting.done.done():
        return
    if isinstance(result, GalileoError):
        waiting.done.set_exception(result)
    else:
        waiting.done.set_result(result)
