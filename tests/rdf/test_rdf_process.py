"""An answerer that somebody ends, as the owner of its process sees it."""

import fcntl
import os
import signal
import struct
import termios
import time

import psutil
import pytest

from galileo.rdf import process as process_module
from galileo.rdf import worker
from galileo.rdf.engine import MEMORY_BYTES_MAX
from galileo.rdf.process import Process, QueryProcessEnded

TRIPLES = b"".join(b'<urn:s:%d> <urn:p> "%d" .\n' % (i, i) for i in range(2_000))
LONG = "SELECT ?a ?c ?f { ?a ?b ?c . ?d ?e ?f } LIMIT 100000"


def request(text, timeout_s=60.0):
    bounds = {"timeout_s": timeout_s, "rows_max": 100_000, "bytes_max": 1 << 30}
    return {"text": text, "prefixes": {}} | bounds


@pytest.fixture
def process():
    """A worker without an engine: nobody checks its queries or its time."""
    process = Process.start(memory_bytes_max=MEMORY_BYTES_MAX)
    yield process
    process.close()


def unread(process):
    """Bytes of answers that nobody has read yet."""
    return struct.unpack("i", fcntl.ioctl(process._answers, termios.FIONREAD, b"\0" * 4))[0]


def killed_at(process, monkeypatch, *, unread_min):
    """Has the answerer of the next query killed as soon as so much of its answer waits."""
    wait = Process._wait

    def waiting(one):
        if one._busy == "query" and one._has_answerer:
            (child,) = psutil.Process(process.child.pid).children()
            deadline = time.monotonic() + 60
            while unread(process) < unread_min:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            child.kill()
            monkeypatch.setattr(Process, "_wait", wait)
        wait(one)

    monkeypatch.setattr(Process, "_wait", waiting)


def test_an_answerer_that_is_killed_amid_its_answer_is_missed_at_once(process, monkeypatch):
    """Long before its time is over, which would cost the graph, too."""
    process.load([TRIPLES], timeout_s=60)
    before = process.child.pid
    killed_at(process, monkeypatch, unread_min=32 << 10)  # half of what a pipe holds
    with pytest.raises(QueryProcessEnded) as ended:
        process.ask(request(LONG), patience_s=30)
    assert ended.value.status == -signal.SIGKILL
    assert not process.expired
    assert process.ask(request("ASK { <urn:s:3> ?p ?o }"), patience_s=60)[0]["value"]
    assert (process.alive, process.child.pid) == (True, before)


def test_an_answer_counts_whose_answerer_was_killed_right_after_it(process, monkeypatch):
    process.load([TRIPLES], timeout_s=60)
    killed_at(process, monkeypatch, unread_min=len(b'{"kind": "boolean", "value": true}') + 16)
    keep_reading, mark = os.read, worker.MARK.size + worker.SECRET_BYTES

    def after_the_mark(stream, size):
        """Reads what the answerer wrote together with the word that it ended."""
        deadline = time.monotonic() + 60
        while process._busy == "query" and unread(process) < mark + 50:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return keep_reading(stream, size)

    monkeypatch.setattr(process_module.os, "read", after_the_mark)
    assert process.ask(request("ASK { <urn:s:3> ?p ?o }"))[0]["value"]
    monkeypatch.undo()
    assert process.ask(request("ASK { <urn:s:3> ?p ?o }"))[0]["value"]
    process.load([b'<urn:new> <urn:p> "1" .\n'], timeout_s=60)
    assert process.ask(request("ASK { <urn:new> ?p ?o }"))[0]["value"]


@pytest.mark.parametrize("cut", range(1, worker.MARK.size + worker.SECRET_BYTES))
def test_a_mark_is_understood_that_comes_in_two_parts(process, monkeypatch, cut):
    mark = worker.MARK.pack(worker.ENDED, -9) + process._secret
    parts = [mark[:cut], mark[cut:]]
    monkeypatch.setattr(Process, "_wait", lambda one: None)
    monkeypatch.setattr(process_module.os, "read", lambda stream, size: parts.pop(0))
    with pytest.raises(QueryProcessEnded) as ended:
        process._frame()
    assert (ended.value.status, bytes(process._buffer), process._left) == (-9, b"", None)
