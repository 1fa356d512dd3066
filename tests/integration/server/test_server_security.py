"""A cluster that asks for proof: certificates between its processes, tokens of its users."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pandas as pd
import psutil
import pyarrow as pa
import pytest
from click.testing import CliRunner
from expected_errors import raises
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from proving import Certified, Tokens, auth_section, keys_in, tls_section, token_file

import galileo
from galileo.cli.main import main
from galileo.client import Client, Credentials
from galileo.client.node_diagnostics import NodeReport, conditions
from galileo.clock import SystemClock
from galileo.config import load
from galileo.errors import (
    BatchConflict,
    ConfigError,
    Forbidden,
    InputError,
    Unauthenticated,
    Unavailable,
    UnknownCcq,
    UnknownDataset,
)
from galileo.node.peers import CommitTask
from galileo.rpc import token_store
from galileo.rpc.access import Role
from galileo.rpc.gossip import GossipRequest
from galileo.rpc.internal import SERVICE
from galileo.rpc.internal_calls import COMMIT
from galileo.rpc.peers import GOSSIP
from galileo.rpc.policy import POLICIES
from galileo.rpc.replication import REPLICATE
from galileo.rpc.token_store import TOKEN_PREFIX
from galileo.sampler_runtime import unavailable_reason
from galileo.server.node_process import NodeProcess
from galileo.version import VERSION
from galileo.wire.channel import open_blocking_channel
from galileo.wire.services import CLUSTER, NODE_SERVICES, stub_of
from galileo.wire.v1 import cluster_pb2

SCHEMA = galileo.Schema("rain", [galileo.Feature("rain", "mm")], geohash_precision=2)
OTHER = galileo.Schema("wind", [galileo.Feature("speed", "m/s")], geohash_precision=2)
WITHIN_S = 300.0
PLANTED = TOKEN_PREFIX + "planted-in-the-environment"
FIRST = """
class First:
    def sample(self, labels, *, seed):
        return (labels.buckets >= 0).cumsum() == 1
