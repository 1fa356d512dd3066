"""Every target takes its seeds, the inputs that were kept, and some that nothing guided."""

from __future__ import annotations

import importlib.util
import itertools
import signal
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import corpus, running
from fuzzing.corpus import Outcome
from fuzzing.table import TARGETS, named
from fuzzing.targets import Target, refused

from galileo.errors import InputError, InternalError

RUNS = 150
RUNS_APART = 20
"""Of targets that a process of its own runs."""
NEEDS = {"netcdf": "netCDF4", "grib": "eccodes"}


INTERESTING = (b"\0", b"\xff", b"\x80", b"\x7f", b"(", b'"', b"-1", b"1e999", b"\xff" * 8)
STEPS_MAX = 6


def mutated(seeds: list[bytes], rng: np.random.Generator, *, bytes_max: int) -> bytes:
    """A seed with a few bytes flipped, replaced, removed, doubled, or taken from another seed."""
    data = bytearray(seeds[rng.integers(len(seeds))])
    for _ in range(rng.integers(1, STEPS_MAX + 1)):
        start = int(rng.integers(len(data) + 1))
        stop = min(len(data), start + int(rng.geometric(0.2)))
        match rng.integers(6):
            case 0 if start < len(data):
                data[start] ^= 1 << int(rng.integers(8))
            case 1 if start < len(data):
                data[start] = int(rng.integers(256))
            case 2:
                del data[start:stop]
            case 3:
                data[start:start] = data[start:stop]
            case 4:
                data[start:stop] = INTERESTING[rng.integers(len(INTERESTING))]
            case _:
                other = seeds[rng.integers(len(seeds))]
                cut = int(rng.integers(len(other) + 1))
                data[start:] = other[cut:]
    return bytes(data[:bytes_max])


@pytest.fixture(params=[target.name for target in TARGETS])
def target(request: pytest.FixtureRequest) -> Target:
    library = NEEDS.get(request.param)
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    return named(request.param)


def test_fuzz_target_seeds_are_accepted(target: Target) -> None:
    for seed in target.seeds():
        assert len(seed) <= target.bytes_max
        assert not refused(target, seed)


def test_fuzz_target_kept_inputs_find_nothing(target: Target) -> None:
    for data in corpus.load(target.name):
        refused(target, data)


def test_fuzz_target_mutated_inputs_find_nothing(target: Target) -> None:
    rng = np.random.default_rng(zlib.crc32(target.name.encode()))
    seeds = list(target.seeds())
    outcomes = [
        refused(target, mutated(seeds, rng, bytes_max=target.bytes_max))
        for _ in range(RUNS_APART if target.is_apart else RUNS)
    ]
    assert any(outcomes), "nothing that was changed was ever refused"


def test_fuzz_targets_have_unique_name_and_corpus() -> None:
    names = [target.name for target in TARGETS]
    assert len(set(names)) == len(names)
    assert all(corpus.load(name) for name in names)


def test_refused_unexpected_error_is_raised() -> None:
    def raising(error: Exception) -> Target:
        def run(_: bytes) -> None:
            raise error

        return Target("x", "", run, lambda: iter(()))

    assert refused(raising(InputError("no")), b"")
    for error in (ValueError("x"), InternalError("x"), MemoryError()):
        with pytest.raises(type(error)):
            refused(raising(error), b"")


def test_fuzz_page_equals_records() -> None:
    """`scripts/fuzz --table` writes it."""
    assert corpus.table(TARGETS) in corpus.PAGE.read_text()
    assert set(corpus.load_records()) == {target.name for target in TARGETS}
    assert not {path.stem for path in corpus.FINDINGS.iterdir()} - set(corpus.load_records())


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("ended", [KeyboardInterrupt, SystemExit])
def test_campaign_cancelled_begins_no_run(
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
def test_guided_fuzzer_interrupted_raises_keyboard_interrupt(status: int, tmp_path: Path) -> None:
    # Where the tests run in the background of a script, their children ignore SIGINT.
    end = f"signal.signal({-status}, signal.SIG_DFL); os.kill(os.getpid(), {-status})"
    end = f"sys.exit({status})" if status > 0 else end
    (tmp_path / "guided").write_text(f"#!{sys.executable}\nimport os, signal, sys\n{end}\n")
    (tmp_path / "guided").chmod(0o700)
    with pytest.raises(KeyboardInterrupt):
        running._guided(TARGETS[0], [], scratch=tmp_path)
