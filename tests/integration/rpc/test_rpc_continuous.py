"""Fetched labels over a real connection: packed as the cache has them, or as Arrow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import grpc.aio
import pyarrow as pa
import pytest
from expected_errors import raises
from simulator.logs import SCHEMA, to_labels

from galileo.ccq.events import AnswerFetch
from galileo.client import decode
from galileo.cursor import EMPTY_CURSOR, CommitRange, Cursor
from galileo.errors import CorruptData, InputError
from galileo.labels import LabelSet
from galileo.model.windows import Window, WindowProgress, advance_windows, instant
from galileo.packing import Compression
from galileo.packs import Piece, pack_labels
from galileo.rpc.continuous import CcqUpdate, ContinuousServicer
from galileo.rpc.internal import CachedRange, Internal
from galileo.wire.caller import Stream
from galileo.wire.channel import open_channel, server_options
from galileo.wire.services import CONTINUOUS, add_service, stub_of
from galileo.wire.v1 import continuous_pb2

PATHS = [(p, sequence, row, 7) for p in (0, 1) for sequence in (1, 2, 3) for row in range(40)]

HELD = CachedRange(
    pa.py_buffer(bytes(range(256)) * 10_000), Cursor({0: 3}), (CommitRange(0, 1, 2),)
)


@dataclass
class Face:
    """Has one answer; notes what it was asked for."""

    answer: CcqUpdate
    asked: list[str] = field(default_factory=list)

    async def fetch(self, ccq_id: str, **_: object) -> CcqUpdate:
        self.asked.append(ccq_id)
        return self.answer

    fetch_here = fetch

    def keep(self, rows: tuple[list[int], list[int]]) -> None:
        """Makes these rows of the second pack the labels of the answer."""
        first, second = self.answer.pieces
        self.answer = replace(self.answer, pieces=[first, Piece(second.data, rows)])

    async def held(
        self, ccq_id: str, *, term: int, after: Cursor, labels_max: int
    ) -> CachedRange | None:
        self.asked.append(f"{ccq_id} {term} {after} {labels_max}")
        return HELD if term == 7 else None


def update_of(*parts: list[tuple[int, int, int, int]]) -> CcqUpdate:
    packed = [labels for labels in map(to_labels, parts) if labels is not None]
    answer = AnswerFetch(
        1,
        "ccq-1",
        after=EMPTY_CURSOR,
        labels=None,
        cursor=Cursor({0: 3, 1: 3}),
        frontier=Cursor({0: 5}),
        frontier_age_s=1.5,
        missing=(4,),
        more=True,
    )
    pieces = [piece for labels in packed for piece in labels.pieces()]
    return CcqUpdate(answer, pieces, "after", SCHEMA.to_json(), "{}")


@pytest.fixture
async def face() -> Face:
    return Face(update_of(PATHS[:100], PATHS[100:]))


@pytest.fixture
def part_bytes() -> int:
    """The size of messages; tests override it."""
    return 1 << 20


@pytest.fixture
async def channel(face: Face, part_bytes: int) -> AsyncIterator[Any]:
    server = grpc.aio.server(options=server_options())
    servicer = ContinuousServicer(face, part_bytes=part_bytes)  # type: ignore[arg-type]
    add_service(CONTINUOUS, servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


@pytest.fixture
def stub(channel: Any) -> Any:
    return stub_of(CONTINUOUS, channel)


def request() -> continuous_pb2.FetchRequest:
    return continuous_pb2.FetchRequest(ccq_id="ccq-1")


def expected() -> LabelSet:
    made = to_labels(PATHS)
    assert made is not None
    return made.labels()


async def next_update(call: Any) -> Any:
    """The next update of an answer, as the client decodes it."""
    stream = Stream(call, address="a", asked="a", name="the node", part_s=None)
    parts = await decode.update_parts(stream, begins_within_s=None, part_s=60.0)
    return await decode.update_of(parts)


async def test_fetch_returns_packed_labels_in_one_message(stub, face: Face) -> None:
    parts = [part async for part in stub.Fetch(request())]
    assert len(parts) == 1
    assert list(parts[0].packed) == [piece.data for piece in face.answer.pieces]
    update = await next_update(stub.Fetch(request()))
    assert update.labels.table.equals(expected().table)
    assert (update.token, update.more, update.age_s) == ("after", True, 1.5)
    assert (update.frontier, update.labels.frontier) == (Cursor({0: 5}), Cursor({0: 3, 1: 3}))
    assert (update.labels.missing, update.labels.query) == ((4,), "{}")
    assert face.asked == ["ccq-1", "ccq-1"]


@pytest.mark.parametrize("part_bytes", [1])
async def test_fetch_of_large_answers_returns_several_messages(stub, monkeypatch) -> None:
    monkeypatch.setattr(decode, "_DECODE_IN_THREAD_BYTES", 0)
    parts = [part async for part in stub.Fetch(request())]
    assert [len(part.packed) for part in parts] == [1, 1]
    assert [part.HasField("head") for part in parts] == [True, False]
    assert [part.HasField("tail") for part in parts] == [False, True]
    update = await next_update(stub.Fetch(request()))
    assert update.labels.table.equals(expected().table)


@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
async def test_fetch_leaves_out_rows_of_other_queries(stub, face: Face) -> None:
    """Their numbers count within each message."""
    face.keep(([0, 60], [10, 80]))
    update = await next_update(stub.Fetch(request()))
    table = expected().table
    kept = pa.concat_tables([table.slice(0, 110), table.slice(160, 80)])
    assert update.labels.table.equals(kept)


async def test_fetch_with_rows_outside_a_pack_is_refused(stub, face: Face) -> None:
    face.keep(([100], [41]))
    with raises(InputError, bound=140):
        await next_update(stub.Fetch(request()))


async def test_fetch_of_an_empty_answer_has_a_token(stub, face: Face) -> None:
    face.answer = update_of()
    update = await next_update(stub.Fetch(request()))
    assert (len(update.labels), update.token) == (0, "after")
    assert update.labels.table.schema == SCHEMA.label_schema


async def test_watch_repeats_fetch(stub, face: Face) -> None:
    call = stub.Watch()
    for _ in range(3):
        await call.write(request())
        assert len((await next_update(call)).labels) == len(PATHS)
    call.cancel()


async def test_fetch_of_damaged_labels_is_corrupt_data(stub, face: Face) -> None:
    made = pack_labels(expected(), Compression.LZ4)
    assert made is not None
    damaged = bytearray(made.packs[0].data)
    damaged[-1] ^= 1
    face.answer = replace(face.answer, pieces=[Piece(bytes(damaged), None)])
    with raises(CorruptData):
        await next_update(stub.Fetch(request()))


async def test_fetch_returns_changes_of_windows(stub, face: Face) -> None:
    window, buckets = Window.tumbling("2h"), expected().buckets
    _, changes = advance_windows(
        window, WindowProgress(), buckets=buckets, clock_us=None, more=False
    )
    face.answer = replace(face.answer, windows=changes)
    update = await next_update(stub.Fetch(request()))
    assert update.windows == tuple(changes.to_list())
    assert update.clock_us == changes.clock_us == int(buckets.max())
    assert update.clock == instant(update.clock_us)
    assert [len(update.in_window(one)) for one in update.windows] == changes.labels.tolist()


async def test_fetch_without_windows_returns_none(stub) -> None:
    update = await next_update(stub.Fetch(request()))
    assert (update.windows, update.clock_us, update.clock) == ((), None, None)


async def test_fetch_of_another_node_has_the_parts_for_its_client(stub, face: Face) -> None:
    internal = Internal(None, None, ccqs=face)  # type: ignore[arg-type]
    parts = [part.to_pybytes() async for part in internal.fetch("ccq-1", "", 0.0, 9)]
    asked = [part.SerializeToString() async for part in stub.Fetch(request())]
    assert parts == asked


async def test_handed_off_cache_comes_in_pieces_or_not_at_all(face: Face) -> None:
    internal = Internal(None, None, ccqs=face)  # type: ignore[arg-type]
    pieces = [piece async for piece in internal.handed_off_cache("q", 7, Cursor({0: 1}), 9)]
    assert b"".join(piece.data for piece in pieces) == HELD.data.to_pybytes()
    assert len(pieces) > 2
    assert {(piece.reached, piece.gone) for piece in pieces} == {(HELD.reached, HELD.gone)}
    assert face.asked == ["q 7 Cursor({0: 1}) 9"]
    assert not [piece async for piece in internal.handed_off_cache("q", 8, Cursor({0: 1}), 9)]
