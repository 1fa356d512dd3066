"""What an analyst starts with: a session of Spark that knows Galileo, and reads in one call."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

from galileo.query.builder import QueryLike, query_text
from galileo.spark.gateway import Gateway, JvmOptions, environment_variables, launch
from galileo.spark.session import SOCKET_DIR_CHARACTERS_MAX, created, jvm_options
from galileo.spark.source.conditions import spark_conditions
from galileo.spark.source.options import OBSERVATIONS
from galileo.spark.source.source import NAME, GalileoSource, UnpushingSource

HEAP_MB = 2_048
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"
_LOOPBACK = "127.0.0.1"

_LOCAL = {
    "spark.driver.host": _LOOPBACK,
    "spark.driver.bindAddress": _LOOPBACK,
    # Other users of this host could else talk to the ports that Spark opens.
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

_gateways: list[Gateway] = []
_work_dirs: list[Path] = []


def start_session(
    master: str = "local[*]",
    *,
    heap_mb: int = HEAP_MB,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session that knows `format("galileo")`; no Java has to be installed, nothing downloaded.

    Ends with `stop()` or with this process. One process has one session of this kind.

    Args:
        master: "local[4]" (four cores of this machine), "spark://host:7077" (a cluster), or
            "sc://host:15002" (Spark Connect).
        heap_mb: upper bound of the heap of the JVM on this machine.
        settings: further settings of Spark, which win over ours.

    Raises:
        ConfigError: there is no Java, or Spark refuses its settings.
    """
    given = dict(settings or {})
    builder = SparkSession.builder
    if master.startswith("sc://"):
        session = created(builder.remote(master), given)
    else:
        session = _on_own_jvm(builder.master(master), master, heap_mb=heap_mb, settings=given)
    register(session)
    return session


def register(session: SparkSession, *, pushdown: bool = True) -> None:
    """Makes `format("galileo")` known to a session, whoever started it.

    Args:
        session: classic or of Spark Connect.
        pushdown: has Spark hand filters down to Python data sources, which it does not by itself.
            False leaves the session's setting alone; filters are then checked by Spark only.
    """
    kind: type[DataSource] = GalileoSource if pushdown else UnpushingSource
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
    """A DataFrame of what a dataset holds now.

    What of the query Spark can say, it is told as filters, too: its plans then show them as pushed.

    Args:
        session: that knows the data source.
        address: "host:port" of a node, or several, separated by commas.
        dataset: its name.
        query: CQL2 text, or a condition such as `galileo.f.temperature > 290`.
        columns: of the answer; only these are read and sent. All where none is named.
        what: "observations" or "labels".
        options: further ones of the data source.
    """
    reader = session.read.format(NAME).options(address=address, dataset=dataset, what=what)
    if columns:
        reader = reader.option("columns", ",".join(columns))
    found = reader.options(query=query_text(query), **options).load()
    for condition in spark_conditions(query_text(query), found):
        found = found.where(condition)
    return found


def _on_own_jvm(
    builder: SparkSession.Builder, master: str, *, heap_mb: int, settings: dict[str, str]
) -> SparkSession:
    gateway = _gateway(master, heap_mb=heap_mb)
    ours = {**_ALWAYS, "spark.pyspark.python": sys.executable}
    if master.startswith("local"):
        ours |= {**_LOCAL, **_sockets(_work_dirs[0])}
    with environment_variables(gateway.variables(sys.executable)):
        return created(builder, {**ours, **settings})


def _sockets(work_dir: Path) -> dict[str, str]:
    """Python workers talk through files, which costs less than TCP, where an address has room."""
    if len(os.fsencode(work_dir)) > SOCKET_DIR_CHARACTERS_MAX:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(work_dir),
    }


def _gateway(master: str, *, heap_mb: int) -> Gateway:
    """The JVM of this process; PySpark keeps to the first one that it was given."""
    if not _gateways or not _gateways[0].alive():
        work_dir = Path(tempfile.mkdtemp(prefix="galileo-"))
        gateway = launch(_jvm_options(work_dir, master, heap_mb=heap_mb))
        _gateways[:], _work_dirs[:] = [gateway], [work_dir]
        atexit.register(_end, gateway, work_dir)
    return _gateways[0]


def _end(gateway: Gateway, work_dir: Path) -> None:
    session = SparkSession.getActiveSession()
    # Before its JVM goes, or what PySpark keeps open to it would complain.
    if session is not None and gateway.alive():
        session.stop()
    gateway.close()
    shutil.rmtree(work_dir, ignore_errors=True)


def _jvm_options(work_dir: Path, master: str, *, heap_mb: int) -> JvmOptions:
    options = jvm_options(
        work_dir,
        python=sys.executable,
        heap_mb=heap_mb,
        is_local=master.startswith("local"),
    )
    # It works on large data for long, which both compilers are for.
    flags = (f"-Dspark.local.dir={work_dir}", f"-Dspark.sql.warehouse.dir={work_dir}/warehouse")
    return replace(options, flags=flags)
