"""How long a person waits for `galileo --help` and for an import, and of a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.figures import Figure, Goal, Peer, in_turn
from benchmarks.sizes import Bench

HELP_S = 0.3
IMPORT_S = 0.5
RUNS = 15
"""Of everything: a start is short, and a busy moment of the machine as long as all of it."""
BARE = "pass"
# What is run, what it has to print for the figure to count, and the goal in seconds.
PROGRAMS = {
    "galileo --help": ("from galileo.cli.main import main; main()", "Commands:", HELP_S),
    "import galileo": ("import galileo; print(galileo.__version__)", "", IMPORT_S),
    "import galileo, and all that a client needs": (
        "import galileo; print(galileo.connect, galileo.Schema, galileo.f)",
        "function connect",
        IMPORT_S,
    ),
    "import galileo, pyspark and rdflib": ("import galileo, pyspark.sql, rdflib", "", None),
}


def measure(bench: Bench) -> Iterator[Figure]:
    runs = RUNS if bench.sizes.runs > 1 else 1
    subjects = [partial(checked, code, wanted) for code, wanted, _ in PROGRAMS.values()]
    bare, *taken = in_turn(partial(checked, BARE, ""), *subjects, runs=runs)
    for (name, (_, _, limit_s)), spread in zip(PROGRAMS.items(), taken, strict=True):
        goals = () if limit_s is None else (Goal("at most", limit_s),)
        yield Figure(name, "s", spread, (Peer("python -c pass", bare),), goals)


def checked(code: str, wanted: str) -> None:
    output = run(code)
    if wanted not in output:
        raise AssertionError(f"expected {wanted!r} of {code!r}, got {output!r}")


def run(code: str) -> str:
    """What a fresh interpreter prints; `--help` is there for a program that looks at arguments."""
    command = [sys.executable, "-c", code, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
