"""Settings of the evaluator's sessions: for short jobs, little memory, few open ports."""

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
    # Saves 40 ms a job compared with TCP and authentication.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.maxResultSize": "256m",
    # With thousands of small jobs, what Spark retains of them would fill the heap.
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
    # Otherwise other users of this host could use the ports that Spark opens even here.
    "spark.authenticate": "true",
}

_STANDALONE = {
    # Executors only copy bytes. With both compilers, the first thousand jobs take twice as long.
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # A task that is not local is better than one that waits.
    "spark.locality.wait": "0s",
    # An executor on a host that was lost is noticed within half a minute, not after two.
    "spark.executor.heartbeatInterval": "5s",
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "5s",
    # An executor whose evaluator was lost with its host ends after a minute, not after ten.
    "spark.executor.heartbeat.maxFailures": "12",
}

_AUTHENTICATED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
    "spark.io.encryption.enabled": "true",
}

# Rotates, since an evaluator can run for months.
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


def settings(
    options: SparkOptions, *, work_dir: Path, socket_dir: Path | None, address: str = ""
) -> dict[str, str]:
    """The settings of a session.

    Args:
        options: of the session.
        work_dir: for files on this host.
        socket_dir: for the sockets of Python workers, with a short path; None for the default,
            since the hosts of a cluster do not have the directories of this host.
        address: of this host towards the cluster; where `options.driver_host` names none, the
            session listens there and nowhere else.

    Raises:
        ConfigError: the secret of the cluster cannot be read.
    """
    result = {
        **_ALWAYS,
        "spark.master": options.master,
        "spark.pyspark.python": options.interpreter,
        "spark.sql.warehouse.dir": str(work_dir / "warehouse"),
    }
    if options.standalone:
        result |= _of_standalone(options, address=address)
    else:
        result |= {**_EMBEDDED, "spark.local.dir": str(work_dir)}
    if socket_dir is not None:
        result["spark.python.unix.domain.socket.dir"] = str(socket_dir)
    return {**result, **options.settings}


def _of_standalone(options: SparkOptions, *, address: str) -> dict[str, str]:
    host = options.driver_host or address
    result = {
        **_STANDALONE,
        "spark.cores.max": str(options.cores_max),
        "spark.executor.memory": f"{options.heap_mb}m",
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
    }
    if secret := options.read_secret():
        result |= {**_AUTHENTICATED, "spark.authenticate.secret": secret}
    return result
