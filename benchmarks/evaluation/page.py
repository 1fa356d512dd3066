"""The pages of the evaluations: prose is written by hand, blocks between marks by a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.figures import Spread, digits, quantity
from benchmarks.machine import Machine

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Block:
    """What a part found.

    Attributes:
        lines: Markdown.
        pictures: what draws an SVG, by file name; `lines` show each.
        summary: rows of the table at the beginning: what, the paper's value, ours.
    """

    lines: Sequence[str]
    pictures: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
    summary: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """The stored result of one part, and the circumstances in which it was taken.

    Attributes:
        part: its name.
        quick: whether its sizes were the small ones.
        took_s: all of it, preparations included.
        machine: as it was when the part began.
        load_at_end: load averages over 1, 5 and 15 minutes.
        lines, summary: of the block.
        pictures: SVG, by file name.
        result: what was measured, in full.
    """

    part: str
    quick: bool
    took_s: float
    machine: Machine
    load_at_end: Sequence[float]
    lines: Sequence[str]
    summary: Sequence[Row]
    pictures: Mapping[str, str]
    result: Any


def renewed(text: str, taken: Sequence[Taken]) -> str:
    """The page with the blocks of these results, its circumstances and its summary."""
    for one in taken:
        text = replaced(text, one.part, one.lines)
    text = replaced(text, "circumstances", circumstances(taken))
    rows = [row for one in taken for row in one.summary]
    return replaced(text, "summary", table(("", "the paper", "here"), rows, left=3))


def replaced(text: str, name: str, lines: Sequence[str]) -> str:
    """The page with other lines between the marks of a block.

    Raises:
        ValueError: the page has no such block.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    block = "\n".join([begin, *lines, end])
    text, count = pattern.subn(lambda _: block, text)
    if count != 1:
        raise ValueError(f"expected the marks {begin} and {end} once on the page, got {count}")
    return text


def circumstances(taken: Sequence[Taken]) -> list[str]:
    lines = []
    if any(one.quick for one in taken):
        lines += ["**Small sizes (`--quick`): these figures show only that the parts run.**", ""]
    for machine in dict.fromkeys(one.machine.description for one in taken):
        lines.append(f"- Machine and software: {machine}")
    for one in taken:
        lines.append(
            f"- `{one.part}`: begun {one.machine.started_at}, took {one.took_s:.0f} s; load "
            f"average {one.machine.load[0]:.1f} at the start, {one.load_at_end[0]:.1f} at the end"
        )
    return lines


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
