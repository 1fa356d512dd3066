"""What an owner found for a cycle, as messages of bounded size.

A part whose rows do not fit one message is sent as several; only the last of them has its items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from galileo.cycle import MatchBatch, MatchedPartitions, Matches, joined
from galileo.labels import from_ipc
from galileo.wire.codec import LABELS_PER_MESSAGE, table_pieces


def in_messages(matches: Matches) -> Iterator[Matches]:
    """An answer in messages, the parts first."""
    for part in matches.parts:
        pieces = [*_pieces(part.matches)]
        for piece in pieces[:-1]:
            yield Matches((replace(part, items=part.items[:0], matches=piece),))
        yield Matches((replace(part, matches=pieces[-1]),))
    if len(matches.unknown) or matches.failures:
        yield replace(matches, parts=())


class MatchReader:
    """Collects the messages of an answer.

    Args:
        schema: of its labels.

    Attributes:
        matches: the complete parts so far, and what else was received.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._pieces: list[MatchBatch] = []
        self.matches = Matches()

    def take(self, message: Matches) -> None:
        """Adds a message.

        Raises:
            InputError: its labels have another schema, or its pairs do not fit them.
        """
        parts = [part for part in map(self._part, message.parts) if part is not None]
        now = self.matches
        self.matches = Matches(
            (*now.parts, *parts),
            np.concatenate((now.unknown, message.unknown)),
            (*now.failures, *message.failures),
        )

    def _part(self, part: MatchedPartitions) -> MatchedPartitions | None:
        """The whole part of which this is the last piece; None if more follow."""
        rows = from_ipc(part.matches.rows, self._schema)
        self._pieces.append(replace(part.matches, rows=rows).check())
        if len(part.items) == 0:
            return None
        pieces, self._pieces = self._pieces, []
        matches = pieces[0] if len(pieces) == 1 else joined(pieces, self._schema)
        return replace(part, matches=matches)


def _pieces(matches: MatchBatch) -> Iterator[MatchBatch]:
    """The pairs of a bounded number of rows each; one piece at least."""
    if matches.rows.num_rows == 0:
        yield matches
    start = 0
    for rows in table_pieces(matches.rows, LABELS_PER_MESSAGE):
        inside = (matches.places >= start) & (matches.places < start + rows.num_rows)
        places = matches.places[inside] - np.uint32(start)
        yield MatchBatch(matches.items[inside], places, rows.combine_chunks())
        start += rows.num_rows
