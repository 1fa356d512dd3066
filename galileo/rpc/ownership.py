"""To whom continuous queries belong: to who submitted them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from galileo.ccq.model import Ccq
from galileo.errors import UnknownCcq
from galileo.rpc.access import Principal
from galileo.rpc.error_mapping import Context
from galileo.rpc.identity import Identify, everybody
from galileo.wire.v1 import continuous_pb2


async def _unused(ccq_id: str) -> Ccq:
    raise AssertionError("nobody is asked for an owner where everybody may do everything")


class Ownership:
    """What a caller may do with which continuous query.

    Args:
        identify: says who calls.
        find: the continuous query of an id, wherever it is known; raises what is wrong.
    """

    def __init__(
        self,
        identify: Identify = everybody,
        find: Callable[[str], Awaitable[Ccq]] = _unused,
    ) -> None:
        self._identify = identify
        self._find = find

    def caller(self, context: Context) -> Principal:
        return self._identify(context)

    async def check(
        self, context: Context, ccq_ids: Iterable[str], *, skips_unknown: bool = False
    ) -> None:
        """Raises Forbidden where one of them is not the caller's, before anything is done with it.

        Args:
            context: of the call.
            ccq_ids: which ones.
            skips_unknown: whether ids that no node knows are left for whoever answers the call.

        Raises:
            UnknownCcq: there is none of that id.
            TransientError: nobody could be asked who knows it.
        """
        caller = self._identify(context)
        if caller.is_admin:
            return
        for ccq_id in ccq_ids:
            try:
                made = await self._find(ccq_id)
            except UnknownCcq:
                if skips_unknown:
                    continue
                raise
            caller.check_owns(made.owner, ccq_id)
            caller.check_use(made.dataset)

    def visible(
        self, context: Context, values: Sequence[continuous_pb2.Ccq]
    ) -> list[continuous_pb2.Ccq]:
        """Those that the caller may know of."""
        caller = self._identify(context)
        return [one for one in values if caller.owns(one.owner) and caller.may_use(one.dataset)]
