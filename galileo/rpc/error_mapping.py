"""Maps errors of handlers to gRPC statuses, and redacts what the caller may not see."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

import grpc.aio

from galileo import request_id
from galileo.errors import GalileoError, InternalError, UnknownDataset
from galileo.wire.status import METADATA_KEY, code_of, error_to_pb, pushback_of, status_text

Servicer = TypeVar("Servicer")
Request = TypeVar("Request")
Reply = TypeVar("Reply")
Context: TypeAlias = grpc.aio.ServicerContext

STALLED_MAX_S = 600.0
"""A stream whose reader takes nothing for so long is ended, and what it holds given back."""

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
            await refuse(context, error)

    return guarded


def streaming(
    handler: Callable[[Servicer, Request, Context], AsyncIterator[Reply]],
    *,
    stalled_max_s: float = STALLED_MAX_S,
) -> Callable[[Servicer, Request, Context], AsyncIterator[Reply]]:
    """The same for a handler that yields its replies.

    A reply is written before the handler is asked for the next one, so a slow reader slows the
    handler down. When the reader is gone, the handler is closed at once.
    """

    @functools.wraps(handler)
    async def guarded(self: Servicer, request: Request, context: Context) -> AsyncIterator[Reply]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            stream = cast(AsyncGenerator[Reply, None], handler(self, request, context))
            async with aclosing(stream) as replies:
                async for reply in replies:
                    stalled = loop.call_later(stalled_max_s, _end, task, stalled_max_s)
                    try:
                        yield reply
                    finally:
                        stalled.cancel()
        except Exception as error:
            await refuse(context, error)

    return guarded


def _end(task: asyncio.Task[Any] | None, stalled_s: float) -> None:
    log.warning("cancelled a stream whose reader received nothing for %g s", stalled_s)
    if task is not None:
        task.cancel()


async def refuse(context: Context, error: Exception) -> NoReturn:
    """Aborts a call with an error, its kind and details in the trailing metadata."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, GalileoError):
        log.exception("a call failed with an internal error", exc_info=error)
        where = f"the node's log has it with the request id {request_id.current()}"
        error = InternalError(f"internal error; {where}")
    error = redact_for(error, context)
    packed = error_to_pb(error).SerializeToString()
    await context.abort(
        code_of(error), status_text(error), ((METADATA_KEY, packed), *pushback_of(error))
    )
    raise error  # Not reached: abort raises.


def redact_for(error: GalileoError, context: Context) -> GalileoError:
    """Removes names of datasets from an error if the caller has no grant for all datasets."""
    is_unknown = isinstance(error, UnknownDataset) and "dropped" not in error.details
    if is_unknown and getattr(context, "is_restricted", False):
        return UnknownDataset(
            "the dataset does not exist, or you may not use it; datasets() lists those that you "
            "may use"
        )
    return error