"""
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def rows(day: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "latitude": [40.0, 47.0, -10.0],
            "longitude": [-120.0, 8.0, 20.0],
            "time": pd.to_datetime([f"2014-03-{day:02}T06:00Z"] * 3),
            "rain": [1.0, 2.0, 3.0],
        }
    )


@dataclass
class Guarded:
    """The cluster, and everything with which one gets in or does not."""

    cluster: galileo.LocalCluster
    certified: Certified
    tokens: Tokens
    node: Path
    client: Path

    def connect(self, name: str, **more: Any) -> Client:
        return Client(
            *self.cluster.addresses, proof=self.tokens.proof(name, tls=self.client), **more
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    certified = Certified.made(directory)
    node, client = certified.of("node", "node"), certified.of("client", "client")
    tokens = Tokens.made(directory / "principals.toml")
    tokens.add("root", Role.ADMIN)
    tokens.add("ann", Role.READER, Role.WRITER, datasets=("rain",))
    tokens.add("bob", Role.READER, datasets=("rain",))
    tokens.add("eve", Role.READER, datasets=("wind",))
    tokens.add("sam", Role.SAMPLER_AUTHOR)
    tokens.add("cam", Role.READER, Role.WRITER, datasets=("alerts*",))
    tokens.add("dan", Role.READER, datasets=("alerts*",))
    settings = {
        "tls": tls_section(node),
        "auth": {"token_file": str(tokens.path)},
        "samplers": {"uploads": "sandboxed"},
        "logging": {"format": "json", "level": "debug"},
        "audit": {"file": "audit.log"},
    }
    environment = pytest.MonkeyPatch()
    environment.setenv("GALILEO_TOKEN", PLANTED)
    with galileo.LocalCluster(
        2, 1, directory / "cluster", settings=settings, proof=tokens.proof("root", tls=client)
    ) as cluster:
        environment.undo()
        with cluster.client() as root:
            root.create_dataset(SCHEMA)
            root.create_dataset(OTHER)
        yield Guarded(cluster, certified, tokens, node, client)


@pytest.fixture
def client_of(guarded: Guarded) -> Iterator[Callable[[str], Client]]:
    made: list[Client] = []

    def connect(name: str) -> Client:
        made.append(guarded.connect(name))
        return made[-1]

    yield connect
    for one in made:
        one.close()


def test_reader_may_read_and_writer_may_write(client_of: Callable[[str], Client]) -> None:
    ann, bob = client_of("ann"), client_of("bob")
    assert ann.ingest("rain", rows(1)).rows == 3
    assert len(bob.query("rain")) == bob.select("rain").num_rows == 3
    with raises(Forbidden, method="Storage/Ingest", roles=["admin", "writer"]):
        bob.ingest("rain", rows(2))
    assert bob.select("rain").num_rows == 3


def test_producers_of_two_principals_are_separate(
    guarded: Guarded, client_of: Callable[[str], Client]
) -> None:
    """Whichever node takes the batch: its rows are of partitions of both."""
    ann, root = client_of("ann"), client_of("root")
    before = root.count("rain")
    assert ann.ingest("rain", rows(11), producer="feed").duplicate_rows == 0
    assert root.ingest("rain", rows(12), producer="feed").duplicate_rows == 0
    assert root.ingest("rain", rows(11), producer="feed:2").duplicate_rows == 0
    proof = guarded.tokens.proof("ann", tls=guarded.client)
    for address in guarded.cluster.addresses:
        with Client(address, proof=proof) as again:
            assert again.ingest("rain", rows(11), producer="feed").duplicate_rows == 3
            with pytest.raises(BatchConflict):
                again.ingest("rain", rows(12), producer="feed")
    with raises(InputError, parameter="producer"):
        ann.ingest("rain", rows(12), producer="root/feed")
    assert root.count("rain") == before + 9


def test_dataset_without_a_grant_is_forbidden_and_not_listed(
    client_of: Callable[[str], Client],
) -> None:
    eve, root = client_of("eve"), client_of("root")
    assert [schema.name for schema in eve.datasets()] == ["wind"]
    assert {schema.name for schema in root.datasets()} == {"rain", "wind"}
    for ask in (eve.query, eve.count, eve.explain):
        with raises(Forbidden, dataset="rain"):
            ask("rain")
    output = {one["dataset"] for node in eve.status().nodes for one in node.datasets}
    assert output == {"wind"}


def test_channels_need_grants_on_both_names_and_the_role_of_a_writer(
    client_of: Callable[[str], Client],
) -> None:
    """Ann has a grant on the dataset alone, Cam and Dan on the channel alone."""
    root, ann, cam, dan, eve = map(client_of, ("root", "ann", "cam", "dan", "eve"))
    channel = galileo.Channel("alerts-rain", "rain", "rain > :least", period="100ms")
    with raises(Forbidden, dataset="rain"):
        cam.create_channel(channel)
    with raises(Forbidden, dataset="alerts-rain"):
        ann.create_channel(channel)
    with raises(Forbidden, method="Cluster/CreateDataset"):
        dan.create_channel(channel)
    root.create_channel(channel)
    subscription = {"id": ["s"], "least": [2.5]}
    assert cam.subscribe("alerts-rain", subscription, broker="me").rows == 1
    for change in (
        lambda: dan.subscribe("alerts-rain", subscription, broker="me"),
        lambda: dan.unsubscribe("alerts-rain", ["s"]),
    ):
        with raises(Forbidden, method="Storage/Ingest", roles=["admin", "writer"]):
            change()
    root.ingest("rain", rows(21))
    for reader in (cam, dan):
        batch = next(reader.follow("alerts-rain", "me", wait="60s"))
        assert batch.to_arrow()["rain"].to_pylist() == [3.0]
        assert reader.describe_channel("alerts-rain")
    for other in (ann, eve):
        assert other.channels() == []
        with raises(UnknownDataset, dataset="alerts-rain"):
            next(other.follow("alerts-rain", "me"))
    root.drop_dataset("alerts-rain")


@pytest.mark.parametrize("token", ["", TOKEN_PREFIX + "of-no-principal"])
def test_connect_without_a_known_token_is_unauthenticated(guarded: Guarded, token: str) -> None:
    with (
        Client(
            guarded.cluster.addresses[0], proof=Credentials(token, tls=guarded.client)
        ) as client,
        pytest.raises(Unauthenticated),
    ):
        client.datasets()


def test_revoked_token_is_unauthenticated(guarded: Guarded) -> None:
    guarded.tokens.add("temp", Role.READER)
    with guarded.connect("temp") as client:
        await_that(lambda: bool(client.datasets()))
        token_store.remove(guarded.tokens.path, "temp")
        with pytest.raises(Unauthenticated):
            await_that(lambda: not client.datasets())


def await_that(holds: Callable[[], bool]) -> None:
    """Until it does; who is not known yet is asked again."""
    deadline = time.monotonic() + WITHIN_S
    is_known = False
    while time.monotonic() < deadline:
        try:
            if holds():
                return
            is_known = True
        except Unauthenticated:
            if is_known:
                raise
        time.sleep(0.1)
    raise AssertionError("it never did")


def test_connect_with_an_untrusted_certificate_is_refused(guarded: Guarded, tmp_path: Path) -> None:
    stranger = Certified.made(tmp_path).of("client", "stranger")
    expired = guarded.certified.of("client", "expired", valid_from=LONG_AGO, days=30)
    # Who trusts the right authority and shows no certificate of it, and the other way round.
    half = tmp_path / "half"
    shutil.copytree(stranger, half)
    shutil.copy(guarded.client / "authority.pem", half)
    errors = []
    for tls in (stranger, expired, half):
        proof = guarded.tokens.proof("root", tls=tls)
        with (
            Client(guarded.cluster.addresses[0], proof=proof, timeout="0.5s") as client,
            pytest.raises((ConfigError, Unavailable)) as caught,
        ):
            client.datasets()
        errors.append(caught.value)
    # The client does not trust the node, or the node does not trust the client.
    assert [type(error) for error in errors] == [ConfigError, Unavailable, Unavailable]


def test_connect_without_tls_names_the_remedy(guarded: Guarded) -> None:
    address = guarded.cluster.addresses[0]
    proof = guarded.tokens.proof("root")
    with (
        Client(address, proof=proof, timeout="1h") as client,
        raises(ConfigError, address=address, remedy="tls"),
    ):
        client.datasets()
    output = CliRunner().invoke(main, ["--node", address, "--timeout", "1h", "dataset", "list"])
    assert output.exit_code == 2
    assert f"the node at {address} expects TLS" in output.stderr
    assert "by --tls, or set GALILEO_TLS" in output.stderr


def test_connect_without_a_token_names_the_remedy(guarded: Guarded) -> None:
    address = guarded.cluster.addresses[0]
    with (
        Client(address, proof=Credentials(tls=guarded.client)) as client,
        raises(Unauthenticated, remedy="token"),
    ):
        client.datasets()
    output = CliRunner().invoke(
        main, ["--node", address, "--tls", str(guarded.client), "dataset", "list"]
    )
    assert "name a file of it by --token-file" in output.stderr
    assert "galileo.connect" not in output.stderr


@pytest.mark.parametrize(
    ("who", "command", "kind", "message"),
    [
        ("", "dataset list", "unauthenticated", "name a file of it by --token-file"),
        ("made-up", "dataset list", "unauthenticated", "token"),
        (
            "bob",
            "ingest rain {file}",
            "forbidden",
            "^'bob' may not call .*writer; its roles: reader",
        ),
        ("bob", "ccq submit wind", "unknown_dataset|forbidden", "wind|may not use it"),
        ("bob", "drain node-1", "forbidden", "^'bob' may not call .*admin.*its roles: reader"),
    ],
)
def test_command_without_permission_names_the_needed_role(
    guarded: Guarded, tmp_path: Path, who: str, command: str, kind: str, message: str
) -> None:
    file = tmp_path / "rain.csv"
    rows(1).to_csv(file, index=False)
    token = guarded.tokens.tokens.get(who, TOKEN_PREFIX + who)
    given = ["--token-file", str(token_file(tmp_path / "token", token))] if who else []
    near = ["--node", guarded.cluster.addresses[0], "--tls", str(guarded.client), *given]
    done = CliRunner().invoke(main, [*near, *command.format(file=file).split()])
    assert done.exit_code == 2, done.output
    assert token not in done.output
    [line] = done.stderr.splitlines()
    text, _, ending = line.removeprefix("galileo: ").rpartition(" [")
    assert re.fullmatch(kind, ending.removesuffix("]")), line
    assert re.search(message, text), line


def test_unknown_dataset_error_names_granted_datasets_only(guarded: Guarded) -> None:
    guarded.tokens.add("pat", Role.READER, datasets=("wind*", "x"))
    with guarded.connect("pat") as client:
        await_that(lambda: bool(client.datasets()))
        for ask in (client.query, client.select, client.schema, client.submit):
            with pytest.raises(UnknownDataset) as output:
                ask("x")
            assert "rain" not in str(output.value)


def test_every_method_but_health_requires_authentication(guarded: Guarded) -> None:
    with open_blocking_channel(guarded.cluster.addresses[0], keys_in(guarded.client)) as channel:
        asked = 0
        for service in NODE_SERVICES:
            for method in service.methods:
                kind = f"{'stream' if method.client_streaming else 'unary'}_unary"
                call = getattr(channel, kind)(f"/{service.full_name}/{method.name}")
                with pytest.raises(grpc.RpcError) as caught:
                    call(iter([b""]) if method.client_streaming else b"", timeout=60)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, method.full_name
                asked += 1
        for internal in SERVICE.calls.values():
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(internal.path)(b"", timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, internal.name
            asked += 1
        assert asked == len(POLICIES)
        reply = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=60
        )
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError):
            ProtoReflectionDescriptorDatabase(channel).get_services()
    keys = guarded.tokens.proof("bob", tls=guarded.client).keys()
    with open_blocking_channel(guarded.cluster.addresses[0], keys) as channel:
        assert service.full_name in ProtoReflectionDescriptorDatabase(channel).get_services()


def test_node_diagnostics_require_the_admin_role(guarded: Guarded) -> None:
    def examined(name: str) -> list[NodeReport]:
        keys = guarded.tokens.proof(name, tls=guarded.client).keys({})
        return asyncio.run(conditions(guarded.cluster.addresses, patience_s=60, keys=keys))

    assert [(one.failure, one.version) for one in examined("root")] == [("", VERSION)] * 2
    with raises(Forbidden, roles=["admin"]):
        examined("bob")
    keys = guarded.tokens.proof("eve", tls=guarded.client).keys({})
    with open_blocking_channel(guarded.cluster.addresses[0], keys) as channel:
        request = cluster_pb2.StatusRequest(local=True)
        [status] = stub_of(CLUSTER, channel).Status(request, timeout=60).nodes
    assert [one.dataset for one in status.datasets] == ["wind"]


def test_node_methods_are_denied_to_an_admin(guarded: Guarded) -> None:
    keys = guarded.tokens.proof("root", tls=guarded.client).keys()
    with open_blocking_channel(guarded.cluster.addresses[0], keys) as channel:
        mail = GOSSIP.encode(GossipRequest("node-2", 0, 0, 1))
        commit = COMMIT.encode(CommitTask("rain", "p", 0, pa.py_buffer(b"")))
        for call in (
            lambda: channel.unary_unary(REPLICATE.path)(REPLICATE.encode(()), timeout=60),
            lambda: channel.unary_unary(GOSSIP.path)(mail, timeout=60),
            lambda: channel.unary_unary(COMMIT.path)(commit, timeout=60),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def shown_by(guarded: Guarded) -> bytes:
    """The certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=str(guarded.client / "authority.pem"))
    context.load_cert_chain(guarded.client / "certificate.pem", guarded.client / "key.pem")
    context.set_alpn_protocols(["h2"])
    host, _, port = guarded.cluster.addresses[0].partition(":")
    with (
        socket.create_connection((host, int(port)), timeout=60) as raw,
        context.wrap_socket(raw, server_hostname=host) as wrapped,
    ):
        found = wrapped.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_renewed_certificates_are_loaded_without_restart(guarded: Guarded) -> None:
    before, pids = shown_by(guarded), [node.pid for node in guarded.cluster.nodes]
    guarded.certified.of("node", "node")
    written = ssl.PEM_cert_to_DER_cert((guarded.node / "certificate.pem").read_text())
    assert shown_by(guarded) == written != before
    with guarded.connect("root") as client:
        assert client.status().complete
    assert [node.pid for node in guarded.cluster.nodes] == pids


