"""The Spark session: embedded, or on a standalone cluster.

The only module of the evaluator that imports PySpark.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from galileo.clock import SystemClock
from galileo.cycle import CycleAnswer
from galileo.errors import ConfigError, Unavailable
from galileo.spark.gateway import Gateway, JvmOptions, environment_variables, launch
from galileo.spark.java import find_java, summarise_error
from galileo.spark.job import Job
from galileo.spark.options import SparkOptions
from galileo.spark.settings import LOG_CONFIG, settings
from galileo.spark.standalone import FIRST_EXECUTOR_S, RETRY_S, ExecutorWatch, address_towards
from galileo.spark.task import JobTask, Shared

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

    def __init__(self, session: SparkSession, options: SparkOptions, *, gateway: Gateway) -> None:
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
                    self._numbers[job.tasks].mapPartitions(JobTask(pickled)).collect()
                )
        finally:
            self._context.removeJobTag(tag)
        return answers

    def cancel(self, tag: str) -> None:
        """Cancels the job of this tag; its `run` raises."""
        self._context.cancelJobsWithTag(tag)

    @contextmanager
    def _broadcast(self, pickled: bytes) -> Iterator[bytes | Shared]:
        if len(pickled) <= INLINE_BYTES_MAX:
            yield pickled
            return
        shared = self._context.broadcast(pickled)
        try:
            yield shared
        finally:
            shared.destroy()


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
        jvm = jvm_options(
            work_dir,
            python=options.interpreter,
            heap_mb=options.heap_mb,
            is_local=not options.standalone,
            GRPC_ENABLE_FORK_SUPPORT="0",
        )
        # On a cluster, where sockets lie in each process's own directory for temporary files.
        gateway = launch(replace(jvm, work_dir=sockets))
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


def _attach(gateway: Gateway, session_settings: dict[str, str]) -> SparkSession:
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


def jvm_options(
    work_dir: Path, *, python: str, heap_mb: int, is_local: bool, **environment: str
) -> JvmOptions:
    """Options for the JVM of a session.

    Args:
        work_dir: for its files.
        python: interpreter of its workers.
        heap_mb: upper bound of its heap.
        is_local: whether all executors run on this machine.
        environment: further variables.
    """
    spark_home = Path(pyspark.__file__).parent
    log_config = work_dir / "log4j2.properties"
    log_config.write_text(LOG_CONFIG.format(path=work_dir / "spark.log"))
    ours = {"SPARK_HOME": str(spark_home), "PYSPARK_PYTHON": python}
    if is_local:
        ours["SPARK_LOCAL_IP"] = "127.0.0.1"
    return JvmOptions(
        java=find_java(os.environ),
        spark_home=spark_home,
        work_dir=work_dir,
        heap_mb=heap_mb,
        log_config=log_config,
        environment={**os.environ, **ours, **environment},
    )


def _socket_dir(work_dir: Path, stack: ExitStack) -> Path:
    """The work directory, or a temporary one if its path is too long for sockets."""
    if len(os.fsencode(work_dir)) <= SOCKET_DIR_CHARACTERS_MAX:
        return work_dir
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="galileo-")))
