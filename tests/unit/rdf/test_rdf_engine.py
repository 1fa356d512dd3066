import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import psutil
import pytest
from expected_errors import raises
from processes import ended, is_alive

from galileo.errors import (
    Cancelled,
    DeadlineExceeded,
    InputError,
    InternalError,
    UnsupportedQuery,
)
from galileo.rdf.cancellation import Cancellation
from galileo.rdf.sparql_process import engine as engine_module
from galileo.rdf.sparql_process import process as process_module
from galileo.rdf.sparql_process import worker
from galileo.rdf.sparql_process.engine import MEMORY_BYTES_MAX, Engine
from galileo.rdf.sparql_process.process import Process, QueryProcessEnded

TRIPLES = b"".join(b'<urn:s:%d> <urn:p> "%d" .\n' % (i, i) for i in range(2_000))
ENDLESS = "SELECT (COUNT(*) AS ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l }"
QUICK_S = 60.0


def request(text, timeout_s=60.0):
    bounds = {"timeout_s": timeout_s, "rows_max": 100_000, "bytes_max": 1 << 30}
    return {"text": text, "prefixes": {}} | bounds


def workers():
    """Keepers that this process started."""
    return {child.pid for child in psutil.Process().children() if _is_worker(child)}


def query_process(graph_pid):
    (child,) = psutil.Process(graph_pid).children()
    return child.pid


