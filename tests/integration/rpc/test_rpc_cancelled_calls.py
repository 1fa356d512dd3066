"""Whatever a call takes, a place, bytes or a count, it gives back when it is cancelled.

Each case is cancelled after each number of turns of the event loop, while it waits and while it
works, and in the very turn in which what it waits for comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lone_nodes import LoneOwner
from starlette.requests import Request

from galileo.ccq.stats import NodeCounts
from galileo.clock import SystemClock
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.dht.topology_state import TopologyState
from galileo.election.election import Candidacy
from galileo.election.ranking import UsageStatistics
from galileo.gateway.callers import _CALLER, _TOKEN, Callers
from galileo.gateway.formats import Encoders
from galileo.gateway.hub import Hubs
from galileo.gateway.request_bodies import RequestBodies
from galileo.gateway.shared_calls import SharedCalls
from galileo.model.quotas import Quotas
from galileo.model.schema import Feature, Schema
from galileo.node.analyses.local_graphs import LocalGraphs
from galileo.node.replication.log_writer import LogWriter
from galileo.rpc import admission as rpc_admission
from galileo.rpc.access import ANONYMOUS, Principal, Role
from galileo.rpc.admission import Admission
from galileo.rpc.call_log import CallTracker
from galileo.rpc.policy import POLICIES
from galileo.rpc.query import QueryServicer
from galileo.rpc.quotas import QuotaResolver
from galileo.rpc.rate_limit import Metering, metered
from galileo.server.elections import Elections
from galileo.shares import ShareHolder
from galileo.turns import FairTurns
from galileo.wire.channel import PIECE_BYTES

TURNS_MAX = 12
TIMEOUT_S = 30.0
FAR = 1e12
"""A time that does not come."""


@dataclass
class Case:
    """A call that takes something and waits until it may go on.

    Attributes:
        call: what is cancelled.
        taken: how much is taken at the moment.
        go: ends all waits of the call.
        others: calls that are in its way until `go`.
    """

    call: Callable[[], Awaitable[object]]
    taken: Callable[[], int]
    go: asyncio.Event = field(default_factory=asyncio.Event)
    others: list[asyncio.Task[Any]] = field(default_factory=list)


def admission(method: str) -> Case:
    """A call that waits for room or for a slot; another one has what there is for its caller."""
    admission, go = Admission(), asyncio.Event()

    async def read() -> bytes:
        if not POLICIES[method].slot:
            await go.wait()
        return b""

    async def call() -> None:
        context: Any = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1", read=read)
        admitted = admission.admit(method, ANONYMOUS, context)
        await admitted.read(bytes)
        await admitted.begin_answer()
        await go.wait()

    def taken() -> int:
        slots = sum(slots.held for slots in admission._slots.values())
        return admission.calls + admission.requests_bytes + slots

    return Case(call, taken, go, [asyncio.create_task(call())])


def rate_limit() -> Case:
    """A call of a principal whose bucket is overdrawn."""
    metering = Metering(QuotaResolver(Quotas(calls_per_s=10.0)), monotonic=lambda: 0.0)
    meter, go = metering.meter(Principal("ann", frozenset({Role.READER}))), asyncio.Event()
    for bucket in meter.buckets.values():
        bucket.take(15.0)

    async def call() -> None:
        context: Any = None
        async with metered(meter, None, context):
            await go.wait()

    return Case(call, lambda: meter.calls, go)


def call_tracker() -> Case:
    tracker, go = CallTracker(), asyncio.Event()
    context = SimpleNamespace(
        peer=str, invocation_metadata=tuple, trailing_metadata=tuple, code=lambda: None
    )

    async def call() -> None:
        with tracker.record("Query/Run", SimpleNamespace(context=context, request=None)):
            await go.wait()

    return Case(call, lambda: sum(tracker.counts().values()), go)


def streamed_queries() -> Case:
    servicer, go = QueryServicer.__new__(QueryServicer), asyncio.Event()
    servicer._streaming = 0

    async def call() -> None:
        with servicer._counted():
            await go.wait()

    return Case(call, lambda: servicer._streaming, go)


def polls() -> Case:
    """The poll of a node, which elections share."""
    go, groups = asyncio.Event(), (Group("g", (NodeInfo("n", "127.0.0.1:1"),)),)

    async def ask(node: str) -> UsageStatistics:
        await go.wait()
        return UsageStatistics()

    elections = Elections(
        "me",
        TopologyState(Topology("test", groups, even_ranges(1))),
        ask=ask,
        own=UsageStatistics,
        dead=tuple,
        counts=NodeCounts(),
        clock=SystemClock(),
    )

    async def call() -> None:
        await elections.elect([Candidacy("q", 1)])
        await go.wait()

    return Case(call, lambda: len(elections._polling), go)


def analytics() -> Case:
    anything: Any = None
    executor = ThreadPoolExecutor(1)
    answers, go = (
        LocalGraphs(anything, reading=anything, executor=executor),
        asyncio.Event(),
    )
    loop = asyncio.get_running_loop()

    def work(check: Callable[[], None]) -> None:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        check()

    async def call() -> None:
        await answers.run(work)

    return Case(call, lambda: answers._working, go)


def group_commit() -> Case:
    """A commit behind one that is being written."""
    go, loop = asyncio.Event(), asyncio.get_running_loop()

    def write(commits: Any, **_: Any) -> dict[int, list[None]]:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        return {partition: [None] * len(each) for partition, each in commits.items()}

    journal = SimpleNamespace(end_sequence=0, last_sequence=0)
    shard: Any = SimpleNamespace(commit=write, journals={0: journal}, wants_maintenance=False)
    executor, commit = ThreadPoolExecutor(2), cast(Any, None)
    commits = LogWriter(
        shard,
        machines=LoneOwner(),
        open_journal=lambda _: None,
        restart_journal=lambda *_: None,
        executor=executor,
        syncing=executor,
        waiting_max=9,
    )

    async def call() -> None:
        await asyncio.wrap_future(commits.submit({0: commit}))

    def taken() -> int:
        return sum(commits.waiting.values())

    return Case(call, taken, go, [asyncio.create_task(call())])


def shared_calls() -> Case:
    shared, go = SharedCalls[str, bool](), asyncio.Event()
    return Case(lambda: shared.call("key", go.wait), lambda: len(shared), go)


class Client:
    def __init__(self, go: asyncio.Event) -> None:
        self._go = go

    async def fetch(self, *_: Any, **__: Any) -> Any:
        await self._go.wait()
        schema = Schema("air", [Feature("t")])
        return SimpleNamespace(token="", labels=SimpleNamespace(schema=schema))

    async def list_ccqs(self, *_: Any, **__: Any) -> Any:
        await self._go.wait()
        return []


def hub_fetch() -> Case:
    hubs, go = Hubs(), asyncio.Event()
    client: Any = Client(go)
    return Case(
        lambda: hubs.fetch("q", client=client, token=""),
        lambda: len(hubs._fetching),
        go,
    )


def hub_reader() -> Case:
    hubs, go = Hubs(), asyncio.Event()
    client: Any = Client(go)

    async def call() -> None:
        async with hubs.joined("q", client=client, token=""):
            await go.wait()

    return Case(call, lambda: hubs.readers + len(hubs), go)


def encoders() -> Case:
    threads, go = Encoders(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()

    return Case(
        lambda: threads.run(work), lambda: threads._turns.running + threads._turns.waiting, go
    )


def bodies() -> Case:
    bodies, go = RequestBodies(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"some", "more_body": True}

    async def call() -> None:
        scope = {"type": "http", "headers": []}
        async with bodies.admitted(Request(scope, receive), ShareHolder("h")) as request:
            async for _ in request.stream():
                await go.wait()
                return

    return Case(call, lambda: bodies._pool.held + len(bodies._pool.arriving), go)


def callers() -> Case:
    made, go = Callers.__new__(Callers), asyncio.Event()
    made._requests = Counter()
    made._clients = SimpleNamespace(client=lambda token: None)  # type: ignore[assignment]
    scope = {"type": "http", "headers": [], _CALLER: ShareHolder("h"), _TOKEN: ""}

    async def call() -> None:
        async with made.client(Request(scope)):
            await go.wait()

    return Case(call, lambda: len(made._requests), go)


def fair_turns() -> Case:
    """A query behind another one."""
    turns, go = FairTurns(1, what="queries", waiting_max=9), asyncio.Event()

    async def call() -> None:
        async with turns.acquire("host", within_s=FAR):
            await go.wait()

    return Case(call, lambda: turns.running + turns.waiting, go, [asyncio.create_task(call())])


BOUNDS = {
    "READINGS_MAX": 1,
    "ANSWERS_MAX": 1,
    "REQUESTS_BYTES_MAX": 2 * PIECE_BYTES,
    "BULK_BYTES_MAX": 2 * PIECE_BYTES,
    "ROOM_WITHIN_S": FAR,
}


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call has all room, and each slot."""
    for name, value in BOUNDS.items():
        monkeypatch.setattr(rpc_admission, name, value)


