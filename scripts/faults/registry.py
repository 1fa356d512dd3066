"""What a scenario is, what it is handed, and what it says at the end."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fault_injection.ledger import Audit
from fault_injection.requirements import Need

Verdict = Literal["held", "broken", "skipped"]


@dataclass(slots=True)
class Trial:
    """One run of a scenario: what it is handed, and what it finds.

    Attributes:
        directory: for its files; empty, removed afterwards.
        rounds: how often the fault is to happen; more where the scenario counts otherwise.
        lasts_s: for how long rounds go on where a scenario is a lasting one; 0: for `rounds`.
        random: of everything random.
        say: shows progress.
        counts: what happened and what was found, by name.
        complaints: what should have held and did not, in words; with enough to repeat it.
        figures: what was measured, the unit in its name; of several runs the largest is told.
    """

    directory: Path
    rounds: int
    random: random.Random
    say: Callable[[str], None]
    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    lasts_s: float = 0.0
    _began: float = 0.0
    _round: int = 0

    def expect(self, held: bool, complaint: str) -> None:
        """Notes a complaint where something did not hold."""
        if not held:
            self.complaints.append(complaint)

    def note_longest(self, name: str, seconds: float) -> None:
        """Keeps the longest time of a name, in milliseconds."""
        self.counts[name] = max(self.counts[name], round(1_000 * seconds))

    def judge(self, audit: Audit, after: str) -> None:
        """Counts an audit, and complains where it is not clean."""
        self.counts["audits"] += 1
        for name in ("lost", "repeated", "altered", "foreign"):
            self.counts[name] += getattr(audit, name)
        for name in ("acknowledged", "found"):
            self.counts[name] = max(self.counts[name], getattr(audit, name))
        self.expect(audit.clean, f"after {after}: {audit}")

    def each_round(self) -> Iterator[int]:
        """Numbers from 1 to `rounds`, or as long as it is to last.

        Ends at the first complaint, so that it can be looked at.
        """
        self._began = time.monotonic()
        while self.share_done < 1.0 and not self.complaints:
            self._round += 1
            self.counts["rounds"] += 1
            yield self._round

    @property
    def share_done(self) -> float:
        """Of all rounds; from 0 to 1."""
        if self.lasts_s:
            return min(1.0, (time.monotonic() - self._began) / self.lasts_s)
        return self._round / self.rounds


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault and what must hold under it.

    Attributes:
        name: as `--only` takes it.
        does: what happens, and what must hold, in a sentence.
        needs: of the machine.
        rounds: where none are asked for.
        run: does it.
        is_lasting: its world may go on for minutes under one stream.
        row: of the table of faults that it belongs to.
    """

    name: str
    does: str
    needs: tuple[Need, ...]
    rounds: int
    run: Callable[[Trial], None]
    is_lasting: bool = False
    row: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scenario.

    Attributes:
        reason: why it was skipped.
        seed: that repeats it.
        load: processes that wanted a processor in the last five minutes; 0: not known.
    """

    name: str
    does: str
    verdict: Verdict
    seed: int
    took_s: float
    reason: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    row: str = ""
    load: float = 0.0
