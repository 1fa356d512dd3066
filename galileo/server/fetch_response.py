"""Labels and windows of a response to a fetch."""

from __future__ import annotations

import asyncio

from galileo.ccq.events import AnswerFetch
from galileo.errors import InvalidToken
from galileo.labels import LabelSet
from galileo.model.keyed import labels_of_update
from galileo.model.schema import Schema
from galileo.model.windows import Window, WindowChanges, WindowProgress, advance_windows
from galileo.packing import Compression
from galileo.packs import PackedLabels, Piece
from galileo.server.withdrawals import Withdrawals


async def pieces_of(labels: PackedLabels | None, compression: Compression) -> list[Piece]:
    """The packs of the cache; those with too many labels of others are packed anew in a thread."""
    if labels is None:
        return []
    if labels.is_quick:
        return labels.pieces()
    return await asyncio.to_thread(labels.pieces, compression.for_reply)


def check_progress(window: Window, progress: WindowProgress) -> None:
    """Raises InvalidToken if the progress is impossible for these windows."""
    if not window.is_reachable(progress):
        raise InvalidToken("the resume token has impossible windows")


def apply_windows(
    window: Window,
    progress: WindowProgress,
    answer: AnswerFetch,
    *,
    schema: Schema,
    gone: Withdrawals | None = None,
) -> tuple[WindowProgress, WindowChanges]:
    """Advances the windows of a reader by an answer.

    Takes time in proportion to the labels.

    Args:
        window: of the query.
        progress: of the reader before the answer.
        answer: to the reader.
        schema: of the labels.
        gone: what the answer withdraws; None: nothing.

    Raises:
        InvalidToken: the progress in the token is impossible.
    """
    check_progress(window, progress)
    nothing = schema.label_schema.empty_table()
    new, withdrawn = answer.labels.labels().table if answer.labels else nothing, nothing
    if gone is not None:
        new, withdrawn = labels_of_update(
            schema,
            new,
            replaced=gone.replaced,
            withdrawn=gone.withdrawn,
            shortened=gone.shortened,
        )
    return advance_windows(
        window,
        progress,
        buckets=LabelSet(schema, new).buckets,
        withdrawn=LabelSet(schema, withdrawn).buckets,
        clock_us=answer.clock_us,
        more=answer.more,
    )
