"""Readers of a hub have each label once, whatever the schedule; random schedules, real classes.

The log of a query is a list of commits; `FakeClient` answers fetches and watches from it, as nodes
do: up to some commit, not always the last one, and never twice alike. Each reader is compared with
the log itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from fake_ccq import CCQ, FakeClient, Key, KeyedLog, Log, keyed_labels_of, labels_of
from parameters import keep_quick

from galileo.client.results import Update
from galileo.cursor import Cursor
from galileo.errors import (
    CcqCancelled,
    Forbidden,
    InputError,
    Overloaded,
    Unavailable,
    UnknownCcq,
)
from galileo.gateway import events as event_streams
from galileo.gateway import hub, updates
from galileo.gateway.events import MergedEvents
from galileo.gateway.hub import EventLog, Hubs, QueryReader, ReaderStep
from galileo.gateway.updates import (
    Event,
    cut,
    encode_update,
    event_of,
    is_divisible,
    merged_frame,
)
from galileo.wire import token as tokens


def keys_in(event: Event) -> tuple[str, list[Key]]:
    """The token and the labels of an event, as a client parses it."""
    id_line, name, data, *rest = event.frame.decode().split("\n")
    assert (name, rest) == ("event: update", ["", ""])
    document = json.loads(data.removeprefix("data: "))
    assert id_line == f"id: {document['token']}"
    properties = [feature["properties"] for feature in document["features"]]
    return document["token"], [(one["partition"], one["sequence"]) for one in properties]


class Reader:
    """A client that joins, is slow, leaves in the middle of events, and comes back elsewhere."""

    def __init__(self, gateways: list[Hubs], client: FakeClient, rng: random.Random) -> None:
        self.gateways, self.client, self.rng = gateways, client, rng
        self.token, self.keys = "", Counter[Key]()
        self.changed = asyncio.Event()

    async def run(self) -> None:
        while True:
            reader = QueryReader(self.rng.choice(self.gateways), self.client, CCQ, token=self.token)
            lasting = self.rng.randint(1, 12)
            try:
                first = await reader.fetch()
                async with aclosing(reader.events(first, heartbeat_s=60.0)) as events:
                    async for event in events:
                        assert event is not None
                        assert event.before == self.token, "it continues where the reader is"
                        self.token, keys = keys_in(event)
                        self.keys.update(keys)
                        for _ in range(self.rng.choice((0, 0, 1, 30))):
                            await asyncio.sleep(0)
                        lasting -= 1
                        if lasting == 0:
                            break
            except Unavailable:
                await asyncio.sleep(0)


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("seed", keep_quick(range(6), 3))
async def test_each_reader_has_each_label_once(seed: int, windows: bool) -> None:
    rng = random.Random(seed)
    log = Log(rng)
    gateways = [Hubs(kept_bytes_max=2_000), Hubs()]
    clients = [FakeClient(log, rng, windows=windows) for _ in range(2)]
    readers = [Reader(gateways, rng.choice(clients), rng) for _ in range(6)]
    async with asyncio.timeout(60):
        tasks = []
        for reader in readers:
            tasks.append(asyncio.create_task(reader.run()))
            for _ in range(rng.randint(0, 20)):
                await asyncio.sleep(0)
            log.commit()
        for _ in range(30):
            log.commit()
            if rng.random() < 0.1:  # A gateway stops, and another one starts in its place.
                gateways[0].stop()
                gateways[0] = Hubs(kept_bytes_max=2_000)
            for _ in range(rng.randint(0, 15)):
                await asyncio.sleep(0)
        while any(reader.keys.total() < len(log.matches) for reader in readers):
            assert not any(task.done() for task in tasks), "a reader failed"
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for reader in readers:
        assert reader.keys == Counter(log.matches), f"seed {seed}"
    assert [len(hubs) for hubs in gateways] == [0, 0], "the last reader ends a hub"


class KeyedReader:
    """A client that keeps what matches by the ids of features, as the documentation says."""

    def __init__(
        self, gateways: list[Hubs], client: FakeClient, log: KeyedLog, rng: random.Random
    ) -> None:
        self.gateways, self.client, self.log, self.rng = gateways, client, log, rng
        self.token, self.held = "", dict[str, tuple[str, Key]]()
        self.counts = Counter[str]()

    async def run(self) -> None:
        while True:
            lasting, hubs = self.rng.randint(1, 12), self.rng.choice(self.gateways)
            with contextlib.suppress(Unavailable):
                await self.follow(hubs, lasting)
            await asyncio.sleep(0)

    async def follow(self, hubs: Hubs, lasting: int) -> None:
        reader = QueryReader(hubs, self.client, CCQ, token=self.token)
        async with aclosing(reader.events(await reader.fetch(), heartbeat_s=60.0)) as events:
            async for event in events:
                assert event is not None
                if await self.take(event.frame.decode().removesuffix("\n\n")):
                    assert event.is_last
                    return
                lasting -= 1
                if lasting == 0:
                    return
                for _ in range(self.rng.choice((0, 0, 1, 30))):
                    await asyncio.sleep(0)

    async def take(self, frame: str) -> bool:
        """Takes an event; returns whether the stream has to be opened anew."""
        head, data = frame.split("\ndata: ")
        token, _, name = head.rpartition("event: ")
        document = json.loads(data)
        assert document["after"] == self.token, "it continues where the reader is"
        self.counts[name] += 1
        if name == "update":
            assert token == f"id: {document['token']}\n"
            self.store(document)
        else:
            assert (name, token) == ("behind", "")
            [link] = document["links"]
            assert link["href"] == f"labels?after={self.token}"
            is_behind = True
            while is_behind:
                update = await self.client.fetch(CCQ, token=self.token)
                part = json.loads(encode_update(update, "geojson"))
                self.store(part)
                is_behind = part["more"]
            return True
        return False

    def store(self, update: dict[str, Any]) -> None:
        self.token = update["token"]
        if update["reset"]:
            self.held.clear()
        for feature in update["withdrawn"]:
            self.counts["withdrawn"] += 1
            self.held.pop(feature["id"], None)
        for one in (one["properties"] | {"id": one["id"]} for one in update["features"]):
            self.held[one["id"]] = one["station"], (one["partition"], one["sequence"])
        at = tokens.decode(self.token, ccq_id=CCQ)
        assert sorted(self.held.values()) == sorted(self.log.current(at).items())


@pytest.mark.parametrize("labels_max", [4, updates.EVENT_LABELS_MAX])
@pytest.mark.parametrize("seed", keep_quick(range(6), 3))
async def test_reader_of_a_keyed_dataset_has_what_matches_at_each_token(
    seed: int, labels_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "EVENT_LABELS_MAX", labels_max)
    rng = random.Random(seed)
    log = KeyedLog(rng)
    gateways = [Hubs(kept_bytes_max=2_000), Hubs()]
    clients = [FakeClient(log, rng) for _ in range(2)]
    readers = [KeyedReader(gateways, rng.choice(clients), log, rng) for _ in range(6)]
    async with asyncio.timeout(60):
        tasks = []
        for reader in readers:
            tasks.append(asyncio.create_task(reader.run()))
            log.commit()
        for _ in range(40):
            log.commit()
            if rng.random() < 0.1:  # A gateway stops, and another one starts in its place.
                gateways[0].stop()
                gateways[0] = Hubs(kept_bytes_max=2_000)
            for _ in range(rng.randint(0, 15)):
                await asyncio.sleep(0)
        last = tokens.encode(CCQ, Cursor(log.last))
        while any(reader.token != last for reader in readers):
            assert not any(task.done() for task in tasks), "a reader failed"
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
    counts = sum((reader.counts for reader in readers), Counter[str]())
    assert counts["withdrawn"] > 5
    assert (counts["behind"] > 0) == (labels_max == 4)
    assert [len(hubs) for hubs in gateways] == [0, 0], "the last reader ends a hub"


async def test_query_of_several_ends_where_its_reader_has_to_read_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(updates, "EVENT_LABELS_MAX", 1)
    gone, both = keyed_labels_of({"a": (0, 1)}), keyed_labels_of({"b": (0, 2), "c": (1, 1)})
    large = Update(both, "t2", withdrawn=gone)
    event = event_of("t1", large, ccq_id="ccq-7")
    assert (event.is_link, event.is_last, event.after) == (True, True, "t2")
    frame = merged_frame("ccq-7", event).decode()
    name, data = frame.removesuffix("\n\n").split("\ndata: ")
    document = json.loads(data)
    assert (name, document["ccq"], document["numberMatched"]) == ("event: behind", "ccq-7", 3)
    assert document["links"][0]["href"] == "ccqs/ccq-7/labels?after=t1"
    update = Update(keyed_labels_of({}), "t2", withdrawn=gone, reset=True)
    anew = event_of("t1", update, ccq_id="ccq-7")
    assert json.loads(anew.frame.rpartition(b"data: ")[2])["reset"] is True
    rng = random.Random(3)
    log, hubs = KeyedLog(rng), Hubs()
    while len(log.current(Cursor(log.last))) < 9:
        log.commit()
    sent = list[bytes]()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("body", b""))

    reader = QueryReader(hubs, FakeClient(log, rng), CCQ, token="")
    async with asyncio.timeout(10):
        answer = MergedEvents([reader], hubs, held=contextlib.AsyncExitStack())
        await answer({"method": "POST"}, None, send)
    assert b"".join(sent).count(b"event: behind") == 1
    assert reader.token in json.loads(b"".join(sent).rpartition(b"data: ")[2])["after"]


class FakeCluster:
    """Answers about several queries, each from a log of its own."""

    def __init__(self, logs: dict[str, Log], rng: random.Random) -> None:
        self.clients = {ccq: FakeClient(log, rng, ccq_id=ccq) for ccq, log in logs.items()}

    async def fetch(self, ccq: str, *, token: str = "", labels_max: int = 0) -> Update:
        if ccq not in self.clients:
            raise UnknownCcq("there is none")
        return await self.clients[ccq].fetch(ccq, token=token)

    def watch(self, ccq: str, *, token: str = "", labels_max: int = 0) -> AsyncIterator[Update]:
        return self.clients[ccq].watch(ccq, token=token)


class MergedReader:
    """A client of several queries; is slow, leaves at random, comes back elsewhere."""

    def __init__(
        self, gateways: list[Hubs], client: FakeCluster, rng: random.Random, ccqs: list[str]
    ) -> None:
        self.gateways, self.client, self.rng = gateways, client, rng
        self.tokens = dict.fromkeys(ccqs, "")
        self.keys = {ccq: Counter[Key]() for ccq in ccqs}
        self.ends: dict[str, str] = {}
        self.lasting = 0

    async def run(self) -> None:
        while self.tokens:
            hubs = self.rng.choice(self.gateways)
            readers = [
                QueryReader(hubs, self.client, ccq, token=token)
                for ccq, token in self.tokens.items()
            ]
            answer = MergedEvents(readers, hubs, held=contextlib.AsyncExitStack())
            self.lasting = self.rng.randint(1, 30)
            with contextlib.suppress(ConnectionResetError):
                await answer({"method": "POST"}, None, self.take)
            await asyncio.sleep(0)

    async def take(self, message: dict[str, Any]) -> None:
        """Takes a part of an answer, as the protocol does for a client."""
        body = message.get("body", b"")
        if body.startswith(b"event: "):
            self.lasting -= 1
            if self.lasting < 0:
                raise ConnectionResetError("the client disconnected")
            self.note(body.decode())
        for _ in range(self.rng.choice((0, 0, 1, 30))):
            await asyncio.sleep(0)

    def note(self, frame: str) -> None:
        name, data = frame.removesuffix("\n\n").split("\ndata: ")
        document = json.loads(data)
        ccq = document["ccq"]
        if name == "event: end":
            self.ends[ccq] = document["kind"]
            del self.tokens[ccq]
            return
        assert document["after"] == self.tokens[ccq], "it continues where the reader is"
        self.tokens[ccq] = document["token"]
        properties = [feature["properties"] for feature in document["features"]]
        self.keys[ccq].update((one["partition"], one["sequence"]) for one in properties)


@pytest.mark.parametrize("seed", keep_quick(range(4), 2))
async def test_readers_of_several_queries_have_each_label_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "RETRY_MS", 0)
    rng = random.Random(seed)
    logs = {f"ccq-{number}": Log(rng) for number in range(3)}
    gateways = [Hubs(kept_bytes_max=2_000), Hubs()]
    cluster = FakeCluster(logs, rng)
    ended, absent = "ccq-0", "ccq-none"
    readers = [MergedReader(gateways, cluster, rng, [*logs, absent]) for _ in range(5)]
    async with asyncio.timeout(60):
        tasks = [asyncio.create_task(reader.run()) for reader in readers]

        async def settle() -> None:
            """Until each reader has all, or the end of the query."""
            while any(
                reader.keys[ccq].total() < len(log.matches) and ccq not in reader.ends
                for reader in readers
                for ccq, log in logs.items()
            ):
                assert not any(task.done() for task in tasks), "a reader failed"
                await asyncio.sleep(0)

        for step in range(30):
            for log in logs.values():
                if log.ended is None:
                    log.commit()
            if step == 10:
                await settle()
                logs[ended].ended = CcqCancelled("cancelled")
                logs[ended].wake()
            if rng.random() < 0.1:  # A gateway stops, and another one starts in its place.
                gateways[0].stop()
                gateways[0] = Hubs(kept_bytes_max=2_000)
            for _ in range(rng.randint(0, 15)):
                await asyncio.sleep(0)
        await settle()
        while not all({ended, absent} <= reader.ends.keys() for reader in readers):
            assert not any(task.done() for task in tasks), "a reader failed"
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for reader in readers:
        assert reader.ends == {ended: "ccq_cancelled", absent: "unknown_ccq"}
        for ccq, log in logs.items():
            assert reader.keys[ccq] == Counter(log.matches), f"seed {seed}, {ccq}"
    assert [len(hubs) for hubs in gateways] == [0, 0], "the last reader ends a hub"


async def test_hubs_share_the_memory_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "ALL_KEPT_BYTES_MAX", 3_000)
    monkeypatch.setattr(hub, "HUBS_MAX", 3)
    rng = random.Random(4)
    logs = {f"ccq-{number}": Log(rng) for number in range(4)}
    cluster, hubs = FakeCluster(logs, rng), Hubs(kept_bytes_max=2_000)
    async with contextlib.AsyncExitStack() as stack:

        async def joined(ccq: str) -> EventLog:
            opened = hubs.joined(ccq, client=cluster, token="")
            return (await stack.enter_async_context(opened)).log

        first = await joined("ccq-0")
        for n in range(40):
            token = tokens.encode("ccq-0", Cursor({1: n + 1}))
            first.append(Event(first.token, token, b"x" * 100))
        assert len(first) == 20, "what one hub may keep"
        await joined("ccq-1")
        await joined("ccq-2")
        assert len(first) == 10, "a third of all"
        with pytest.raises(Overloaded):
            await joined("ccq-3")


async def test_readers_of_one_query_share_one_watch_and_their_bytes() -> None:
    rng = random.Random(1)
    log, hubs = Log(rng), Hubs()
    client = FakeClient(log, rng)
    log.commit()
    taken: list[list[bytes]] = [[] for _ in range(50)]

    async def read(frames: list[bytes]) -> None:
        reader = QueryReader(hubs, client, CCQ, token="")
        async for event in reader.events(await reader.fetch(), heartbeat_s=60.0):
            assert event is not None
            frames.append(event.frame)

    tasks = [asyncio.create_task(read(frames)) for frames in taken]
    async with asyncio.timeout(60):
        # After the second event of the hub all have its token, and fetch no more.
        for _ in range(3_000):
            await asyncio.sleep(0)
        assert hubs.readers == len(tasks)
        for _ in range(10):
            log.commit()
            for _ in range(300):
                await asyncio.sleep(0)
            fetches = client.fetches
        log.commit()
        for _ in range(300):
            await asyncio.sleep(0)
    assert (client.watches, client.fetches) == (1, fetches)
    assert len({id(frames[-1]) for frames in taken}) == 1, "the same bytes"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_readers_that_come_together_share_a_fetch_and_its_event() -> None:
    rng = random.Random(5)
    log, hubs = Log(rng), Hubs()
    client, other = FakeClient(log, rng), FakeClient(log, rng)
    log.commit()
    readers = [QueryReader(hubs, client, CCQ, token="") for _ in range(50)]
    fetching = [asyncio.create_task(reader.fetch()) for reader in readers]
    await asyncio.sleep(0)
    fetching[0].cancel()
    answers = await asyncio.gather(*fetching[1:], QueryReader(hubs, other, CCQ, token="").fetch())
    assert (client.fetches, other.fetches) == (1, 1), "each principal fetches by itself"
    assert len({id(answer.event) for answer in answers[:-1]}) == 1
    alone = asyncio.create_task(readers[0].fetch())
    await asyncio.sleep(0)
    alone.cancel()
    await asyncio.gather(alone, return_exceptions=True)
    client.refusal = Forbidden("no longer")
    with pytest.raises(Forbidden):
        await readers[1].fetch()
    assert not hubs._fetching


async def test_reader_that_comes_to_a_stopped_gateway_is_sent_away() -> None:
    rng = random.Random(6)
    log, hubs = Log(rng), Hubs()
    client = FakeClient(log, rng)
    reader = QueryReader(hubs, client, CCQ, token="")
    first = await reader.fetch()
    hubs.stop()
    with pytest.raises(Unavailable):
        async for _ in reader.events(first, heartbeat_s=60.0):
            pass
    assert len(hubs) == 0


async def test_readers_end_with_the_query_and_with_their_rights() -> None:
    rng = random.Random(2)
    log, hubs = Log(rng), Hubs(check_interval_s=0.01)
    clients = [FakeClient(log, rng) for _ in range(2)]

    async def read(client: FakeClient) -> None:
        reader = QueryReader(hubs, client, CCQ, token="")
        async for _ in reader.events(await reader.fetch(), heartbeat_s=60.0):
            pass

    owner, former = (asyncio.create_task(read(client)) for client in clients)
    async with asyncio.timeout(60):
        for _ in range(300):
            await asyncio.sleep(0)
        assert hubs.readers == 2
        clients[1].refusal = Forbidden("no longer")
        with pytest.raises(Forbidden):
            await former
        assert not owner.done()
        log.ended = CcqCancelled("cancelled")
        log.wake()
        with pytest.raises(CcqCancelled):
            await owner


def chain(tokens_: list[str], *, bytes_max: int) -> EventLog:
    log = EventLog(CCQ, tokens_[0], bytes_max=bytes_max)
    for before, after in pairwise(tokens_):
        log.append(Event(before, after, b"x" * 100))
    return log


def test_next_step_of_readers_at_behind_and_ahead_of_the_events() -> None:
    chained = [tokens.encode(CCQ, Cursor({1: n})) for n in range(1, 8)]
    log = chain(chained, bytes_max=250)
    assert len(log) == 2, "the newest that fit"
    assert [log.next_step(token) for token in chained[:4]] == [ReaderStep.FETCH] * 4
    step = log.next_step(chained[4])
    assert isinstance(step, Event)
    assert step.after == chained[5]
    assert log.next_step(chained[6]) is ReaderStep.WAIT
    for ahead in ({1: 8}, {1: 7, 2: 1}, {2: 1}):
        assert log.next_step(tokens.encode(CCQ, Cursor(ahead))) is ReaderStep.WAIT
    with pytest.raises(InputError):
        log.next_step(tokens.encode("ccq-2", Cursor({1: 1})))


async def test_reader_behind_a_missing_partition_asks_again_after_a_heartbeat() -> None:
    first, middle, last = (tokens.encode(CCQ, Cursor({0: at})) for at in (1, 4, 5))

    class AwayClient:
        """A client whose partition is missing in the first answer to a fetch."""

        fetches = 0

        async def fetch(self, ccq: str, *, token: str = "", labels_max: int = 0) -> Update:
            self.fetches += 1
            if self.fetches == 1:
                return Update(labels_of([]), token)
            return Update(labels_of([(0, 3)]), last, frontier=Cursor({0: 5}))

        async def watch(
            self, ccq: str, *, token: str = "", labels_max: int = 0
        ) -> AsyncIterator[Update]:
            yield Update(labels_of([]), last, frontier=Cursor({0: 5}))
            await asyncio.get_running_loop().create_future()

    client, hubs = AwayClient(), Hubs()
    async with asyncio.timeout(60), hubs.joined(CCQ, client=client, token=middle) as joined:
        while joined.log.token != last:
            await joined.changed(60)
        reader = QueryReader(hubs, client, CCQ, token=first)
        async with aclosing(
            reader.events(hub.SharedUpdate(Update(labels_of([]), first), None), heartbeat_s=0.001)
        ) as events:
            event = await anext(events)
            while event is None:
                event = await anext(events)
    assert (event.before, event.after, client.fetches) == (first, last, 2)


def test_cut_and_rest_are_the_whole() -> None:
    rng = random.Random(3)
    for _ in range(100):
        log = Log(rng)
        for _ in range(5):
            log.commit()
        client = FakeClient(log, rng)
        whole = client.update("")
        until = Cursor({p: rng.randint(0, last) for p, last in log.last.items()})
        part = cut(whole, tokens.encode(CCQ, until), ccq_id=CCQ)
        at = tokens.decode(part.token, ccq_id=CCQ)
        keys = list(
            zip(part.labels.partitions.tolist(), part.labels.sequences.tolist(), strict=True)
        )
        assert keys == [(p, s) for p, s in log.matches if s <= at[p]]
        assert until.covers(at)
        assert part.more == (at != until)
        assert at.covers(part.frontier), "it says that it is complete as far as its labels"


def test_merged_frame_names_its_query_and_links_from_the_root() -> None:
    token = tokens.encode(CCQ, Cursor({0: 11}))
    plain = event_of("", Update(labels_of([(0, 1)]), token), ccq_id=CCQ)
    name, data, *rest = merged_frame(CCQ, plain).decode().split("\n")
    assert (name, rest) == ("event: update", ["", ""])
    document = json.loads(data.removeprefix("data: "))
    single = json.loads(plain.frame.split(b"data: ")[1])
    assert document == {"ccq": CCQ, **single}
    linked = Event("", token, updates.frame_of("update", json.dumps(LINKED).encode()), is_link=True)
    frame = merged_frame("ccq/1", linked)
    assert (
        json.loads(frame.split(b"data: ")[1])["links"][0]["href"]
        == "ccqs/ccq%2F1/labels?after=&until=x"
    )


def test_part_of_a_reset_without_a_key_is_not_cut_and_has_no_end_in_its_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot, nothing = Cursor({0: 11}), labels_of([])
    within = tokens.Position(snapshot, place=Cursor({0: 4})).encode(CCQ)
    first = Update(labels_of([(0, 1)]), within, withdrawn=nothing, reset=True)
    assert json.loads(encode_update(first, "json"))["reset"] is True
    assert "reset" not in json.loads(encode_update(replace(first, reset=False), "json"))
    assert not is_divisible(within, CCQ)
    assert is_divisible(tokens.encode(CCQ, snapshot), CCQ)
    monkeypatch.setattr(updates, "EVENT_LABELS_MAX", 0)
    last = Update(labels_of([(0, 9)]), tokens.encode(CCQ, snapshot), withdrawn=nothing)
    for before, update in (("", first), (within, last)):
        event = event_of(before, update, ccq_id=CCQ)
        assert event.is_last
        document = json.loads(event.frame.rpartition(b"data: ")[2])
        assert "until" not in document["links"][0]["href"]


LINKED = updates.link_members(600, "", "x")


def test_event_of_a_large_update_has_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "EVENT_LABELS_MAX", 10)
    token = tokens.encode(CCQ, Cursor({0: 11}))
    small, large = (
        Update(labels_of([(0, n + 1) for n in range(count)]), token) for count in (10, 11)
    )
    assert len(keys_in(event_of("", small, ccq_id=CCQ))[1]) == 10
    document = json.loads(event_of("", large, ccq_id=CCQ).frame.split(b"data: ")[1])
    assert document["numberMatched"] == 11
    assert document["links"][0]["href"] == f"labels?after=&until={token}"
    assert "features" not in document
