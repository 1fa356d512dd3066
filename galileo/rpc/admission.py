"""Admission of calls: bounds on the calls and request bytes that one process handles at a time.

A call is admitted before its request is read; an unread request needs no memory here, because
HTTP/2 flow control stops the sender. A bulk request reserves the largest size of its method until
it was received, then its actual size until the end of the call. Other requests reserve their size
after they were received, from a separate budget, so that slow uploads do not block queries. The
number of large responses at a time is bounded; they wait in order. Quotas of principals are checked
elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from galileo.errors import GalileoError, InputError, MessageTooLarge, Overloaded
from galileo.rpc.call_log import OWN_SERVICES
from galileo.rpc.error_mapping import refuse
from galileo.rpc.policy import POLICIES
from galileo.wire.channel import MESSAGE_BYTES_MAX
from galileo.wire.v1 import policy_pb2
from galileo.wire.v1.policy_pb2 import Policy
from galileo.wire.zero_copy import has_more_fields

CALLS_MAX = 16_384
"""Concurrent calls of a process, streams included."""
SMALL_REQUEST_BYTES_MAX = 1 << 20
"""Request size of methods whose policy names no other."""
QUERY_REQUEST_BYTES_MAX = 8 << 20
"""Request size of methods with a query (up to a million characters), token or archive."""
FIELDS_MAX = 262_144
"""Fields of a request above 1 MB; an empty field of 2 bytes can become an object of 128."""
REQUESTS_BYTES_MAX = 512 << 20
"""Total size of concurrent requests that are not bulk requests."""
BULK_BYTES_MAX = 4 << 30
"""Total size of concurrent bulk requests; at most a quarter of the memory."""
ROOM_WITHIN_S = 20.0
"""Longest wait of a call for admission."""
ARRIVES_WITHIN_S = 60.0
"""Longest time to receive a request."""
RETRY_AFTER_S = 1.0
ANSWERS_MAX = 256
"""Concurrent queries."""
READINGS_MAX = 64
"""Concurrent responses with observations; each holds some MB while its reader is slow."""
GIVES_WAY_S = 10.0
"""Time without progress after which a reader is evicted for a waiting one."""

_REQUEST_BYTES_MAX = {
    policy_pb2.SMALL: SMALL_REQUEST_BYTES_MAX,
    policy_pb2.QUERY: QUERY_REQUEST_BYTES_MAX,
    policy_pb2.BULK: MESSAGE_BYTES_MAX,
}
_DEFAULT = policy_pb2.Policy()

Handler = Any
"""A `grpc.RpcMethodHandler`; its type is private."""


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """Bounds of a process; see the constants above."""

    calls_max: int = CALLS_MAX
    requests_bytes_max: int = REQUESTS_BYTES_MAX
    bulk_bytes_max: int = BULK_BYTES_MAX
    room_within_s: float = ROOM_WITHIN_S
    arrives_within_s: float = ARRIVES_WITHIN_S
    answers_max: int = ANSWERS_MAX
    readings_max: int = READINGS_MAX
    gives_way_s: float = GIVES_WAY_S


@dataclass(slots=True)
class _WeightedSemaphore:
    """A semaphore with weights that grants in order of the requests."""

    most: int
    taken: int = 0
    waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)

    async def take(self, size: int, *, within_s: float) -> bool:
        """Acquires `amount`; returns False on a timeout."""
        if self.take_now(size):
            return True
        granted = asyncio.get_running_loop().create_future()
        self.waiting.append((size, granted))
        try:
            async with asyncio.timeout(within_s):
                await granted
        except TimeoutError:
            # Grant and timeout may coincide: the grant counts.
            return granted.done() and not granted.cancelled()
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give_back(size)
            raise
        return True

    def take_now(self, size: int) -> bool:
        """Acquires `amount` without waiting; returns False if it is not free or others wait."""
        if self.waiting or self.taken + size > self.most:
            return False
        self.taken += size
        return True

    def give_back(self, size: int) -> None:
        self.taken -= size
        while self.waiting:
            needed, granted = self.waiting[0]
            if granted.done():
                self.waiting.popleft()
                continue
            if self.taken + needed > self.most:
                return
            self.waiting.popleft()
            self.taken += needed
            granted.set_result(None)


@dataclass(slots=True, eq=False)
class StreamSlot:
    """The slot of one response with observations.

    Attributes:
        task: the task of its call.
        stalled_at: when its reader stopped receiving; None while it receives.
        gives_way: whether it is being evicted.
    """

    task: asyncio.Task[Any]
    stalled_at: float | None = None
    gives_way: bool = False


class StreamSlots:
    """Slots for responses with observations; stalled readers are evicted for waiting ones."""

    def __init__(self, most: int, *, gives_way_s: float) -> None:
        self._room = _WeightedSemaphore(most)
        self._gives_way_s = gives_way_s
        self._running: set[StreamSlot] = set()

    async def begin(self, *, within_s: float) -> StreamSlot | None:
        """Acquires a slot for this task; None on a timeout. Keeps the position in the queue."""
        if self._room.take_now(1):
            return self._taken()
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self._look())
            try:
                # The end of the group can be cancelled: what was taken ends with the task already.
                is_granted = await self._room.take(1, within_s=within_s)
                return self._taken() if is_granted else None
            finally:
                looking.cancel()

    def _taken(self) -> StreamSlot:
        """The slot that this task has taken, until it ends."""
        task = asyncio.current_task()
        assert task is not None, "calls are tasks"
        reading = StreamSlot(task)
        self._running.add(reading)
        task.add_done_callback(lambda _: self._end(reading))
        return reading

    def _end(self, reading: StreamSlot) -> None:
        self._running.discard(reading)
        self._room.give_back(1)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._gives_way_s)
            self._end_stalled()

    def _end_stalled(self) -> None:
        """Evicts the reader that has stalled for longest, one at a time."""
        if any(running.gives_way for running in self._running):
            return
        stalled = [
            (running.stalled_at, running)
            for running in self._running
            if running.stalled_at is not None
        ]
        if not stalled:
            return
        since, longest = min(stalled, key=lambda pair: pair[0])
        if asyncio.get_running_loop().time() - since >= self._gives_way_s:
            longest.gives_way = True
            longest.task.cancel()


@dataclass(slots=True)
class _Reservation:
    """The reservation of one call."""

    room: _WeightedSemaphore
    size: int
    arriving: asyncio.TimerHandle | None = None

    def arrived(self, size: int) -> None:
        """Replaces the reservation by the actual size.

        Raises:
            Overloaded: there was no reservation, and there is no room.
        """
        self._stop_waiting()
        if size > self.size:
            if not self.room.take_now(size - self.size):
                raise Overloaded(
                    f"this node has no room for a request of {size:,} bytes; try again shortly",
                    after_s=RETRY_AFTER_S,
                )
        else:
            self.room.give_back(self.size - size)
        self.size = size

    def end(self) -> None:
        self._stop_waiting()
        self.room.give_back(self.size)
        self.size = 0

    def _stop_waiting(self) -> None:
        if self.arriving is not None:
            self.arriving.cancel()
            self.arriving = None


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """The error of a request that could not be read, in its place."""

    error: GalileoError


@dataclass(frozen=True, slots=True)
class _Read:
    """A request and its size in bytes."""

    request: Any
    size: int


class AdmissionController(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Admits calls; must be the first interceptor of a server."""

    def __init__(self, options: AdmissionOptions | None = None) -> None:
        self._options = bounds = options or AdmissionOptions()
        self._small, self._bulk = (
            _WeightedSemaphore(bounds.requests_bytes_max),
            _WeightedSemaphore(bounds.bulk_bytes_max),
        )
        self._slots = {
            policy_pb2.READ_SLOT: StreamSlots(bounds.readings_max, gives_way_s=bounds.gives_way_s),
            policy_pb2.QUERY_SLOT: StreamSlots(bounds.answers_max, gives_way_s=bounds.gives_way_s),
        }
        self._calls = 0

    @property
    def calls(self) -> int:
        """The number of active calls."""
        return self._calls

    @property
    def requests_bytes(self) -> int:
        """Bytes of all requests, reservations included."""
        return self._small.taken + self._bulk.taken

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = handler_call_details.method
        if not method.startswith(OWN_SERVICES):
            # Health checks and reflection write their streams in another way.
            return await continuation(handler_call_details)
        policy = POLICIES.get(method, _DEFAULT)
        if policy.heartbeat:
            return _bounded(await continuation(handler_call_details), method, None)
        if self._calls >= self._options.calls_max:
            return _refusing(f"answers {self._options.calls_max:,} calls at the moment")
        self._count()
        within_s, reading = self._options.room_within_s, None
        if policy.slot:
            reading = await self._slots[policy.slot].begin(within_s=within_s)
            if reading is None:
                return _refusing("answers too many readers at the moment")
        room, size = self._small, 0
        if policy.size == policy_pb2.BULK:
            room, size = self._bulk, MESSAGE_BYTES_MAX
            if not await room.take(size, within_s=within_s):
                return _refusing(f"has no room for another request of up to {size:,} bytes")
        charge = _charged(room, size, arrives_within_s=self._options.arrives_within_s)
        handler = await continuation(handler_call_details)
        return _bounded(handler, method, charge, reading)

    def _count(self) -> None:
        """Counts a call until its task ends."""
        self._calls += 1
        task = asyncio.current_task()
        assert task is not None, "interceptors run in the task of their call"
        task.add_done_callback(self._discount)

    def _discount(self, _: asyncio.Task[Any]) -> None:
        self._calls -= 1


