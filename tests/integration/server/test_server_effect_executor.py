"""What is done for the continuous machine always comes back to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NoReturn

import pytest

from galileo.ccq.events import CompactPacks, PacksCompacted
from galileo.ccq.model import Ccq
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
    )
    made = Ccq("q", "nam", "true", interval_s=1.0, expires_at=1e9)
    labels = SimpleNamespace(gathered=fail)
    answer = await work(CompactPacks(made, 3, labels))  # type: ignore[arg-type]
    assert answer == PacksCompacted("q", 3, None)
