"""Submissions of the CCQs of several readers as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from galileo.ccq.model import CcqDefinition, Record
from galileo.cursor import Cursor
from galileo.errors import GalileoError
from simulator.clients import (
    NOTHING_EVALUATED,
    PATIENCE_S,
    Initial,
    Reader,
    Service,
    evaluate_initial,
)
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
        self._initial: dict[str, Initial] = {}

    def submit(self) -> None:
        """Submit the unanswered CCQs at any node."""
        if not self._left:
            return
        world = self._world
        request = self._awaited = world.next_request()
        node = world.any_node()
        is_evaluated = world.loop.chance(0.5)

        def ask() -> None:
            self._ask(node, request, is_evaluated=is_evaluated)

        world.network.send("batch", node.name, lambda: node.receive(ask))
        world.loop.after(PATIENCE_S, lambda: self._retry(request))

    def _ask(self, node: Node, request: int, *, is_evaluated: bool) -> None:
        """Ask a node for coordinators; with initial results, it does so for several clients."""
        if self._awaited != request or not self._left:
            return  # Another call is under way, or this message has come twice.
        world, items = self._world, list[tuple[CcqDefinition, Cursor]]()
        for reader in self._left:
            ccq = reader.ccq
            initial = evaluate_initial(world, node, ccq) if is_evaluated else NOTHING_EVALUATED
            self._initial[ccq.id] = initial
            world.checker.present(ccq.id, initial.reached)
            items.append((ccq, initial.reached))
        world.loop.counters["batches evaluated" if is_evaluated else "batches unevaluated"] += 1
        rival = replace(items[0][0], query=query(7, 3)), NOTHING_EVALUATED.reached

        def back(outcomes: Sequence[Record | GalileoError]) -> None:
            world.network.send(node.name, "batch", lambda: self._on_answer(request, outcomes))

        node.place([*items, rival], back)

    def _retry(self, request: int) -> None:
        if self._awaited == request:
            self._world.loop.counters["batches repeated"] += 1
            self.submit()

    def _on_answer(self, request: int, answer: Sequence[Record | GalileoError]) -> None:
        if self._awaited != request:
            return
        self._world.loop.counters["batches answered"] += 1
        *outcomes, rival = answer
        demand(isinstance(rival, GalileoError), "two queries under one id")
        self._left = [
            reader
            for reader, outcome in zip(self._left, outcomes, strict=True)
            if not self._is_over(reader, outcome)
        ]
        self._world.loop.after(AGAIN_S, lambda: self._retry(request))

    def _is_over(self, reader: Reader, outcome: Record | GalileoError) -> bool:
        if isinstance(outcome, Record):
            demand(outcome.id == reader.ccq.id, "the outcomes are not in the order of the items")
            reader.begin(self._initial[reader.ccq.id], outcome.coordinator)
            return True
        if outcome.kind in ("unavailable", "overloaded"):
            self._world.loop.counters["submissions refused"] += 1
            return False
        reader.give_up(outcome)
        return True
