"""The Spark session: embedded, on a cluster, or behind Spark Connect.

The only module that imports PySpark. The settings and their reasons come from measurements of
short jobs; `docs/spark.md` has them.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from galileo.errors import ConfigError
from galileo.spark.failures import brief
from galileo.spark.gateway import Gateway, JvmOptions, environment_variables, launch
from galileo.spark.java import find_java
from galileo.spark.options import REMOTE_TASKS_DEFAULT, SparkOptions
from galileo.spark.settings import LOG_CONFIG, settings

STOP_TIMEOUT_S = 5.0
_SOCKET_DIR_CHARACTERS_MAX = 60

Batches = Iterator[pa.RecordBatch]
TaskFunction = Callable[[Batches], Batches]


class SparkEngine:
    """One session that runs one job at a time.

    PySpark keeps the connection to its JVM for the life of the process, so a process opens one
    engine. `run` blocks; `cancel` is called meanwhile from another thread.
    """

    def __init__(self, session: SparkSession, *, gateway: Gateway | None, tasks: int) -> None:
        self._session = session
        self._gateway = gateway
        self.tasks = tasks
        if gateway is None:
            verbs = (session.addTag, session.removeTag, session.interruptTag)
        else:
            # A session with a JVM of its own takes interruptTag and does nothing.
            context = session.sparkContext
            verbs = (context.addJobTag, context.removeJobTag, context.cancelJobsWithTag)
        self._tag, self._untag, self._cancel = verbs

    @property
    def jvm_pid(self) -> int | None:
        return self._gateway.pid if self._gateway else None

    def alive(self) -> bool:
        return self._gateway is None or self._gateway.alive()

    def run(self, function: TaskFunction, *, row_schema: str, tag: str) -> pa.Table:
        """Runs one job of `tasks` tasks and returns what they yielded.

        Args:
            function: gets batches with one column of task numbers; travels by reference, so
                the workers must be able to import it.
            row_schema: of its batches, in Spark's words.
            tag: names the job for `cancel`; no comma.
        """
        numbers = self._session.range(0, self.tasks, 1, self.tasks)
        rows = numbers.mapInArrow(function, row_schema)
        self._tag(tag)
        try:
            return rows.toArrow()
        finally:
            self._untag(tag)

    def cancel(self, tag: str) -> None:
        """Ends the job of this tag; its `run` raises."""
        self._cancel(tag)


@contextmanager
def open_engine(options: SparkOptions, *, work_dir: Path) -> Iterator[SparkEngine]:
    """A session, stopped at the end.

    Args:
        options: where jobs run.
        work_dir: an empty directory for Spark's files.

    Raises:
        ConfigError: there is no Java, the JVM does not start, or Spark refuses its settings.
    """
    with ExitStack() as stack:
        if options.remote:
            session = _created(SparkSession.builder.remote(options.master))
            gateway, cores = None, REMOTE_TASKS_DEFAULT
        else:
            sockets = _socket_dir(work_dir, stack) if options.embedded else None
            gateway = launch(_jvm_options(options, work_dir))
            stack.callback(gateway.close)
            session = _attach(gateway, settings(options, work_dir=work_dir, socket_dir=sockets))
            cores = session.sparkContext.defaultParallelism
        stack.callback(_stop, session)
        yield SparkEngine(session, gateway=gateway, tasks=options.tasks or cores)


def _attach(gateway: Gateway, chosen: dict[str, str]) -> SparkSession:
    variables = {
        "PYSPARK_GATEWAY_PORT": str(gateway.port),
        "PYSPARK_GATEWAY_SECRET": gateway.secret,
        "PYSPARK_PYTHON": chosen["spark.pyspark.python"],
    }
    with environment_variables(variables):
        builder = SparkSession.builder
        for name, value in chosen.items():
            builder = builder.config(name, value)
        return _created(builder)


def _created(builder: SparkSession.Builder) -> SparkSession:
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise ConfigError(f"Spark refused to start a session: {brief(error)}") from error


def _stop(session: SparkSession) -> None:
    """Stops the session, or leaves it to the end of the JVM where a job or the JVM hangs."""
    stopping = threading.Thread(target=session.stop, name="session-stop", daemon=True)
    stopping.start()
    stopping.join(STOP_TIMEOUT_S)


def _jvm_options(options: SparkOptions, work_dir: Path) -> JvmOptions:
    spark_home = Path(pyspark.__file__).parent
    log_config = work_dir / "log4j2.properties"
    log_config.write_text(LOG_CONFIG.format(path=work_dir / "spark.log"))
    ours = {
        "SPARK_HOME": str(spark_home),
        "PYSPARK_PYTHON": options.python,
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }
    if options.embedded:
        ours["SPARK_LOCAL_IP"] = "127.0.0.1"
    return JvmOptions(
        java=find_java(os.environ),
        spark_home=spark_home,
        work_dir=work_dir,
        heap_mb=options.heap_mb,
        log_config=log_config,
        environment={**os.environ, **ours},
    )


def _socket_dir(work_dir: Path, stack: ExitStack) -> Path:
    """A directory whose path leaves room for a socket's name in the 108 bytes of an address."""
    if len(os.fsencode(work_dir)) <= _SOCKET_DIR_CHARACTERS_MAX:
        return work_dir
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="galileo-")))