def _charged(room: _WeightedSemaphore, size: int, *, arrives_within_s: float) -> _Reservation:
    """A reservation until the end of this task, which is cancelled if no request is received."""
    charge, task = _Reservation(room, size), asyncio.current_task()
    assert task is not None, "interceptors run in the task of their call"
    task.add_done_callback(lambda _: charge.end())
    loop = asyncio.get_running_loop()
    charge.arriving = loop.call_later(arrives_within_s, task.cancel)
    return charge


def _bounded(
    handler: Handler, method: str, charge: _Reservation | None, reading: StreamSlot | None = None
) -> Handler:
    """Wraps a handler so that requests are checked before they are decoded."""
    if handler is None:
        return None
    decode = _decoder(handler.request_deserializer, method)
    kind = (
        f"{'stream' if handler.request_streaming else 'unary'}_"
        f"{'stream' if handler.response_streaming else 'unary'}"
    )
    inner = getattr(handler, kind)
    if handler.request_streaming:
        wrapped = _of_stream(inner, charge, is_streaming=handler.response_streaming)
    elif handler.response_streaming:
        wrapped = _streaming(inner, charge, reading)
    else:
        wrapped = _unary(inner, charge)
    return handler._replace(**{kind: wrapped, "request_deserializer": decode})


def _decoder(
    decode: Callable[[bytes], Any] | None, method: str
) -> Callable[[bytes], _Read | _Unreadable]:
    policy = POLICIES.get(method, _DEFAULT)
    most = _REQUEST_BYTES_MAX[policy.size]

    def decoded(data: bytes) -> _Read | _Unreadable:
        if len(data) > most:
            message = f"expected a request of at most {most:,} bytes, got {len(data):,}"
            return _Unreadable(MessageTooLarge(message))
        try:
            if _is_inflated(data, policy):
                message = f"expected a request of at most {FIELDS_MAX:,} parts, got more"
                return _Unreadable(MessageTooLarge(message, bound=FIELDS_MAX))
            return _Read(decode(data) if decode is not None else data, len(data))
        except DecodeError as error:
            message = f"expected a message of protobuf, got {len(data):,} bytes that fail: {error}"
            return _Unreadable(InputError(message))

    return decoded


