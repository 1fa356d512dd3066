from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from evaluation import stored
from evaluation.parts.intervals import Fresh, Freshness
from evaluation.parts.simulated import Times
from hypothesis import given
from hypothesis import strategies as st
from made_up_machine import MACHINE

FRESHNESS = Freshness(3, 500, 4.0, (Fresh(0.5, (0.1, 0.2), 499.5), Fresh(1.0, (), 500.0)))


@dataclass(frozen=True)
class Everything:
    text: str
    count: int | None
    by_number: dict[int, float]
    pair: tuple[int, str]
    times: list[Times]


numbers = st.floats(allow_nan=False, allow_infinity=False)
many = st.lists(numbers, max_size=3).map(tuple)
anything = st.builds(
    Everything,
    text=st.text(),
    count=st.none() | st.integers(),
    by_number=st.dictionaries(st.integers(), numbers, max_size=3),
    pair=st.tuples(st.integers(), st.text()),
    times=st.lists(st.builds(Times, st.integers(), many, many, many, many), max_size=2),
)


@given(anything)
def test_what_went_through_json_is_the_same_again(value: Everything) -> None:
    assert stored.decoded(Everything, json.loads(json.dumps(asdict(value)))) == value


def taken() -> stored.Taken:
    return stored.Taken("freshness", True, 12.5, MACHINE, (1.0, 2.0, 3.0), FRESHNESS)


def test_a_stored_part_comes_back_with_its_circumstances(tmp_path: Path) -> None:
    assert stored.load(tmp_path, "freshness", Freshness) is None
    stored.save(tmp_path / "deep" / "down", taken())
    assert stored.load(tmp_path / "deep" / "down", "freshness", Freshness) == taken()
    assert [path.name for path in (tmp_path / "deep" / "down").iterdir()] == ["freshness.json"]


@pytest.mark.parametrize("damage", [{"format": 0}, {"result": {"nodes": 3}}, {"machine": {}}])
def test_what_another_version_wrote_is_refused_with_what_to_do(
    tmp_path: Path, damage: dict[str, object]
) -> None:
    stored.save(tmp_path, taken())
    path = stored.path_of(tmp_path, "freshness")
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    with pytest.raises(ValueError, match="run the part freshness again"):
        stored.load(tmp_path, "freshness", Freshness)
