"""The protocol between a node and a contained process.

Labels are in shared memory that only the node can write; a request has the sizes of its parts. A
response is sent through a pipe: a status, a length, and that many bytes, which are bits or text. So
the node never parses a richer format from uploaded code.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

from galileo.samplers import Scope

Operation = Literal["load", "sample", "merge"]
OPERATIONS: tuple[Operation, ...] = ("load", "sample", "merge")

READY, LOADED, MASK, REFUSED, FAILED = range(5)
"""Statuses of answers. Refused: the options are wrong; failed: the code raised."""

SCOPES: tuple[Scope, ...] = ("commit", "node", "global")

ANSWER = struct.Struct("<BQ")
TRAITS = struct.Struct("<BBBB")
"""Of a sampler: the place of its scope, whether it regroups, whether it needs observations, and
whether it names columns, which then follow as text."""
COLUMNS_BYTES_MAX = 65_536
TEXT_BYTES_MAX = 16_384
SEPARATOR = "\0"
"""Between the message of an error and its traceback, and between names of columns."""

_REQUEST = struct.Struct("<BQQQ")
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Request:
    """A request, with the sizes in bytes of its parts in shared memory.

    Attributes:
        operation: one of `OPERATIONS`.
        head: of the JSON at the beginning.
        labels: of the Arrow stream behind it.
        observations: of the one behind that; 0 where there are none.
    """

    operation: Operation
    head: int
    labels: int = 0
    observations: int = 0

    @property
    def labels_at(self) -> int:
        return aligned(self.head)

    @property
    def observations_at(self) -> int:
        return self.labels_at + aligned(self.labels)

    @property
    def size(self) -> int:
        return self.observations_at + aligned(self.observations)

    def to_bytes(self) -> bytes:
        number = OPERATIONS.index(self.operation)
        return _REQUEST.pack(number, self.head, self.labels, self.observations)

    @staticmethod
    def from_bytes(data: bytes) -> Request:
        number, *sizes = _REQUEST.unpack(data)
        return Request(OPERATIONS[number], *sizes)


REQUEST_BYTES = _REQUEST.size


def aligned(size: int) -> int:
    """The size, rounded up to the alignment of Arrow buffers."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT
