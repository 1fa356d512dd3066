"""Options of the evaluator, and the settings of its session that follow from them.

The settings are for short jobs, little memory and few open ports. Does not import PySpark, since
nodes import it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from galileo.errors import ConfigError
from galileo.tracing import NO_TRACING, TracingOptions
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles, read_secret

HEAP_MIN_MB = 450
HEAP_DEFAULT_MB = 512
CORES_DEFAULT = 2

_LOCAL = re.compile(r"local(\[(\d+|\*)\])?")
_HOST = r"(\[[\da-fA-F:.]+\]|[^\s,/:\[\]]+):\d+"
_CLUSTER = re.compile(rf"spark://{_HOST}(,{_HOST})*")
_SETTING = re.compile(r"spark(\.\w[\w-]*)+")

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

# Settings of Spark that a key of `SparkOptions` sets.
_KEY_OF_SETTING = {
    "spark.master": "master",
    "spark.cores.max": "cores_max",
    "spark.driver.host": "driver_host",
    "spark.pyspark.python": "python",
    "spark.authenticate.secret": "secret_file",
}


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The session in which jobs run: the section [spark] of a node's configuration.

    Attributes:
        master: "local[2]" (embedded, two cores) or "spark://host:port" (a standalone cluster, or
            several masters of one, separated by commas).
        heap_mb: upper bound of the heap of the local JVM, and of each executor of a cluster; Spark
            refuses less than 450.
        cores_max: cores of a standalone cluster that the session takes.
        driver_host: address of this host at which the executors of a cluster reach the session; ""
            for the address from which this host reaches the master.
        python: interpreter of the workers; it must exist on each host of a cluster. "" for that
            of this process.
        tasks: of one job; 0 means one per core of the session.
        secret_file: file of the secret that a standalone cluster shares with its applications,
            readable by its owner only; "" for no authentication.
        settings: Spark settings that override the defaults.
    """

    master: str = "local[2]"
    heap_mb: int = HEAP_DEFAULT_MB
    cores_max: int = CORES_DEFAULT
    driver_host: str = ""
    python: str = ""
    tasks: int = 0
    secret_file: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not any(form.fullmatch(self.master) for form in (_LOCAL, _CLUSTER)):
            raise ConfigError(
                f"expected spark.master as 'local[2]' or 'spark://host:7077', got {self.master!r}",
                parameter="master",
            )
        if self.tasks < 0:
            raise ConfigError(
                f"expected spark.tasks to be 0 or more, got {self.tasks}", parameter="tasks"
            )
        if self.cores_max < 1:
            raise ConfigError(
                f"expected spark.cores_max to be 1 or more, got {self.cores_max}",
                parameter="cores_max",
            )
        if self.heap_mb < HEAP_MIN_MB:
            raise ConfigError(
                f"expected spark.heap_mb to be at least {HEAP_MIN_MB}, got {self.heap_mb}",
                parameter="heap_mb",
                bound=HEAP_MIN_MB,
            )
        for name in self.settings:
            _check_setting(name)

    @property
    def standalone(self) -> bool:
        """Whether jobs run on a standalone cluster; else in an embedded session."""
        return self.master.startswith("spark://")

    @property
    def interpreter(self) -> str:
        """The Python of the workers."""
        return self.python or sys.executable

    @property
    def master_addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each master of a standalone cluster."""
        hosts = self.master.removeprefix("spark://").split(",") if self.standalone else ()
        parts = (host.rpartition(":") for host in hosts)
        return tuple((name.strip("[]"), int(port)) for name, _, port in parts)

    def read_secret(self) -> str:
        """The secret of the Spark cluster; "" without one.

        Raises:
            ConfigError: the file has none, or others can read it.
        """
        if not self.secret_file:
            return ""
        return read_secret(self.secret_file, name="spark.secret_file")


def _check_setting(name: str) -> None:
    if name in _KEY_OF_SETTING:
        raise ConfigError(
            f"expected spark.settings without {name}, which the key spark.{_KEY_OF_SETTING[name]} "
            "sets; use that key",
            parameter="settings",
        )
    if not _SETTING.fullmatch(name):
        raise ConfigError(
            "expected names of Spark in spark.settings, such as 'spark.executor.memory', got "
            f"{name!r}",
            parameter="settings",
        )


@dataclass(frozen=True, slots=True)
class EvaluatorOptions:
    """Options of the evaluator of a host.

    Attributes:
        runtime_dir: coordinators with the same directory share the evaluator.
        spark: options of its session.
        idle_timeout_s: it ends after this time without a call; callers ping more often.
        scan_timeout_s: a slower node does not take part in a cycle.
        sampler_timeout_s: a slower sampler fails.
        keys: credentials with which workers authenticate as nodes; on a Spark cluster, the same
            paths on each host.
        tracing: where it and its workers export spans.
        log_format, log_level: see `galileo.logging_setup`.
    """

    runtime_dir: Path
    spark: SparkOptions = field(default_factory=SparkOptions)
    idle_timeout_s: float = 60.0
    scan_timeout_s: float = 5.0
    sampler_timeout_s: float = 2.0
    keys: TlsFiles = NO_TLS_FILES
    tracing: TracingOptions = NO_TRACING
    log_format: str = "text"
    log_level: str = "info"

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @staticmethod
    def from_json(text: str) -> EvaluatorOptions:
        """Parses the text of `to_json`. Raises ConfigError for any other text."""
        try:
            raw = json.loads(text)
            spark = SparkOptions(**raw.pop("spark"))
            keys = TlsFiles(**raw.pop("keys"))
            tracing = TracingOptions(**raw.pop("tracing"))
            runtime_dir = Path(raw.pop("runtime_dir"))
            return EvaluatorOptions(runtime_dir, spark, keys=keys, tracing=tracing, **raw)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"expected options as from `EvaluatorOptions.to_json`: {error}"
            ) from error


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
