"""Responses to fetches: from the cache, or as another node gave them."""

from __future__ import annotations

import asyncio
import functools

import numpy as np

from galileo.ccq.events import AnswerFetch
from galileo.ccq.model import Ccq
from galileo.ccq.packs import PackedLabels
from galileo.errors import InvalidToken
from galileo.model.windows import Window, WindowChanges, WindowProgress, advance_windows
from galileo.rpc.continuous import Fetched
from galileo.wire.codec import KeptRows, cursor_from_pb, stretches_from_pb, windows_from_pb
from galileo.wire.v1 import continuous_pb2


async def pieces_of(
    labels: PackedLabels | None, *, compressed: bool, allow_row_filters: bool
) -> tuple[list[bytes], dict[int, KeptRows]]:
    """What the cache has packed, as it is, and which rows count where not all of them do.

    Packs that hold too much that does not, or others' labels, are packed anew, in a thread.
    """
    if labels is None:
        return [], {}
    pieces = functools.partial(
        labels.to_pieces, compressed=compressed, allow_row_filters=allow_row_filters
    )
    return (
        pieces()
        if labels.is_quick(allow_row_filters=allow_row_filters)
        else await asyncio.to_thread(pieces)
    )


def forwarded(parts: list[continuous_pb2.FetchPart], *, address: str) -> Fetched:
    head, tail = parts[0].head, parts[-1].tail
    kept: dict[int, KeptRows] = {}
    before = 0
    for part in parts:
        kept |= {before + one.pack: (one.starts, one.counts) for one in part.kept}
        before += len(part.packed)
    return Fetched(
        schema_json=head.schema_json,
        query_json=head.query_json,
        packed=[data for part in parts for data in part.packed],
        token=tail.token,
        cursor=cursor_from_pb(tail.cursor),
        missing=tail.missing,
        frontier=cursor_from_pb(tail.frontier),
        age_s=tail.age_s,
        interval_s=tail.interval_s,
        more=tail.more,
        gone=stretches_from_pb(tail.gone),
        windows=windows_from_pb(tail.windows) if tail.HasField("windows") else None,
        kept=kept,
        coordinator_address=address,
    )


def check_progress(window: Window, progress: WindowProgress) -> None:
    """Raises InvalidToken if the progress is impossible for these windows."""
    if not window.is_reachable(progress):
        raise InvalidToken("the resume token has impossible windows")


def apply_windows(
    made: Ccq, progress: WindowProgress, answer: AnswerFetch
) -> tuple[WindowProgress, WindowChanges | None]:
    """Advances the windows of a reader by an answer; no changes if the query has no windows.

    Takes time in proportion to the labels.

    Raises:
        InvalidToken: the progress in the token is impossible.
    """
    if made.window is None:
        return progress, None
    check_progress(made.window, progress)
    buckets = answer.labels.labels().buckets if answer.labels else np.zeros(0, dtype=np.int64)
    return advance_windows(
        made.window, progress, buckets=buckets, clock_us=answer.clock_us, more=answer.more
    )
