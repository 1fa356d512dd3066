"""The writer of a dataset's logs: what is done to one log is done in order.

Commits of producers, frames of leaders, truncations and publications of one partition wait in one
queue, and a thread takes from all partitions what can be written together. A commit that is durable
here is not published yet: its producer waits until the machine of the partition says that a
majority has it.

Before frames of a leader are written, the machine takes them in, in the event loop (`begin`). So it
never leads, votes or joins with frames in its log that it does not know.

A leader that is alone in its set needs no other member, so the writer commits without its machine:
it appends, syncs and publishes in one step (`LogOwner.alone`). The machine learns of these commits
before anything else happens to it. For that it clears `alone`, and has each writer pass a barrier:
what a writer does afterwards, it does with the machine.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol, TypeAlias

from galileo import spans
from galileo.errors import CorruptData, GalileoError, Overloaded, PartitionMoved, Unavailable
from galileo.node.shard import Results, Shard, partition_moved
from galileo.replication.values import Epochs
from galileo.storage.commits import Commit, Committed, FrameGroup
from galileo.storage.frame import Buffer

log = logging.getLogger(__name__)

Outcome: TypeAlias = Committed | GalileoError
Done: TypeAlias = Callable[[Outcome], None]
Errors: TypeAlias = "dict[int, GalileoError | None]"
"""What could not be done, by partition; None where all was."""


class LogOwner(Protocol):
    """The machines of the partitions, as a writer sees them; its methods run in the event loop."""

    loop: asyncio.AbstractEventLoop
    terms: Mapping[int, int]
    """The term of each partition in which this node takes commits; replaced, never changed."""
    alone: frozenset[int]
    """The partitions in whose sets this node is alone; replaced, never changed. All have terms."""

    def holds_lease(self, partition: int) -> bool:
        """Whether this node leads a partition and no other can have committed since; any thread."""
        ...

    def follows(self, partition: int) -> bool:
        """Whether this node's log goes on from that of the leader that it knows; any thread."""
        ...

    def is_lost(self, partition: int) -> bool:
        """Whether the only copy of a partition was in a directory that this node has lost."""
        ...

    def begin(self, dataset: str, groups: Mapping[int, FrameGroup]) -> frozenset[int]:
        """Steps the machines with frames to be written; returns the partitions that refuse."""
        ...

    def has_others(self, partition: int) -> bool:
        """Whether other members vote, so that they have all that is committed; any thread."""
        ...

    def on_damage(self, dataset: str, partition: int, error: CorruptData) -> None:
        """Begins a log anew of which stored bytes are damaged."""
        ...

    def on_written(self, reports: Sequence[WriteReport]) -> None:
        """Takes what was done."""
        ...


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What was done to a log.

    Attributes:
        cuts: the number of truncations that were done.
        end: up to where the log is durable.
        published: up to where readers see it.
        error: why something could not be done.
    """

    partition: int
    dataset: str
    cuts: int
    end: int
    published: int
    error: GalileoError | None = None


@dataclass(slots=True)
class _Batch:
    """The parts of a producer's batch that are not done yet."""

    left: int
    results: Results
    done: Future[Results] = field(default_factory=Future)
    lock: threading.Lock = field(default_factory=threading.Lock)
    span: spans.Span | None = None

    def settle(self, partition: int, outcome: Outcome) -> None:
        with self.lock:
            self.results[partition] = outcome
            self.left -= 1
            is_over = self.left == 0
        if is_over:
            self.end()

    def end(self) -> None:
        if self.span is not None:
            errors = [one for one in self.results.values() if isinstance(one, Exception)]
            self.span.end(error=type(errors[0]).__name__ if errors else "")
        if self.done.set_running_or_notify_cancel():
            self.done.set_result(self.results)


@dataclass(frozen=True, slots=True)
class _Store:
    """A commit of a producer."""

    commit: Commit
    done: Done


@dataclass(frozen=True, slots=True)
class _Write:
    """Frames of a leader up to `epochs.end`, one behind the other."""

    epochs: Epochs
    frames: Buffer


