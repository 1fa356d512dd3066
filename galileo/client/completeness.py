"""Partial answers: those of a cluster some of whose nodes could not be asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import grpc.aio

from galileo.client.transport import Transport
from galileo.errors import IncompleteAnswer


class Partial(Protocol):
    """A value that names what it lacks."""

    @property
    def missing(self) -> tuple[int, ...]: ...

    @property
    def complete(self) -> bool: ...


Answer = TypeVar("Answer", bound=Partial)


def check_complete(answer: Partial) -> None:
    """Raises IncompleteAnswer where a partition is missing, or a commit is not counted yet."""
    if answer.complete:
        return
    raise incomplete(answer.missing)


def incomplete(missing: Sequence[int]) -> IncompleteAnswer:
    """The error where a whole answer was asked for."""
    partitions = sorted(missing)
    lacks = f"partitions {partitions}, whose nodes are away" if partitions else "the last commits"
    return IncompleteAnswer(
        f"expected a complete answer, got one without {lacks}; try again when all nodes are up "
        "(see galileo status), or accept a partial answer",
        missing=partitions,
    )


async def call(
    transport: Transport,
    attempt: Callable[[grpc.aio.Channel], Awaitable[Answer]],
    *,
    require_complete: bool,
) -> Answer:
    """The result of `Transport.call`; a partial one is asked for anew, where that is required.

    Raises:
        IncompleteAnswer: it is partial still when the client's patience ends.
    """

    async def checked(channel: grpc.aio.Channel) -> Answer:
        answer = await attempt(channel)
        if require_complete:
            check_complete(answer)
        return answer

    return await transport.call(checked)
