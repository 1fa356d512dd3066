"""The Spark session: embedded, or on a standalone cluster.

A session on a cluster is lost when it has no executor for some time. A master that restarts does
not know the applications of its predecessor: its workers end their executors, and the applications
get no new ones. Spark itself reports neither. Then the evaluator ends, and its successor registers
anew.

The only module of the evaluator that imports PySpark.
"""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
from pyspark import Broadcast
from pyspark.sql import SparkSession

from galileo.clock import Clock, SystemClock
from galileo.cycle import CycleAnswer
from galileo.errors import ConfigError, Unavailable
from galileo.spark.jvm import JvmOptions, JvmProcess, environment_variables, launch, summarise_error
from galileo.spark.options import SparkOptions, settings
from galileo.spark.task import Job, run_tasks

SPARK_HOME = Path(pyspark.__file__).parent
CONNECT_TIMEOUT_S = 3.0
FIRST_EXECUTOR_S = 45.0
"""Longest wait of a new session for its first executor."""
NO_EXECUTOR_S = 15.0
"""After this time without any executor a session is lost. The start of an executor takes less, also
on a busy host.
"""
RETRY_S = 1.0
STOP_TIMEOUT_S = 5.0
_POLL_S = 0.1
INLINE_BYTES_MAX = 512 << 10
"""Larger jobs are broadcast, and the broadcast is destroyed after the job: PySpark itself
broadcasts functions above 1 MB and never deletes the file of the broadcast.
"""
SOCKET_DIR_CHARACTERS_MAX = 60
"""Leaves room for the name of a socket in the 108 bytes of an address."""


class SparkEngine:
    """A session that runs one job at a time.

    PySpark keeps the connection to its JVM for the life of the process, so a process opens one
    engine. `run` blocks; call `cancel` from another thread.
    """

    def __init__(
        self, session: SparkSession, options: SparkOptions, *, gateway: JvmProcess
    ) -> None:
        self._context = session.sparkContext
        self._gateway = gateway
        self._tasks = options.tasks
        self._watch = ExecutorWatch(SystemClock()) if options.standalone else None
        self._numbers: dict[int, Any] = {}

    @property
    def jvm_pid(self) -> int:
        return self._gateway.pid

    @property
    def tasks(self) -> int:
        """Tasks of a job: as configured, else one for each core that the session has now."""
        return self._tasks or int(self._context.defaultParallelism)

    @property
    def executors(self) -> int:
        """Executors of a session on a cluster."""
        registered = self._context._jsc.sc().getExecutorMemoryStatus().size()
        return int(registered) - 1  # One is the driver itself.

    def failure(self) -> str:
        """Why the session is lost; "" while it is not. May block as long as the JVM hangs."""
        if not self._gateway.alive():
            return "Spark's JVM ended"
        try:
            if self._context._jsc.sc().isStopped():
                return "the Spark cluster ended the application"
            return self._watch.failure(self.executors) if self._watch else ""
        except Exception as error:
            return f"Spark's JVM does not answer: {summarise_error(error)}"

    def run(self, job: Job, *, tag: str) -> list[tuple[int, CycleAnswer]]:
        """Runs one job; returns the answers of its tasks, each with the number of its request.

        Args:
            job: is pickled by reference, so the workers must be able to import what it is made of.
            tag: names the job for `cancel`; no comma.
        """
        if job.tasks not in self._numbers:
            self._numbers = {job.tasks: self._context.parallelize(range(job.tasks), job.tasks)}
        self._context.addJobTag(tag)
        try:
            with self._broadcast(pickle.dumps(job)) as pickled:
                answers: list[tuple[int, CycleAnswer]] = (
                    self._numbers[job.tasks].mapPartitions(partial(run_tasks, pickled)).collect()
                )
        finally:
            self._context.removeJobTag(tag)
        return answers

    def cancel(self, tag: str) -> None:
        """Cancels the job of this tag; its `run` raises."""
        self._context.cancelJobsWithTag(tag)

    @contextmanager
    def _broadcast(self, pickled: bytes) -> Iterator[bytes | Broadcast[bytes]]:
        if len(pickled) <= INLINE_BYTES_MAX:
            yield pickled
            return
        shared = self._context.broadcast(pickled)
        try:
            yield shared
        finally:
            shared.destroy()


