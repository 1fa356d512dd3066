"""Channels and servers with common limits, and request context on every call."""

from __future__ import annotations

import functools
import ipaddress
import resource
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor

from galileo import spans
from galileo.errors import ConfigError, MessageTooLarge
from galileo.wire import forks
from galileo.wire.context_propagation import outgoing_metadata
from galileo.wire.services import EVALUATOR_SERVICE, stub_of
from galileo.wire.tls_credentials import NO_TLS_FILES, LoadedTls, TlsFiles, TlsLoader

MESSAGE_BYTES_MAX = 64 << 20
PIECE_BYTES = 1 << 20
"""Size of the pieces of a request to a node: one that is as large or larger is sent as several
messages, of which the last one is shorter."""
REQUEST_MESSAGE_BYTES_MAX = PIECE_BYTES + (64 << 10)
"""One message of a request to a node: a piece, or a token with its request."""
UNREAD_BYTES = 64 << 10
"""What a node receives of a request that it has not begun to read."""
KEEPALIVE_MS = 10_000
PING_TIMEOUT_MS = 5_000
RECONNECT_BACKOFF_MS = 300
CONNECT_TIMEOUT_S = 3.0
"""Timeout of one attempt to connect, with the handshakes of TLS and HTTP/2."""
STREAMS_MAX = 1_024
CONNECTIONS_MAX = 4_096
"""Connections of a process; at most half of its open files, because the store needs some."""
HANDSHAKE_MS = 10_000
"""Timeout of the handshakes of TLS and HTTP/2 of an accepted connection."""
IDLE_MS = 600_000
"""Time after which an unused connection is closed; the next call opens another."""
IDENTITY_ONLY = 1
"""The bit set of accepted compressions: none, as protection against decompression bombs."""
WINDOW_BYTES = 256 << 10
"""What a stream of a process near the nodes receives ahead of its reader; a part of an answer is
received whole when it is read."""
LOOK_S = 1.0
"""Interval of checks for replaced key files."""
RETIRED_MAX = 256
"""Channels with replaced keys that are kept for active calls."""
TOKEN_KEY = "authorization"
TOKEN_SCHEME = "Bearer "

_READERS_MAX = 64
_OF_EVALUATORS = f"/{EVALUATOR_SERVICE}/"
"""Evaluators are not nodes, and read requests whole."""

Channel = TypeVar("Channel")

_COMMON: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    # keepalive_timeout alone notices a stopped peer after a minute; this one bounds it.
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
]


_OPENED = [
    *_COMMON,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(1000 * CONNECT_TIMEOUT_S)),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_BACKOFF_MS),
    ("grpc.use_local_subchannel_pool", 1),
]


_FIXED_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", WINDOW_BYTES)]


class InstrumentedChannel:
    """A channel whose calls carry the request id, the trace context and a token.

    It replaces interceptors, which cost a task and several objects per call and lack `read` of
    streams, and call credentials, which carry no token without TLS.

    Args:
        channel: of `grpc` or `grpc.aio`; its other attributes are unchanged.
        token: the caller's token; "" for none.
    """

    def __init__(self, channel: Any, token: str = "") -> None:
        self._channel = channel
        self._proof = ((TOKEN_KEY, TOKEN_SCHEME + token),) if token else ()
        self._stubs: dict[ServiceDescriptor, SimpleNamespace] = {}
        self._encoded: dict[str, Callable[..., Any]] = {}

    def stub(self, service: ServiceDescriptor) -> SimpleNamespace:
        """`stub_of` the service, made once."""
        if service not in self._stubs:
            self._stubs[service] = stub_of(service, self)
        return self._stubs[service]

    def encoded(self, path: str, *, is_stream: bool = False) -> Callable[..., Any]:
        """The call of a method whose request and answer, or its parts, are bytes; made once."""
        if path not in self._encoded:
            self._encoded[path] = (self.unary_stream if is_stream else self.unary_unary)(path)
        return self._encoded[path]

    def with_token(self, token: str) -> InstrumentedChannel:
        """The same connection, whose calls carry another token."""
        return InstrumentedChannel(self._channel, token)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def __aenter__(self) -> InstrumentedChannel:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.__aexit__(*error)

    def __enter__(self) -> InstrumentedChannel:
        self._channel.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.__exit__(*error)

    def unary_unary(self, method: str, *args: Any, **options: Any) -> Callable[..., Any]:
        return self._carrying(self._in_pieces("unary", method, *args, **options), method)

    def unary_stream(self, method: str, *args: Any, **options: Any) -> Callable[..., Any]:
        return self._carrying(self._in_pieces("stream", method, *args, **options), method)

    def stream_unary(self, method: str, *args: Any, **options: Any) -> Callable[..., Any]:
        return self._carrying(self._channel.stream_unary(method, *args, **options), method)

    def stream_stream(self, method: str, *args: Any, **options: Any) -> Callable[..., Any]:
        return self._carrying(self._channel.stream_stream(method, *args, **options), method)

    def _in_pieces(
        self,
        answer: str,
        method: str,
        request_serializer: Callable[[Any], bytes] = bytes,
        response_deserializer: Callable[[bytes], Any] | None = None,
        **options: Any,
    ) -> Callable[..., Any]:
        """A call with one request, which is sent in pieces if it is large."""
        kinds = (f"unary_{answer}", f"stream_{answer}")
        whole, divided = (
            getattr(self._channel, kind)(method, None, response_deserializer, **options)
            for kind in kinds
        )

        def called(request: Any, **options: Any) -> Any:
            data = request_serializer(request)
            if len(data) < PIECE_BYTES or method.startswith(_OF_EVALUATORS):
                return whole(data, **options)
            if len(data) > MESSAGE_BYTES_MAX:
                raise MessageTooLarge(
                    f"expected a request of at most {MESSAGE_BYTES_MAX:,} bytes, got "
                    f"{len(data):,}; send smaller batches",
                    bound=MESSAGE_BYTES_MAX,
                )
            # Where its size is a multiple of that of a piece, the last piece is empty.
            starts = range(0, len(data) + 1, PIECE_BYTES)
            return divided((data[start : start + PIECE_BYTES] for start in starts), **options)

        return called

    def _carrying(self, call: Callable[..., Any], method: str) -> Callable[..., Any]:
        def called(request: Any = None, *, metadata: Any = None, **options: Any) -> Any:
            authenticated = (*self._proof, *(metadata or ()))
            if spans.is_on():
                return _recorded(call, method, request, metadata=authenticated, options=options)
            return call(request, metadata=(*authenticated, *outgoing_metadata()), **options)

        return called


