"""A continuous query that answers from a log, as nodes do: up to some commit, never twice alike."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator

import pyarrow as pa

import galileo
from galileo.client.results import Labels, Update
from galileo.cursor import Cursor
from galileo.errors import GalileoError
from galileo.model.windows import WindowProgress
from galileo.wire import token as tokens

CCQ = "ccq-1"
PARTITIONS = 3
SCHEMA = galileo.Schema("weather", [galileo.Feature("temperature")])
KEYED = galileo.Schema(
    "weather", [galileo.Feature("station", type="text"), *SCHEMA.features], key=["station"]
)
Key = tuple[int, int]


def labels_of(keys: list[Key]) -> Labels:
    """A label of each commit."""
    schema = SCHEMA.label_schema
    zeros = [pa.array([0] * len(keys)).cast(field.type) for field in schema]
    table = pa.table(zeros, schema=schema)
    for at, name in enumerate(("partition", "sequence")):
        column = pa.array([key[at] for key in keys], schema.field(name).type)
        table = table.set_column(schema.get_field_index(name), schema.field(name), column)
    return Labels(SCHEMA, table)


def keyed_labels_of(places: dict[str, Key]) -> Labels:
    """A label of each station, which is in a commit."""
    table = labels_of([*places.values()]).table
    stations = pa.array([*places], pa.string())
    columns = {name: table[name] for name in table.column_names} | {"station": stations}
    schema = KEYED.label_schema
    return Labels(KEYED, pa.table([columns[name] for name in schema.names], schema=schema))


class Log:
    """The commits of a query: the last sequence of each partition, and those that match."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.last = Counter[int]()
        self.matches: list[Key] = []
        self.grown = asyncio.Event()
        self.ended: GalileoError | None = None

    def commit(self) -> None:
        for _ in range(self._rng.randint(1, 4)):
            partition = self._rng.randrange(PARTITIONS)
            self.last[partition] += 1
            if self._rng.random() < 0.6:
                self.matches.append((partition, self.last[partition]))
        self.wake()

    def between(self, at: Cursor, reached: Cursor) -> dict[str, Labels]:
        """The sets of labels of an update."""
        keys = [(p, s) for p, s in self.matches if at[p] < s <= reached[p]]
        return {"labels": labels_of(keys)}

    def counting(self, snapshot: Cursor, place: Cursor, reached: Cursor) -> Labels:
        """The labels that count at a snapshot, of the commits (place, reached]."""
        return labels_of([(p, s) for p, s in self.matches if place[p] < s <= reached[p]])

    def wake(self) -> None:
        grown, self.grown = self.grown, asyncio.Event()
        grown.set()


class KeyedLog(Log):
    """The commits of a query over a keyed dataset: each has versions of some stations."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.versions: list[tuple[int, int, str, bool]] = []

    def commit(self) -> None:
        for _ in range(self._rng.randint(1, 4)):
            partition = self._rng.randrange(PARTITIONS)
            self.last[partition] += 1
            for number in self._rng.sample(range(9), self._rng.randint(0, 6)):
                is_match = self._rng.random() < 0.6
                station = f"{partition}-{number}"
                self.versions.append((partition, self.last[partition], station, is_match))
        self.wake()

    def current(self, at: Cursor) -> dict[str, Key]:
        """Of each station whose last version up to a cursor matches, where that version is."""
        held = dict[str, Key]()
        for partition, sequence, station, is_match in self.versions:
            if sequence <= at[partition]:
                held.pop(station, None)
                if is_match:
                    held[station] = (partition, sequence)
        return held

    def between(self, at: Cursor, reached: Cursor) -> dict[str, Labels]:
        before, now = self.current(at), self.current(reached)
        new = {station: (p, s) for station, (p, s) in now.items() if s > at[p]}
        gone = {station: place for station, place in before.items() if station not in now}
        return {"labels": keyed_labels_of(new), "withdrawn": keyed_labels_of(gone)}

    def counting(self, snapshot: Cursor, place: Cursor, reached: Cursor) -> Labels:
        held = self.current(snapshot).items()
        return keyed_labels_of({one: (p, s) for one, (p, s) in held if place[p] < s <= reached[p]})


class FakeClient:
    """Answers about a query from a log; with windows, tokens have a progress that differs."""

    def __init__(
        self, log: Log, rng: random.Random, *, windows: bool = False, ccq_id: str = CCQ
    ) -> None:
        self.log, self.rng, self.windows, self.ccq_id = log, rng, windows, ccq_id
        self.fetches = self.watches = 0
        self.refusal: GalileoError | None = None

    async def fetch(self, ccq: str, *, token: str = "", labels_max: int = 0) -> Update:
        self.fetches += 1
        for _ in range(self.rng.randint(0, 4)):
            await asyncio.sleep(0)
        for error in (self.refusal, self.log.ended):
            if error is not None:
                raise error
        return self.update(token, labels_max)

    def update(self, token: str, labels_max: int = 0) -> Update:
        """An answer up to a random position at or after the token, mostly the end."""
        position = tokens.read(token, ccq_id=self.ccq_id) if token else tokens.Position()
        if position.place is not None:
            return self.part(position.cursor, position.place, labels_max)
        at, seen = position.cursor, position.progress
        if self.windows and token:
            assert seen.clock_us is not None, "a token without the reader's progress"
            assert seen.clock_us // 3 == self.matches_until(at)
        cuts = dict(self.log.last)
        more = self.rng.random() < 0.3
        if more:
            cuts = {p: self.rng.randint(at[p], max(at[p], last)) for p, last in cuts.items()}
        reached = at.join(Cursor(cuts))
        if reached == at:  # An answer with less than all has something.
            reached = at.join(Cursor(self.log.last))
        # The clock counts labels, and differs between readers, so that their tokens do as well.
        clock_us = 3 * self.matches_until(reached) + self.rng.randrange(3)
        progress = WindowProgress(clock_us=clock_us) if self.windows else WindowProgress()
        is_new = reached != at or not token
        after = tokens.Position(reached, progress).encode(self.ccq_id) if is_new else token
        behind = any(reached[p] < last for p, last in self.log.last.items())
        sets = self.log.between(at, reached)
        return Update(**sets, token=after, frontier=reached, more=more and behind)

    def part(self, snapshot: Cursor, place: Cursor, labels_max: int) -> Update:
        """The next part for a reader that begins anew; the same one for the same arguments."""
        is_begin = not snapshot
        snapshot = snapshot or Cursor(self.log.last)
        rng = random.Random(f"{labels_max} {self.ccq_id} {[*place.items()]}")
        reached = Cursor({p: rng.randint(place[p], last) for p, last in snapshot.items()})
        reached = snapshot if reached == place else reached
        is_over = reached == snapshot
        labels = self.log.counting(snapshot, place, reached)
        token = tokens.Position(snapshot, place=None if is_over else reached).encode(self.ccq_id)
        return Update(labels, token, frontier=reached, more=not is_over, reset=is_begin)

    def matches_until(self, at: Cursor) -> int:
        return sum(sequence <= at[partition] for partition, sequence in self.log.matches)

    async def watch(
        self, ccq: str, *, token: str = "", labels_max: int = 0
    ) -> AsyncIterator[Update]:
        self.watches += 1
        while True:
            grown = self.log.grown
            if self.log.ended is not None:
                raise self.log.ended
            update = self.update(token)
            if update.token != token:
                token = update.token
                yield update
            else:
                await grown.wait()
