"""Code, documents, tests and scripts name the actor or the object of an action.

Five words hide which process, user or message is meant. This test reports each line that has one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = re.compile(r"\b(told|whoever|nobody|somebody|heed)\b", re.IGNORECASE)
FOLDERS = (".ci", "deploy", "docs", "galileo", "plugins", "proto", "scripts", "tests")
SUFFIXES = {"", ".css", ".ini", ".ipynb", ".js", ".md", ".proto", ".py", ".pyi", ".service", ".sh"}
SUFFIXES |= {".toml", ".txt", ".yml"}
ALLOWED = {"tests/docs/test_docs_words.py"}
"""Files that may have the words: this one."""
LINE_CHARS_MAX = 10_000
"""Longer lines are pictures in notebooks."""
CEILINGS: dict[str, int] = {
    "docs/api": 6,
    "galileo/cli": 85,
    "galileo/client": 58,
    "galileo/containment": 7,
    "galileo/node": 52,
    "galileo/server": 2,
    "galileo/storage": 8,
    "tests/cli": 158,
    "tests/client": 132,
    "tests/cluster": 37,
    "tests/containment": 1,
    "tests/node": 50,
    "tests/storage": 20,
    "tests/testing": 3,
}
"""Lines with a word that a folder may still have. Lower a number when you remove some."""


def texts() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    yield ROOT / "pyproject.toml"
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            is_cache = "__pycache__" in path.parts
            if path.is_file() and path.suffix in SUFFIXES and not is_cache:
                yield path


def lines_with_a_word(path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if len(line) < LINE_CHARS_MAX and (word := WORDS.search(line)):
            yield f"{path.relative_to(ROOT)}:{number}: {word[0]}"


def folder_of(path: Path) -> str:
    """Two levels, such as `galileo/ccq`; the top for files that are not deeper."""
    return "/".join(path.relative_to(ROOT).parent.parts[:2]) or "."


def found() -> dict[str, list[str]]:
    lines: dict[str, list[str]] = defaultdict(list)
    for path in texts():
        if str(path.relative_to(ROOT)) not in ALLOWED:
            lines[folder_of(path)] += lines_with_a_word(path)
    return {folder: entries for folder, entries in lines.items() if entries}


def test_no_folder_has_more_vague_words_than_allowed() -> None:
    for folder, entries in found().items():
        allowed = CEILINGS.get(folder, 0)
        assert len(entries) <= allowed, "\n".join(
            [
                f"{folder} has {len(entries)} lines with a vague word; {allowed} are allowed.",
                "Name the process, user or message instead:",
                *entries,
            ]
        )


@pytest.mark.parametrize(
    ("line", "has_one"),
    [
        ("the node is told later", True),
        ("Whoever calls", True),
        ("_told = 1", False),
        ("toldness", False),
    ],
)
def test_vague_words_are_whole_words_in_any_case(line: str, has_one: bool) -> None:
    assert bool(WORDS.search(line)) is has_one
