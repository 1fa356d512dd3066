"""Readers of events whose commits were lost get an event that says so, and come back behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fake_ccq import CCQ, FakeClient, Log

from galileo.client.lost_commits import GoingOn, naming_token
from galileo.client.results import Update
from galileo.cursor import Cursor, LostPosition, history_changed
from galileo.errors import GalileoError, HistoryChanged
from galileo.gateway import events as event_streams
from galileo.gateway.events import HEARTBEAT_S, EventStream, MergedEvents, refused_stream
from galileo.gateway.hub import Hubs, QueryReader
from galileo.wire import token as tokens

LOST, COMMON, FIRST = 8, 5, 100
"""Commits 6 to 8 of partition 0 are lost, and 100 is the first one of the next history."""


class SetBack(FakeClient):
    """Answers from a log that is set back once."""

    is_set_back = False

    def set_back(self) -> None:
        self.is_set_back = True
        self.log.matches = [key for key in self.log.matches if key[0] or key[1] <= COMMON]
        self.log.matches.append((0, FIRST))
        self.log.last[0] = FIRST
        self.log.wake()

    def check(self, token: str) -> None:
        at = tokens.decode(token, ccq_id=CCQ)[0] if token else 0
        if self.is_set_back and COMMON < at < FIRST - 1:
            with naming_token(token, CCQ):
                raise history_changed("weather", [LostPosition(0, at, COMMON, FIRST - 1)])

    def update(self, token: str, labels_max: int = 0) -> Update:
        self.check(token)
        return super().update(token, labels_max)

    def watch(self, ccq: str, *, token: str = "", labels_max: int = 0) -> AsyncIterator[Update]:
        return GoingOn(lambda at: super(SetBack, self).watch(ccq, token=at), token)  # type: ignore


def client() -> SetBack:
    log = Log(random.Random(1))
    log.matches = [(partition, number) for partition in (0, 1) for number in range(1, LOST + 1)]
    log.last.update({0: LOST, 1: LOST})
    return SetBack(log, random.Random(1))


def token_at(sequence: int) -> str:
    return tokens.encode(CCQ, Cursor({0: sequence, 1: LOST}))


class Sent:
    """What a response sends, as events with their names, ids and data."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.has_news = asyncio.Event()

    async def __call__(self, message: dict[str, Any]) -> None:
        for frame in message.get("body", b"").decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in frame.split("\n") if ": " in line)
            if "event" in fields:
                entry = fields["event"], fields.get("id", ""), json.loads(fields["data"])
                self.events.append(entry)
                self.has_news.set()


async def connect(hubs: Hubs, of: SetBack, token: str, sent: Sent) -> None:
    """One connection of a browser, until the gateway ends it."""
    reader = QueryReader(hubs, of, CCQ, token=token)
    try:
        events = reader.events(await reader.fetch(), heartbeat_s=HEARTBEAT_S)
        response: Any = EventStream(events, held=contextlib.AsyncExitStack())
    except GalileoError as error:
        response = refused_stream(error)
    await response({"type": "http", "method": "GET"}, None, sent)


def numbers(document: dict[str, Any]) -> list[tuple[int, int]]:
    properties = [feature["properties"] for feature in document["features"]]
    return [(one["partition"], one["sequence"]) for one in properties]


async def test_reader_that_comes_back_gets_an_event_with_the_token_to_go_on_with() -> None:
    hubs, of, sent = Hubs(), client(), Sent()
    of.set_back()
    await connect(hubs, of, token_at(LOST), sent)
    [(name, token, document)] = sent.events
    assert (name, token) == ("history_changed", token_at(FIRST - 1))
    assert (document["kind"], document["status"]) == ("history_changed", 410)
    assert document["details"]["token"] == token
    following = asyncio.create_task(connect(hubs, of, token, sent))
    sent.has_news.clear()
    async with asyncio.timeout(10):
        await sent.has_news.wait()
    following.cancel()
    name, _, document = sent.events[-1]
    assert (name, numbers(document)) == ("update", [(0, FIRST)])


async def test_reader_of_a_running_stream_comes_back_with_a_token_of_its_own() -> None:
    hubs, of, sent = Hubs(), client(), Sent()
    running = asyncio.create_task(connect(hubs, of, token_at(LOST), sent))
    await asyncio.sleep(0.05)
    of.set_back()
    async with asyncio.timeout(10):
        await running
    assert sent.events == [], "the watch of all readers ends, and says nothing about this one"
    await connect(hubs, of, token_at(LOST), sent)
    assert [name for name, _, _ in sent.events] == ["history_changed"]


async def test_stream_of_several_queries_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "RETRY_MS", 0)
    hubs, of, sent = Hubs(), client(), Sent()
    of.set_back()
    readers = [QueryReader(hubs, of, CCQ, token=token_at(LOST))]
    response = MergedEvents(readers, hubs, held=contextlib.AsyncExitStack())
    running = asyncio.create_task(response({"type": "http", "method": "GET"}, None, sent))
    async with asyncio.timeout(10):
        while len(sent.events) < 2:
            sent.has_news.clear()
            await sent.has_news.wait()
    running.cancel()
    (first, token, document), (second, _, update) = sent.events
    assert (first, token, document["ccq"]) == ("history_changed", "", CCQ)
    assert document["details"]["token"] == token_at(FIRST - 1)
    assert (second, numbers(update)) == ("update", [(0, FIRST)])


async def test_iterator_raises_once_and_goes_on() -> None:
    of = client()
    of.set_back()
    watched = of.watch(CCQ, token=token_at(LOST))
    with pytest.raises(HistoryChanged):
        await anext(watched)
    update = await anext(watched)
    assert update.token == token_at(FIRST)
    await watched.aclose()  # type: ignore[attr-defined]
