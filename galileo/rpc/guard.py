"""The one place where errors become gRPC statuses on the way out of a node."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NoReturn, TypeAlias, TypeVar

import grpc.aio

from galileo.errors import Bug, GalileoError
from galileo.wire.status import METADATA_KEY, code_of, error_to_pb, status_text

Servicer = TypeVar("Servicer")
Request = TypeVar("Request")
Reply = TypeVar("Reply")
Context: TypeAlias = grpc.aio.ServicerContext

log = logging.getLogger(__name__)


def unary(
    handler: Callable[[Servicer, Request, Context], Awaitable[Reply]],
) -> Callable[[Servicer, Request, Context], Awaitable[Reply]]:
    """Wraps a handler with one reply so that its errors cross the wire with their kind."""

    @functools.wraps(handler)
    async def guarded(self: Servicer, request: Request, context: Context) -> Reply:
        try:
            return await handler(self, request, context)
        except Exception as error:
            await _refuse(context, error)

    return guarded


def streaming(
    handler: Callable[[Servicer, Request, Context], AsyncIterator[Reply]],
) -> Callable[[Servicer, Request, Context], AsyncIterator[Reply]]:
    """The same for a handler that yields its replies."""

    @functools.wraps(handler)
    async def guarded(self: Servicer, request: Request, context: Context) -> AsyncIterator[Reply]:
        try:
            async for reply in handler(self, request, context):
                yield reply
        except Exception as error:
            await _refuse(context, error)

    return guarded


async def _refuse(context: Context, error: Exception) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, GalileoError):
        log.exception("a call failed in a way that must not happen", exc_info=error)
        error = Bug(f"the node failed in a way that must not happen: {error!r}; see its log")
    packed = error_to_pb(error).SerializeToString()
    await context.abort(code_of(error), status_text(error), ((METADATA_KEY, packed),))
    raise error  # Not reached: abort raises.
