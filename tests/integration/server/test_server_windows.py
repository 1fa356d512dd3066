"""Windows of continuous queries whose labels are withdrawn, against a loop over all writes."""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from scanning_node import without_spark
from sea import PLACES, Sea, sea_of

import galileo
from galileo.client.results import Update
from galileo.cursor import Cursor
from galileo.dht.placement import partitions_of_rows
from galileo.model import windows
from galileo.model.observations import normalise
from galileo.model.times import iso
from galileo.server import continuous, fetch_response
from galileo.server.withdrawals import withdrawals
from galileo.wire import token as tokens

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
HIGH = "level > 2"
KEYED = galileo.Schema(
    "buoys",
    [galileo.Feature("station", type="text"), galileo.Feature("level", type="int")],
    geohash_precision=2,
    time_bucket="1h",
    key="station",
)
PLAIN = galileo.Schema("buoys", KEYED.features, geohash_precision=2, time_bucket="1h")
WINDOWS = (
    galileo.Window.tumbling("2h"),
    galileo.Window.sliding("4h", slide="2h", lateness="1h"),
)
BACK_MAX = 6
"""So many hours earlier than the newest one some observations are."""

Label: TypeAlias = dict[str, Any]
Condition: TypeAlias = "Callable[[Row], bool]"
Counts: TypeAlias = Counter[tuple[int, str, int]]
"""How many observations of an hour and a station have a level."""


@dataclass(frozen=True)
class Row:
    place: int
    minute: int
    station: str
    level: int

    @property
    def hour(self) -> int:
        return self.minute // 60

    @property
    def key(self) -> tuple[int, int, str]:
        return self.place, self.hour, self.station


class Writer:
    """Writes, corrects and deletes at random, and knows what counts at each cursor."""

    def __init__(self, sea: Sea, schema: galileo.Schema) -> None:
        self.sea, self.schema, self.is_keyed, self.newest = sea, schema, schema.is_keyed, 0
        self.writes: list[tuple[Cursor, Sequence[Row], Condition | None]] = []
        self.partitions = dict[tuple[int, int], int]()

    async def write(self) -> None:
        chance = self.sea.chance
        self.newest += chance.random() < 0.3
        hour = max(0, self.newest - chance.choice((0, 0, chance.randrange(BACK_MAX))))
        count, kind = chance.randrange(1, 5), chance.random()
        rows = [
            Row(
                chance.randrange(len(PLACES)),
                60 * hour + chance.randrange(60),
                f"s{chance.randrange(3)}",
                chance.randrange(6),
            )
            for _ in range(count)
        ]
        if kind < 0.65:
            await self._ingest(rows)
        elif kind < 0.8 and self.is_keyed:
            keys = {row.key for row in rows}
            await self._delete(columns_of(rows), lambda row: row.key in keys, rows)
        elif kind < 0.9:
            name = rows[0].station
            condition = f"station = '{name}' AND level > 3"
            await self._delete(condition, lambda row: row.station == name and row.level > 3)
        else:  # In a dataset without a key, some of the observations behind a label match.
            first, last = 60 * hour + 15, 60 * hour + 75
            condition = f"time >= TIMESTAMP('{at(first)}') AND time < TIMESTAMP('{at(last)}')"
            await self._delete(condition, lambda row: first <= row.minute < last)

    async def _ingest(self, rows: list[Row]) -> None:
        receipt = await self.sea.client.ingest("buoys", columns_of(rows))
        self._note(receipt.reached, rows, None)

    async def _delete(self, what: Any, condition: Condition, rows: Sequence[Row] = ()) -> None:
        receipt = await self.sea.client.delete("buoys", what)
        self._note(receipt.reached, rows, condition)

    def _note(self, reached: Cursor, rows: Sequence[Row], condition: Condition | None) -> None:
        self.writes.append((reached, rows, condition))
        if rows:
            normalised = normalise(self.schema, columns_of(rows))
            topology = self.sea.process.node.topology
            partitions = partitions_of_rows(topology, self.schema, normalised).tolist()
            for row, partition in zip(rows, partitions, strict=True):
                self.partitions[row.place, row.hour] = partition

    def counts(self, cursor: Cursor) -> Counts:
        """What matches and counts at a cursor."""
        held = list[Row]()
        for reached, rows, condition in self.writes:
            is_seen = partial(self._is_seen, reached, cursor)
            if condition is not None:
                held = [row for row in held if not (condition(row) and is_seen(row))]
                continue
            for row in filter(is_seen, rows):
                held = [one for one in held if not self.is_keyed or one.key != row.key]
                held.append(row)
        return Counter((row.hour, row.station, row.level) for row in held if row.level > 2)

    def clock_us(self, cursor: Cursor) -> int:
        """The start of the newest hour that was written up to a cursor, also to delete keys."""
        return HOUR_US * max(
            row.hour
            for reached, rows, _ in self.writes
            for row in rows
            if self._is_seen(reached, cursor, row)
        )

    def _is_seen(self, reached: Cursor, cursor: Cursor, row: Row) -> bool:
        """Whether a write has a commit in the partition of a row, up to a cursor."""
        partition = self.partitions[row.place, row.hour]
        return 0 < reached[partition] <= cursor[partition]


