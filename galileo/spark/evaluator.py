"""The evaluator: the process of a host that owns the Spark session and runs processing cycles.

The coordinators of a host share it. It starts in this order: lock, JVM, session, warm-up, gRPC
server, socket. So the evaluator behind a socket is warm, and no process forks after gRPC started.
It ends after a time without calls, and with it the JVM and the Python workers.

A node starts it as `python -m galileo.spark.evaluator LOCK`, with `EvaluatorOptions` as JSON on
standard input, since they can hold secrets and arguments are visible to all users. LOCK is the
inherited descriptor of the locked file of the runtime directory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeAlias

import grpc
import grpc.aio

from galileo import spans
from galileo.clock import Clock, SystemClock
from galileo.cycle import Answers, CycleRequest
from galileo.errors import ConfigError, GalileoError
from galileo.logging_setup import start_logging
from galileo.spark.job_queue import EngineLost, JobQueue, JobRunner
from galileo.spark.launcher import EVALUATOR, JobCounts
from galileo.spark.options import EvaluatorOptions, SparkOptions
from galileo.spark.runtime_dir import RuntimeDir
from galileo.spark.session import SparkEngine, open_engine
from galileo.tracing import tracing
from galileo.wire.channel import server_options
from galileo.wire.context_propagation import begin_request, outgoing_metadata
from galileo.wire.status import METADATA_KEY, code_of, error_to_pb, status_text
from galileo.wire.typed_service import TypedCall

EXIT_OK = 0
EXIT_REFUSED = 2
EXIT_LOST = 3
_CHECK_INTERVAL_S = 0.5
_GRACE_S = 1.0
_THREADS = 3  # One runs the job, one cancels it, one examines the session.
_HUNG_S = 30.0

Context: TypeAlias = grpc.aio.ServicerContext
log = logging.getLogger("galileo.spark.evaluator")  # `__name__` is `__main__` in its process.


class EvaluatorService:
    """Answers the calls of `galileo.spark.launcher.Evaluator`, each of which renews its lease.

    Args:
        queue: of requests.
        jobs: that it runs.
        idle_s: the lease expires when there is no call for this time.
        clock: monotonic clock.
    """

    def __init__(
        self, queue: JobQueue, jobs: JobRunner, *, idle_s: float, clock: Clock | None = None
    ) -> None:
        self._queue = queue
        self._jobs = jobs
        self._idle_s = idle_s
        self._clock = clock or SystemClock()
        self._called_at = self._clock.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the lease has expired, and no job needs the evaluator either."""
        return self._queue.idle and self._clock.monotonic() - self._called_at > self._idle_s

    async def evaluate(self, requests: Sequence[CycleRequest]) -> Answers:
        """Runs the requests in the next job; errors as `JobQueue.submit`."""
        self._called_at = self._clock.monotonic()
        for request in requests:
            request.check()
        origin = outgoing_metadata()
        return await self._queue.submit(tuple(replace(one, origin=origin) for one in requests))

    async def ping(self) -> JobCounts:
        self._called_at = self._clock.monotonic()
        return JobCounts(self._jobs.evaluations, self._jobs.empty_jobs)


def _handler(call: TypedCall[..., Any], method: Callable[..., Any]) -> Any:
    """Answers a call with a method, in the request and the span of the caller."""

    async def answer(request: bytes, context: Context) -> bytes:
        parent = begin_request(dict(context.invocation_metadata() or ()))
        try:
            with spans.inside(parent), spans.child(call.name, kind="server"):
                return call.encode_answer(await method(*call.decode(request)))
        except GalileoError as error:
            packed = error_to_pb(error).SerializeToString()
            await context.abort(code_of(error), status_text(error), ((METADATA_KEY, packed),))
            raise  # Not reached: abort raises.

    return grpc.unary_unary_rpc_method_handler(answer)