@dataclass(frozen=True, slots=True)
class _Truncate:
    end: int


@dataclass(frozen=True, slots=True)
class _Restart:
    """Begins the log anew, with the leader's record of what was dropped."""

    log_start: bytes


@dataclass(frozen=True, slots=True)
class _Drop:
    until: int


@dataclass(frozen=True, slots=True)
class _Publish:
    until: int


@dataclass(frozen=True, slots=True)
class _Refuse:
    """Ends the wait of all producers."""

    error: GalileoError


@dataclass(frozen=True, slots=True)
class _Barrier:
    """Says in the event loop where the log ends, when all steps before are done."""

    passed: Callable[[int], None]


def _is_alone(step: _Step) -> bool:
    """Whether a step is not done with the one before: a truncation, or frames after a jump."""
    return isinstance(step, _Truncate) or (
        isinstance(step, _Write) and bool(step.epochs.forks.pairs)
    )


_Step: TypeAlias = _Store | _Write | _Truncate | _Restart | _Drop | _Publish | _Refuse | _Barrier
_Parts: TypeAlias = Mapping[int, Sequence[_Step]]
"""Steps of one kind, by partition."""


@dataclass(slots=True)
class _LogQueue:
    """The steps of one partition, and the producers that wait for a publication.

    Attributes:
        asked, cuts: truncations that were asked for, and done.
        unpublished: what is durable here, in sequence.
    """

    steps: deque[_Step] = field(default_factory=deque)
    asked: int = 0
    cuts: int = 0
    unpublished: deque[tuple[int, Outcome, Done]] = field(default_factory=deque)


