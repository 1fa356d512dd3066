"""Authorisation rules: which role may call which method; a method without a rule is forbidden.

Roles permit methods and grants permit datasets; a continuous query belongs to its submitter. The
role `node` permits the calls between nodes, also for callers whose rights another node has checked,
and no call that only clients make.

The role `subscriber` permits what is about the caller's own brokers, for channels with a grant.
Requests that name a broker are checked here. Of the subscriptions of a channel handlers check rows
(`galileo.rpc.storage`), and owners of partitions which rows are replaced (`galileo.node.ingest`).

The table of positions has rows of all datasets and channels. Handlers check the keys of requests,
and leave out of answers what the caller may not read (`usable_positions`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from math import inf
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import Message

from galileo.errors import Forbidden, InvalidSchema
from galileo.model.broker import check_brokers, match_brokers
from galileo.model.channel import DEAD_LETTERS, Channel, channel_of
from galileo.model.reader import OF_BROKER, POSITIONS, split_readers
from galileo.model.schema import INTERNAL_PREFIX, StoredSchema, name_of_key
from galileo.model.stored_schema import stored_schema_from_json
from galileo.model.table import Table
from galileo.rpc.policy import INTERNAL, POLICIES
from galileo.wire.channel import short_name
from galileo.wire.v1 import (
    channels_pb2,
    cluster_pb2,
    continuous_pb2,
    policy_pb2,
    storage_pb2,
)
from galileo.wire.zero_copy import Bulk

EVERY_DATASET = ("*",)
_DATASET = "dataset"


class Role(StrEnum):
    """A role of a principal in the cluster."""

    SUBSCRIBER = "subscriber"
    READER = "reader"
    WRITER = "writer"
    SAMPLER_AUTHOR = "sampler-author"
    ADMIN = "admin"
    NODE = "node"


_CLIENTS: Mapping[Any, frozenset[Role]] = MappingProxyType(
    {
        policy_pb2.READERS: frozenset(Role) - {Role.SUBSCRIBER, Role.NODE},
        policy_pb2.WRITERS: frozenset({Role.WRITER, Role.ADMIN}),
        policy_pb2.SAMPLER_AUTHORS: frozenset({Role.SAMPLER_AUTHOR, Role.ADMIN}),
        policy_pb2.ADMINS: frozenset({Role.ADMIN}),
        policy_pb2.NO_CLIENT: frozenset(),
    }
)
PUBLIC = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
"""Methods that need no token: they report only whether the node serves."""
RULES: Mapping[str, frozenset[Role]] = MappingProxyType(
    {
        method: _CLIENTS[policy.clients]
        | ({Role.SUBSCRIBER} if policy.subscribers else set())
        | ({Role.NODE} if policy.nodes else set())
        for method, policy in POLICIES.items()
    }
    | {
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _CLIENTS[
            policy_pb2.READERS
        ]
    }
)
"""Roles that may call each method, "/package.Service/Method"."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    Attributes:
        name: the owner's name of its continuous queries.
        roles: its roles.
        datasets: patterns of the names of datasets that it may use, with `*` and `?`.
        quotas: its own or its roles', by name; for others those of the cluster apply.
        expires_at: when its token expires, in seconds since 1970.
        brokers: patterns of the names of brokers that it may use; none: of its roles `subscriber`
            permits the broker of the principal's name, and all others every broker.
    """

    name: str
    roles: frozenset[Role]
    datasets: tuple[str, ...] = ()
    quotas: tuple[tuple[str, float], ...] = ()
    expires_at: float = inf
    brokers: tuple[str, ...] = ()

    @property
    def is_node(self) -> bool:
        return Role.NODE in self.roles

    @property
    def is_admin(self) -> bool:
        """Whether ownership is not checked."""
        return Role.ADMIN in self.roles

    @property
    def may_use_all(self) -> bool:
        return self.is_node or "*" in self.datasets

    @property
    def may_see_all(self) -> bool:
        """Whether lists and errors may name every dataset."""
        return self.may_use_all and self.roles != {Role.SUBSCRIBER}

    @property
    def is_bounded(self) -> bool:
        """Whether it may use some brokers only."""
        return bool(self.brokers) or self.roles == {Role.SUBSCRIBER}

    @property
    def own_brokers(self) -> tuple[str, ...]:
        """Patterns of the brokers that it may use where it may not use all."""
        return self.brokers or (self.name,)

    def may_use(self, dataset: str) -> bool:
        """Whether a grant matches the dataset, given by name or key."""
        if self.may_use_all:
            return True
        name = name_of_key(dataset)
        return any(fnmatchcase(name, pattern) for pattern in self.datasets)

    def may_change(self, dataset: str) -> bool:
        """Whether it may write, create and drop a dataset, if its roles permit these calls.

        Galileo's own tables decide what leaves the cluster and how long data is kept, so a pattern
        such as `*` does not grant them to a writer.
        """
        name = name_of_key(dataset)
        if self.is_admin or not name.startswith(INTERNAL_PREFIX):
            return self.may_use(name)
        own = [pattern for pattern in self.datasets if pattern.startswith(INTERNAL_PREFIX)]
        return any(fnmatchcase(name, pattern) for pattern in own)

    def may_list(self, stored: StoredSchema) -> bool:
        """Whether lists name a dataset, table or channel to it.

        A client of a subscriber needs the definitions of the tables that it stores rows in.
        """
        if self.roles != {Role.SUBSCRIBER} and self.may_use(stored.name):
            return True
        channel = stored.name if isinstance(stored, Channel) else ""
        if isinstance(stored, Table):
            channel = _subscribers_channel(stored.name)
        return Role.SUBSCRIBER in self.roles and channel != "" and self.may_use(channel)

    def has_other_role(self, method: str) -> bool:
        """Whether a role other than `subscriber` permits a method."""
        return bool((self.roles - {Role.SUBSCRIBER}) & RULES.get(method, frozenset()))

    def owns(self, owner: str) -> bool:
        """Whether it may use the objects of `owner`."""
        return self.is_admin or (owner != "" and owner == self.name)

    def check_use(self, dataset: str, *, is_change: bool = False) -> None:
        """Raises Forbidden if no grant matches the dataset, whether it exists or not."""
        if not (self.may_change(dataset) if is_change else self.may_use(dataset)):
            wanted = "a grant of its own" if self.may_use(dataset) else "a grant"
            raise Forbidden(
                f"expected {wanted} on the dataset {name_of_key(dataset)!r}, got none for "
                f"{self.name!r}; ask an administrator of the cluster for one",
                dataset=name_of_key(dataset),
            )

    def check_owns(self, owner: str, ccq_id: str) -> None:
        """Raises Forbidden if a continuous query belongs to another principal."""
        if not self.owns(owner):
            raise Forbidden(
                f"expected a continuous query of {self.name!r}, got {ccq_id!r} of another "
                "principal; only its submitter and administrators may use it",
                ccq_id=ccq_id,
            )


ANONYMOUS = Principal("", frozenset(Role), EVERY_DATASET)
"""The caller without authentication: it may do everything."""
ANY_CLIENT = Principal("", frozenset(Role) - {Role.NODE}, EVERY_DATASET)
"""The same with TLS, where certificates distinguish nodes and clients."""


def check_method(principal: Principal, method: str) -> None:
    """Raises Forbidden unless a rule allows a method, "/package.Service/Method"."""
    allowed = RULES.get(method, frozenset())
    if not principal.roles & allowed:
        allowed -= {Role.SUBSCRIBER}  # It permits a few requests, perhaps not this one.
        roles = ", ".join(sorted(principal.roles)) or "none"
        needed = f"one of the roles {', '.join(sorted(allowed))}" if allowed else "a rule for it"
        raise Forbidden(
            f"{principal.name!r} may not call {method.rpartition('.')[2]}, which needs {needed}; "
            f"its roles: {roles}. Ask an administrator of the cluster for another token",
            method=method.rpartition(".")[2],
            roles=sorted(allowed),
        )


def is_node_call(principal: Principal, method: str) -> bool:
    """Whether a node makes a call; without authentication the method tells nodes from clients."""
    return method in INTERNAL if principal is ANONYMOUS else principal.is_node


def check_request(principal: Principal, method: str, request: Any) -> None:
    """Raises Forbidden where a request names a dataset or broker without the right to."""
    message = request.head if isinstance(request, Bulk) else request
    if principal is ANONYMOUS or not isinstance(message, Message):
        return
    if _is_of_positions(message):
        return  # The handler checks the keys.
    if Role.SUBSCRIBER in principal.roles & RULES.get(method, frozenset()):
        try:
            _check_subscriber(principal, method, message)
        except Forbidden:
            if not principal.has_other_role(method):
                raise
        else:
            return
    _check_created(principal, message)
    lists_own = isinstance(message, continuous_pb2.ListRequest) and not message.dataset
    is_change = method in POLICIES and POLICIES[method].clients == policy_pb2.WRITERS
    if (is_change or not principal.may_use_all) and not lists_own:
        with suppress(InvalidSchema):  # The method says what is wrong.
            for dataset in datasets_of(message):
                principal.check_use(dataset, is_change=is_change)
    if principal.brokers and isinstance(message, channels_pb2.FollowRequest):
        check_brokers(principal.brokers, pa.array([message.broker]))


def _check_subscriber(principal: Principal, method: str, message: Message) -> None:
    """Raises Forbidden if the role `subscriber` does not permit a request."""
    is_permitted = POLICIES[method].subscribers == policy_pb2.EVERY
    if isinstance(message, storage_pb2.IngestRequest):
        channel = _subscribers_channel(name_of_key(message.dataset))
        if is_permitted := channel != "":
            principal.check_use(channel)
    elif isinstance(message, channels_pb2.FollowRequest):
        principal.check_use(message.dataset)
        check_brokers(principal.own_brokers, pa.array([message.broker]))
        is_permitted = True
    elif isinstance(message, cluster_pb2.StatusRequest):
        is_permitted = message.caller
    else:
        for dataset in datasets_of(message):
            principal.check_use(dataset)
    if not is_permitted:
        raise _not_of_subscribers(principal, method)


def _not_of_subscribers(principal: Principal, method: str) -> Forbidden:
    """The error for a call that is not about the caller's own brokers."""
    return Forbidden(
        f"{principal.name!r} may subscribe, unsubscribe, follow and acknowledge for its own "
        f"brokers ({', '.join(principal.own_brokers)}), and nothing else; ask an administrator of "
        "the cluster for another token",
        method=short_name(method),
        roles=sorted(RULES[method] - {Role.SUBSCRIBER}),
    )


