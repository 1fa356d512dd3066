"""The life and death of evaluator processes."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from processes import ended

from galileo.errors import ConfigError, GalileoError, Unavailable
from galileo.spark import launcher
from galileo.spark.launcher import EvaluatorClient
from galileo.spark.options import EvaluatorOptions, SparkOptions
from galileo.spark.runtime_dir import RuntimeDir

LEASE_S = 4.0
START_S = 120.0


@pytest.fixture
def runtime_dir(end_evaluator):
    with tempfile.TemporaryDirectory(prefix="galileo-test-") as path:
        yield Path(path)
        end_evaluator(Path(path))


@pytest.mark.slow
async def test_ensure_replaces_a_killed_evaluator_until_its_lease_ends(
    evaluator_options, serve_labels, make_labels, make_request
):
    options = dataclasses.replace(evaluator_options, idle_timeout_s=LEASE_S)
    async with (
        EvaluatorClient(options) as handle,
        serve_labels({"air": make_labels(0, range(1, 3))}) as node,
    ):
        await handle.ensure(timeout_s=START_S)
        asked = make_request({node.address: [0]}, [{}])
        first = psutil.Process(handle.pid)
        children = first.children(recursive=True)
        assert len(children) >= 2, "a JVM and Python workers"
        first.kill()
        # The call finds the process dead, replaces it and is answered.
        reply = await handle.evaluate(asked.requests, timeout_s=START_S)
        assert len(asked.read(reply)[0].labels) == 20
        assert handle.pid != first.pid
        family = [one.pid for one in (first, *children)]
        assert await asyncio.to_thread(ended, *family)

        second = psutil.Process(handle.pid)
        children = second.children(recursive=True)
        keeper = asyncio.create_task(handle.keep(lambda: True))
        await asyncio.sleep(2 * LEASE_S)
        assert second.is_running(), "a lease that is kept does not end"
        keeper.cancel()
        await asyncio.wait([keeper])
        family = [one.pid for one in (second, *children)]
        assert await asyncio.to_thread(ended, *family, within_s=LEASE_S + 60)
    runtime = RuntimeDir(options.runtime_dir)
    assert runtime.published() is None
    lock = runtime.try_lock()
    assert lock is not None
    os.close(lock)


@pytest.mark.slow
async def test_ensure_failed_start_is_reported_and_not_repeated_at_once(runtime_dir, monkeypatch):
    """Settings that Spark refuses."""
    monkeypatch.setattr(launcher, "RETRY_S", 3_600.0)
    monkeypatch.setattr(launcher, "RETRY_MAX_S", 3_600.0)
    spark = SparkOptions(settings={"spark.serializer": "no.such.Serializer"})
    async with EvaluatorClient(EvaluatorOptions(runtime_dir, spark)) as handle:
        with pytest.raises(Unavailable, match=r"no\.such\.Serializer") as caught:
            await handle.ensure(timeout_s=START_S)
        assert 0 < caught.value.details["after_s"] <= 3_600.0
        monkeypatch.delattr(launcher, "_start")
        with pytest.raises(Unavailable, match="exit code 2"):
            await handle.ensure(timeout_s=START_S)


@pytest.fixture
def idle_process():
    """A process that waits for the end of its input."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.slow
async def test_ensure_hung_evaluator_is_killed(runtime_dir, idle_process, monkeypatch):
    """A process that holds the lock, has a socket, and hangs."""
    monkeypatch.setattr(launcher, "HUNG_S", 0.2)
    runtime = RuntimeDir(runtime_dir)
    lock = runtime.try_lock()
    runtime.record_holder(lock, idle_process.pid)
    (runtime_dir / "evaluator.sock").touch()
    async with EvaluatorClient(EvaluatorOptions(runtime_dir)) as handle:
        for _ in range(40):  # one is enough where there is time for a second look at it
            with pytest.raises(Unavailable, match="not warm"):
                await handle.ensure(timeout_s=1.5)
            if idle_process.poll() is not None:
                break
    assert idle_process.poll() == -signal.SIGKILL
    os.close(lock)


async def test_ensure_deleted_directory_is_created_again(runtime_dir, monkeypatch):
    """Those of the system for temporary files are, now and then; a node must not end by it."""
    started: list[bool] = []

    def start(options, runtime, lock):
        started.append(runtime.try_lock() is None)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(launcher, "_start", start)
    async with EvaluatorClient(EvaluatorOptions(runtime_dir / "ours")) as handle:
        (runtime_dir / "ours").rmdir()
        with pytest.raises(Unavailable, match="No space left"):
            await handle.ensure(timeout_s=START_S)
        assert started == [True]
        (runtime_dir / "ours" / "evaluator.lock").unlink()
        (runtime_dir / "ours").rmdir()
        (runtime_dir / "ours").write_text("in the way")
        with pytest.raises(GalileoError, match="ours"):
            await handle.ensure(timeout_s=START_S)


async def test_ensure_kills_no_process_that_is_not_recorded_as_the_holder(
    runtime_dir, idle_process, monkeypatch
):
    """The lock of an evaluator that ended is taken by another one, which starts."""
    monkeypatch.setattr(launcher, "HUNG_S", 0.1)
    runtime = RuntimeDir(runtime_dir)
    ended_lock = runtime.try_lock()
    runtime.record_holder(ended_lock, idle_process.pid)
    os.close(ended_lock)
    lock = runtime.try_lock()
    (runtime_dir / "evaluator.sock").touch()
    async with EvaluatorClient(EvaluatorOptions(runtime_dir)) as handle:
        with pytest.raises(Unavailable):
            await handle.ensure(timeout_s=0.8)
    assert idle_process.poll() is None
    os.close(lock)


@pytest.mark.slow
def test_evaluator_in_a_locked_directory_does_not_start(runtime_dir):
    lock = RuntimeDir(runtime_dir).try_lock()
    # In a process of its own: this one must not import PySpark's session.
    code = (
        "import sys; from pathlib import Path; from galileo.spark.evaluator import main; "
        "from galileo.spark.options import EvaluatorOptions; "
        "main(EvaluatorOptions(Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(runtime_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    os.close(lock)
    assert done.returncode != 0
    assert ConfigError.__name__ in done.stderr
    assert "runs already in" in done.stderr


def test_node_imports_no_pyspark():
    code = "import sys, galileo.spark.launcher; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
