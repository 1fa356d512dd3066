from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pyarrow as pa
import pytest
from every_method import (
    INTERNAL,
    LETTERS,
    METHODS,
    PATHS,
    SERVICES,
    TABLE,
    expected,
    outcome,
    short,
)
from expected_errors import raises
from google.protobuf import message_factory
from proving import Certified, Tokens, keys_in

from galileo.errors import Forbidden
from galileo.model.channel import Channel
from galileo.model.enrichment import Step, Within
from galileo.model.reader import POSITIONS
from galileo.model.schema import Feature, Schema
from galileo.rpc import token_store
from galileo.rpc.access import (
    ANONYMOUS,
    ANY_CLIENT,
    PUBLIC,
    RULES,
    Principal,
    Role,
    check_method,
    check_positions,
    check_request,
    datasets_of,
    usable_positions,
)
from galileo.rpc.admission import Admission
from galileo.rpc.call_log import CallTracker
from galileo.rpc.error_mapping import streaming
from galileo.rpc.identity import CLIENT_URI, Identity
from galileo.rpc.interceptor import CallInterceptor
from galileo.rpc.internal import SERVICE
from galileo.rpc.token_store import TokenStore
from galileo.wire.channel import TOKEN_KEY, TOKEN_SCHEME, open_channel, server_options
from galileo.wire.tls_credentials import TlsFiles, server_credentials
from galileo.wire.v1 import cluster_pb2, continuous_pb2, storage_pb2


def check(principal: Principal, request: Any) -> None:
    """Checks a request as one of the first method that takes it."""
    kind = request.DESCRIPTOR.full_name
    path = next(path for path, method in METHODS.items() if method.input_type.full_name == kind)
    check_request(principal, path, request)


def test_every_method_has_a_rule_and_a_row() -> None:
    ours = {m for m in PATHS if m.startswith("/galileo.")}
    assert ours | PUBLIC <= set(PATHS)
    assert {m for m in ours if "Evaluator/" not in m} <= set(RULES)
    assert set(RULES) | PUBLIC <= set(PATHS), "rules for methods that there are not"
    ruled = {short(method) for method in set(RULES) | PUBLIC}
    assert {method for method, letters in TABLE.items() if letters} == ruled
    assert not PUBLIC & set(RULES)


def _anything(method: Any) -> Any:
    """A handler that answers whatever comes."""
    reply = message_factory.GetMessageClass(method.output_type)

    async def one(request: Any, context: Any) -> Any:
        return reply()

    async def each(_: None, request: Any, context: Any) -> AsyncIterator[Any]:
        if method.client_streaming:
            async for _ in request:
                yield reply()
        else:
            yield reply()

    many = functools.partial(streaming(each), None)
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[method.client_streaming, method.server_streaming]
    return make(
        many if method.server_streaming else one,
        request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
        response_serializer=reply.SerializeToString,
    )


def _nothing() -> Any:
    """A handler of bytes."""

    async def answer(request: bytes, context: Any) -> bytes:
        return b""

    return grpc.unary_unary_rpc_method_handler(answer)


@asynccontextmanager
async def serving(
    identity: Identity, keys: TlsFiles, admission: Admission | None = None
) -> AsyncIterator[str]:
    """A server of every method that there is."""
    interceptor = CallInterceptor(CallTracker(), identity, admission=admission)
    server = grpc.aio.server(options=server_options(), interceptors=[interceptor])
    for service in SERVICES:
        handlers = {method.name: _anything(method) for method in service.methods}
        server.add_registered_method_handlers(service.full_name, handlers)
    answers = {path.rpartition("/")[2]: _nothing() for path in INTERNAL}
    server.add_registered_method_handlers(SERVICE.full_name, answers)
    free = "127.0.0.1:0"
    if keys.is_tls:
        port = server.add_secure_port(free, server_credentials(keys))
    else:
        port = server.add_insecure_port(free)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return Certified.made(tmp_path_factory.mktemp("certified"))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens.of_all_roles(tmp_path_factory.mktemp("tokens") / "principals.toml")


async def outcomes(address: str, keys: TlsFiles) -> dict[str, grpc.StatusCode]:
    async with open_channel(address, keys) as channel:
        return {method: await outcome(channel, method) for method in PATHS}


def wanted(letter: str, *, denied: grpc.StatusCode) -> dict[str, grpc.StatusCode]:
    return {m: grpc.StatusCode.OK if expected(m, letter) else denied for m in PATHS}


