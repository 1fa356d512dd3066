"""The evaluator: the process of a host that owns the Spark session and runs processing cycles.

Coordinators of the host share it. Order of birth: lock, JVM, session, warm-up, gRPC server,
runtime file; so whoever finds the file finds a warm evaluator, and nothing forks where gRPC lives.
It ends when nobody called for a while, and with it the JVM and the Python workers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import logging
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import grpc
import grpc.aio

from galileo import spans
from galileo.clock import Clock, SystemClock
from galileo.errors import ConfigError, GalileoError
from galileo.spark.job_queue import JobQueue
from galileo.spark.jobs import Engine, EngineLost, Jobs
from galileo.spark.options import EvaluatorOptions
from galileo.spark.runtime import TOKEN_KEY, Record, RuntimeDir
from galileo.spark.session import open_engine
from galileo.spark.tick import TickLimits, work_of
from galileo.wire.channel import server_options
from galileo.wire.context_propagation import begin_request, outgoing_metadata
from galileo.wire.internal.v1 import evaluator_pb2, evaluator_pb2_grpc
from galileo.wire.status import METADATA_KEY, code_of, error_to_pb, status_text

EXIT_OK = 0
EXIT_LOST = 3
_LOOK_S = 0.5
_GRACE_S = 1.0
_THREADS = 2  # The job, and what calls it off.

Context: TypeAlias = grpc.aio.ServicerContext
log = logging.getLogger(__name__)


class Lease:
    """How long the evaluator may live without a call."""

    def __init__(self, clock: Clock, *, idle_s: float) -> None:
        self._clock = clock
        self._idle_s = idle_s
        self._last = clock.monotonic()

    def renew(self) -> None:
        self._last = self._clock.monotonic()

    @property
    def expired(self) -> bool:
        return self._clock.monotonic() - self._last > self._idle_s


class EvaluatorService(evaluator_pb2_grpc.EvaluatorServicer):
    """Decode, one call, encode."""

    def __init__(self, queue: JobQueue, lease: Lease, jobs: Jobs) -> None:
        self._queue = queue
        self._jobs = jobs
        self._lease = lease

    async def Evaluate(  # noqa: N802
        self, request: evaluator_pb2.EvaluateRequest, context: Context
    ) -> evaluator_pb2.EvaluateReply:
        self._lease.renew()
        parent = begin_request(dict(context.invocation_metadata() or ()))
        try:
            with spans.inside(parent), spans.child("evaluate", kind="server"):
                answer = await self._queue.submit(work_of(request, outgoing_metadata()))
        except GalileoError as error:
            packed = error_to_pb(error).SerializeToString()
            await context.abort(code_of(error), status_text(error), ((METADATA_KEY, packed),))
        log.debug("a job of %d datasets took %.3f s", len(request.groups), answer.job_s)
        return evaluator_pb2.EvaluateReply(answers=answer.outcomes, job_s=answer.job_s)

    async def Ping(  # noqa: N802
        self, request: evaluator_pb2.PingRequest, context: Context
    ) -> evaluator_pb2.PingReply:
        self._lease.renew()
        return evaluator_pb2.PingReply(
            pid=os.getpid(),
            warm=True,
            jobs=self._jobs.evaluations,
            empty_jobs=self._jobs.empty_jobs,
        )


class TokenGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets through only who could read the runtime file."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        metadata = dict(handler_call_details.invocation_metadata)
        if hmac.compare_digest(str(metadata.get(TOKEN_KEY, "")).encode(), self._token):
            return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(request: Any, context: Context) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "expected the token of the runtime file")


def main(options: EvaluatorOptions, *, lock: int | None = None) -> int:
    """Runs the evaluator of `options.runtime_dir` until its lease ends; returns an exit code.

    Args:
        options: how.
        lock: a descriptor on which the runtime directory's lock is held already.

    Raises:
        ConfigError: another evaluator lives there, or Spark does not start.
    """
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    runtime = RuntimeDir(options.runtime_dir)
    held = runtime.try_lock() if lock is None else lock
    if held is None:
        raise ConfigError(f"an evaluator of {runtime.path} is running already")
    try:
        runtime.note_holder(held, os.getpid())
        runtime.withdraw()
        shutil.rmtree(runtime.work_dir, ignore_errors=True)
        runtime.work_dir.mkdir(mode=0o700)
        return _run(options, runtime)
    finally:
        os.close(held)


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
            runtime.withdraw(pid=os.getpid())
            threads.shutdown(wait=False, cancel_futures=True)
    return EXIT_OK


async def _serve(
    options: EvaluatorOptions, runtime: RuntimeDir, engine: Engine, threads: ThreadPoolExecutor
) -> None:
    limits = TickLimits(
        options.scan_timeout_s,
        options.sampler_timeout_s,
        keys=options.keys,
        tracing=options.tracing,
    )
    jobs = Jobs(engine, limits)
    await asyncio.get_running_loop().run_in_executor(threads, jobs.warm_up)
    queue = JobQueue(
        jobs, threads=threads, requests_max=options.queue_max, keep_warm_s=options.keep_warm_s
    )
    lease = Lease(SystemClock(), idle_s=options.idle_timeout_s)
    server, record = await _start_server(EvaluatorService(queue, lease, jobs))
    runtime.publish(record)
    log.info("warm, and listening on %s", record.address)
    try:
        await _first_of(queue.serve(), _until_over(queue, lease, engine), _until_told())
    finally:
        runtime.withdraw(pid=os.getpid())
        await server.stop(_GRACE_S)


async def _start_server(service: EvaluatorService) -> tuple[grpc.aio.Server, Record]:
    draft = Record.of_this_process("")
    server = grpc.aio.server(interceptors=[TokenGuard(draft.token)], options=server_options())
    evaluator_pb2_grpc.add_EvaluatorServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, dataclasses.replace(draft, address=f"127.0.0.1:{port}")


async def _until_over(queue: JobQueue, lease: Lease, engine: Engine) -> None:
    """Returns when the lease ends. Raises EngineLost when the JVM does."""
    while not (lease.expired and queue.idle):
        if not engine.alive():
            raise EngineLost("Spark's JVM ended")
        await asyncio.sleep(_LOOK_S)
    log.info("nobody called for a while: the evaluator ends")


async def _until_told() -> None:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    await told.wait()


async def _first_of(*routines: Coroutine[Any, Any, None]) -> None:
    """Waits for the first to end, ends the others, and raises what the first one raised."""
    tasks = [asyncio.create_task(routine) for routine in routines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
