"""From where the blocking client is called: callbacks, iterators, and programs that end."""

from __future__ import annotations

import asyncio
import gc
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from expected_errors import raises

import galileo
from galileo.client.blocking_portal import BlockingPortal, CallerThreadIterable
from galileo.client.queries import gather_or_cancel
from galileo.errors import Cancelled, InputError, InvalidToken

Fresh = Callable[[str], str]
Explored = tuple[Callable[[str], Any], Callable[..., pd.DataFrame]]

TIMEOUT_S = 300.0
HALF_READ = """
import sys
import galileo

client = galileo.connect(*sys.argv[2:])
pieces = client.read_batches(client.query(sys.argv[1]))
next(pieces)
answer = client.query_batches(sys.argv[1])
next(answer)
print("read")
"""


def in_time(work: Callable[[], Any]) -> Any:
    """What it returns or raises; fails where it hangs."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(work())
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert came, "it hangs"
    if isinstance(came[0], BaseException):
        raise came[0]
    return came[0]


@pytest.mark.slow
def test_program_with_half_read_iterators_exits(
    cluster: galileo.LocalCluster, explored: Any
) -> None:
    command = [sys.executable, "-c", HALF_READ, explored.name, *cluster.addresses]
    done = subprocess.run(command, timeout=TIMEOUT_S, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")


def test_callback_that_uses_its_own_client_is_refused(
    cluster: galileo.LocalCluster, explored: Any
) -> None:
    with galileo.connect(*cluster.addresses) as one, galileo.connect(*cluster.addresses) as other:

        def asks(client: galileo.Client) -> Any:
            return one.query(explored.name, progress=lambda _: client.count(explored.name))

        with raises(InputError):
            in_time(lambda: asks(one))
        with raises(InputError):
            in_time(lambda: one.query(explored.name, progress=lambda _: one.close()))
        assert len(in_time(lambda: asks(other)))


def test_ingest_of_read_batches_copies_a_dataset(
    client: galileo.Client, explored: Any, fresh_name: Fresh, make_explored: Explored
) -> None:
    copy = fresh_name("copy")
    client.create_dataset(make_explored[0](copy))
    labels = client.query(explored.name)
    in_time(lambda: client.ingest(copy, client.read_batches(labels)))
    assert client.count(copy) == client.count(explored.name)


def test_ingest_iterates_in_the_calling_thread(
    client: galileo.Client, fresh_name: Fresh, make_explored: Explored
) -> None:
    name, threads = fresh_name("threads"), []
    client.create_dataset(make_explored[0](name))

    def tables() -> Iterator[pd.DataFrame]:
        for _ in range(3):
            threads.append(threading.current_thread())
            yield make_explored[1](10)

    assert client.ingest(name, tables()).rows == 30
    assert threads == 3 * [threading.current_thread()]


def test_ingest_stores_a_table_before_the_next_is_ready(
    client: galileo.Client, fresh_name: Fresh, make_explored: Explored
) -> None:
    name, counts = fresh_name("awaited"), []
    client.create_dataset(make_explored[0](name))

    def tables() -> Iterator[pd.DataFrame]:
        yield make_explored[1](10)
        deadline = time.monotonic() + TIMEOUT_S
        while client.count(name) < 10 and time.monotonic() < deadline:
            time.sleep(0.01)
        counts.append(client.count(name))
        yield make_explored[1](10)

    in_time(lambda: client.ingest(name, tables()))
    assert counts == [10]


async def pieces(ended: threading.Event) -> AsyncIterator[int]:
    try:
        yield 1
        yield 2
    finally:
        ended.set()


def test_iterator_dropped_in_the_loop_thread_is_closed() -> None:
    """As the garbage collector does, which runs in any thread."""
    ended = threading.Event()
    with galileo.connect("127.0.0.1:1") as client:
        steps = client._iterate(pieces(ended))
        assert next(steps) == 1
        held = [steps]
        del steps

        async def drop() -> None:
            held.clear()

        in_time(lambda: client._run(drop()))
        assert ended.wait(TIMEOUT_S)


def test_iterator_dropped_in_a_thread_for_which_the_loop_waits_is_closed() -> None:
    """A thread that starts may collect garbage before the loop that starts it goes on."""
    ended, limit_s = threading.Event(), 20.0
    with galileo.connect("127.0.0.1:1") as client:
        held = [client._iterate(pieces(ended))]
        assert next(held[0]) == 1
        thread = threading.Thread(target=held.clear, daemon=True)

        async def wait() -> None:
            thread.start()
            thread.join(limit_s)

        client._run(wait())
        assert not thread.is_alive(), "the thread waits for the loop"
        assert ended.wait(TIMEOUT_S)


def test_iterator_that_has_ended_needs_no_garbage_collection() -> None:
    with galileo.connect("127.0.0.1:1") as client:
        steps = client._iterate(pieces(threading.Event()))
        held = weakref.ref(steps)
        gc.disable()
        try:
            assert list(steps) == [1, 2]
            del steps
            assert held() is None
        finally:
            gc.enable()


def test_portal_close_ends_all_calls() -> None:
    for _ in range(50):
        loop, outcomes, begun = BlockingPortal("closing"), [], threading.Barrier(5)

        def calls(loop: BlockingPortal, outcomes: list[Any], begun: threading.Barrier) -> None:
            begun.wait()
            while True:
                try:
                    loop.run(asyncio.sleep(0))
                except (InputError, Cancelled) as error:
                    outcomes.append(error)
                    return

        threads = [
            threading.Thread(target=calls, args=(loop, outcomes, begun), daemon=True)
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        begun.wait()
        in_time(loop.close)
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert len(outcomes) == 4


def test_caller_thread_iterable_error_fails_the_call() -> None:
    async def total(items: CallerThreadIterable[int]) -> int:
        return sum([item async for item in items])

    def broken(error: BaseException) -> Iterator[int]:
        yield 1
        raise error

    loop = BlockingPortal("handed")
    try:
        for items in ([], [1, 2, 3], range(1000)):
            handed = CallerThreadIterable(items)
            assert loop.run(total(handed), handed=handed) == sum(items)
        for error in (ZeroDivisionError("gone"), KeyboardInterrupt()):
            handed = CallerThreadIterable(broken(error))
            with pytest.raises(type(error)):
                loop.run(total(handed), handed=handed)
    finally:
        loop.close()


def test_labels_after_sparql_can_be_pickled(client: galileo.Client, explored: Any) -> None:
    labels = client.query(explored.name)
    answer = labels.sparql("SELECT ?s WHERE { ?s ?p ?o } LIMIT 1")
    again = pickle.loads(pickle.dumps(labels))
    assert again.table.equals(labels.table)
    assert (again.frontier, again.missing, again.query) == (
        *(labels.frontier, labels.missing, labels.query),
    )
    assert len(again.sparql("SELECT ?s WHERE { ?s ?p ?o } LIMIT 1").rows) == len(answer.rows)


@pytest.mark.parametrize("kind", [galileo.Client, galileo.AsyncClient])
def test_clients_cannot_be_pickled(kind: Any) -> None:
    client = kind("127.0.0.1:1")
    try:
        with pytest.raises(TypeError, match="connect in each process"):
            pickle.dumps(client)
    finally:
        if isinstance(client, galileo.Client):
            client.close()


def test_async_client_in_another_event_loop_is_refused(
    cluster: galileo.LocalCluster, explored: Any
) -> None:
    client = galileo.AsyncClient(*cluster.addresses)

    async def first() -> int:
        found = await client.count(explored.name)
        await client.close()
        return found

    assert asyncio.run(first())
    with raises(InputError):
        asyncio.run(client.count(explored.name))


# --- clients that are dropped without `close` ----------------------------------------------------


@pytest.mark.parametrize("is_used", [False, True])
def test_client_dropped_ends_its_thread(cluster: galileo.LocalCluster, is_used: bool) -> None:
    before = set(threading.enumerate())
    client = galileo.Client(cluster.addresses[0])
    if is_used:
        assert client.status().complete
    dropped = weakref.ref(client)
    threads = [one for one in set(threading.enumerate()) - before if one.name == "galileo-client"]
    assert len(threads) == 1
    del client
    gc.collect()
    assert dropped() is None
    threads[0].join(30)
    assert not threads[0].is_alive()


# --- iterators of the blocking client, which are closed however they are left --------------------


def test_iterator_interrupted_before_it_waits_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python may raise it between any two instructions."""
    begun, ended = threading.Event(), threading.Event()

    async def endless() -> AsyncIterator[int]:
        begun.set()
        try:
            await asyncio.Event().wait()
            yield 1
        finally:
            ended.set()

    schedule = asyncio.run_coroutine_threadsafe
    with galileo.connect("127.0.0.1:1") as client:

        def interrupted(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
            monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", schedule)
            schedule(work, loop)
            assert begun.wait(60)
            raise KeyboardInterrupt

        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(client._iterate(endless()))
        assert ended.is_set()


# --- calls that are made together, of which one fails --------------------------------------------


async def test_gather_or_cancel_cancels_the_others_after_a_failure() -> None:
    over = []

    async def endless(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            over.append(number)

    async def failing() -> None:
        await asyncio.sleep(0)
        raise InvalidToken("made up")

    with pytest.raises(InvalidToken):
        await gather_or_cancel([endless(1), failing(), endless(2)])
    assert sorted(over) == [1, 2]


async def test_gather_or_cancel_returns_results_in_order() -> None:
    async def later(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await gather_or_cancel(map(later, [5, 1, 3])) == [5, 1, 3]
    assert await gather_or_cancel([]) == []
