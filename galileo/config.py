"""Configuration of a node: one TOML file, overridden by environment variables, then by flags.

Every key is a field of the dataclasses below; an unknown key is an error. The environment
variable of `[node] listen` is `GALILEO_NODE__LISTEN`, its flag `--set node.listen=...`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import tomllib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from galileo.dht.topology import (
    NUMBERS,
    Group,
    NodeInfo,
    Topology,
    even_ranges,
    is_address,
    node_of,
    number_of,
    with_port,
)
from galileo.errors import ConfigError, GalileoError
from galileo.logging_setup import AuditSection
from galileo.model.quotas import Quotas
from galileo.model.schema import nearest_name
from galileo.redaction import redacted
from galileo.spark.options import EvaluatorOptions, SparkOptions
from galileo.tracing import TracingOptions
from galileo.wire.channel import is_loopback as is_loopback
from galileo.wire.tls_credentials import TlsFiles

ENVIRONMENT_PREFIX = "GALILEO_"
NODE_ENVIRONMENT: Mapping[str, str] = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
"""Defaults for the environment of a node; see `server.malloc_tuning`."""


@dataclass(frozen=True, slots=True)
class NodeSection:
    """`name` is the node's name in the topology, `directory` the directory of its data.

    `listen` is the address to bind; empty means the topology's address of this node.

    `join`: addresses of nodes of a running cluster, for a node that is added to it; then the file
    has no [cluster] table. `address`: where other nodes and clients reach this node, `listen` when
    empty. `group` and `weight` are those of the added node; an empty group is the one with the
    fewest nodes.

    `rack`: the rack of this node from its next start on; empty: the one that the cluster knows.
    """

    name: str = ""
    directory: str = ""
    listen: str = ""
    join: tuple[str, ...] = ()
    address: str = ""
    group: str = ""
    weight: float = 1.0
    rack: str = ""


@dataclass(frozen=True, slots=True)
class StorageSection:
    """`durability` is "fsync", or "none" where losing the last seconds is acceptable.

    `compaction`: whether sealed segments are merged and compressed in the background. Every
    `compaction_interval_s` the node checks for partitions with at least `compaction_bytes_min` of
    such segments; one compaction merges up to `compaction_bytes_max` and reads at most
    `compaction_bytes_per_s`.

    `retention_check_s`: how often the retention policies of datasets are applied.
    `retention_min_age_s`: younger commits are dropped only by a policy that ignores readers.

    `scrub_days`: within so many days all stored commits are read again to find damage; 0: never.
    """

    segment_bytes_max: int = 64 << 20
    durability: str = "fsync"
    compaction: bool = True
    compaction_bytes_min: int = 256 << 20
    compaction_bytes_max: int = 1 << 30
    compaction_bytes_per_s: int = 32 << 20
    compaction_interval_s: float = 10.0
    retention_check_s: float = 60.0
    retention_min_age_s: float = 60.0
    scrub_days: float = 7.0


@dataclass(frozen=True, slots=True)
class MembershipSection:
    heartbeat_interval_s: float = 0.5
    failure_timeout_s: float = 2.0


@dataclass(frozen=True, slots=True)
class EvaluatorSection:
    """The host's Spark evaluator; the nodes of one host find it by the shared `directory`."""

    directory: str = ""
    idle_timeout_s: float = 60.0
    cycle_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class SamplersSection:
    """`uploads`: "sandboxed" if users may upload samplers, which run in a sandbox."""

    uploads: str = "disabled"


@dataclass(frozen=True, slots=True)
class LimitsSection:
    batch_rows_max: int = 1_000_000
    answer_labels_max: int = 200_000
    cache_bytes_max: int = 256 << 20
    spill_bytes_max: int = 1 << 30
    ccqs_max: int = 10_000
    interval_min_s: float = 0.05
    expiration_max_s: float = 366 * 86400.0
    commit_queue_max: int = 1_024


@dataclass(frozen=True, slots=True)
class MetricsSection:
    """`address` serves metrics, readiness and liveness over HTTP; empty disables them.

    Without `insecure` it must be a loopback address. There are metrics for the queries `ccq_ids`
    (separated by commas), for the `ccqs_max` others with the oldest frontiers, and for
    `partitions_max` partitions.
    """

    address: str = ""
    insecure: bool = False
    ccq_ids: str = ""
    ccqs_max: int = 20
    partitions_max: int = 256

    @property
    def ccq_id_list(self) -> tuple[str, ...]:
        return tuple(ccq_id.strip() for ccq_id in self.ccq_ids.split(",") if ccq_id.strip())


