"""Resource limits of a contained sampler."""

from __future__ import annotations

from dataclasses import dataclass

from galileo.errors import InputError

MEMORY_BYTES = 2**30
CPU_S = 60.0
WALL_S = 60.0
OUTPUT_BYTES = 2**20
OPEN_FILES = 64
PROCESSES = 16
INPUT_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class ContainmentLimits:
    """Limits of one call of an uploaded sampler; exceeding one ends its process.

    Attributes:
        memory_bytes: address space of the process: some 300 MB of Python, NumPy and Arrow, the
            labels that it is given, and what its code takes.
        cpu_s: CPU time of one call, all threads together.
        wall_s: seconds of one call.
        output_bytes: what its code may print in one call.
        open_files: file descriptors.
        processes: threads in total; it cannot start other processes.
        input_bytes: labels and observations of one call, as Arrow has them.
    """

    memory_bytes: int = MEMORY_BYTES
    cpu_s: float = CPU_S
    wall_s: float = WALL_S
    output_bytes: int = OUTPUT_BYTES
    open_files: int = OPEN_FILES
    processes: int = PROCESSES
    input_bytes: int = INPUT_BYTES

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InputError(f"expected {name} above 0, got {getattr(self, name)!r}")
