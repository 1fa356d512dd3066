"""One election of a coordinator (paper, IV.B), at submission and failover.

Theory of operation. Nodes are polled in rounds. When all nodes of a round have answered, or after
`poll_timeout_s`, the suitable ones among all answers are offered the duty in the order of their
rank, one at a time; an offer that is refused or not accepted within `appoint_timeout_s` goes to the
next. If no suitable node is left, the next round is polled. After the last round, the unsuitable
nodes get offers in the order of rank: the least loaded accepts. An election with `only_suitable`
fails instead.

A first round of a few nodes drawn by chance spreads duties nearly as evenly as a poll of all nodes
(Mitzenmacher, "The power of two choices in randomized load balancing", 2001). Elections that run at
the same time would all choose the node that was the least loaded when it answered, so `assigned`
counts what was offered meanwhile. Which polls are sent, and which are answered from what is known
already, the caller decides (`galileo.election.peer_usage`).

States: polling a round, offering to a node, over (decided or failed). Invariants: no node is polled
or offered twice; at most `offers_max` offers.

The election does not make a coordinator unique, terms do (`galileo.election.duties`): an offer that
timed out may still be accepted, therefore each offer has its own term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from galileo.election.messages import (
    Decided,
    ElectionEffect,
    ElectionEvent,
    Failed,
    OfferAccepted,
    OfferAssignment,
    OfferRefused,
    PollAnswered,
    SendPoll,
    Started,
)
from galileo.election.ranking import Candidate, Suitability, Weights, is_suitable, rank


@dataclass(frozen=True, slots=True)
class ElectionOptions:
    poll_timeout_s: float = 0.5
    appoint_timeout_s: float = 1.0
    offers_max: int = 8
    weights: Weights = field(default_factory=Weights)
    limits: Suitability = field(default_factory=Suitability)


class Election:
    """The machine of one election.

    Args:
        options: time-outs and limits.
        assigned: the number of duties that a node has or was offered, as far as this node
            knows; it counts where the node's own answer has fewer.
        noun: what the duty is called in the reason of a failure.

    Attributes:
        offered_to: the node whose acceptance is awaited.
        candidates: the answers so far.
    """

    def __init__(
        self,
        *,
        options: ElectionOptions | None = None,
        assigned: Callable[[str], int] = lambda _: 0,
        noun: str = "duty",
    ) -> None:
        self.options = options or ElectionOptions()
        self._assigned = assigned
        self._noun = noun
        self.offered_to: str | None = None
        self.is_over = False
        self._need_bytes = 0
        self._only_suitable = False
        self._rounds: list[tuple[str, ...]] = []
        self._polled: set[str] = set()
        self.candidates: dict[str, Candidate] = {}
        self._offered: list[str] = []
        self._deadline = float("inf")

    def step(self, event: ElectionEvent, now: float) -> list[ElectionEffect]:
        if self.is_over:
            return []
        if isinstance(event, Started):
            return self._on_started(event, now)
        if isinstance(event, PollAnswered):
            return self._on_answer(event, now)
        if isinstance(event, OfferAccepted):
            return self._on_accepted(event)
        if isinstance(event, OfferRefused):
            return self._next_offer(now) if event.node == self.offered_to else []
        return self._on_tick(now)

    def check(self) -> None:
        assert len(set(self._offered)) == len(self._offered), "a node was offered twice"
        assert len(self._offered) <= self.options.offers_max
        assert self.offered_to is None or self.offered_to == self._offered[-1]
        assert set(self.candidates) <= self._polled, "an answer without a poll"

    def _on_started(self, event: Started, now: float) -> list[ElectionEffect]:
        self._need_bytes = event.need_bytes
        self._only_suitable = event.only_suitable
        self._rounds = list(event.rounds)
        return self._widen(now)

    def _on_answer(self, event: PollAnswered, now: float) -> list[ElectionEffect]:
        if event.node in self._polled and event.node not in self.candidates:
            self.candidates[event.node] = Candidate(event.usage, event.round_trip_s)
        if self.offered_to is None and len(self.candidates) == len(self._polled):
            return self._next_offer(now)
        return []

    def _on_accepted(self, event: OfferAccepted) -> list[ElectionEffect]:
        if event.node != self.offered_to:
            return []  # Too late: the offer has gone to another node in a higher term.
        self.is_over = True
        return [Decided(event.node)]

    def _on_tick(self, now: float) -> list[ElectionEffect]:
        return self._next_offer(now) if now >= self._deadline else []

    def _widen(self, now: float) -> list[ElectionEffect]:
        """Poll the next round; without one, fail."""
        self.offered_to = None
        while self._rounds:
            nodes = [node for node in self._rounds.pop(0) if node not in self._polled]
            if nodes:
                self._polled.update(nodes)
                self._deadline = now + self.options.poll_timeout_s
                return [SendPoll(node) for node in nodes]
        return self._give_up()

    def _next_offer(self, now: float) -> list[ElectionEffect]:
        if len(self._offered) >= self.options.offers_max:
            return self._give_up()
        left = {n: self._now(n, c) for n, c in self.candidates.items() if n not in self._offered}
        fit = {n: c for n, c in left.items() if self._is_suitable(c)}
        if not fit and (self._rounds or not left or self._only_suitable):
            return self._widen(now)
        weights = self.options.weights
        node = rank(fit or left, need_bytes=self._need_bytes, weights=weights)[0]
        self._offered.append(node)
        self.offered_to = node
        self._deadline = now + self.options.appoint_timeout_s
        return [OfferAssignment(node)]

    def _give_up(self) -> list[ElectionEffect]:
        self.is_over = True
        self.offered_to = None
        asked, answered = len(self._polled), len(self.candidates)
        return [
            Failed(
                f"expected a node to take the {self._noun}; {asked} were asked, "
                f"{answered} answered, {len(self._offered)} were offered it, none accepted"
            )
        ]

    def _now(self, node: str, candidate: Candidate) -> Candidate:
        """A candidate with what was assigned to it since it answered."""
        usage = candidate.usage
        count = max(usage.ccq_count, self._assigned(node))
        return replace(candidate, usage=replace(usage, ccq_count=count))

    def _is_suitable(self, candidate: Candidate) -> bool:
        limits = self.options.limits
        return is_suitable(candidate.usage, need_bytes=self._need_bytes, limits=limits)
