"""Configuration of a node: one TOML file, overridden by environment variables, then by flags.

Every key is a field of the dataclasses below; an unknown key is refused. The environment
variable of `[node] listen` is `GALILEO_NODE__LISTEN`, its flag `--set node.listen=...`.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import tempfile
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from galileo.dht.topology import Topology, is_address
from galileo.errors import ConfigError
from galileo.model.schema import nearest_name

ENVIRONMENT_PREFIX = "GALILEO_"


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
class SecuritySection:
    """Without TLS a node binds only loopback addresses, unless `insecure` says otherwise."""

    insecure: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a node is told; `topology` is the `[cluster]` table."""

    topology: Topology
    node: NodeSection = field(default_factory=NodeSection)
    storage: StorageSection = field(default_factory=StorageSection)
    membership: MembershipSection = field(default_factory=MembershipSection)
    evaluator: EvaluatorSection = field(default_factory=EvaluatorSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    security: SecuritySection = field(default_factory=SecuritySection)

    @property
    def listen(self) -> str:
        return self.node.listen or self.topology.by_name[self.node.name].address

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
    "limits": LimitsSection,
    "security": SecuritySection,
}
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
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"expected a configuration file at {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"expected TOML in {path}: {error}") from error
    variables = os.environ if environment is None else environment
    for assignment in [*_from_environment(variables), *overrides]:
        _assign(raw, assignment)
    return from_dict(raw)


def from_dict(raw: Mapping[str, Any]) -> Config:
    """The configuration of a mapping of sections, checked."""
    _refuse_unknown("section", raw, [*SECTIONS, "cluster"])
    if "cluster" not in raw:
        raise ConfigError("expected a [cluster] table with the groups and their nodes, got none")
    sections = {name: _section(name, raw.get(name, {})) for name in SECTIONS}
    config = Config(topology=_topology(raw["cluster"]), **sections)
    _check(config)
    return config


def is_loopback(address: str) -> bool:
    """Whether `host:port` can be reached from this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _topology(raw: Any) -> Topology:
    _refuse_other_than_table("cluster", raw)
    _refuse_unknown("key in [cluster]", raw, _CLUSTER_KEYS)
    return Topology.from_dict({**raw, "cluster": raw.get("name", raw.get("cluster", "galileo"))})


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
            f"expected section.key=value with a section of {sorted(SECTIONS)}, got {assignment!r}"
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
    if config.node.name not in config.topology.by_name:
        raise ConfigError(
            f"expected node.name to be one of the topology's nodes "
            f"({', '.join(config.topology.by_name)}), got {config.node.name!r}"
        )
    if not config.node.directory:
        raise ConfigError("expected node.directory, the place for this node's data, got none")
    if config.storage.durability not in ("fsync", "none"):
        raise ConfigError(
            f'expected storage.durability "fsync" or "none", got {config.storage.durability!r}'
        )
    if config.storage.merge_bytes_min > config.storage.merge_bytes_max:
        raise ConfigError(
            "expected storage.merge_bytes_min up to storage.merge_bytes_max, "
            f"got {config.storage.merge_bytes_min} and {config.storage.merge_bytes_max}"
        )
    for name in SECTIONS:
        _check_positive(name, getattr(config, name))
    if config.membership.heartbeat_interval_s >= config.membership.dead_after_s:
        raise ConfigError(
            "expected membership.heartbeat_interval_s below membership.dead_after_s, got "
            f"{config.membership.heartbeat_interval_s} and {config.membership.dead_after_s}"
        )
    if not is_address(config.listen):
        raise ConfigError(f"expected host:port to listen on, got {config.listen!r}")
    if not config.security.insecure and not is_loopback(config.listen):
        raise ConfigError(
            f"expected a loopback address to listen on, got {config.listen!r}: connections are not "
            "encrypted; set security.insecure = true to serve a trusted network all the same"
        )


def _check_positive(name: str, section: Any) -> None:
    for one in dataclasses.fields(section):
        value = getattr(section, one.name)
        if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
            raise ConfigError(f"expected {name}.{one.name} above zero, got {value}")
