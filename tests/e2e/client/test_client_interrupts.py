"""Ctrl-C at real programs and commands: it ends the calls that nodes execute for them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv
import pytest
from processes import ended

import galileo
from galileo.cli import EXIT_INTERRUPTED
from galileo.labels import LabelSet
from galileo.wire.v1 import continuous_pb2, query_pb2, storage_pb2

ROWS = 40_000
FETCH_WAIT_S = 60
"""None of the calls ends earlier by itself."""
HANGS_S = FETCH_WAIT_S / 2
"""What is not over by then was not ended by the interrupt, however busy the machine is."""
ATTEMPTS = 5
"""To see a command at work that ends by itself."""
STARTS_WITHIN_S = 90.0
OWN = ("Query/", "Storage/", "Continuous/Fetch", "Continuous/Watch")
"""Calls that clients, and nodes for them, make to have work done."""

CALLS = {
    # Nodes may be done before the client has taken what its connection holds.
    "query": "while True: client.query(name, progress=linger)",
    # With a limit all labels come through one node, which keeps what its connection cannot take.
    "query_batches": "for batch in client.query_batches(name, limit=1 << 30): linger(60)",
    "read": "while True: client.read(some, progress=linger)",
    "read_batches": "for table in client.read_batches(some): linger(60)",
    "select": "while True: client.select(name)",
    "ingest": "client.ingest(name + '-in', endless())",
    "watch": "for update in client.watch(ccq, token=token): pass",
    "fetch": f"client.fetch(ccq, token=token, wait={FETCH_WAIT_S})",
}
PROGRAM = """
import itertools, signal, sys, time
import pyarrow as pa
import galileo

signal.signal(signal.SIGINT, signal.default_int_handler)
address, name, ccq, token = sys.argv[1:5]

def linger(_):
    time.sleep(0.3)

def endless():
    for number in itertools.count():
        yield pa.table({"latitude": [1.0] * 2000, "longitude": [2.0] * 2000,
            "time": ["2014-03-01T00:00:00Z"] * 2000, "number": [float(number)] * 2000,
            "text": ["x"] * 2000, "note": ["y"] * 2000})

client = galileo.connect(address)
some = client.query(name)
print("ready", flush=True)
for call in sys.stdin:
    try:
        exec(call)
        print("ended", flush=True)
    except KeyboardInterrupt:
        # The same client goes on, and so does the program.
        assert client.count(name, "number < 10") == 10
        print("interrupted", flush=True)