async def test_permissions_of_every_role_without_tls(tokens: Tokens) -> None:
    identity = Identity(TokenStore(tokens.path), is_mutual=False)
    async with serving(identity, TlsFiles()) as address:
        for role, letter in LETTERS.items():
            found = await outcomes(address, TlsFiles(token=tokens.tokens[role]))
            assert found == wanted(letter, denied=grpc.StatusCode.PERMISSION_DENIED), role
        for keys in (TlsFiles(), TlsFiles(token="glt_unknown")):
            found = await outcomes(address, keys)
            assert found == wanted("-", denied=grpc.StatusCode.UNAUTHENTICATED)


async def test_permissions_of_every_role_with_tls(tokens: Tokens, certified: Certified) -> None:
    identity = Identity(TokenStore(tokens.path), is_mutual=True)
    node, client = certified.of("node", "node-1"), certified.of("client", "ann")
    async with serving(identity, keys_in(node)) as address:
        for role, letter in LETTERS.items():
            found = await outcomes(address, keys_in(client, token=tokens.tokens[role]))
            # A token makes no node where certificates do.
            letter = "-" if role is Role.NODE else letter
            assert found == wanted(letter, denied=grpc.StatusCode.PERMISSION_DENIED), role
        found = await outcomes(address, keys_in(client))
        assert found == wanted("-", denied=grpc.StatusCode.UNAUTHENTICATED)
        found = await outcomes(address, keys_in(node))
        assert found == wanted("n", denied=grpc.StatusCode.PERMISSION_DENIED)


async def test_calls_of_callers_without_rights_are_refused_before_their_request(
    tokens: Tokens,
) -> None:
    """No call sends anything: a server that read its request first would wait for it for ever."""
    identity, admission = Identity(TokenStore(tokens.path), is_mutual=False), Admission()
    without = {"-": TlsFiles(), "x": TlsFiles(token="glt_unknown")}
    callers = {letter: TlsFiles(token=tokens.tokens[role]) for role, letter in LETTERS.items()}
    async with serving(identity, TlsFiles(), admission) as address:
        for letter, keys in (without | callers).items():
            denied = "PERMISSION_DENIED" if letter in callers else "UNAUTHENTICATED"
            async with open_channel(address, keys) as channel:
                for method in PATHS:
                    if not expected(method, letter) and not expected(method, "-"):
                        call = channel.stream_stream(method)(timeout=20)
                        with pytest.raises(grpc.aio.AioRpcError, match=denied):
                            await call.read()
                        assert admission.calls == admission.requests_bytes == 0


def test_identity_with_tls_removes_the_node_role_only(tmp_path: Path) -> None:
    tokens = Tokens.made(tmp_path / "principals.toml")
    bounds = (("vertices_max", 7),)
    token = tokens.add("ann", Role.NODE, Role.READER, quotas=bounds, expires_at=2e9)
    context: Any = Shown(token)
    found = Identity(TokenStore(tokens.path), is_mutual=True)(context)
    assert found == Principal("ann", frozenset({Role.READER}), ("*",), bounds, 2e9)


class Shown:
    """The context of a call by a client with a token and a certificate."""

    def __init__(self, token: str) -> None:
        self._token = token

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [(TOKEN_KEY, TOKEN_SCHEME + self._token)]

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"peer_uri": [CLIENT_URI + b"ann"]}


async def test_permissions_with_tls_alone_deny_node_methods_to_clients(
    certified: Certified,
) -> None:
    node, client = certified.of("node", "node-2"), certified.of("client", "bob")
    async with serving(Identity(None, is_mutual=True), keys_in(node)) as address:
        found = await outcomes(address, keys_in(client))
    for method, code in found.items():
        is_for_clients = TABLE.get(short(method), set()) - {"n"}
        assert (code is grpc.StatusCode.OK) == bool(is_for_clients), method


async def test_check_method_without_a_rule_is_forbidden() -> None:
    for role in Role:
        with raises(Forbidden, method="Cluster/Explode", roles=[]):
            check_method(Principal("x", frozenset({role})), "/galileo.v1.Cluster/Explode")


def test_check_method_of_a_node_permits_no_calls_of_clients() -> None:
    node = Principal("node-1", frozenset({Role.NODE}), ("*",))
    for name in ("Storage/Read", "Storage/Ingest", "Storage/ReadTable", "Continuous/Fetch"):
        with raises(Forbidden, method=name):
            check_method(node, f"/galileo.v1.{name}")


GRANTED = Principal("ann", frozenset({Role.ADMIN}), ("nam", "quakes-*"))


