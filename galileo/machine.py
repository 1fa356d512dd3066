"""The seam between deciding and doing.

Every distributed part that decides something is a `Machine`: events in, effects out. It does
no I/O, reads no clock, draws no random number and starts no task; time comes with each event.
One driver runs machines in production, one seeded simulator runs the same objects in tests.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

Event = TypeVar("Event", contravariant=True)
Effect = TypeVar("Effect")


class Machine(Protocol[Event, Effect]):
    def step(self, event: Event, now: float) -> list[Effect]:
        """Takes one event at `now` (monotonic seconds) and returns what is to be done."""
        ...

    def check(self) -> None:
        """Asserts the machine's invariants; called after every step in tests."""
        ...
