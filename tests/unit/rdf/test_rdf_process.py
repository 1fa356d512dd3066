"""The owner's side of a query process that is killed."""

import fcntl
import os
import resource
import signal
import struct
import termios
import time

import psutil
import pytest

from galileo.rdf.sparql_process import process as process_module
from galileo.rdf.sparql_process import worker
from galileo.rdf.sparql_process.engine import MEMORY_BYTES_MAX
from galileo.rdf.sparql_process.process import Process, QueryProcessEnded

TRIPLES = b"".join(b'<urn:s:%d> <urn:p> "%d" .\n' % (i, i) for i in range(2_000))
LONG = "SELECT ?a ?c ?f { ?a ?b ?c . ?d ?e ?f } LIMIT 100000"


def request(text, timeout_s=60.0):
    bounds = {"timeout_s": timeout_s, "rows_max": 100_000, "bytes_max": 1 << 30}
    return {"text": text, "prefixes": {}} | bounds


@pytest.fixture
def process():
    """A worker without an engine, which checks neither queries nor time."""
    process = Process.start(memory_bytes_max=MEMORY_BYTES_MAX)
    yield process
    process.close()


def test_process_has_the_limits_of_its_memory_and_dumps_no_core(process):
    process.load([TRIPLES], timeout_s=60)
    for limit, bound in ((resource.RLIMIT_AS, MEMORY_BYTES_MAX), (resource.RLIMIT_CORE, 0)):
        assert resource.prlimit(process.child.pid, limit) == (bound, bound)


def unread(process):
    """Unread bytes of answers."""
    return struct.unpack("i", fcntl.ioctl(process._answers, termios.FIONREAD, b"\0" * 4))[0]


def killed_at(process, monkeypatch, *, unread_min):
    """Kills the query process of the next query once that much of its answer is unread."""
    wait = Process._wait

    def waiting(one):
        if one._busy == "query" and one._has_query_process:
            (child,) = psutil.Process(process.child.pid).children()
            deadline = time.monotonic() + 60
            while unread(process) < unread_min:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            child.kill()
            monkeypatch.setattr(Process, "_wait", wait)
        wait(one)

    monkeypatch.setattr(Process, "_wait", waiting)


def test_process_killed_within_its_answer_is_detected(process, monkeypatch):
    """Long before its time is over, which would cost the graph, too."""
    process.load([TRIPLES], timeout_s=60)
    before = process.child.pid
    killed_at(process, monkeypatch, unread_min=32 << 10)  # half of what a pipe holds
    with pytest.raises(QueryProcessEnded) as ended:
        process.query(request(LONG), timeout_s=30)
    assert ended.value.status == -signal.SIGKILL
    assert not process.expired
    assert process.query(request("ASK { <urn:s:3> ?p ?o }"), timeout_s=60)[0]["value"]
    assert (process.alive, process.child.pid) == (True, before)


def test_process_killed_after_its_answer_keeps_the_answer(process, monkeypatch):
    process.load([TRIPLES], timeout_s=60)
    killed_at(process, monkeypatch, unread_min=len(b'{"kind": "boolean", "value": true}') + 16)
    keep_reading, mark = os.read, worker.MARK.size + worker.SECRET_BYTES

    def after_the_mark(stream, size):
        """Reads what the query process wrote together with the word that it ended."""
        deadline = time.monotonic() + 60
        while process._busy == "query" and unread(process) < mark + 50:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return keep_reading(stream, size)

    monkeypatch.setattr(process_module.os, "read", after_the_mark)
    assert process.query(request("ASK { <urn:s:3> ?p ?o }"))[0]["value"]
    monkeypatch.undo()
    assert process.query(request("ASK { <urn:s:3> ?p ?o }"))[0]["value"]
    process.load([b'<urn:new> <urn:p> "1" .\n'], timeout_s=60)
    assert process.query(request("ASK { <urn:new> ?p ?o }"))[0]["value"]


@pytest.mark.parametrize("cut", range(1, worker.MARK.size + worker.SECRET_BYTES))
def test_process_mark_in_two_parts_is_read(process, monkeypatch, cut):
    mark = worker.MARK.pack(worker.ENDED, -9) + process._secret
    parts = [mark[:cut], mark[cut:]]
    monkeypatch.setattr(Process, "_wait", lambda one: None)
    monkeypatch.setattr(process_module.os, "read", lambda stream, size: parts.pop(0))
    with pytest.raises(QueryProcessEnded) as ended:
        process._frame()
    assert (ended.value.status, bytes(process._buffer), process._exit_status) == (-9, b"", None)
