"""One run of a fault scenario: what it is given, what it counts, and what did not hold."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fault_injection.damage import Commits, observations, read_all
from fault_injection.ledger import Audit, Ledger
from galileo.storage.verify import verify


@dataclass(slots=True)
class Trial:
    """The fixture of every fault scenario.

    Attributes:
        directory: for files; empty, removed afterwards.
        rounds: how often the fault occurs; more where the scenario counts otherwise.
        random: of everything random.
        lasts_s: for how long rounds go on; 0: for `rounds`.
        counts: what happened and what was found, by name.
        complaints: what should have held and did not.
        figures: what was measured, with the unit in its name.
    """

    directory: Path
    rounds: int
    random: random.Random
    lasts_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _round: int = 0

    def say(self, text: str) -> None:
        """Shows progress."""
        print(f"[{time.monotonic() - self._began:5.0f} s] {text}", file=sys.stderr, flush=True)

    def expect(self, held: bool, complaint: str) -> None:
        """Notes a complaint where something did not hold; the scenario fails at its end."""
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

    def judge_at_rest(self, directory: Path, ledger: Ledger) -> None:
        """Judges the disk of a stopped node: sound, and with all that was acknowledged."""
        report = verify(directory)
        self.counts["merged files"] += len(list(directory.rglob("*.merged")))
        self.expect(report.ok, f"verify found {report.damages[:3]}")
        reading = read_all(directory)
        self.expect(not reading.refusals, f"reading was refused: {reading.refusals[:3]}")
        self.judge(ledger.compare(observations(reading)), "the end, read from the disk")

    def expect_same(self, whole: Commits, left: Commits, *, after: str) -> None:
        """Complains of commits that are other than those stored; some may be missing."""
        wrong = [
            place
            for place, (table, paths) in left.items()
            if place not in whole
            or not (table.equals(whole[place][0]) and paths.equals(whole[place][1]))
        ]
        self.counts["served wrongly"] += len(wrong)
        self.expect(not wrong, f"{after}: other than stored: {wrong[:5]}")

    def each_round(self) -> Iterator[int]:
        """Numbers from 1 to `rounds`, or for `lasts_s`; ends at the first complaint."""
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
