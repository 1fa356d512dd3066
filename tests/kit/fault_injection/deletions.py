"""Observations without a key, conditions that delete them, and a ledger that judges both."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fault_injection.corrections import DATASET, Worker
from fault_injection.damage import Commits
from galileo.client import Client
from galileo.model.schema import Feature, Schema

START = dt.datetime(2014, 3, 1, tzinfo=dt.UTC)
MINUTES, LEVELS = 360, 3
PLACES = ((-60.0, -120.0), (-10.0, -50.0), (20.0, 10.0), (50.0, 80.0))
SPREAD = 4.0
"""Degrees that observations of a place are apart; less than a cell."""
BATCH = 24
WIDTH = (5, 90)
"""Minutes of a deletion."""
EAST = (-100.0, 300.0)
"""The eastern border of a deletion; most are beyond all observations."""
BATCH_PAUSE_S, DELETION_PAUSE_S = 0.1, 0.2
SCHEMA = Schema(
    DATASET,
    [Feature("level", type="int"), Feature("number", type="int", indexed=False)],
    geohash_precision=2,
    time_bucket="1h",
)
"""Blocks are coarse, so that a path has several observations and conditions cut through it."""
Columns = Mapping[str, npt.NDArray[Any]]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Condition:
    """Of the observations of a level between two minutes, west of a meridian."""

    level: int
    since: int
    until: int
    east: float

    def __str__(self) -> str:
        since, until = (_instant(minute * 60e6) for minute in (self.since, self.until))
        return (
            f"level = {self.level} AND T_AFTER(datetime, TIMESTAMP('{since:%Y-%m-%dT%H:%M:%SZ}')) "
            f"AND T_BEFORE(datetime, TIMESTAMP('{until:%Y-%m-%dT%H:%M:%SZ}')) "
            f"AND S_INTERSECTS(geometry, BBOX(-180, -90, {min(self.east, 180.0)!r}, 90))"
        )

    def matches(self, rows: Columns) -> Mask:
        inside = (rows["micros"] > self.since * 60e6) & (rows["micros"] < self.until * 60e6)
        matches: Mask = (rows["level"] == self.level) & inside & (rows["longitude"] <= self.east)
        return matches


@dataclass(slots=True)
class Call:
    """Of a batch or a deletion.

    Attributes:
        began: when its first attempt began.
        asked: when its last attempt began.
        ended: when it was acknowledged.
    """

    began: float = inf
    asked: float = inf
    ended: float = inf

    def ask(self) -> None:
        self.asked = time.monotonic()
        self.began = min(self.began, self.asked)


@dataclass(slots=True)
class Ledger:
    """What was sent, and when."""

    batches: list[tuple[Columns, Call]] = field(default_factory=list)
    deletions: list[tuple[Condition, Call]] = field(default_factory=list)

    def audit(self, numbers: npt.NDArray[np.int64], began: float, ended: float) -> dict[str, int]:
        """How many observations are wrong in an answer that was asked and came at these times.

        Returns:
            `repeated` are there more than once; `foreign` had not been sent; `lost` had been
            acknowledged before, and no condition that was sent matches them; `undeleted` are there,
            and a deletion had been acknowledged that began after their batch was acknowledged.
        """
        deletions, batches = [*self.deletions], [*self.batches]
        names = ("number", "level", "micros", "longitude")
        rows = {name: np.concatenate([one[name] for one, _ in batches]) for name in names}
        sizes = [len(one["number"]) for one, _ in batches]
        sent, stored = (
            np.repeat([getattr(call, name) for _, call in batches], sizes)
            for name in ("began", "ended")
        )
        may_lack, must_lack = np.zeros((2, len(sent)), np.bool_)
        for condition, call in deletions:
            matches = condition.matches(rows)
            may_lack |= matches & (sent < call.ended) & (call.began < ended)
            must_lack |= matches & (stored < call.asked) & (call.ended < began)
        found = np.isin(rows["number"], numbers)
        known = rows["number"][sent < ended]
        return {
            "repeated": len(numbers) - len(np.unique(numbers)),
            "foreign": int(np.isin(numbers, known, invert=True).sum()),
            "lost": int(((stored < began) & ~may_lack & ~found).sum()),
            "undeleted": int((must_lack & found).sum()),
            "deleted": int(must_lack.sum()),
        }

    def check(self, numbers: npt.NDArray[np.int64], began: float, what: str) -> int:
        """How many observations must be gone; fails where some are wrong."""
        audit = self.audit(numbers, began, time.monotonic())
        deleted = audit.pop("deleted")
        assert not any(audit.values()), f"{what}: {audit}"
        return deleted


@dataclass
class Producer(Worker):
    """Sends one batch after the other, each until it is acknowledged."""

    ledger: Ledger
    number: int
    chance: random.Random
    batch: tuple[Columns, Call] | None = None

    def turn(self, client: Client) -> None:
        if self.batch is None:
            self.batch = self.draw(), Call()
            self.ledger.batches.append(self.batch)
        rows, call = self.batch
        call.ask()
        client.ingest(
            DATASET,
            observations(rows),
            producer=f"producer-{self.number}",
            first_batch=self.turns,
        )
        call.ended = time.monotonic()
        self.batch = None
        time.sleep(BATCH_PAUSE_S)

    def draw(self) -> Columns:
        """Observations of one place and hour."""
        latitude, longitude = self.chance.choice(PLACES)
        hour = self.chance.randrange(MINUTES // 60)
        drawn = np.random.default_rng(self.chance.getrandbits(64))
        return {
            "number": (self.number << 32) + self.turns * BATCH + np.arange(BATCH),
            "level": drawn.integers(LEVELS, size=BATCH),
            "micros": drawn.integers(hour * 3_600_000_000, (hour + 1) * 3_600_000_000, BATCH),
            "latitude": latitude + drawn.uniform(0.0, SPREAD, BATCH),
            "longitude": longitude + drawn.uniform(0.0, SPREAD, BATCH),
        }


@dataclass
class Deleter(Worker):
    """Deletes by one condition after the other, by each until that is acknowledged.

    Attributes:
        rows: that were deleted, by the answers.
    """

    ledger: Ledger
    chance: random.Random
    deletion: tuple[Condition, Call] | None = None
    rows: int = 0

    def turn(self, client: Client) -> None:
        if self.deletion is None:
            self.deletion = self.draw(), Call()
            self.ledger.deletions.append(self.deletion)
        condition, call = self.deletion
        call.ask()
        self.rows += client.delete(DATASET, str(condition)).rows
        call.ended = time.monotonic()
        self.deletion = None
        time.sleep(DELETION_PAUSE_S)

    def draw(self) -> Condition:
        since, width = self.chance.randrange(MINUTES), self.chance.randint(*WIDTH)
        level, east = self.chance.randrange(LEVELS), self.chance.uniform(*EAST)
        return Condition(level, since, since + width, east)


@dataclass
class Reader(Worker):
    """Reads everything over and over.

    Attributes:
        deleted: the most observations that had to be gone.
    """

    ledger: Ledger
    deleted: int = 0

    def turn(self, client: Client) -> None:
        began = time.monotonic()
        numbers = client.select(DATASET)["number"].to_numpy()
        if self.ledger.batches:
            self.deleted = self.ledger.check(numbers, began, "an answer")


def observations(rows: Columns) -> pa.Table:
    times = [_instant(float(micros)) for micros in rows["micros"]]
    given = {name: rows[name] for name in ("latitude", "longitude", "level", "number")}
    return pa.table({"time": times, **given})


def numbers_on_disk(commits: Commits) -> npt.NDArray[np.int64]:
    """Of the observations that the commits of a node leave; `rows` of a deletion is negative."""
    left = {place: table["number"].to_numpy().copy() for place, (table, _) in commits.items()}
    for (dataset, partition, _), (_, paths) in commits.items():
        columns = (paths.column(name).to_pylist() for name in ("cell", "row", "rows"))
        for sequence, row, rows in zip(*columns, strict=True):
            if rows < 0:
                left[dataset, partition, sequence][row : row - rows] = -1
    numbers = np.concatenate([*left.values()])
    return numbers[numbers >= 0]


def _instant(micros: float) -> dt.datetime:
    return START + dt.timedelta(microseconds=micros)
