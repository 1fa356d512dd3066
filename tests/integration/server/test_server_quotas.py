"""Quotas and the audit log of a cluster with certificates and tokens, by its clients."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pandas as pd
import pytest
from click.testing import CliRunner
from expected_errors import raises
from proving import Certified, Tokens, keys_in, tls_section, token_file
from waiting import wait_until

import galileo
from galileo.cli.main import main
from galileo.client import Client
from galileo.errors import Forbidden, QuotaExceeded, Throttled, TransientError, Unauthenticated
from galileo.labels import to_ipc
from galileo.model.retention import Retention
from galileo.node.peers import PARTS_SCHEMA
from galileo.rpc.access import Role
from galileo.sampler_runtime import unavailable_reason
from galileo.server.audit import TOGETHER_S
from galileo.wire.channel import open_blocking_channel
from galileo.wire.services import CLUSTER, CONTINUOUS, PARTITIONS, STORAGE, stub_of
from galileo.wire.status import PUSHBACK_KEY, error_of_rpc
from galileo.wire.v1 import (
    cluster_pb2,
    continuous_pb2,
    partitions_pb2,
    storage_pb2,
)

SCHEMA = galileo.Schema("rain", [galileo.Feature("rain", "mm")], geohash_precision=2)
AUDIT = "audit.jsonl"
CCQS_MAX = 40
DAY = Retention("1d")
WITHIN_S = 300.0
NONE = "class No:\n    def sample(self, labels, *, seed):\n        return labels.buckets < 0\n"


@dataclass
class Metered:
    """The cluster, and those who use it."""

    cluster: galileo.LocalCluster
    tokens: Tokens
    tls: Path
    directory: Path

    def connect(self, name: str, *, node: int = 0, **more: Any) -> Client:
        proof = self.tokens.proof(name, tls=self.tls)
        return Client(self.cluster.addresses[node], proof=proof, **more)

    def channel(self, name: str) -> grpc.Channel:
        keys = keys_in(self.tls, token=self.tokens.tokens[name])
        return open_blocking_channel(self.cluster.addresses[0], keys)

    def events(self, **wanted: Any) -> list[dict[str, Any]]:
        """What the audit logs of all nodes have of such events."""
        files = sorted(self.cluster.directory.rglob(AUDIT))
        assert len(files) == 2
        assert {stat.S_IMODE(one.stat().st_mode) for one in files} == {0o600}
        events = [json.loads(line) for one in files for line in one.read_text().splitlines()]
        return [one for one in events if all(one.get(k) == v for k, v in wanted.items())]


@pytest.fixture(scope="module")
def metered(
    tmp_path_factory: pytest.TempPathFactory, no_evaluator: dict[str, Any]
) -> Iterator[Metered]:
    directory = tmp_path_factory.mktemp("metered")
    certified = Certified.made(directory)
    node, client = certified.of("node", "node"), certified.of("client", "client")
    tokens = Tokens.made(directory / "principals.toml")
    tokens.add("root", Role.ADMIN)
    few = (("calls_max", 3), ("ccqs_max", 4), ("interval_min_s", 0.5), ("vertices_max", 10))
    tokens.add("ann", Role.READER, Role.WRITER, quotas=few)
    tokens.add("bob", Role.READER)
    tokens.add("sue", Role.READER)
    tokens.add("often", Role.READER, quotas=(("calls_per_s", 20.0),))
    tokens.add("seldom", Role.READER, quotas=(("calls_per_s", 1.0),))
    tokens.add("much", Role.WRITER, quotas=(("bytes_in_per_s", 100_000.0),))
    tokens.add("sam", Role.SAMPLER_AUTHOR)
    tokens.add("late", Role.READER, expires_at=round(time.time()) - 1)
    roles = "[role.reader]\nexpiration_max_s = 3600\n"
    tokens.path.write_text(roles + tokens.path.read_text())
    settings = {
        "tls": tls_section(node),
        "auth": {"token_file": str(tokens.path)},
        "audit": {"file": AUDIT},
        "samplers": {"uploads": "sandboxed"},
        "limits": {"ccqs_max": CCQS_MAX},
        "membership": {"failure_timeout_s": 60.0},  # however busy this machine is
        "evaluator": no_evaluator,
    }
    proof = tokens.proof("root", tls=client)
    with galileo.LocalCluster(2, 1, settings=settings, proof=proof) as cluster:
        with cluster.client() as root:
            root.create_dataset(SCHEMA)
        yield Metered(cluster, tokens, client, directory)


def submit_all(client: Client) -> int:
    """Submits continuous queries until one is refused; how many there are."""
    for number in range(CCQS_MAX + 1):
        try:
            client.submit("rain", "", interval="1h", expiration="1h")
        except QuotaExceeded:
            return number
    raise AssertionError("none was refused")


@pytest.mark.slow
def test_callers_leave_continuous_queries_to_others(metered: Metered) -> None:
    with metered.connect("bob") as bob, metered.connect("sue") as sue:
        wait_until(lambda: not bob.whoami().quotas["ccqs_max"].used)
        assert CCQS_MAX // 4 <= submit_all(bob) <= CCQS_MAX // 2
        assert 1 <= submit_all(sue) <= CCQS_MAX // 4
        for client in (bob, sue):
            for one in client.list_ccqs():
                client.cancel(one.id)


@pytest.mark.slow
def test_ccqs_max_is_enforced_across_the_cluster(
    metered: Metered,
) -> None:
    with metered.connect("ann") as ann, metered.connect("ann", node=1, timeout="60s") as there:
        for _ in range(4):
            ann.submit("rain", "", interval="1h", expiration="1h")
        with raises(QuotaExceeded, quota="ccqs_max", bound=4):
            ann.submit("rain", "", interval="1h", expiration="1h")

        def is_refused() -> bool:
            # The other node hears of them a moment later.
            begun = time.monotonic()
            try:
                there.submit("rain", "", interval="1h", expiration="1h")
            except QuotaExceeded:
                # It is not tried again for as long as it might be: that could not help.
                assert time.monotonic() - begun < 50
                return True
            return False

        made_meanwhile = 0
        while not is_refused():
            made_meanwhile += 1
            assert made_meanwhile < 20
        with metered.connect("bob") as bob:
            assert bob.submit("rain", "", interval="1h", expiration="1h").id
        used = there.whoami().quotas["ccqs_max"]
        assert (used.bound, used.counted) == (4, "cluster")
        wait_until(lambda: there.whoami().quotas["ccqs_max"].used == 4 + made_meanwhile)
        for one in there.list_ccqs():
            there.cancel(one.id)
        wait_until(lambda: ann.whoami().quotas["ccqs_max"].used == 0)
        assert ann.submit("rain", "", interval="1h", expiration="1h").id
        for one in ann.list_ccqs():
            ann.cancel(one.id)


def ring(vertices: int) -> str:
    """Of so many; the first is the last."""
    top = [f"{-120 + number / vertices:.4f} {40 + number % 2}" for number in range(vertices - 2)]
    return f"S_INTERSECTS(geometry, POLYGON(({', '.join([*top, '-110 30', top[0]])})))"


def test_query_quotas_bound_vertices_intervals_and_expirations(metered: Metered) -> None:
    with metered.connect("ann") as ann, metered.connect("bob") as bob:
        for ask in (
            lambda: ann.query("rain", ring(12)),
            lambda: ann.select("rain", ring(12)),
            lambda: ann.explain("rain", ring(12)),
            lambda: ann.nearest("rain", ring(12), latitude=40.0, longitude=-120.0),
            lambda: ann.submit("rain", ring(12), interval="1h", expiration="1h"),
        ):
            with raises(QuotaExceeded, quota="vertices_max", bound=10):
                ask()
        assert ann.query("rain", ring(10)).complete
        assert bob.query("rain", ring(12)).complete
        with raises(QuotaExceeded, quota="interval_min_s", bound=0.5):
            ann.submit("rain", "", interval="0.1s", expiration="1m")
        # By the role, since neither ann nor bob has one of its own.
        for client in (ann, bob):
            with raises(QuotaExceeded, quota="expiration_max_s", bound=3600):
                client.submit("rain", "", interval="1s", expiration="2h")
        ann.cancel(ann.submit("rain", "", interval="1s", expiration="1h"))


def test_vertices_max_is_enforced_in_calls_of_nodes(metered: Metered) -> None:
    item = storage_pb2.ScanItem(dataset="rain", query_json=ring(12))
    for name, is_refused in (("ann", True), ("bob", False)):
        with metered.channel(name) as channel:
            stub = stub_of(STORAGE, channel)
            scan = storage_pb2.ScanRequest(items=[item])
            parts = to_ipc(PARTS_SCHEMA.empty_table())
            read = storage_pb2.ReadRequest(dataset="rain", query_json=ring(12), parts=parts)
            for answers in (stub.Scan(scan), stub.Read(read)):
                if not is_refused:
                    list(answers)
                    continue
                with pytest.raises(grpc.RpcError) as caught:
                    list(answers)
                assert "at most 10 vertices, got 12" in caught.value.details()


@pytest.mark.slow
def test_calls_per_s_delays_then_throttles_with_pushback(metered: Metered) -> None:
    with metered.connect("often", timeout="60s") as often:
        often.whoami()
        begun = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            done = list(pool.map(lambda _: often.whoami().name, range(60)))
        took_s = time.monotonic() - begun
    assert done == ["often"] * 60, "all were answered in the end"
    # Twenty at once, the others by the rate.
    assert took_s > 1.5
    assert metered.events(principal="bob", outcome="throttled") == []
    # A machine that answers them slowly throttles them all the same.
    with metered.channel("seldom") as channel:
        grpc.channel_ready_future(channel).result(WITHIN_S)
        stub = stub_of(CLUSTER, channel)
        with ThreadPoolExecutor(60) as pool:
            failed = list(filter(None, pool.map(lambda _: failure(stub), range(60))))
    # A connection that breaks on a busy machine is no refusal.
    refused = [one for one in failed if one.code() is not grpc.StatusCode.UNAVAILABLE]
    assert {one.code() for one in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    pushed = dict(refused[0].trailing_metadata())[PUSHBACK_KEY]
    assert 1_000 < int(pushed) < 60_000, "so others' clients know when, too"


def failure(stub: Any) -> Any:
    try:
        stub.Status(cluster_pb2.StatusRequest(caller=True), timeout=60)
    except grpc.RpcError as error:
        return error
    return None


def test_calls_max_throttles_concurrent_calls(metered: Metered) -> None:
    with metered.connect("ann") as ann, metered.channel("ann") as channel:
        made = ann.submit("rain", "", interval="1h", expiration="1h")
        waiting = continuous_pb2.FetchRequest(ccq_id=made.id, token=made.token, wait_s=60)
        streams = []

        def refused() -> grpc.RpcError | None:
            # On a busy machine, earlier ones may have ended; those above the bound are refused.
            streams.extend(stub_of(CONTINUOUS, channel).Fetch(waiting) for _ in range(3))
            error = failure(stub_of(CLUSTER, channel))
            is_refused = error and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            return error if is_refused else None

        error = error_of_rpc(wait_until(refused), asked="the first node")
        assert isinstance(error, Throttled)
        assert (error.details["quota"], error.details["bound"]) == ("calls_max", 3)
        for one in streams:
            one.cancel()
        # It comes back and is let in; soon it is the only one.
        wait_until(lambda: ann.whoami().quotas["calls_max"].used == 1, despite=(TransientError,))
        ann.cancel(made.id)


def test_bytes_in_per_s_delays_ingestion(metered: Metered) -> None:
    count = 4_000
    frame = pd.DataFrame(
        {
            "latitude": [40.0] * count,
            "longitude": [-120.0] * count,
            "time": pd.to_datetime(["2014-03-01T06:00Z"] * count),
            "rain": range(count),
        }
    ).astype({"rain": float})
    with metered.connect("much", timeout="60s") as much, metered.connect("root") as root:
        begun = time.monotonic()
        for _ in range(3):
            much.ingest("rain", frame)
        took_s = time.monotonic() - begun
        assert root.count("rain") == 3 * count, "nothing is lost or stored twice"
    # Each is some 130 kB; the first is let in at once, the second waits for it, and so on.
    assert took_s > 1.0
    text = metered.tokens.path.read_text()
    assert "bytes_in_per_s" in text


def test_expired_token_is_unauthenticated(metered: Metered) -> None:
    with (
        metered.connect("late") as late,
        pytest.raises(Unauthenticated),
    ):
        late.whoami()


def test_whoami_is_permitted_to_every_principal(metered: Metered, tmp_path: Path) -> None:
    file = token_file(tmp_path / "token", metered.tokens.tokens["ann"])
    words = ["--node", metered.cluster.addresses[0], "--tls", str(metered.tls)]
    shown = CliRunner().invoke(main, [*words, "--token-file", str(file), "whoami"])
    assert shown.exit_code == 0, shown.output
    assert "user: ann\nroles: reader, writer\ndatasets: *\n" in shown.stdout
    assert "vertices_max" in shown.stdout
    done = CliRunner().invoke(main, [*words, "--token-file", str(file), "whoami", "--json"])
    quotas_reply = json.loads(done.stdout)
    assert quotas_reply["quotas"]["vertices_max"] == {"bound": 10, "used": None, "counted": "query"}
    assert metered.tokens.tokens["ann"] not in shown.stdout + done.stdout


def test_doctor_requires_the_admin_role(metered: Metered, tmp_path: Path) -> None:
    for name, word in (("root", "Examined 2 nodes"), ("bob", "expected the role admin")):
        file = token_file(tmp_path / name, metered.tokens.tokens[name])
        words = ["--node", metered.cluster.addresses[0], "--tls", str(metered.tls)]
        done = CliRunner().invoke(main, [*words, "--token-file", str(file), "doctor"])
        assert word in " ".join(done.output.split()), done.output


# --- the audit log -------------------------------------------------------------------------------


def test_audit_log_records_principal_action_and_outcome(metered: Metered) -> None:
    with metered.connect("root") as root, metered.connect("bob") as bob:
        root.create_dataset(galileo.Schema("hail", [galileo.Feature("size", "mm")]))
        root.set_retention("hail", DAY)
        node = root.status().nodes[0].name
        root.drain(node)
        root.drain(node, undo=True)
        made = bob.submit("rain", "", interval="1h", expiration="1h")
        own = bob.submit("rain", "", interval="1h", expiration="1h")
        root.cancel(made.id)
        bob.cancel(own.id)
        with pytest.raises(Forbidden):
            bob.set_retention("hail", DAY)
    [created] = metered.events(action="create-dataset", object="hail")
    assert created["principal"] == "root"
    assert created["roles"] == ["admin"]
    assert created["peer"].startswith("ipv4:127.0.0.1:")
    assert created["outcome"] == "done"
    assert len(created["request"]) == 16
    assert metered.events(action="set-retention", object="hail", outcome="done")
    assert metered.events(action="drain", object=node, principal="root")
    assert metered.events(action="undrain", object=node, principal="root")
    assert [one["object"] for one in metered.events(action="cancel-ccq")] == [made.id]
    # The caller knows first.
    [refused] = wait_until(
        lambda: metered.events(action="Cluster/SetRetention", outcome="forbidden")
    )
    # Its request, which names the dataset, is not read.
    assert (refused["principal"], refused["object"]) == ("bob", "")
    assert metered.events(action="start")


@pytest.mark.slow
@pytest.mark.skipif(
    unavailable_reason() is not None, reason=f"sent code is not run here: {unavailable_reason()}"
)
def test_sent_samplers_shows_queries_to_owner_and_admin_only(
    metered: Metered, tmp_path: Path
) -> None:
    (tmp_path / "none.py").write_text(NONE)
    archive = galileo.sampler_archive(tmp_path / "none.py")
    uses: dict[str, Any] = {}
    with metered.connect("sam") as sam:
        made = sam.submit("rain", sampler=galileo.sampler(archive), interval="1h", expiration="1h")
        for name in ("sam", "root", "bob"):
            with metered.connect(name) as caller:
                [one] = [s for s in caller.sent_samplers() if s.digest == archive.digest]
                uses[name] = one.ccq_ids
        assert uses == {"sam": (made.id,), "root": (made.id,), "bob": ()}
        sam.cancel(made.id)
    item = storage_pb2.ScanItem(
        dataset="rain", query_json="true", sampler_json=galileo.sampler(archive).to_json()
    )
    with metered.channel("bob") as channel:
        list(stub_of(STORAGE, channel).Scan(storage_pb2.ScanRequest(items=[item])))
    ran = wait_until(lambda: metered.events(action="run-sampler", principal="bob"))
    assert [one["object"] for one in ran] == [archive.digest]
    assert not metered.events(action="run-sampler", roles=["node"]), "they do so all the time"


def test_audit_log_records_partition_moves(metered: Metered) -> None:
    with metered.channel("root") as channel:
        steps = stub_of(PARTITIONS, channel).Move(partitions_pb2.MoveRequest(partition=0, to="x"))
        with pytest.raises(grpc.RpcError):
            list(steps)
    [event] = wait_until(lambda: metered.events(action="move-partition"))
    assert (event["principal"], event["object"], event["outcome"]) == (
        "root",
        "0 x",
        "invalid_input",
    )


def test_audit_log_groups_repeated_refusals(metered: Metered) -> None:
    begun = time.monotonic()
    proof = galileo.client.Credentials("glt_planted-of-no-principal", tls=metered.tls)
    with Client(metered.cluster.addresses[0], proof=proof) as stranger:
        for _ in range(30):
            with pytest.raises(Unauthenticated):
                stranger.whoami()
    events = wait_until(
        lambda: metered.events(action="Cluster/Status", outcome="unauthenticated", principal="")
    )
    # The first one; the others wait for those that may follow. Some are of another test.
    assert 1 <= len(events) <= 3 + (time.monotonic() - begun) / TOGETHER_S
    everything = "".join(one.read_text() for one in metered.cluster.directory.rglob(AUDIT + "*"))
    for secret in ("glt_planted", *metered.tokens.tokens.values()):
        assert secret not in everything


@pytest.mark.slow
def test_audit_log_records_reloads_of_the_token_file(metered: Metered) -> None:
    before = len(metered.events(action="reload-principals"))
    metered.tokens.add("new", Role.READER)
    assert "[role.reader]" in metered.tokens.path.read_text(), "what others wrote is kept"

    def is_known() -> bool:
        try:
            with metered.connect("new", timeout="10ms") as new:
                return new.whoami().name == "new"
        except Unauthenticated:
            return False

    wait_until(is_known)
    events = metered.events(action="reload-principals", outcome="done")
    assert len(events) > before
    text = metered.tokens.path.read_text()
    metered.tokens.path.write_text(text + "\nsecret = 3\n")

    def is_refused() -> list[Any]:
        with metered.connect("root") as root:
            root.whoami()
        return metered.events(action="reload-principals", outcome="config")

    wait_until(is_refused)
    metered.tokens.path.write_text(text)