class ExecutorWatch:
    """Decides from the number of executors whether a session is lost."""

    def __init__(self, clock: Clock, *, timeout_s: float = NO_EXECUTOR_S) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._last = clock.monotonic()

    def failure(self, executors: int) -> str:
        """Why the session is lost; "" while it is not.

        Args:
            executors: that the session has now.
        """
        now = self._clock.monotonic()
        if executors:
            self._last = now
        if now - self._last <= self._timeout_s:
            return ""
        return (
            f"the Spark cluster gave no executor for {self._timeout_s:g} s: its master was "
            "restarted, or its workers ended"
        )


def address_towards(masters: Sequence[tuple[str, int]]) -> str:
    """The address of this host from which it reaches the first master that answers.

    Raises:
        Unavailable: none answers.
    """
    failures = []
    for host, port in masters:
        try:
            with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            failures.append(f"{host}:{port}: {error.strerror or error}")
    raise Unavailable(
        f"no master of the Spark cluster answers ({'; '.join(failures)}); start it, or correct "
        "spark.master. Queries are evaluated from where they stopped as soon as it answers",
        after_s=RETRY_S,
    )


@contextmanager
def open_engine(options: SparkOptions, *, work_dir: Path) -> Iterator[SparkEngine]:
    """Opens a session, and stops it at the end.

    Args:
        options: where jobs run.
        work_dir: an empty directory for Spark's files.

    Raises:
        ConfigError: there is no Java, the JVM does not start, or Spark refuses its settings.
        Unavailable: no master of the cluster answers, or it gives no executor in time.
    """
    with ExitStack() as stack:
        # First, since Spark itself would try for a minute.
        address = address_towards(options.master_addresses) if options.standalone else ""
        sockets = _socket_dir(work_dir, stack)
        jvm = JvmOptions(
            SPARK_HOME,
            work_dir,
            sockets,  # On a cluster, sockets lie in each process's directory for temporary files.
            python=options.interpreter,
            heap_mb=options.heap_mb,
            is_local=not options.standalone,
        )
        gateway = launch(jvm)
        stack.callback(gateway.close)
        session_settings = settings(
            options,
            work_dir=work_dir,
            socket_dir=None if options.standalone else sockets,
            address=address,
        )
        session = _attach(gateway, session_settings)
        stack.callback(_stop, session)
        engine = SparkEngine(session, options, gateway=gateway)
        if options.standalone:
            _await_executor(engine, options)
        yield engine


def _await_executor(engine: SparkEngine, options: SparkOptions) -> None:
    """Waits for the first executor, so that the first job has tasks for the cores there are."""
    deadline = time.monotonic() + FIRST_EXECUTOR_S
    while not engine.executors:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the Spark cluster {options.master} gave no executor within "
                f"{FIRST_EXECUTOR_S:g} s. Either other applications have its cores: lower "
                "spark.cores_max on the hosts that share it, or add workers. Or its workers have "
                f"less than {options.heap_mb} MB free (spark.heap_mb), or cannot reach this host "
                "(spark.driver_host)",
                after_s=RETRY_S,
            )
        time.sleep(_POLL_S)


def _attach(gateway: JvmProcess, session_settings: dict[str, str]) -> SparkSession:
    with environment_variables(gateway.variables(session_settings["spark.pyspark.python"])):
        return create_session(SparkSession.builder, session_settings)


def create_session(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession:
    """Builds a session. Raises ConfigError if Spark refuses the settings."""
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise ConfigError(f"Spark refused to start a session: {summarise_error(error)}") from error


def _stop(session: SparkSession) -> None:
    """Stops the session; gives up after a timeout, since the JVM ends anyway."""
    stopping = threading.Thread(target=session.stop, name="session-stop", daemon=True)
    stopping.start()
    stopping.join(STOP_TIMEOUT_S)


def _socket_dir(work_dir: Path, stack: ExitStack) -> Path:
    """The work directory, or a temporary one if its path is too long for sockets."""
    if len(os.fsencode(work_dir)) <= SOCKET_DIR_CHARACTERS_MAX:
        return work_dir
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="galileo-")))
