"""The tables of docs/dev/faults.md, written from a run and never by hand.

What stands between two marks is replaced. A scenario that was not run keeps the row that it has, so
that a part of the table can be renewed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from faults.registry import Outcome, Scenario

VERDICTS, FLOODS, BOMBS = "verdicts", "floods", "bombs"
_HEADS = {
    VERDICTS: ("fault", "scenario", "what must hold", "verdict", "counts"),
    FLOODS: (
        *("flood", "memory before, MiB", "over that, MiB", "p50 of another client, ms"),
        *("p99 of another client, ms", "what came of it"),
    ),
    BOMBS: ("bomb", "sent, KB", "memory over before, MiB", "seconds", "p99 of another client, ms"),
}
_NOTHING_WRONG = frozenset(
    ("lost", "repeated", "altered", "foreign", "missed", "lied", "disordered", "receded")
)
_FLOOD = "flood: "

Rows = dict[str, tuple[str, ...]]


def update(path: Path, outcomes: Sequence[Outcome], scenarios: Iterable[Scenario]) -> None:
    """Writes the outcomes into a page; the order is that of all scenarios there are."""
    text = path.read_text()
    order = [one.name for one in scenarios]
    for table, rows in _tables(outcomes).items():
        text = _replaced(text, table, rows, order)
    path.write_text(text)


def _tables(outcomes: Sequence[Outcome]) -> Mapping[str, Rows]:
    bombs: Rows = {}
    for one in outcomes:
        if one.name == "bombs":
            bombs = _bombs(one.figures)
    return {
        VERDICTS: {one.name: _verdict(one) for one in outcomes},
        FLOODS: {
            one.name: _flood(one) for one in outcomes if "memory over that, MiB" in one.figures
        },
        BOMBS: bombs,
    }


def _verdict(one: Outcome) -> tuple[str, ...]:
    counts = [
        f"{name} {count:,}"
        for name, count in one.counts.items()
        if not name.startswith(_FLOOD) and (count or name not in _NOTHING_WRONG)
    ]
    told = one.reason or ", ".join(counts)
    today = dt.datetime.now(dt.UTC).date()
    verdict = f"{one.verdict}, {today}, {one.took_s:.0f} s, seed {one.seed}"
    verdict += f", load {one.load:g}" if one.load else ""
    return (one.row, f"`{one.name}`", one.does, verdict, told)


def _flood(one: Outcome) -> tuple[str, ...]:
    figures = one.figures
    name = one.does.partition(": ")[0]
    p50, p99 = (
        f"{figures[f'{share} before, ms']:g} before, {figures[f'{share} during, ms']:g}"
        for share in ("p50", "p99")
    )
    came = [
        f"{name.removeprefix(_FLOOD)} {count:,}"
        for name, count in one.counts.items()
        if name.startswith(_FLOOD)
    ]
    memory = (f"{figures[f'memory {name}, MiB']:g}" for name in ("before", "over that"))
    return (name, *memory, p50, p99, ", ".join(came))


def _bombs(figures: Mapping[str, float]) -> Rows:
    names = [name.removesuffix(": MiB") for name in figures if name.endswith(": MiB")]
    columns = ("sent, KB", "MiB", "s", "p99 of another, ms")
    return {
        name: (name, *(f"{figures.get(f'{name}: {column}', 0):,g}" for column in columns))
        for name in names
    }


def _replaced(text: str, table: str, rows: Rows, order: Sequence[str]) -> str:
    """The page with the rows of a table renewed."""
    begin, end = f"<!-- {table}: begin -->\n", f"<!-- {table}: end -->"
    before, found, rest = text.partition(begin)
    old, also, after = rest.partition(end)
    if not found or not also:
        raise ValueError(f"expected the marks {begin!r} and {end!r}, found none")
    if not rows:
        return text
    head = _HEADS[table]
    place = 1 if table == VERDICTS else 0
    kept = [
        tuple(cell.strip() for cell in line.strip("|").split(" | "))
        for line in old.splitlines()[2:]
    ]
    told = {row[place]: row for row in (*kept, *rows.values())}
    names = {f"`{name}`": number for number, name in enumerate(order)}
    shown = sorted(told.values(), key=lambda row: names.get(row[place], len(names)))
    lines = [_line(head), "|" + "---|" * len(head), *map(_line, shown)]
    return before + begin + "\n".join(lines) + "\n" + end + after


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
