"""What is done for the continuous machine always comes back to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from galileo.ccq.events import (
    ChangeRecords,
    CompactPacks,
    ElectNodes,
    NodesElected,
    PacksCompacted,
    RecordsChanged,
    Task,
)
from galileo.ccq.model import Ccq
from galileo.ccq.placement import EndCcq
from galileo.election.election import Candidacy
from galileo.errors import CorruptData
from galileo.packing import Compression
from galileo.server.effect_executor import EffectExecutor


@pytest.mark.parametrize("error", [CorruptData("rot"), RuntimeError("no memory")])
async def test_compact_packs_that_fails_keeps_the_packs(error: Exception) -> None:
    def fail(compression: Compression) -> NoReturn:
        raise error

    work = EffectExecutor(
        SimpleNamespace(name="a"),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        evaluate=None,  # type: ignore[arg-type]
        is_dead=lambda name: False,
        spills=None,  # type: ignore[arg-type]
        records=None,  # type: ignore[arg-type]
    )
    made = Ccq("q", "nam", "true", interval_s=1.0, expires_at=1e9)
    labels = SimpleNamespace(compact=fail)
    answer = await work(CompactPacks(made, 3, labels))  # type: ignore[arg-type]
    assert answer == PacksCompacted("q", 3, None)


@pytest.mark.parametrize(
    ("effect", "event"),
    [
        (ChangeRecords((EndCcq("q", "expired", 1.0),)), RecordsChanged(("q",))),
        (ElectNodes((Candidacy("q", 1),)), NodesElected({"q": ()})),
    ],
)
async def test_change_that_fails_unexpectedly_is_tried_again(effect: Task, event: object) -> None:
    unused: Any = None
    work = EffectExecutor(
        SimpleNamespace(name="a"),  # type: ignore[arg-type]
        unused,
        evaluate=unused,
        is_dead=unused,
        spills=unused,
        records=lambda: unused,
    )
    assert await work(effect) == event
