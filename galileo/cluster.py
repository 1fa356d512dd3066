"""A whole cluster on this machine, for notebooks and tests: real processes and ports."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import random
import shutil
import signal
import socket
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from galileo.client import Client, ClusterStatus, Credentials
from galileo.dht.topology import (
    Topology,
    derive_partitions,
    even_ranges,
)
from galileo.errors import ConfigError, InputError, Unavailable
from galileo.local_node import START_TIMEOUT_S, STOP_TIMEOUT_S, LocalNode
from galileo.local_services import LocalGateway, LocalWorker
from galileo.model.times import Duration
from galileo.optional_imports import require
from galileo.spark.runtime_dir import RuntimeDir
from galileo.wire import forks

PORT_MAX = 65_535
FREE_PORTS = range(10_000, 32_768)
PORT_ATTEMPTS_MAX = 1_000
REPLICAS = 3
"""Copies of a new cluster whose groups have as many nodes."""
COPIES_TIMEOUT_S = 15.0
"""Longest wait for the copies of a cluster's partitions; a lost disk takes longer."""
PORT_TIMEOUT_S = 3.0
"""Longest wait for a port to become free."""
ADDRESSES = "addresses.json"
"""The file that stores the ports."""
JOINED = "joined.json"
REMOVED = "removed.json"
"""The file that stores the groups of added nodes."""


