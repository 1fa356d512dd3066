"""Checks of partial answers: nodes were unreachable, so partitions are missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from galileo.errors import IncompleteAnswer
from galileo.wire.caller import Caller, Connection


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
    caller: Caller,
    attempt: Callable[[Connection], Awaitable[Answer]],
    *,
    require_complete: bool,
) -> Answer:
    """The result of `Caller.call`; repeats the call after a partial one, if `require_complete`.

    Raises:
        IncompleteAnswer: it is still partial when the patience of the caller has ended.
    """

    async def checked(node: Connection) -> Answer:
        answer = await attempt(node)
        if require_complete:
            check_complete(answer)
        return answer

    return await caller.call(checked)
