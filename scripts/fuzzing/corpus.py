"""Kept inputs: those that reach code which others do not, and those that once were findings.

A file for each target, an input a line, in hexadecimal: a change shows up in a review.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

DIRECTORY = Path(__file__).parents[2] / "tests" / "fuzzing" / "corpora"
FINDINGS = DIRECTORY.with_name("findings")


def load(name: str) -> list[bytes]:
    """The inputs of a target, its findings last."""
    return [*_read(DIRECTORY / f"{name}.hex"), *findings(name)]


def save(name: str, inputs: Iterable[bytes]) -> None:
    """Replaces the inputs of a target, findings excepted; the shortest first."""
    _write(DIRECTORY / f"{name}.hex", set(inputs) - set(findings(name)))


def findings(name: str) -> list[bytes]:
    """Inputs with which a target did once what it must not."""
    return _read(FINDINGS / f"{name}.hex")


def add_finding(name: str, data: bytes) -> None:
    _write(FINDINGS / f"{name}.hex", {*findings(name), data})


def _read(path: Path) -> list[bytes]:
    return [bytes.fromhex(line) for line in path.read_text().split()] if path.exists() else []


def _write(path: Path, inputs: Iterable[bytes]) -> None:
    lines = [data.hex() for data in sorted(set(inputs), key=lambda data: (len(data), data))]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines if line))
