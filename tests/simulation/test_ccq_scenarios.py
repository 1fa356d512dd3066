"""Elections and coordination, played from the files in `tests/simulation/scenarios`.

After an intended change, write the new traces with GALILEO_REWRITE_SCENARIOS=1 and read the
difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from scenario import read, replay

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_ccq_scenario_gives_the_stored_trace(path: Path) -> None:
    steps = read(path)
    played = list(replay(steps))
    if os.environ.get("GALILEO_REWRITE_SCENARIOS"):
        path.write_text("\n\n".join(step.text() for step in played) + "\n")
        return
    for wanted, got in zip(steps, played, strict=True):
        assert list(got.trace) == list(wanted.trace), wanted.command


def test_ccq_scenarios_exist() -> None:
    assert len(FILES) >= 8
