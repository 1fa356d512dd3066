"""Clusters whose evaluators are applications of a standalone cluster of Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from proving import Certified, Tokens, tls_section, token_file
from spark_standalone import Programs, Standalone, authenticating
from waiting import wait_until

import galileo
from galileo.client import Client
from galileo.cluster import stop_evaluator
from galileo.model.times import times_from_micros
from galileo.private_ca import Subject, issue
from galileo.rpc.access import Role
from galileo.spark.runtime_dir import RuntimeDir

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TIMEOUT_S = 180.0
PAUSE_S = 0.1
KEY = ("partition", "sequence", "row")
SECRET = "planted-secret-of-spark"
QUERY = "temperature > 280"


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    directory = tmp_path / "spark"
    directory.mkdir()
    running = Programs(directory)
    yield running
    running.stop()


def observations(number: int, *, rows: int = 200) -> pa.Table:
    places = np.arange(rows)
    start_us = 1_330_560_000_000_000 + number * 1_000_000
    return pa.table(
        {
            "latitude": places % 160 - 80.0,
            "longitude": places % 360 - 180.0,
            "time": times_from_micros(start_us + places),
            "temperature": 260.0 + places % 40,
        }
    )


class Stream:
    """Ingests batches one after the other in the block, until it is left."""

    def __init__(self, client: Client, dataset: str) -> None:
        self._client, self._dataset = client, dataset
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.batches = 0

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            self._client.ingest(self._dataset, observations(self.batches))
            self.batches += 1

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


class Reader:
    """Fetches a query, and keeps the keys of all labels that came, repeated ones too."""

    def __init__(self, client: Client, ccq: galileo.Ccq) -> None:
        self._client, self._ccq, self._token = client, ccq, ""
        self.keys: list[tuple[int, int, int]] = []

    def fetch(self) -> int:
        """The number of labels that came."""
        update = self._client.fetch(self._ccq.id, token=self._token, wait="1s")
        self._token = update.token
        columns = (update.labels.table.column(name).to_pylist() for name in KEY)
        before = len(self.keys)
        self.keys += zip(*columns, strict=True)
        return len(self.keys) - before

    def wait_for_news(self, what: str, *, within_s: float = TIMEOUT_S) -> float:
        """Seconds until labels of an evaluation came that was not known at the call."""
        self.fetch()
        begun = time.monotonic()
        wait_until(self.fetch, what, timeout_s=within_s)
        return time.monotonic() - begun

    def wait_for_all(self, dataset: str) -> None:
        wanted = self._client.query(dataset, QUERY)
        columns = (wanted.table.column(name).to_pylist() for name in KEY)
        keys = sorted(zip(*columns, strict=True))
        wait_until(lambda: self.fetch() >= 0 and len(self.keys) >= len(keys), "labels are missing")
        assert sorted(self.keys) == keys


def created(client: Client, name: str = "air") -> str:
    client.create_dataset(galileo.Schema(name, [galileo.Feature("temperature", "K")]))
    client.ingest(name, observations(-1))
    return name


def applications(spark: Standalone) -> list[dict[str, Any]]:
    """Those that the master lists as active."""
    with urllib.request.urlopen(f"http://{spark.host}:{spark.ui_port}/json/", timeout=30) as reply:
        active: list[dict[str, Any]] = json.load(reply)["activeapps"]
    return active


def family_of(cluster: galileo.LocalCluster | HostNode) -> list[psutil.Process]:
    """The evaluator and its processes, the JVM among them."""
    process = RuntimeDir(cluster.evaluator_directory).holder()
    assert process is not None
    return [process, *process.children(recursive=True)]


def test_evaluation_with_failing_spark_cluster_recovers_without_losses(
    programs: Programs, tmp_path: Path
) -> None:
    spark = Standalone(programs, settings={"spark.deploy.maxExecutorRetries": "1"})
    settings = {"spark": {"master": spark.address}}
    with galileo.LocalCluster(2, 1, tmp_path / "cluster", settings=settings) as cluster:
        client = cluster.client(timeout="3m")
        dataset = created(client)
        ccq = client.submit(dataset, QUERY, interval=0.25, expiration="1h")
        reader = Reader(client, ccq)
        reader.fetch()

        def problems() -> list[str]:
            found = client.status().nodes
            return [node.evaluator_problem for node in found if node.evaluator_problem]

        with Stream(cluster.client(timeout="3m"), dataset):
            wait_until(problems, "status does not say that there is no master")
            assert f"127.0.0.1:{spark.port}" in problems()[0]
            spark.start(workers=2)
            taken = {"the start of a Spark cluster": reader.wait_for_news("no update at the start")}
            assert not problems()
            evaluator = family_of(cluster)[0]

            spark.kill_worker()
            taken["the kill of a worker"] = reader.wait_for_news("no update without a worker")
            assert family_of(cluster)[0] == evaluator
            spark.start_worker()
            # Of the worker that had one all the time, while the new one starts its own.
            spark.executors()[0].kill()
            taken["the kill of an executor"] = reader.wait_for_news("no update after a kill")

            evaluator = family_of(cluster)[0]
            spark.kill_master()
            taken["the kill of the master"] = reader.wait_for_news("no update without a master")
            spark.start_master()
            wait_until(
                lambda: not evaluator.is_running(), "the evaluator does not see that it is unknown"
            )
            taken["the return of the master"] = reader.wait_for_news("no update from a new master")
            wait_until(lambda: len(applications(spark)) == 1, "there is an orphan application")

            # More of them than the master lets an application lose without any that runs.
            for executor in spark.executors():
                executor.kill()
            taken["the removal of the application"] = reader.wait_for_news("no update")
            wait_until(lambda: len(applications(spark)) == 1, "there is an orphan application")

            evaluator = family_of(cluster)[0]
            evaluator.kill()
            taken["the kill of the evaluator"] = reader.wait_for_news("no update")
            wait_until(lambda: len(applications(spark)) == 1, "there is an orphan application")
        reader.wait_for_all(dataset)
        assert not problems()
    wait_until(lambda: not applications(spark), "an application outlives its cluster")
    assert not spark.executors()
    for what, seconds in taken.items():
        print(f"{what}: next update after {seconds:.1f} s")


def test_evaluation_on_protected_standalone_cluster_leaks_no_secret(
    programs: Programs, tmp_path: Path
) -> None:
    certified, tokens = Certified.made(tmp_path), Tokens.made(tmp_path / "principals.toml")
    tokens.add("root", Role.ADMIN)
    own = token_file(tmp_path / "node.token", tokens.add("nodes", Role.NODE))
    secret = token_file(tmp_path / "spark.secret", SECRET)
    spark = Standalone(programs, settings=authenticating(SECRET))
    spark.start(workers=2)
    settings = {
        "tls": tls_section(certified.of("node", "node")),
        "auth": {"token_file": str(tokens.path), "node_token_file": str(own)},
        "spark": {"master": spark.address, "secret_file": str(secret)},
    }
    proof = tokens.proof("root", tls=certified.of("client", "client"))
    cluster = galileo.LocalCluster(2, 1, tmp_path / "cluster", settings=settings, proof=proof)
    with cluster:
        client = cluster.client(timeout="3m")
        dataset = created(client)
        readers = [
            Reader(client, client.submit(dataset, QUERY, interval=0.25, sampler=sampler))
            for sampler in (None, galileo.sampler("uniform", fraction=0.5))
        ]
        with Stream(cluster.client(timeout="3m"), dataset):
            for reader in readers:
                reader.wait_for_news("no update with certificates and tokens")
        readers[0].wait_for_all(dataset)
        assert set(readers[1].keys) < set(readers[0].keys)

        family = family_of(cluster)
        assert {ip for process in family for ip in listening_at(process)} == {"127.0.0.1"}
        shown = [word for one in psutil.process_iter() for word in _command(one)]
    texts = [path.read_text(errors="replace") for path in tmp_path.rglob("*.log")]
    texts += [path.read_text(errors="replace") for path in programs.directory.rglob("std*")]
    assert any("executor" in text.lower() for text in texts)
    key = (tmp_path / "node" / "key.pem").read_text().splitlines()[1]
    for planted in (SECRET, key, *tokens.tokens.values()):
        assert not [word for word in shown if planted in word]
        assert not [text for text in texts if planted in text]


def listening_at(process: psutil.Process) -> set[str]:
    """The addresses at which a process accepts connections."""
    found = process.net_connections("inet")
    addresses = [one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN]
    return {address.removeprefix("::ffff:") for address in addresses}


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_evaluators_of_two_clusters_share_one_standalone_cluster(
    programs: Programs, tmp_path: Path
) -> None:
    spark = Standalone(programs)
    spark.start(workers=2)
    settings = {"spark": {"master": spark.address, "cores_max": 1}}
    directories = [tmp_path / "one", tmp_path / "other"]
    clusters = [galileo.LocalCluster(1, 1, one, settings=settings) for one in directories]
    try:
        readers = []
        for cluster in clusters:
            cluster.start()
            client = cluster.client(timeout="3m")
            dataset = created(client)
            ccq = client.submit(dataset, QUERY, interval=0.25)
            readers.append((cluster, client, dataset, Reader(client, ccq)))
        for _, client, dataset, reader in readers:
            reader.fetch()
            client.ingest(dataset, observations(0))
            reader.wait_for_all(dataset)
        assert sorted(one["cores"] for one in applications(spark)) == [1, 1]
    finally:
        for cluster in clusters:
            cluster.stop()
            stop_evaluator(cluster.evaluator_directory)


@dataclass(frozen=True)
class Host:
    """A network namespace with an address of its own."""

    name: str
    address: str

    @property
    def within(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """Two namespaces that reach each other and this one."""
    number = os.getpid() % 250
    bridge, network = f"gsb{number}", f"10.201.{number}"
    made = [Host(f"gsn{number}-{n}", f"{network}.{n}") for n in (2, 3)]
    commands = [
        f"link add {bridge} type bridge",
        f"addr add {network}.1/24 dev {bridge}",
        f"link set {bridge} up",
    ]
    for n, host in enumerate(made):
        inside, outside = f"gsi{number}-{n}", f"gso{number}-{n}"
        commands += [
            f"netns add {host.name}",
            f"link add {outside} type veth peer name {inside} netns {host.name}",
            f"link set {outside} master {bridge} up",
            f"-n {host.name} link set lo up",
            f"-n {host.name} addr add {host.address}/24 dev {inside}",
            f"-n {host.name} link set {inside} up",
        ]
    try:
        for command in commands:
            done = subprocess.run(["ip", *command.split()], capture_output=True, check=False)
            if done.returncode:
                pytest.skip(f"this machine makes no network namespaces: {done.stderr.decode()}")
        yield made
    finally:
        for command in (*(f"netns del {host.name}" for host in made), f"link del {bridge}"):
            subprocess.run(["ip", *command.split()], capture_output=True, check=False)


def listening_within(host: Host, process: psutil.Process) -> set[str]:
    """As `listening_at`, of a process on another host."""
    command = [
        *host.within,
        "ss",
        "--listening",
        "--tcp",
        "--numeric",
        "--processes",
        "--no-header",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if f"pid={process.pid}," in line]
    places = [line.split()[3].rpartition(":")[0].strip("[]") for line in lines]
    return {place.removeprefix("::ffff:") for place in places}


class HostNode:
    """A node process on a host, which has its own evaluator."""

    def __init__(self, host: Host, config: Path, evaluator: Path) -> None:
        self.evaluator_directory = evaluator
        with config.with_suffix(".log").open("wb") as log:
            self._process = subprocess.Popen(
                [*host.within, sys.executable, "-m", "galileo", "serve", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        stop_evaluator(self.evaluator_directory)


def config_of(number: int, hosts: list[Host], directory: Path, **sections: dict[str, str]) -> Path:
    """The file of a node; each host has one."""
    name = f"node-{number}"
    nodes = [
        f'{{name = "node-{n}", address = "{one.address}:7701"}}' for n, one in enumerate(hosts)
    ]
    sections = {
        "node": {"name": name, "directory": str(directory / name)},
        "evaluator": {"directory": str(directory / f"evaluator-{number}")},
        **sections,
    }
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f'{key} = "{value}"' for key, value in values.items())]
    groups = '[cluster]\nname = "two-hosts"\n[[cluster.groups]]\nname = "g"\n'
    path = directory / f"{name}.toml"
    path.write_text("\n".join([*lines, groups, f"nodes = [{', '.join(nodes)}]", ""]))
    return path


def test_evaluators_of_two_hosts_share_one_standalone_cluster(
    hosts: list[Host], tmp_path: Path
) -> None:
    certified, tokens = Certified.made(tmp_path), Tokens.made(tmp_path / "principals.toml")
    tokens.add("root", Role.ADMIN)
    own = token_file(tmp_path / "node.token", tokens.add("nodes", Role.NODE))
    secret = token_file(tmp_path / "spark.secret", SECRET)
    proof = tokens.proof("root", tls=certified.of("client", "client"))
    with ExitStack() as stack:
        programs = []
        for number, host in enumerate(hosts):
            (tmp_path / f"spark-{number}").mkdir()
            programs.append(Programs(tmp_path / f"spark-{number}", within=host.within))
            stack.callback(programs[-1].stop)
        spark = Standalone(programs[0], host=hosts[0].address, settings=authenticating(SECRET))
        spark.start_master()
        for one, host in zip(programs, hosts, strict=True):
            spark.start_worker(host=host.address, programs=one)
        nodes = []
        for number, host in enumerate(hosts):
            subject = Subject("node", f"node-{number}", (host.address,))
            keys = issue(tmp_path / "authority", subject, target=tmp_path / f"keys-{number}")
            config = config_of(
                number,
                hosts,
                tmp_path,
                tls=tls_section(keys),
                auth={"token_file": str(tokens.path), "node_token_file": str(own)},
                spark={
                    "master": spark.address,
                    "cores_max": "1",
                    "secret_file": str(secret),
                },
            )
            nodes.append(HostNode(host, config, tmp_path / f"evaluator-{number}"))
            stack.callback(nodes[-1].stop)
        client = stack.enter_context(
            Client(*(f"{host.address}:7701" for host in hosts), proof=proof, timeout="3m")
        )
        wait_until(lambda: client.status().complete, "the nodes do not find each other")
        dataset = created(client)
        readers: list[Reader] = []

        def both_coordinate() -> bool:
            readers.append(Reader(client, client.submit(dataset, QUERY, interval=0.25)))
            return all(node.ccqs_coordinated for node in client.status().nodes)

        wait_until(both_coordinate, "a node coordinates nothing")
        for reader in readers:
            reader.fetch()
        client.ingest(dataset, observations(0))
        for reader in readers:
            reader.wait_for_all(dataset)
        assert sorted(one["cores"] for one in applications(spark)) == [1, 1]
        for host, node in zip(hosts, nodes, strict=True):
            listening = {ip for one in family_of(node) for ip in listening_within(host, one)}
            assert listening == {"127.0.0.1", host.address}
