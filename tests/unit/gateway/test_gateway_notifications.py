"""Notifications as JSON and pages, against loops over pairs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncGenerator
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises

import galileo
from galileo.client.json_lines import json_values
from galileo.client.results import Notifications
from galileo.cursor import CommitRange, Cursor
from galileo.errors import Unavailable
from galileo.gateway.formats import Encoders
from galileo.gateway.hub import FETCHES_MAX
from galileo.gateway.notifications import BrokerReader, Waits, item_document, within_limit
from galileo.gateway.updates import Event
from galileo.model.channel import LEFT, MATCHES_SCHEMA
from galileo.model.times import TIME_TYPE
from galileo.shares import SHARE_HOLDER, ShareHolder
from galileo.wire import token as tokens

NAMES = ["a", "b", 'c"', "d\\\n", "é", "f,g", "[h]"]
READER = "hot@1/me"


def token(sequence: int) -> str:
    return tokens.encode(READER, Cursor({0: sequence}))


def batch(
    chance: random.Random, sequence: int, *, columns: tuple[str, ...] = (), leave: bool = True
) -> Notifications:
    """Some observations, groups of subscriptions, and what they match."""
    rows = chance.randrange(1, 6)
    whole = pa.table(
        {
            "latitude": pa.array([chance.uniform(-90, 90) for _ in range(rows)], pa.float64()),
            "longitude": pa.array([chance.uniform(-180, 180) for _ in range(rows)], pa.float64()),
            "time": pa.array([chance.randrange(1 << 40) for _ in range(rows)], TIME_TYPE),
            "amount": pa.array([chance.choice([None, 1.5, 2.0]) for _ in range(rows)]),
            "note": pa.array([chance.choice([None, *NAMES]) for _ in range(rows)], pa.string()),
        }
    )
    matches = [
        {
            "rows": sorted(chance.sample(range(rows), chance.randrange(1, rows + 1))),
            "subscriptions": chance.sample(NAMES, chance.randrange(1, 4)),
            LEFT: chance.random() < 0.5,
        }
        for _ in range(chance.randrange(0, 4))
    ]
    found = pa.Table.from_pylist(matches, schema=MATCHES_SCHEMA)
    return Notifications(
        partition=3,
        execution=sequence,
        observations=whole.select(list(columns)) if columns else whole,
        matches=found if leave else found.drop_columns([LEFT]),
        token=token(sequence),
        gone=(CommitRange(3, 1, 2),) if sequence % 2 else (),
    )


def pairs_of(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Subscription, properties and whether it left, of each pair of a document."""
    return [
        (subscription, document["features"][row]["properties"], match.get("left"))
        for match in document["matches"]
        for row in match["rows"]
        for subscription in match["subscriptions"]
    ]


