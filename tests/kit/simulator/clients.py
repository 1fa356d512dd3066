"""Clients of the simulated cluster: producers, readers that keep their tokens, and a forger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from delivery_audit import Answer

from galileo.ccq.dropped_ranges import ranges_between
from galileo.ccq.events import (
    AnswerFetch,
    ContinuousEffect,
    FetchRequested,
    RedirectFetch,
    RefuseFetch,
)
from galileo.ccq.model import CcqDefinition, Record
from galileo.cursor import EMPTY_CURSOR, CommitRange, Cursor
from galileo.errors import GalileoError
from galileo.model.windows import WindowChanges, WindowProgress, advance_windows
from galileo.wire import token
from simulator.checker import Checker, is_over
from simulator.logs import (
    Log,
    Path,
    bucket_us,
    keys_of_paths,
    scan,
    to_paths,
)
from simulator.loop import Loop, Violation, demand
from simulator.network import Network
from simulator.node import Node
from simulator.system_leader import SystemLeader
from simulator.variants import Variant
from simulator.windows import Windows

PATIENCE_S = 2.5
RETRY_S = 0.5
FETCH_WAIT_MAX_S = 1.5
"""For how long a fetch waits for news."""


class Service(Protocol):
    """The interface of the world for clients."""

    loop: Loop
    network: Network
    checker: Checker
    variant: Variant
    logs: dict[int, Log]
    is_calm: bool
    cancelled: set[str]
    dropped: set[str]
    system: SystemLeader

    def node(self, name: str) -> Node: ...

    def any_node(self) -> Node: ...

    def owner(self, partition: int) -> Node: ...

    def next_request(self) -> int: ...


class _Client:
    def __init__(self, name: str, world: Service) -> None:
        self.name = name
        self.world = world
        self.loop = world.loop

    def call(self, node: Node, ask: Callable[[], None]) -> None:
        self.world.network.send(self.name, node.name, lambda: node.receive(ask))

    def back(self, node: Node, act: Callable[[], None]) -> None:
        self.world.network.send(node.name, self.name, act)


class Producer(_Client):
    """Sends numbered batches, each until it is acknowledged."""

    def __init__(self, name: str, world: Service) -> None:
        super().__init__(name, world)
        self._batch = 0
        self.is_stopped = False

    def start(self) -> None:
        self.loop.after(self.loop.random.expovariate(2.5), self._next)

    def _next(self) -> None:
        if self.is_stopped:
            return
        self._batch += 1
        partition = self.loop.random.choice(list(self.world.logs))
        self.write(partition, batch=(self.name, self._batch), then=self.start)

    def write(self, partition: int, *, batch: tuple[str, int], then: Callable[[], None]) -> None:
        """Writes a batch of a few random values; goes on with `then` once it is durable."""
        count = self.loop.random.randint(1, 5)
        values = tuple(self.loop.random.randrange(30) for _ in range(count))
        done: list[int] = []

        def acknowledge(sequence: int) -> None:
            if not done:
                done.append(sequence)
                self.world.checker.acknowledge(partition, batch=batch, sequence=sequence)
                then()

        def send() -> None:
            if done:
                return
            node = self.world.owner(partition)

            def reply(sequence: int) -> None:
                self.back(node, lambda: acknowledge(sequence))

            self.call(node, lambda: node.write(partition, values, batch, reply))
            self.loop.after(RETRY_S, send)

        send()


class Reader(_Client):
    """Fetches for ever. Its stored state (token and paths, in one transaction) survives its
    crashes.

    Attributes:
        ccq: None for one that has not begun to read another's CCQ.
        delivered: the stored paths.
        answers: the stored answers.
        gone: ranges deleted by retention according to its answers, or before it began.
        ended: the kind of the final error.
        windows: its progress in the windows of its CCQ; None: it has none.
    """

    def __init__(self, name: str, world: Service, ccq: CcqDefinition) -> None:
        super().__init__(name, world)
        self.ccq = ccq
        self.token: str | None = None
        self.delivered: dict[Path, None] = {}
        self.answers: list[Answer] = []
        self.gone: list[CommitRange] = []
        self.ended = ""
        self.windows = None if ccq.window is None else Windows(ccq.window)
        self.answered: set[Cursor] = set()
        self._awaited: int | None = None
        self._target = ""
        self._followers: list[Callable[[], None]] = []

    def submit(self) -> None:
        """Submit the CCQ until it is accepted, then read it; again if its record is lost."""
        request = self._await(self.submit)
        node = self.world.any_node()

        def ask() -> None:
            initial = evaluate_initial(self.world, node, self.ccq)
            self.world.checker.present(self.ccq.id, initial.reached)

            def reply(outcomes: Sequence[Record | GalileoError]) -> None:
                self.back(node, lambda: take(outcomes[0], initial))

            node.place([(self.ccq, initial.reached)], reply)

        def take(outcome: Record | GalileoError, initial: Initial) -> None:
            if self._awaited == request:
                self._on_submitted(outcome, initial)

        self.call(node, ask)

    def begin(self, initial: Initial, coordinator: str) -> None:
        """Read a CCQ that was submitted for it, after its initial result."""
        self.world.system.acknowledged[self.ccq.id] = None
        self._on_begun(initial, coordinator)

    def give_up(self, error: GalileoError) -> None:
        """Stop: its CCQ was refused with a terminal error."""
        self._on_final(error.kind, error.message)

    def when_submitted(self, act: Callable[[], None]) -> None:
        self._followers.append(act)

    def follow(self, other: Reader, *, is_from_start: bool) -> None:
        """Read another reader's CCQ, from the start or from its position."""
        self.ccq = other.ccq
        self.token = token.encode(self.ccq.id, EMPTY_CURSOR) if is_from_start else other.token
        self.delivered = {} if is_from_start else dict(other.delivered)
        self.answers = [] if is_from_start else list(other.answers)
        self.gone = [] if is_from_start else list(other.gone)
        if other.windows is not None:
            fresh = Windows(other.windows.window)
            self.windows = fresh if is_from_start else other.windows.copy()
        self._fetch()

    def crash(self) -> None:
        """Lose all but the stored state, and continue after a while."""
        if self.token is not None and not self.ended:
            self.loop.counters["clients crashed"] += 1
            request = self._awaited = self.world.next_request()
            pause_s = self.loop.random.uniform(0.1, 2.0)
            self.loop.after(pause_s, lambda: self._retry(request, self._fetch))

    # --- inside -------------------------------------------------------------------------

    def _await(self, retry: Callable[[], None]) -> int:
        """A new request number; `retry` runs if its answer does not come in time."""
        request = self._awaited = self.world.next_request()
        self.loop.after(PATIENCE_S, lambda: self._retry(request, retry))
        return request

    def _retry(self, request: int, retry: Callable[[], None]) -> None:
        if self._awaited == request:
            self._target = self.world.any_node().name
            retry()

    def _pause(self, seconds: float) -> None:
        request = self._awaited = self.world.next_request()
        self.loop.after(seconds, lambda: self._retry_here(request))

    def _retry_here(self, request: int) -> None:
        if self._awaited == request:
            self._fetch()

    def _on_submitted(self, outcome: Record | GalileoError, initial: Initial) -> None:
        if isinstance(outcome, Record):
            if self.token is None:
                self.begin(initial, outcome.coordinator)
                return
            self.loop.counters["lost queries submitted again"] += 1
            self._target = outcome.coordinator
            self._fetch()
            return
        self.loop.counters["submissions refused"] += 1
        if outcome.kind in ("unavailable", "overloaded"):
            request = self._awaited = self.world.next_request()
            self.loop.after(RETRY_S, lambda: self._retry(request, self.submit))
        else:
            self.give_up(outcome)

    def _on_begun(self, initial: Initial, coordinator: str) -> None:
        paths, reached, dropped = initial.paths, initial.reached, initial.dropped
        self.world.checker.verify_initial(
            self.ccq, paths, reached, dropped=dropped, now=self.loop.now
        )
        news = self._folded(WindowProgress(), paths, clock_us=initial.clock_us, more=False)
        self._store(paths, reached, ranges_between(EMPTY_CURSOR, dropped), news)
        self._target = coordinator
        for act in self._followers:
            act()
        self._fetch()

    def _fetch(self) -> None:
        assert self.token is not None
        request, asked_at = self._await(self._fetch), self.loop.now
        cursor = token.decode(self.token, ccq_id=self.ccq.id)
        self.world.checker.present(self.ccq.id, cursor)
        self._request(request, cursor, lambda effect: self._on_answer(request, effect, asked_at))

    def _request(
        self, request: int, cursor: Cursor, take: Callable[[ContinuousEffect], None]
    ) -> None:
        node = self.world.node(self._target) if self._target else self.world.any_node()
        wait_s = self.loop.random.choice((None, 0.5, FETCH_WAIT_MAX_S))
        labels_max = self.loop.random.choice((3, 8, 1000))

        def ask() -> None:
            until = None if wait_s is None else node.now_plus(wait_s)
            event = FetchRequested(
                request, self.ccq.id, cursor, until, labels_max, self._until_clock_us()
            )
            node.fetch(event, lambda effect: self.back(node, lambda: take(effect)))

        self.call(node, ask)

    def _on_answer(self, request: int, effect: ContinuousEffect, asked_at: float) -> None:
        if self._awaited != request and not self.world.variant.conduct.takes_stale_answers:
            self.loop.counters["answers ignored"] += 1
            return
        if isinstance(effect, RedirectFetch):
            self.loop.counters["redirects"] += 1
            self._target = effect.coordinator
            self._pause(self.loop.random.uniform(0.02, 0.2))
        elif isinstance(effect, RefuseFetch):
            self._on_refused(effect, asked_at)
        else:
            assert isinstance(effect, AnswerFetch)
            self._on_labels(effect)

    def _on_labels(self, answer: AnswerFetch) -> None:
        assert self.token is not None
        cursor = token.decode(self.token, ccq_id=self.ccq.id)
        self.world.checker.verify_answer(self.ccq, answer, asked_with=cursor)
        if answer.labels is not None:
            self.loop.counters["answers served again"] += answer.after in self.answered
            self.answered.add(answer.after)
        paths = to_paths(answer.labels)
        news = self._folded(self._progress(), paths, clock_us=answer.clock_us, more=answer.more)
        if self.world.variant.conduct.stores_token_first:
            self.token = token.encode(self.ccq.id, answer.cursor)
        if not self.world.is_calm and self.loop.chance(0.03):
            self.crash()  # The answer has come and is not stored: it has to come again.
            return
        self._store(paths, answer.cursor, answer.gone, news)
        if answer.more:
            self.loop.counters["answers cut"] += 1
            self._fetch()
        else:
            self._pause(self.loop.random.uniform(0.05, 0.4))

    def _on_refused(self, effect: RefuseFetch, asked_at: float) -> None:
        kind = effect.failure.kind
        self.loop.counters["fetches refused"] += 1
        if kind in ("unavailable", "overloaded"):
            self._target = self.world.any_node().name
            after_s: Any = dict(effect.failure.details).get("after_s", 0.2)
            self._pause(float(after_s))
            return
        if kind == "unknown_ccq" and self.world.system.may_lack(self.ccq.id, since=asked_at):
            self.submit()
            return
        self._on_final(kind, effect.failure.message)

    def _on_final(self, kind: str, message: str) -> None:
        """Check that the CCQ really expired, was cancelled or was dropped."""
        has_expired = is_over(self.ccq, now=self.loop.now)
        is_forgotten = has_expired and self.ccq.id in self.world.checker.ends
        allowed = {
            "ccq_expired": has_expired,
            "ccq_cancelled": self.ccq.id in self.world.cancelled,
            "ccq_dropped": self.ccq.dataset in self.world.dropped,
            "unknown_ccq": is_forgotten,
        }
        demand(allowed.get(kind, False), f"{self.name}: {message}")
        self.ended, self._awaited = kind, None

    def _progress(self) -> WindowProgress:
        """The progress of windows in its token."""
        return (
            token.read(self.token, ccq_id=self.ccq.id).progress if self.token else WindowProgress()
        )

    def _until_clock_us(self) -> int | None:
        window = self.ccq.window
        return None if window is None else window.next_close_us(self._progress())

    def _folded(
        self, progress: WindowProgress, paths: list[Path], *, clock_us: int | None, more: bool
    ) -> tuple[WindowProgress, WindowChanges | None]:
        """Apply an answer to the windows, as a node does."""
        if self.ccq.window is None:
            return progress, None
        buckets = np.array([bucket_us(path) for path in paths], dtype=np.int64)
        return advance_windows(
            self.ccq.window, progress, buckets=buckets, clock_us=clock_us, more=more
        )

    def _store(
        self,
        paths: list[Path],
        cursor: Cursor,
        gone: Iterable[CommitRange],
        news: tuple[WindowProgress, WindowChanges | None],
    ) -> None:
        self.gone += gone
        progress, changes = news
        if self.windows is not None and changes is not None:
            closed, reopened = self.windows.take(changes, paths)
            self.loop.counters["windows closed"] += closed
            self.loop.counters["windows reopened"] += reopened
        for path in paths:
            if path in self.delivered:
                raise Violation(f"{self.name}: {path} was delivered twice")
            self.delivered[path] = None
        self.answers.append(Answer(keys_of_paths(paths), cursor, cursor))
        forgets = self.world.variant.conduct.forgets_windows
        kept = WindowProgress() if forgets else progress
        self.token = token.Position(cursor, kept).encode(self.ccq.id)

    def forge(self) -> None:
        """Fetch with a token for commits that do not exist."""
        if self.token is None or self.ended:
            return
        cursor = token.decode(self.token, ccq_id=self.ccq.id)
        partition = self.loop.random.choice(list(self.world.logs))
        end = self.world.logs[partition].end + self.loop.random.randint(40, 60)
        forged = cursor.join({partition: end})

        def judge(effect: ContinuousEffect) -> None:
            is_taken = isinstance(effect, AnswerFetch) and partition not in effect.missing
            demand(not is_taken, f"{self.name}: a token for {partition}.{end} was believed")
            is_refused = isinstance(effect, RefuseFetch) and effect.failure.kind == "invalid_token"
            self.loop.counters["forged tokens refused"] += is_refused

        self._request(self.world.next_request(), forged, judge)

    def cancel(self) -> None:
        """Cancel the CCQ at any node, until one confirms; then submit it once more, in vain."""
        self.world.cancelled.add(self.ccq.id)
        node, done = self.world.any_node(), list[bool]()

        def take(outcome: Record | GalileoError) -> None:
            is_unknown = isinstance(outcome, GalileoError) and outcome.kind == "unknown_ccq"
            if not done and (isinstance(outcome, Record) or is_unknown):
                done.append(True)
                if isinstance(outcome, Record):
                    self._submit_in_vain()

        def ask() -> None:
            reply = partial(self.back, node)
            node.end(self.ccq.id, "cancelled", lambda one: reply(lambda: take(one)))

        def again() -> None:
            if not done:
                self.cancel()

        self.call(node, ask)
        self.loop.after(PATIENCE_S, again)

    def _submit_in_vain(self) -> None:
        """Submit a CCQ again that was cancelled."""
        node = self.world.any_node()

        def take(outcomes: Sequence[Record | GalileoError]) -> None:
            is_placed = isinstance(outcomes[0], Record) and self.ccq.id in self.world.checker.ends
            demand(not is_placed, f"{self.ccq.id} was cancelled, and is accepted again")

        def ask() -> None:
            node.place([(self.ccq, EMPTY_CURSOR)], lambda got: self.back(node, lambda: take(got)))

        self.call(node, ask)


@dataclass(frozen=True, slots=True)
class Initial:
    """The first result of a CCQ: matches up to `reached`, without deleted ones, and the event
    clock.
    """

    paths: list[Path]
    reached: Cursor
    dropped: Cursor
    clock_us: int | None


NOTHING_EVALUATED = Initial([], EMPTY_CURSOR, EMPTY_CURSOR, None)
"""The initial result of a CCQ whose first cycle finds what is stored."""


def evaluate_initial(world: Service, node: Node, ccq: CcqDefinition) -> Initial:
    """The initial result, from the partitions that answer to `node`."""
    paths: list[Path] = []
    reached, dropped = {}, {}
    for partition in world.logs:
        log = node.reachable(partition)
        if log is not None:
            reached[partition], dropped[partition] = log.end, log.dropped
            paths += scan(ccq, log, after=log.dropped, until=log.end)
    clock = node.machine.state.clock_of(ccq.dataset)
    return Initial(paths, Cursor(reached), Cursor(dropped), clock.at(Cursor(reached)))
