"""Verdicts of fault scenarios, and the tables of docs/dev/faults.md that are written from them."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

VERDICTS, FLOODS, BOMBS = "verdicts", "floods", "bombs"
_HEADS = {
    VERDICTS: ("fault", "scenario", "what must hold", "verdict", "counts"),
    FLOODS: (
        *("flood", "memory before, MiB", "over that, MiB", "p50 of another client, ms"),
        *("p99 of another client, ms", "what came of it"),
    ),
    BOMBS: ("bomb", "sent, KB", "memory over before, MiB", "seconds", "p99 of another client, ms"),
}
_HARMFUL = frozenset(
    ("lost", "repeated", "altered", "foreign", "missed", "lied", "disordered", "receded")
)
"""Counts that the page leaves out where they are 0, as they should be."""
_FLOOD = "flood: "

Rows = dict[str, tuple[str, ...]]


@dataclass(slots=True)
class Outcome:
    """The result of a scenario, over all seeds of a run.

    Attributes:
        row: of the table of faults that it belongs to.
        holds: what happens and what must hold.
        verdict: "held", "broken" or "skipped".
        seed: the first that broke it, or the last.
        reason: why it was skipped.
        load: processes that wanted a processor in the last five minutes.
    """

    name: str
    row: str
    holds: str
    verdict: str
    seed: int
    took_s: float = 0.0
    reason: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    figures: dict[str, float] = field(default_factory=dict)
    load: float = 0.0

    def add(self, other: Outcome) -> None:
        """Adds another seed: the worst verdict, sums of counts, longest times, largest figures."""
        if self.verdict != "broken":
            self.verdict, self.seed = other.verdict, other.seed
        self.took_s += other.took_s
        self.load = max(self.load, other.load)
        for name, count in other.counts.items():
            is_longest = name.startswith("longest ")
            known = self.counts[name]
            self.counts[name] = max(known, count) if is_longest else known + count
        for name, value in other.figures.items():
            self.figures[name] = max(value, self.figures.get(name, value))


def table(outcomes: Iterable[Outcome]) -> str:
    """All outcomes as a Markdown table."""
    head = ("fault", "scenario", "verdict", "time", "counts and figures")
    rows = [
        (one.row, one.name, one.verdict, f"{one.took_s:.1f} s", one.reason or _facts(one))
        for one in outcomes
    ]
    return "\n".join(_lines(head, rows))


def _facts(one: Outcome) -> str:
    counts = [f"{name} {count:,}" for name, count in one.counts.items()]
    return ", ".join([*counts, *(f"{name} {value:g}" for name, value in one.figures.items())])


def update_page(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Renews the rows of the outcomes between the marks of each table, and keeps the others.

    Raises:
        ValueError: the page lacks the marks of a table.
    """
    bombs = [figures for one in outcomes if one.name == BOMBS for figures in _bomb_rows(one)]
    floods = [_flood_row(one) for one in outcomes if "memory over that, MiB" in one.figures]
    text = path.read_text()
    for name, rows in (
        (VERDICTS, {f"`{one.name}`": _verdict_row(one) for one in outcomes}),
        (FLOODS, {row[0]: row for row in floods}),
        (BOMBS, {row[0]: row for row in bombs}),
    ):
        text = _replaced(text, name, rows)
    path.write_text(text)


def _verdict_row(one: Outcome) -> tuple[str, ...]:
    counts = [
        f"{name} {count:,}"
        for name, count in one.counts.items()
        if not name.startswith(_FLOOD) and (count or name not in _HARMFUL)
    ]
    today = dt.datetime.now(dt.UTC).date()
    verdict = f"{one.verdict}, {today}, {one.took_s:.0f} s, seed {one.seed}"
    verdict += f", load {one.load:g}" if one.load else ""
    return (one.row, f"`{one.name}`", one.holds, verdict, one.reason or ", ".join(counts))


def _flood_row(one: Outcome) -> tuple[str, ...]:
    figures = one.figures
    waits = (
        f"{figures[f'{share} before, ms']:g} before, {figures[f'{share} during, ms']:g}"
        for share in ("p50", "p99")
    )
    counts = [
        f"{name.removeprefix(_FLOOD)} {count:,}"
        for name, count in one.counts.items()
        if name.startswith(_FLOOD)
    ]
    memory = (f"{figures[f'memory {name}, MiB']:g}" for name in ("before", "over that"))
    return (one.holds.partition(": ")[0], *memory, *waits, ", ".join(counts))


def _bomb_rows(one: Outcome) -> list[tuple[str, ...]]:
    names = [name.removesuffix(": MiB") for name in one.figures if name.endswith(": MiB")]
    columns = ("sent, KB", "MiB", "s", "p99 of another, ms")
    return [
        (name, *(f"{one.figures.get(f'{name}: {column}', 0):,g}" for column in columns))
        for name in names
    ]


def _replaced(text: str, name: str, rows: Mapping[str, tuple[str, ...]]) -> str:
    """The page with rows of a table renewed in their places, and new ones at its end."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, has_begin, rest = text.partition(begin)
    old, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise ValueError(f"expected the marks {begin!r} and {end!r}, the page lacks one")
    key = 1 if name == VERDICTS else 0
    kept = [
        tuple(cell.strip() for cell in line.strip("|").split(" | "))
        for line in old.splitlines()[2:]
    ]
    merged = {row[key]: row for row in kept} | dict(rows)
    if not merged:
        return text
    return before + begin + "\n".join(_lines(_HEADS[name], merged.values())) + "\n" + end + after


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
