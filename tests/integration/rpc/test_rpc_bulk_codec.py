"""Answers about many queries over a real connection: what they share is sent and unpacked once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from simulator.logs import SCHEMA, to_labels

import galileo
from galileo.ccq.events import AnswerFetch
from galileo.ccq.pack_many import pack_many
from galileo.ccq.packs import Piece
from galileo.client import bulk_fetch
from galileo.client.cluster_caller import cluster_caller
from galileo.cursor import EMPTY_CURSOR, CommitRange, Cursor
from galileo.errors import CcqExpired, InputError, Unavailable
from galileo.packing import FORMAT_VERSION, Compression
from galileo.rpc import bulk_codec as module
from galileo.rpc.bulk_codec import UPDATES_PER_PART, ManyFetched, ManyUpdate, Sheet, Update
from galileo.rpc.continuous import ContinuousServicer
from galileo.wire import token
from galileo.wire.caller import CallOptions
from galileo.wire.channel import open_channel, server_options
from galileo.wire.v1 import continuous_pb2, continuous_pb2_grpc

CURSOR = Cursor({0: 9})
PATHS = [[(0, sequence, row, 7) for sequence in (number, 9)] for row, number in enumerate((3, 5))]


def shared() -> list[list[Piece]]:
    """Labels of two queries in one pack."""
    tables = [labels.labels().table for labels in map(to_labels, PATHS) if labels is not None]
    packs = pack_many(
        SCHEMA, pa.concat_tables(tables), np.array([0, 2]), compression=Compression.NONE
    )
    return [[Piece(one.data, one.ranges()) for one in labels.packs] for labels in packs]


def update(
    place: int, pieces: Sequence[Piece], *, query_json: str = "", **named: Any
) -> ManyUpdate:
    answer = AnswerFetch(
        **{"request": 1, "ccq_id": f"q{place}", "after": EMPTY_CURSOR, "labels": None}
        | {"cursor": CURSOR, "frontier": CURSOR}
        | named
    )
    content = Update(answer, pieces, f"t{place}", SCHEMA.to_json(), query_json)
    return ManyUpdate(place, f"q{place}", content)


@dataclass
class Face:
    """Has answers one after the other; notes what it was asked for."""

    answers: list[ManyFetched] = field(default_factory=list)
    asked: list[tuple[list[str], list[str], dict[str, Any]]] = field(default_factory=list)

    async def fetch_many(
        self, ccq_ids: Sequence[str], given: Sequence[str], **named: Any
    ) -> ManyFetched:
        self.asked.append((list(ccq_ids), list(given), named))
        return self.answers.pop(0)


@dataclass
class Served:
    face: Face
    address: str


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    server = grpc.aio.server(options=server_options())
    face = Face()
    continuous_pb2_grpc.add_ContinuousServicer_to_server(
        ContinuousServicer(face),  # type: ignore[arg-type]
        server,
    )
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield Served(face, address)
    await server.stop(None)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as one:
        yield one


async def fetched(served: Served, *answers: ManyFetched, tokens: dict[str, str], wait_s: float = 0):
    served.face.answers = list(answers)
    caller = cluster_caller([served.address], options=CallOptions(patience_s=5.0))
    try:
        reading = bulk_fetch.BulkFetcher(caller)
        return await reading.fetch(tokens, wait_s=wait_s, labels_max=0)
    finally:
        await caller.close()


TOKENS = {"q0": "", "q1": "b", "q2": "c"}


async def test_fetch_many_sends_a_shared_pack_once(served: Served) -> None:
    pieces = shared()
    assert pieces[0][0].data is pieces[1][0].data
    answer = ManyFetched([update(0, pieces[0], query_json="{}"), update(1, pieces[1])], False)
    parts = list(module.ManyParts().parts(answer))
    assert sum(len(part.packed) for part in parts) == 1
    assert sum(len(part.cursors) for part in parts) == 1
    updates = await fetched(served, answer, tokens=TOKENS)
    assert {i: updates[i].labels.sequences.tolist() for i in updates} == {
        "q0": [3, 9],
        "q1": [5, 9],
    }
    assert updates["q0"].labels.frontier == updates["q1"].frontier == CURSOR
    assert updates.tokens == {"q0": "t0", "q1": "t1", "q2": "c"}
    table = updates.to_arrow()
    rows = zip(table["ccq"].to_pylist(), table["sequence"].to_pylist(), strict=True)
    assert list(rows) == [("q0", 3), ("q0", 9), ("q1", 5), ("q1", 9)]
    assert served.face.asked[0][:2] == (["q0", "q1", "q2"], ["", "b", "c"])


async def test_fetch_many_of_many_updates_comes_in_parts(served: Served) -> None:
    pieces, count = shared(), 2 * UPDATES_PER_PART + 1
    last = [update(count - 1, pieces[1])]
    empty = [update(place, ()) for place in range(1, count - 1)]
    answer = ManyFetched([update(0, pieces[0]), *empty, *last], True)
    assert len(list(module.ManyParts().parts(answer))) == 3
    updates = await fetched(served, answer, tokens={f"q{place}": "" for place in range(count)})
    assert updates.to_arrow("sim").num_rows == 4
    ends = ["q0", f"q{count - 1}"]
    assert (list(updates), updates.more, updates.tokens["q2"]) == (ends, True, "t2")


async def test_fetch_many_returns_errors_and_gone_commits_by_query(served: Served) -> None:
    gone = (CommitRange(0, 1, 4),)
    answer = ManyFetched(
        [update(0, (), gone=gone), ManyUpdate(1, "q1", CcqExpired("it is over"))], False
    )
    updates = await fetched(served, answer, tokens=TOKENS)
    assert updates["q0"].gone == gone
    assert (updates.errors["q1"].kind, updates.tokens["q1"]) == ("ccq_expired", "b")
    assert updates.to_arrow().num_rows == 0


async def test_fetch_many_follows_redirections(served: Served) -> None:
    elsewhere = ManyFetched([ManyUpdate(2, "q2", served.address)], False)
    there = ManyFetched([update(0, shared()[0])], False)
    updates = await fetched(served, elsewhere, there, tokens=TOKENS)
    assert [ids for ids, _, _ in served.face.asked] == [["q0", "q1", "q2"], ["q2"]]
    assert list(updates) == ["q2"]


async def test_fetch_many_retries_transient_errors(served: Served) -> None:
    away = ManyFetched([ManyUpdate(0, "q0", Unavailable("moving", after_s=0.1))], False)
    updates = await fetched(
        served, away, ManyFetched([update(0, shared()[0])], False), tokens=TOKENS
    )
    assert (updates.errors, list(updates)) == ({}, ["q0"])


async def test_fetch_many_with_wait_polls_once_before_waiting(
    served: Served,
) -> None:
    answers = ManyFetched([], False), ManyFetched([update(1, shared()[0])], False)
    updates = await fetched(served, *answers, tokens=TOKENS, wait_s=90.0)
    waits = [named["wait_s"] for _, _, named in served.face.asked]
    assert waits[0] == 0
    assert 30.0 < waits[1] <= 90.0
    assert list(updates) == ["q1"]


async def test_fetch_many_with_rows_outside_a_pack_is_refused(served: Served) -> None:
    data = shared()[0][0].data
    answer = ManyFetched([update(0, [Piece(data, ((3,), (9,)))])], False)
    updates = await fetched(served, answer, tokens=TOKENS)
    with raises(InputError, bound=4):
        updates.to_arrow()
    with pytest.raises(InputError):
        updates["q0"]


async def test_fetch_many_of_an_old_packing_version_is_refused(served: Served) -> None:
    async with open_channel(served.address) as channel:
        stub = continuous_pb2_grpc.ContinuousStub(channel)
        request = continuous_pb2.FetchManyRequest(packing=FORMAT_VERSION - 1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [part async for part in stub.FetchMany(request)]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_fetch_many_from_two_coordinators_is_consistent(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = bulk_fetch.BulkFetcher._apply_update

    def slowly(self: Any, reading: Any, ccq_id: str, value: Any, answer: Any) -> None:
        if ccq_id == "q1":
            time.sleep(0.3)
        taken(self, reading, ccq_id, value, answer)

    monkeypatch.setattr(bulk_fetch.BulkFetcher, "_apply_update", slowly)
    async with serving() as other:
        nothing, news = ManyFetched([], False), ManyFetched([update(0, shared()[0])], False)
        served.face.answers, other.face.answers = [nothing, news], [nothing, news]
        caller = cluster_caller([served.address], options=CallOptions(patience_s=5.0))
        reading = bulk_fetch.BulkFetcher(caller)
        reading.cache_coordinator("q1", other.address)
        updates = await reading.fetch({"q0": "a", "q1": "b"}, wait_s=9.0, labels_max=0)
        await asyncio.sleep(0.5)
        await caller.close()
    for ccq_id, before in (("q0", "a"), ("q1", "b")):
        assert (ccq_id in updates) == (updates.tokens[ccq_id] != before)
    assert len(updates) >= 1


def sheet(*rows: tuple[int, int, int], pieces: list[list[Piece]], cursor: Cursor = CURSOR) -> Sheet:
    """Of places, first rows and counts, in the shared pack."""
    places, starts, counts = (list(column) for column in zip(*rows, strict=True))
    packs = [pieces[0][0].data if count else b"" for count in counts]
    return Sheet(cursor, CURSOR, 1.5, 0.5, SCHEMA.to_json(), places, packs, starts, counts)


async def test_fetch_many_sheet_equals_single_updates(served: Served) -> None:
    pieces = shared()
    known = ManyFetched([update(n, (), query_json="{}") for n in range(3)], False)
    one = ManyFetched((), False, [sheet((0, 0, 2), (1, 2, 2), (2, 0, 0), pieces=pieces)])
    served.face.answers = [known, one]
    caller = cluster_caller([served.address], options=CallOptions(patience_s=5.0))
    reading = bulk_fetch.BulkFetcher(caller)
    try:
        first = await reading.fetch(TOKENS, wait_s=0.0, labels_max=0)
        updates = await reading.fetch(first.positions, wait_s=0.0, labels_max=0)
        served.face.answers = [ManyFetched((), False)]
        await reading.fetch({**updates.positions, "q9": "t9"}, wait_s=0.0, labels_max=0)
    finally:
        await caller.close()
    assert {i: updates[i].labels.sequences.tolist() for i in updates} == {
        "q0": [3, 9],
        "q1": [5, 9],
    }
    assert updates["q0"].token == updates.tokens["q0"] == token.encode("q0", CURSOR)
    assert updates.tokens["q2"] == token.encode("q2", CURSOR)
    assert (updates["q1"].age_s, updates["q1"].interval_s, len(updates)) == (1.5, 0.5, 2)
    table = updates.to_arrow()
    rows = zip(table["ccq"].to_pylist(), table["sequence"].to_pylist(), strict=True)
    assert list(rows) == [("q0", 3), ("q0", 9), ("q1", 5), ("q1", 9)]
    assert [given for _, given, _ in served.face.asked] == [
        ["", "b", "c"],
        ["t0", "t1", "t2"],
        [CURSOR, CURSOR, CURSOR, "t9"],
    ]


async def test_fetch_many_from_a_node_without_sheets_sends_tokens(served: Served) -> None:
    served.face.answers = [ManyFetched((), False)]
    caller = cluster_caller([served.address], options=CallOptions(patience_s=5.0))
    try:
        await bulk_fetch.BulkFetcher(caller).fetch({"q0": CURSOR}, wait_s=0.0, labels_max=0)
    finally:
        await caller.close()
    assert served.face.asked[0][1] == [token.encode("q0", CURSOR)]


async def test_watch_many_continues_a_cut_answer(served: Served) -> None:
    pieces = shared()
    served.face.answers = [
        ManyFetched((), True, [sheet((0, 0, 2), pieces=pieces)]),
        ManyFetched((), False, [sheet((0, 2, 2), pieces=pieces)]),
        ManyFetched([ManyUpdate(n, f"q{n}", CcqExpired("over")) for n in range(3)], False),
    ]
    async with galileo.AsyncClient(served.address) as client:
        seen = [list(updates) async for updates in client.watch_many(TOKENS)]
    assert seen == [["q0"], ["q1"], []]
    assert [ids for ids, _, _ in served.face.asked] == [
        ["q0", "q1", "q2"],
        ["q1", "q2"],
        ["q0", "q1", "q2"],
    ]
    assert served.face.asked[2][1] == [CURSOR, CURSOR, "c"]


async def test_watch_many_reports_frontiers_after_partial_news(
    served: Served,
) -> None:
    """Who waits for what was ingested would wait for ever, where the rest has no match."""
    pieces, over = shared(), CcqExpired("over")
    early, late = Cursor({0: 3}), Cursor({0: 11})
    served.face.answers = [
        ManyFetched([update(0, pieces[0], frontier=early), update(1, ())], False),
        ManyFetched((), False, [sheet((0, 0, 0), (1, 0, 0), pieces=pieces)]),
        ManyFetched([update(0, ())], False),  # No further than before.
        ManyFetched([update(1, (), frontier=late)], False),  # It had no news yet.
        ManyFetched([update(0, (), frontier=late), update(1, (), frontier=late)], False),
        ManyFetched([ManyUpdate(n, f"q{n}", over) for n in range(3)], False),
    ]
    async with galileo.AsyncClient(served.address) as client:
        client._caller.options = CallOptions(watch_wait_s=0.0)
        seen = [one async for one in client.watch_many(TOKENS)]
    assert [list(updates) for updates in seen] == [["q0"], [], [], []]
    assert [updates.frontiers for updates in seen] == [
        {"q0": early, "q1": CURSOR},
        {"q0": CURSOR, "q1": CURSOR},
        {"q0": late, "q1": late},
        {},
    ]
    assert [updates.to_arrow().num_rows for updates in seen] == [2, 0, 0, 0]
    assert seen[0].to_arrow().schema == seen[1].to_arrow().schema == seen[2].to_arrow().schema
    assert seen[1].to_arrow(SCHEMA.name).schema == seen[0].to_arrow().schema
    assert not seen[1].is_news


def test_given_tokens_with_unpaired_cursors_are_refused() -> None:
    for stands in ([1], [2, 0]):
        request = continuous_pb2.FetchManyRequest(tokens=["", "a"], stands=stands)
        request.cursors.add()
        with raises(InputError, parameter="stands"):
            module.given_tokens(request)
