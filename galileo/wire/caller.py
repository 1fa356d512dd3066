"""Calls of nodes over gRPC: which node is called, how long, how often, and with which errors.

- A `Caller` has a channel to each address. `ask` calls one node once.
- `call` tries the addresses in turn until a node answers. A node that is not reached is tried last
  from then on. A `TransientError` of a node is followed by a pause (`Backoff`) and another attempt,
  until the patience of the call ends; every other error is raised at once, since a further attempt
  would not help. An attempt may thus run several times: what must not be done twice has an id or a
  number by which nodes recognise it.
- A node that answers neither a call of `call` nor a health check hangs; the next one is called.
- `open` is `call` for a stream and its first part; `resume` continues a broken stream.
- Each attempt has the deadline of its kind of call, and `patience_s` bounds when the last attempt
  of a call begins.

Processes without an event loop have a `BlockingCaller` (`blocking_caller.py`).
"""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
)
from contextlib import aclosing
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from galileo import request_id, spans
from galileo.errors import (
    DeadlineExceeded,
    GalileoError,
    InputError,
    TransientError,
    Unavailable,
)
from galileo.wire import forks, tls_probe
from galileo.wire.channel import Channels, SharedChannels
from galileo.wire.services import HEALTH
from galileo.wire.status import CLOSED, error_of_rpc
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles

Result = TypeVar("Result")
Item = TypeVar("Item")


DISCOVER_S = 5.0
"""Age at which the addresses of the nodes are read again."""
AVOID_S = 30.0
"""How long an owner or coordinator that did not answer is not called directly."""
SILENCE_S = 2.0
"""Time after which a node that has not answered is sent a health check."""
HEALTH_S = 3.0
"""Deadline of a health check, after which another node is called."""
PAUSE_S, PAUSE_MAX_S = 0.1, 1.0
"""The first pause between two attempts, and the longest; each pause is twice the last."""
PAUSE_MIN_S = 0.05
"""The shortest pause if the node advises one."""
PAUSE_SPREAD = 0.25
"""Jitter: a pause is longer by up to this share, or also shorter if the node advised none, so that
clients that failed together do not retry together."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Times of calls, in seconds.

    Attributes:
        patience_s: how long a call is repeated while nodes are unreachable or busy.
        ingest_patience_s: the same, for a batch of observations.
        call_s: deadline of one attempt.
        stream_s: deadline of a stream, with the pauses of its reader.
    """

    patience_s: float = 15.0
    ingest_patience_s: float = 60.0
    call_s: float = 40.0
    stream_s: float = 86_400.0


DEFAULTS = CallOptions()


