"""Labels and windows of a response to a fetch."""

from __future__ import annotations

import asyncio

import numpy as np

from galileo.ccq.events import AnswerFetch
from galileo.ccq.model import CcqDefinition
from galileo.errors import InvalidToken
from galileo.model.windows import Window, WindowChanges, WindowProgress, advance_windows
from galileo.packing import Compression
from galileo.packs import PackedLabels, Piece


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
    made: CcqDefinition, progress: WindowProgress, answer: AnswerFetch
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