def main(options: EvaluatorOptions, *, lock: int | None = None) -> int:
    """Runs the evaluator of `options.runtime_dir` until its lease ends; returns an exit code.

    Args:
        options: of the evaluator.
        lock: a descriptor that holds the lock of the runtime directory already.

    Raises:
        ConfigError: another evaluator uses the directory, or Spark does not start.
    """
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.umask(0o077)  # Only its user may connect to the socket.
    runtime = RuntimeDir(options.runtime_dir)
    descriptor = runtime.try_lock() if lock is None else lock
    if descriptor is None:
        raise ConfigError(f"an evaluator runs already in {runtime.path}")
    try:
        runtime.record_holder(descriptor, os.getpid())
        runtime.withdraw()
        shutil.rmtree(runtime.work_dir, ignore_errors=True)
        runtime.work_dir.mkdir(mode=0o700)
        return _run(options, runtime)
    finally:
        os.close(descriptor)


def _run(options: EvaluatorOptions, runtime: RuntimeDir) -> int:
    with open_engine(options.spark, work_dir=runtime.work_dir) as engine:
        log.info("the session is up, the JVM is process %s", engine.jvm_pid)
        # Not a `with`: it would wait for a job that only the end of the JVM ends.
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="spark")
        try:
            asyncio.run(_serve(options, runtime, engine, threads))
        except EngineLost as error:
            log.error("the evaluator ends: %s", error)
            return EXIT_LOST
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
    return EXIT_OK


async def _serve(
    options: EvaluatorOptions, runtime: RuntimeDir, engine: SparkEngine, threads: ThreadPoolExecutor
) -> None:
    jobs = JobRunner(engine, options)
    await _warm_up(jobs, engine, threads, spark=options.spark)
    queue = JobQueue(jobs, threads=threads)
    service = EvaluatorService(queue, jobs, idle_s=options.idle_timeout_s)
    directory = runtime.open()
    server = grpc.aio.server(options=server_options())
    handlers = {
        name: _handler(call, getattr(service, name)) for name, call in EVALUATOR.calls.items()
    }
    server.add_registered_method_handlers(EVALUATOR.full_name, handlers)
    server.add_insecure_port(runtime.address(directory))
    await server.start()
    log.info("warm, and listening in %s", runtime.path)
    try:
        await _first_of(
            queue.serve(),
            _until_over(service),
            _until_lost(engine, threads),
            _until_signal(),
        )
    finally:
        await server.stop(_GRACE_S)  # Deletes the socket.
        os.close(directory)


async def _warm_up(
    jobs: JobRunner, engine: SparkEngine, threads: ThreadPoolExecutor, *, spark: SparkOptions
) -> None:
    """Raises EngineLost if the first jobs fail, or the session is lost before they end."""

    async def run_jobs() -> None:
        await asyncio.get_running_loop().run_in_executor(threads, jobs.warm_up)

    try:
        await _first_of(run_jobs(), _until_lost(engine, threads))
    except EngineLost as error:
        if not spark.standalone:
            raise
        raise EngineLost(
            f"{error}. The workers of {spark.master} need a Python with galileo of this version at "
            f"spark.python ({spark.interpreter})"
        ) from error


async def _until_over(service: EvaluatorService) -> None:
    while True:
        if service.is_over:
            log.info("the evaluator ends: no call within its lease")
            return
        await asyncio.sleep(_CHECK_INTERVAL_S)


async def _until_lost(engine: SparkEngine, threads: ThreadPoolExecutor) -> None:
    """Raises EngineLost when the session is lost, or its JVM hangs."""
    while True:
        look = asyncio.get_running_loop().run_in_executor(threads, engine.failure)
        try:
            failure = await asyncio.wait_for(look, _HUNG_S)
        except TimeoutError:
            failure = f"Spark's JVM has not answered for {_HUNG_S:g} s"
        if failure:
            raise EngineLost(failure)
        await asyncio.sleep(_CHECK_INTERVAL_S)


async def _until_signal() -> None:
    received = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, received.set)
    await received.wait()


async def _first_of(*routines: Coroutine[Any, Any, None]) -> None:
    """Waits for the first to end, cancels the others, and raises the error of the first."""
    tasks = [asyncio.create_task(routine) for routine in routines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _start() -> int:
    start_logging()
    try:
        options = EvaluatorOptions.from_json(sys.stdin.read())
        start_logging(options.log_format, level=options.log_level)
        with tracing(options.tracing, service="galileo-evaluator"):
            return main(options, lock=int(sys.argv[1]))
    except GalileoError as error:
        log.error("%s", error.message)
        return EXIT_REFUSED


if __name__ == "__main__":
    sys.exit(_start())
