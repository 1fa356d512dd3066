"""What our sessions ask of Spark: short jobs, little memory, nothing open to the network."""

from __future__ import annotations

from pathlib import Path

from galileo.spark.options import SparkOptions

_LOOPBACK = "127.0.0.1"
_RETAINED = "20"

_ALWAYS = {
    "spark.app.name": "galileo-evaluator",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.python.worker.reuse": "true",
    # Saves 40 ms a job against TCP with its authentication.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.maxResultSize": "256m",
    # Thousands of small jobs: what Spark remembers of each must not fill the heap.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": _RETAINED,
    "spark.ui.retainedStages": _RETAINED,
    "spark.ui.retainedTasks": "200",
    "spark.ui.retainedDeadExecutors": "5",
    "spark.sql.ui.retainedExecutions": _RETAINED,
}

_EMBEDDED = {
    "spark.driver.host": _LOOPBACK,
    "spark.driver.bindAddress": _LOOPBACK,
    # Other users of this host could else talk to the ports that Spark opens even here.
    "spark.authenticate": "true",
}

# Rotates, because an evaluator may live for months.
LOG_CONFIG = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {path}
appender.file.filePattern = {path}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 4MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
"""


def settings(options: SparkOptions, *, work_dir: Path, socket_dir: Path | None) -> dict[str, str]:
    """Spark's settings for a session that is not behind Spark Connect.

    Args:
        options: where jobs run.
        work_dir: of this host.
        socket_dir: for the sockets of Python workers, with a short path; None leaves it to
            the hosts of the cluster, which do not have our directories.
    """
    chosen = {**_ALWAYS, "spark.master": options.master, "spark.pyspark.python": options.python}
    chosen["spark.sql.warehouse.dir"] = str(work_dir / "warehouse")
    if options.embedded:
        chosen |= {**_EMBEDDED, "spark.local.dir": str(work_dir)}
    if socket_dir is not None:
        chosen["spark.python.unix.domain.socket.dir"] = str(socket_dir)
    if options.driver_host:
        chosen["spark.driver.host"] = options.driver_host
    return {**chosen, **options.settings}
