"""What a variant of the machines is made of."""

from __future__ import annotations

from dataclasses import dataclass

from galileo.ccq.machine import Continuous
from galileo.testing.simulator.evaluator import Evaluate, by_sequence


@dataclass(frozen=True, slots=True)
class Variant:
    """The machine under test and how its cycles are evaluated.

    Attributes:
        has_cursors: whether its resume tokens mean what production's mean, so that each single
            answer can be judged by them.
    """

    machine: type[Continuous] = Continuous
    evaluate: Evaluate = by_sequence
    has_cursors: bool = True
