"""Who may call what: one rule for every method, and whatever has no rule is refused.

Roles say which methods, grants say which datasets, and a continuous query belongs to whom it was
submitted by. The role `node` is apart: it may what nodes do among themselves and for callers whose
rights another node has checked, and nothing that only clients do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from math import inf
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from galileo.errors import Forbidden
from galileo.model.schema import Schema, name_of_key
from galileo.wire.zero_copy import Bulk

EVERY_DATASET = ("*",)
_DATASET = "dataset"


class Role(StrEnum):
    """What somebody is to the cluster."""

    READER = "reader"
    WRITER = "writer"
    SAMPLER_AUTHOR = "sampler-author"
    ADMIN = "admin"
    NODE = "node"


_READ = frozenset({Role.READER, Role.WRITER, Role.SAMPLER_AUTHOR, Role.ADMIN})
_WRITE = frozenset({Role.WRITER, Role.ADMIN})
_SEND = frozenset({Role.SAMPLER_AUTHOR, Role.ADMIN})
_RULE = frozenset({Role.ADMIN})
_AMONG_NODES = frozenset({Role.NODE})
_NOBODY: frozenset[Role] = frozenset()

_PACKAGE = "galileo.wire.pb"

PUBLIC = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
"""Methods that need no proof: they tell whether the node serves, and nothing else."""

RULES: Mapping[str, frozenset[Role]] = MappingProxyType(
    {
        f"/{_PACKAGE}.{method}": roles
        for method, roles in {
            "Storage/Ingest": _WRITE,
            "Storage/Commit": _AMONG_NODES,
            "Storage/Read": _READ | _AMONG_NODES,
            "Storage/Select": _READ,
            "Storage/Scan": _READ | _AMONG_NODES,
            "Storage/Stand": _AMONG_NODES,
            "Storage/Match": _AMONG_NODES,
            "Query/Run": _READ,
            "Explore/Explain": _READ | _AMONG_NODES,
            "Explore/Summarise": _READ | _AMONG_NODES,
            "Explore/Estimate": _READ,
            "Explore/Children": _READ | _AMONG_NODES,
            "Explore/Nearest": _READ | _AMONG_NODES,
            "Explore/Describe": _READ | _AMONG_NODES,
            "Continuous/Submit": _READ,
            "Continuous/SubmitMany": _READ,
            "Continuous/Fetch": _READ | _AMONG_NODES,
            "Continuous/FetchMany": _READ,
            "Continuous/Watch": _READ,
            "Continuous/Held": _AMONG_NODES,
            "Continuous/List": _READ,
            "Continuous/Cancel": _READ,
            "Cluster/CreateDataset": _WRITE | _AMONG_NODES,
            "Cluster/DropDataset": _WRITE | _AMONG_NODES,
            "Cluster/ListDatasets": _READ | _AMONG_NODES,
            "Cluster/Status": _READ | _AMONG_NODES,
            "Cluster/Topology": _READ | _AMONG_NODES,
            "Cluster/Drain": _RULE | _AMONG_NODES,
            "Cluster/SetRetention": _RULE | _AMONG_NODES,
            "Cluster/GetRetention": _READ,
            "Cluster/ApplyRetention": _RULE | _AMONG_NODES,
            "Cluster/Exchange": _AMONG_NODES,
            "Moves/Move": _RULE | _AMONG_NODES,
            "Moves/ListPartition": _AMONG_NODES,
            "Moves/ReadFile": _AMONG_NODES,
            "Moves/SumFile": _AMONG_NODES,
            "Moves/Fence": _AMONG_NODES,
            "Moves/Release": _AMONG_NODES,
            "Moves/HandOver": _AMONG_NODES,
            "Samplers/Send": _SEND | _AMONG_NODES,
            "Samplers/List": _READ,
            "Samplers/Revoke": _RULE | _AMONG_NODES,
            "Samplers/Get": _AMONG_NODES,
            # Served by the evaluator alone, on a loopback address, to who has its own token.
            "Evaluator/Evaluate": _NOBODY,
            "Evaluator/Ping": _NOBODY,
        }.items()
    }
    | {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _READ}
)

_OF_NODES = {
    *(method.rpartition(".")[2] for method, roles in RULES.items() if roles == _AMONG_NODES),
    "Storage/Scan",
}

NODE_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "CreateDatasetRequest": ("replicate",),
        "DropDatasetRequest": ("generations",),
        "ApplyRetentionRequest": ("local", "numbered_json"),
        "ReadRequest": ("local", "digest"),
        "FetchRequest": ("forwarded",),
        "ExplainRequest": ("share",),
        "SummariseRequest": ("share",),
        "NearestRequest": ("share",),
        "DescribeRequest": ("share",),
        "ChildrenRequest": ("local",),
        "SendSamplerRequest": ("kept",),
        "RevokeSamplerRequest": ("local",),
        "GetSamplerRequest": ("local",),
    }
)
"""What only nodes set in a request that others may send, too: it would pass what is checked."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who has proved who it is.

    Attributes:
        name: of it, to which continuous queries belong.
        roles: what it is.
        datasets: patterns of the names of datasets that it may use, with `*` and `?`.
        quotas: of its own or its roles', by name; others are the cluster's.
        expires_at: wall time, in seconds since 1970, from when on its token is worth nothing.
    """

    name: str
    roles: frozenset[Role]
    datasets: tuple[str, ...] = ()
    quotas: tuple[tuple[str, float], ...] = ()
    expires_at: float = inf

    @property
    def is_node(self) -> bool:
        return Role.NODE in self.roles

    @property
    def is_admin(self) -> bool:
        """Admins and nodes are asked for no ownership."""
        return bool(self.roles & {Role.ADMIN, Role.NODE})

    @property
    def may_use_all(self) -> bool:
        return self.is_node or "*" in self.datasets

    def may_use(self, dataset: str) -> bool:
        """Whether a grant names a dataset, which goes by its name or its key."""
        if self.may_use_all:
            return True
        name = name_of_key(dataset)
        return any(fnmatchcase(name, pattern) for pattern in self.datasets)

    def owns(self, owner: str) -> bool:
        """Whether what belongs to `owner` is its own, or it may treat it so."""
        return self.is_admin or (owner != "" and owner == self.name)

    def check_use(self, dataset: str) -> None:
        """Raises Forbidden where no grant names the dataset, whether it exists or not."""
        if not self.may_use(dataset):
            raise Forbidden(
                f"expected a grant on the dataset {name_of_key(dataset)!r}, got none for "
                f"{self.name!r}; ask an administrator of the cluster for one"
            )

    def check_owns(self, owner: str, ccq_id: str) -> None:
        """Raises Forbidden where a continuous query is somebody else's."""
        if not self.owns(owner):
            raise Forbidden(
                f"expected a continuous query of {self.name!r}, got {ccq_id!r} of somebody else; "
                "who submitted it and administrators may use it"
            )