@pytest.mark.slow
def test_ccq_of_another_principal_is_forbidden(
    guarded: Guarded, client_of: Callable[[str], Client]
) -> None:
    """With everything that it takes: an election, the evaluator, Spark's workers, forwarding."""
    ann, bob, root = client_of("ann"), client_of("bob"), client_of("root")
    made = ann.submit("rain", "rain > 1", interval="0.2s", expiration="10m")
    assert made.info.owner == "ann"
    ann.ingest("rain", rows(10))
    found, token, deadline = 0, made.token, time.monotonic() + WITHIN_S
    while found < 2 and time.monotonic() < deadline:
        update = ann.fetch(made.id, token=token, wait="5s")
        found, token = found + len(update.labels), update.token
    assert found == 2
    for refused in (
        lambda: bob.fetch(made.id, token=token),
        lambda: next(iter(bob.watch(made.id, token=token))),
        lambda: bob.cancel(made.id),
    ):
        with raises(Forbidden, ccq_id=made.id):
            refused()
    assert bob.list_ccqs() == []
    assert [one.owner for one in root.list_ccqs()] == ["ann"]
    for address in guarded.cluster.addresses:
        proof = guarded.tokens.proof("ann", tls=guarded.client)
        with Client(address, proof=proof) as other, pytest.raises(UnknownCcq):
            other.fetch("ccq-that-never-was")
    assert root.fetch(made.id).token
    ann.cancel(made.id)
    check_nothing_is_told(guarded)


