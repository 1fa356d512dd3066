"""Work in pieces, so that it can be stopped between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from galileo.graph.runs import Run
from galileo.graph.scan import Task
from galileo.graph.sieve import Tally
from galileo.graph.stretches import Rows

Check: TypeAlias = Callable[[], None]
"""Called between pieces of work; raises to stop it."""


def unchecked() -> None:
    """The check of work that nobody stops."""


def found(
    tasks: Sequence[Task], *, check: Check = unchecked, tally: Tally | None = None
) -> Iterator[tuple[Run, Rows]]:
    """The rows that tasks find, run by run, as many at a time as suits gathering."""
    for task in tasks:
        check()
        for rows in task.portions(tally=tally):
            check()
            yield task.run, rows
