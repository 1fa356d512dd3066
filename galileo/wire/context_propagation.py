"""Propagation of the request id and the trace context in the metadata of calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from galileo import request_id, spans

Origin: TypeAlias = tuple[tuple[str, str], ...]
"""Metadata of a call: request id and trace context."""


def outgoing_metadata() -> Origin:
    """The metadata for calls of this task; with a new request id if it serves no request."""
    carried = ((request_id.METADATA_KEY, request_id.current() or request_id.new_id()),)
    traceparent = spans.current()
    return (*carried, (spans.METADATA_KEY, traceparent)) if traceparent else carried


@contextmanager
def continue_request(with_: Origin) -> Iterator[None]:
    """Continues the request and span of an origin within the block."""
    received = dict(with_)
    with (
        request_id.serving(received.get(request_id.METADATA_KEY, "")),
        spans.inside(received.get(spans.METADATA_KEY, "")),
    ):
        yield


def begin_request(metadata: Mapping[str, Any]) -> str:
    """Starts the request of a caller in this task, or a new one.

    Returns:
        The caller's `traceparent`; empty if it sent none.
    """
    request_id.begin(request_id.sound(metadata.get(request_id.METADATA_KEY)))
    return spans.sound(metadata.get(spans.METADATA_KEY))
