"""Pages of documentation, taken apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_TABLE = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """One page.

    Attributes:
        name: its path below the root.
        text: of it.
    """

    name: str
    text: str

    def blocks(self, language: str) -> Iterator[tuple[int, str]]:
        """The fenced blocks of a language, each with the number of lines before it."""
        for found in _FENCE.finditer(self.text):
            if found[1] == language:
                yield self.text.count("\n", 0, found.start(2)), found[2]

    @property
    def prose(self) -> str:
        """The text without its fenced blocks."""
        return _FENCE.sub("", self.text)

    @property
    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    @property
    def anchors(self) -> set[str]:
        """What a link may name behind `#`, by the rules of the usual viewers."""
        plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in self.headings)
        return {heading.replace(" ", "-") for heading in plain}

    @property
    def headings(self) -> list[str]:
        return _HEADING.findall(self.prose)

    def section(self, heading: str) -> str:
        """What stands below a heading, up to the next one."""
        _, _, rest = self.prose.partition(f" {heading}\n")
        assert rest, f"{self.name} has no section {heading!r}"
        return _HEADING.split(rest)[0]

    def tables(self, heading: str) -> list[list[list[str]]]:
        """The tables of a section: rows of cells, without their heads."""
        found = _TABLE.findall(self.section(heading) + "\n")
        return [[_cells(line) for line in table.splitlines()[2:]] for table in found]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture(scope="session")
def page() -> Callable[[str], Page]:
    """`page("docs/client.md")`."""
    return lambda name: Page(name, (ROOT / name).read_text(encoding="utf-8"))