@dataclass(frozen=True, slots=True)
class BackoffClock:
    """Clock, sleep and random numbers of the pauses.

    Attributes:
        monotonic: seconds, of a clock that never jumps.
        sleep: waits for some seconds.
        random: a number in [0, 1), not of the global generator, which programs seed.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.Random().random


class Backoff:
    """The pauses between the attempts of one call, up to a deadline: exponential, with jitter.

    Args:
        clock: clock and sleep.
        patience_s: time to the deadline, from now.
    """

    def __init__(self, clock: BackoffClock, *, patience_s: float) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + patience_s
        self._next_s = PAUSE_S

    @property
    def left_s(self) -> float:
        """Seconds to the deadline: the patience of a call that is part of this one."""
        return max(0.0, self._deadline - self._clock.monotonic())

    def pause_s(self, error: GalileoError) -> float:
        """The pause that the error advises, or else the next of the backoff.

        Raises:
            GalileoError: the error, if the pause would pass the deadline.
        """
        chance = self._clock.random()
        advised = error.details.get("after_s")
        if advised is not None:
            pause_s = max(float(advised), PAUSE_MIN_S) * (1 + PAUSE_SPREAD * chance)
        else:
            pause_s = self._next_s * (1 + PAUSE_SPREAD * (2 * chance - 1))
            self._next_s = min(2 * self._next_s, PAUSE_MAX_S)
        if self._clock.monotonic() + pause_s > self._deadline:
            raise error
        return pause_s

    async def after(self, error: GalileoError) -> None:
        """Waits for `pause_s`; errors as it."""
        await self._clock.sleep(self.pause_s(error))


class Stream:
    """The parts of the answer of one node; cancel it if it is not read to its end.

    Args:
        call: of `grpc.aio`.
        address: of the callee.
        asked: the callee, for messages about the connection.
        name: the callee, for other messages.
        part_s: time to the next part; None: the deadline of the whole call.
    """

    def __init__(
        self, call: Any, *, address: str, asked: str, name: str, part_s: float | None
    ) -> None:
        self.address = address
        self._call = call
        self._asked, self._name = asked, name
        self._part_s = part_s

    async def read(self) -> Any:
        """The next part; None at the end.

        Raises:
            DeadlineExceeded: the part did not come in time.
            GalileoError: of the node.
        """
        try:
            async with asyncio.timeout(self._part_s):
                part = await self._call.read()
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{self._name} sent nothing for {self._part_s:g} s; try again", address=self._asked
            ) from error
        except grpc.RpcError as error:
            raise error_of_rpc(error, asked=self._asked) from error
        return None if part is grpc.aio.EOF else part

    async def next(self) -> Any:
        """The next part of an answer that ends with a tail; errors as `read`.

        Raises:
            Unavailable: the stream ended before the tail.
        """
        part = await self.read()
        if part is None:
            raise Unavailable("the node closed the stream before its answer was complete")
        return part

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (part := await self.read()) is not None:
            yield part

    async def write(self, request: Any) -> None:
        """Sends a request; a stream that has ended takes none, and says why when it is read."""
        try:
            await self._call.write(request)
        except asyncio.InvalidStateError:
            return
        except grpc.RpcError as error:
            raise error_of_rpc(error, asked=self._asked) from error

    def cancel(self) -> None:
        self._call.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()


@dataclass(frozen=True, slots=True)
class Connection:
    """Calls of one node.

    Attributes:
        channel: to the node.
        address: of the node.
        options: times of calls.
        asked: the callee, for messages about the connection; by default the address.
        name: the callee, for other messages.
    """

    channel: Any
    address: str
    options: CallOptions = DEFAULTS
    asked: str = ""
    name: str = "the node"

    async def unary(
        self,
        service: ServiceDescriptor,
        method: str,
        request: Any,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """The answer to a request, by default within `call_s`; errors of gRPC as GalileoError."""
        call = getattr(self.channel.stub(service), method)
        try:
            return await call(request, timeout=timeout_s or self.options.call_s)
        except grpc.RpcError as error:
            raise error_of_rpc(error, asked=self.asked or self.address) from error

    async def exchange(self, path: str, request: bytes, *, timeout_s: float) -> bytes:
        """The encoded answer to an encoded request; errors as `unary`.

        Args:
            path: of the method, "/service/method".
            request: as its service encodes it.
            timeout_s: deadline of the call.
        """
        try:
            answer: bytes = await self.channel.encoded(path)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_of_rpc(error, asked=self.asked or self.address) from error
        return answer

    def stream(
        self,
        service: ServiceDescriptor,
        method: str,
        request: Any = None,
        *,
        timeout_s: float | None = None,
        part_s: float | None = None,
    ) -> Stream:
        """The answer to a request as a stream; without a request, one that takes requests.

        Args:
            service: its descriptor.
            method: its name.
            request: to be sent.
            timeout_s: deadline of the stream, by default `stream_s`.
            part_s: time to each part.
        """
        requests = () if request is None else (request,)
        method_of = getattr(self.channel.stub(service), method)
        call = method_of(*requests, timeout=timeout_s or self.options.stream_s)
        return self._stream_of(call, part_s)

    def exchange_parts(self, path: str, request: bytes, *, part_s: float) -> Stream:
        """The encoded parts of the answer to an encoded request; arguments as `exchange`.

        Args:
            path: of the method.
            request: encoded.
            part_s: time to each part.
        """
        call = self.channel.encoded(path, is_stream=True)(request, timeout=self.options.stream_s)
        return self._stream_of(call, part_s)

    def _stream_of(self, call: Any, part_s: float | None) -> Stream:
        asked = self.asked or self.address
        return Stream(call, address=self.address, asked=asked, name=self.name, part_s=part_s)


class AvoidedAddresses:
    """Addresses that did not answer, each for `AVOID_S`.

    Args:
        monotonic: clock in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until: dict[str, float] = {}

    def record(self, address: str, error: GalileoError) -> None:
        """Adds an address if `error` says that it did not answer; a node's own error does not."""
        if isinstance(error, DeadlineExceeded) or error.details.get("address") == address:
            self.add(address)

    def add(self, address: str) -> None:
        self._until[address] = self._monotonic() + AVOID_S

    def __contains__(self, address: str) -> bool:
        return self._until.get(address, 0.0) > self._monotonic()


