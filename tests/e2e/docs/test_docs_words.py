"""Code, documents, tests and scripts name the actor or the object of an action.

Five words hide which process, user or message is meant. This test reports each line that has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
WORDS = re.compile(r"\b(told|whoever|nobody|somebody|heed)\b", re.IGNORECASE)
FOLDERS = (".ci", "deploy", "docs", "galileo", "plugins", "proto", "scripts", "tests")
SUFFIXES = {"", ".css", ".ini", ".ipynb", ".js", ".md", ".proto", ".py", ".pyi", ".service", ".sh"}
SUFFIXES |= {".toml", ".txt", ".yml"}
ALLOWED = {"tests/e2e/docs/test_docs_words.py"}
"""Files that may have the words: this one."""
LINE_CHARS_MAX = 10_000
"""Longer lines are pictures in notebooks."""


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


def test_documents_and_code_have_no_vague_words() -> None:
    lines = [
        line
        for path in texts()
        if str(path.relative_to(ROOT)) not in ALLOWED
        for line in lines_with_a_word(path)
    ]
    assert not lines, "\n".join(["Name the process, user or message instead:", *lines])
