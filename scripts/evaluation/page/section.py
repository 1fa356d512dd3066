"""A section of the page: lines of Markdown, pictures, and lines of the summary at the beginning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.figures import Spread, digits, quantity

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Compared:
    """A line of the summary: what, what the paper has (empty: nothing), what was measured here."""

    what: str
    paper: str
    here: str


@dataclass(frozen=True, slots=True)
class Section:
    """Attributes:
    lines: Markdown, without the heading.
    pictures: what draws an SVG, by file name; `lines` show each.
    summary: lines for the beginning of the page.
    """

    lines: Sequence[str]
    pictures: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
    summary: Sequence[Compared] = ()


def table(head: Row, rows: Sequence[Row], *, left: int = 1) -> list[str]:
    """Lines of a Markdown table whose first columns are text and whose others are numbers.

    Raises:
        ValueError: a row has not as many cells as the head.
    """
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"expected {len(head)} cells, got {len(row)}: {row}")
    rule = ["---" if number < left else "---:" for number in range(len(head))]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]


def picture(name: str, text: str) -> str:
    return f"![{text}](img/{name})"


def seconds(values: Sequence[float]) -> str:
    """The median of some seconds."""
    return quantity(Spread.of(values).median, "s")


def extent(values: Sequence[float], unit: str = "s") -> str:
    """The lowest and the highest, and of how many."""
    spread = Spread.of(values)
    return f"{quantity(spread.low, unit)} to {quantity(spread.high, unit)} ({spread.runs})"


def times(value: float, other: float) -> str:
    """How many times the other it is."""
    return f"{digits(value / other)} times" if other else "no multiple of nothing"


def percent(share: float) -> str:
    """With a sign, for something that grows or shrinks."""
    return f"{100 * share:+.1f} %"


def interval(value_s: float) -> str:
    """An update interval as people write it."""
    return f"{value_s:g} s"
