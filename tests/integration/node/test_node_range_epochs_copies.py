"""Ranges are cut anew in a cluster with copies: each row is stored once, whoever leads."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from range_histories import CopiesHistory
from replica_nodes import World

GROUPS = ("ace", "bdf")
HISTORIES = 1
MANY_HISTORIES = 60


@pytest.fixture
def rows(make_observations: Callable[..., pa.Table]) -> Callable[[int, str], pa.Table]:
    """`rows(count, name)`: a table of which each row names its station."""

    def made(count: int, name: str) -> pa.Table:
        table = make_observations(count, zlib.crc32(name.encode()))
        place = table.schema.get_field_index("station")
        stations = pa.array([f"{name}-{number}" for number in range(count)])
        return table.set_column(place, table.schema.field("station"), stations)

    return made


@pytest.fixture
def history(
    tmp_path: Path, schema: Any, rows: Callable[[int, str], pa.Table]
) -> Callable[[int], Any]:
    """`await history(seed)` plays one history in a world of its own."""

    async def played(seed: int) -> CopiesHistory:
        world = World(tmp_path / f"{seed}", seed, groups=GROUPS, schema=schema)
        await world.begin()
        history = CopiesHistory(world, random.Random(seed), rows)
        try:
            await history.play()
        finally:
            await world.close()
        return history

    return played


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seed",
    [
        *range(HISTORIES),
        *(pytest.param(n, marks=pytest.mark.slow) for n in range(HISTORIES, MANY_HISTORIES)),
    ],
)
async def test_ingest_random_history_with_copies_stores_each_row_once(
    history: Any, seed: int
) -> None:
    await history(seed)