def at(minute: int) -> str:
    return iso(minute * MINUTE_US)


def columns_of(rows: Sequence[Row]) -> pa.Table:
    times = np.array([row.minute for row in rows]) * MINUTE_US
    return pa.table(
        {
            "latitude": [PLACES[row.place][0] for row in rows],
            "longitude": [PLACES[row.place][1] for row in rows],
            "time": pa.array(times, pa.timestamp("us", tz="UTC")),
            "station": [row.station for row in rows],
            "level": [row.level for row in rows],
        }
    )


def counts_of(labels: Iterable[Label]) -> Counts:
    counts: Counts = Counter()
    for label in labels:
        hour = int(label["bucket"].timestamp()) // 3_600
        counts[hour, label["station"], label["level"]] += label["rows"]
    return counts


@dataclass
class Held:
    """What a reader has folded: labels by their keys, windows, and the event clock."""

    labels: dict[Any, Label] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)
    clock_us: int | None = None


class Reader:
    """Folds updates as the documentation tells, and looks at each window by itself."""

    def __init__(self, writer: Writer, ccq: galileo.Ccq, *, labels_max: int = 0) -> None:
        assert ccq.info.window is not None
        self.writer, self.ccq_id, self.window = writer, ccq.id, ccq.info.window
        self.labels_max, self.held, self.counts = labels_max, Held(), Counter[str]()
        self.token = ""
        first = Update(ccq.initial, ccq.token, windows=ccq.windows, clock_us=ccq.clock_us)
        self.take(first)

    async def fetch(self) -> Update:
        update = await self.writer.sea.client.fetch(
            self.ccq_id, token=self.token, labels_max=self.labels_max
        )
        self.take(update)
        return update

    def take(self, update: Update) -> None:
        if update.reset:
            self.held = Held()
        held, schema, withdrawn = self.held, update.labels.schema, update.withdrawn
        names = ("cell", "bucket", "station")
        if not schema.is_keyed:
            names = ("partition", "sequence", "row")
        gone = [] if withdrawn is None else withdrawn.table.to_pylist()
        new = update.labels.table.to_pylist()
        for label in gone:
            held.labels.pop(tuple(label[name] for name in names), None)
        for label in new:
            held.labels[tuple(label[name] for name in names)] = label
        self._take_windows(update, Counter(self._starts(new)), Counter(self._starts(gone)))
        self.counts.update({"resets": update.reset, "withdrawn": len(gone)})
        self.token, cursor = update.token, tokens.decode(update.token, ccq_id=self.ccq_id)
        if update.clock_us is not None:
            assert update.clock_us <= self.writer.clock_us(cursor), "the clock is ahead of the log"
        # Partial updates lack labels that were deleted before they were evaluated.
        if not update.more and not update.labels.missing:
            assert counts_of(held.labels.values()) == self.writer.counts(cursor)

    def _take_windows(self, update: Update, new: Counter[int], gone: Counter[int]) -> None:
        held, before = self.held, self.held.clock_us
        changes = {change.start_us: change for change in update.windows}
        assert {*new, *gone} <= {*changes}, "a window has changed that is not reported"
        assert before is None or (update.clock_us is not None and update.clock_us >= before)
        held.clock_us = update.clock_us
        for start, change in changes.items():
            assert (change.labels, change.withdrawn) == (new[start], gone[start])
            assert start in held.known or new[start] or gone[start]
            was_over, is_over = self._is_over(start, before), self._is_over(start, held.clock_us)
            assert change.state == ("reopened" if was_over else "closed" if is_over else "open")
            assert change.state != "closed" or start not in held.closed
            only_gone = change.state == "reopened" and not new[start]
            self.counts.update([change.state, *["reopened by withdrawals"] * only_gone])
            held.closed |= {start} if change.is_closed else set()
        held.known |= {*changes}
        assert held.closed == {one for one in held.known if self._is_over(one, held.clock_us)}

    def _starts(self, labels: list[Label]) -> list[int]:
        """The starts of the windows of labels, once for each label."""
        starts = list[int]()
        for label in labels:
            bucket_us = int(label["bucket"].timestamp()) * 1_000_000
            start = bucket_us - bucket_us % self.window.slide_us
            while start > bucket_us - self.window.size_us:
                starts.append(start)
                start -= self.window.slide_us
        return starts

    def _is_over(self, start: int, clock_us: int | None) -> bool:
        end = start + self.window.size_us + self.window.lateness_us
        return clock_us is not None and end <= clock_us


