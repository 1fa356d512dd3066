"""The report: areas of figures with the machine that they belong to, as Markdown or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from benchmarks.figures import Figure, Goal, digits, quantity
from benchmarks.machine import Machine

REPEAT = "scripts/bench --all --markdown-file docs/dev/benchmarks.md"


@dataclass(slots=True)
class Section:
    """The figures of one area.

    Attributes:
        name: as `--only` takes it.
        title: for people.
        figures: in the order measured.
        took_s: all of it, preparations included.
        missing: which other software kept it from being measured; empty for none.
        failure: the error that ended it early; empty for none.
    """

    name: str
    title: str
    figures: list[Figure] = field(default_factory=list)
    took_s: float = 0.0
    missing: str = ""
    failure: str = ""


@dataclass(slots=True)
class Report:
    """Everything that one run found.

    Attributes:
        machine: as it was at the start.
        quick: whether the sizes were the small ones.
        sections: one per area.
        load_at_end: load averages when the last figure was taken.
    """

    machine: Machine
    quick: bool
    sections: list[Section] = field(default_factory=list)
    load_at_end: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def took_s(self) -> float:
        return sum(section.took_s for section in self.sections)

    def to_json(self) -> str:
        """All values of all runs."""
        return json.dumps(asdict(self), indent=2)

    def to_markdown(self) -> str:
        lines = ["# Benchmarks", "", *_foreword(self), ""]
        if not self.quick:
            lines += _goals(self.sections)
        for section in self.sections:
            lines += [f"## {section.title}", "", *_section_lines(section), ""]
        return "\n".join(lines).rstrip() + "\n"


def _section_lines(section: Section) -> list[str]:
    lines = _table(section.figures) if section.figures else []
    if section.missing:
        lines += [*([""] if lines else []), f"Not measured: {section.missing}"]
    if section.failure:
        indented = [f"    {line}" for line in section.failure.splitlines()]
        lines += ["", "**Failed**, so that the rest was not measured:", "", *indented]
    return lines


def _foreword(report: Report) -> list[str]:
    machine = report.machine
    peers = ", ".join(f"{name} {number}" for name, number in machine.peers.items())
    kind = "small sizes (`--quick`), which show only that it runs" if report.quick else "full sizes"
    return [
        f"The figures of one run, written by `{REPEAT}`; {kind}. "
        "[performance.md](performance.md) says what each figure means, what limits it, and how "
        "to take it. Each median has the lowest and highest of its runs. The last column "
        "reads: the figure is so many times what it is compared with, in the same run.",
        "",
        f"- Machine and software: {machine.description}",
        f"- Compared with: {peers or 'nothing else is installed'}",
        f"- Begun {machine.started_at}, took {report.took_s:.0f} s",
        f"- Load average (1, 5, 15 min): {_load(machine.load)} at the start, "
        f"{_load(report.load_at_end)} at the end",
    ]


def _goals(sections: Sequence[Section]) -> list[str]:
    rows = [
        _goal(figure, goal)
        for section in sections
        for figure in section.figures
        for goal in figure.goals
    ]
    if not rows:
        return []
    head = ["| figure | goal | reached | |", "|---|---:|---:|---|"]
    return ["## What was aimed at", "", *head, *rows, ""]


def _goal(figure: Figure, goal: Goal) -> str:
    value = figure.reached(goal)

    def shown(number: float) -> str:
        if goal.of_peer:
            return f"{digits(number)} times {figure.peers[0].name}"
        return quantity(number, figure.unit)

    verdict = "met" if goal.met(value) else "**missed**"
    return f"| {figure.name} | {goal.sense} {shown(goal.limit)} | {shown(value)} | {verdict} |"


def _load(load: tuple[float, float, float]) -> str:
    return ", ".join(f"{value:.1f}" for value in load)


def _table(figures: Sequence[Figure]) -> list[str]:
    head = ["| figure | median | lowest to highest | compared with |", "|---|---:|---:|---|"]
    return head + [_row(figure) for figure in figures]


def _row(figure: Figure) -> str:
    spread, unit = figure.spread, figure.unit
    if spread.runs == 1:
        extent = ""
    else:
        extent = f"{quantity(spread.low, unit)} to {quantity(spread.high, unit)} ({spread.runs})"
    peers = "; ".join(
        f"{digits(figure.ratio(peer))} times {peer.name} ({quantity(peer.spread.median, unit)})"
        for peer in figure.peers
    )
    return f"| {figure.name} | {quantity(spread.median, unit)} | {extent} | {peers} |"
