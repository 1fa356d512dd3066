"""`scripts/paper` in small: a part is measured, stored and told, and nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import interrupts
import pytest
from benchmarks.sizes import Bench
from evaluation import __main__ as program
from evaluation.registry import PARTS, Part
from evaluation.sizes import QUICK, Sizes

LABELS = next(part for part in PARTS if part.name == "labels")


def started(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "evaluation", "--quick", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_part_in_small_is_stored_and_told(
    evaluation_environment: dict[str, str], tmp_path: Path
) -> None:
    results, scratch = tmp_path / "results", tmp_path / "scratch"
    scratch.mkdir()
    places = ("--results", str(results), "--directory", str(scratch))
    run = started(evaluation_environment, "--only", "labels", *places)
    output, progress = run.communicate()
    assert (run.returncode, output) == (0, ""), progress
    raw = json.loads((results / "labels.json").read_text())
    for sizes in raw["result"]["sizes"]:
        by_name = {form["name"]: form["bytes_per_label"] for form in sizes["forms"]}
        assert by_name["the cache, compacted"] < by_name["path labels as text"] / 4
    text = (results / "paper.md").read_text()
    assert "Small sizes" in text
    assert (results / "img" / "paper-labels.svg").exists()
    assert list(scratch.iterdir()) == []


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Of a run in this process, whose signals stay as they are."""
    given = ["paper", "--quick", "--results", str(tmp_path / "results")]
    monkeypatch.setattr("sys.argv", given)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return given


def test_a_part_that_fails_loses_no_other_and_resuming_takes_it_alone(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[str] = []

    def measure(name: str, *, fails: bool) -> Part:
        def well(*_: object) -> object:
            calls.append(name)
            if fails:
                raise AssertionError("expected 2 labels, got 3")
            return LABELS.kind("humidity < 60", ())

        tell = lambda _: LABELS.tell  # noqa: E731
        return Part(name, name.title(), LABELS.kind, well, tell, 1)

    monkeypatch.setattr(program, "write_page", lambda _: None)
    monkeypatch.setattr(
        program, "PARTS", (measure("bad", fails=True), measure("good", fails=False))
    )
    assert program.main() == program.FAILED
    said = capsys.readouterr().err
    assert "AssertionError: expected 2 labels, got 3" in said
    assert "failed: bad" in said
    assert calls == ["bad", "good"]
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["good.json"]
    arguments.append("--resume")
    assert program.main() == program.FAILED
    assert calls == ["bad", "good", "bad"]


def test_a_cancelled_run_says_how_to_go_on_and_leaves_nothing(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def cancelled(sizes: Sizes, bench: Bench) -> object:
        assert sizes is QUICK
        (bench.directory / "a-cluster").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "PARTS", (replace(LABELS, measure=cancelled),))
    arguments += ["--directory", str(scratch)]
    assert program.main() == interrupts.CANCELLED
    assert "go on with --resume" in capsys.readouterr().err
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "results").exists()


def test_an_unknown_part_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments += ["--only", "everything"]
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    assert "retrieval, labels" in capsys.readouterr().err.replace("'", "")
