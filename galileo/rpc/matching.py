"""Codec of match tasks."""

from __future__ import annotations

import numpy as np

from galileo.errors import InputError
from galileo.node.standing_queries import MatchTask
from galileo.query.index.query_digest import DIGEST_BYTES
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.match_codec import cursors_from_bytes, sequences_from_bytes

MATCH_ITEMS_MAX = 1_000_000
PARTITION_MAX = 2**31 - 1


def match_task_from_pb(request: peers_pb2.MatchRequest) -> MatchTask:
    """The task of a request.

    Raises:
        InputError: its columns do not fit each other, or there are too many items.
    """
    named = list(request.partitions)
    if not named or named != sorted(set(named)) or named[-1] > PARTITION_MAX:
        raise InputError(
            f"expected partitions from 0 to {PARTITION_MAX} in ascending order, at least one; "
            f"got {named[:10]}"
        )
    partitions = np.array(named, dtype=np.int32)
    after = sequences_from_bytes(request.after, partitions=len(partitions))
    cursors = cursors_from_bytes(request.cursors, rows=len(after))
    if len(cursors) > MATCH_ITEMS_MAX:
        raise InputError(
            f"expected at most {MATCH_ITEMS_MAX:,} items in a match, got {len(cursors):,}"
        )
    if len(request.digests) != DIGEST_BYTES * len(cursors):
        raise InputError(
            f"expected {DIGEST_BYTES} bytes of digest for each of {len(cursors):,} items, "
            f"got {len(request.digests):,} bytes"
        )
    return MatchTask(request.dataset, partitions, after, cursors, request.digests)
