"""Ownership of continuous queries: each belongs to the principal that submitted it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from galileo.ccq.model import Ccq
from galileo.errors import UnknownCcq
from galileo.rpc.access import Principal
from galileo.rpc.error_mapping import Context
from galileo.rpc.identity import Identify, anonymous
from galileo.wire.v1 import continuous_pb2


async def _unused(ccq_id: str) -> Ccq:
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
        find: Callable[[str], Awaitable[Ccq]] = _unused,
    ) -> None:
        self._identify = identify
        self._find = find

    def caller(self, context: Context) -> Principal:
        return self._identify(context)

    async def check(
        self, context: Context, ccq_ids: Iterable[str], *, skips_unknown: bool = False
    ) -> None:
        """Raises Forbidden unless the caller may use all of the queries and their datasets.

        Args:
            context: of the call.
            ccq_ids: the queries.
            skips_unknown: whether to ignore unknown ids, which the handler then reports.

        Raises:
            UnknownCcq: no node knows the id.
            TransientError: no node that may know it is reachable.
        """
        caller = self._identify(context)
        if caller.is_admin and caller.may_use_all:
            return
        ids = list(ccq_ids)
        found = await asyncio.gather(*map(self._find, ids), return_exceptions=True)
        for ccq_id, ccq in zip(ids, found, strict=True):
            if isinstance(ccq, UnknownCcq) and skips_unknown:
                continue
            if isinstance(ccq, BaseException):
                raise ccq
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
