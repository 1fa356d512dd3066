"""Fetching for many queries from the production machine, without a network."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from simulator.logs import SCHEMA, to_labels

from galileo.ccq import events as ccq
from galileo.ccq.events import BatchItem, BatchSubmitted
from galileo.ccq.machine import Continuous
from galileo.ccq.model import Ccq
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.pack_many import pack_many
from galileo.clock import SystemClock
from galileo.config import LimitsSection
from galileo.cursor import Cursor
from galileo.election import events as duties
from galileo.election.messages import UsageStatistics
from galileo.errors import InputError, SamplerRevoked
from galileo.packing import Compression, unpack
from galileo.rpc.bulk_codec import ManyFetched
from galileo.server.bulk_fetch import BulkFetches

COUNT = 40
IDS = [f"q{number}" for number in range(COUNT)]
LABELS = 3


@dataclass
class Stage:
    """One node that coordinates all; a cycle finds `LABELS` labels of each, in one pack."""

    machine: Continuous = field(
        default_factory=lambda: Continuous("a", ContinuousOptions(ordinal=0, groups=(("a",),)))
    )
    now: float = 0.0
    asked: int = 0
    over: asyncio.Future[None] | None = None

    def __post_init__(self) -> None:
        self.step(duties.RecordsLoaded((), 0.0))
        self.step(duties.UsageMeasured(UsageStatistics(memory_free_bytes=8 << 30)))
        items = tuple(BatchItem(Ccq(i, SCHEMA.name, "", 1.0, 1e9)) for i in IDS)
        self.step(BatchSubmitted(1, items))

    def step(self, event: Any) -> list[Any]:
        effects = self.machine.step(event, self.now)
        self.machine.check()
        return effects

    def cycle(self, sequence: int) -> None:
        self.now += 2.0
        reached = Cursor({0: sequence})
        self.step(ccq.CommitsObserved(SCHEMA.name, reached))
        (start,) = [e for e in self.step(duties.Ticked(0.0)) if isinstance(e, ccq.StartCycle)]
        paths = [[(0, sequence, row, 7) for row in range(LABELS)] for _ in start.items]
        tables = [found.labels().table for found in map(to_labels, paths) if found is not None]
        starts = np.arange(len(paths)) * LABELS
        packs = pack_many(SCHEMA, pa.concat_tables(tables), starts, compression=Compression.NONE)
        results = tuple(
            ccq.CycleResult(item.ccq.id, item.term, item.after, labels, reached)
            for item, labels in zip(start.items, packs, strict=True)
        )
        self.step(ccq.CycleFinished(start.cycle_id, results))
        if self.over is not None:
            self.over.set_result(None)
            self.over = None

    async def ask_many(self, make: Any, count: int, *, timeout_s: float) -> list[Any]:
        self.asked += count
        effects = self.step(make(1000))
        answers = {effect.request: effect for effect in effects if hasattr(effect, "request")}
        return [answers[1000 + number] for number in range(count)]

    def next_cycle(self) -> asyncio.Future[None]:
        self.over = self.over or asyncio.get_running_loop().create_future()
        return self.over


@dataclass
class Many:
    stage: Stage
    fetches: BulkFetches
    revoked: set[str]
    dropped: set[str]

    async def __call__(
        self, tokens: dict[str, str], *, wait_s: float = 0.0, labels_max: int = 0
    ) -> ManyFetched:
        return await self.fetches.fetch(
            list(tokens),
            list(tokens.values()),
            wait_s=wait_s,
            labels_max=labels_max,
            include_query=False,
        )


@pytest.fixture
def fetches_per_step() -> int:
    """Tests override it."""
    return 1_000


@pytest.fixture
def many(fetches_per_step: int) -> Many:
    stage, revoked, dropped = Stage(), set[str](), set[str]()

    def check(ccq_id: str) -> None:
        if ccq_id in revoked:
            raise SamplerRevoked("its sampler was revoked")

    catalog = SimpleNamespace(
        schema=lambda _: SCHEMA,
        knows=lambda dataset: dataset not in dropped,
        is_dropped=lambda dataset: dataset in dropped,
    )
    fetches = BulkFetches(
        SimpleNamespace(catalog=catalog),  # type: ignore[arg-type]
        stage,  # type: ignore[arg-type]
        peers=SimpleNamespace(address=lambda name: f"{name}:1"),  # type: ignore[arg-type]
        clock=SystemClock(),
        limits=LimitsSection(),
        check=check,
        fetches_per_step=fetches_per_step,
    )
    return Many(stage, fetches, revoked, dropped)


def rows(fetched: ManyFetched) -> dict[str, int]:
    """Labels of each query, as a reader unpacks them."""
    found = {}
    for update in fetched.updates:
        pieces = update.outcome.pieces
        tables = [unpack(piece.data, SCHEMA.label_schema) for piece in pieces]
        kept = [
            table.num_rows if piece.rows is None else sum(piece.rows[1])
            for piece, table in zip(pieces, tables, strict=True)
        ]
        found[update.ccq_id] = sum(kept)
    return found


def tokens_after(fetched: ManyFetched, tokens: dict[str, str]) -> dict[str, str]:
    return {**tokens, **{one.ccq_id: one.outcome.token for one in fetched.updates}}


async def test_fetch_of_most_queries_of_a_pack_shares_the_pack(many: Many) -> None:
    many.stage.cycle(1)
    fetched = await many(dict.fromkeys(IDS, ""))
    assert rows(fetched) == dict.fromkeys(IDS, LABELS)
    assert len({id(piece.data) for one in fetched.updates for piece in one.outcome.pieces}) == 1


async def test_fetch_of_few_queries_of_a_pack_copies_their_rows(
    many: Many,
) -> None:
    many.stage.cycle(1)
    fetched = await many({"q3": "", "q9": ""})
    assert rows(fetched) == {"q3": LABELS, "q9": LABELS}
    for update in fetched.updates:
        (piece,) = update.outcome.pieces
        assert piece.rows is not None
        assert piece.rows[1] == (LABELS,)
        assert unpack(piece.data, SCHEMA.label_schema).num_rows == 2 * LABELS
    alone = await many({"q5": ""})
    (piece,) = alone.updates[0].outcome.pieces
    assert piece.rows is None
    assert unpack(piece.data, SCHEMA.label_schema).num_rows == LABELS


async def test_fetch_returns_queries_with_news_once(many: Many) -> None:
    many.stage.cycle(1)
    tokens = dict.fromkeys(IDS, "")
    first = await many(tokens)
    tokens = tokens_after(first, tokens)
    assert (await many(tokens)).updates == ()
    many.stage.cycle(2)
    second = await many(tokens)
    assert rows(second) == dict.fromkeys(IDS, LABELS)
    assert {one.outcome.answer.cursor for one in second.updates} == {Cursor({0: 2})}


async def test_fetch_with_a_cached_or_decoded_token_is_equal(many: Many) -> None:
    many.stage.cycle(1)
    tokens = tokens_after(await many(dict.fromkeys(IDS, "")), {})
    many.stage.cycle(2)
    remembered = await many(tokens)
    many.fetches._issued.clear()
    read = await many(tokens)
    assert [(o.ccq_id, o.outcome.token) for o in read.updates] == [
        (o.ccq_id, o.outcome.token) for o in remembered.updates
    ]
    swapped = await many({"q1": tokens["q2"]})
    assert [one.outcome.kind for one in swapped.updates] == ["invalid_token"]


@pytest.mark.parametrize("fetches_per_step", [5])
async def test_fetch_above_labels_max_is_cut_and_continued(many: Many) -> None:
    many.stage.cycle(1)
    tokens, got = dict.fromkeys(IDS, ""), dict[str, int]()
    for _ in range(COUNT):
        fetched = await many(tokens, labels_max=20)
        found = rows(fetched)
        assert sum(found.values()) <= 20 + 5 * LABELS
        assert not set(found) & set(got)
        got |= found
        tokens = tokens_after(fetched, tokens)
        if not fetched.is_cut:
            break
    assert got == dict.fromkeys(IDS, LABELS)


async def test_fetch_that_waits_returns_after_a_cycle(many: Many) -> None:
    waiting = asyncio.create_task(many(dict.fromkeys(IDS, ""), wait_s=60.0))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    many.stage.cycle(1)
    async with asyncio.timeout(60):
        assert rows(await waiting) == dict.fromkeys(IDS, LABELS)


async def test_fetch_that_waits_in_vain_asks_once(many: Many) -> None:
    tokens = dict.fromkeys(IDS, "")
    assert (await many(tokens, wait_s=0.05)).updates == ()
    assert many.stage.asked == COUNT


async def test_fetch_with_one_refused_query_returns_the_others(many: Many) -> None:
    many.stage.cycle(1)
    many.revoked.add("q1")
    fetched = await many({"q1": "", "q2": ""})
    assert {one.ccq_id: getattr(one.outcome, "kind", None) for one in fetched.updates} == {
        "q1": "sampler_revoked",
        "q2": None,
    }


async def test_fetch_with_fewer_tokens_than_ids_is_refused(many: Many) -> None:
    with raises(InputError, parameter="tokens"):
        await many.fetches.fetch(IDS, [], wait_s=0, labels_max=0, include_query=False)


async def in_sheets(many: Many, given: dict[str, str | Cursor]) -> ManyFetched:
    return await many.fetches.fetch(
        list(given),
        list(given.values()),
        wait_s=0.0,
        labels_max=0,
        include_query=False,
        accept_shared_updates=True,
    )


async def test_fetch_of_queries_with_equal_cursors_returns_one_sheet(many: Many) -> None:
    many.stage.cycle(1)
    answer = await in_sheets(many, dict.fromkeys(IDS, ""))
    (sheet,) = answer.sheets
    assert answer.updates == ()
    assert (sheet.places, sheet.counts) == (list(range(COUNT)), [LABELS] * COUNT)
    assert sheet.starts == [LABELS * number for number in range(COUNT)]
    assert len(set(map(id, sheet.packs))) == 1
    again = await in_sheets(many, dict.fromkeys(IDS, Cursor(dict(sheet.cursor))))
    assert (again.updates, again.sheets) == ((), ())
    led = many.stage.machine.coordinated
    assert all(led[i].retrieved is sheet.cursor for i in IDS), "equal cursors are one object"
    many.stage.cycle(2)
    (later,) = (await in_sheets(many, dict.fromkeys(IDS, sheet.cursor))).sheets
    assert later.cursor == Cursor({0: 2})
    assert later.counts == [LABELS] * COUNT


async def test_fetch_returns_errors_beside_sheets(many: Many) -> None:
    many.stage.cycle(1)
    answer = await in_sheets(many, {"q0": "", "unknown": "x", "q1": "wrong"})
    assert [update.ccq_id for update in answer.updates] == ["unknown", "q1"]
    assert [sheet.places for sheet in answer.sheets] == [[0]]


async def test_fetch_of_a_dropped_dataset_is_ccq_dropped(many: Many) -> None:
    many.stage.cycle(1)
    many.dropped.add(SCHEMA.name)  # The machine has not heard of it yet.
    fetched = await many(dict.fromkeys(IDS, ""))
    kinds = {update.outcome.kind for update in fetched.updates}
    assert (len(fetched.updates), kinds) == (COUNT, {"ccq_dropped"})
    many.stage.step(ccq.DatasetDropped(SCHEMA.name, 1))
    fetched = await many(dict.fromkeys(IDS, ""))
    assert {update.outcome.kind for update in fetched.updates} == kinds