class LocalCluster:
    """A cluster of node processes on loopback addresses.

    Args:
        nodes: the number of nodes, which are assigned to the groups in turn.
        groups: the number of groups: by default 1, or as many as an existing directory has.
        directory: of data, configuration and logs; without it a temporary directory, which is
            removed at the end. An existing directory with the same numbers keeps its data.
        port: of the first node, the others follow; free ports by default.
        partitions_per_group: by default twice the nodes of the largest group, at least 4; an
            existing directory keeps its number. See docs/sizing.md.
        replicas: the copies of each partition, on different nodes of its group: by default 3 if
            each group has at least three nodes, else 1; an existing directory keeps its number.
            See docs/replication.md.
        settings: further configuration, {"section": {"key": value}}.
        proof: the credentials of its clients, if `settings` require authentication.

    Use it in a `with` block, which starts and stops the processes.

    Example:
        >>> with galileo.LocalCluster(nodes=3) as cluster:  # doctest: +SKIP
        ...     print(cluster.client().datasets())
        []
    """

    def __init__(
        self,
        nodes: int = 3,
        groups: int | None = None,
        directory: str | Path | None = None,
        *,
        port: int | None = None,
        partitions_per_group: int | None = None,
        replicas: int | None = None,
        settings: dict[str, dict[str, Any]] | None = None,
        proof: Credentials | None = None,
    ) -> None:
        require("server", purpose="a cluster on this machine")
        self._proof = proof or Credentials()
        _check_counts(nodes, 1 if groups is None else groups)
        self._temporary = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="galileo-")).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        stored = self._stored_cluster()
        if groups is None:
            groups = 1 if stored is None else len(stored["groups"])
        self._expect_counts(stored, nodes, groups)
        if partitions_per_group is None:
            partitions_per_group = (
                derive_partitions(-(-nodes // groups))
                if stored is None
                else stored["partitions_per_group"]
            )
        self._replicas = replicas
        if replicas is None:
            first = REPLICAS if nodes // groups >= REPLICAS else 1
            replicas = first if stored is None else stored["replicas"]
        self._settings = settings or {}
        self._clients: list[Client] = []
        self._refused = False
        joined = self._joined()
        addresses = self._addresses(nodes + len(joined), port)
        names = [f"node-{number + 1}" for number in range(nodes + len(joined))]
        self._topology: dict[str, Any] = {
            "name": f"local-{os.getpid()}-{addresses[0].rpartition(':')[2]}",
            "partitions_per_group": partitions_per_group,
            "replicas": replicas,
            "ranges": [list(pair) for pair in even_ranges(groups)],
            "groups": [
                {
                    "name": f"group-{group + 1}",
                    "nodes": [
                        {"name": names[n], "address": addresses[n]}
                        for n in range(group, nodes, groups)
                    ],
                }
                for group in range(groups)
            ],
        }
        self._address_of = dict(zip(names, addresses, strict=True))
        self._groups_joined: dict[str, str] = {}
        for number, group in enumerate(joined, start=nodes):
            self._groups_joined[names[number]] = group
        removed = self._removed()
        self.nodes = tuple(
            self._local_node(name, address)
            for name, address in self._address_of.items()
            if name not in removed
        )

    def _stored_cluster(self) -> dict[str, Any] | None:
        """The [cluster] table of an existing directory; node-1 may be lost or removed."""
        config = self._config_of("node-1")
        if not config.exists() or not any(one.is_dir() for one in self.directory.glob("node-*")):
            return None
        table: dict[str, Any] = tomllib.loads(config.read_text())["cluster"]
        return table

    def _expect_counts(self, stored: dict[str, Any] | None, nodes: int, groups: int) -> None:
        """Raises ConfigError if the directory has a cluster with other numbers."""
        if stored is None:
            return
        known = stored["groups"]
        count = sum(len(group["nodes"]) for group in known)
        if (count, len(known)) != (nodes, groups):
            raise ConfigError(
                f"the data in {self.directory} belongs to {count} nodes in {len(known)} groups, "
                f"got {nodes} nodes in {groups} groups",
                remedy="cluster_counts",
                expected={"nodes": count, "groups": len(known)},
            )

    @property
    def addresses(self) -> list[str]:
        """The addresses of its nodes, "host:port", as for `connect`."""
        return [node.address for node in self.nodes]

    @property
    def evaluator_directory(self) -> Path:
        """The directory of the Spark evaluator."""
        return self.directory / "evaluator"

    def __enter__(self) -> LocalCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts all nodes, and waits until they serve and have found each other.

        With copies it also waits, for 15 seconds at most, until each partition has all of them.

        Raises:
            InputError: another program has the ports or the directory, or this process was
                forked while gRPC ran.
            Unavailable: a node does not start; with the end of its log.

        Example:
            >>> cluster = galileo.LocalCluster(nodes=1, groups=1)
            >>> cluster.start()  # doctest: +SKIP
        """
        forks.check()
        # If none of its nodes was started, an existing evaluator belongs to another cluster.
        self._refused = not any(node.was_started for node in self.nodes)
        self._expect_unused()
        self._refused = False
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait()
        self._await(lambda status: status.complete, START_TIMEOUT_S)
        self._set_replicas()
        self._await(lambda status: not status.under_replicated, COPIES_TIMEOUT_S)

    def _set_replicas(self) -> None:
        """Changes the number of copies of an existing directory to the one that was asked for."""
        if self._replicas is None:
            return
        with Client(*self.addresses, proof=self._proof) as client:
            if Topology.from_json(client.topology_json()).replicas == self._replicas:
                return
            client.set_replicas(self._replicas)

    def _expect_unused(self) -> None:
        """Raises InputError if another process listens at the addresses of this cluster."""
        idle = [node for node in self.nodes if not node.running]
        for node in idle:
            if _is_held(self.directory / node.name / "lock"):
                raise InputError(
                    f"expected a directory that no other cluster uses, got {self.directory}; "
                    "stop the one that runs there, or name another directory",
                    parameter="directory",
                )
        for listen in [node.listen or node.address for node in idle]:
            if not _is_free(listen):
                raise InputError(
                    f"expected a free port to listen on, got {listen}, where something "
                    "listens already; is it another cluster? Stop it, or name another port",
                    address=listen,
                )

    def _await(self, is_reached: Callable[[ClusterStatus], bool], timeout_s: float) -> None:
        """Waits until every node reports a status that is reached."""
        deadline = time.monotonic() + timeout_s
        for address in self.addresses:
            with Client(address, proof=self._proof) as client:
                while not is_reached(client.status()) and time.monotonic() < deadline:
                    time.sleep(0.05)

    def stop(self) -> None:
        """Stops all processes; removes a temporary directory.

        Example:
            >>> cluster = galileo.LocalCluster(nodes=1, groups=1)
            >>> cluster.stop()
        """
        for client in self._clients:
            client.close()
        self._clients.clear()
        for node in self.nodes:
            node.resume()
            node._signal(signal.SIGTERM)
        for node in self.nodes:
            node.stop()
        if not self._refused:
            stop_evaluator(self.evaluator_directory)
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def client(self, *, timeout: Duration | None = None) -> Client:
        """A client of this cluster; closed with it.

        Example:
            >>> client = cluster.client(timeout="1m")
            >>> client.count("weather")
            4
        """
        client = Client(*self.addresses, timeout=timeout, proof=self._proof)
        self._clients.append(client)
        return client

    def gateway(self, *, port: int = 0) -> LocalGateway:
        """An HTTP gateway of this cluster; use it in a `with` block.

        Args:
            port: to listen on; 0 for a free one.

        Example:
            >>> with cluster.gateway() as gateway:  # doctest: +SKIP
            ...     print(gateway.url)
            http://127.0.0.1:41473
        """
        tls = str(self._proof.tls)
        return LocalGateway(self.addresses, log=self.directory / "gateway.log", port=port, tls=tls)

    def worker(
        self, *, secrets: str | Path | None = None, allow: Sequence[str] = ("127.0.0.0/8", "::1")
    ) -> LocalWorker:
        """A worker, which pushes for brokers of this cluster; use it in a `with` block.

        Args:
            secrets: file of the rules that say which sinks may use which secrets.
            allow: hosts and networks without public addresses that sinks may reach; by default this
                machine.

        Example:
            >>> with cluster.worker():  # doctest: +SKIP
            ...     print(cluster.client().deliveries("hot"))
            []
        """
        words = [] if secrets is None else ["--secrets", str(secrets)]
        words += [word for one in allow for word in ("--allow", one)]
        log = self.directory / "worker.log"
        return LocalWorker(self.addresses, log=log, proof=self._proof, arguments=words)

    def node(self, name: str) -> LocalNode:
        """The node of that name.

        Raises:
            InputError: there is none.

        Example:
            >>> cluster.node("node-2").running
            True
        """
        for node in self.nodes:
            if node.name == name:
                return node
        names = ", ".join(node.name for node in self.nodes)
        raise InputError(f"no node is named {name!r}; the nodes are {names}", node=name)

    def join(self, group: int | str = 0, *, new_group: bool = False) -> LocalNode:
        """Makes a node that joins the running cluster when it is started.

        It has no partitions at first, and gets its share by itself.

        Args:
            group: the number of one of the first groups, or a name.
            new_group: whether a group of this name is made with this node, which has all its
                partitions. `Client.set_ranges` gives it ranges.

        Raises:
            InputError: there is no such group, or the new one exists.

        Example:
            >>> cluster = galileo.LocalCluster(nodes=1, groups=1)
            >>> cluster.join(group=0).name
            'node-2'
            >>> cluster.stop()
        """
        if isinstance(group, int):
            groups = self._topology["groups"]
            if not 0 <= group < len(groups):
                raise InputError(f"expected a group from 0 to {len(groups) - 1}, got {group}")
            group = str(groups[group]["name"])
        name, (address,) = f"node-{len(self._address_of) + 1}", _free_addresses(1)
        if new_group:
            with Client(*self.addresses, proof=self._proof) as client:
                client.add_node(name, address, group=group, new_group=True)
        self._address_of[name] = address
        self._groups_joined[name] = group
        node = self._local_node(name, address)
        self.nodes = (*self.nodes, node)
        self._store_addresses()
        (self.directory / JOINED).write_text(
            json.dumps([*self._joined(), self._groups_joined[name]])
        )
        self._write_config(name)
        return node

    def remove(self, name: str) -> None:
        """Removes a node from the running cluster: its data and queries move to other nodes.

        Its directory is deleted. A node that does not run is removed as lost for good.

        Raises:
            InputError: there is no such node, it is the last of its group, or it does not run and
                has the only copy of its partitions.
            Unavailable: a node cannot be reached; the same call goes on.

        Example:
            >>> cluster.remove("node-2")  # doctest: +SKIP
        """
        node = self.node(name)
        with Client(*self.addresses, proof=self._proof) as client:
            try:
                for _ in client.remove_node(name, lost=not node.running):
                    pass
            except InputError:
                if name in Topology.from_json(client.topology_json()).by_name:
                    raise
        node.wait_stopped()
        shutil.rmtree(self.directory / name, ignore_errors=True)
        self.nodes = tuple(one for one in self.nodes if one is not node)
        (self.directory / REMOVED).write_text(json.dumps([*self._removed(), name]))

    def _joined(self) -> list[str]:
        """The group of each added node."""
        path = self.directory / JOINED
        groups: list[str] = json.loads(path.read_text()) if path.exists() else []
        return groups

    def _removed(self) -> list[str]:
        path = self.directory / REMOVED
        names: list[str] = json.loads(path.read_text()) if path.exists() else []
        return names

    def _local_node(self, name: str, address: str) -> LocalNode:
        return LocalNode(
            name,
            address,
            config=self._config_of(name),
            write_config=functools.partial(self._write_config, name),
            listen=self._settings.get("node", {}).get("listen", ""),
            keys=self._proof.keys(),
        )

    def relocate(self, name: str) -> None:
        """Moves a stopped node to a new address and a copy of its directory.

        The old directory is deleted. The files of all nodes name the new address; running nodes
        learn it from the node.

        Raises:
            InputError: the node runs, or does not exist.

        Example:
            >>> cluster.node("node-2").stop()  # doctest: +SKIP
            >>> cluster.relocate("node-2")  # doctest: +SKIP
            >>> cluster.node("node-2").start()  # doctest: +SKIP
        """
        node = self.node(name)
        if node.running:
            raise InputError(f"expected node {name!r} to be down, but it runs; stop it first")
        place = self.directory / name
        copy = place.with_suffix(".copy")
        shutil.copytree(place, copy)
        shutil.rmtree(place)
        copy.rename(place)
        (node.address,) = _free_addresses(1)
        self._address_of[name] = node.address
        for group in self._topology["groups"]:
            for member in group["nodes"]:
                if member["name"] == name:
                    member["address"] = node.address
        self._remember()

    def _remember(self) -> None:
        """Writes the addresses and the configuration files of all nodes."""
        self._store_addresses()
        for node in self.nodes:
            self._write_config(node.name)

    def _store_addresses(self) -> None:
        (self.directory / ADDRESSES).write_text(json.dumps([*self._address_of.values()]))

    def _addresses(self, count: int, port: int | None) -> list[str]:
        """The stored ports of the directory, or free ones."""
        path = self.directory / ADDRESSES
        if port is not None:
            if not 1 <= port <= PORT_MAX - count + 1:
                raise InputError(
                    f"expected ports from 1 to {PORT_MAX}, got {port} for the first of {count}",
                    parameter="port",
                )
            return [f"127.0.0.1:{port + number}" for number in range(count)]
        if path.exists():
            known: list[str] = json.loads(path.read_text())
            if len(known) != count:
                raise InputError(
                    f"expected {len(known)} nodes as {self.directory} has data of, got {count}",
                    expected=len(known),
                )
            return known
        addresses = _free_addresses(count)
        path.write_text(json.dumps(addresses))
        return addresses

    def _config_of(self, name: str) -> Path:
        return self.directory / f"{name}.toml"

    def _write_config(self, name: str) -> None:
        sections: dict[str, dict[str, Any]] = {
            "node": {"name": name, "directory": str(self.directory / name)},
            "evaluator": {"directory": str(self.evaluator_directory)},
        }
        for section, values in self._settings.items():
            sections[section] = {**sections.get(section, {}), **values}
        tables: list[tuple[str, dict[str, Any]]] = [*sections.items()]
        if name in self._groups_joined:
            present = [node.address for node in self.nodes if node.name != name]
            sections["node"] |= {"join": present, "group": self._groups_joined[name]}
            sections["node"].setdefault("listen", self._address_of[name])
            sections["node"]["address"] = self._address_of[name]
        else:
            tables.append(("cluster", self._topology))
        text = "\n".join(_toml_table(key, values) for key, values in tables)
        self._config_of(name).write_text(text)


def _check_counts(nodes: object, groups: object) -> None:
    if type(nodes) is not int or type(groups) is not int or not 1 <= groups <= nodes:
        raise InputError(
            f"expected at least one node in each group, got {nodes!r} nodes and {groups!r} groups",
            parameter="nodes",
        )


def stop_evaluator(directory: Path, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Stops the evaluator process of a directory, if there is one; kills it after the timeout."""
    process = RuntimeDir(directory).holder() if directory.is_dir() else None
    if process is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        # A JVM that is still starting does not detect the end of its evaluator.
        family = [process, *process.children(recursive=True)]
        process.terminate()
        _, alive = psutil.wait_procs(family, timeout=timeout_s)
        for node in alive:
            node.kill()
        psutil.wait_procs(alive, timeout=timeout_s)


def free_ports(count: int) -> list[int]:
    """Free ports of this machine for processes that are started next.

    They are below Linux's range of ephemeral ports, so that no connection takes one meanwhile.
    """
    ports: list[int] = []
    for port in random.SystemRandom().sample(FREE_PORTS, PORT_ATTEMPTS_MAX):
        if len(ports) == count:
            return ports
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    raise Unavailable(f"expected {count} free ports of 127.0.0.1, found {len(ports)}; close others")


def _free_addresses(count: int) -> list[str]:
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def _is_free(address: str) -> bool:
    """Whether a port is free; waits shortly for one that is being closed."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + PORT_TIMEOUT_S
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, int(port)))
            except (OSError, ValueError, OverflowError) as error:
                if getattr(error, "errno", None) != errno.EADDRINUSE:
                    return True  # The node's log names the reason.
                if time.monotonic() > deadline:
                    return False
            else:
                return True
        time.sleep(0.05)


def _is_held(lock: Path) -> bool:
    """Whether a process has locked the file; see `galileo.storage.store`."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _toml_table(name: str, values: dict[str, Any]) -> str:
    lines = [f"{key} = {_toml(value)}" for key, value in values.items()]
    return "\n".join([f"[{name}]", *lines, ""])


def _toml(value: Any) -> str:
    """Formats plain values as TOML; tables within lists are inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value)
