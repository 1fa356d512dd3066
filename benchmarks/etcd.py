"""An etcd cluster of the benchmark's own: three members on loopback, in a temporary directory."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.sizes import NotInstalled

MEMBERS = 3
CALL_S = 0.5
"""A member that does not answer a call for so long is passed over."""
START_S = 30.0
PAUSE_S = 0.005


@dataclass(slots=True)
class Member:
    """One member's process; `port` is that of its clients."""

    command: list[str]
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of etcd's JSON gateway; OSError if there is none."""
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=CALL_S)
        ) as connection:
            connection.request("POST", f"/v3/{path}", json.dumps(body))
            answer = connection.getresponse()
            data = answer.read()
            if answer.status != http.client.OK:
                raise OSError(f"{path}: {answer.status} {data!r}")
            found: dict[str, Any] = json.loads(data)
            return found


class Cluster:
    """The members, and what the benchmark asks of them."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members

    def put(self, value: int) -> None:
        """Stores a value at any member that takes it; tries until one does."""
        body = {
            "key": base64.b64encode(b"key").decode(),
            "value": base64.b64encode(str(value).encode()).decode(),
        }
        while True:
            for member in self.members:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    member.call("kv/put", body)
                    return
            time.sleep(PAUSE_S)

    def leader(self) -> Member:
        """The member that leads, as soon as there is one."""
        while True:
            for member in self.members:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    status = member.call("maintenance/status", {})
                    if status.get("leader") == status["header"]["member_id"]:
                        return member
            time.sleep(PAUSE_S)

    def wait(self) -> None:
        """Returns when every member follows one leader."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                leaders = [one.call("maintenance/status", {}).get("leader") for one in self.members]
                if leaders[0] and len(set(leaders)) == 1:
                    return
            time.sleep(PAUSE_S)
        raise TimeoutError(f"expected etcd to elect a leader within {START_S:.0f} s")


class Register:
    """One key, read and changed by transactions over a connection that stays open."""

    def __init__(self, member: Member) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", member.port, timeout=START_S)
        self._key = base64.b64encode(b"register").decode()

    def read(self) -> tuple[int, int]:
        """The value, and the revision in which it was stored; 0 and 0 if there is none."""
        found = self._post("kv/range", {"key": self._key}).get("kvs", [])
        if not found:
            return 0, 0
        return int(base64.b64decode(found[0]["value"])), int(found[0]["mod_revision"])

    def replace(self, value: int, *, revision: int) -> bool:
        """Stores a value if the present one is of a revision; whether it has."""
        text = base64.b64encode(str(value).encode()).decode()
        condition = {"key": self._key, "target": "MOD", "mod_revision": str(revision)}
        put = {"request_put": {"key": self._key, "value": text}}
        answer = self._post("kv/txn", {"compare": [condition], "success": [put]})
        return bool(answer.get("succeeded", False))

    def close(self) -> None:
        self._connection.close()

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._connection.request("POST", f"/v3/{path}", json.dumps(body))
        answer = self._connection.getresponse()
        found: dict[str, Any] = json.loads(answer.read())
        if answer.status != http.client.OK:
            raise OSError(f"{path}: {answer.status} {found}")
        return found


def version() -> str:
    """The version of etcd.

    Raises:
        NotInstalled: it is not installed.
    """
    said = subprocess.run([_program(), "--version"], capture_output=True, text=True)
    return said.stdout.split()[2]


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """A cluster with the settings that etcd has by default.

    Raises:
        NotInstalled: it is not installed.
    """
    program = _program()
    with tempfile.TemporaryDirectory(prefix="etcd-bench-") as name:
        ports = _free_ports(2 * MEMBERS)
        peers = [f"m{n}=http://127.0.0.1:{port}" for n, port in enumerate(ports[MEMBERS:])]
        members = []
        for number in range(MEMBERS):
            port, peer = ports[number], ports[MEMBERS + number]
            command = [
                *(program, "--name", f"m{number}", "--data-dir", str(Path(name) / f"m{number}")),
                *("--listen-client-urls", f"http://127.0.0.1:{port}"),
                *("--advertise-client-urls", f"http://127.0.0.1:{port}"),
                *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
                *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
                *("--initial-cluster", ",".join(peers)),
            ]
            members.append(Member(command, port))
        try:
            for member in members:
                member.start()
            cluster = Cluster(members)
            cluster.wait()
            yield cluster
        finally:
            for member in members:
                member.kill()


def _program() -> str:
    found = shutil.which("etcd")
    if found is None:
        raise NotInstalled("etcd is not installed; on Debian: apt-get install etcd-server")
    return found


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