def _is_worker(process):
    try:
        return any(part.endswith("worker.py") for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


@pytest.fixture
def loads():
    """How often the graph was asked for."""
    return []


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Leaves the graph process enough time to kill its query process on a busy machine."""
    monkeypatch.setattr(process_module, "INTERRUPT_GRACE_S", 3600.0)


@pytest.fixture
def engine(loads):
    engine = Engine(lambda: loads.append(1) or [TRIPLES])
    yield engine
    engine.close()


@pytest.fixture
def process():
    """A worker without an engine, which checks neither queries nor time."""
    process = Process.start(memory_bytes_max=MEMORY_BYTES_MAX)
    yield process
    process.close()


def test_engine_timeout_keeps_the_graph_loaded(engine, loads):
    before = workers()
    assert engine.query("ASK { <urn:s:1> ?p ?o }", timeout_s=QUICK_S).value
    (graph_pid,) = workers() - before
    first = query_process(graph_pid)
    assert engine.query("ASK { <urn:s:2> ?p ?o }", timeout_s=QUICK_S).value
    assert query_process(graph_pid) == first
    with pytest.raises(DeadlineExceeded):
        engine.query(ENDLESS, timeout_s=0.2)
    assert ended(first)
    assert engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=QUICK_S).value
    assert workers() - before == {graph_pid}
    assert loads == [1]


def test_engine_timeout_at_any_moment_keeps_next_answer_right(engine, loads):
    """Also while a long answer is on its way: what is left of it is never taken for another."""
    long = "SELECT ?a ?c ?f { ?a ?b ?c . ?d ?e ?f } LIMIT 1000000"
    for number in range(12):
        with pytest.raises(DeadlineExceeded):
            engine.query(long, timeout_s=0.01 + 0.008 * number)
        answer = engine.query(f"SELECT ?o {{ <urn:s:{number}> ?p ?o }}", timeout_s=QUICK_S)
        assert answer.data == f'?o\n"{number}"\n'.encode()
    assert loads == [1]


def test_engine_timeout_before_query_keeps_graph(engine, loads):
    """A graph process that is slow to fork, as on a busy machine, keeps its graph."""
    engine.load()
    graph_pid = engine._process.child.pid
    os.kill(graph_pid, signal.SIGSTOP)
    continue_request = threading.Timer(0.3, os.kill, [graph_pid, signal.SIGCONT])
    continue_request.start()
    with pytest.raises(DeadlineExceeded):
        engine.query("ASK {}", timeout_s=0.05)
    continue_request.join()
    assert engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=QUICK_S).value
    assert loads == [1]


def test_engine_query_ended_by_own_timer_raises_deadline_exceeded(engine, loads, monkeypatch):
    """As where this process is kept from its processor for longer than the grace."""
    monkeypatch.setattr(engine_module, "ORPHAN_GRACE_S", -59.9)
    with pytest.raises(DeadlineExceeded):
        engine.query(ENDLESS, timeout_s=QUICK_S)
    assert engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=600).value
    assert loads == [1]


def test_engine_cancel_after_fork_raises_cancelled(engine, loads, monkeypatch):
    cancel, fork = Cancellation(), Process._ensure_query_process

    def forking(process, *, geometry):
        fork(process, geometry=geometry)
        cancel.cancel()

    monkeypatch.setattr(Process, "_ensure_query_process", forking)
    with pytest.raises(Cancelled):
        engine.query(ENDLESS, timeout_s=QUICK_S, cancels=[cancel])
    monkeypatch.undo()
    assert engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=QUICK_S).value
    assert loads == [1]


def test_engine_late_interrupt_does_not_end_next_query(engine, loads, monkeypatch):
    """Its interrupt was obeyed long ago, when another query waits for its own to be."""
    waiting = []
    watch = Process._watch
    monkeypatch.setattr(Process, "_watch", lambda one: waiting.append(one._exchanges) or watch(one))
    signal_late = Process._signal

    def late(process):
        signal_late(process)
        for exchange in waiting[:-1]:
            threading.Thread(target=process._end_if_at, args=[exchange]).start()

    monkeypatch.setattr(Process, "_signal", late)
    for _ in range(3):
        with pytest.raises(DeadlineExceeded):
            engine.query(ENDLESS, timeout_s=0.1)
    assert engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=QUICK_S).value
    assert loads == [1]


def test_engine_stopped_graph_process_during_load_times_out(engine, monkeypatch):
    engine.load()
    monkeypatch.setattr(process_module, "INTERRUPT_GRACE_S", 0.1)
    monkeypatch.setattr(engine_module, "LOAD_TIMEOUT_S", 0.3)
    os.kill(engine._process.child.pid, signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded):
        engine.grow([TRIPLES * 20])
    monkeypatch.undo()
    assert engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=QUICK_S).value


@pytest.mark.parametrize("read", [0, 3, 8, 20])
def test_process_killed_while_reading_discards_the_request(process, read):
    """Whatever it had read of the request, what comes next is understood."""
    process.load([TRIPLES], timeout_s=60)
    process.query(request("ASK {}"))
    (child,) = psutil.Process(process.child.pid).children()
    child.suspend()
    frame = json.dumps({"op": "query", **request("ASK {}")}).encode()
    whole = worker.LENGTH.pack(len(frame)) + frame
    os.write(process._requests, whole[read:])  # as if the beginning were read already
    child.kill()
    with pytest.raises(QueryProcessEnded):
        process._frame()
    process._has_query_process = False
    assert process.query(request("ASK { <urn:s:3> ?p ?o }"), timeout_s=60)[0]["value"]


def test_engine_cancel_from_other_thread_raises_cancelled(engine, loads):
    engine.query("ASK {}", timeout_s=QUICK_S)
    cancel = Cancellation()
    timer = threading.Timer(0.1, cancel.cancel)
    timer.start()
    with raises(Cancelled):
        engine.query(ENDLESS, timeout_s=QUICK_S, cancels=[cancel])
    with pytest.raises(Cancelled):
        engine.query("ASK {}", timeout_s=QUICK_S, cancels=[cancel])
    assert engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=QUICK_S).value
    assert loads == [1]
    timer.join()


def test_engine_cancel_waiting_query_raises_cancelled(engine):
    cancel = Cancellation()
    timer = threading.Timer(0.1, cancel.cancel)
    timer.start()
    with engine._lock, pytest.raises(Cancelled):
        engine.query("ASK {}", timeout_s=QUICK_S, cancels=[cancel])
    timer.join()


def test_engine_grow_adds_triples(engine, loads):
    assert not engine.query("ASK { <urn:new> ?p ?o }", timeout_s=QUICK_S).value
    engine.grow([b'<urn:new> <urn:p> "1" .\n', b'<urn:new> <urn:p> "1" .\n'])
    count = "SELECT (COUNT(*) AS ?n) { ?s ?p ?o }"
    assert b'"2001"' in engine.query(count, timeout_s=QUICK_S).data.replace(b"2001", b'"2001"')
    assert engine.query("ASK { <urn:new> ?p ?o }", timeout_s=QUICK_S).value
    assert loads == [1]


def test_engine_unknown_function_raises_and_keeps_worker(engine, loads):
    with raises(UnsupportedQuery, expected="function"):
        engine.query("SELECT (<urn:unheard>(1) AS ?x) {}", timeout_s=QUICK_S)
    assert engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=QUICK_S).value
    assert loads == [1]


def test_engine_killed_graph_process_is_replaced(engine, loads):
    before = workers()
    engine.query("ASK {}", timeout_s=QUICK_S)
    (pid,) = workers() - before
    child = query_process(pid)
    os.kill(pid, signal.SIGKILL)
    assert ended(pid)
    assert engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=QUICK_S).value
    assert ended(child)
    assert loads == [1, 1]


@pytest.fixture
def late_news(monkeypatch):
    """A process counts as alive until it is closed, as where one looks just before it ends."""
    monkeypatch.setattr(Process, "alive", property(lambda process: process._end.alive))


@pytest.mark.parametrize("asked", [False, True], ids=["graph process", "both"])
def test_engine_grow_after_lost_process_reloads(engine, loads, late_news, asked):
    """Both with a graph process that reads itself, and with one that a query process reads for."""
    if asked:
        engine.query("ASK {}", timeout_s=QUICK_S)
    else:
        engine.load()
    engine._process.end()
    engine.grow([b'<urn:new> <urn:p> "1" .\n'])
    # The engine's source does not give what came last here; what it gives was loaded again.
    assert loads == [1, 1]
    assert engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=QUICK_S).value
    assert loads == [1, 1]


def test_engine_query_after_lost_process_reloads(engine, loads, late_news):
    engine.query("ASK {}", timeout_s=QUICK_S)
    engine._process.end()
    assert engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=QUICK_S).value
    engine._process.end()
    assert engine.query("ASK { FILTER(geof:distance(1, 1) > 0) }", timeout_s=QUICK_S).value is False
    assert loads == [1, 1, 1]


def test_engine_graph_process_killed_twice_raises(engine, monkeypatch):
    """A graph that does not fit its memory is an error after two attempts."""
    monkeypatch.setattr(
        Process, "query", lambda process, *_, **__: process._read_bytes(process.end() or 1)
    )
    with raises(InputError, expected="memory", bound=8589934592):
        engine.query("ASK {}", timeout_s=QUICK_S)


@pytest.mark.slow
def test_engine_grow_beyond_memory_raises():
    pieces = [TRIPLES]
    engine = Engine(lambda: pieces, memory_bytes_max=400 << 20)
    try:
        engine.load()
        line = b'<urn:l:%d> <urn:p> "%d' + b"x" * 100_000 + b'" .\n'
        pieces.append(b"".join(line % (i, i) for i in range(4_000)))
        with raises(InputError, expected="memory"):
            engine.grow(pieces[1:])
        del pieces[1:]
        assert engine.query("ASK { <urn:s:1> ?p ?o }", timeout_s=QUICK_S).value
    finally:
        engine.close()


def test_engine_grow_invalid_triples_raises(engine, loads):
    engine.load()
    with raises(InternalError):
        engine.grow([b"this is not N-Triples\n"])
    assert engine.query("ASK { <urn:s:1> ?p ?o }", timeout_s=QUICK_S).value
    assert loads == [1, 1]


def test_engine_load_unreadable_source_raises_its_error():
    def unreadable():
        yield TRIPLES
        raise OSError("made up by the source of the triples")

    engine = Engine(unreadable)
    with pytest.raises(OSError, match="made up by the source"):
        engine.load()
    engine.close()


def test_engine_killed_query_process_is_replaced(engine, loads):
    before = workers()
    engine.query("ASK {}", timeout_s=QUICK_S)
    (graph_pid,) = workers() - before
    os.kill(query_process(graph_pid), signal.SIGKILL)
    with raises(InputError, expected="memory", bound=8589934592):
        engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=QUICK_S)
    assert engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=QUICK_S).value
    assert loads == [1]


@pytest.mark.parametrize("stopped", ["graph process", "query process"])
def test_engine_stopped_process_times_out(engine, stopped, monkeypatch):
    monkeypatch.setattr(process_module, "INTERRUPT_GRACE_S", 0.3)
    before = workers()
    engine.query("ASK {}", timeout_s=QUICK_S)
    (graph_pid,) = workers() - before
    pids = {graph_pid, query_process(graph_pid)}
    for pid in pids if stopped == "graph process" else pids - {graph_pid}:
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded):
        engine.query("ASK {}", timeout_s=0.2)
    assert engine.query("ASK { <urn:s:3> ?p ?o }", timeout_s=QUICK_S).value


def test_engine_timeout_includes_wait_for_other_query(engine):
    with engine._lock, pytest.raises(DeadlineExceeded):
        engine.query("ASK {}", timeout_s=0.1)
    assert engine.query("ASK {}", timeout_s=QUICK_S).kind == "boolean"


@pytest.mark.slow
def test_engine_query_beyond_memory_raises():
    engine = Engine(lambda: [TRIPLES], memory_bytes_max=400 << 20)
    try:
        assert engine.query("ASK { <urn:s:1> ?p ?o }", timeout_s=QUICK_S).value
        greedy = "SELECT (COUNT(DISTINCT CONCAT(?a, ?b, ?a, ?b)) AS ?n) { ?x ?p ?a . ?y ?q ?b }"
        with raises(InputError, expected="memory", bound=400 << 20):
            engine.query(greedy, timeout_s=300)
        assert engine.query("ASK { <urn:s:1> ?p ?o }", timeout_s=QUICK_S).value
    finally:
        engine.close()


def test_engine_internal_error_is_for_the_log_alone(caplog):
    engine = Engine(lambda: [b"this is not N-Triples\n"])
    with raises(InternalError) as caught:
        engine.query("ASK {}", timeout_s=QUICK_S)
    engine.close()
    assert "SyntaxError" not in str(caught.value)
    assert "worker.py" in caplog.text
    assert "SyntaxError" in caplog.text


def test_engine_load_failing_source_leaves_no_process():
    def broken():
        yield TRIPLES
        raise ZeroDivisionError("made up by the source of the triples")

    before = workers()
    engine = Engine(broken)
    with pytest.raises(ZeroDivisionError):
        engine.query("ASK {}", timeout_s=QUICK_S)
    assert workers() <= before
    engine.close()


def test_engine_garbage_collected_ends_its_process():
    before = workers()
    engine = Engine(lambda: [TRIPLES])
    engine.query("ASK {}", timeout_s=QUICK_S)
    (pid,) = workers() - before
    del engine
    gc.collect()
    assert ended(pid)


ORPHANING = """
import sys
from galileo.rdf.sparql_process.engine import Engine
engine = Engine(lambda: [b'<urn:s> <urn:p> "1" .\\n'])
engine.query("ASK {}")
print(engine._process.child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_worker_orphaned_ends():
    command = [sys.executable, "-c", ORPHANING]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as parent:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    assert ended(pid)


def test_query_process_own_timer_ends_a_query(process):
    process.load([TRIPLES], timeout_s=60)
    with pytest.raises(QueryProcessEnded) as caught:
        process.query(request(ENDLESS, timeout_s=0.1))
    assert caught.value.status == -signal.SIGALRM
    assert process.query(request("ASK { <urn:s:3> ?p ?o }"))[0]["value"]


DIRECT = "import sys, pyoxigraph; list(pyoxigraph.Store().query(sys.argv[1]))"


def test_query_process_reaches_no_network(process):
    """The worker itself cannot open a socket, while oxigraph alone calls out."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/sparql"
        query = f"SELECT * {{ SERVICE <{address}> {{ ?s ?p ?o }} }}"
        control = subprocess.Popen([sys.executable, "-c", DIRECT, query], stderr=subprocess.DEVNULL)
        server.settimeout(60)
        server.accept()[0].close()
        assert control.wait(60) != 0

        head, data = process.query(request(query))
        assert (head["error"], data) == ("internal", b"")
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
