"""The page as a whole, out of whatever parts there are results of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from benchmarks.figures import quantity
from benchmarks.machine import Machine

from evaluation import published
from evaluation.page.section import Section, table
from evaluation.stored import Taken

COMMAND = "scripts/paper"
PAUSE = timedelta(minutes=1)
"""Between two parts of different runs, at least."""


@dataclass(frozen=True, slots=True)
class Told:
    """A part of the page: its name and heading, its result and what is told of it, if there is."""

    name: str
    title: str
    taken: Taken | None
    section: Section | None


def written(parts: Sequence[Told]) -> str:
    """The whole page, in Markdown."""
    lines = ["# The paper's evaluation, repeated", "", *_foreword(parts), ""]
    lines += ["## At a glance", "", *_summary(parts), ""]
    for part in parts:
        lines += [f"## {part.title}", "", *_part(part), ""]
    lines += ["## What differs from the paper", "", *_differences(), ""]
    return "\n".join(lines).rstrip() + "\n"


def pictures(parts: Sequence[Told]) -> Mapping[str, bytes]:
    """All SVG files that the page shows, by name."""
    told = [part.section for part in parts if part.section is not None]
    return {name: draw() for section in told for name, draw in section.pictures.items()}


def _foreword(parts: Sequence[Told]) -> Iterator[str]:
    taken = [part.taken for part in parts if part.taken is not None]
    yield (
        f"*The paper* is {published.CITATION}. Its evaluation ran on {published.NODES} machines. "
        f"`{COMMAND}` repeats it on the machine at hand, with a process for each node, adds what "
        "it left out, and writes this page: every figure of ours below was put there by it. "
        "[performance.md](performance.md) says how figures are taken, and "
        "[benchmarks.md](benchmarks.md) has more of them."
    )
    yield ""
    yield f"    {COMMAND}                        # everything, then this page"
    yield f"    {COMMAND} --only memory labels   # some parts again, the others as they were"
    yield f"    {COMMAND} --resume               # what has no result yet, after a Ctrl-C"
    yield f"    {COMMAND} --page-only            # this page again, from results in build/paper"
    yield f"    {COMMAND} --quick                # small sizes, kept in build/paper-quick"
    yield ""
    if any(one.quick for one in taken):
        yield "**Small sizes (`--quick`): these figures are good for nothing but a look.**"
        yield ""
    yield from _circumstances(taken)


def _circumstances(taken: Sequence[Taken]) -> Iterator[str]:
    if not taken:
        yield "Nothing has been measured yet."
        return
    machine = taken[0].machine
    yield f"- Machine: {_machine(machine)}"
    packages = ", ".join(f"{name} {number}" for name, number in machine.packages.items())
    yield f"- Software: {machine.python}, {packages}"
    whole = quantity(sum(one.took_s for one in taken) / 60, "min")
    yield f"- Run time: {whole} for {len(taken)} parts"
    if any(one.machine.load[0] > machine.cores for one in _first_of_runs(taken)):
        yield (
            "- **The machine was busy with other work**, as the load averages show: times are "
            "longer and further apart than on a quiet one. Sizes, counts and ratios suffer less."
        )
    for one in taken:
        where = (
            "" if _machine(one.machine) == _machine(machine) else f", on {_machine(one.machine)}"
        )
        yield (
            f"- `{one.part}`: begun {one.machine.started_at}, took {one.took_s:.0f} s; load "
            f"average {one.machine.load[0]:.1f} at the start, {one.load_at_end[0]:.1f} at the "
            f"end{where}"
        )


def _first_of_runs(taken: Sequence[Taken]) -> Iterator[Taken]:
    """Those at whose start the load was that of others: no other part had ended just before."""
    ended_at: datetime | None = None
    for one in sorted(taken, key=lambda one: one.machine.started_at):
        started_at = datetime.fromisoformat(one.machine.started_at)
        if ended_at is None or started_at - ended_at > PAUSE:
            yield one
        ended_at = started_at + timedelta(seconds=one.took_s)


def _machine(machine: Machine) -> str:
    return (
        f"{machine.cpu}, {machine.cores} cores, {quantity(machine.memory_bytes, 'B')} memory, "
        f"{machine.kernel}, {machine.disk}"
    )


def _summary(parts: Sequence[Told]) -> list[str]:
    rows = [
        (one.what, one.paper or "left out", one.here)
        for part in parts
        if part.section is not None
        for one in part.section.summary
    ]
    return table(("", "the paper", "here"), rows, left=3) if rows else ["Nothing yet."]


def _part(part: Told) -> Sequence[str]:
    if part.section is None:
        return [f"Not measured: `{COMMAND} --only {part.name}`"]
    return part.section.lines


def _differences() -> Iterator[str]:
    differences = (
        "**One machine.** Nodes are processes that share its cores, its memory and its disk; the "
        f"paper's {published.NODES} had machines of their own. So absolute times say little about "
        "a cluster, in either direction: nothing waits for a network here, and everything waits "
        "for the same cores. With more nodes than cores, more nodes cannot be faster on the "
        "clock; hence the scaling section counts work.",
        "**Loopback.** Messages between processes of one machine have no wire under them: no "
        "latency to speak of, no loss, and no limit but copying.",
        "**Hardware.** A decade lies between the machines. A figure that is smaller here than in "
        "the paper may owe that to its processor and not to its software.",
        "**Data.** The paper took the archive of the North American Mesoscale forecast. Here "
        "`galileo.generate.NamLike` makes it up: the same grid, features of the same kinds, values "
        "rounded as packed forecasts are, but smooth waves instead of weather. Fig. 6 and the cost "
        "against the size of the store use weather drawn at random, which is the hardest case for "
        "an index. Sizes of labels depend on the data more than anything else on this page.",
        "**Blocks.** Those whose freshness is taken are of 8 KB, 128 observations with one path, "
        "as a block of the paper has one; in the other parts a block is a single observation, so "
        "that a million of them fit the time and the disk. What is retrieved and cached are "
        "labels, whose size does not depend on the block's.",
        "**What was compared.** Fig. 7 compares a cluster with queries and one without, where the "
        "paper compares before and after: what a submission finds goes to the client and into no "
        "cache, so queries have to stand before blocks come. Table II has the queries "
        "of all intervals at the same time.",
        "**What a cache holds.** The paper clears it when it is retrieved and trusts the clocks of "
        "machines. Here an answer is kept until the next one acknowledges it, and carries a token "
        "that says what it was ([decision 0002](decisions/0002-one-write-path.md)); that costs "
        "what it costs in the figures above.",
        "**Spark** runs the cycles, as an embedded session in a process of its own on the same "
        "machine. It is warm before anything is timed.",
        "**Only what the paper states as numbers** is repeated here; its curves are not read off, "
        "and where we have no record of a number the table says so. Nothing of ours is adjusted "
        "towards it.",
    )
    for text in differences:
        yield f"- {text}"
