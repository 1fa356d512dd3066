"""What a coordinator tells of a sent sampler that is revoked while it is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from simulator.logs import to_labels

from galileo.errors import SamplerFailed, SamplerRevoked
from galileo.samplers import SamplerSpec
from galileo.server.effect_executor import EffectExecutor

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