def _is_of_positions(message: Message) -> bool:
    """Whether a request reads or stores rows of the table of positions."""
    if not isinstance(message, storage_pb2.IngestRequest | storage_pb2.ReadTableRequest):
        return False
    return message.dataset == POSITIONS.key


def check_positions(principal: Principal, method: str, keys: pa.ChunkedArray) -> None:
    """Raises Forbidden if a caller may not use rows of the table of positions by a method."""
    others = keys.filter(pc.invert(usable_positions(principal, method, keys)))
    if len(others):
        raise Forbidden(
            f"expected positions that {principal.name!r} may use, got {others[0].as_py()!r:.200}; "
            "ask an administrator of the cluster for a grant on the channel, or for those on the "
            f"dataset and on {POSITIONS.name!r}",
            dataset=POSITIONS.name,
        )


def usable_positions(principal: Principal, method: str, keys: pa.ChunkedArray) -> Any:
    """Mask of the rows of the table of positions that a caller may use by a method.

    Rows of named readers are those of one of Galileo's tables, as brokers are. Rows of brokers are
    those of a channel, and of the caller's brokers where it may not use all.
    """
    parts, has_role = split_readers(keys), principal.has_other_role(method)
    owners = filter(principal.may_use, parts["owner"].drop_null().unique().to_pylist())
    is_change = POLICIES[method].clients == policy_pb2.WRITERS
    may_use = principal.may_change if is_change else principal.may_use
    of_brokers: Any = True
    if principal.brokers or not has_role:
        of_brokers = match_brokers(principal.own_brokers, parts["name"])
    of_readers = has_role and may_use(POSITIONS.name)
    is_usable = pc.if_else(pc.equal(parts["kind"], OF_BROKER), of_brokers, of_readers)
    is_usable = pc.and_(is_usable, pc.is_in(parts["owner"], pa.array(owners, pa.string())))
    # Keys of other forms are refused to who may write the table, with a reason.
    return pc.if_else(pc.is_null(parts["kind"]), of_readers, is_usable)