CASES: dict[str, Callable[[], Case]] = {
    "small request": lambda: admission("/galileo.v1.Cluster/Status"),
    "bulk request": lambda: admission("/galileo.v1.Storage/Ingest"),
    "reader": lambda: admission("/galileo.v1.Storage/Select"),
    "query": lambda: admission("/galileo.v1.Query/Run"),
    "rate limit": rate_limit,
    **{
        make.__name__: make
        for make in (
            call_tracker,
            streamed_queries,
            polls,
            analytics,
            group_commit,
            shared_calls,
            hub_fetch,
            hub_reader,
            encoders,
            bodies,
            callers,
            fair_turns,
        )
    },
}


@pytest.mark.parametrize("when", ["before", "after", "later"])
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
async def test_cancelled_call_gives_back_what_it_took(make: Callable[[], Case], when: str) -> None:
    """A call may go on some turns before it is cancelled, in the same turn, or afterwards."""
    most = 0
    for turns in range(TURNS_MAX):
        for again in range(TURNS_MAX if when == "before" else 1):
            taken, is_over = await cancelled(make(), when, turns=turns, again=again)
            most = max(most, taken)
            if is_over:
                break
        if is_over and again == 0:
            break
    assert most


async def cancelled(case: Case, when: str, *, turns: int, again: int) -> tuple[int, bool]:
    """What a call had taken, and whether it had ended, when it was cancelled."""
    await asyncio.sleep(0)
    task = asyncio.ensure_future(case.call())
    for _ in range(turns):
        await asyncio.sleep(0)
    taken = case.taken()
    if when == "before":
        case.go.set()
        for _ in range(again):
            await asyncio.sleep(0)
    is_over = task.done()
    task.cancel()
    if when == "after":
        case.go.set()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    case.go.set()
    await asyncio.gather(*case.others)
    async with asyncio.timeout(TIMEOUT_S):
        while case.taken():  # noqa: ASYNC110 - callbacks and threads have no event
            await asyncio.sleep(0.001)
    return taken, is_over