class Caller:
    """Calls the nodes of a cluster, with one channel to each; belongs to one event loop.

    Args:
        addresses: "host:port" of the nodes, in the order in which they are tried.
        options: times of calls.
        clock: of the pauses between attempts.
        keys: TLS files and token.
        discover: see the attribute.
        has_fixed_window: as `Channels`.

    Attributes:
        avoided: addresses that did not answer a call of `call_owner`.
        on_error: called with each error that a node answers, before it is raised.
        discover: reads the addresses of all nodes from one. It is called after the first answer,
            again after `DISCOVER_S`, because nodes come and go, and after an address did not
            answer, because the node may have another one now.
    """

    def __init__(
        self,
        addresses: Iterable[str] = (),
        *,
        options: CallOptions = DEFAULTS,
        clock: BackoffClock | None = None,
        keys: TlsFiles = NO_TLS_FILES,
        discover: Callable[[Connection], Awaitable[Iterable[str]]] | None = None,
        has_fixed_window: bool = False,
    ) -> None:
        self.addresses = list(dict.fromkeys(addresses))
        self._configured = frozenset(self.addresses)
        self.options = options
        self.clock = clock or BackoffClock()
        keys.check()
        self._is_tls, self._certificate = keys.is_tls, keys.certificate
        self._channels: Channels | SharedChannels = Channels(
            keys, has_fixed_window=has_fixed_window
        )
        self.discover = discover
        self._discovered_at = -inf
        self.avoided = AvoidedAddresses(self.clock.monotonic)
        self.on_error: Callable[[GalileoError], None] = lambda _: None
        self._checked_at: dict[str, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def with_token(self, token: str) -> Caller:
        """A caller over the same connections, whose calls carry another token.

        Args:
            token: "" for none. This caller must have none.
        """
        assert isinstance(self._channels, Channels), "channels are shared by their owner"
        other = copy.copy(self)
        other._channels = SharedChannels(self._channels, token)
        other.addresses = list(self.addresses)
        other.on_error = lambda _: None
        return other

    async def close(self) -> None:
        await self._channels.close()

    async def close_oldest(self, left: int) -> None:
        """Closes the channels that were used least recently, until so many are left."""
        await self._channels.close_oldest(left)

    def backoff(self, patience_s: float | None = None) -> Backoff:
        """The pauses of a call that begins now."""
        patience_s = self.options.patience_s if patience_s is None else patience_s
        return Backoff(self.clock, patience_s=patience_s)

    async def unary(
        self,
        service: ServiceDescriptor,
        method: str,
        request: Any,
        *,
        timeout_s: float | None = None,
        patience_s: float | None = None,
    ) -> Any:
        """`call` for one request with one answer; arguments as `Connection.unary`."""
        return await self.call(
            lambda node: node.unary(service, method, request, timeout_s=timeout_s),
            patience_s=patience_s,
        )

    async def call(
        self,
        attempt: Callable[[Connection], Awaitable[Result]],
        *,
        patience_s: float | None = None,
        first: str | None = None,
    ) -> Result:
        """The result of `attempt` at the first node that gives one.

        Args:
            attempt: makes one call of a node; may run several times.
            patience_s: for how long a `TransientError` is followed by another attempt.
            first: the address that is tried first, once.

        Raises:
            Unavailable: no node answered in time; names the addresses that were tried.
            GalileoError: the error that the node answered.
        """
        backoff = self.backoff(patience_s)
        with request_id.serving(), spans.span("request"):
            while True:
                try:
                    return await self._try_addresses(attempt, first)
                except TransientError as error:
                    await backoff.after(error)
                    first = None

    async def call_owner(
        self,
        owner: str,
        attempt: Callable[[Connection], Awaitable[Result]],
        *,
        patience_s: float | None = None,
    ) -> Result:
        """As `call`, at the address of an owner first, unless it did not answer in `AVOID_S`."""

        async def recorded(node: Connection) -> Result:
            try:
                return await attempt(node)
            except TransientError as error:
                self.avoided.record(node.address, error)
                raise

        first = None if owner in self.avoided else owner
        return await self.call(recorded, patience_s=patience_s, first=first)

    async def open(
        self,
        attempt: Callable[[Connection], Stream],
        first: Callable[[Stream], Awaitable[Result]],
        *,
        owner: str = "",
    ) -> tuple[Stream, Result]:
        """As `call`, for a stream and the first value that `first` reads from it.

        With an owner as `call_owner`.
        """
        opened: list[Stream] = []

        async def open_and_read(node: Connection) -> Result:
            while opened:
                opened.pop().cancel()
            opened.append(attempt(node))
            return await first(opened[0])

        try:
            value = await (
                self.call_owner(owner, open_and_read) if owner else self.call(open_and_read)
            )
        except BaseException:
            while opened:
                opened.pop().cancel()
            raise
        return opened[0], value

    async def resume(
        self,
        rest: Callable[[], AsyncGenerator[Item, None]],
        *,
        patience_s: float | None = None,
        is_progress: Callable[[Item], bool] = lambda _: True,
    ) -> AsyncGenerator[Item, None]:
        """The items of a stream; continues it after a `TransientError`, as long as there is hope.

        Args:
            rest: opens the stream behind the items that it yielded before.
            patience_s: how long to try without progress.
            is_progress: whether an item is something new.

        Raises:
            TransientError: the last one, without progress in time.
        """
        backoff, has_progress = self.backoff(patience_s), False
        while True:
            try:
                async with aclosing(rest()) as items:
                    async for item in items:
                        has_progress = is_progress(item) or has_progress
                        yield item
                return
            except TransientError as error:
                if has_progress:  # Not when the item came: the reader may have taken long with it.
                    backoff, has_progress = self.backoff(patience_s), False
                await backoff.after(error)

    async def ask(self, address: str, attempt: Callable[[Connection], Awaitable[Result]]) -> Result:
        """The result of one `attempt` at one address, without a retry; errors as `call`."""
        result = await attempt(self.connection(address))
        await self.learn_addresses(address)
        return result

    async def _try_addresses(
        self, attempt: Callable[[Connection], Awaitable[Result]], first: str | None
    ) -> Result:
        """Tries each address once, until a node answers with a result or an error."""
        reasons: dict[str, str] = {}
        addresses = self.addresses if first is None else [first, *self.addresses]
        for address in dict.fromkeys(addresses):
            try:
                result = await self.while_live(address, attempt(self.connection(address)))
            except GalileoError as error:
                if not _is_unreachable(error, address):
                    self.on_error(error)
                    raise
                reasons[address] = error.details.get("reason") or error.message
                self.deprioritise(address)
            else:
                await self.learn_addresses(address)
                return result
        await tls_probe.check_tls(reasons, is_tls=self._is_tls)
        _, reason = reasons.popitem()
        if reason == CLOSED and self._is_tls:
            reason += (
                "; a node also closes the connection in the TLS handshake if it does not accept "
                f"the client's certificate {self._certificate}: issue one with the authority of "
                "this cluster (galileo cert issue client)"
            )
        raise Unavailable(
            f"no node could be reached at {', '.join(self.addresses)}; check that the cluster "
            f"runs and that the addresses are right. Last error: {reason}",
            addresses=self.addresses,
        )

    async def while_live(self, address: str, work: Awaitable[Result]) -> Result:
        """The result of work for which a node is waited; gives up if the node hangs.

        A process that is stopped or cut off keeps its connections for longer: keep-alive is slow,
        because it costs every connection. Without other nodes to ask there are no health checks.

        Raises:
            Unavailable: the node answered neither in time nor a health check.
        """
        if len(self.addresses) < 2:
            return await work
        limit, loop = asyncio.timeout(None), asyncio.get_running_loop()
        checks = list[asyncio.Task[None]]()

        def begin_checks() -> None:
            checks.append(loop.create_task(self._end_when_silent(address, limit)))

        timer = loop.call_later(SILENCE_S, begin_checks)
        try:
            async with limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            self.avoided.add(address)
            raise Unavailable(
                f"{address} answers neither the call nor a health check", address=address
            ) from error
        finally:
            timer.cancel()
            for check in checks:
                check.cancel()

    async def _end_when_silent(self, address: str, limit: asyncio.Timeout) -> None:
        """Lets `limit` expire when the node does not answer a health check."""
        while True:
            if not await self._is_live(address):
                limit.reschedule(asyncio.get_running_loop().time())
                return
            await asyncio.sleep(SILENCE_S)

    async def _is_live(self, address: str) -> bool:
        """Whether a node answers a health check, with whatever; one check serves many calls.

        A node that is gone refuses the connection of the check, while a call that was sent at the
        moment of its death has been seen to wait for 50 s in gRPC.
        """
        now = self.clock.monotonic()
        if now < self._checked_at.get(address, -inf) + SILENCE_S / 2:
            return True  # Or another call notices, and this one with its next check.
        self._checked_at[address] = now
        request = health_pb2.HealthCheckRequest()
        try:
            await self.connection(address).unary(HEALTH, "Check", request, timeout_s=HEALTH_S)
        except DeadlineExceeded:
            return False
        except GalileoError as error:
            if _is_unreachable(error, address):
                return False
        return True

    async def learn_addresses(self, address: str) -> None:
        """Reads the addresses of all nodes from one, where they may have changed."""
        now, before = self.clock.monotonic(), self._discovered_at
        if self.discover is None or now < before + DISCOVER_S:
            return
        self._discovered_at = now
        try:
            members = list(await self.discover(self.connection(address)))
        except GalileoError:
            self._discovered_at = before
            return
        except asyncio.CancelledError:
            self._discovered_at = before
            raise
        known = [a for a in self.addresses if a in self._configured or a in members]
        self.addresses = list(dict.fromkeys([*known, *members]))

    def connection(self, address: str, *, asked: str = "", name: str = "the node") -> Connection:
        """The calls of the node at an address; arguments as `Connection`.

        Raises:
            InputError: the caller belongs to another event loop, or to the parent process.
        """
        forks.check()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InputError(
                "expected calls from the event loop in which this client was first used, got "
                "another loop; create a client in each loop (each asyncio.run has its own)"
            )
        return Connection(self._channels.get(address), address, self.options, asked, name)

    def forget_addresses(self) -> None:
        """Has the addresses of all nodes read again after the next answer."""
        self._discovered_at = -inf

    def deprioritise(self, address: str) -> None:
        """Moves an address behind all others, and has the addresses read again."""
        self.forget_addresses()
        if address in self.addresses:
            self.addresses.remove(address)
            self.addresses.append(address)


def _is_unreachable(error: GalileoError, address: str) -> bool:
    """Whether no node answered at this address."""
    return isinstance(error, Unavailable) and error.details.get("address") == address