async def submit(writer: Writer, number: int) -> galileo.Ccq:
    ccq: galileo.Ccq = await writer.sea.client.submit(
        "buoys", HIGH, window=WINDOWS[number], interval="50ms", expiration="1h", hold="1h"
    )
    return ccq


async def catch_up(reader: Reader) -> None:
    """Fetches until all that is committed is known, and all windows are closed that are over."""
    writer = reader.writer
    until = (await writer.sea.client.version("buoys")).cursor
    async with asyncio.timeout(30):
        while True:
            update = await reader.fetch()
            cursor = tokens.decode(update.token, ccq_id=reader.ccq_id)
            is_up = update.clock_us == writer.clock_us(until) and cursor.covers(until)
            if is_up and not update.more:
                return
            if not update.is_news:
                await asyncio.sleep(0.02)


def check_spool(spool: galileo.Spool, held: Held, size_us: int) -> None:
    assert counts_of(spool.labels().table.to_pylist()) == counts_of(held.labels.values())
    spooled = {window.start_us: window for window in spool.windows()}
    assert {*spooled} == held.known
    assert {start for start, window in spooled.items() if window.is_closed} == held.closed
    for start, window in spooled.items():
        inside = [
            label
            for label in held.labels.values()
            if start <= int(label["bucket"].timestamp()) * 1_000_000 < start + size_us
        ]
        assert window.labels == len(inside)
        assert counts_of(spool.labels(window).table.to_pylist()) == counts_of(inside)


async def follow(directory: Path, seed: int, schema: galileo.Schema) -> Counter[str]:
    """Two readers, of which one goes back to earlier tokens and one has a spool; what came."""
    async with sea_of(directory / "node", seed, schema=schema) as sea:
        writer, chance = Writer(sea, schema), sea.chance
        for _ in range(12):
            await writer.write()
        ccq = await submit(writer, seed % 2)
        restless = Reader(writer, ccq, labels_max=chance.choice((0, 5)))
        stored = [(restless.token, copy.deepcopy(restless.held))]
        with galileo.Spool(directory / "x.spool") as spool:
            steady = Reader(writer, ccq)
            first = Update(ccq.initial, ccq.token, windows=ccq.windows, clock_us=ccq.clock_us)
            spool.store(ccq.id, first)
            for number in range(40):
                for _ in range(chance.randrange(1, 4)):
                    await writer.write()
                for _ in range(chance.randrange(3)):
                    update = await steady.fetch()
                    spool.store(ccq.id, update)
                await restless.fetch()
                stored.append((restless.token, copy.deepcopy(restless.held)))
                if chance.random() < 0.3:  # It has crashed since.
                    restless.token, held = chance.choice(stored[-6:])
                    restless.held = copy.deepcopy(held)
                if number % 6 == 5 and schema.is_keyed:
                    sea.late_s += chance.choice((3_000.0, 5_000.0))
                    await sea.clean()
            check_spool(spool, steady.held, steady.window.size_us)
        for reader in (restless, steady):
            await catch_up(reader)
        return restless.counts + steady.counts


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)
    monkeypatch.setattr(continuous, "withdrawals", partly_away(random.Random(7)))


