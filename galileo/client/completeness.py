"""Checks of partial answers: nodes were unreachable, so partitions are missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import grpc.aio

from galileo.client.transport import Transport
from galileo.errors import IncompleteAnswer


class Partial(Protocol):
    """A value that names its missing partitions."""

    @property
    def missing(self) -> tuple[int, ...]: ...

    @property
    def complete(self) -> bool: ...


Answer = TypeVar("Answer", bound=Partial)


def check_complete(answer: Partial) -> None:
    """Raises IncompleteAnswer if a partition is missing, or a commit is not counted yet."""
    if answer.complete:
        return
    raise incomplete(answer.missing)


def incomplete(missing: Sequence[int]) -> IncompleteAnswer:
    """The error of a call that requires a complete answer."""
    partitions = sorted(missing)
    lacks = (
        f"partitions {partitions}, whose nodes are unreachable"
        if partitions
        else "the last commits"
    )
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
    """The result of `Transport.call`; repeats the call after a partial one, if `require_complete`.

    Raises:
        IncompleteAnswer: it is still partial when the transport's timeout has passed.
    """

    async def checked(channel: grpc.aio.Channel) -> Answer:
        answer = await attempt(channel)
        if require_complete:
            check_complete(answer)
        return answer

    return await transport.call(checked)