def _recorded(
    call: Callable[..., Any],
    method: str,
    request: Any,
    *,
    metadata: Sequence[tuple[str, Any]],
    options: Mapping[str, Any],
) -> Any:
    """Makes the call in a span of its own."""
    span = spans.begun(short_name(method), kind="client")
    if span is None:
        return call(request, metadata=(*metadata, *outgoing_metadata()), **options)
    with spans.inside(span.traceparent):
        carried = outgoing_metadata()
    try:
        answer = call(request, metadata=(*metadata, *carried), **options)
    except Exception as error:
        span.end(error=type(error).__name__)
        raise
    if hasattr(answer, "add_done_callback"):
        answer.add_done_callback(lambda _: span.end())
    else:  # A message: a blocking call has ended.
        span.end()
    return answer


def short_name(method: str) -> str:
    """`/galileo.v1.Query/Run` as `Query/Run`."""
    service, _, name = method.rpartition("/")
    return f"{service.rpartition('.')[2]}/{name}"


def open_channel(address: str, keys: TlsFiles = NO_TLS_FILES) -> grpc.aio.Channel:
    """A channel to `host:port` that reconnects within a third of a second.

    Args:
        address: of the server.
        keys: TLS files and token, read once.

    Raises:
        ConfigError: they cannot be used, or a token would be sent unencrypted.
        InputError: this process was forked while gRPC ran.
    """
    return _opened(address, TlsLoader(keys))


def _opened(address: str, reader: TlsLoader, *, has_fixed_window: bool = False) -> grpc.aio.Channel:
    loaded = reader.read()
    more = _FIXED_WINDOW if has_fixed_window else []
    channel = _connected(grpc.aio, loaded, address=address, options=[*_OPENED, *more])
    return _carried(channel, loaded, reader.keys, address=address)


def open_blocking_channel(address: str, keys: TlsFiles = NO_TLS_FILES) -> grpc.Channel:
    """Like `open_channel`, for callers without an event loop.

    Such channels are short-lived. One that is opened while key files are being replaced uses the
    previous ones of this process.
    """
    loaded = _reader(keys).read()
    channel = _connected(grpc, loaded, address=address, options=_OPENED)
    return _carried(channel, loaded, keys, address=address)


def _connected(
    library: Any, loaded: LoadedTls, *, address: str, options: list[tuple[str, Any]]
) -> Any:
    """A channel of `grpc` or of `grpc.aio`."""
    if loaded.credentials is None:
        return forks.opened(lambda: library.insecure_channel(address, options=options))
    return forks.opened(
        lambda: library.secure_channel(address, loaded.credentials, options=options)
    )


@functools.lru_cache(_READERS_MAX)
def _reader(keys: TlsFiles) -> TlsLoader:
    return TlsLoader(keys)


