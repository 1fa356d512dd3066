"""Configuration of a node: one TOML file, overridden by environment variables, then by flags.

Every key is a field of the dataclasses below; an unknown key is refused. The environment
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
from pathlib import Path
from typing import Any

from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges, is_address
from galileo.errors import ConfigError, GalileoError
from galileo.logging_setup import AuditSection
from galileo.model.quotas import Quotas
from galileo.model.schema import nearest_name
from galileo.redaction import redacted
from galileo.tracing import TracingOptions
from galileo.wire.channel import is_loopback as is_loopback
from galileo.wire.tls_credentials import TlsFiles

ENVIRONMENT_PREFIX = "GALILEO_"
NODE_ENVIRONMENT: Mapping[str, str] = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
}
"""What nodes run with where their environment does not say otherwise; see `server.malloc_tuning`.
"""


@dataclass(frozen=True, slots=True)
class NodeSection:
    """`name` is the node's name in the topology, `directory` where it keeps its data.

    `listen` is the address to bind; empty means the topology's address of this node.
    """

    name: str = ""
    directory: str = ""
    listen: str = ""


@dataclass(frozen=True, slots=True)
class StorageSection:
    """`durability` is "fsync", or "none" where losing the last seconds is acceptable.

    `merge`: whether sealed segments are merged and compressed in the background, once
    `merge_bytes_min` of them wait in a partition, at most `merge_bytes_max` at a time, reading
    at most `merge_bytes_per_s`; it is looked for every `merge_interval_s`.

    `retention_check_s`: how often the datasets' retention policies are applied.
    `retention_settle_s`: commits that are younger are never dropped but by a policy that may
    pass readers.
    """

    segment_bytes_max: int = 64 << 20
    durability: str = "fsync"
    merge: bool = True
    merge_bytes_min: int = 256 << 20
    merge_bytes_max: int = 1 << 30
    merge_bytes_per_s: int = 32 << 20
    merge_interval_s: float = 10.0
    retention_check_s: float = 60.0
    retention_settle_s: float = 60.0


@dataclass(frozen=True, slots=True)
class MembershipSection:
    heartbeat_interval_s: float = 0.5
    dead_after_s: float = 2.0


@dataclass(frozen=True, slots=True)
class EvaluatorSection:
    """The host's Spark evaluator.

    `master` is a Spark master (`local[2]`, `spark://host:port`) or a Spark Connect address
    (`sc://host:port`); `directory` is what the nodes of one host share to find it.
    """

    master: str = "local[2]"
    directory: str = ""
    heap_mb: int = 512
    idle_exit_s: float = 60.0
    cycle_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class SamplersSection:
    """`sent`: "contained" where users may send samplers, which run in processes that reach
    nothing; "refused" where they may not.
    """

    sent: str = "refused"


@dataclass(frozen=True, slots=True)
class LimitsSection:
    batch_rows_max: int = 1_000_000
    answer_labels_max: int = 200_000
    cache_bytes_max: int = 256 << 20
    spill_bytes_max: int = 1 << 30
    ccqs_max: int = 10_000
    interval_min_s: float = 0.05
    expiration_max_s: float = 366 * 86400.0
    commits_waiting_max: int = 1_024


@dataclass(frozen=True, slots=True)
class MetricsSection:
    """`address` is where metrics, readiness and liveness are served over HTTP; empty: nowhere.

    Without `insecure` it must be a loopback address. `ccqs` are ids, separated by commas, of which
    there are always metrics; beside them there are those of the `ccqs_max` with the oldest
    frontiers, and those of `partitions_max` partitions.
    """

    address: str = ""
    insecure: bool = False
    ccqs: str = ""
    ccqs_max: int = 20
    partitions_max: int = 256

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(one.strip() for one in self.ccqs.split(",") if one.strip())


@dataclass(frozen=True, slots=True)
class LogsSection:
    """`format` is "text" or "json", `level` the minimum log level: "debug" to "error"."""

    format: str = "text"
    level: str = "info"


@dataclass(frozen=True, slots=True)
class SecuritySection:
    """Without TLS a node binds only loopback addresses, unless `insecure` says otherwise."""

    insecure: bool = False


@dataclass(frozen=True, slots=True)
class TlsSection:
    """Files in PEM: the node's certificate and key, and the authority of the cluster's nodes and
    clients. All three, or none for no TLS. They are read again when they change.
    """

    certificate: str = ""
    key: str = ""
    authority: str = ""


@dataclass(frozen=True, slots=True)
class AccessSection:
    """`principals` is the file that says whose tokens there are and what each may do; empty:
    everybody may do everything. `token_file` is with what this node proves to others that it is
    one, where there is no TLS.
    """

    principals: str = ""
    token_file: str = ""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a node is told; `topology` is the `[cluster]` table."""

    topology: Topology
    node: NodeSection = field(default_factory=NodeSection)
    storage: StorageSection = field(default_factory=StorageSection)
    membership: MembershipSection = field(default_factory=MembershipSection)
    evaluator: EvaluatorSection = field(default_factory=EvaluatorSection)
    samplers: SamplersSection = field(default_factory=SamplersSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    logs: LogsSection = field(default_factory=LogsSection)
    tracing: TracingOptions = field(default_factory=TracingOptions)
    security: SecuritySection = field(default_factory=SecuritySection)
    tls: TlsSection = field(default_factory=TlsSection)
    access: AccessSection = field(default_factory=AccessSection)
    quotas: Quotas = field(default_factory=Quotas)
    audit: AuditSection = field(default_factory=AuditSection)

    @property
    def listen(self) -> str:
        return self.node.listen or self.topology.by_name[self.node.name].address

    @property
    def keys(self) -> TlsFiles:
        """What this node proves to others."""
        tls, token_file = self.tls, self.access.token_file
        files = (tls.certificate, tls.key, tls.authority, token_file)
        return TlsFiles(*files, insecure=self.security.insecure)

    @property
    def evaluator_directory(self) -> Path:
        if self.evaluator.directory:
            return Path(self.evaluator.directory)
        return Path(tempfile.gettempdir()) / f"galileo-{os.getuid()}-{self.topology.cluster}"


SECTIONS: dict[str, type] = {
    "node": NodeSection,
    "storage": StorageSection,
    "membership": MembershipSection,
    "evaluator": EvaluatorSection,
    "samplers": SamplersSection,
    "limits": LimitsSection,
    "metrics": MetricsSection,
    "logs": LogsSection,
    "tracing": TracingOptions,
    "security": SecuritySection,
    "tls": TlsSection,
    "access": AccessSection,
    "quotas": Quotas,
    "audit": AuditSection,
}
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
_CLUSTER_KEYS = ("cluster", "name", "groups", "ranges", "partitions_per_group", "version")


def load(
    path: Path,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """Reads a node's configuration.

    Args:
        path: a TOML file.
        environment: variables to look at; the process's own when absent.
        overrides: "section.key=value", the strongest.

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong.
    """
    raw = read(path)
    variables = os.environ if environment is None else environment
    try:
        for assignment in [*_from_environment(variables), *overrides]:
            _assign(raw, assignment)
        return from_dict(raw)
    except ConfigError as error:
        # Files are named here, never secrets; one that is put there all the same stays one.
        raise ConfigError(redacted(error.message)) from None


def read(path: Path) -> dict[str, Any]:
    """The sections of a file as they stand there, unchecked; raises ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(redacted(f"expected TOML in {path}: {error}")) from None


def from_dict(raw: Mapping[str, Any]) -> Config:
    """The configuration of a mapping of sections, checked."""
    _refuse_unknown("section", raw, [*SECTIONS, "cluster"])
    sections = {name: _section(name, raw.get(name, {})) for name in SECTIONS}
    config = Config(topology=_topology_of(raw), **sections)
    _check(config)
    return config


def _section(name: str, raw: Any) -> Any:
    _refuse_other_than_table(name, raw)
    cls = SECTIONS[name]
    kinds = typing.get_type_hints(cls)
    _refuse_unknown(f"key in [{name}]", raw, list(kinds))
    return cls(**{key: _typed(f"{name}.{key}", value, kinds[key]) for key, value in raw.items()})


def _typed(key: str, value: Any, kind: type) -> Any:
    if isinstance(value, str) and kind is not str:
        value = _parsed(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"expected {kind.__name__} for {key}, got {value!r}")
    return value


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
            f"{', '.join(sorted(SECTIONS))}; got {assignment!r}"
        )
    table = raw.setdefault(section, {})
    _refuse_other_than_table(section, table)
    table[key] = value.strip()


def _refuse_other_than_table(name: str, raw: Any) -> None:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"expected [{name}] to be a table, got {raw!r}")


def _refuse_unknown(what: str, raw: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in raw:
        if key not in known:
            close = nearest_name(key, list(known))
            hint = f"; did you mean {close!r}?" if close else "."
            raise ConfigError(f"unknown {what}: {key!r}{hint} Known: {', '.join(sorted(known))}")


def _check(config: Config) -> None:
    for check in _CHECKS:
        check(config)


def _check_node(config: Config) -> None:
    if config.node.name not in config.topology.by_name:
        raise ConfigError(
            f"expected node.name to be one of the topology's nodes "
            f"({', '.join(config.topology.by_name)}), got {config.node.name!r}"
        )


def _check_directory(config: Config) -> None:
    if not config.node.directory:
        raise ConfigError("expected node.directory, the place for this node's data, got none")


def _check_durability(config: Config) -> None:
    if config.storage.durability not in ("fsync", "none"):
        raise ConfigError(
            f'expected storage.durability "fsync" or "none", got {config.storage.durability!r}'
        )


def _check_samplers(config: Config) -> None:
    if config.samplers.sent not in ("refused", "contained"):
        raise ConfigError(
            f'expected samplers.sent "refused" or "contained", got {config.samplers.sent!r}'
        )


def _check_merging(config: Config) -> None:
    if config.storage.merge_bytes_min > config.storage.merge_bytes_max:
        raise ConfigError(
            "expected storage.merge_bytes_min up to storage.merge_bytes_max, "
            f"got {config.storage.merge_bytes_min} and {config.storage.merge_bytes_max}"
        )


def _check_numbers(config: Config) -> None:
    for name in SECTIONS:
        _check_positive(name, getattr(config, name))


def _check_membership(config: Config) -> None:
    if config.membership.heartbeat_interval_s >= config.membership.dead_after_s:
        raise ConfigError(
            "expected membership.heartbeat_interval_s below membership.dead_after_s, got "
            f"{config.membership.heartbeat_interval_s} and {config.membership.dead_after_s}"
        )


def _check_listen(config: Config) -> None:
    if config.node.name not in config.topology.by_name:
        return
    if not is_address(config.listen):
        raise ConfigError(f"expected host:port to listen on, got {config.listen!r}")
    is_admitted = config.keys.is_tls or config.security.insecure
    if not is_admitted and not is_loopback(config.listen):
        raise ConfigError(
            f"expected a loopback address to listen on, got {config.listen!r}: connections are not "
            "encrypted; name certificates in [tls], or set security.insecure = true (--insecure) "
            "to serve a trusted network all the same"
        )


def _check_metrics(config: Config) -> None:
    address = config.metrics.address
    if address and not is_address(address):
        raise ConfigError(f"expected metrics.address as host:port or empty, got {address!r}")
    if address and not config.metrics.insecure and not is_loopback(address):
        raise ConfigError(
            f"expected a loopback address as metrics.address, got {address!r}: metrics are told to "
            "everybody who asks; set metrics.insecure = true to serve a trusted network"
        )


def _check_access(config: Config) -> None:
    if config.access.principals and len(config.topology.nodes) > 1:
        config.keys.check_of_node()


def _check_one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"expected {key} to be one of {', '.join(allowed)}, got {value!r}")


def _check_positive(name: str, section: Any) -> None:
    for one in dataclasses.fields(section):
        value = getattr(section, one.name)
        if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
            raise ConfigError(f"expected {name}.{one.name} above zero, got {value}")


_CHECKS = (
    _check_node,
    _check_directory,
    _check_durability,
    _check_samplers,
    _check_merging,
    _check_numbers,
    _check_membership,
    _check_listen,
    _check_metrics,
    lambda config: config.keys.check_named(),
    _check_access,
    lambda config: _check_one_of("logs.format", config.logs.format, LOG_FORMATS),
    lambda config: _check_one_of("logs.level", config.logs.level, LOG_LEVELS),
    lambda config: config.tracing.check(),
)


def problems(raw: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with a mapping of sections, where `from_dict` tells the first."""
    return [redacted(one) for one in dict.fromkeys(_found(raw))]


def _found(raw: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    sections = {name: SECTIONS[name]() for name in SECTIONS}
    for name, values in raw.items():
        try:
            _refuse_unknown("section", {name: values}, [*SECTIONS, "cluster"])
            if name in SECTIONS:
                _refuse_other_than_table(name, values)
                sections[name] = _sound(name, values, found)
        except GalileoError as error:
            found.append(error.message)
    checks: Sequence[Callable[[Config], object]] = _CHECKS
    try:
        topology = _topology_of(raw)
    except GalileoError as error:
        found += [*_wrong_nodes(raw), error.message]
        # Any topology will do for the checks of what does not depend on it.
        topology = Topology(
            "any", (Group("any", (NodeInfo("any", "127.0.0.1:1"),)),), even_ranges(1)
        )
        checks = tuple(check for check in _CHECKS if check is not _check_node)
    config = Config(topology=topology, **sections)
    for check in checks:
        try:
            check(config)
        except GalileoError as error:
            found.append(error.message)
    return found


def _wrong_nodes(raw: Mapping[str, Any]) -> list[str]:
    """What is wrong with each node of [cluster], where the table has the form of one."""
    wrong = []
    with contextlib.suppress(TypeError, KeyError, AttributeError):
        for node in [node for group in raw["cluster"]["groups"] for node in group["nodes"]]:
            try:
                NodeInfo(**node)
            except ConfigError as error:
                wrong.append(error.message)
    return wrong


def _sound(name: str, values: Mapping[str, Any], found: list[str]) -> Any:
    """The section of those keys that are right; the others go into `found`."""
    section = SECTIONS[name]()
    for key, value in values.items():
        try:
            _check_positive(name, _section(name, {key: value}))
            one = getattr(_section(name, {key: value}), key)
            section = dataclasses.replace(section, **{key: one})
        except GalileoError as error:
            found.append(error.message)
    return section


def _topology_of(raw: Mapping[str, Any]) -> Topology:
    if "cluster" not in raw:
        raise ConfigError("expected a [cluster] table with the groups and their nodes, got none")
    table = raw["cluster"]
    _refuse_other_than_table("cluster", table)
    # `galileo topology --json` writes it; each node has it from its own records.
    table = {key: value for key, value in table.items() if key != "moved"}
    _refuse_unknown("key in [cluster]", table, _CLUSTER_KEYS)
    name = table.get("name", table.get("cluster", "galileo"))
    return Topology.from_dict({**table, "cluster": name})