@dataclass(frozen=True, slots=True)
class LoggingSection:
    """`format` is "text" or "json", `level` the minimum log level: "debug" to "error"."""

    format: str = "text"
    level: str = "info"


@dataclass(frozen=True, slots=True)
class SecuritySection:
    """Without TLS a node binds only loopback addresses, unless `insecure` is true."""

    insecure: bool = False


@dataclass(frozen=True, slots=True)
class TlsSection:
    """PEM files: the node's certificate and key, and the CA of the cluster's nodes and clients.

    All three, or none for no TLS. Changed files are read again.
    """

    certificate: str = ""
    key: str = ""
    authority: str = ""


@dataclass(frozen=True, slots=True)
class AuthSection:
    """Authentication by tokens.

    `token_file`: the file of the cluster's principals, with their roles and token digests; without
    it no authentication is required. `node_token_file`: the token by which this node authenticates
    to other nodes without TLS.
    """

    token_file: str = ""
    node_token_file: str = ""


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of a node; `topology` is the `[cluster]` table.

    Without that table the node joins a cluster; until it has the topology of that cluster,
    `topology` has this node alone and `is_joining` is true.
    """

    topology: Topology
    is_joining: bool = False
    node: NodeSection = field(default_factory=NodeSection)
    storage: StorageSection = field(default_factory=StorageSection)
    membership: MembershipSection = field(default_factory=MembershipSection)
    evaluator: EvaluatorSection = field(default_factory=EvaluatorSection)
    spark: SparkOptions = field(default_factory=SparkOptions)
    samplers: SamplersSection = field(default_factory=SamplersSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    logging: LoggingSection = field(default_factory=LoggingSection)
    tracing: TracingOptions = field(default_factory=TracingOptions)
    security: SecuritySection = field(default_factory=SecuritySection)
    tls: TlsSection = field(default_factory=TlsSection)
    auth: AuthSection = field(default_factory=AuthSection)
    quotas: Quotas = field(default_factory=Quotas)
    audit: AuditSection = field(default_factory=AuditSection)

    @property
    def listen(self) -> str:
        node = self.node
        return node.listen or node.address or self.topology.by_name[node.name].address

    @property
    def keys(self) -> TlsFiles:
        """The credentials of this node."""
        tls = self.tls
        files = (tls.certificate, tls.key, tls.authority, self.auth.node_token_file)
        return TlsFiles(*files, insecure=self.security.insecure)

    @property
    def evaluator_directory(self) -> Path:
        if self.evaluator.directory:
            return Path(self.evaluator.directory)
        return Path(tempfile.gettempdir()) / f"galileo-{os.getuid()}-{self.topology.cluster}"

    @property
    def evaluator_options(self) -> EvaluatorOptions:
        """The options of the evaluator of the node's host."""
        return EvaluatorOptions(
            self.evaluator_directory,
            self.spark,
            idle_timeout_s=self.evaluator.idle_timeout_s,
            keys=self.keys,
            tracing=self.tracing,
            log_format=self.logging.format,
            log_level=self.logging.level,
        )


SECTIONS: dict[str, type] = {
    "node": NodeSection,
    "storage": StorageSection,
    "membership": MembershipSection,
    "evaluator": EvaluatorSection,
    "spark": SparkOptions,
    "samplers": SamplersSection,
    "limits": LimitsSection,
    "metrics": MetricsSection,
    "logging": LoggingSection,
    "tracing": TracingOptions,
    "security": SecuritySection,
    "tls": TlsSection,
    "auth": AuthSection,
    "quotas": Quotas,
    "audit": AuditSection,
}
ZERO_KEYS = frozenset({"spark.tasks", "storage.scrub_days"})
"""Numbers for which zero has a meaning."""
UPLOAD_POLICIES = ("disabled", "sandboxed")
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
_CLUSTER_KEYS = (
    "name",
    "groups",
    "ranges",
    "partitions_per_group",
    "replicas",
)