@pytest.mark.parametrize("columns", [(), ("amount", "note"), ("latitude", "longitude")])
@pytest.mark.parametrize("leave", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_document_of_a_batch_has_each_of_its_pairs(
    seed: int, leave: bool, columns: tuple[str, ...]
) -> None:
    one = batch(random.Random(seed), seed, columns=columns, leave=leave)
    text = item_document(one, after=token(0))
    assert b"\n" not in text, "a line ends an event"
    document = json.loads(text)
    names = [name for name in ("amount", "note") if name in one.observations.column_names]
    expected = [
        (row["subscription"], {name: row[name] for name in names}, row.get(LEFT))
        for row in one.to_arrow().to_pylist()
    ]
    found = [
        (subscription, {name: properties[name] for name in names}, left)
        for subscription, properties, left in pairs_of(document)
    ]
    assert found == expected
    assert document["notifications"] == len(one) == len(expected)
    assert document["numberReturned"] == len(document["features"]) == len(one.observations)
    if "amount" not in columns:
        places = one.observations.select(["longitude", "latitude"]).to_pylist()
        shown = [feature["geometry"]["coordinates"] for feature in document["features"]]
        assert shown == [list(place.values()) for place in places]
    else:
        assert all(feature["geometry"] is None for feature in document["features"])
    assert (document["after"], document["token"]) == (token(0), token(seed))
    gone = {"partition": 3, "first": 1, "last": 2, "commits": 2}
    assert document["gone"] == ([gone] if seed % 2 else [])


def test_lists_are_json_arrays() -> None:
    lists: list[Any] = [[1, 2], [], None, [3], [None, 4]]
    column = pa.array(lists, pa.list_(pa.int32()))
    for sliced in (column, column.slice(1), column.slice(2, 2)):
        assert [json.loads(text.as_py()) for text in json_values(sliced)] == sliced.to_pylist()
    texts = pa.array([NAMES, [], NAMES[2:4]], pa.list_(pa.string()))
    assert [json.loads(text.as_py()) for text in json_values(texts)] == texts.to_pylist()


@pytest.mark.parametrize("seed", range(20))
def test_page_with_a_limit_ends_with_the_execution_that_reaches_it(seed: int) -> None:
    chance = random.Random(seed)
    batches = [batch(chance, number) for number in range(chance.randrange(1, 6))]
    limit = chance.randrange(1, 40)
    expected, found = [], 0
    for one in batches:
        expected.append(one)
        found += len(one)
        if found >= limit:
            break
    assert within_limit(batches, limit) == expected


class Executions:
    """A client of a channel whose executions are those that a test adds."""

    def __init__(self) -> None:
        self.batches: list[Notifications] = []
        self.reached = 0
        self.changed = asyncio.Event()

    async def fetch_notifications(
        self, channel: str, broker: str, *, token: str, wait: float | None, bytes_max: int
    ) -> list[Notifications]:
        assert (channel, broker) == ("hot", "me")
        after = tokens.decode(token, ccq_id=READER)[0] if token else 0
        if wait and not self._after(after):
            self.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self.changed.wait()
        return self._after(after)[:2] or [self._nothing()]

    def _after(self, sequence: int) -> list[Notifications]:
        return [one for one in self.batches if one.execution > sequence]

    def _nothing(self) -> Notifications:
        schema = galileo.Schema("rain", [galileo.Feature("amount")]).observation_schema
        none = schema.empty_table(), MATCHES_SCHEMA.empty_table()
        return Notifications(0, 0, *none, token=token(self.reached))

    def add(self, one: Notifications) -> None:
        self.batches.append(one)
        self.reached = one.execution
        self.changed.set()


async def test_reader_gets_each_item_once_and_goes_on_behind_executions_without_one() -> None:
    executions, waits, encoders = Executions(), Waits(), Encoders()

    def reader(token: str) -> BrokerReader:
        names: Any = (executions, "hot", "me")
        return BrokerReader(*names, token=token, waits=waits, encoders=encoders)

    chance = random.Random(1)
    for sequence in (1, 2, 3):
        executions.add(batch(chance, sequence))
    one = reader("")
    events: AsyncGenerator[Event | None, None] = one.events(await one.first(), heartbeat_s=0.05)
    for sequence in (1, 2, 3):
        event = await anext(events)
        assert event is not None
        lines = event.frame.decode().split("\n")
        assert lines[:2] == [f"id: {token(sequence)}", "event: notifications"]
        assert json.loads(lines[2].removeprefix("data: "))["execution"] == sequence
    assert await anext(events) is None, "nothing is new"
    executions.reached = 7  # Executions had nothing for this broker.
    event = await anext(events)
    assert event is not None
    assert event.frame == f"id: {token(7)}\n\n".encode(), "no event, and a later token"
    executions.add(batch(chance, 8))
    event = await anext(events)
    assert event is not None
    assert json.loads(event.frame.split(b"data: ")[1])["after"] == token(7)
    items, following = await reader(token(2)).page(limit=1, wait_s=0)
    assert [item["execution"] for item in json.loads(items)] == [3]
    assert following == token(3)
    items, following = await reader(token(8)).page(limit=1, wait_s=0)
    assert (json.loads(items), following) == ([], token(8))
    waiting = asyncio.create_task(anext(one.events([], heartbeat_s=60.0)))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    waits.stop()
    with raises(Unavailable):
        await waiting
    with raises(Unavailable):
        await reader("").first()
    encoders.close()


async def test_page_waits_for_what_is_new_without_a_turn() -> None:
    executions, waits, encoders = Executions(), Waits(), Encoders()
    names: Any = (executions, "hot", "me")

    def reader() -> BrokerReader:
        return BrokerReader(*names, token="", waits=waits, encoders=encoders)

    more_than_turns = FETCHES_MAX + 1
    waiting = [
        asyncio.create_task(reader().page(limit=9, wait_s=60.0)) for _ in range(more_than_turns)
    ]
    await asyncio.sleep(0.01)
    assert await reader().page(limit=9, wait_s=0) == (b"[]", token(0))
    executions.add(batch(random.Random(1), 1))
    for items, following in await asyncio.gather(*waiting):
        assert [item["execution"] for item in json.loads(items)] == [1]
        assert following == token(1)
    encoders.close()


async def test_first_call_of_one_caller_is_before_most_calls_of_a_greedy_one() -> None:
    """A caller with many streams has no more of the nodes' time than a caller with one."""
    order, turns = list[str](), asyncio.Semaphore(0)

    class Busy(Executions):
        async def fetch_notifications(
            self, channel: str, broker: str, *, token: str, wait: float | None, bytes_max: int
        ) -> list[Notifications]:
            order.append(SHARE_HOLDER.get().host)
            await turns.acquire()
            return [self._nothing()]

    executions, waits, encoders = Busy(), Waits(), Encoders()
    names: Any = (executions, "hot", "me")

    async def ask(caller: str) -> None:
        SHARE_HOLDER.set(ShareHolder(caller))
        await BrokerReader(*names, token="", waits=waits, encoders=encoders).first()

    asked = [asyncio.create_task(ask("greedy")) for _ in range(5 * FETCHES_MAX)]
    await asyncio.sleep(0)
    asked.append(asyncio.create_task(ask("calm")))
    await asyncio.sleep(0)
    assert order == ["greedy"] * FETCHES_MAX
    for _ in asked:
        turns.release()
    await asyncio.gather(*asked)
    assert order[FETCHES_MAX] == "calm"
    encoders.close()


def test_page_ends_with_the_item_that_reaches_its_limit() -> None:
    items: Any = [range(2), range(3), range(0), range(1)]
    for limit, taken in ((1, 1), (2, 1), (3, 2), (5, 2), (6, 4), (7, 4)):
        assert len(within_limit(items, limit)) == taken, limit
