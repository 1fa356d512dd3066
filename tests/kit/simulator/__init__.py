"""A seeded, deterministic simulation of the production machines under faults.

`run(seed, variant)` plays one world to its end and returns its outcome, or raises `Violation`. The
same seed and variant give the same run, event by event.
"""

from simulator.faults import ALWAYS, FAULTS
from simulator.loop import Violation
from simulator.mutants import VARIANTS
from simulator.shrinking import shrunk
from simulator.world import Outcome, run

__all__ = ["ALWAYS", "FAULTS", "VARIANTS", "Outcome", "Violation", "run", "shrunk"]
