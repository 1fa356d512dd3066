"""The longest time that the event loop of a node and of a gateway stands still.

A node and a gateway run in threads of this process, each with an event loop. A task of each loop
wakes up every millisecond; the processor time of the loop's thread between two of these moments is
what another caller waits for. (Elapsed time would include what other programs of the machine do.)
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from urllib.parse import urlsplit

import grpc

import galileo
from benchmarks import worst_inputs
from benchmarks.figures import Figure, Goal, Spread
from benchmarks.sizes import Bench
from benchmarks.worst_inputs import HttpRequest
from galileo.clock import SystemClock
from galileo.config import from_dict
from galileo.gateway.options import GatewayOptions
from galileo.gateway.serving import GatewayServer
from galileo.rpc.internal import SERVICE
from galileo.server.malloc_tuning import freeze_modules
from galileo.server.node_process import NodeProcess
from galileo.wire.channel import MESSAGE_BYTES_MAX, open_blocking_channel, short_name
from galileo.wire.services import NODE_SERVICES

TICK_S = 0.001
CALL_S = 120.0
STARTED_WITHIN_S = 60.0
GOAL = Goal("at most", 0.05)
BATCH_ROWS = 10_000
_KINDS = ("unary", "stream")


class WatchedLoop:
    """An event loop in a thread, whose longest stop is measured.

    Args:
        name: of the process that it stands for.
        serve: the coroutine function that it runs until the block ends.
    """

    def __init__(self, name: str, serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self._serve = serve
        self._longest_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name=name)

    def __enter__(self) -> WatchedLoop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._serving is not None:
            self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join()

    def longest_s(self) -> float:
        """The longest stop since the last call, in seconds."""
        time.sleep(10 * TICK_S)
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        ticking = asyncio.create_task(self._tick())
        self._serving = asyncio.create_task(self._serve())
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving
        ticking.cancel()

    async def _tick(self) -> None:
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(TICK_S)
            self._longest_s = max(self._longest_s, time.thread_time() - before_s)


def measure(bench: Bench) -> Iterator[Figure]:
    """The longest stop of both loops for each method and each route."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    cluster = {
        "groups": [{"name": "g", "nodes": [{"name": "n", "address": address}]}],
        "partitions_per_group": 16,
    }
    directory = bench.directory / f"loop-{time.monotonic_ns()}"
    config = from_dict({"node": {"name": "n", "directory": str(directory)}, "cluster": cluster})

    async def serve_node() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(NodeProcess(config, clock=SystemClock()).run(stop))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            stop.set()
            await running
            raise

    freeze_modules()  # As the processes do.
    gateway = GatewayServer(GatewayOptions(nodes=(address,), port=0, patience_s=CALL_S))
    with (
        WatchedLoop("node", serve_node) as node,
        WatchedLoop("gateway", gateway.serve) as http_loop,
    ):
        _fill(address, rows=bench.sizes.loop_rows)
        yield from _methods(bench, address, node)
        yield from _routes(bench, gateway.url, (node, http_loop))


def _fill(address: str, *, rows: int) -> None:
    until = time.monotonic() + STARTED_WITHIN_S
    with galileo.connect(address, timeout=CALL_S) as client:
        while True:
            with contextlib.suppress(galileo.errors.Unavailable):
                client.create_dataset(worst_inputs.wide_schema())
                break
            if time.monotonic() > until:
                raise TimeoutError(f"the node at {address} does not answer")
        for number in range(0, rows, BATCH_ROWS):
            size = min(BATCH_ROWS, rows - number)
            client.ingest(worst_inputs.WIDE, worst_inputs.wide_rows(size, seed=number))
        client.create_table(worst_inputs.table())
        client.create_channel(worst_inputs.channel())


def _methods(bench: Bench, address: str, node: WatchedLoop) -> Iterator[Figure]:
    methods = _paths()
    with open_blocking_channel(address) as channel:
        for name, worst in worst_inputs.RPCS.items():
            stops_s, outcomes = list[float](), list[str]()
            for request in worst.requests():
                data = request if isinstance(request, bytes) else request.SerializeToString()
                assert len(data) <= MESSAGE_BYTES_MAX
                node.longest_s()
                outcomes.append(_call(channel, *methods[name], data))
                stops_s.append(node.longest_s())
            bench.say(f"{name}: {_listed(stops_s, outcomes)}")
            yield _figure(name, node, max(stops_s))


def _listed(stops_s: list[float], outcomes: list[str]) -> str:
    """The stop and the outcome of each request."""
    pairs = zip(stops_s, outcomes, strict=True)
    return "; ".join(f"{1_000 * stop_s:.0f} ms {outcome}" for stop_s, outcome in pairs)


def _paths() -> dict[str, tuple[str, str]]:
    """The path of each method, and whether request and answer are streams."""
    paths = {
        f"{service.name}/{method.name}": (
            f"/{service.full_name}/{method.name}",
            f"{_KINDS[method.client_streaming]}_{_KINDS[method.server_streaming]}",
        )
        for service in NODE_SERVICES
        for method in service.methods
    }
    internal = {
        short_name(call.path): (call.path, f"unary_{_KINDS[call.is_stream]}")
        for call in SERVICE.calls.values()
    }
    return paths | internal


def _call(channel: grpc.Channel, path: str, kind: str, request: bytes) -> str:
    """Makes a call, takes its whole answer, and names its status."""
    call = getattr(channel, kind)(path)
    try:
        is_many = kind.startswith("stream")
        answer = call(iter([request]) if is_many else request, timeout=CALL_S)
        if kind.endswith("stream"):
            for _ in answer:
                pass
    except grpc.RpcError as error:
        return f"{error.code().name} {(error.details() or '')[:60]}"
    return "OK"


def _routes(bench: Bench, url: str, loops: tuple[WatchedLoop, ...]) -> Iterator[Figure]:
    where = urlsplit(url)
    for (name, verb), worst in worst_inputs.ROUTES.items():
        stops_s: dict[str, list[float]] = {loop.name: [] for loop in loops}
        outcomes = list[str]()
        for request in worst.requests():
            for loop in loops:
                loop.longest_s()
            outcomes.append(_send(where.netloc, request))
            for loop in loops:
                stops_s[loop.name].append(loop.longest_s())
        for loop in loops:
            bench.say(f"{verb} {name} at the {loop.name}: {_listed(stops_s[loop.name], outcomes)}")
            yield _figure(f"{verb} {name}", loop, max(stops_s[loop.name]))


def _send(server: str, request: HttpRequest) -> str:
    """Sends a request, takes its whole answer, and names its status."""
    headers = {"Content-Type": request.media_type} if request.media_type else {}
    connection = http.client.HTTPConnection(server, timeout=CALL_S)
    with contextlib.closing(connection):
        try:
            connection.request(request.method, request.path, request.body or None, headers)
            answer = connection.getresponse()
            body = answer.read()
        except OSError as error:
            return str(error)
    text = (
        body[:100].decode(errors="replace") if answer.status >= http.HTTPStatus.BAD_REQUEST else ""
    )
    return f"{answer.status} {len(body):,} bytes {text}"


def _figure(name: str, loop: WatchedLoop, longest_s: float) -> Figure:
    return Figure(f"{name}: {loop.name}", "s", Spread.of([longest_s]), goals=(GOAL,))
