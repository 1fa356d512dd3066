"""One Spark job: the requests of several coordinators, and who of its tasks asks which node.

Task i of n asks every n-th node, so a job has as many tasks as the session has cores, whatever the
number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from galileo.cycle import CycleRequest
from galileo.tracing import NO_TRACING, TracingOptions
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles

RESULT_BYTES_MAX = 32 << 20
FAILED = "the evaluation failed with an internal error; the evaluator's log has it"
"""What the owner of a query learns of an internal error."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Bounds of one job.

    Attributes:
        scan_timeout_s: for the whole answer of a node.
        sampler_timeout_s: for the sampler of one item.
        result_bytes_max: of the labels that all tasks together return; the next job returns the
            rest.
        keys: credentials with which workers authenticate as nodes.
        tracing: where workers export spans.
    """

    scan_timeout_s: float
    sampler_timeout_s: float
    result_bytes_max: int = RESULT_BYTES_MAX
    keys: TlsFiles = NO_TLS_FILES
    tracing: TracingOptions = NO_TRACING


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What one node is asked for one request of a job.

    Attributes:
        number: of the request in the job.
        request: the part of it.
    """

    number: int
    request: CycleRequest

    @property
    def address(self) -> str:
        return self.request.addresses[0]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One Spark job.

    Attributes:
        number: of the job; rotates the order in which items are served.
        requests: what is looked for.
        tasks: number of tasks.
        limits: of the job.
    """

    number: int
    requests: tuple[CycleRequest, ...]
    tasks: int
    limits: JobLimits

    def of_task(self, task: int) -> list[Asked]:
        """What a task asks, ordered by address."""
        addresses = sorted({one for request in self.requests for one in request.addresses})
        return [
            asked for address in addresses[task :: self.tasks] for asked in self._of_node(address)
        ]

    def _of_node(self, address: str) -> Iterator[Asked]:
        for number, request in enumerate(self.requests):
            if address in request.addresses:
                part = request.for_node(request.addresses.index(address))
                if len(part):
                    yield Asked(number, part)


def count_items(requests: Sequence[CycleRequest]) -> int:
    return sum(map(len, requests))


def halves(
    requests: Sequence[CycleRequest],
) -> tuple[tuple[CycleRequest, ...], tuple[CycleRequest, ...]]:
    """As many requests twice, with half of the items each; needs at least two items."""
    left = count_items(requests) // 2
    first, second = [], []
    for request in requests:
        first.append(request.slice(0, left))
        second.append(request.slice(left, len(request)))
        left = max(0, left - len(request))
    return tuple(first), tuple(second)
