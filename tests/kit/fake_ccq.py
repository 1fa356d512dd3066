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

    def wake(self) -> None:
        grown, self.grown = self.grown, asyncio.Event()
        grown.set()


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
        return self.update(token)

    def update(self, token: str) -> Update:
        """An answer up to a random position at or after the token, mostly the end."""
        position = tokens.read(token, ccq_id=self.ccq_id) if token else tokens.Position()
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
        keys = [(p, s) for p, s in self.log.matches if at[p] < s <= reached[p]]
        # The clock counts labels, and differs between readers, so that their tokens do as well.
        clock_us = 3 * self.matches_until(reached) + self.rng.randrange(3)
        progress = WindowProgress(clock_us=clock_us) if self.windows else WindowProgress()
        is_new = reached != at or not token
        after = tokens.encode(self.ccq_id, reached, progress) if is_new else token
        behind = any(reached[p] < last for p, last in self.log.last.items())
        return Update(labels_of(keys), after, frontier=reached, more=more and behind)

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