class LogWriter:
    """Writes the logs of one dataset; thread-safe.

    Args:
        shard: of the dataset.
        machines: of all partitions.
        open_journal: makes the journal of a partition; called in a thread.
        restart_journal: makes it anew, with the leader's record of what was dropped.
        executor: whose threads write, one for each dataset at a time.
        syncing: whose threads write to several partitions at the same time.
        waiting_max: commits of one partition that may wait.
    """

    def __init__(
        self,
        shard: Shard,
        *,
        machines: LogOwner,
        open_journal: Callable[[int], None],
        restart_journal: Callable[[int, bytes], None],
        executor: Executor,
        syncing: Executor,
        waiting_max: int,
    ) -> None:
        self._shard = shard
        self._machines = machines
        self._open_journal = open_journal
        self._restart_journal = restart_journal
        self._executor = executor
        self._syncing = syncing
        self._waiting_max = waiting_max
        self._lock = threading.Lock()
        self._queues: dict[int, _LogQueue] = {}
        self._waiting = Counter[int]()
        self._has_steps: set[int] = set()
        self._working: Future[None] | None = None

    # --- producers -----------------------------------------------------------------------------

    @property
    def waiting(self) -> dict[int, int]:
        """The number of commits that wait, by partition that was written to."""
        with self._lock:
            return dict(self._waiting)

    def submit(
        self, commits: Mapping[int, Commit], refused: Results | None = None
    ) -> Future[Results]:
        """Submits the parts of a batch, with their paths, by partition.

        Args:
            commits: the parts.
            refused: the results of other parts of the batch.

        Returns:
            All results, when what was accepted is committed. Errors are results too: those of
            `Shard.append`, `Overloaded` where too many commits wait already, and `PartitionMoved`
            where this node leads the partition no more; whether the part was stored is not known
            then, and the same batch can be sent again.
        """
        batch = _Batch(len(commits), dict(refused or {}))
        batch.span = spans.begun("append", partitions=len(commits)) if commits else None
        if not commits:
            batch.end()
            return batch.done
        for partition, commit in commits.items():
            if not self._admit(partition, _Store(commit, self._settling(partition, batch))):
                batch.settle(partition, self._overloaded(partition))
        return batch.done

    def _admit(self, partition: int, step: _Store) -> bool:
        with self._lock:
            if self._waiting[partition] >= self._waiting_max:
                return False
            self._waiting[partition] += 1
            self._queue(partition).steps.append(step)
            self._work_on(partition)
            return True

    def _settling(self, partition: int, batch: _Batch) -> Done:
        def settle(outcome: Outcome) -> None:
            # An unexpected error ends all steps of its kind, some of which are done (`_try`).
            if partition in batch.results:
                return
            with self._lock:
                self._waiting[partition] -= 1
            batch.settle(partition, outcome)

        return settle

    def _overloaded(self, partition: int) -> Overloaded:
        return Overloaded(
            f"{self._waiting_max} commits wait for partition {partition} already; try again in a "
            "moment",
            after_s=0.2,
            partition=partition,
            bound=self._waiting_max,
        )

    async def drained(self) -> None:
        """Returns when nothing is being done."""
        while (working := self._working) is not None:
            await asyncio.wait([asyncio.wrap_future(working)])

    # --- the machines --------------------------------------------------------------------------

    def cuts_asked(self, partition: int) -> int:
        """How many truncations of a log were asked for."""
        with self._lock:
            return self._queue(partition).asked

    def has_nothing_to_do(self, partition: int) -> bool:
        with self._lock:
            return partition not in self._has_steps

    def write(self, partition: int, epochs: Epochs, frames: Buffer) -> None:
        """Writes those of a leader's frames that are not there yet."""
        self._append(partition, _Write(epochs, frames))

    def truncate(self, partition: int, end: int) -> None:
        with self._lock:
            self._queue(partition).asked += 1
        self._append(partition, _Truncate(end))

    def restart(self, partition: int, log_start: bytes) -> None:
        """Begins a log anew, with the leader's record of what was dropped."""
        with self._lock:
            self._queue(partition).asked += 1
        self._append(partition, _Restart(log_start))

    def drop(self, partition: int, until: int) -> None:
        """Drops whole files up to a sequence, as the leader has."""
        self._append(partition, _Drop(until))

    def publish(self, partition: int, until: int) -> None:
        self._append(partition, _Publish(until))

    def pass_barrier(self, partition: int, passed: Callable[[int], None]) -> None:
        """Calls `passed` in the event loop with the end of a log, after the steps before."""
        self._append(partition, _Barrier(passed))

    def refuse(self, partition: int, error: GalileoError) -> None:
        """Ends the wait of the producers of a partition, after the steps before."""
        self._append(partition, _Refuse(error))

    def _append(self, partition: int, step: _Step) -> None:
        with self._lock:
            self._queue(partition).steps.append(step)
            self._work_on(partition)

    def _queue(self, partition: int) -> _LogQueue:
        return self._queues.setdefault(partition, _LogQueue())

    def _work_on(self, partition: int) -> None:
        self._has_steps.add(partition)
        if self._working is None:
            self._working = self._executor.submit(self._work)

    # --- the thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._lock:
                self._has_steps = {p for p in self._has_steps if self._queues[p].steps}
                heads = {p: self._take(self._queues[p].steps) for p in self._has_steps}
                if not heads:
                    self._working = None
                    break
            self._do(heads)
        if self._shard.wants_maintenance:
            self._executor.submit(self._maintain)

    @staticmethod
    def _take(steps: deque[_Step]) -> list[_Step]:
        """The first steps of one kind."""
        kind, taken = type(steps[0]), [steps.popleft()]
        while steps and type(steps[0]) is kind and not _is_alone(steps[0]):
            taken.append(steps.popleft())
        return taken

    def _do(self, heads: Mapping[int, Sequence[_Step]]) -> None:
        """Does the first steps of each partition, the same ones of all together."""
        of_kind: dict[type, dict[int, Sequence[_Step]]] = {}
        for partition, steps in heads.items():
            of_kind.setdefault(type(steps[0]), {})[partition] = steps
        acts = {
            _Refuse: self._refuse,
            _Barrier: self._pass_barriers,
            _Truncate: self._truncate,
            _Restart: self._restart,
            _Drop: self._drop,
            _Publish: self._publish,
            _Store: self._store,
            _Write: self._write,
        }
        for kind, act in acts.items():
            if kind in of_kind:
                self._report(self._try(act, of_kind[kind]))

    def _try(self, act: Callable[[_Parts], Errors], parts: _Parts) -> Errors:
        """The errors of a kind of steps; after an unexpected one the machines begin again."""
        try:
            return act(parts)
        except Exception as raised:
            log.exception("writing logs failed")
            error = raised if isinstance(raised, GalileoError) else Unavailable(repr(raised))
            for partition, steps in parts.items():
                for step in steps:
                    if isinstance(step, _Store):
                        step.done(error)
                self._end_waits(partition, error)
            return dict.fromkeys(parts, error)

    def _store(self, parts: _Parts) -> Errors:
        """Commits, or appends commits whose producers wait for the publication."""
        # Read for each group: if `alone` changes meanwhile, the barrier is behind this group. A
        # partition that is alone has a term, so `alone` is read first.
        alone, terms = self._machines.alone, self._machines.terms
        stores = {p: [s for s in steps if isinstance(s, _Store)] for p, steps in parts.items()}
        journals = self._shard.journals
        for partition in [p for p in stores if p not in terms or p not in journals]:
            for store in stores.pop(partition):
                store.done(partition_moved([partition]))
        self._commit({p: stores.pop(p) for p in list(stores) if p in alone}, terms)
        return self._append_commits(stores, terms) if stores else {}

    def _commit(self, stores: Mapping[int, Sequence[_Store]], terms: Mapping[int, int]) -> None:
        """Commits where this node is alone.

        Frames that are still pending became durable before it was alone.
        """
        if not stores:
            return
        journals = self._shard.journals
        pending = {
            p: end for p in stores if (end := journals[p].end_sequence) > journals[p].last_sequence
        }
        if pending:
            self._publish_until(pending)
        commits = {p: [store.commit for store in of_log] for p, of_log in stores.items()}
        results = self._shard.commit(commits, terms=terms, executor=self._syncing)
        for partition, outcomes in results.items():
            for store, outcome in zip(stores[partition], outcomes, strict=True):
                store.done(outcome)

    def _append_commits(
        self, stores: Mapping[int, Sequence[_Store]], terms: Mapping[int, int]
    ) -> Errors:
        commits = {p: [store.commit for store in of_log] for p, of_log in stores.items()}
        appendings = self._shard.append(
            commits,
            terms={p: terms[p] for p in commits},
            begin=self._begin,
            executor=self._syncing,
        )
        for partition, appending in appendings.items():
            for store, outcome in zip(stores[partition], appending.results, strict=True):
                if isinstance(outcome, GalileoError):
                    store.done(outcome)
                else:
                    self._wait(partition, outcome, store.done)
        # Where the machine refused, nothing was written, and it need not begin again.
        return {
            partition: appending.error
            for partition, appending in appendings.items()
            if not isinstance(appending.error, PartitionMoved)
        }

    def _begin(self, groups: Mapping[int, FrameGroup]) -> frozenset[int]:
        """Steps the machines with new frames, and waits for their answer."""
        dataset = self._shard.schema.key
        return self._in_loop(lambda: self._machines.begin(dataset, groups))

    def _in_loop(self, call: Callable[[], frozenset[int]]) -> frozenset[int]:
        answer: Future[frozenset[int]] = Future()

        def run() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

        self._machines.loop.call_soon_threadsafe(run)
        return answer.result()

    def _wait(self, partition: int, outcome: Committed, done: Done) -> None:
        # A batch that is repeated may be published already; then no publication follows.
        if outcome.sequence <= self._shard.published_sequence(partition):
            done(outcome)
        else:
            # A repeated batch has an earlier sequence than others that wait.
            waiting = self._queues[partition].unpublished
            insort(waiting, (outcome.sequence, outcome, done), key=itemgetter(0))

    def _write(self, parts: _Parts) -> Errors:
        errors: Errors = {}
        for partition in parts.keys() - self._shard.journals.keys():
            try:
                self._open_journal(partition)
            except GalileoError as error:
                errors[partition] = error
        frames = {
            partition: [(step.epochs, step.frames) for step in steps if isinstance(step, _Write)]
            for partition, steps in parts.items()
            if partition not in errors
        }
        return errors | self._shard.append_frames(frames, executor=self._syncing)

    def _truncate(self, parts: _Parts) -> Errors:
        errors: Errors = {}
        for partition, steps in parts.items():
            queue, errors[partition] = self._queues[partition], None
            for step in steps:
                assert isinstance(step, _Truncate)
                # A later leader has other frames here, maybe of the same batches: a producer that
                # sends its batch again learns it.
                while queue.unpublished and queue.unpublished[-1][0] > step.end:
                    queue.unpublished.pop()[2](partition_moved([partition]))
                try:
                    self._shard.truncate(partition, step.end)
                except GalileoError as error:
                    errors[partition] = error
                queue.cuts += 1
        return errors

    def _restart(self, parts: _Parts) -> Errors:
        errors: Errors = {}
        for partition, steps in parts.items():
            step = steps[-1]
            assert isinstance(step, _Restart)
            try:
                self._restart_journal(partition, step.log_start)
                errors[partition] = None
            except GalileoError as error:
                errors[partition] = error
            self._queues[partition].cuts += len(steps)
        return errors

    def _drop(self, parts: _Parts) -> Errors:
        """Drops files; if the disk refuses, a later message of the leader repeats it."""
        for partition, steps in parts.items():
            step = steps[-1]
            assert isinstance(step, _Drop)
            if partition in self._shard.journals:
                try:
                    self._shard.drop(partition, step.until)
                except (OSError, GalileoError) as error:
                    log.warning("files of partition %d cannot be dropped: %s", partition, error)
        return {}

    def _publish(self, parts: _Parts) -> Errors:
        until = {
            partition: max(step.until for step in steps if isinstance(step, _Publish))
            for partition, steps in parts.items()
            if partition in self._shard.journals
        }
        self._publish_until(until)
        return dict.fromkeys(until)

    def _publish_until(self, until: Mapping[int, int]) -> None:
        self._shard.publish(until)
        for partition in until:
            waiting = self._queues[partition].unpublished
            published = self._shard.published_sequence(partition)
            while waiting and waiting[0][0] <= published:
                _, outcome, done = waiting.popleft()
                done(outcome)

    def _pass_barriers(self, parts: _Parts) -> Errors:
        for partition, steps in parts.items():
            journal = self._shard.journals.get(partition)
            end = 0 if journal is None else journal.end_sequence
            for step in steps:
                assert isinstance(step, _Barrier)
                self._machines.loop.call_soon_threadsafe(step.passed, end)
        return {}

    def _refuse(self, parts: _Parts) -> Errors:
        for partition, steps in parts.items():
            for step in steps:
                assert isinstance(step, _Refuse)
                self._end_waits(partition, step.error)
        return {}

    def _end_waits(self, partition: int, error: GalileoError) -> None:
        waiting = self._queues[partition].unpublished
        while waiting:
            waiting.popleft()[2](error)

    def _report(self, errors: Errors) -> None:
        reports = []
        for partition, error in errors.items():
            journal, queue = self._shard.journals.get(partition), self._queues[partition]
            # This node has left the set meanwhile, and the journal was closed.
            if journal is None and error is None:
                continue
            reports.append(
                WriteReport(
                    partition,
                    self._shard.schema.key,
                    queue.cuts,
                    end=0 if journal is None else journal.end_sequence,
                    published=0 if journal is None else self._shard.published_sequence(partition),
                    error=error,
                )
            )
        if reports:
            self._machines.loop.call_soon_threadsafe(self._machines.on_written, reports)

    def _maintain(self) -> None:
        try:
            self._shard.maintain()
        except Exception:
            log.exception("merging runs of a graph failed")
