"""What a caller needs for a route: a call that nodes must allow, judged by their own rules.

A gateway refuses what nodes would refuse before it reads a body; the nodes decide all the same.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any

import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass

from galileo.client.results import CallerIdentity
from galileo.errors import NotPermitted, Overloaded
from galileo.gateway.shared_calls import SharedCalls
from galileo.model.reader import OF_BROKER
from galileo.rpc.access import (
    ANONYMOUS,
    Principal,
    Role,
    check_method,
    check_positions,
    check_request,
)
from galileo.shares import Pool, ShareHolder
from galileo.wire.services import NODE_SERVICES

KNOWN_S = 5.0
"""How long a gateway knows the rights of a token, or that it has none, before it asks again."""
KNOWN_MAX = 4_096
"""Tokens that a gateway remembers, those with rights in preference to those without."""
CHECKS_MAX = 64
"""Tokens that a gateway checks at a time."""
CHECK_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Right:
    """A call that must be allowed.

    Attributes:
        call: "Service/Method"; "" where a request needs no right.
        dataset: that the call is about, with parameters of the path in braces; "" where the path
            does not say it.
        broker: the same of a broker; a call about rows is then about its position.
    """

    call: str = ""
    dataset: str = ""
    broker: str = ""

    def check(self, principal: Principal, path: Mapping[str, str]) -> None:
        """Raises Forbidden where nodes would."""
        if not self.call or principal is ANONYMOUS:
            return
        method, request = f"/galileo.v1.{self.call}", _request(self.call)
        check_method(principal, method)
        if not self.dataset:
            return
        values = {"dataset": self.dataset.format(**path), "broker": self.broker.format(**path)}
        if self.broker and "broker" not in request.DESCRIPTOR.fields_by_name:
            keys = pa.chunked_array([[f"{OF_BROKER}/{values['dataset']}/{values['broker']}"]])
            check_positions(principal, method, keys)
            return
        if "dataset" not in request.DESCRIPTOR.fields_by_name:
            principal.check_use(values["dataset"])
            return
        known = {name: value for name, value in values.items() if value}
        check_request(principal, method, request(**known))


@cache
def _request(call: str) -> Any:
    """The class of the request of "Service/Method"."""
    service, method = call.split("/")
    [known] = [one for one in NODE_SERVICES if one.full_name == f"galileo.v1.{service}"]
    return GetMessageClass(known.methods_by_name[method].input_type)


PUBLIC = Right()


class Principals:
    """Whose token it is, as nodes say and the gateway knows for a while; of one event loop.

    Tokens are known by their digests. A flood of wrong ones does not displace those with rights.

    Args:
        ask: a node for the caller with a token.
        monotonic: clock in seconds.
    """

    def __init__(
        self,
        ask: Callable[[str], Awaitable[CallerIdentity]],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._answers: dict[bytes, tuple[float, Principal | NotPermitted]] = {}
        """By the digest of a token, the latest last."""
        self._checks = Pool(CHECKS_MAX, kept=0)
        self._calls = SharedCalls[bytes, Principal | NotPermitted]()

    async def of_token(self, token: str, *, host: str) -> Principal:
        """The principal of a token, "" for none, that a host has sent.

        Raises:
            NotPermitted: nodes know no such token.
            GalileoError: none can be asked.
        """
        key = hashlib.sha256(token.encode()).digest()
        at, answer = self._answers.get(key, (-inf, ANONYMOUS))
        if at <= self._monotonic() - KNOWN_S:
            answer = await self._calls.call(key, lambda: self._check(key, token, ShareHolder(host)))
        if isinstance(answer, NotPermitted):
            raise type(answer)(answer.message, **answer.details)
        return answer

    async def _check(self, key: bytes, token: str, caller: ShareHolder) -> Principal | NotPermitted:
        """Asks a node, and keeps its answer."""
        if not await self._checks.take(caller, within_s=CHECK_WITHIN_S):
            raise Overloaded("too many tokens are checked at the moment; try again", after_s=1.0)
        answer: Principal | NotPermitted
        try:
            answer = _principal(await self._ask(token))
        except NotPermitted as error:
            answer = error
        finally:
            self._checks.give_back(caller)
        self._answers.pop(key, None)
        self._answers[key] = self._monotonic(), answer
        if len(self._answers) > KNOWN_MAX:
            wrong = (key for key, (_, it) in self._answers.items() if isinstance(it, NotPermitted))
            del self._answers[next(wrong, next(iter(self._answers)))]
        return answer


def _principal(identity: CallerIdentity) -> Principal:
    if not identity.roles:  # The cluster asks for no tokens.
        return ANONYMOUS
    roles = {role for role in Role if role in identity.roles}
    return Principal(identity.name, frozenset(roles), identity.datasets, brokers=identity.brokers)