def load(
    path: Path | None,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """Reads a node's configuration.

    Args:
        path: a TOML file; without it the environment and the overrides say everything.
        environment: variables to look at; the process's own when absent.
        overrides: "section.key=value", the strongest.

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong.
    """
    raw = {} if path is None else read(path)
    variables = os.environ if environment is None else environment
    try:
        for assignment in [*_from_environment(variables), *overrides]:
            _assign(raw, assignment)
        return from_dict(raw)
    except ConfigError as error:
        # A secret that was written here in place of a file name must not reach the log.
        raise ConfigError(redacted(error.message), **error.details) from None


def read(path: Path) -> dict[str, Any]:
    """The unchecked sections of a file. Raises ConfigError if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration file {path}: {error.strerror}",
            expected="configuration_file",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(redacted(f"expected TOML in {path}: {error}"), expected="toml") from None


def from_dict(raw: Mapping[str, Any]) -> Config:
    """Builds and checks the configuration. Raises ConfigError."""
    _refuse_unknown("section", raw, [*SECTIONS, "cluster"])
    sections = {name: _section(name, raw.get(name, {})) for name in SECTIONS}
    topology, is_joining = _topology_of(raw, sections["node"])
    config = Config(topology, is_joining, **sections)
    _check(config)
    return config


def _section(name: str, raw: Any) -> Any:
    _refuse_other_than_table(name, raw)
    cls = SECTIONS[name]
    kinds = typing.get_type_hints(cls)
    _refuse_unknown(f"key in [{name}]", raw, list(kinds))
    return cls(**{key: _typed(f"{name}.{key}", value, kinds[key]) for key, value in raw.items()})


def _typed(key: str, value: Any, kind: type) -> Any:
    if kind == tuple[str, ...]:
        return _addresses(key, value)
    if isinstance(value, str) and kind is not str:
        value = _parsed(value)
    if typing.get_origin(kind) is Mapping:
        return _texts(key, value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ConfigError(
            f"expected {kind.__name__} for {key}, got {value!r}", expected=kind.__name__, key=key
        )
    return value


def _texts(key: str, value: Any) -> dict[str, str]:
    """A table as texts by dotted names, in which `a.b = 1` and `"a.b" = "1"` are the same."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"expected a table for {key}, got {value!r}")
    result: dict[str, str] = {}
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            result |= {f"{name}.{rest}": text for rest, text in _texts(key, inner).items()}
        elif isinstance(inner, bool):
            result[name] = str(inner).lower()
        elif isinstance(inner, str | int | float):
            result[name] = str(inner)
        else:
            raise ConfigError(f"expected a text or number for {name} in {key}, got {inner!r}")
    return result


def _addresses(key: str, value: Any) -> tuple[str, ...]:
    """A list of host:port, or a text of them that commas separate."""
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"expected a list of host:port for {key}, got {value!r}")
    addresses = tuple(with_port(text.strip()) for text in texts if text.strip())
    wrong = [address for address in addresses if not is_address(address)]
    if wrong:
        raise ConfigError(f"expected host:port in {key}, got {', '.join(map(repr, wrong))}")
    return addresses


