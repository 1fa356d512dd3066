"""Read positions (token or cursor) and their encoding in FetchMany requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from galileo.cursor import Cursor
from galileo.wire import token as resume
from galileo.wire.codec import cursor_to_pb
from galileo.wire.v1 import continuous_pb2

Stand: TypeAlias = str | Cursor
"""A token, or the cursor from which one is encoded when it is needed."""


def encode_positions(
    request: continuous_pb2.FetchManyRequest, stands: Mapping[str, Stand], *, spelled_out: bool
) -> None:
    """The tokens of a request's queries, or the cursors that they are made of."""
    encoder, numbers = resume.Encoder(), dict[int, int]()
    tokens, places = [], []
    for ccq_id in request.ccq_ids:
        stand = stands[ccq_id]
        place = 0
        if isinstance(stand, str):
            tokens.append(stand)
        elif spelled_out:
            tokens.append(encoder.encode(ccq_id, stand, resume.NO_PROGRESS))
        else:
            tokens.append("")
            place = numbers.setdefault(id(stand), len(numbers) + 1)
            if place > len(request.cursors):
                request.cursors.append(cursor_to_pb(stand))
        places.append(place)
    request.tokens.extend(tokens)
    if numbers:
        request.stands.extend(places)
