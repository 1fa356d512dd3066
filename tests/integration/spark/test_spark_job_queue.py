"""Joining, refusing and calling off, on an engine that runs in a thread and answers at once."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import pytest
from expected_errors import raises

from galileo.errors import Overloaded, Unavailable
from galileo.spark import job_queue
from galileo.spark.job_queue import EngineLost, JobQueue

NAMES = ["first", "second", "a", "b", "c", "d", "e", "gone", "stays"]


@pytest.fixture
def labels(echoed):
    """The queries that the answers to one piece of job_request were made of."""
    return lambda answers: [name for names in echoed(answers, *NAMES) for name in names]


@pytest.fixture(autouse=True)
def few_wait(monkeypatch):
    monkeypatch.setattr(job_queue, "WAITING_MAX", 3)


@asynccontextmanager
async def serving(jobs):
    with ThreadPoolExecutor(2) as threads:
        queue = JobQueue(jobs, threads=threads)
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


async def first_job(engine, queue, job_request) -> asyncio.Task:
    """A job that runs until `engine.free` is set."""
    engine.free.clear()
    (task,) = await submitted(queue, job_request("first"))
    await asyncio.to_thread(engine.busy.wait, 60)
    return task


async def test_submit_waiting_requests_share_one_job(engine, jobs, job_request, labels):
    async with serving(jobs) as (queue, _):
        first = await first_job(engine, queue, job_request)
        others = await submitted(queue, job_request("a", "b"), job_request(), job_request("c"))
        assert not queue.idle
        engine.free.set()
        found = [labels(await task) for task in (first, *others)]
        assert found == [["first"], ["a", "b"], [], ["c"]]
        assert engine.sizes == [1, 3]
    assert queue.idle


async def test_submit_full_queue_refuses(engine, jobs, job_request, monkeypatch):
    monkeypatch.setattr(job_queue, "ITEMS_MAX", 2)
    async with serving(jobs) as (queue, _):
        first = await first_job(engine, queue, job_request)
        waiting = await submitted(queue, *(job_request(str(n)) for n in range(3)))
        with raises(Overloaded, bound=3):
            await queue.submit(job_request("x"))
        engine.free.set()
        await asyncio.gather(first, *waiting)
        with pytest.raises(Overloaded):
            await queue.submit(job_request("a", "b", "c"))


async def test_submit_job_size_is_bounded(engine, jobs, job_request, labels, monkeypatch):
    monkeypatch.setattr(job_queue, "ITEMS_MAX", 3)
    async with serving(jobs) as (queue, _):
        first = await first_job(engine, queue, job_request)
        waiting = await submitted(
            queue, job_request("a", "b"), job_request("c", "d"), job_request("e")
        )
        engine.free.set()
        found = [labels(await task) for task in waiting]
        await first
    assert found == [["a", "b"], ["c", "d"], ["e"]]
    assert engine.sizes == [1, 2, 3]


async def test_submit_cancelled_request_is_not_evaluated(engine, jobs, job_request, labels):
    async with serving(jobs) as (queue, _):
        first = await first_job(engine, queue, job_request)
        gone, stays = await submitted(queue, job_request("gone"), job_request("stays"))
        gone.cancel()
        await asyncio.sleep(0)
        engine.free.set()
        assert labels(await stays) == ["stays"]
        await first
    assert engine.sizes == [1, 1]


async def test_submit_cancelled_by_all_callers_cancels_the_job(engine, jobs, job_request, labels):
    async with serving(jobs) as (queue, _):
        first = await first_job(engine, queue, job_request)
        first.cancel()
        while not engine.cancelled:
            await asyncio.to_thread(threading.Event().wait, 0.01)
        (second,) = await submitted(queue, job_request("second"))
        engine.free.set()
        assert labels(await second) == ["second"]


async def test_submit_lost_engine_fails_all_requests(engine, jobs, job_request):
    async with serving(jobs) as (queue, task):
        first = await first_job(engine, queue, job_request)
        (waiting,) = await submitted(queue, job_request("waiting"))
        engine.lost = "Spark ended"
        engine.free.set()
        for one in (first, waiting):
            with pytest.raises(Unavailable):
                await one
        with pytest.raises(EngineLost):
            await task


async def test_serve_job_that_cannot_be_cancelled_raises_engine_lost(
    engine, jobs, job_request, monkeypatch
):
    monkeypatch.setattr(engine, "cancel", lambda tag: None)
    monkeypatch.setattr(job_queue, "CANCEL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(job_queue, "CANCEL_AGAIN_S", 0.02)
    async with serving(jobs) as (queue, task):
        first = await first_job(engine, queue, job_request)
        first.cancel()
        with pytest.raises(EngineLost, match="does not end"):
            await task
        engine.free.set()


async def test_serve_idle_engine_runs_empty_jobs(engine, jobs, monkeypatch):
    monkeypatch.setattr(job_queue, "KEEP_WARM_S", 0.02)
    async with serving(jobs):
        assert await asyncio.to_thread(engine.busy.wait, 60)
    assert engine.sizes[0] == 0