def _filled(descriptor: Any, dataset: str) -> Any:
    """A request with that dataset wherever one can stand."""
    made = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if field.name == "dataset":
            setattr(made, field.name, dataset)
        elif field.message_type is not None and "dataset" in str(field.message_type.fields_by_name):
            inner = _filled(field.message_type, dataset)
            target = getattr(made, field.name)
            if field.is_repeated:
                target.append(inner)
            else:
                target.CopyFrom(inner)
    return made


@pytest.mark.parametrize(
    "path", [p for p, m in METHODS.items() if "dataset" in m.input_type.fields_by_name]
)
def test_check_request_without_a_grant_is_forbidden(path: str) -> None:
    for dataset in ("nam", "quakes-2014"):
        check(GRANTED, _filled(METHODS[path].input_type, dataset))
    of_all = [] if path.endswith("Continuous/List") else [""]
    for dataset in ("namibia", "quakes", "*", *of_all):
        with raises(Forbidden, dataset=dataset):
            check(GRANTED, _filled(METHODS[path].input_type, dataset))


def test_check_request_to_list_queries_of_all_datasets_needs_no_grant() -> None:
    """Each caller sees its own queries."""
    check(GRANTED, continuous_pb2.ListRequest())


def test_check_request_of_several_datasets_needs_every_grant() -> None:
    scan = storage_pb2.ScanRequest(items=[{"dataset": "nam"}, {"dataset": "secret"}])
    with raises(Forbidden, dataset="secret"):
        check(GRANTED, scan)
    check(GRANTED, storage_pb2.ScanRequest(items=[{"dataset": "nam"}]))
    assert list(datasets_of(scan)) == ["nam", "secret"]


def test_check_request_to_create_a_dataset_needs_a_grant() -> None:
    def creating(name: str) -> Any:
        text = Schema(name, [Feature("t", "K")]).to_json()
        return cluster_pb2.CreateDatasetRequest(schema_json=text)

    check(GRANTED, creating("quakes-2015"))
    with raises(Forbidden, dataset="rain"):
        check(GRANTED, creating("rain"))


def test_check_request_to_create_a_channel_needs_grants_on_all_that_it_names() -> None:
    def creating(name: str, dataset: str, enrich: Sequence[Step] = (), lookup: Any = None) -> Any:
        text = Channel(name, dataset, "t > :least", enrich=enrich, lookup=lookup).to_json()
        return cluster_pb2.CreateDatasetRequest(schema_json=text)

    check(GRANTED, creating("quakes-hot", "nam"))
    with raises(Forbidden, dataset="rain"):
        check(GRANTED, creating("quakes-hot", "rain"))
    with raises(Forbidden, dataset="hot"):
        check(GRANTED, creating("hot", "nam"))
    check(GRANTED, creating("quakes-hot", "nam", enrich=[Within("quakes-zones")]))
    with raises(Forbidden, dataset="zones"):
        check(GRANTED, creating("quakes-hot", "nam", enrich=[Within("zones")]))
    check(GRANTED, creating("quakes-hot", "nam", lookup={"quakes-zones": ":zone"}))
    with raises(Forbidden, dataset="zones"):
        check(GRANTED, creating("quakes-hot", "nam", lookup={"zones": ":zone"}))


def test_check_request_of_a_client_with_a_channel_of_a_node_is_forbidden() -> None:
    """It would read the dataset of the schema, whatever dataset it names."""
    secret = Schema("secret", [Feature("t", "K")])
    bound = Channel("quakes-hot", "nam", "t > :least").bound(
        secret, [("least", "float")], start={}, partitions=1
    )
    request = cluster_pb2.CreateDatasetRequest(schema_json=bound.to_json())
    for principal in (GRANTED, ANY_CLIENT):
        with raises(Forbidden, parameter="schema_json"):
            check(principal, request)
    check(ANONYMOUS, request)


def test_principal_owns_own_ccqs_and_an_admin_all() -> None:
    ann, bob = (Principal(name, frozenset({Role.READER}), ("*",)) for name in ("ann", "bob"))
    admin = Principal("root", frozenset({Role.ADMIN}), ("*",))
    unnamed = Principal("", frozenset({Role.READER}), ("*",))
    for caller, owner in itertools.product((ann, bob, admin, unnamed), ("ann", "bob", "")):
        assert caller.owns(owner) == (caller is admin or caller.name == owner != "")


