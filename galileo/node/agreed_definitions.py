"""What a node asks of the registers in which a cluster with copies defines its datasets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from galileo.dht.definitions import Change, Definition, Definitions
from galileo.errors import GalileoError


class AgreedDefinitions(Protocol):
    """Implemented by `server.definition_registers.DefinitionRegisters`."""

    def agreed(self, slot: int) -> Definitions:
        """What this node knows to be agreed on about the names of a slot."""
        ...

    def voters(self, name: str) -> list[str]:
        """The nodes that store the definition of a name, as far as this one knows."""
        ...

    async def change(self, name: str, change: Change) -> Definition:
        """Changes the definition of a name; returns when a majority of its voters has stored it.

        Raises:
            Unavailable: too few voters answered; the change may be made nevertheless.
            GalileoError: of the change.
        """
        ...


async def first_answers(calls: Sequence[Coroutine[Any, Any, None]], needed: int) -> None:
    """Waits until some of the calls have succeeded, or all are over, and ends the others."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        for answer in asyncio.as_completed(tasks) if needed > 0 else ():
            with contextlib.suppress(GalileoError):
                await answer
                needed -= 1
            if needed <= 0:
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
