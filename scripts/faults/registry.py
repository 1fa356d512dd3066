"""What a scenario is, what it is handed, and what it says at the end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from galileo.testing.faults.ledger import Audit
from galileo.testing.faults.needs import Need

Verdict = Literal["held", "broken", "skipped"]


@dataclass(slots=True)
class Trial:
    """One run of a scenario: what it is handed, and what it finds.

    Attributes:
        directory: for its files; empty, removed afterwards.
        rounds: how often the fault is to happen; more where the scenario counts otherwise.
        random: of everything random.
        say: shows progress.
        counts: what happened and what was found, by name.
        complaints: what should have held and did not, in words; with enough to repeat it.
    """

    directory: Path
    rounds: int
    random: random.Random
    say: Callable[[str], None]
    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def expect(self, held: bool, complaint: str) -> None:
        """Notes a complaint where something did not hold."""
        if not held:
            self.complaints.append(complaint)

    def judge(self, audit: Audit, after: str) -> None:
        """Counts an audit, and complains where it is not clean."""
        self.counts["audits"] += 1
        for name in ("lost", "repeated", "altered", "foreign"):
            self.counts[name] += getattr(audit, name)
        for name in ("acknowledged", "found"):
            self.counts[name] = max(self.counts[name], getattr(audit, name))
        self.expect(audit.clean, f"after {after}: {audit}")

    def each_round(self) -> Iterator[int]:
        """Numbers from 1 to `rounds`; ends at the first complaint, so that it can be looked at."""
        for number in range(1, self.rounds + 1):
            if self.complaints:
                return
            self.counts["rounds"] += 1
            yield number


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault and what must hold under it.

    Attributes:
        name: as `--only` takes it.
        does: what happens, and what must hold, in a sentence.
        needs: of the machine.
        rounds: where none are asked for.
        run: does it.
    """

    name: str
    does: str
    needs: tuple[Need, ...]
    rounds: int
    run: Callable[[Trial], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scenario.

    Attributes:
        reason: why it was skipped.
        seed: that repeats it.
    """

    name: str
    does: str
    verdict: Verdict
    seed: int
    took_s: float
    reason: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()
