"""Joining, refusing and calling off, on an engine that runs in a thread and answers at once."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import pytest

from galileo.errors import Overloaded, Unavailable
from galileo.spark import job_queue
from galileo.spark.job_queue import JobQueue
from galileo.spark.jobs import EngineLost

NAMES = ["first", "second", "a", "b", "c", "d", "e", "gone", "stays"]


@pytest.fixture
def labels(echoed):
    """The queries that the outcomes of one piece of work were made of."""
    return lambda outcomes: [name for names in echoed(outcomes, *NAMES) for name in names]


@asynccontextmanager
async def serving(jobs, **options):
    chosen = {"requests_max": 3, "keep_warm_s": 0.0, **options}
    with ThreadPoolExecutor(2) as threads:
        queue = JobQueue(jobs, threads=threads, **chosen)
        task = asyncio.create_task(queue.serve())
        try:
            yield queue, task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, EngineLost):
                await task


async def submitted(queue, *works) -> list[asyncio.Task]:
    tasks = [asyncio.create_task(queue.submit(one)) for one in works]
    await asyncio.sleep(0)
    return tasks


async def first_job(engine, queue, work) -> asyncio.Task:
    """A job that runs until `engine.free` is set."""
    engine.free.clear()
    (task,) = await submitted(queue, work("first"))
    await asyncio.to_thread(engine.busy.wait, 60)
    return task


async def test_what_waits_is_joined_and_each_gets_its_own(engine, jobs, work, labels):
    async with serving(jobs) as (queue, _):
        first = await first_job(engine, queue, work)
        others = await submitted(queue, work("a", "b"), work(), work("c"))
        assert not queue.idle
        engine.free.set()
        found = [labels((await task).outcomes) for task in (first, *others)]
        assert found == [["first"], ["a", "b"], [], ["c"]]
        assert engine.sizes == [1, 3]
        assert (await first).job_s > 0
    assert queue.idle


async def test_a_queue_that_is_full_refuses(engine, jobs, work, monkeypatch):
    async with serving(jobs) as (queue, _):
        first = await first_job(engine, queue, work)
        waiting = await submitted(queue, *(work(str(n)) for n in range(3)))
        with pytest.raises(Overloaded, match="at most 3"):
            await queue.submit(work("x"))
        engine.free.set()
        await asyncio.gather(first, *waiting)
        monkeypatch.setattr(job_queue, "ITEMS_MAX", 2)
        with pytest.raises(Overloaded):
            await queue.submit(work("a", "b", "c"))


async def test_a_job_is_never_larger_than_its_limit(engine, jobs, work, labels, monkeypatch):
    monkeypatch.setattr(job_queue, "ITEMS_MAX", 3)
    async with serving(jobs) as (queue, _):
        first = await first_job(engine, queue, work)
        waiting = await submitted(queue, work("a", "b"), work("c", "d"), work("e"))
        engine.free.set()
        found = [labels((await task).outcomes) for task in waiting]
        await first
    assert found == [["a", "b"], ["c", "d"], ["e"]]
    assert engine.sizes == [1, 2, 3]


async def test_who_went_away_is_left_out(engine, jobs, work, labels):
    async with serving(jobs) as (queue, _):
        first = await first_job(engine, queue, work)
        gone, stays = await submitted(queue, work("gone"), work("stays"))
        gone.cancel()
        await asyncio.sleep(0)
        engine.free.set()
        assert labels((await stays).outcomes) == ["stays"]
        await first
    assert engine.sizes == [1, 1]


async def test_a_job_ends_when_its_last_caller_went_away(engine, jobs, work, labels):
    async with serving(jobs) as (queue, _):
        first = await first_job(engine, queue, work)
        first.cancel()
        while not engine.cancelled:
            await asyncio.to_thread(threading.Event().wait, 0.01)
        (second,) = await submitted(queue, work("second"))
        engine.free.set()
        assert labels((await second).outcomes) == ["second"]


async def test_everyone_is_told_that_the_engine_is_lost(engine, jobs, work):
    async with serving(jobs) as (queue, task):
        first = await first_job(engine, queue, work)
        (waiting,) = await submitted(queue, work("waiting"))
        engine.living = False
        engine.free.set()
        for one in (first, waiting):
            with pytest.raises(Unavailable):
                await one
        with pytest.raises(EngineLost):
            await task


async def test_a_job_that_cannot_be_called_off_ends_the_evaluator(engine, jobs, work, monkeypatch):
    monkeypatch.setattr(job_queue, "CANCEL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(job_queue, "CANCEL_AGAIN_S", 0.02)
    monkeypatch.setattr(engine, "cancel", lambda tag: None)
    async with serving(jobs) as (queue, task):
        first = await first_job(engine, queue, work)
        first.cancel()
        with pytest.raises(EngineLost, match="does not end"):
            await task
        engine.free.set()


async def test_an_idle_engine_is_kept_warm(engine, jobs):
    async with serving(jobs, keep_warm_s=0.02):
        assert await asyncio.to_thread(engine.busy.wait, 60)
    assert engine.sizes[0] == 0