@pytest.mark.slow
@pytest.mark.skipif(
    unavailable_reason() is not None, reason=f"sent code is not run here: {unavailable_reason()}"
)
def test_sent_sampler_runs_in_a_cluster_with_authentication(
    guarded: Guarded, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    sam, ann = client_of("sam"), client_of("ann")
    (tmp_path / "first.py").write_text(FIRST)
    archive = galileo.sampler_archive(tmp_path / "first.py")
    with raises(Forbidden, method="Samplers/Upload"):
        ann.query("rain", sampler=galileo.sampler(archive))
    ann.ingest("rain", rows(12))
    assert 1 <= len(sam.query("rain", sampler=galileo.sampler(archive))) <= 2, "one of each node"
    made = sam.submit("rain", sampler=galileo.sampler(archive), interval="0.2s", expiration="10m")
    ann.ingest("rain", rows(11))
    count, token, deadline = 0, made.token, time.monotonic() + WITHIN_S
    while not count and time.monotonic() < deadline:
        update = sam.fetch(made.id, token=token, wait="5s")
        count, token = len(update.labels), update.token
    assert 1 <= count <= 3, "one of each commit, of which there is one to a partition"
    sam.cancel(made.id)
    output = [path.read_text() for path in guarded.cluster.directory.rglob("audit.log")]
    assert any(f'"run-sampler","object":"{archive.digest}","outcome":"done"' in t for t in output)


@pytest.mark.slow
def test_sparql_with_a_token_answers_queries(guarded: Guarded, tmp_path: Path) -> None:
    bob = token_file(tmp_path / "token", guarded.tokens.tokens["bob"])
    node = ["--node", guarded.cluster.addresses[0], "--tls", str(guarded.client), "--json"]
    query = ["sparql", "query", "rain", "SELECT ?s WHERE { ?s ?p ?o } LIMIT 3"]
    answered = CliRunner().invoke(main, [*node, "--token-file", str(bob), *query])
    assert len(json.loads(answered.stdout)) == 3, answered.output
    check_nothing_is_told(guarded)
    refused = CliRunner().invoke(main, [*node, *query])
    assert json.loads(refused.stderr)["error"]["kind"] == "unauthenticated"


def check_nothing_is_told(guarded: Guarded) -> None:
    """No token or private key stands in a file, a status, a command line or an environment."""
    keys = [(path / "key.pem").read_text().splitlines()[1] for path in (guarded.node,)]
    planted = [*guarded.tokens.tokens.values(), *keys, PLANTED]
    files = [path for path in guarded.cluster.directory.rglob("*") if path.is_file()]
    output = [path.read_text(errors="replace") for path in files]
    with guarded.connect("root") as client:
        output.append(repr(client.status()) + repr(client.list_ccqs()) + repr(client.whoami()))
    children = psutil.Process().children(recursive=True)
    children += [one for one in psutil.process_iter() if is_of(one, guarded.cluster.directory)]
    lines = []
    for one in children:
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join([*one.cmdline(), *one.environ().values()]))
    assert any("galileo.server" in line for line in lines), "nothing was looked at"
    assert sum("serves at" in text for text in output) == 2
    assert sum(path.name == "audit.log" for path in files) == 2
    for secret in planted:
        assert not any(secret in text for text in [*output, *lines])


