"""Authentication and authorisation of calls, by wrapped handlers.

Interceptors of asyncio servers see only the method and metadata of a call. The peer's certificate
and the request are available when the handler is called; therefore the handlers are wrapped.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from galileo.rpc.access import PUBLIC, check_method, check_request
from galileo.rpc.error_mapping import Context, refuse
from galileo.rpc.identity import CALLER, Identify
from galileo.rpc.rate_limit import Metering, PrincipalUsage, metered, metered_stream

Handler = Any
"""A `grpc.RpcMethodHandler`: a named tuple whose type grpc keeps to itself."""


class RedactingContext:
    """The context of a call whose caller may not see every dataset."""

    is_restricted = True

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class Authorisation(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps every handler with authentication, authorisation and rate limits."""

    def __init__(self, identify: Identify, metering: Metering | None = None) -> None:
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
        kind = _kind_of(handler)
        inner = getattr(handler, kind)
        if handler.response_streaming:
            wrapped = self._streaming(inner, method, many=handler.request_streaming)
        else:
            wrapped = self._unary(inner, method, many=handler.request_streaming)
        return handler._replace(**{kind: wrapped})

    def _admitted(
        self, request: Any, context: Context, method: str, *, many: bool
    ) -> tuple[Any, Context, PrincipalUsage | None]:
        """Checks a call; returns request and context for the handler, and the usage to count.

        Raises:
            Unauthenticated, Forbidden.
        """
        principal = self._identify(context)
        CALLER.set(principal)
        check_method(principal, method)
        shown = context if principal.may_use_all else RedactingContext(context)
        is_counted = self._metering is not None and not principal.is_node
        meter = self._metering.meter(principal) if self._metering and is_counted else None
        if many:
            return self._each(request, context, method), shown, meter
        check_request(principal, request)
        return request, shown, meter

    async def _each(
        self, requests: AsyncIterator[Any], context: Context, method: str
    ) -> AsyncIterator[Any]:
        """Checks each request of a stream: a token can be revoked meanwhile."""
        async for request in requests:
            yield self._admitted(request, context, method, many=False)[0]

    def _unary(
        self, handler: Callable[..., Awaitable[Any]], method: str, *, many: bool
    ) -> Callable[..., Any]:
        async def admitted(request: Any, context: Context) -> Any:
            try:
                checked, shown, meter = self._admitted(request, context, method, many=many)
            except Exception as error:
                await refuse(context, error)
            return await metered(meter, handler, checked, context=shown)

        return admitted

    def _streaming(
        self, handler: Callable[..., Any], method: str, *, many: bool
    ) -> Callable[..., Any]:
        if not inspect.isasyncgenfunction(inspect.unwrap(handler)):
            # It writes its replies by itself, as no handler of this package does.
            return self._unary(handler, method, many=many)

        async def admitted(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                checked, shown, meter = self._admitted(request, context, method, many=many)
            except Exception as error:
                await refuse(context, error)
            async with aclosing(metered_stream(meter, handler, checked, context=shown)) as replies:
                async for reply in replies:
                    yield reply

        return admitted


def _kind_of(handler: Handler) -> str:
    sent = "stream" if handler.request_streaming else "unary"
    answered = "stream" if handler.response_streaming else "unary"
    return f"{sent}_{answered}"