def _parsed(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _from_environment(variables: Mapping[str, str]) -> list[str]:
    assignments = []
    for name, value in sorted(variables.items()):
        section, _, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if name.startswith(ENVIRONMENT_PREFIX) and key and section in SECTIONS:
            assignments.append(f"{section}.{key}={value}")
    return assignments


def _assign(raw: dict[str, Any], assignment: str) -> None:
    target, equals, value = assignment.partition("=")
    section, dot, key = target.strip().partition(".")
    if not equals or not dot or section not in SECTIONS:
        raise ConfigError(
            "expected section.key=value with a section of "
            f"{', '.join(sorted(SECTIONS))}; got {assignment!r}",
            expected="assignment",
        )
    table = raw.setdefault(section, {})
    _refuse_other_than_table(section, table)
    table[key] = value.strip()


def _refuse_other_than_table(name: str, raw: Any) -> None:
    if not isinstance(raw, Mapping):
        raise ConfigError(
            f"expected [{name}] to be a table, got {raw!r}", expected="table", key=name
        )


def _refuse_unknown(what: str, raw: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in raw:
        if key not in known:
            close = nearest_name(key, list(known))
            hint = f"; did you mean {close!r}?" if close else "."
            raise ConfigError(
                f"unknown {what}: {key!r}{hint} Known: {', '.join(sorted(known))}",
                expected="known_key",
                key=key,
                nearest=close,
                known=sorted(known),
            )


def _check(config: Config) -> None:
    for check in _CHECKS:
        check(config)


def _check_node(config: Config) -> None:
    if config.node.name not in config.topology.by_name:
        raise ConfigError(
            f"expected node.name to be one of the topology's nodes "
            f"({', '.join(config.topology.by_name)}), got {config.node.name!r}",
            expected="node_of_topology",
            key="node.name",
        )
    dataclasses.replace(config.topology.by_name[config.node.name], rack=config.node.rack)


def _check_directory(config: Config) -> None:
    if not config.node.directory:
        raise ConfigError(
            "expected node.directory, the place for this node's data, got none",
            expected="directory",
            key="node.directory",
        )


def _check_durability(config: Config) -> None:
    if config.storage.durability not in ("fsync", "none"):
        raise ConfigError(
            f'expected storage.durability "fsync" or "none", got {config.storage.durability!r}',
            expected="durability",
            key="storage.durability",
        )


def _check_samplers(config: Config) -> None:
    _check_one_of("samplers.uploads", config.samplers.uploads, UPLOAD_POLICIES)


def _check_compaction(config: Config) -> None:
    if config.storage.compaction_bytes_min > config.storage.compaction_bytes_max:
        raise ConfigError(
            "expected storage.compaction_bytes_min up to storage.compaction_bytes_max, "
            f"got {config.storage.compaction_bytes_min} and {config.storage.compaction_bytes_max}",
            expected="up_to_maximum",
            key="storage.compaction_bytes_min",
        )


def _check_numbers(config: Config) -> None:
    for name in SECTIONS:
        _check_positive(name, getattr(config, name))


def _check_membership(config: Config) -> None:
    if config.membership.heartbeat_interval_s >= config.membership.failure_timeout_s:
        raise ConfigError(
            "expected membership.heartbeat_interval_s below membership.failure_timeout_s, got "
            f"{config.membership.heartbeat_interval_s} and {config.membership.failure_timeout_s}",
            expected="below_timeout",
            key="membership.heartbeat_interval_s",
        )


def _check_listen(config: Config) -> None:
    for key in ("listen", "address"):
        if (text := getattr(config.node, key)) and not is_address(text):
            raise ConfigError(
                f"expected host:port as node.{key}, got {text!r}", expected="address", key=key
            )
    if config.node.name not in config.topology.by_name:
        return
    is_admitted = config.keys.is_tls or config.security.insecure
    if not is_admitted and not is_loopback(config.listen):
        raise ConfigError(
            f"expected a loopback address to listen on, got {config.listen!r}: connections are not "
            "encrypted",
            remedy="node_insecure",
            expected="loopback",
            key="listen",
        )


def _check_metrics(config: Config) -> None:
    address = config.metrics.address
    if address and not is_address(address):
        raise ConfigError(
            f"expected metrics.address as host:port or empty, got {address!r}",
            expected="address",
            key="metrics.address",
        )
    if address and not config.metrics.insecure and not is_loopback(address):
        raise ConfigError(
            f"expected a loopback address as metrics.address, got {address!r}: metrics are served "
            "without authentication; set metrics.insecure = true to serve a trusted network",
            expected="loopback",
            key="metrics.address",
        )


def _check_spark(config: Config) -> None:
    is_protected = config.keys.is_tls or config.auth.token_file
    is_open = config.spark.standalone and not config.spark.secret_file
    if is_protected and is_open and not config.security.insecure:
        raise ConfigError(
            f"expected spark.secret_file for {config.spark.master}, got none: this cluster uses "
            "certificates or tokens, and without the secret anyone who reaches the Spark cluster "
            "can run code as this node; name the file of the secret that Spark's master and "
            "workers have as spark.authenticate.secret, or set security.insecure = true to trust "
            "the network",
            expected="secret_file",
            key="spark.secret_file",
        )


def _check_node_credentials(config: Config) -> None:
    if config.auth.token_file and (config.is_joining or len(config.topology.nodes) > 1):
        config.keys.check_of_node()


def _check_one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"expected {key} to be one of {', '.join(allowed)}, got {value!r}",
            expected="one_of",
            key=key,
        )


def _check_positive(name: str, section: Any) -> None:
    for key in dataclasses.fields(section):
        value = getattr(section, key.name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        least_is_zero = f"{name}.{key.name}" in ZERO_KEYS
        if is_number and not (value > 0 or (value == 0 and least_is_zero)):
            raise ConfigError(
                f"expected {name}.{key.name} above zero, got {value}",
                expected="positive",
                key=f"{name}.{key.name}",
            )


_CHECKS = (
    _check_node,
    _check_directory,
    _check_durability,
    _check_samplers,
    _check_compaction,
    _check_numbers,
    _check_membership,
    _check_listen,
    _check_metrics,
    lambda config: config.keys.check_named(),
    _check_spark,
    _check_node_credentials,
    lambda config: _check_one_of("logging.format", config.logging.format, LOG_FORMATS),
    lambda config: _check_one_of("logging.level", config.logging.level, LOG_LEVELS),
    lambda config: config.tracing.check(),
)


def problems(raw: Mapping[str, Any]) -> list[str]:
    """All errors of a configuration; `from_dict` raises the first."""
    return [redacted(message) for message in dict.fromkeys(_find_errors(raw))]


def _find_errors(raw: Mapping[str, Any]) -> list[str]:
    messages: list[str] = []
    sections = {name: SECTIONS[name]() for name in SECTIONS}
    for name, values in raw.items():
        try:
            _refuse_unknown("section", {name: values}, [*SECTIONS, "cluster"])
            if name in SECTIONS:
                _refuse_other_than_table(name, values)
                sections[name] = _valid_section(name, values, messages)
        except GalileoError as error:
            messages.append(error.message)
    checks: Sequence[Callable[[Config], object]] = _CHECKS
    try:
        topology, is_joining = _topology_of(raw, sections["node"])
    except GalileoError as error:
        messages += [*_cluster_errors(raw), error.message]
        is_joining = False
        # The other checks do not depend on the topology.
        topology = Topology(
            "any", (Group("any", (NodeInfo("any", "127.0.0.1:1"),)),), even_ranges(1)
        )
        checks = tuple(check for check in _CHECKS if check is not _check_node)
    config = Config(topology, is_joining, **sections)
    for check in checks:
        try:
            check(config)
        except GalileoError as error:
            messages.append(error.message)
    return messages


def _cluster_errors(raw: Mapping[str, Any]) -> list[str]:
    """The errors of each number and node of [cluster], if the table has the right form."""
    checks: list[Callable[[], object]] = []
    with contextlib.suppress(TypeError, KeyError, AttributeError):
        checks += [partial(number_of, raw["cluster"], key) for key in NUMBERS]
        nodes = [node for group in raw["cluster"]["groups"] for node in group["nodes"]]
        checks += [partial(node_of, node) for node in nodes]
    messages = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            messages.append(error.message)
    return messages


def _valid_section(name: str, values: Mapping[str, Any], messages: list[str]) -> Any:
    """The section with the valid keys only; appends the errors of the others to `messages`."""
    section = SECTIONS[name]()
    for key, value in values.items():
        try:
            _check_positive(name, _section(name, {key: value}))
            typed = getattr(_section(name, {key: value}), key)
            section = dataclasses.replace(section, **{key: typed})
        except GalileoError as error:
            messages.append(error.message)
    return section


def _topology_of(raw: Mapping[str, Any], node: NodeSection) -> tuple[Topology, bool]:
    """The topology, and whether it has this node alone because it joins a cluster."""
    if "cluster" not in raw and node.join:
        address = node.address or node.listen
        if not node.name or not address:
            raise ConfigError(
                "expected node.name and node.listen of a node that joins a cluster, got "
                f"{node.name!r} and {node.listen!r}"
            )
        alone = Group("alone", (NodeInfo(node.name, address, node.weight, rack=node.rack),))
        return Topology("joining", (alone,), even_ranges(1)), True
    if "cluster" not in raw:
        raise ConfigError(
            "expected a [cluster] table with the groups and their nodes, or node.join with the "
            "address of a node of a running cluster, got neither",
            expected="table",
            key="cluster",
        )
    if node.join:
        raise ConfigError(
            "expected either a [cluster] table, for the first nodes of a cluster, or node.join, "
            "for a node that is added to a running one; got both",
            expected="either",
            key="node.join",
        )
    table = raw["cluster"]
    _refuse_other_than_table("cluster", table)
    _refuse_unknown("key in [cluster]", table, _CLUSTER_KEYS)
    return Topology.from_dict(table), False
