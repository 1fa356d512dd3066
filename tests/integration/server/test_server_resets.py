"""Readers of continuous queries over a keyed dataset that is cleaned: holds and resets.

A whole node runs in this process. Its cycles scan the graph, as Spark would; all else is real.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from expected_errors import raises
from gateway_serving import gateway
from scanning_node import without_spark
from sea import BUOYS, DAY_S, HIGH, Sea, sea_of

import galileo
from galileo import AsyncClient
from galileo.ccq import coordinator
from galileo.cli.main import main
from galileo.client.lost_commits import naming_token
from galileo.cursor import Cursor, LostPosition, history_changed
from galileo.errors import HistoryChanged, IncompleteAnswer, InputError
from galileo.gateway.options import GatewayOptions
from galileo.node.cluster_scan import ClusterScans, ScanEnd
from galileo.query import parse
from galileo.server import continuous
from galileo.server.resets import newest_snapshot, next_part
from galileo.storage.backup import backup, restore
from galileo.wire import token as tokens

ALL = "CONSTRUCT { ?s ?p ?o } WHERE { ?s ?p ?o }"
Held: TypeAlias = dict[tuple[int, Any, str], int]


class Reader:
    """Folds updates as the documentation tells.

    Attributes:
        held: what matches.
        resets: how many have begun.
        parts: updates in all.
    """

    def __init__(self, sea: Sea, ccq: galileo.Ccq, *, labels_max: int = 0) -> None:
        self.sea, self.ccq_id, self.token, self.labels_max = sea, ccq.id, ccq.token, labels_max
        self.held = by_key(ccq.initial)
        self.resets = self.parts = 0

    async def fetch(self) -> galileo.Update:
        """One update; what is held is compared with what matches where it is complete."""
        update = await self.sea.client.fetch(
            self.ccq_id, token=self.token, labels_max=self.labels_max
        )
        assert update.withdrawn is not None
        if update.reset:
            assert not len(update.withdrawn)
            self.held, self.resets = {}, self.resets + 1
        for key in by_key(update.withdrawn):
            self.held.pop(key, None)
        self.held |= by_key(update.labels)
        self.token, self.parts = update.token, self.parts + 1
        at = update.labels.frontier
        if not update.more and (update.is_news or at.covers(self.sea.shard.dropped())):
            # Else nothing was evaluated since, and what counted then cannot be read any more.
            assert sorted(self.held.values()) == await levels(self.sea.client, at)
        return update

    async def catch_up(self) -> Cursor:
        """Fetches until all that is committed is known."""
        until = (await self.sea.client.version("buoys")).cursor
        async with asyncio.timeout(60):
            while True:
                update = await self.fetch()
                if not update.more and update.labels.frontier.covers(until):
                    return update.labels.frontier
                if not update.is_news:
                    await asyncio.sleep(0.02)

    async def acknowledge(self) -> Cursor:
        """Catches up, and has the leader know of it."""
        frontier = await self.catch_up()
        await self.fetch()
        await self.sea.acknowledged(self.ccq_id, frontier)
        return frontier


def by_key(labels: galileo.Labels) -> Held:
    rows = labels.table.to_pylist()
    held = {(row["cell"], row["bucket"], row["station"]): row["level"] for row in rows}
    assert len(held) == len(rows), "a key is there twice"
    return held


async def levels(client: AsyncClient, at: Cursor) -> list[int]:
    return sorted((await client.select("buoys", HIGH, at=at))["level"].to_pylist())


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)


@pytest.fixture
async def sea(tmp_path: Path) -> AsyncIterator[Sea]:
    async with sea_of(tmp_path, 1) as running:
        yield running


async def submit(sea: Sea, **options: Any) -> galileo.Ccq:
    return await sea.client.submit("buoys", HIGH, interval="50ms", expiration="90d", **options)


async def test_a_forgotten_query_keeps_versions_for_its_hold_and_then_gets_a_reset(
    sea: Sea,
) -> None:
    await sea.write(10)
    ccq = await submit(sea, hold="3d")
    start = ccq.initial.frontier
    reader = Reader(sea, ccq)
    await sea.write(60)
    assert start.covers(await sea.clean()), "it was submitted just now"
    sea.late_s = 2.9 * DAY_S
    assert start.covers(await sea.clean()), "within the hold"
    sea.late_s = 3.5 * DAY_S
    assert not start.covers(await sea.clean())
    await reader.catch_up()
    assert reader.resets == 1
    await sea.write(30)
    await reader.catch_up()
    assert reader.resets == 1, "it is followed again"


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4))])
async def test_who_folds_updates_has_what_matches_whatever_is_cleaned(
    tmp_path: Path, seed: int
) -> None:
    """Two readers of one query, of which one is slow, start again with what they have stored."""
    async with sea_of(tmp_path, seed) as sea:
        await sea.write(20)
        ccq = await submit(sea, hold="1h")
        readers = [Reader(sea, ccq), Reader(sea, ccq, labels_max=6)]
        stored = [(reader.token, {**reader.held}) for reader in readers]
        for number in range(60):
            await sea.write(sea.chance.randrange(1, 6))
            which = sea.chance.choice((0, 0, 1, 1, 1))
            reader = readers[which]
            await reader.fetch()
            if sea.chance.random() < 0.3:  # It has crashed since it stored that.
                reader.token, reader.held = stored[which][0], {**stored[which][1]}
            elif sea.chance.random() < 0.7:
                stored[which] = reader.token, {**reader.held}
            if number % 5 == 4:
                sea.late_s += sea.chance.choice((0.0, 3_000.0, 5_000.0))
                await sea.clean()
        for reader in readers:
            await reader.catch_up()
        assert sum(reader.resets for reader in readers) > 2


async def begin_slow_reset(sea: Sea) -> tuple[Reader, Reader]:
    """Two readers of a query, of which the second begins anew in small parts."""
    await sea.write(25)
    ccq = await submit(sea)
    quick, slow = Reader(sea, ccq), Reader(sea, ccq, labels_max=4)
    await sea.write(15)
    await quick.acknowledge()
    assert not ccq.initial.frontier.covers(await sea.clean()), "the quick reader has it all"
    update = await slow.fetch()
    assert update.reset
    assert update.more
    return quick, slow


@pytest.mark.slow
async def test_a_reset_ends_while_others_go_on_and_all_is_cleaned(sea: Sea) -> None:
    quick, slow = await begin_slow_reset(sea)
    update = None
    while update is None or update.more:
        await sea.write(6)
        await quick.catch_up()
        await quick.fetch()
        await asyncio.sleep(0.2)
        await sea.clean()
        update = await slow.fetch()
        assert slow.parts < 40, "it does not end"
    assert slow.parts > 4
    assert slow.resets == 1
    await slow.catch_up()
    assert slow.resets == 1
    await sea.write(30)
    frontier = await quick.acknowledge()
    for _ in range(9):  # The next cleaning waits until the copies of the last one have settled.
        if (await sea.clean()).covers(frontier):
            return
        await sea.write(6)
        await quick.acknowledge()
    pytest.fail("a reader that has begun anew holds something")


async def test_a_reset_that_nobody_fetches_holds_others_for_a_while_only(
    sea: Sea, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, slow = await begin_slow_reset(sea)
    monkeypatch.setattr(coordinator, "RESET_PAUSE_S", 0.0)
    await sea.write(40)
    await quick.acknowledge()
    await sea.clean()
    assert (await slow.fetch()).reset, "its snapshot was removed"
    monkeypatch.undo()
    await slow.catch_up()
    assert slow.resets == 2


async def test_a_reset_whose_snapshot_was_lost_begins_anew(
    sea: Sea, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, slow = await begin_slow_reset(sea)
    following = continuous.next_part

    async def lose(*args: Any, place: Cursor, **options: Any) -> Any:
        if place:
            raise history_changed("buoys", [LostPosition(1, 9, 5, 12)])
        return await following(*args, place=place, **options)

    with monkeypatch.context() as patched:
        patched.setattr(continuous, "next_part", lose)
        assert (await slow.fetch()).reset
    await slow.catch_up()
    assert slow.resets == 2


def test_the_token_of_a_reset_stays_when_commits_are_lost() -> None:
    """A later snapshot would not be the one of the parts that the reader has."""
    position = tokens.Position(Cursor({1: 9}), place=Cursor({1: 2}))
    for place, cursor in ((position.place, position.cursor), (None, Cursor({1: 12}))):
        token = replace(position, place=place).encode("q")
        with pytest.raises(HistoryChanged) as caught, naming_token(token, "q"):
            raise history_changed("buoys", [LostPosition(1, 9, 5, 12)])
        named = tokens.read(caught.value.details["token"], ccq_id="q")
        assert (named.cursor, named.place) == (cursor, place)


async def test_a_reader_whose_commits_were_lost_begins_anew(tmp_path: Path) -> None:
    """What lost commits had replaced counts again, and what they had is withdrawn by nothing."""
    place, copy = tmp_path / "node", tmp_path / "backup"
    async with sea_of(place, 1) as sea:
        await sea.write(20)
        reader = Reader(sea, await submit(sea))
        await reader.catch_up()
        await asyncio.to_thread(backup, place, copy, now=1.5e9)
        await sea.write(20)
        await reader.catch_up()
    shutil.rmtree(place)
    restore(copy, place, now=1.5e9)
    async with sea_of(place, 2, is_restored=True) as sea:
        reader.sea = sea
        with pytest.raises(HistoryChanged) as caught:
            await reader.catch_up()
        reader.token = caught.value.details["token"]
        await reader.catch_up()
        await sea.write(5)
        await reader.catch_up()
        assert reader.resets == 1


async def test_a_part_of_a_reset_comes_again_for_the_same_token(sea: Sea) -> None:
    _, slow = await begin_slow_reset(sea)
    token = slow.token
    first = await slow.fetch()
    await sea.write(20)
    await sea.clean()
    again = await sea.client.fetch(slow.ccq_id, token=token, labels_max=4)
    assert by_key(again.labels) == by_key(first.labels) != {}
    assert again.token == first.token
    assert not again.reset


async def test_a_reader_without_a_token_begins_with_a_reset(sea: Sea) -> None:
    quick, _ = await begin_slow_reset(sea)
    fresh = Reader(sea, await submit(sea))
    fresh.ccq_id, fresh.token, fresh.held = quick.ccq_id, "", {}
    await fresh.catch_up()
    assert fresh.resets == 1


async def test_a_spool_forgets_what_came_before_a_reset(sea: Sea, tmp_path: Path) -> None:
    _, slow = await begin_slow_reset(sea)
    with galileo.Spool(tmp_path / "x.spool") as spool:

        async def store() -> galileo.Update:
            update = await sea.client.fetch(slow.ccq_id, token=spool.token, labels_max=4)
            spool.store(slow.ccq_id, update)
            return update

        while (await store()).more:
            pass
        sea.late_s += 20 * DAY_S
        await sea.write(60)
        await sea.clean()
        first = await store()
        assert first.reset
        assert by_key(spool.labels()) == by_key(first.labels), "the rest is to come"
        while (update := await store()).more:
            pass
        held = sorted(by_key(spool.labels()).values())
        assert held == await levels(sea.client, update.labels.frontier)


async def test_commands_and_gateways_tell_of_a_reset(sea: Sea) -> None:
    _, slow = await begin_slow_reset(sea)
    ccq, cursor = slow.ccq_id, tokens.decode(slow.token, ccq_id=slow.ccq_id)
    stale_token = tokens.encode(ccq, Cursor(dict.fromkeys(cursor, 1)))

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, ["--node", sea.address, "ccq", *words])
        assert not done.exit_code, done.output
        return done.stdout

    def get(url: str, body: bytes | None = None) -> Any:
        request = Request(url, data=body, headers={"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())

    shown = json.loads(await asyncio.to_thread(run, "fetch", ccq, "--token", stale_token, "--json"))
    assert shown["reset"]
    assert shown["withdrawn"] == []
    text = await asyncio.to_thread(run, "fetch", ccq, "--token", stale_token)
    assert "reset: forget the labels of earlier updates" in text
    assert "reset" not in await asyncio.to_thread(run, "fetch", ccq, "--token", shown["token"])
    made = await asyncio.to_thread(run, "submit", "buoys", HIGH, "--hold", "2d", "--quiet")
    options = GatewayOptions(nodes=(sea.address,), port=0, patience_s=60.0)
    async with gateway(options) as url:
        place = f"{url}/ccqs/{ccq}/labels?f=json&after="
        answer = await asyncio.to_thread(get, place + stale_token)
        assert answer["reset"] is True
        assert len(answer["labels"]) == len(shown["labels"])
        assert (await asyncio.to_thread(get, place + answer["token"]))["reset"] is False
        described = await asyncio.to_thread(get, f"{url}/ccqs/{made.strip()}")
        assert described["hold"] == 2 * DAY_S
        body = json.dumps({"dataset": "buoys", "hold": "3d"}).encode()
        assert (await asyncio.to_thread(get, f"{url}/ccqs", body))["hold"] == 3 * DAY_S


async def test_a_view_has_what_matches(sea: Sea, tmp_path: Path) -> None:
    """As of a new graph of the present labels: what others share with removed ones stays."""

    async def check(view: Any) -> None:
        until = (await sea.client.version("buoys")).cursor
        whole = await sea.client.query("buoys", HIGH)
        for _ in range(600):
            if tokens.decode(view.token, ccq_id=view.ccq_id).covers(until):
                break
            await asyncio.sleep(0.1)
        assert by_key(view.labels) == by_key(whole)
        answers = [await asyncio.to_thread(one.sparql, ALL) for one in (view, whole)]
        first, second = (sorted(answer.triples.splitlines()) for answer in answers)
        assert first == second

    await sea.write(20)
    ccq = await submit(sea)
    with galileo.Spool(tmp_path / "x.spool") as spool:
        for _ in range(2):  # The second one begins with the spool.
            with await sea.client.sparql_view(ccq, spool=spool) as view:
                for _ in range(3):
                    await sea.write(4)
                    await check(view)
            await sea.write(4)
        sea.late_s = 20 * DAY_S
        await sea.write(30)
        await sea.clean()
        with await sea.client.sparql_view(ccq, spool=spool) as view:
            await check(view)
        assert any(update.reset for update in spool.updates())


class Away:
    """Owners, of which one is away."""

    def candidates(self, query: object) -> frozenset[int]:
        return frozenset({1, 2})

    async def between(self, query: object, **_: Any) -> AsyncIterator[ScanEnd]:
        yield ScanEnd(Cursor({1: 5}), frozenset({2}))


async def test_a_reset_waits_for_owners_that_are_away() -> None:
    """Else a reader would forget what it has of their partitions, and get nothing for it."""
    away, query = cast(ClusterScans, Away()), parse(HIGH, BUOYS)
    with raises(IncompleteAnswer, missing=[2]):
        await newest_snapshot(away, query)
    place, snapshot = Cursor({1: 2}), Cursor({1: 5, 2: 5})
    with raises(IncompleteAnswer, missing=[2]):
        await next_part(away, query, place=place, snapshot=snapshot, labels_max=9)


@pytest.mark.parametrize("hold", ["91d", "0s", "soon", -1])
async def test_a_wrong_hold_is_refused(sea: Sea, hold: Any) -> None:
    with pytest.raises(InputError):
        await submit(sea, hold=hold)


async def test_the_hold_is_part_of_the_definition(sea: Sea) -> None:
    ccq = await submit(sea, hold="2d")
    assert ccq.info.hold_s == 2 * DAY_S
    [listed] = [info for info in await sea.client.list_ccqs() if info.id == ccq.id]
    assert listed.hold_s == 2 * DAY_S
