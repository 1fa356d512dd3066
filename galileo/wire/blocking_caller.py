"""Calls of nodes from processes without an event loop, such as those of Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from galileo.errors import Cancelled, GalileoError, IncompleteAnswer, TransientError
from galileo.wire.caller import DEFAULTS, Backoff, BackoffClock, CallOptions, Result
from galileo.wire.channel import open_blocking_channel
from galileo.wire.status import error_of_rpc
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles


class BlockingCaller:
    """Calls nodes, with one channel to each; thread-safe.

    Unlike a `Caller` it tries the next address after each `TransientError`: it is given the node
    that has the data first, then those that can get the data from there.

    Args:
        addresses: "host:port" of one or more nodes, in the order in which they are tried.
        options: times of calls.
        keys: TLS files and token.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        options: CallOptions = DEFAULTS,
        keys: TlsFiles = NO_TLS_FILES,
    ) -> None:
        self.options = options
        self._addresses = list(addresses)
        self._keys = keys
        self._channels: dict[str, grpc.Channel] = {}
        self._opening = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for channel in self._channels.values():
            channel.close()

    def unary(
        self, service: ServiceDescriptor, method: str, request: Any, *, first: str = ""
    ) -> Any:
        """The answer to a request, within `call_s`; arguments and errors as `call`."""

        def attempt(channel: Any) -> Any:
            return getattr(channel.stub(service), method)(request, timeout=self.options.call_s)

        return self.call(attempt, first=first)

    def stream(
        self,
        service: ServiceDescriptor,
        method: str,
        request: Any,
        *,
        check: Callable[[Any], None] = lambda _: None,
    ) -> Iterator[Any]:
        """The parts of an answer; tries other nodes until the first part has arrived.

        Args:
            service: its descriptor.
            method: its name.
            request: to be sent.
            check: raises a GalileoError if another node is to be called because of the first part.
        """

        def attempt(channel: grpc.Channel) -> tuple[Any, Any]:
            call = getattr(channel.stub(service), method)(request, timeout=self.options.stream_s)
            first = next(call, None)
            try:
                if first is not None:
                    check(first)
            except GalileoError:
                call.cancel()
                raise
            return call, first

        return _parts(*self.call(attempt))

    def exchange(self, path: str, request: bytes) -> bytes:
        """The encoded answer to an encoded request, within `call_s`; errors as `call`."""

        def attempt(channel: Any) -> bytes:
            answer: bytes = channel.encoded(path)(request, timeout=self.options.call_s)
            return answer

        return self.call(attempt)

    def exchange_parts(self, path: str, request: bytes) -> Iterator[bytes]:
        """The encoded parts of the answer to an encoded request; errors as `stream`."""

        def attempt(channel: Any) -> tuple[Any, Any]:
            call = channel.encoded(path, is_stream=True)(request, timeout=self.options.stream_s)
            return call, next(call, None)

        return _parts(*self.call(attempt))

    def call(self, attempt: Callable[[grpc.Channel], Result], *, first: str = "") -> Result:
        """The result of `attempt` at the first node that answers.

        Args:
            attempt: makes one call; may run several times.
            first: an address that is tried before the others.

        Raises:
            TransientError: no node answered in time.
            GalileoError: the error of a node.
        """
        backoff = self.backoff()
        while True:
            errors = list[GalileoError]()
            for address in dict.fromkeys([first, *self._addresses] if first else self._addresses):
                try:
                    return attempt(self._channel(address))
                except grpc.RpcError as error:
                    errors.append(error_of_rpc(error, asked=address))
                except TransientError as error:
                    errors.append(error)
                if not isinstance(errors[-1], TransientError | Cancelled):
                    raise errors[-1]
            # An incomplete answer names what is missing; an unreachable address does not.
            incomplete = (error for error in errors if isinstance(error, IncompleteAnswer))
            time.sleep(backoff.pause_s(next(incomplete, errors[0])))

    def backoff(self) -> Backoff:
        """The pauses of a call that begins now."""
        return Backoff(BackoffClock(), patience_s=self.options.patience_s)

    def _channel(self, address: str) -> grpc.Channel:
        with self._opening:
            if address not in self._channels:
                self._channels[address] = open_blocking_channel(address, self._keys)
            return self._channels[address]


def _parts(call: Any, first: Any) -> Iterator[Any]:
    """The first part of a stream and the others; errors as GalileoError."""
    try:
        if first is not None:
            yield first
            yield from call
    except grpc.RpcError as error:
        failure = error_of_rpc(error, asked="the node that answered")
        if isinstance(failure, Cancelled | TransientError):
            message = f"the stream was interrupted ({failure.message}); try again"
            raise TransientError(message) from error
        raise failure from error
    finally:
        call.cancel()