def _is_inflated(data: bytes, policy: Policy) -> bool:
    """Whether a request has so many fields that decoding would need far more memory."""
    is_small = len(data) <= SMALL_REQUEST_BYTES_MAX
    return not is_small and not policy.single_field and has_more_fields(data, FIELDS_MAX)


def _unary(inner: Callable[..., Awaitable[Any]], charge: _Reservation | None) -> Callable[..., Any]:
    async def admitted(read: _Read | _Unreadable, context: Any) -> Any:
        if isinstance(read, _Unreadable):
            await refuse(context, read.error)
        await _count_in(charge, read.size, context)
        return await inner(read.request, context)

    return admitted


def _streaming(
    inner: Callable[..., Any], charge: _Reservation | None, reading: StreamSlot | None
) -> Callable[..., Any]:
    loop = asyncio.get_running_loop()

    async def admitted(read: _Read | _Unreadable, context: Any) -> AsyncIterator[Any]:
        if isinstance(read, _Unreadable):
            await refuse(context, read.error)
        await _count_in(charge, read.size, context)
        async with aclosing(inner(read.request, context)) as replies:
            async for reply in replies:
                if reading is not None:
                    reading.stalled_at = loop.time()
                yield reply
                if reading is not None:
                    reading.stalled_at = None

    return admitted


async def _count_in(charge: _Reservation | None, size: int, context: Any) -> None:
    try:
        if charge is not None:
            charge.arrived(size)
    except Overloaded as error:
        await refuse(context, error)


def _of_stream(
    inner: Callable[..., Any], charge: _Reservation | None, *, is_streaming: bool
) -> Callable[..., Any]:
    """Wraps a streaming handler; checks each small request by itself."""

    async def each(reads: AsyncIterator[_Read | _Unreadable], context: Any) -> AsyncIterator[Any]:
        async for read in reads:
            if isinstance(read, _Unreadable):
                await refuse(context, read.error)
            yield read.request

    async def streaming(reads: AsyncIterator[_Read | _Unreadable], context: Any) -> Any:
        if charge is not None:
            charge.arrived(0)
        async with aclosing(inner(each(reads, context), context)) as replies:
            async for reply in replies:
                yield reply

    async def unary(reads: AsyncIterator[_Read | _Unreadable], context: Any) -> Any:
        if charge is not None:
            charge.arrived(0)
        return await inner(each(reads, context), context)

    return streaming if is_streaming else unary


def _refusing(why: str) -> Handler:
    """Rejects a call without reading its request."""

    async def refused(_: Any, context: Any) -> NoReturn:
        message = f"this node {why}; try again shortly"
        await refuse(context, Overloaded(message, after_s=RETRY_AFTER_S))

    return grpc.stream_unary_rpc_method_handler(refused)
