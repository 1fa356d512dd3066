"""What is done for the continuous machine always comes back to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from simulator.logs import to_labels

from galileo.ccq.events import (
    ChangeRecords,
    CompactPacks,
    ElectNodes,
    NodesElected,
    PacksCompacted,
    RecordsChanged,
    Task,
)
from galileo.ccq.model import CcqDefinition
from galileo.ccq.placement import EndCcq
from galileo.election.election import Candidacy
from galileo.errors import CorruptData, SamplerFailed, SamplerRevoked
from galileo.packing import Compression
from galileo.samplers import SamplerSpec
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
    made = CcqDefinition("q", "nam", "true", interval_s=1.0, expires_at=1e9)
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


# --- what a coordinator tells of a sent sampler that is revoked while it is called ---------------


SPEC = SamplerSpec("sent", {}, 1, archive="0" * 64)


class Raising:
    scope = "commit"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def sample(self, labels: Any, *, seed: int) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SamplerRevoked("the sampler 'sent' was revoked", digest=SPEC.archive), SamplerRevoked),
        (ValueError("no idea"), SamplerFailed),
    ],
)
async def test_effect_executor_sample_maps_errors_of_the_sampler(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception]
) -> None:
    labels = to_labels([(0, 1, 0, 5)])
    assert labels is not None
    node: Any = SimpleNamespace(name="a", catalog=None)
    absent: Any = None
    work = EffectExecutor(
        node, absent, evaluate=absent, is_dead=lambda name: False, spills=absent, records=absent
    )

    async def load(spec: SamplerSpec, *, dataset: str) -> Any:
        return Raising(error)

    monkeypatch.setattr(work, "load", load)
    with pytest.raises(expected):
        await work.sample(labels, SPEC, query=absent)
