"""Admission of calls: bounds of what one process handles at a time, with a share for each caller.

A call is admitted when its caller is known and has a role for the method, and only then is its
request read; an unread request needs no memory here, because HTTP/2 flow control stops the sender.
A request arrives in pieces (`galileo.wire.channel.PIECE_BYTES`). Before each piece is read, room
for it is reserved, from one pool for bulk requests and another one for all others, so that uploads
do not block queries. What has arrived is held until the end of the call. The number of large
responses at a time is bounded; they wait in turns. Quotas of principals are checked elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from galileo.errors import (
    DeadlineExceeded,
    GalileoError,
    InputError,
    MessageTooLarge,
    Overloaded,
)
from galileo.rpc.access import Principal, is_node_call
from galileo.rpc.error_mapping import Context, refuse
from galileo.rpc.policy import POLICIES
from galileo.shares import RETRY_AFTER_S, SHARE_HOLDER, ArrivingRequest, Pool, ShareHolder
from galileo.wire.channel import MESSAGE_BYTES_MAX, PIECE_BYTES
from galileo.wire.v1 import policy_pb2
from galileo.wire.v1.policy_pb2 import Policy
from galileo.wire.zero_copy import Bulk, has_more_fields

CALLS_MAX = 16_384
"""Concurrent calls of a process, streams included."""
PUBLIC_CALLS_MAX = 256
"""Concurrent calls of methods that need no token."""
SMALL_REQUEST_BYTES_MAX = 1 << 20
"""Request size of methods whose policy names no other."""
QUERY_REQUEST_BYTES_MAX = 8 << 20
"""Request size of methods with a query (up to a million characters), token or archive."""
FIELDS_MAX = 16_384
"""Fields of a request above 1 MB; of a request of clients the messages, and the values of each
field. An empty field of 2 bytes can become an object of 128, and the event loop looks at each."""
NAME_CHARACTERS_MAX = 4_096
"""Characters of a text that clients send, unless it is JSON, a query or a token: errors quote names
and look for similar ones."""
REQUESTS_BYTES_MAX = 512 << 20
"""Total size of concurrent requests that are not bulk requests."""
BULK_BYTES_MAX = 4 << 30
"""Total size of concurrent bulk requests; at most a quarter of the memory."""
ROOM_WITHIN_S = 20.0
"""Longest wait of a call for room or for a slot."""
ARRIVES_WITHIN_S = 60.0
"""Longest time to receive a request."""
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

Decode = Callable[[bytes], Any]


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


class StreamSlots(Pool):
    """Slots for responses with observations; stalled readers are evicted for waiting ones."""

    def __init__(self, most: int) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(most, look_s=GIVES_WAY_S, monotonic=loop.time)
        self._running: set[StreamSlot] = set()

    async def begin(self, caller: ShareHolder, *, within_s: float) -> StreamSlot | None:
        """Acquires a slot for the rest of this task; None on a timeout."""
        if not await self.take(caller, within_s=within_s):
            return None
        slot = StreamSlot(_current_task())
        self._running.add(slot)
        slot.task.add_done_callback(lambda _: self._end(slot, caller))
        return slot

    def _end(self, slot: StreamSlot, caller: ShareHolder) -> None:
        self._running.discard(slot)
        self.give_back(caller)

    def relieve(self) -> None:
        """Evicts the reader that has stalled for longest, one at a time."""
        if any(slot.gives_way for slot in self._running):
            return
        stalled = [(slot.stalled_at, slot) for slot in self._running if slot.stalled_at is not None]
        if not stalled:
            return
        since, longest = min(stalled, key=lambda pair: pair[0])
        if self.monotonic() - since >= GIVES_WAY_S:
            longest.gives_way = True
            longest.task.cancel()


class Admission:
    """The bounds of a process.

    Args:
        bulk_bytes_max: total size of concurrent bulk requests.
    """

    def __init__(self, *, bulk_bytes_max: int | None = None) -> None:
        self._calls = Pool(CALLS_MAX)
        self._public_calls = Pool(PUBLIC_CALLS_MAX, kept=0)
        self._small, self._bulk = Pool(REQUESTS_BYTES_MAX), Pool(bulk_bytes_max or BULK_BYTES_MAX)
        self._heartbeats = Pool(sys.maxsize)
        self._slots = {
            policy_pb2.READ_SLOT: StreamSlots(READINGS_MAX),
            policy_pb2.QUERY_SLOT: StreamSlots(ANSWERS_MAX),
        }

    @property
    def calls(self) -> int:
        """The number of active calls."""
        return self._calls.held + self._public_calls.held

    @property
    def requests_bytes(self) -> int:
        """Bytes of all requests, reservations included."""
        return self._small.held + self._bulk.held

    def admit(self, method: str, principal: Principal | None, context: Context) -> AdmittedCall:
        """Admits a call until its task ends; heartbeats always.

        Args:
            method: "/package.Service/Method".
            principal: the caller, which has a role for the method; None for public methods.
            context: of the call.

        Raises:
            Overloaded: the process, or the share of the caller, has no place for it.
        """
        policy, caller = POLICIES.get(method, _DEFAULT), _caller(method, principal, context)
        if policy.heartbeat:
            calls = requests = self._heartbeats
        else:
            calls = self._calls if principal is not None else self._public_calls
            requests = self._bulk if policy.size == policy_pb2.BULK else self._small
        if not calls.take_now(caller):
            raise Overloaded(
                f"this node answers {calls.held:,} calls at the moment; try again shortly",
                after_s=RETRY_AFTER_S,
            )
        SHARE_HOLDER.set(caller)
        call = AdmittedCall(policy, context, caller, requests, self._slots.get(policy.slot))

        def end(_: asyncio.Task[Any]) -> None:
            calls.give_back(caller)
            call.room.release()

        _current_task().add_done_callback(end)
        return call


class AdmittedCall:
    """A call that was admitted.

    Attributes:
        room: for its request.
        slots: for its answer; None if it needs none.
        slot: of its answer, once it has one.
    """

    def __init__(
        self,
        policy: Policy,
        context: Context,
        caller: ShareHolder,
        requests: Pool,
        slots: StreamSlots | None,
    ) -> None:
        self.room = ArrivingRequest(requests, caller, end=self.abort)
        self.slots = slots
        self.slot: StreamSlot | None = None
        self._policy = policy
        self._context = context
        self._caller = caller
        self._bytes_max = _REQUEST_BYTES_MAX[policy.size]
        self._aborting: asyncio.Task[None] | None = None

    async def read(self, decode: Decode) -> Any:
        """Reads and decodes the request of a call with one request.

        Raises:
            InputError: it is no message of its type, or it is missing.
            MessageTooLarge: it has too many bytes or fields.
            Overloaded: there was no room for it in time.
        """
        late = DeadlineExceeded(f"expected the request within {ARRIVES_WITHIN_S:g} s; try again")
        timer = asyncio.get_running_loop().call_later(ARRIVES_WITHIN_S, self.abort, late)
        try:
            data = await self._read()
        finally:
            timer.cancel()
        self.room.complete()
        return self._decoded(data, decode)

    async def _read(self) -> bytes:
        """The pieces of the request, of which the last has less than `PIECE_BYTES`."""
        pieces, size, is_last = list[bytes](), 0, False
        while not is_last:
            await self.room.reserve(PIECE_BYTES, within_s=ROOM_WITHIN_S)
            piece = await self._context.read()
            if piece is grpc.aio.EOF:
                break
            size += len(piece)
            self._check_size(size)
            self.room.arrived(len(piece))
            pieces.append(piece)
            is_last = len(piece) < PIECE_BYTES
        if not pieces:
            raise InputError("expected a request, got none")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def each(self, decode: Decode) -> AsyncIterator[Any]:
        """Reads and decodes the requests of a stream; errors as `read`."""
        while (data := await self._context.read()) is not grpc.aio.EOF:
            self._check_size(len(data))
            yield self._decoded(data, decode)

    async def begin_answer(self) -> None:
        """Waits for the slot of the answer.

        Raises:
            Overloaded: there was none in time.
        """
        if self.slots is not None:
            self.slot = await self.slots.begin(self._caller, within_s=ROOM_WITHIN_S)
            if self.slot is None:
                message = "this node answers too many readers at the moment; try again shortly"
                raise Overloaded(message, after_s=RETRY_AFTER_S)

    def note_stall(self) -> None:
        """Notes that the reader of the answer is sent a part of it, until `note_progress`."""
        if self.slot is not None:
            self.slot.stalled_at = asyncio.get_running_loop().time()

    def note_progress(self) -> None:
        if self.slot is not None:
            self.slot.stalled_at = None

    def abort(self, error: GalileoError) -> None:
        """Ends a call that waits for its request; the wait ends with the call."""
        self._aborting = asyncio.create_task(self._abort(error))

    async def _abort(self, error: GalileoError) -> None:
        with contextlib.suppress(Exception):  # Refusing raises, or the call has just ended.
            await refuse(self._context, error)

    def _check_size(self, size: int) -> None:
        if size > self._bytes_max:
            raise MessageTooLarge(
                f"expected a request of at most {self._bytes_max:,} bytes, got more",
                bound=self._bytes_max,
            )

    def _decoded(self, data: bytes, decode: Decode) -> Any:
        try:
            if _is_inflated(data, self._policy):
                message = f"expected a request of at most {FIELDS_MAX:,} parts, got more"
                raise MessageTooLarge(message, bound=FIELDS_MAX)
            request = decode(data)
        except DecodeError as error:
            message = f"expected a message of protobuf, got {len(data):,} bytes that fail: {error}"
            raise InputError(message) from error
        message = request.head if isinstance(request, Bulk) else request
        if self._policy.clients and isinstance(message, Message):
            _check_values(message)
        return request


def _check_values(request: Message) -> None:
    """Raises MessageTooLarge where a request has too many values or messages, or a long name."""
    messages = [request]
    for message in messages:
        fields = _fields_beside_bytes(message.DESCRIPTOR)
        values = [(field, getattr(message, field.name)) for field in fields]
        for field, value in values or message.ListFields():
            is_name = field.name not in ("query", "token") and not field.name.endswith("_json")
            if isinstance(value, str) and is_name:
                _check_bound(len(value), NAME_CHARACTERS_MAX, f"characters of {field.name}")
            if field.is_repeated:
                _check_bound(len(value), FIELDS_MAX, field.name)
            if field.message_type is not None:
                messages += value if field.is_repeated else (value,)
                _check_bound(len(messages) - 1, FIELDS_MAX, "messages in a request")


def _check_bound(number: int, most: int, what: str) -> None:
    if number > most:
        raise MessageTooLarge(f"expected at most {most:,} {what}, got {number:,}", bound=most)


@functools.cache
def _fields_beside_bytes(kind: Descriptor) -> list[FieldDescriptor]:
    """The fields of a kind of messages that has bytes, which access would copy; else none."""
    fields = [field for field in kind.fields if field.type != field.TYPE_BYTES]
    return fields if len(fields) < len(kind.fields) else []


def _is_inflated(data: bytes, policy: Policy) -> bool:
    """Whether a request has so many fields that decoding would need far more memory."""
    is_small = len(data) <= SMALL_REQUEST_BYTES_MAX
    return not is_small and not policy.single_field and has_more_fields(data, FIELDS_MAX)


def _caller(method: str, principal: Principal | None, context: Context) -> ShareHolder:
    """Who takes the room of a call."""
    host = context.peer().rpartition(":")[0]
    if principal is None:
        return ShareHolder(host)
    return ShareHolder(host, principal.name, is_kept=is_node_call(principal, method))


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "calls are tasks"
    return task
