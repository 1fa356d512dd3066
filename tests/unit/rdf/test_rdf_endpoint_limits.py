"""Limits of the endpoint: of queries, connections, requests and answers, and who gives way."""

from __future__ import annotations

import contextlib
import socket
import time
from urllib.parse import urlsplit

import pytest
from sparql_clients import COUNT, ENDLESS, POST_HEAD, connect, get, hold
from waiting import wait_until

from galileo import rdf
from galileo.rdf import Endpoint, EndpointOptions
from galileo.rdf.service import Service


@pytest.fixture(scope="module")
def graph(weather):
    with rdf.open_labels(weather) as opened:
        opened.load()
        yield opened


def test_endpoint_endless_query_times_out(graph):
    with Endpoint(graph, EndpointOptions(port=0, timeout_s=1.0)) as served:
        reply = get(served.url, ENDLESS)
        assert reply.status == 504
        assert b"took longer" in reply.body
        # On a machine that is busy, a short one may need a second attempt within its limit.
        wait_until(lambda: get(served.url, COUNT).status == 200)


def test_endpoint_answer_beyond_rows_max_is_refused(graph):
    with Endpoint(graph, EndpointOptions(port=0, rows_max=10)) as served:
        assert get(served.url, "SELECT * { ?s ?p ?o } LIMIT 10").status == 200
        reply = get(served.url, "SELECT * { ?s ?p ?o }")
        assert (reply.status, b"10 rows" in reply.body) == (400, True)


def test_endpoint_too_many_queries_are_refused_with_503(graph):
    with Endpoint(graph, EndpointOptions(port=0, queries_max=1)) as served, hold(served.url):
        wait_until(lambda: _running(served._service) == 1)
        reply = get(served.url, COUNT)
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")


def test_endpoint_too_many_connections_are_refused_with_503(graph):
    with Endpoint(graph, EndpointOptions(port=0, connections_max=1)) as served:
        with hold(served.url):
            wait_until(lambda: _running(served._service) == 1)
            reply = get(served.url, COUNT)
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        wait_until(lambda: get(served.url, COUNT).status == 200)


def test_endpoint_idle_connection_is_closed_for_another(graph):
    options = EndpointOptions(port=0, connections_max=1)
    with Endpoint(graph, options) as served, contextlib.ExitStack() as stack:
        connection = stack.enter_context(hold(served.url, COUNT))
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert get(served.url, COUNT).status == 200
        while connection.recv(4096):
            pass


@pytest.mark.slow
def test_endpoint_unfinished_requests_do_not_block_others(graph):
    options = EndpointOptions(port=0, connections_max=4, idle_timeout_s=600)
    with Endpoint(graph, options) as served, contextlib.ExitStack() as stack:
        for number in range(20):
            slow = stack.enter_context(connect(served.url))
            if number % 2:
                slow.sendall(b"GET /sparql HTTP/1.1\r\nHost: localhost\r\nX-More: ")
            else:
                slow.sendall(POST_HEAD % 1_000 + b"ASK")
        assert get(served.url, COUNT).status == 200
        assert len(served._server.limiter) <= 4


@pytest.mark.slow
def test_endpoint_slow_request_is_disconnected(graph):
    with Endpoint(graph, EndpointOptions(port=0, idle_timeout_s=0.5)) as served:
        for head in (b"GET /sparql HTTP/1.1\r\nX: ", POST_HEAD % 1_000_000):
            with connect(served.url) as slow:
                slow.sendall(head)
                wait_until(lambda slow=slow: not takes_a_byte(slow))


def takes_a_byte(connection):
    try:
        connection.sendall(b"x")
    except OSError:
        return False
    return True


def test_endpoint_truncated_body_is_disconnected(graph):
    with Endpoint(graph, EndpointOptions(port=0)) as served, connect(served.url) as broken:
        broken.sendall(POST_HEAD % 100 + b"ASK {}")
        broken.shutdown(socket.SHUT_WR)
        assert broken.recv(100) == b""


def test_endpoint_large_headers_are_refused(graph):
    with Endpoint(graph, EndpointOptions(port=0)) as served, connect(served.url) as greedy:
        line = b"x" * 60_000 + b"\r\n"
        with contextlib.suppress(OSError):  # it answers before it has read all of it
            greedy.sendall(b"GET /sparql HTTP/1.1\r\nHost: localhost\r\n")
            for name in (b"A: ", b"B: ", b"C: "):
                greedy.sendall(name + line)
            greedy.sendall(b"\r\n")
        assert b" 431 " in greedy.makefile("rb").readline()


@pytest.mark.slow
def test_endpoint_slow_readers_hold_bounded_memory(graph):
    text = "SELECT * { ?a g:time ?b . ?c g:time ?d } LIMIT 40000"
    options = EndpointOptions(port=0, answers_mib_max=1, idle_timeout_s=600)
    with Endpoint(graph, options) as served, contextlib.ExitStack() as stack:
        limiter, service = served._server.limiter, served._service
        full = len(get(served.url, text).body)
        assert full > 4 << 20
        for _ in range(3):
            stack.enter_context(hold(served.url, text, takes_bytes=4096))
            wait_until(lambda: _running(service) == 0 and limiter.held_bytes >= full)
        wait_until(lambda: limiter.held_bytes == full)
        assert len(get(served.url, text).body) == full, "who takes it gets all of it"


def test_endpoint_query_of_another_host_replaces_a_waiting_one(graph):
    options = EndpointOptions(port=0, queries_max=3, timeout_s=120)
    with Endpoint(graph, options) as served, contextlib.ExitStack() as stack:
        service = served._service
        busy = []
        for number in range(3):
            busy.append(stack.enter_context(hold(served.url)))
            wait_until(lambda number=number: _running(service) == number + 1)
        assert get(served.url, COUNT).status == 503, "of the same host"
        other = stack.enter_context(hold(served.url, COUNT, source="127.0.0.2"))
        assert busy[2].recv(12) == b"HTTP/1.1 503"
        busy[0].close()
        assert other.recv(12) == b"HTTP/1.1 200", "it was next, before the second of the others"


def test_endpoint_disconnect_cancels_the_query(graph):
    """The next query would else wait for as long as the first may run."""
    with Endpoint(graph, EndpointOptions(port=0, timeout_s=60)) as served:
        service = served._service
        with hold(served.url):
            wait_until(lambda: _running(service) == 1)
        started = time.monotonic()
        wait_until(lambda: _running(service) == 0)
        assert get(served.url, COUNT).status == 200
        assert time.monotonic() - started < 50


def _running(service: Service) -> int:
    return service.turns.running + service.turns.waiting


def test_endpoint_silent_client_is_disconnected(graph):
    with Endpoint(graph, EndpointOptions(port=0, idle_timeout_s=0.1)) as served:
        where = urlsplit(served.url)
        with socket.create_connection((where.hostname, where.port), timeout=60) as connection:
            connection.sendall(b"GET /sparql")
            assert connection.recv(100) == b""


def test_endpoint_close_ends_running_queries(graph):
    served = Endpoint(graph, EndpointOptions(port=0, timeout_s=60))
    with hold(served.url) as connection:
        wait_until(lambda: _running(served._service) == 1)
        served.close()
        assert connection.recv(12) == b"HTTP/1.1 503"
    with pytest.raises(ConnectionRefusedError):
        get(served.url, COUNT)