EVERYBODY = Principal("", frozenset(Role), EVERY_DATASET)
"""Where no access is configured: whoever calls may do everything."""
ANY_CLIENT = Principal("", frozenset(Role) - {Role.NODE}, EVERY_DATASET)
"""The same with TLS, where certificates tell nodes from clients."""


def check_method(principal: Principal, method: str) -> None:
    """Raises Forbidden unless a rule allows a method, "/package.Service/Method"."""
    allowed = RULES.get(method, _NOBODY)
    if not principal.roles & allowed:
        roles = ", ".join(sorted(principal.roles)) or "none"
        needed = f"one of the roles {', '.join(sorted(allowed))}" if allowed else "a rule for it"
        raise Forbidden(
            f"{principal.name!r} may not call {method.rpartition('.')[2]}, which needs {needed}; "
            f"its roles: {roles}. Ask an administrator of the cluster for another token"
        )


def check_request(principal: Principal, request: Any) -> None:
    """Raises Forbidden where a request names a dataset or speaks as a node without the right to."""
    message = request.head if isinstance(request, Bulk) else request
    if principal.is_node or not isinstance(message, Message):
        return
    for name in NODE_FIELDS.get(message.DESCRIPTOR.name, ()):
        if _is_set(message, name):
            raise Forbidden(
                f"expected no {name!r} in the request of {principal.name!r}, which is for calls "
                "between nodes"
            )
    if not principal.may_use_all:
        for dataset in datasets_of(message):
            principal.check_use(dataset)


def is_between_nodes(method: str, request: Any) -> bool:
    """Whether only a node sends such a request, "Service/Method", where nobody proves anything."""
    if method in _OF_NODES:
        return True
    message = request.head if isinstance(request, Bulk) else request
    if not isinstance(message, Message):
        return False
    fields = NODE_FIELDS.get(message.DESCRIPTOR.name, ())
    return any(_is_set(message, name) for name in fields)


def datasets_of(message: Message) -> Iterator[str]:
    """The names of all datasets in a request, however deep."""
    descriptor = message.DESCRIPTOR
    if descriptor.name == "CreateDatasetRequest":
        yield Schema.from_json(message.schema_json).name  # type: ignore[attr-defined]
        return
    for field in _fields_with_datasets(descriptor):
        value = getattr(message, field.name)
        if field.name == _DATASET:
            yield value
        elif field.is_repeated:
            for one in value:
                yield from datasets_of(one)
        elif message.HasField(field.name):
            yield from datasets_of(value)


_FIELDS: dict[str, tuple[Any, ...]] = {}


def _fields_with_datasets(descriptor: Any) -> tuple[Any, ...]:
    """Names of datasets themselves, and messages that have some."""
    found = _FIELDS.get(descriptor.full_name)
    if found is None:
        found = _FIELDS[descriptor.full_name] = tuple(
            field for field in descriptor.fields if _names_datasets(field, within=())
        )
    return found


def _names_datasets(field: Any, *, within: Collection[str]) -> bool:
    below = field.message_type
    if below is None:
        return bool(field.name == _DATASET)
    if below.full_name in within:
        return False
    inside = (*within, below.full_name)
    return any(_names_datasets(one, within=inside) for one in below.fields)


def _is_set(message: Message, name: str) -> bool:
    field = message.DESCRIPTOR.fields_by_name[name]
    return bool(message.HasField(name) if field.has_presence else getattr(message, name))