MAIL = Principal("mail", frozenset({Role.SUBSCRIBER}), ("smog", "quakes-*"))
BOUNDED = Principal("ann", frozenset({Role.READER}), ("smog*",), brokers=("mail", "sms-?"))


def _request(path: str, **fields: Any) -> Any:
    kind = next(method for known, method in METHODS.items() if short(known) == path)
    return message_factory.GetMessageClass(kind.input_type)(**fields)


@pytest.mark.parametrize(
    "path", [p for p, m in METHODS.items() if "dataset" in m.input_type.fields_by_name]
)
@pytest.mark.parametrize("name", ["smog", "smog.subscriptions", POSITIONS.name, "air"])
def test_check_request_of_a_subscriber_permits_nothing_but_what_is_listed(
    path: str, name: str
) -> None:
    """Every method with a dataset, for a channel, its tables and a dataset."""
    permitted = {
        "Channels/DescribeChannel": {"smog"},
        "Storage/Ingest": {"smog.subscriptions", POSITIONS.name},
        "Storage/ReadTable": {POSITIONS.name},  # The keys: see the handler.
    }
    request = _filled(METHODS[path].input_type, name)
    if name in permitted.get(short(path), ()):
        check_method(MAIL, path)
        check_request(MAIL, path, request)
    else:
        with raises(Forbidden):
            check_method(MAIL, path)
            check_request(MAIL, path, request)


@pytest.mark.parametrize(
    ("path", "fields", "is_permitted"),
    [
        ("Channels/Follow", {"dataset": "smog", "broker": "mail"}, True),
        ("Channels/Follow", {"dataset": "quakes-hot", "broker": "mail"}, True),
        ("Channels/Follow", {"dataset": "smog", "broker": "fax"}, False),
        ("Channels/Follow", {"dataset": "smog", "broker": ""}, False),
        ("Channels/Follow", {"dataset": "near", "broker": "mail"}, False),
        ("Channels/DescribeChannel", {"dataset": "near"}, False),
        ("Storage/Ingest", {"dataset": "quakes-hot.subscriptions"}, True),
        ("Storage/Ingest", {"dataset": "near.subscriptions"}, False),
        ("Storage/Ingest", {"dataset": "smog.dead-letters"}, False),
        ("Storage/Ingest", {"dataset": ".subscriptions"}, False),
        ("Storage/Ingest", {"dataset": "galileo.brokers"}, False),
        ("Storage/ReadTable", {"dataset": "smog.dead-letters"}, False),
        ("Cluster/Status", {"caller": True}, True),
        ("Cluster/Status", {}, False),
        ("Cluster/ListDatasets", {}, True),
        ("Cluster/Topology", {}, True),
    ],
)
def test_check_request_of_a_subscriber(
    path: str, fields: dict[str, Any], is_permitted: bool
) -> None:
    request = _request(path, **fields)
    others = Principal("mail", MAIL.roles | {Role.READER}, ("air",))
    if is_permitted:
        check(MAIL, request)
        check(Principal("mail", others.roles, MAIL.datasets), request)
    else:
        with raises(Forbidden):
            check(MAIL, request)
        if "dataset" in fields:
            with raises(Forbidden):  # A grant on something else adds nothing.
                check(others, request)


def test_check_request_to_follow_is_bounded_by_brokers() -> None:
    def follow(broker: str) -> Any:
        return _request("Channels/Follow", dataset="smog", broker=broker)

    for broker in ("mail", "sms-1"):
        check(BOUNDED, follow(broker))
    for broker in ("sms", "sms-12", "fax", "ann", ""):
        with raises(Forbidden, broker=broker):
            check(BOUNDED, follow(broker))
    named = Principal("ann", frozenset({Role.SUBSCRIBER}), ("smog",), brokers=("mail",))
    check(named, follow("mail"))
    with raises(Forbidden, broker="ann"):
        check(named, follow("ann"))
    both = Principal("ann", frozenset({Role.SUBSCRIBER, Role.READER}), ("smog",))
    check(both, follow("fax"))  # A reader without brokers.


ALL = ("reader/air/job", "reader/sea/job", "broker/smog/mail", "broker/smog/fax", "broker/near/fax")
"""Keys of positions."""


