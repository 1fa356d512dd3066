"""The door of a node: the one way from a call to its handler.

A call is recorded, its caller authenticated and its role checked; then it is admitted, and only
then is its request read, checked and metered. Interceptors of asyncio servers see only the method
and metadata of a call, and gRPC reads the request of a unary call before its handler. Therefore all
handlers are wrapped as handlers of streams, which read requests themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import grpc
import grpc.aio

from galileo.errors import GalileoError
from galileo.rpc.access import ANONYMOUS, PUBLIC, Principal, check_method, check_request
from galileo.rpc.admission import Admission, AdmittedCall
from galileo.rpc.call_log import OWN_SERVICES, CallTracker
from galileo.rpc.error_mapping import Context, refuse
from galileo.rpc.identity import CALLER, Identify, anonymous
from galileo.rpc.rate_limit import Metering, PrincipalUsage, metered
from galileo.wire.channel import short_name

Handler = Any
"""A `grpc.RpcMethodHandler`: a named tuple whose type grpc keeps to itself."""


class RedactingContext:
    """The context of a call whose caller may not see every dataset."""

    is_restricted = True

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


@dataclass(slots=True)
class _Visit:
    """A call that is being served.

    Attributes:
        request: decoded; for a stream, an iterator of requests. None until it is read.
        context: for the handler.
        usage: of the caller, which counts the call; None if it is not counted.
    """

    context: Context
    request: Any = None
    usage: PrincipalUsage | None = None


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps every handler once.

    Args:
        calls: records the calls of this package's services.
        identify: authenticates callers; with `anonymous` every caller may do everything.
        metering: the usage of principals; None: there are no rate limits.
        admission: the bounds of the process.
    """

    def __init__(
        self,
        calls: CallTracker,
        identify: Identify = anonymous,
        metering: Metering | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._calls = calls
        self._identify = identify
        self._metering = metering
        self._admission = admission or Admission()
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            known = self._wrapped[method] = (handler, self._wrap(handler, method))
        return known[1]

    def _wrap(self, handler: Handler, method: str) -> Handler:
        sent, answered = (
            "stream" if is_stream else "unary"
            for is_stream in (handler.request_streaming, handler.response_streaming)
        )
        inner = getattr(handler, f"{sent}_{answered}")
        # gRPC's own services write their replies by themselves, as no handler of this package does.
        is_generator = inspect.isasyncgenfunction(inspect.unwrap(inner))
        wrap = self._streaming if handler.response_streaming and is_generator else self._unary
        make = getattr(grpc, f"stream_{answered}_rpc_method_handler")
        return make(wrap(inner, handler, method), None, handler.response_serializer)

    def _unary(
        self, inner: Callable[..., Awaitable[Any]], handler: Handler, method: str
    ) -> Callable[..., Any]:
        enter, record = self._enter_of(handler, method), self._record_of(method)

        async def served(_: object, context: Context) -> Any:
            visit = _Visit(context)
            with record(visit):
                await enter(visit)
                async with metered(visit.usage, visit.request, visit.context) as request:
                    reply = await inner(request, visit.context)
                    if visit.usage is not None:
                        visit.usage.answer(reply)
                    return reply

        return served

    def _streaming(
        self, inner: Callable[..., AsyncIterator[Any]], handler: Handler, method: str
    ) -> Callable[..., Any]:
        enter, record = self._enter_of(handler, method), self._record_of(method)

        async def served(_: object, context: Context) -> AsyncIterator[Any]:
            visit = _Visit(context)
            with record(visit):
                call = await enter(visit)
                async with metered(visit.usage, visit.request, visit.context) as request:
                    stream = cast(AsyncGenerator[Any, None], inner(request, visit.context))
                    async with aclosing(stream) as replies:
                        async for reply in replies:
                            call.note_stall()
                            yield reply
                            call.note_progress()
                            if visit.usage is not None and (pause_s := visit.usage.answer(reply)):
                                await asyncio.sleep(pause_s)

        return served

    def _enter_of(
        self, handler: Handler, method: str
    ) -> Callable[[_Visit], Awaitable[AdmittedCall]]:
        """What lets a call in, or refuses it: the order of all checks."""
        decode, many = handler.request_deserializer or bytes, handler.request_streaming

        async def enter(visit: _Visit) -> AdmittedCall:
            try:
                context = visit.context
                principal = self._authorise(context, method)
                call = self._admission.admit(method, principal, context)
                if many:
                    visit.request = self._each(call.each(decode), context, method)
                else:
                    visit.request = await call.read(decode)
                    if principal is not None:
                        check_request(principal, method, visit.request)
                visit.usage = self._usage(principal, method)
                if principal is not None and not principal.may_see_all:
                    visit.context = RedactingContext(context)
                await call.begin_answer()
            except Exception as error:
                await refuse(visit.context, error)
            return call

        return enter

    def _authorise(self, context: Context, method: str) -> Principal | None:
        """The caller, which has a role for the method; None of methods that need no token.

        Raises:
            Unauthenticated, Forbidden.
        """
        if method in PUBLIC:
            return None
        if self._identify is anonymous:
            return ANONYMOUS
        principal = self._identify(context)
        CALLER.set(principal)
        check_method(principal, method)
        return principal

    def _usage(self, principal: Principal | None, method: str) -> PrincipalUsage | None:
        if self._metering is None or principal is None:
            return None
        return self._metering.meter_of(principal, method)

    async def _each(
        self, requests: AsyncIterator[Any], context: Context, method: str
    ) -> AsyncIterator[Any]:
        """Checks each request of a stream: a token can be revoked meanwhile."""
        try:
            async for request in requests:
                if (principal := self._authorise(context, method)) is not None:
                    check_request(principal, method, request)
                yield request
        except GalileoError as error:
            await refuse(context, error)

    def _record_of(self, method: str) -> Callable[[_Visit], contextlib.AbstractContextManager[Any]]:
        if not method.startswith(OWN_SERVICES):
            return lambda visit: contextlib.nullcontext()
        name = short_name(method)
        return lambda visit: self._calls.record(name, visit)
