"""Runs targets, each in a process that may die, and keeps what they found."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fuzzing import corpus
from fuzzing.corpus import Outcome
from fuzzing.targets import Target

SLICE_S = 150
"""Of one run of a campaign; the next run of the target begins with what it found."""
NO_RUNS = corpus.Record()
MEMORY_MB = 2048
"""Of the process; more is a finding."""
INTERRUPTED = (72, 130, -signal.SIGINT)
"""How a fuzzer ends that met Ctrl-C, in its own code, in Python or as it starts: no finding."""
ERROR_LINES = 12
KEPT_BYTES_MAX = 1024
KEPT_MAX = 200
"""Of a target's corpus; what is larger, or comes after so many, is not kept."""


@dataclass(frozen=True, slots=True)
class _Ended:
    code: int
    words: str
    cpu_s: float


def fuzz(target: Target, *, seconds: int, seed: int, inputs: Path) -> Outcome:
    """Fuzzes a target; a finding is kept.

    Args:
        inputs: directory to begin with; what reaches new code is added to it.

    Raises:
        SystemExit: the fuzzer itself does not run.
        KeyboardInterrupt: the fuzzer met Ctrl-C, perhaps in place of this process.
    """
    inputs.mkdir(parents=True, exist_ok=True)
    _write(inputs, [*target.seeds(), *corpus.load(target.name)])
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "found").mkdir()
        options = [
            f"-max_total_time={seconds}",
            f"-max_len={target.bytes_max}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-timeout={target.slow_s}",
            f"-seed={seed}",
            f"-artifact_prefix={scratch}/found/",
            "-print_final_stats=1",
            "-verbosity=1",
        ]
        fuzzed = _guided(target, [*options, str(inputs)], scratch=scratch)
        found = next((path.read_bytes() for path in (scratch / "found").iterdir()), b"")
    if found:
        corpus.add_finding(target.name, found)
    return Outcome(
        target.name,
        runs=_stat(fuzzed.words, "number_of_executed_units"),
        memory_mb=_stat(fuzzed.words, "peak_rss_mb"),
        cpu_s=fuzzed.cpu_s,
        finding=_words(fuzzed.words) if fuzzed.code else "",
        input=found,
    )


def campaign(
    targets: Sequence[Target],
    *,
    inputs: Path,
    minutes: float,
    seed: int,
    workers: int,
    report: Callable[[Outcome], None],
) -> list[Outcome]:
    """Many short runs, each of the target that had the least CPU time for its weight.

    Args:
        targets: to share the time.
        inputs: directory with one for each target.
        minutes: until no run is begun any more.
        seed: of the first run; the others have the next ones.
        workers: targets that run at a time.
        report: called after each run.

    Raises:
        SystemExit: the fuzzer itself does not run.
        KeyboardInterrupt: it was cancelled; no run was begun after that.
    """
    ends_at = time.monotonic() + minutes * 60
    seeds, lock, is_over = itertools.count(seed), threading.Lock(), threading.Event()
    busy: set[str] = set()
    outcomes: list[Outcome] = []

    def work() -> None:
        while time.monotonic() < ends_at and not is_over.is_set():
            with lock:
                spent = corpus.load_records()
                free = [target for target in targets if target.name not in busy]
                if not free:
                    return
                target = min(free, key=lambda one: spent.get(one.name, NO_RUNS).cpu_s / one.weight)
                busy.add(target.name)
                number = next(seeds)
            try:
                outcome = fuzz(target, seconds=SLICE_S, seed=number, inputs=inputs / target.name)
            except BaseException:
                is_over.set()
                raise
            with lock:
                busy.discard(target.name)
                outcomes.append(outcome)
                corpus.add_record(outcome)
            report(outcome)

    with ThreadPoolExecutor(workers) as pool:
        try:
            for working in [pool.submit(work) for _ in range(workers)]:
                working.result()
        finally:
            is_over.set()
    return outcomes


def keep(target: Target, *, inputs: Path) -> int:
    """Makes a target's corpus of the fewest inputs that reach what all of them do; how many."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        smaller = scratch / "smaller"
        smaller.mkdir()
        merge = ["-merge=1", f"-timeout={target.slow_s}", f"-rss_limit_mb={MEMORY_MB}"]
        _guided(target, [*merge, str(smaller), str(inputs)], scratch=scratch)
        reached = sorted((path.read_bytes() for path in smaller.iterdir()), key=len)
    short = [data for data in reached if len(data) <= KEPT_BYTES_MAX][:KEPT_MAX]
    corpus.save(target.name, short)
    return len(short)


def _write(directory: Path, inputs: Iterable[bytes]) -> None:
    for data in inputs:
        (directory / hashlib.sha1(data).hexdigest()).write_bytes(data)  # as libFuzzer names them


def _guided(target: Target, arguments: list[str], *, scratch: Path) -> _Ended:
    program = scratch / "guided"
    if not program.exists():
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fuzzing.guided "$@"\n')
        program.chmod(0o700)
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "GALILEO_FUZZ_TARGET": target.name,
        "GALILEO_FUZZ_PROGRAM": str(program),
    }
    with (scratch / "words").open("w+b") as words:
        process = subprocess.Popen(
            [str(program), *arguments],
            env=environment,
            cwd=scratch,
            stdout=subprocess.DEVNULL,
            stderr=words,
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        words.seek(0)
        text = words.read().decode(errors="replace")
    if "No module named 'atheris'" in text:
        raise SystemExit("expected the package atheris in this environment: pip install atheris")
    if process.returncode in INTERRUPTED:
        raise KeyboardInterrupt
    return _Ended(process.returncode, text, usage.ru_utime + usage.ru_stime)


def _stat(words: str, name: str) -> int:
    found = re.search(rf"stat::{name}:\s+(\d+)", words)
    return int(found.group(1)) if found else 0


def _words(text: str) -> str:
    lines = text.splitlines()
    ends = max(0, len(lines) - ERROR_LINES)
    marks = ("Uncaught", "Traceback", "ERROR:")
    first = (n for n, line in enumerate(lines) if any(mark in line for mark in marks))
    start = next(first, ends)
    return "\n".join(lines[start : start + ERROR_LINES])
