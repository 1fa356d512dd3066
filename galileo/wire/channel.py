"""Channels and servers with the limits that every connection of ours has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc.aio

MESSAGE_BYTES_MAX = 64 << 20
KEEPALIVE_MS = 10_000
PING_TIMEOUT_MS = 5_000
RECONNECT_BACKOFF_MS = 300
STREAMS_MAX = 1_024

_COMMON: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    # keepalive_timeout alone notices a stopped peer after a minute; this one bounds it.
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
]


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to `host:port` that reconnects within a third of a second."""
    options = [
        *_COMMON,
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_BACKOFF_MS),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.insecure_channel(address, options=options)


def server_options() -> Sequence[tuple[str, Any]]:
    return [
        *_COMMON,
        # Else two servers could share one port without noticing.
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