def is_of(process: psutil.Process, directory: Path) -> bool:
    """Whether it is the evaluator, or what that has started, which have no parent."""
    with contextlib.suppress(psutil.Error):
        return any(str(directory) in word for word in (process.cwd(), *process.cmdline()))
    return False


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(
        f'[node]\nname = "a"\ndirectory = "{tmp_path / "data"}"\n'
        '[cluster]\ngroups = [{name = "g", nodes = [{name = "a", address = "127.0.0.1:1"}, '
        '{name = "b", address = "127.0.0.1:2"}]}]\n'
    )
    return path


def refused(config: Path, *overrides: str, **environment: str) -> str:
    """What a node complains of that does not start."""
    with pytest.raises(ConfigError) as output:
        NodeProcess(load(config, environment=environment, overrides=overrides), clock=SystemClock())
    return str(output.value)


@pytest.mark.slow
def test_node_with_a_secret_as_file_name_does_not_print_it(config: Path) -> None:
    secret = TOKEN_PREFIX + "planted-by-mistake"
    done = subprocess.run(
        [sys.executable, "-m", "galileo.server", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "GALILEO_AUTH__NODE_TOKEN_FILE": secret, "GALILEO_TOKEN": secret},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("galileo: expected token_file to be a readable file")
    assert "planted" not in done.stdout + done.stderr


def test_node_with_a_readable_token_file_does_not_start(config: Path, tmp_path: Path) -> None:
    secret = token_file(tmp_path / "token", TOKEN_PREFIX + "planted-in-a-file")
    secret.chmod(0o644)
    output = refused(config, f"auth.node_token_file={secret}")
    assert "only its owner can read, got mode 0644; run chmod 600" in output
    assert "planted" not in output


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("auth.node_token_file", "expected token_file to be a readable file"),
        ("auth.token_file", "expected auth.token_file to be a readable file"),
        ("tls.key", "got no tls.certificate"),
        ("security.insecure", "expected bool for security.insecure, got '(a token)'"),
        ("node.listen", "expected host:port as node.listen, got '(a token)'"),
    ],
)
def test_config_error_of_a_misplaced_secret_does_not_repeat_it(
    config: Path, key: str, complaint: str, tmp_path: Path
) -> None:
    given = {"auth.node_token_file": str(token_file(tmp_path / "token", TOKEN_PREFIX + "good"))}
    given |= {key: TOKEN_PREFIX + "planted-by-mistake"}
    output = refused(config, **{f"GALILEO_{k.upper().replace('.', '__')}": given[k] for k in given})
    assert complaint in output
    assert "planted" not in output


def test_node_without_node_token_or_certificates_does_not_start(
    config: Path, tmp_path: Path
) -> None:
    tokens = Tokens.made(tmp_path / "principals.toml")
    tokens.add("root", Role.ADMIN)
    output = refused(config, f"auth.token_file={tokens.path}")
    assert "expected auth.node_token_file or certificates in [tls]" in output


@pytest.mark.slow
def test_cluster_with_tokens_without_tls_checks_permissions(tmp_path: Path) -> None:
    tokens = Tokens.made(tmp_path / "principals.toml")
    tokens.add("root", Role.ADMIN)
    tokens.add("bob", Role.READER)
    auth = auth_section(tokens, tokens.add("nodes", Role.NODE))
    with (
        galileo.LocalCluster(2, 1, settings={"auth": auth}, proof=tokens.proof("root")) as made,
        made.client() as root,
        Client(made.addresses[1], proof=tokens.proof("bob")) as bob,
    ):
        root.create_dataset(SCHEMA)
        root.ingest("rain", rows(1))
        assert bob.select("rain").num_rows == 3
        assert bob.query("rain").complete
        with raises(Forbidden):
            bob.ingest("rain", rows(2))
