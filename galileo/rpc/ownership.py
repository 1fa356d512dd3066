"""Ownership of continuous queries: each belongs to the principal that submitted it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from galileo.ccq.model import CcqDefinition
from galileo.rpc.access import Principal
from galileo.rpc.error_mapping import Context
from galileo.rpc.identity import Identify, anonymous
from galileo.wire.v1 import continuous_pb2


async def _unused(ccq_id: str) -> CcqDefinition:
    raise AssertionError("ownership is not checked without authentication")


class Ownership:
    """Checks whether callers may use continuous queries.

    Args:
        identify: returns the caller.
        find: finds a continuous query by id in the cluster; raises UnknownCcq or TransientError.
    """

    def __init__(
        self,
        identify: Identify = anonymous,
        find: Callable[[str], Awaitable[CcqDefinition]] = _unused,
    ) -> None:
        self._identify = identify
        self._find = find

    def caller(self, context: Context) -> Principal:
        return self._identify(context)

    async def check(self, context: Context, ccq_id: str) -> None:
        """Raises Forbidden unless the caller may use the query and its dataset.

        Raises:
            UnknownCcq: no node knows the id.
            TransientError: no node that may know it is reachable.
        """
        caller = self._identify(context)
        if caller.is_admin and caller.may_use_all:
            return
        ccq = await self._find(ccq_id)
        caller.check_owns(ccq.owner, ccq_id)
        caller.check_use(ccq.dataset)

    def visible(
        self, context: Context, values: Sequence[continuous_pb2.Ccq]
    ) -> list[continuous_pb2.Ccq]:
        """The queries that the caller may see."""
        caller = self._identify(context)
        return [
            value for value in values if caller.owns(value.owner) and caller.may_use(value.dataset)
        ]
