import gc
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from galileo.errors import DeadlineExceeded, InputError
from galileo.rdf.engine import MEMORY_BYTES_MAX, Engine, Limits, _Process

TRIPLES = b"".join(b'<urn:s:%d> <urn:p> "%d" .\n' % (i, i) for i in range(2_000))
ENDLESS = "SELECT (COUNT(*) AS ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l }"
QUICK = Limits(timeout_s=20)


def workers():
    return {child.pid for child in psutil.Process().children() if _is_worker(child)}


def _is_worker(process):
    try:
        return any(part.endswith("worker.py") for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def ended(pid, *, within_s=20.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def engine():
    engine = Engine(lambda: [TRIPLES])
    yield engine
    engine.close()


@pytest.fixture
def process():
    """A worker without an engine: nobody checks its queries or its time."""
    process = _Process.start(memory_bytes_max=MEMORY_BYTES_MAX)
    yield process
    process.kill()


def test_the_process_is_kept_between_queries_and_replaced_after_a_timeout(engine):
    before = workers()
    assert engine.query("ASK { <urn:s:1> ?p ?o }", QUICK).value
    (first,) = workers() - before
    assert engine.query("ASK { <urn:s:2> ?p ?o }", QUICK).value
    assert workers() - before == {first}
    with pytest.raises(DeadlineExceeded):
        engine.query(ENDLESS, Limits(timeout_s=0.2))
    assert ended(first)
    assert engine.query("ASK { <urn:s:3> ?p ?o }", QUICK).value
    assert first not in workers()


def test_a_process_that_somebody_ended_is_replaced(engine):
    before = workers()
    engine.query("ASK {}", QUICK)
    (pid,) = workers() - before
    os.kill(pid, signal.SIGKILL)
    assert ended(pid)
    assert engine.query("ASK { <urn:s:3> ?p ?o }", QUICK).value


def test_a_stopped_process_counts_as_late(engine):
    before = workers()
    engine.query("ASK {}", QUICK)
    (pid,) = workers() - before
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded):
        engine.query("ASK {}", Limits(timeout_s=0.2))
    assert ended(pid)


def test_waiting_for_another_threads_query_is_bounded_too(engine):
    with engine._lock, pytest.raises(DeadlineExceeded):
        engine.query("ASK {}", Limits(timeout_s=0.1))
    assert engine.query("ASK {}", QUICK).kind == "boolean"


def test_memory_is_bounded():
    engine = Engine(lambda: [TRIPLES], memory_bytes_max=400 << 20)
    try:
        assert engine.query("ASK { <urn:s:1> ?p ?o }", QUICK).value
        greedy = "SELECT (COUNT(DISTINCT CONCAT(?a, ?b, ?a, ?b)) AS ?n) { ?x ?p ?a . ?y ?q ?b }"
        with pytest.raises(InputError, match="MiB of memory"):
            engine.query(greedy, Limits(timeout_s=60))
        assert engine.query("ASK { <urn:s:1> ?p ?o }", QUICK).value
    finally:
        engine.close()


def test_a_graph_that_does_not_parse_is_refused():
    engine = Engine(lambda: [b"this is not N-Triples\n"])
    with pytest.raises(InputError, match="oxigraph loads"):
        engine.query("ASK {}", QUICK)
    engine.close()


def test_an_error_while_the_graph_is_made_reaches_the_caller_and_leaves_no_process():
    def broken():
        yield TRIPLES
        raise ZeroDivisionError("made up by the source of the triples")

    before = workers()
    engine = Engine(broken)
    with pytest.raises(ZeroDivisionError):
        engine.query("ASK {}", QUICK)
    assert workers() <= before
    engine.close()


def test_an_engine_that_nobody_holds_leaves_no_process():
    before = workers()
    engine = Engine(lambda: [TRIPLES])
    engine.query("ASK {}", QUICK)
    (pid,) = workers() - before
    del engine
    gc.collect()
    assert ended(pid)


ORPHANING = """
import sys
from galileo.rdf.engine import Engine, Limits
engine = Engine(lambda: [b'<urn:s> <urn:p> "1" .\\n'])
engine.query("ASK {}", Limits())
print(engine._process.child.pid, flush=True)
sys.stdin.read()
"""


def test_a_worker_whose_parent_was_killed_ends_by_itself():
    command = [sys.executable, "-c", ORPHANING]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as parent:
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
    assert ended(pid)


def test_a_worker_that_nobody_watches_ends_a_query_by_itself(process):
    process.load([TRIPLES])
    with pytest.raises(EOFError):
        process.ask(ENDLESS, Limits(timeout_s=0.1))
    assert process.returncode == -signal.SIGALRM


DIRECT = "import sys, pyoxigraph; list(pyoxigraph.Store().query(sys.argv[1]))"


def test_a_query_that_slips_past_the_guard_reaches_no_network(process):
    """The worker itself cannot open a socket, while oxigraph alone calls out."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/sparql"
        query = f"SELECT * {{ SERVICE <{address}> {{ ?s ?p ?o }} }}"
        control = subprocess.Popen([sys.executable, "-c", DIRECT, query], stderr=subprocess.DEVNULL)
        server.settimeout(20)
        server.accept()[0].close()
        assert control.wait(20) != 0

        head, data = process.ask(query, QUICK)
        assert (head["error"], data) == ("failed", b"")
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
