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
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles

HEAP_MIN_MB = 450
HEAP_DEFAULT_MB = 512
REMOTE_TASKS_DEFAULT = 2

_LOCAL = re.compile(r"local(\[(\d+|\*)\])?")


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The session in which jobs run.

    Attributes:
        master: "local[2]" (embedded, two cores), "spark://host:port" (a cluster) or
            "sc://host:port" (Spark Connect, which needs the package `zstandard`).
        tasks: of one job; 0 means one per core of the session, two with Spark Connect.
        heap_mb: upper bound of the local JVM's heap; Spark refuses less than 450.
        driver_host: name of this host for the executors of a cluster.
        python: interpreter of the workers; it must exist on each host of a cluster.
        settings: Spark settings that override the defaults.
    """

    master: str = "local[2]"
    tasks: int = 0
    heap_mb: int = HEAP_DEFAULT_MB
    driver_host: str = ""
    python: str = sys.executable
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (_LOCAL.fullmatch(self.master) or self.master.startswith(("spark://", "sc://"))):
            raise ConfigError(
                "expected a Spark master such as 'local[2]', 'spark://host:7077' or "
                f"'sc://host:15002', got {self.master!r}",
                parameter="master",
            )
        if self.tasks < 0:
            raise ConfigError(
                f"expected the tasks of a job to be 0 or more, got {self.tasks}", parameter="tasks"
            )
        if self.heap_mb < HEAP_MIN_MB:
            raise ConfigError(
                f"expected a Spark heap of at least {HEAP_MIN_MB} MB, got {self.heap_mb}",
                parameter="heap_mb",
                bound=HEAP_MIN_MB,
            )

    @property
    def embedded(self) -> bool:
        return self.master.startswith("local")

    @property
    def remote(self) -> bool:
        return self.master.startswith("sc://")


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
