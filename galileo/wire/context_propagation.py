"""Propagation of the request id and the trace context in the metadata of calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from galileo import request_id, spans

Origin: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of a call's metadata; may be kept, and sent to where the work is gone on with."""


def outgoing_metadata() -> Origin:
    """Of what this task does; a new request where it serves none."""
    carried = ((request_id.METADATA_KEY, request_id.current() or request_id.new_id()),)
    traceparent = spans.current()
    return (*carried, (spans.METADATA_KEY, traceparent)) if traceparent else carried


@contextmanager
def going_on(with_: Origin) -> Iterator[None]:
    """Within, this task serves the request of an origin, in its span."""
    told = dict(with_)
    with (
        request_id.serving(told.get(request_id.METADATA_KEY, "")),
        spans.inside(told.get(spans.METADATA_KEY, "")),
    ):
        yield


def take_over(metadata: Mapping[str, Any]) -> str:
    """From here on this task serves the request that a caller names, or a new one.

    Returns:
        The `traceparent` that the caller names; empty where it names none.
    """
    request_id.begin(request_id.sound(metadata.get(request_id.METADATA_KEY)))
    return spans.sound(metadata.get(spans.METADATA_KEY))
