"""What ends a campaign, and what becomes of runs that are cut off."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from fuzzing import corpus, running
from fuzzing.corpus import Outcome
from fuzzing.table import TARGETS


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("ended", [KeyboardInterrupt, SystemExit])
def test_no_run_is_begun_once_a_campaign_is_cancelled(
    ended: type[BaseException], which: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = threading.Barrier(2)
    calls = itertools.count()

    def fuzz(target: Any, **_: Any) -> Outcome:
        number = next(calls)
        if number < 2:
            both.wait(60)
        if number == which:
            raise ended
        assert number < 10_000, "it goes on"
        return Outcome(target.name, runs=1, memory_mb=1)

    monkeypatch.setattr(running, "fuzz", fuzz)
    monkeypatch.setattr(corpus, "FILE", tmp_path / "records.json")
    (tmp_path / "records.json").write_text("{}")
    with pytest.raises(ended):
        running.campaign(
            TARGETS, inputs=tmp_path, minutes=10.0, seed=1, workers=2, report=lambda _: None
        )
    assert next(calls) < 10_000


@pytest.mark.parametrize("status", [72, 130, -signal.SIGINT])
def test_a_fuzzer_that_met_ctrl_c_found_nothing(status: int, tmp_path: Path) -> None:
    # Where the tests run in the background of a script, their children ignore SIGINT.
    end = f"signal.signal({-status}, signal.SIG_DFL); os.kill(os.getpid(), {-status})"
    end = f"sys.exit({status})" if status > 0 else end
    (tmp_path / "guided").write_text(f"#!{sys.executable}\nimport os, signal, sys\n{end}\n")
    (tmp_path / "guided").chmod(0o700)
    with pytest.raises(KeyboardInterrupt):
        running._guided(TARGETS[0], [], scratch=tmp_path)
