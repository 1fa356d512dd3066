"""The server's bounds, with real sockets and applications of a few lines."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from expected_errors import raises

from galileo.connection_limits import OpenConnection
from galileo.errors import ConfigError, InputError
from galileo.http_serving.protocol import HEAD_BYTES_MAX, BoundedProtocol, HttpLimits
from galileo.http_serving.proxies import ForwardedRequest, TrustedProxies
from galileo.http_serving.server import HttpServer, ServerThread

WITHIN_S = 60.0
SOON_S = 5.0
LIMITS = HttpLimits(connections_max=4, idle_timeout_s=WITHIN_S)
PIECE = bytes(1 << 18)


@contextlib.contextmanager
def served(app: Any, limits: HttpLimits = LIMITS) -> Iterator[HttpServer]:
    server = HttpServer(app, host="127.0.0.1", port=0, limits=limits)
    thread = ServerThread(server, "test")
    try:
        yield server
    finally:
        thread.stop()


@contextlib.contextmanager
def connected(server: HttpServer, *, takes_bytes: int = 0) -> Iterator[socket.socket]:
    with socket.socket() as connection:
        connection.settimeout(WITHIN_S)
        if takes_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, takes_bytes)
        connection.connect(("127.0.0.1", server.port))
        yield connection


def ask(connection: socket.socket, path: str = "/") -> None:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


def await_that(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


async def respond(send: Any, body: bytes = b"", *, more: bool = False) -> None:
    length = [] if more else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": body, "more_body": more})


class Endless:
    """Answers with pieces without end; counts those that it was rid of."""

    def __init__(self) -> None:
        self.sent = 0
        self.has_ended = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await respond(send, more=True)
            while True:
                await send({"type": "http.response.body", "body": PIECE, "more_body": True})
                self.sent += 1
        finally:
            self.has_ended.set()


class Waiting:
    """Answers nothing; knows whether it was cancelled."""

    def __init__(self) -> None:
        self.has_begun, self.has_ended = threading.Event(), threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.has_ended.set()


def test_server_sends_parts_of_an_answer_without_waiting_for_acknowledgements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: list[int] = []
    made = BoundedProtocol.connection_made

    def connection_made(self: BoundedProtocol, transport: Any) -> None:
        connection = transport.get_extra_info("socket")
        options.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        made(self, transport)

    monkeypatch.setattr(BoundedProtocol, "connection_made", connection_made)
    with served(Waiting()) as server, connected(server) as connection:
        ask(connection)
        await_that(lambda: bool(options))
    assert options[0] != 0


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await respond(send, b"hello")


def test_server_keeps_connections_and_answers_pipelined_requests() -> None:
    with served(hello) as server, connected(server) as connection:
        for _ in range(3):
            ask(connection)
            ask(connection)
        answers = b""
        while answers.count(b"hello") < 6:
            answers += connection.recv(4096)
        assert answers.count(b"HTTP/1.1 200 OK") == 6


async def described(scope: Any, receive: Any, send: Any) -> None:
    host = dict(scope["headers"])[b"host"].decode()
    query = scope["query_string"].decode()
    words = [host, scope["path"], scope["raw_path"].decode(), query, scope["scheme"]]
    await respond(send, " ".join(words).encode())


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        ("/a%20b?c=%2F", "localhost /a b /a%20b c=%2F http"),
        ("http://maps.example:81/a%20b?c=%2F", "maps.example:81 /a b /a%20b c=%2F http"),
        ("HTTP://maps.example", "maps.example / /  http"),
        ("https://[::1]:8/?x", "[::1]:8 / / x http"),
        ("http://maps.example?x=http://b/c", "maps.example / / x=http://b/c http"),
        ("/http://b/c", "localhost /http://b/c /http://b/c  http"),
        ("http://user@maps.example/a", "localhost" + " http://user@maps.example/a" * 2 + "  http"),
        ("http:///a", "localhost http:///a http:///a  http"),
    ],
)
def test_server_request_for_a_url_is_one_for_its_path_at_its_host(target: str, seen: str) -> None:
    with served(described) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WITHIN_S)
        connection.putrequest("GET", target, skip_host=True)
        connection.putheader("Host", "localhost")
        connection.endheaders()
        assert connection.getresponse().read().decode() == seen
        connection.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
def test_server_of_every_address_takes_ipv4_and_ipv6() -> None:
    server = HttpServer(hello, host="::", port=0, limits=LIMITS)
    thread = ServerThread(server, "test")
    try:
        for host in ("127.0.0.1", "::1"):
            connection = http.client.HTTPConnection(host, server.port, timeout=WITHIN_S)
            connection.request("GET", "/")
            assert connection.getresponse().read() == b"hello"
            connection.close()
    finally:
        thread.stop()


def test_server_large_whole_answer_arrives() -> None:
    body = PIECE * 20 + b"end"

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, body)

    with served(large) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WITHIN_S)
        for method, expected in (("GET", body), ("HEAD", b""), ("GET", body)):
            connection.request(method, "/")
            reply = connection.getresponse()
            assert reply.getheader("content-length") == str(len(body))
            assert reply.read() == expected
        connection.close()


def test_server_reader_that_stops_holds_one_piece_and_is_disconnected() -> None:
    app = Endless()
    limits = HttpLimits(connections_max=4, idle_timeout_s=0.2)
    with served(app, limits) as server, connected(server, takes_bytes=4096) as connection:
        ask(connection)
        assert app.has_ended.wait(WITHIN_S), "the task is cancelled"
        assert app.sent < 64, "a few MiB, which the kernel holds"
        await_that(lambda: len(server.limiter) == 0)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1 << 20):
                pass


def test_server_hang_up_cancels_the_task() -> None:
    app = Waiting()
    with served(app) as server:
        with connected(server) as connection:
            ask(connection)
            assert app.has_begun.wait(WITHIN_S)
        assert app.has_ended.wait(WITHIN_S)


def test_server_full_of_active_connections_refuses_the_next() -> None:
    app = Waiting()
    limits = HttpLimits(connections_max=1, idle_timeout_s=WITHIN_S)
    with served(app, limits) as server, connected(server) as first:
        ask(first)
        assert app.has_begun.wait(WITHIN_S)
        with connected(server) as second:
            ask(second)
            assert second.recv(100).startswith(b"HTTP/1.1 503 ")


def test_server_pipelined_bytes_do_not_protect_a_stopped_reader() -> None:
    app = Endless()
    limits = HttpLimits(connections_max=1, idle_timeout_s=WITHIN_S)
    with served(app, limits) as server, connected(server, takes_bytes=4096) as first:
        ask(first)
        await_that(lambda: app.sent > 0)
        last = -1
        while last != (last := app.sent):  # The kernel takes some pieces.
            time.sleep(0.1)
        first.sendall(b"GET / HTTP/1.1\r\n")
        await_that(lambda: any(one.conn.trailing_data[0] for one in server._state.connections))
        with connected(server) as second:
            ask(second)
            assert second.recv(100).startswith(b"HTTP/1.1 200 ")
        assert app.has_ended.wait(WITHIN_S)


def test_server_failed_application_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, b"begun", more=True)
        raise KeyError("of the application")

    with served(failing) as server, connected(server) as connection:
        ask(connection)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(4096):
                answer += part
        assert b"0\r\n\r\n" not in answer, "no client may take it for a whole answer"
    assert "of the application" in caplog.text


def test_server_bytes_that_are_no_http_get_a_reason() -> None:
    with served(hello) as server:
        for sent, status in (
            (b"hello\r\n\r\n", b" 400 "),
            (b"GET / HTTP/1.1\r\n\r\n", b" 400 "),
            (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 2 * HEAD_BYTES_MAX, b" 431 "),
        ):
            with connected(server) as connection:
                connection.sendall(sent)
                assert status in connection.makefile("rb").readline()


def test_server_stop_lets_answers_end() -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        has_begun.set()
        await asyncio.to_thread(may_end.wait, WITHIN_S)
        await respond(send, b"done")

    server = HttpServer(slow, host="127.0.0.1", port=0, limits=LIMITS)
    thread = ServerThread(server, "test")
    with connected(server) as connection:
        ask(connection)
        assert has_begun.wait(WITHIN_S)
        stopping = threading.Thread(target=thread.stop)
        stopping.start()
        may_end.set()
        stopping.join(WITHIN_S)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
    thread.stop()


# --- headers of proxies: who is believed, and which element of a list counts ---------------------


PROXIES = TrustedProxies(["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"])
WHOLE = ForwardedRequest("192.0.2.7", "https", "maps.example", "/geo")


def x(*, host: str = "maps.example", **others: str) -> dict[str, str]:
    given = {"for": "192.0.2.7", "proto": "https", "host": host, "prefix": "/geo", **others}
    return {f"x-forwarded-{name}": value for name, value in given.items()}


@pytest.mark.parametrize(
    ("headers", "read"),
    [
        ({}, ForwardedRequest()),
        (x(), WHOLE),
        (x(prefix="/geo/"), WHOLE),
        ({"x-forwarded-proto": "https"}, ForwardedRequest(scheme="https")),
        (
            {"forwarded": 'for=192.0.2.7;proto=https;host="maps.example:8443"'},
            ForwardedRequest("192.0.2.7", "https", "maps.example:8443"),
        ),
        ({"forwarded": 'For="[2001:dba::1]:4711"'}, ForwardedRequest("2001:dba::1")),
        ({"forwarded": "for=192.0.2.7:80, for=10.1.1.1"}, ForwardedRequest("192.0.2.7")),
        # What a client claims stands before what the first named proxy wrote.
        (
            {"forwarded": "for=1.1.1.1;host=evil, for=192.0.2.7;host=maps.example;proto=https"},
            ForwardedRequest("192.0.2.7", "https", "maps.example"),
        ),
        (
            {"forwarded": "for=1.1.1.1;host=evil, for=192.0.2.7;proto=https"},
            ForwardedRequest("192.0.2.7", "https"),
        ),
        (
            x(**{"for": "1.1.1.1, 192.0.2.7, 10.0.0.9", "host": "evil, maps.example, inner"}),
            WHOLE,
        ),
        (x(**{"for": "1.1.1.1, 192.0.2.7", "host": "evil, maps.example"}), WHOLE),
        (x(**{"for": "10.0.0.1, 10.0.0.2"}), replace(WHOLE, client="10.0.0.1")),
        ({"x-forwarded-for": "unknown"}, ForwardedRequest("unknown")),
    ],
)
def test_element_of_the_last_named_proxy_counts(
    headers: dict[str, str], read: ForwardedRequest
) -> None:
    for peer in ("127.0.0.1", "::ffff:127.0.0.1", "10.2.3.4", "2001:db8::7"):
        assert PROXIES.read(peer, headers) == read
    for peer in ("192.0.2.1", "::1", "", "localhost"):
        assert PROXIES.read(peer, headers) == ForwardedRequest(), "not one that was named"


@pytest.mark.parametrize(
    "headers",
    [
        {**x(), "forwarded": "for=192.0.2.7"},
        x(proto="gopher"),
        x(host="maps.example/path"),
        x(host="user@maps.example"),
        x(prefix="//evil.example"),
        x(prefix="geo"),
        {"forwarded": "for=192.0.2.7 host=maps.example"},
        {"forwarded": 'host="maps.example'},
        {"forwarded": "for=192.0.2.7;host=a b"},
    ],
)
def test_malformed_headers_of_a_proxy_are_refused(headers: dict[str, str]) -> None:
    with raises(InputError, parameter="Forwarded"):
        PROXIES.read("127.0.0.1", headers)
    assert PROXIES.read("192.0.2.1", headers) == ForwardedRequest()


@pytest.mark.parametrize("network", ["proxy.example", "10.0.0.1/8", "10.0.0.0/33", ""])
def test_proxy_that_is_no_network_is_refused(network: str) -> None:
    with raises(ConfigError, expected="network"):
        TrustedProxies([network])


async def test_server_serves_other_connections_after_each_that_it_accepts() -> None:
    server = HttpServer(hello, host="127.0.0.1", port=0, limits=LIMITS)
    turns = 0
    turns_at_accept: list[int] = []
    admit = server.limiter.admit

    async def counted(connection: OpenConnection) -> bool:
        turns_at_accept.append(turns)
        return await admit(connection)

    server.limiter.admit = counted  # type: ignore[method-assign]
    with contextlib.ExitStack() as stack:
        for _ in range(LIMITS.connections_max):
            stack.enter_context(connected(server))
        serving = asyncio.create_task(server.serve())
        while len(turns_at_accept) < LIMITS.connections_max:
            await asyncio.sleep(0)
            turns += 1
        serving.cancel()
        await asyncio.wait([serving])
    assert len({*turns_at_accept}) == LIMITS.connections_max


@pytest.mark.parametrize("ending", ["reset", "too much"])
def test_answer_to_the_first_of_several_requests_ends_with_the_connection(ending: str) -> None:
    has_begun, has_ended = threading.Event(), threading.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        has_begun.set()
        try:
            await asyncio.sleep(WITHIN_S)
        finally:
            has_ended.set()

    with served(endless) as server, connected(server) as connection:
        ask(connection)
        ask(connection)
        assert has_begun.wait(WITHIN_S)
        if ending == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        else:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * HEAD_BYTES_MAX)
        assert has_ended.wait(SOON_S)


def test_requests_before_the_answer_to_the_first_are_answered_in_their_order() -> None:
    async def path(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.02)
        await respond(send, scope["path"].encode())

    with served(path) as server, connected(server) as connection:
        for number in range(4):
            ask(connection, f"/{number}")
            time.sleep(0.01)
        received = b""
        while b"/3" not in received:
            received += connection.recv(1 << 16)
    assert [part[-2:] for part in received.split(b"HTTP/1.1 200")[1:]] == [
        b"/0",
        b"/1",
        b"/2",
        b"/3",
    ]
