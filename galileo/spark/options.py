"""Options of Spark and the evaluator. Does not import PySpark, since nodes import it."""

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
_STANDALONE = re.compile(rf"spark://{_HOST}(,{_HOST})*")
_SETTING = re.compile(r"spark(\.\w[\w-]*)+")

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
        if not any(form.fullmatch(self.master) for form in (_LOCAL, _STANDALONE)):
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
        keep_warm_s: interval of empty jobs of an idle session, since Spark ends Python workers
            that are idle for 60 s; 0 for none.
        queue_max: requests that can wait for the running job.
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
    keep_warm_s: float = 45.0
    queue_max: int = 64
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