class Channels:
    """One channel to each address; replaced key files lead to new channels.

    Args:
        keys: TLS files and token of all channels.
        has_fixed_window: whether a stream receives only `WINDOW_BYTES` ahead of its reader. gRPC
            otherwise measures the connection and receives several MiB, which a distant client
            needs for its throughput.
        monotonic: clock in seconds.
    """

    def __init__(
        self,
        keys: TlsFiles = NO_TLS_FILES,
        *,
        has_fixed_window: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        forks.check()
        self.keys = keys
        self._has_fixed_window = has_fixed_window
        self._reader = TlsLoader(keys)
        self._monotonic = monotonic
        self._open: OrderedDict[str, grpc.aio.Channel] = OrderedDict()
        self._retired: deque[grpc.aio.Channel] = deque(maxlen=RETIRED_MAX)
        self._state = keys.state()
        self._looked = monotonic()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel to an address; errors as `open_channel`."""
        forks.check()
        if self.keys != NO_TLS_FILES:
            self._look()
        if address not in self._open:
            self._open[address] = _opened(
                address, self._reader, has_fixed_window=self._has_fixed_window
            )
        self._open.move_to_end(address)
        return self._open[address]

    def _look(self) -> None:
        """Reads replaced key files; active calls stay on the old channels."""
        now = self._monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked, state = now, self.keys.state()
        if state == self._state:
            return
        try:
            self.keys.check()
        except ConfigError:
            return  # Partly written: keep the old files until the next check.
        self._state = state
        self._retired.extend(self._open.values())
        self._open.clear()

    async def close(self) -> None:
        if forks.is_cut_off():
            return  # They belong to the parent process.
        await self.close_oldest(0)
        while self._retired:
            await self._retired.pop().close()

    async def close_oldest(self, left: int) -> None:
        """Closes the least recently used old channels."""
        while len(self._open) > left:
            _, oldest = self._open.popitem(last=False)
            await oldest.close()


class SharedChannels:
    """The channels of a process, whose calls carry the token of one of its callers.

    Args:
        channels: with keys that have no token; closed by their owner.
        token: "" for none.
    """

    def __init__(self, channels: Channels, token: str) -> None:
        self._channels = channels
        self._token = token
        self._carrying: dict[str, tuple[Any, Any]] = {}

    def get(self, address: str) -> Any:
        """The channel to an address; errors as `Channels.get`."""
        channel: Any = self._channels.get(address)
        known = self._carrying.get(address)
        if known is None or known[0] is not channel:
            _check_token_path(self._token, self._channels.keys, address=address)
            known = self._carrying[address] = channel, channel.with_token(self._token)
        return known[1]

    async def close(self) -> None:
        """Does nothing: others use the channels."""

    async def close_oldest(self, left: int) -> None:
        """Does nothing: others use the channels."""


def _carried(channel: Channel, loaded: LoadedTls, keys: TlsFiles, *, address: str) -> Channel:
    _check_token_path(loaded.token, keys, address=address)
    carrying: Any = InstrumentedChannel(channel, loaded.token)
    return carrying  # type: ignore[no-any-return]


def _check_token_path(token: str, keys: TlsFiles, *, address: str) -> None:
    """Raises ConfigError if a token would be sent unencrypted."""
    if token and not (keys.is_tls or keys.insecure or is_loopback(address)):
        raise ConfigError(
            f"expected TLS to send a token to {address}, or others on the network could read it",
            remedy="insecure",
            expected="tls",
            address=address,
        )


def is_loopback(address: str) -> bool:
    """Whether `host:port` is a loopback address."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _connections_max() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_unlimited = files == resource.RLIM_INFINITY
    return CONNECTIONS_MAX if is_unlimited else min(CONNECTIONS_MAX, files // 2)


def node_server_options() -> Sequence[tuple[str, Any]]:
    """The options of a node, whose callers may be anybody.

    gRPC receives a part of a request before it is read: `UNREAD_BYTES`, instead of as much as the
    connection can carry. It receives the rest, up to a piece, when the node reads the request.
    """
    own = {
        "grpc.max_receive_message_length": REQUEST_MESSAGE_BYTES_MAX,
        "grpc.http2.bdp_probe": 0,
        "grpc.http2.lookahead_bytes": UNREAD_BYTES,
    }
    return [*(dict(server_options()) | own).items()]


def server_options() -> Sequence[tuple[str, Any]]:
    return [
        *_COMMON,
        # Otherwise two servers could share a port.
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.max_allowed_incoming_connections", _connections_max()),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.http2.settings_timeout", HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", IDLE_MS),
        ("grpc.compression_enabled_algorithms_bitset", IDENTITY_ONLY),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
