"""Checks runs from outside: compares results with the logs, by naive means (design, section 7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from delivery_audit import Answer, audited

from galileo.ccq.coordinator import Coordinator
from galileo.ccq.events import AnswerFetch
from galileo.ccq.model import CcqDefinition, Record
from galileo.cursor import CommitRange, Cursor
from simulator.logs import EPOCH_WALL, SKEW_MAX_S, Log, Path, keys_of_paths, scan, to_paths
from simulator.loop import demand


@dataclass(slots=True)
class _Seen:
    """The last observed cursors of one coordinator in one term."""

    evaluated: Cursor = field(default_factory=Cursor)
    retrieved: Cursor = field(default_factory=Cursor)


def is_over(ccq: CcqDefinition, *, now: float) -> bool:
    """Whether a CCQ may count as expired by the clock of some node."""
    return EPOCH_WALL + now >= ccq.expires_at - SKEW_MAX_S


class Checker:
    """Observes the logs and the machines, without changing them.

    Attributes:
        spares_readers: whether retention must not delete commits that no reader has fetched.
        agreement_s: for how long after a submission some nodes may not know of it.
        ends: the first end of each CCQ that was committed.
    """

    def __init__(
        self, logs: Mapping[int, Log], counters: Counter[str], *, has_cursors: bool
    ) -> None:
        self._logs = logs
        self._counters = counters
        self._has_cursors = has_cursors
        self.spares_readers = True
        self.agreement_s = 0.0
        self.ends: dict[str, Record] = {}
        self._seen: dict[tuple[str, int, str, int], _Seen] = {}
        self._terms: dict[str, dict[str, int]] = {}
        self._newest: dict[str, str] = {}
        self._acknowledged: dict[tuple[int, tuple[str, int]], int] = {}
        self._drops: list[tuple[float, int, int]] = []
        self._tokens: dict[str, Cursor] = {}
        self._submitted: dict[str, float] = {}

    def observe(self, node: str, epoch: int, led: Mapping[str, Coordinator]) -> None:
        """Check the cursors of all coordinators of a node after a step."""
        for ccq_id, one in led.items():
            self._observe_cursors((node, epoch, ccq_id, one.term), one)
        terms = {ccq_id: one.term for ccq_id, one in led.items()}
        if terms != self._terms.get(node):
            self._count(node, led)
            self._terms[node] = terms

    def restart(self, node: str) -> None:
        """Forget what `node` coordinated before its restart."""
        self._terms[node] = {}

    def _count(self, node: str, led: Mapping[str, Coordinator]) -> None:
        """Count changes of coordinators."""
        before = self._terms.get(node, {})
        for ccq_id, one in led.items():
            if before.get(ccq_id) == one.term:
                continue
            last = self._newest.get(ccq_id)
            if last is not None:
                self._counters["take-overs" if last != node else "resumptions"] += 1
                self._counters["successions by overflow"] += bool(one.fetches.holders)
            self._newest[ccq_id] = node
        lost = [i for i in before if i not in led]
        self._counters["coordinators deposed or ended"] += len(lost)

    def verify_end(self, record: Record, *, now: float) -> None:
        """Check that what has ended does not live again; an expired one may, until it is noticed.

        Its record is offered by a node that had slept while the end was forgotten.
        """
        if record.ended is not None:
            self.ends.setdefault(record.id, record)
        elif record.id in self.ends:
            demand(is_over(record.ccq, now=now), f"{self.ends[record.id]} lives again: {record}")

    def _observe_cursors(self, key: tuple[str, int, str, int], one: Coordinator) -> None:
        seen = self._seen.setdefault(key, _Seen())
        evaluated, retrieved = one.evaluated, one.retrieved
        if evaluated is seen.evaluated and retrieved is seen.retrieved:
            return
        demand(evaluated.covers(seen.evaluated), f"evaluated moved back in {key}")
        demand(retrieved.covers(seen.retrieved), f"retrieved moved back in {key}")
        demand(evaluated.covers(retrieved), f"retrieved passed evaluated in {key}")
        for partition, sequence in evaluated.items() if self._has_cursors else ():
            end = self._logs[partition].end
            demand(
                sequence <= end, f"{key} evaluated {partition}.{sequence}, its log ends at {end}"
            )
        seen.evaluated, seen.retrieved = evaluated, retrieved

    def verify_answer(self, ccq: CcqDefinition, answer: AnswerFetch, *, asked_with: Cursor) -> None:
        """Check that an answer has exactly the matches in (after, cursor], in commit order by
        partition, except for the ranges that it reports as gone.
        """
        if not self._has_cursors:
            return
        demand(answer.after == asked_with, f"{ccq.id}: the answer to another token")
        demand(answer.cursor.covers(answer.after), f"{ccq.id}: the cursor moved back")
        expected: list[Path] = []
        for partition, until in answer.cursor.items():
            demand(until <= self._logs[partition].end, f"{ccq.id}: a token past the log")
            after = answer.after[partition]
            expected += scan(ccq, self._logs[partition], after=after, until=until)
        self._verify_gone(ccq, answer)
        self._verify_clock(ccq, answer)
        self._counters["intervals stretched"] += answer.interval_s > ccq.interval_s
        demand(answer.interval_s >= ccq.interval_s, f"{ccq.id}: evaluated before it is due")
        expected = [path for path in expected if not is_gone(path, answer.gone)]
        # Sorting is stable: it puts partitions behind each other and changes nothing within one.
        got = sorted(to_paths(answer.labels), key=lambda path: path[0])
        demand(
            got == expected,
            f"{ccq.id}: expected {expected} after {answer.after} until {answer.cursor}, got {got}",
        )

    def verify_initial(
        self, ccq: CcqDefinition, paths: list[Path], reached: Cursor, *, dropped: Cursor, now: float
    ) -> None:
        """Check an initial result; `dropped` is as of the scan."""
        expected = [
            path
            for partition, until in reached.items()
            for path in scan(ccq, self._logs[partition], after=dropped[partition], until=until)
        ]
        demand(paths == expected, f"{ccq.id}: a wrong initial result")
        self._submitted.setdefault(ccq.id, now)

    def drop(self, partition: int, *, until: int, now: float) -> None:
        """Record that retention has deleted the beginning of a log."""
        self._drops.append((now, partition, until))

    def present(self, ccq_id: str, token: Cursor) -> None:
        """Record the token of a fetch, which acknowledges labels."""
        self._tokens[ccq_id] = self._tokens.get(ccq_id, Cursor()).join(token)

    def _verify_gone(self, ccq: CcqDefinition, answer: AnswerFetch) -> None:
        """Check that reported ranges lie in the answer and were deleted. If readers must not be
        passed, a reader had fetched them, or they were deleted before the CCQ was known.
        """
        self._counters["answers that name what is gone"] += bool(answer.gone)
        for one in answer.gone:
            partition = one.partition
            inside = answer.after[partition] < one.first <= one.last <= answer.cursor[partition]
            demand(inside, f"{ccq.id}: {one} lies outside the answer")
            dropped = self._logs[partition].dropped
            demand(one.last <= dropped, f"{ccq.id}: {one} is there, only {dropped} are dropped")
            if self.spares_readers:
                known_at = self._submitted.get(ccq.id, 0.0) + self.agreement_s
                before = [u for at, p, u in self._drops if p == partition and at <= known_at]
                has = max([self._tokens.get(ccq.id, Cursor())[partition], *before])
                demand(one.last <= has, f"{ccq.id}: retention passed its readers to {one}")

    def _verify_clock(self, ccq: CcqDefinition, answer: AnswerFetch) -> None:
        """The event clock is reported with windows, and is not ahead of what was committed."""
        demand(
            ccq.window is not None or answer.clock_us is None, f"{ccq.id}: a clock without windows"
        )
        if answer.clock_us is not None:
            newest_us = self.newest_us(answer.cursor)
            is_true = newest_us is not None and answer.clock_us <= newest_us
            demand(is_true, f"{ccq.id}: the event clock {answer.clock_us} is ahead of {newest_us}")

    def newest_us(self, cursor: Cursor | None = None) -> int | None:
        """The newest time bucket up to a cursor, or of all that is committed."""
        ends = {p: log.end for p, log in self._logs.items()} if cursor is None else cursor
        newest = (self._logs[p].newest_us(until) for p, until in ends.items())
        return max((one for one in newest if one is not None), default=None)

    def acknowledge(self, partition: int, *, batch: tuple[str, int], sequence: int) -> None:
        """Records that a producer got the acknowledgement of its batch."""
        self._acknowledged[partition, batch] = sequence

    def verify_ingest(self) -> None:
        """Check that acknowledged batches are stored, at the reported place, and once only."""
        found: dict[tuple[int, tuple[str, int]], list[int]] = {}
        for log in self._logs.values():
            for commit in log.commits:
                found.setdefault((log.partition, commit.batch), []).append(commit.sequence)
        for key, sequences in found.items():
            demand(len(sequences) == 1, f"batch {key} was stored {len(sequences)} times")
        for key, sequence in self._acknowledged.items():
            demand(found.get(key) == [sequence], f"batch {key} was acknowledged and is not there")

    def owed(self, ccq: CcqDefinition, gone: Iterable[CommitRange]) -> set[Path]:
        """The labels that a reader must have in the end, without those reported as gone."""
        gone = tuple(gone)
        return {path for path in self.truth(ccq) if not is_gone(path, gone)}

    def verify_delivered(
        self,
        reader: str,
        ccq: CcqDefinition,
        *,
        answers: Sequence[Answer],
        gone: Iterable[CommitRange],
    ) -> None:
        """Check a reader at the end, by the rules for real processes: every label has come once, in
        order, and no token was ahead of it.
        """
        got = np.concatenate([keys_of_paths(()), *(answer.labels for answer in answers)])
        owed = keys_of_paths(self.owed(ccq, gone))
        dropped = np.intersect1d(keys_of_paths(self.truth(ccq)), got)
        found = audited(answers, np.union1d(owed, dropped))
        # What tokens mean that are no cursors is not known here.
        wrong = {
            name: count
            for name, count in found.wrong.items()
            if self._has_cursors or name in ("missed", "repeated", "foreign")
        }
        demand(not wrong, f"{reader}: {wrong} of {found}")

    def truth(self, ccq: CcqDefinition) -> set[Path]:
        """All committed matches (invariant 1)."""
        return {p for log in self._logs.values() for p in scan(ccq, log, after=0, until=log.end)}


def is_gone(path: Path, gone: Iterable[CommitRange]) -> bool:
    """Whether a path lies in one of the ranges."""
    return any(one.partition == path[0] and one.first <= path[1] <= one.last for one in gone)
