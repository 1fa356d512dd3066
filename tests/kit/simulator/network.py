"""The network between processes: latency, loss, repetition, reordering and partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.loop import STRAGGLE_MAX_S, Loop

DELAY_MEAN_S = 0.01


@dataclass(slots=True)
class Network:
    """Attributes:
    loss: probability that a message disappears.
    repetition: probability that it comes twice.
    cuts: directed pairs of processes between which nothing passes.
    """

    loop: Loop
    loss: float = 0.0
    repetition: float = 0.0
    cuts: dict[tuple[str, str], None] | None = None

    def send(self, sender: str, to: str, deliver: Callable[[], None]) -> None:
        if self.is_cut(sender, to) or self.loop.chance(self.loss):
            return
        self.loop.after(self.loop.delay(DELAY_MEAN_S), deliver)
        if self.loop.chance(self.repetition):
            self.loop.after(self.loop.random.uniform(0.0, STRAGGLE_MAX_S), deliver)

    def is_cut(self, sender: str, to: str) -> bool:
        return bool(self.cuts) and (sender, to) in (self.cuts or {})

    def connects(self, a: str, b: str) -> bool:
        """Whether a call from one to the other would come back."""
        return a == b or not (self.is_cut(a, b) or self.is_cut(b, a))

    def cut(self, sender: str, to: str) -> None:
        self.cuts = {**(self.cuts or {}), (sender, to): None}

    def heal(self) -> None:
        self.loss = self.repetition = 0.0
        self.cuts = None