def partly_away(chance: random.Random) -> Callable[..., Any]:
    """`withdrawals`, where at times the owner of a partition does not answer."""

    async def answer(*args: Any, after: Cursor, until: Cursor, **options: Any) -> Any:
        changed = sorted(after.news(until))
        if not changed or chance.random() < 0.7:
            return await withdrawals(*args, after=after, until=until, **options)
        away = chance.choice(changed)
        until = Cursor({**until, away: after[away]})
        found = await withdrawals(*args, after=after, until=until, **options)
        return replace(found, missing=found.missing | {away})

    return answer


SCHEMAS = (pytest.param(KEYED, id="keyed"), pytest.param(PLAIN, id="plain"))


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4))])
async def test_windows_have_what_matches_whatever_is_withdrawn(
    tmp_path: Path, schema: galileo.Schema, seed: int
) -> None:
    counts = await follow(tmp_path, seed, schema)
    assert min(counts["closed"], counts["withdrawn"], counts["reopened by withdrawals"]) > 2
    assert (counts["resets"] > 0) == schema.is_keyed


def never_withdraw(*args: Any, withdrawn: Any, **options: Any) -> Any:
    return windows.advance_windows(*args, **options)


def withdraw_twice(*args: Any, withdrawn: Any, **options: Any) -> Any:
    return windows.advance_windows(*args, withdrawn=np.repeat(withdrawn, 2), **options)


def withdraw_as_labels(*args: Any, buckets: Any, withdrawn: Any, **options: Any) -> Any:
    both = np.concatenate([buckets, withdrawn])
    return windows.advance_windows(*args, buckets=both, **options)


def count_replaced(_: Any, new: pa.Table, *, withdrawn: pa.Table, **__: Any) -> Any:
    return new, withdrawn


def read_clock_ahead(self: Any, made: Any, _: Cursor) -> int | None:
    until = self._node.view.sequences(made.dataset)
    clock_us: int | None = self._driver.machine.state.clock_of(made.dataset).at(until)
    return clock_us


LAST_PROGRESS = [windows.WindowProgress()]
"""Of any reader."""


def note_progress(*args: Any, **options: Any) -> Any:
    LAST_PROGRESS[0], changes = windows.advance_windows(*args, **options)
    return LAST_PROGRESS[0], changes


MUTANTS: dict[str, list[tuple[Any, str, Any]]] = {
    "a withdrawal reopens nothing": [(fetch_response, "advance_windows", never_withdraw)],
    "withdrawals count twice": [(fetch_response, "advance_windows", withdraw_twice)],
    "withdrawals count as labels": [(fetch_response, "advance_windows", withdraw_as_labels)],
    "replaced labels count": [(fetch_response, "labels_of_update", count_replaced)],
    "the clock is ahead": [(continuous.ContinuousQueries, "_clock_us", read_clock_ahead)],
    "a reset keeps windows": [
        (fetch_response, "advance_windows", note_progress),
        (continuous, "WindowProgress", lambda: LAST_PROGRESS[0]),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
async def test_mutants_are_convicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for place, attribute, mutant in MUTANTS[name]:
        monkeypatch.setattr(place, attribute, mutant)

    async def follow_seeds() -> None:
        for seed in range(1, 5):
            directory = tmp_path / str(seed)
            directory.mkdir()
            await follow(directory, seed, KEYED)

    with pytest.raises(AssertionError):
        await follow_seeds()