"""


def columns(rows: int) -> dict[str, Any]:
    """Labels and observations of some hundred bytes, so that answers fill every queue."""
    number = np.arange(rows, dtype=float)
    text = pa.array(np.char.add(np.char.mod("%06d", np.arange(rows)), "x" * 300))
    return {
        "latitude": pa.array(10 + number % 50),
        "longitude": pa.array(20 + number % 70),
        "time": pa.array(["2014-03-01T00:00:00Z"] * rows),
        "number": pa.array(number),
        "text": text,
        "note": text,
    }


@pytest.fixture(scope="module")
def big(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    name = fresh_name("big")
    features = [
        galileo.Feature("number"),
        galileo.Feature("text", type="text"),
        galileo.Feature("note", type="text", indexed=False),
    ]
    for one in (name, f"{name}-in"):
        client.create_dataset(galileo.Schema(one, features, geohash_precision=2, time_bucket="1d"))
    client.ingest(name, pa.table(columns(ROWS)))
    return name


@pytest.fixture(scope="module")
def ccq(client: galileo.Client, big: str) -> Iterator[galileo.Ccq]:
    made = client.submit(big, "number < 0", interval="10m", expiration="1h")
    yield made
    client.cancel(made.id)


class Nodes:
    """What the nodes are at, as their status says."""

    def __init__(self, client: galileo.Client) -> None:
        self._client = client

    def calls(self) -> dict[str, int]:
        """Calls under way at all nodes, by name."""
        found: dict[str, int] = {}
        for node in self._client.status().nodes:
            for name, count in node.calls.items():
                if name.startswith(OWN):
                    found[name] = found.get(name, 0) + count
        return found

    def await_some(self, *names: str, of: subprocess.Popen[bytes] | None = None) -> bool:
        """Until calls of all these names, or any, are under way; False: the process ended first."""
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not (found := self.calls()) or not set(names) <= set(found):
            if of is not None and of.poll() is not None:
                return False
            assert time.monotonic() < deadline, found
            time.sleep(0.01)
        return True

    def await_none(self) -> None:
        """Returns when none is under way any more."""
        deadline = time.monotonic() + HANGS_S
        while left := self.calls():
            assert time.monotonic() < deadline, left
            time.sleep(0.02)


@pytest.fixture
def nodes(client: galileo.Client) -> Nodes:
    found = Nodes(client)
    found.await_none()
    return found


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_program_interrupted_leaves_no_call_at_nodes(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    big: str,
    ccq: galileo.Ccq,
    nodes: Nodes,
) -> None:
    words = [cluster.addresses[0], big, ccq.id, ccq.token]
    with running([sys.executable, "-c", PROGRAM, *words]) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for call in CALLS.values():
            interrupt(process, call, nodes)
    stored = client.count(f"{big}-in")
    assert stored % 2000 == 0, "an interrupted ingest stored whole batches"


def interrupt(process: subprocess.Popen[bytes], call: str, nodes: Nodes) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    nodes.await_none()
    process.stdin.write(f"{call}\n".encode())
    process.stdin.flush()
    nodes.await_some()
    process.send_signal(signal.SIGINT)
    nodes.await_none()
    assert process.stdout.readline() == b"interrupted\n", call


# What is typed, and the call by which one sees that it is under way.
COMMANDS = {
    "query BIG --output - --format csv": "Query/Run",
    "read BIG --output - --format ndjson": "Storage/Read",
    "ccq watch CCQ": "Continuous/Watch",
    "ingest BIG-in FILE": "Storage/Ingest",
}
# A shell starts what runs in the background with this signal ignored; so may pytest be.
MINDING = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from galileo.cli.main import main; sys.stdin.readline(); main()"
)


def command(address: str, *words: str) -> list[str]:
    """A command that begins when it is given a line."""
    return [sys.executable, "-c", MINDING, "--node", address, *words]


def begin(process: subprocess.Popen[bytes]) -> None:
    assert process.poll() is None, process.communicate()[1].decode()
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


@pytest.mark.slow
def test_commands_interrupted_leave_no_call_at_nodes(
    cluster: galileo.LocalCluster, big: str, tmp_path: Path, ccq: galileo.Ccq, nodes: Nodes
) -> None:
    file = tmp_path / "big.csv"
    pyarrow.csv.write_csv(pa.table(columns(ROWS)), file)
    given = {"BIG": big, "BIG-in": f"{big}-in", "FILE": str(file), "CCQ": ccq.id}
    with contextlib.ExitStack() as stack:
        typed = {text: [given.get(word, word) for word in text.split()] for text in COMMANDS}

        def start(text: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(running(command(cluster.addresses[0], *typed[text])))

        for text, first in [(text, start(text)) for text in COMMANDS]:
            processes = itertools.chain([first], (start(text) for _ in range(ATTEMPTS - 1)))
            assert any(command_interrupted(one, text, nodes) for one in processes), text


def command_interrupted(process: subprocess.Popen[bytes], text: str, nodes: Nodes) -> bool:
    """Whether it was at work; it leaves the nodes at rest."""
    begin(process)
    # The output is not read, so that a long one cannot end.
    if not nodes.await_some(COMMANDS[text], of=process):
        assert process.returncode == 0, (text, process.communicate()[1].decode())
        return False  # It was over before it was seen.
    process.send_signal(signal.SIGINT)
    nodes.await_none()
    _, result = process.communicate(timeout=HANGS_S)
    assert process.returncode == EXIT_INTERRUPTED, (text, result.decode())
    assert b"Traceback" not in result, text
    return True


@pytest.mark.slow
def test_sparql_interrupted_leaves_no_process(cluster: galileo.LocalCluster, big: str) -> None:
    """A product of three long lists takes for ever."""
    forever = "SELECT (COUNT(*) AS ?n) WHERE { ?a f:number ?x . ?b f:number ?y . ?c f:number ?z }"
    words = ["sparql", big, forever, "--query", "number < 2000", "--timeout", "600"]
    with running(command(cluster.addresses[0], *words)) as process:
        begin(process)
        ours = psutil.Process(process.pid)
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not (working := [one for one in ours.children(recursive=True) if is_busy(one)]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, result = process.communicate(timeout=HANGS_S)
        assert process.returncode == EXIT_INTERRUPTED, result.decode()
        assert b"Traceback" not in result
        assert ended(*(one.pid for one in working), within_s=HANGS_S)


def is_busy(process: psutil.Process) -> bool:
    """Whether it has computed for a while, beyond what its start takes."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.cpu_times().user > 0.5)
    return False