@pytest.mark.parametrize(
    ("principal", "read", "stored"),
    [
        (Principal("root", frozenset({Role.ADMIN}), ("*",)), ALL, ALL),
        (Principal("ann", frozenset({Role.READER}), ("*",)), ALL, ()),
        (Principal("ann", frozenset({Role.READER}), ("smog", "air")), ALL[2:4], ()),
        (Principal("ann", frozenset({Role.WRITER}), ("*",)), ALL, ALL[2:]),
        (Principal("ann", frozenset({Role.WRITER}), ("air", "smog")), ALL[2:4], ALL[2:4]),
        (Principal("job", frozenset({Role.WRITER}), ("air", POSITIONS.name)), ALL[:1], ALL[:1]),
        (Principal("ops", frozenset({Role.WRITER}), ("*", "galileo.*")), ALL, ALL),
        (Principal("mail", frozenset({Role.SUBSCRIBER}), ("*",)), ALL[2:3], ALL[2:3]),
        (Principal("fax", frozenset({Role.SUBSCRIBER}), ("smog",)), ALL[3:4], ALL[3:4]),
        (
            Principal("ann", frozenset({Role.READER}), ("*",), brokers=("fax",)),
            (*ALL[:2], *ALL[3:]),
            (),
        ),
        (
            Principal("mail", frozenset({Role.SUBSCRIBER, Role.READER}), ("*",)),
            ALL,
            ("broker/smog/mail",),
        ),
    ],
)
def test_who_may_read_and_store_which_positions(
    principal: Principal, read: Sequence[str], stored: Sequence[str]
) -> None:
    def permitted(path: str) -> list[str]:
        method, found = next(name for name in METHODS if short(name) == path), []
        request = _request(path, dataset=POSITIONS.key)
        for key in ALL:
            try:
                check_method(principal, method)
                check_request(principal, method, request)
                check_positions(principal, method, pa.chunked_array([[key]]))
            except Forbidden:
                continue
            found.append(key)
        return found

    assert permitted("Storage/Ingest") == [*stored]
    assert permitted("Storage/ReadTable") == [*read]
    method = next(name for name in METHODS if short(name) == "Storage/ReadTable")
    keys = pa.chunked_array([ALL])
    assert keys.filter(usable_positions(principal, method, keys)).to_pylist() == [*read]
    with raises(Forbidden):
        check_positions(MAIL, method, pa.chunked_array([["nonsense"]]))


@pytest.mark.parametrize(
    ("principal", "listed"),
    [
        (MAIL, {"smog", "smog.subscriptions"}),
        (Principal("mail", MAIL.roles), set()),
        (
            Principal("mail", MAIL.roles, ("*",)),
            {"smog", "smog.subscriptions", "near"},
        ),
        (Principal("mail", frozenset({Role.READER}), ("smog",)), {"smog"}),
        (
            Principal("mail", MAIL.roles | {Role.READER}, ("air", "smog")),
            {"air", "smog", "smog.subscriptions"},
        ),
    ],
)
def test_principal_may_list_channels_without_their_datasets(
    principal: Principal, listed: set[str]
) -> None:
    air = Schema("air", [Feature("t", "K")])
    smog, near = (Channel(name, "air", "t > :least") for name in ("smog", "near"))
    bound = smog.bound(air, [("least", "float")], start={}, partitions=1)
    letters = Schema("near.dead-letters", [Feature("t", "K")])
    stored = [air, smog, near, letters, POSITIONS, *bound.tables]
    assert {one.name for one in stored if principal.may_list(one)} == listed


@pytest.mark.parametrize("second", ["revoked", "of another role"])
async def test_each_request_of_a_stream_is_checked(tmp_path: Path, second: str) -> None:
    now = 0.0
    tokens = Tokens.of_all_roles(tmp_path / "principals.toml")
    identity = Identity(TokenStore(tokens.path, monotonic=lambda: now), is_mutual=False)
    keys = TlsFiles(token=tokens.tokens["reader"])
    async with serving(identity, TlsFiles()) as address, open_channel(address, keys) as channel:
        watch = channel.stream_stream(
            "/galileo.v1.Continuous/Watch",
            request_serializer=continuous_pb2.FetchRequest.SerializeToString,
        )(timeout=60)
        await watch.write(continuous_pb2.FetchRequest(ccq_id="q"))
        assert await watch.read() == b""
        if second == "revoked":
            token_store.remove(tokens.path, "reader")
        else:
            text = tokens.path.read_text()
            tokens.path.write_text(text.replace('roles = ["reader"]', 'roles = ["subscriber"]'))
        now = 3_600.0
        await watch.write(continuous_pb2.FetchRequest(ccq_id="q"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch.read()
    assert caught.value.code() == (
        grpc.StatusCode.UNAUTHENTICATED
        if second == "revoked"
        else grpc.StatusCode.PERMISSION_DENIED
    )