def has_all_rows(principal: Principal, method: str, table: str) -> bool:
    """Whether a caller may use all rows of a table by a method, if it is one of a channel's."""
    may_use = principal.has_other_role(method) and principal.may_use(table)
    return may_use and not principal.brokers


def _subscribers_channel(table: str) -> str:
    """The channel of whose subscriptions a table of this name would be, or ""."""
    return "" if table.endswith(DEAD_LETTERS) else channel_of(table)


def _check_created(principal: Principal, message: Message) -> None:
    """Raises Forbidden if a client creates a channel with the schema and start that nodes set.

    They could be those of a dataset that it may not use.
    """
    if message.DESCRIPTOR.name != "CreateDatasetRequest":
        return
    try:
        created = stored_schema_from_json(message.schema_json)  # type: ignore[attr-defined]
    except InvalidSchema:  # The method says what is wrong.
        return
    if isinstance(created, Channel) and created.schema is not None:
        raise Forbidden(
            f"expected a channel without the schema of its dataset in the request of "
            f"{principal.name!r}; nodes set it",
            parameter="schema_json",
        )


def datasets_of(message: Message) -> Iterator[str]:
    """The names of all datasets in a request, however deep."""
    descriptor = message.DESCRIPTOR
    if descriptor.name == "CreateDatasetRequest":
        schema = stored_schema_from_json(message.schema_json)  # type: ignore[attr-defined]
        yield schema.name
        if isinstance(schema, Channel):
            yield schema.dataset
            yield from (step.table for step in schema.steps)
        return
    for field in _fields_with_datasets(descriptor):
        value = getattr(message, field.name)
        if field.name == _DATASET:
            yield value
        elif field.is_repeated:
            for part in value:
                yield from datasets_of(part)
        elif message.HasField(field.name):
            yield from datasets_of(value)


_FIELDS: dict[str, tuple[Any, ...]] = {}


def _fields_with_datasets(descriptor: Any) -> tuple[Any, ...]:
    """Names of datasets themselves, and messages that have some."""
    fields = _FIELDS.get(descriptor.full_name)
    if fields is None:
        fields = _FIELDS[descriptor.full_name] = tuple(
            field for field in descriptor.fields if _names_datasets(field, within=())
        )
    return fields


def _names_datasets(field: Any, *, within: Collection[str]) -> bool:
    below = field.message_type
    if below is None:
        return bool(field.name == _DATASET)
    if below.full_name in within:
        return False
    inside = (*within, below.full_name)
    return any(_names_datasets(inner, within=inside) for inner in below.fields)