CANCELLED: dict[str, Callable[[galileo.AsyncClient, str, galileo.Ccq], Any]] = {
    "query_batches": lambda client, name, ccq: lingering(client.query_batches(name, limit=1 << 30)),
    "fetch": lambda client, name, ccq: client.fetch(ccq.id, token=ccq.token, wait=FETCH_WAIT_S),
    "watch": lambda client, name, ccq: lingering(client.watch(ccq.id, token=ccq.token)),
    "ingest": lambda client, name, ccq: forever(client, f"{name}-in"),
}


async def lingering(pieces: Any) -> None:
    async for _ in pieces:
        await asyncio.sleep(3600)


async def forever(client: galileo.AsyncClient, name: str) -> None:
    table = pa.table(columns(500))
    while True:
        await client.ingest(name, table)


@pytest.mark.parametrize("name", CANCELLED)
async def test_async_call_cancelled_leaves_no_call_at_nodes(
    name: str, cluster: galileo.LocalCluster, big: str, ccq: galileo.Ccq, nodes: Nodes
) -> None:
    async with galileo.AsyncClient(cluster.addresses[1]) as client:
        task = asyncio.create_task(CANCELLED[name](client, big, ccq))
        await asyncio.to_thread(nodes.await_some)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(nodes.await_none)
        assert await client.count(big, "number < 10") == 10


class Unfinished(grpc.GenericRpcHandler):
    """A node that begins its answers and ends none, and does not say which other nodes there are.

    Attributes:
        asked: set once it was asked for the topology.
        ended: set once the client has ended the answer.
    """

    def __init__(self, *messages: Any) -> None:
        self.asked = asyncio.Event()
        self.ended = asyncio.Event()
        self._messages = messages

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        is_topology = details.method.endswith("/Topology")
        return grpc.stream_stream_rpc_method_handler(self._wait if is_topology else self._answer)

    async def _wait(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        self.asked.set()
        await asyncio.Event().wait()
        yield b""

    async def _answer(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        try:
            for message in self._messages:
                yield message.SerializeToString()
            await asyncio.Event().wait()
        finally:
            self.ended.set()


def with_owner(client: galileo.AsyncClient) -> galileo.AsyncClient:
    """A client that takes its first node for the owner of all partitions."""

    async def owners(partitions: Iterable[int]) -> list[str]:
        return [client._caller.addresses[0] for _ in partitions]

    client._router.owners = owners  # type: ignore[method-assign]
    return client


EMPTY = galileo.Schema("empty", [galileo.Feature("number")])
STREAMS: dict[str, tuple[Callable[[galileo.AsyncClient], Any], tuple[Any, ...]]] = {
    "query_batches": (
        lambda client: client.query_batches(EMPTY.name),
        (query_pb2.QueryPart(head=query_pb2.QueryHead(schema_json=EMPTY.to_json())),),
    ),
    "read_batches": (
        lambda client: with_owner(client).read_batches(
            LabelSet(
                EMPTY,
                pa.Table.from_pylist(
                    [dict.fromkeys(EMPTY.label_schema.names, 1)], schema=EMPTY.label_schema
                ),
            )
        ),
        (storage_pb2.ReadPart(),),
    ),
    "watch": (
        lambda client: client.watch("ccq-1"),
        (
            continuous_pb2.FetchPart(
                head=continuous_pb2.SubmitHead(schema_json=EMPTY.to_json()),
            ),
            continuous_pb2.FetchPart(tail=continuous_pb2.FetchTail(token="first")),
        ),
    ),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_stream_cancelled_while_it_opens_is_ended(name: str) -> None:
    """The node has begun to answer, and the client asks it for the addresses of the others."""
    begin, messages = STREAMS[name]
    node, server = Unfinished(*messages), grpc.aio.server()
    server.add_generic_rpc_handlers((node,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with galileo.AsyncClient(f"127.0.0.1:{port}") as client:
            opening = asyncio.create_task(anext(aiter(begin(client))))
            await node.asked.wait()
            assert not node.ended.is_set()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await node.ended.wait()
    finally:
        await server.stop(0)


def test_status_lists_running_calls(client: galileo.Client, big: str, nodes: Nodes) -> None:
    """So that the tests above see something.

    A node's scan may be over before its labels are read: connections hold some of them.
    """
    deadline = time.monotonic() + HANGS_S
    while True:
        # With a limit all labels come through one node.
        with client.query_batches(big, limit=1 << 30) as batches:
            next(batches)
            counted = [node.calls for node in client.status().nodes]
            assert sum(calls.get("Query/Run", 0) for calls in counted) == 1
        if sum(calls.get("internal/scan", 0) for calls in counted):
            break
        assert time.monotonic() < deadline
        nodes.await_none()
    assert os.getpid() not in [node.pid for node in client.status().nodes]
