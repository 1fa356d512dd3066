"""The interceptor of a node's services: records, authenticates, checks and meters each call.

Interceptors of asyncio servers see only the method and metadata of a call. The peer's certificate
and the request are available when the handler is called; therefore the handlers are wrapped.
`galileo.rpc.admission` comes before it, since it acts before a request is read.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from galileo.rpc.access import ANONYMOUS, PUBLIC, check_method, check_request
from galileo.rpc.call_log import OWN_SERVICES, CallTracker
from galileo.rpc.error_mapping import Context, refuse
from galileo.rpc.identity import CALLER, Identify, anonymous
from galileo.rpc.rate_limit import Metering, PrincipalUsage, metered, metered_stream
from galileo.wire.channel import short_name

Handler = Any
"""A `grpc.RpcMethodHandler`: a named tuple whose type grpc keeps to itself."""
Record = Callable[[Any, Context], contextlib.AbstractContextManager[Any]]


class RedactingContext:
    """The context of a call whose caller may not see every dataset."""

    is_restricted = True

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps every handler once.

    Args:
        calls: records the calls of this package's services.
        identify: authenticates callers; with `anonymous` every caller may do everything.
        metering: the usage of principals; None: there are no rate limits.
    """

    def __init__(
        self,
        calls: CallTracker,
        identify: Identify = anonymous,
        metering: Metering | None = None,
    ) -> None:
        self._calls = calls
        self._identify = identify
        self._metering = metering
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method in PUBLIC:
            return handler
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            known = self._wrapped[method] = (handler, self._wrap(handler, method))
        return known[1]

    def _wrap(self, handler: Handler, method: str) -> Handler:
        sent, answered = (
            "stream" if is_stream else "unary"
            for is_stream in (handler.request_streaming, handler.response_streaming)
        )
        kind, many = f"{sent}_{answered}", handler.request_streaming
        inner = getattr(handler, kind)
        # Reflection writes its replies by itself, as no handler of this package does.
        is_generator = inspect.isasyncgenfunction(inspect.unwrap(inner))
        wrap = self._streaming if handler.response_streaming and is_generator else self._unary
        return handler._replace(**{kind: wrap(inner, method, many=many)})

    def _unary(
        self, handler: Callable[..., Awaitable[Any]], method: str, *, many: bool
    ) -> Callable[..., Any]:
        record = self._record_of(method)

        async def intercepted(request: Any, context: Context) -> Any:
            with record(request, context):
                try:
                    checked, shown, meter = self._admitted(request, context, method, many=many)
                except Exception as error:
                    await refuse(context, error)
                return await metered(meter, handler, checked, context=shown)

        return intercepted

    def _streaming(
        self, handler: Callable[..., AsyncIterator[Any]], method: str, *, many: bool
    ) -> Callable[..., Any]:
        record = self._record_of(method)

        async def intercepted(request: Any, context: Context) -> AsyncIterator[Any]:
            with record(request, context):
                try:
                    checked, shown, meter = self._admitted(request, context, method, many=many)
                except Exception as error:
                    await refuse(context, error)
                answered = metered_stream(meter, handler, checked, context=shown)
                async with aclosing(answered) as replies:
                    async for reply in replies:
                        yield reply

        return intercepted

    def _record_of(self, method: str) -> Record:
        if not method.startswith(OWN_SERVICES):
            return lambda request, context: contextlib.nullcontext()
        name = short_name(method)
        return lambda request, context: self._calls.record(name, request, context)

    def _admitted(
        self, request: Any, context: Context, method: str, *, many: bool
    ) -> tuple[Any, Context, PrincipalUsage | None]:
        """Checks a call; returns request and context for the handler, and the usage to count.

        Raises:
            Unauthenticated, Forbidden.
        """
        metering = self._metering
        if self._identify is anonymous:
            name = short_name(method)
            usage = metering.meter_of(ANONYMOUS, name, request) if metering else None
            return request, context, usage
        principal = self._identify(context)
        CALLER.set(principal)
        check_method(principal, method)
        shown = context if principal.may_see_all else RedactingContext(context)
        usage = metering.meter(principal) if metering and not principal.is_node else None
        if many:
            return self._each(request, context, method), shown, usage
        check_request(principal, method, request)
        return request, shown, usage

    async def _each(
        self, requests: AsyncIterator[Any], context: Context, method: str
    ) -> AsyncIterator[Any]:
        """Checks each request of a stream: a token can be revoked meanwhile."""
        async for request in requests:
            yield self._admitted(request, context, method, many=False)[0]
