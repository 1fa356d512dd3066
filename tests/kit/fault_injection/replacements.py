"""Writers that replace and delete the observations of their keys, and a reader of the changes."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from fault_injection.corrections import DATASET, Worker, held
from fault_injection.damage import Commits
from fault_injection.trial import Trial
from galileo.client import Client
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.model.schema import Feature, Schema

KEYS = 30
"""Each writer has so many keys of its own."""
BATCH = 6
START = dt.datetime(2014, 3, 1, tzinfo=dt.UTC)
LEVELS = 10
"""How many levels values go through."""
KINDS = {"replace": 5, "replace if unchanged": 2, "delete rows": 2, "delete by condition": 2}
"""How often each kind of write occurs."""
SCHEMA = Schema(
    DATASET,
    [Feature("station", type="text"), Feature("value", type="int"), Feature("level", type="int")],
    key="station",
    geohash_precision=2,
    time_bucket="1h",
)
Rows: TypeAlias = dict[str, int]
"""The value of each station."""


def observations(values: Rows) -> pa.Table:
    """Of stations that have a place and an hour each; a value moves an observation in its hour."""
    numbers = [int(station.replace("-", "")) for station in values]
    return pa.table(
        {
            "latitude": [-80.0 + number * 7 % 160 for number in numbers],
            "longitude": [-170.0 + number * 11 % 340 for number in numbers],
            "time": [
                START + dt.timedelta(hours=number % 24, microseconds=value)
                for number, value in zip(numbers, values.values(), strict=True)
            ],
            "station": [*values],
            "value": pa.array([*values.values()], pa.int64()),
            "level": pa.array([value % LEVELS for value in values.values()], pa.int64()),
        }
    )


def values_of(rows: pa.Table) -> Rows:
    return {station: value for (station,), value in held(rows, ("station", "value")).items()}


def last_values(commits: Commits) -> Rows:
    """What the commits of a node's disk leave, by the order of each partition."""
    values = Rows()
    for place in sorted(commits):
        table = commits[place][0]
        columns = (table[name].to_pylist() for name in ("station", "value"))
        for station, value in zip(*columns, strict=True):
            values.pop(station, None)
            values |= {} if value is None else {station: value}  # A deletion has no value.
    return values


@dataclass
class Writer(Worker):
    """Sends one write after the other, each until it is acknowledged.

    Attributes:
        number: of the writer, with which its keys begin.
        rows: as the acknowledged writes have left them.
        pending: values of a write that is not acknowledged; of a deletion None.
        name: as a producer.
    """

    number: int
    chance: random.Random
    rows: Rows = field(default_factory=dict)
    pending: dict[str, int | None] = field(default_factory=dict)
    name: str = ""
    _send: Callable[[Client], object] | None = None

    def __post_init__(self) -> None:
        self.name = f"writer-{self.number}-{self.chance.random()}"

    def turn(self, client: Client) -> None:
        if self._send is None:
            self._send = self._draw(client)
        self._send(client)
        kept = {key: value for key, value in self.rows.items() if key not in self.pending}
        new = {key: value for key, value in self.pending.items() if value is not None}
        self.rows, self.pending, self._send = kept | new, {}, None

    def _draw(self, client: Client) -> Callable[[Client], object]:
        (kind,) = self.chance.choices([*KINDS], [*KINDS.values()])
        keys = self.chance.sample(range(KEYS), self.chance.randint(1, BATCH))
        values = {f"{self.number}-{key:03}": self.turns for key in keys}
        rows, first = observations(values), self.turns
        if kind == "delete by condition":
            limit = self.chance.randint(max(0, self.turns - 2 * KEYS), self.turns)
            listing = ", ".join(f"'{station}'" for station in values)
            condition = f"station IN ({listing}) AND value < {limit}"
            self.pending = {one: None for one in values if self.rows.get(one, limit) < limit}
            return lambda client: client.delete(DATASET, condition)
        if kind == "delete rows":
            self.pending = dict.fromkeys(values)
            return lambda client: client.delete(
                DATASET, rows, producer=self.name, first_batch=first
            )
        is_conditional = kind == "replace if unchanged"
        # No other writer has these keys, so the condition holds.
        since = client.version(DATASET, require_complete=True).cursor if is_conditional else None
        self.pending = {**values}
        return lambda client: client.ingest(
            DATASET, rows, producer=self.name, first_batch=first, unchanged_since=since
        )


@dataclass
class Follower(Worker):
    """Applies the changes from one cursor to the next.

    Attributes:
        rows: that it has.
        cursor: up to which.
        compared: how often the observations at its cursor were read.
    """

    rows: Rows = field(default_factory=dict)
    cursor: Cursor = EMPTY_CURSOR
    compared: int = 0

    def turn(self, client: Client) -> None:
        changes = client.changes(DATASET, self.cursor)
        assert changes.cursor.covers(self.cursor), f"{changes.cursor} is behind {self.cursor}"
        changed = values_of(changes.rows)
        deleted = {*changes.rows.filter(changes.rows["deleted"])["station"].to_pylist()}
        kept = {key: value for key, value in self.rows.items() if key not in changed}
        self.rows = kept | {key: value for key, value in changed.items() if key not in deleted}
        self.cursor = changes.cursor
        self.compare(client)

    def compare(self, client: Client) -> None:
        at = values_of(client.select(DATASET, at=self.cursor))
        assert at == self.rows, f"at {self.cursor}: {at.items() ^ self.rows.items()}"
        self.compared += 1


def judge_rows(trial: Trial, writers: Sequence[Writer], rows: Rows, what: str) -> None:
    """Each key is as its last write left it, which may be one that was not acknowledged."""
    for writer in writers:
        for key in (f"{writer.number}-{key:03}" for key in range(KEYS)):
            known = writer.rows.get(key)
            possible, value = {known, writer.pending.get(key, known)}, rows.get(key)
            trial.expect(value in possible, f"{what}: {key} is {value}, not one of {possible}")
