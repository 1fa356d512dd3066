"""A client that submits the CCQs of several readers as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from galileo.ccq.events import AnswerBatch, BatchItem, BatchSubmitted, ContinuousEffect, Outcome
from galileo.cursor import EMPTY_CURSOR
from simulator.clients import PATIENCE_S, Reader, Service
from simulator.logs import query
from simulator.loop import demand
from simulator.node import Node

AGAIN_S = 0.3


class BatchClient:
    """Repeats a submission under the same ids until each CCQ is answered.

    A second query under the id of the first is always among them, and must be refused.
    """

    def __init__(self, world: Service, readers: Sequence[Reader]) -> None:
        self._world = world
        self._left = list(readers)
        self._awaited = 0

    def submit(self) -> None:
        """Submit the unanswered CCQs at any node."""
        if not self._left:
            return
        world = self._world
        request = self._awaited = world.next_request()
        node = world.any_node()
        ccqs = [reader.ccq for reader in self._left]
        rival = replace(ccqs[0], query=query(7, 3))
        event = BatchSubmitted(request, tuple(BatchItem(ccq) for ccq in (*ccqs, rival)))
        for ccq in ccqs:
            world.checker.present(ccq.id, EMPTY_CURSOR)
        world.network.send("batch", node.name, lambda: node.receive(lambda: self._ask(node, event)))
        world.loop.after(PATIENCE_S, lambda: self._retry(request))

    def _ask(self, node: Node, event: BatchSubmitted) -> None:
        def back(effect: ContinuousEffect) -> None:
            take = self._on_answer
            self._world.network.send(node.name, "batch", lambda: take(event.request, effect))

        node.ask(event, back)

    def _retry(self, request: int) -> None:
        if self._awaited == request:
            self._world.loop.counters["batches repeated"] += 1
            self.submit()

    def _on_answer(self, request: int, effect: ContinuousEffect) -> None:
        if self._awaited != request:
            return
        if isinstance(effect, AnswerBatch):
            self._world.loop.counters["batches answered"] += 1
            *outcomes, rival = effect.outcomes
            demand(rival.failure is not None, "two queries under one id")
            self._left = [
                reader
                for reader, outcome in zip(self._left, outcomes, strict=True)
                if not self._is_over(reader, outcome)
            ]
        self._world.loop.after(AGAIN_S, lambda: self._retry(request))

    def _is_over(self, reader: Reader, outcome: Outcome) -> bool:
        demand(outcome.ccq_id == reader.ccq.id, "the outcomes are not in the order of the items")
        if outcome.failure is None:
            reader.begin(outcome.coordinator)
            return True
        if outcome.failure.kind in ("unavailable", "overloaded"):
            self._world.loop.counters["submissions refused"] += 1
            return False
        reader.give_up(outcome.failure)
        return True
