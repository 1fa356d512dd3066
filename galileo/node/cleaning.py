"""Erases now what was deleted or replaced, in all partitions that this node has.

Each node erases its own copies, also those that another node leads. No reader is waited for: one
that is behind gets `DataExpired`, and a continuous query begins anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from galileo.errors import GalileoError, InputError, Unavailable
from galileo.node.channel_shard import ChannelShard
from galileo.node.shard import Shard

PUBLISHED_WITHIN_S = 10.0
"""Seconds within which frames that are being written are committed, or else are not waited for."""
POLL_S = 0.05
ATTEMPTS_MAX = 10
"""How often the files of a partition are begun again after retention has dropped some of them."""


@dataclass(frozen=True, slots=True)
class CleaningProgress:
    """How far the cleaning of a dataset at one node is.

    Attributes:
        partitions: that are done.
        partitions_total: that the node has.
        files: that were rewritten.
        rows: that were erased.
        bytes: by which the files are smaller.
        failures: why some partitions are not done; the others are.
    """

    partitions: int = 0
    partitions_total: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    failures: tuple[str, ...] = ()


def clean(shard: Shard, stopping: threading.Event) -> Iterator[CleaningProgress]:
    """Erases what commits up to now have removed, a partition at a time; in a thread.

    Args:
        shard: of a dataset or table.
        stopping: ends it; what was erased before stays so.

    Raises:
        InputError: it is a channel.
    """
    if isinstance(shard, ChannelShard):
        raise InputError(
            f"expected a dataset or table, got channel {shard.schema.name!r}, whose executions are "
            "not deleted one by one; see its keep="
        )
    done = CleaningProgress(partitions_total=len(shard.journals))
    yield done
    for partition in sorted(shard.journals):
        try:
            done = _clean_partition(shard, partition, done, stopping)
        except (OSError, GalileoError) as error:
            done = replace(done, failures=(*done.failures, f"p{partition}: {error}"))
        if stopping.is_set():
            return
        done = replace(done, partitions=done.partitions + 1)
        yield done
    shard.checkpoint()


def _clean_partition(
    shard: Shard, partition: int, done: CleaningProgress, stopping: threading.Event
) -> CleaningProgress:
    until = shard.published_sequence(partition)
    _seal(shard, partition, until, stopping)
    for _ in range(ATTEMPTS_MAX):
        erased = shard.erase(partition, until, lambda _: not stopping.is_set())
        done = replace(
            done,
            files=done.files + erased.files,
            rows=done.rows + erased.rows,
            bytes=done.bytes + erased.bytes,
        )
        if erased.is_over or stopping.is_set():
            return done
    raise Unavailable(f"files of partition {partition} are being dropped; try again")


def _seal(shard: Shard, partition: int, until: int, stopping: threading.Event) -> None:
    """Ends the file that is written to if it has rows to erase, and waits until it may change.

    Raises:
        Unavailable: the last of its frames are not committed.
    """
    journal, removed = shard.journal(partition), shard.removed_rows(partition, until)
    if not len(removed):
        return
    last, deadline = int(removed.sequence[-1]), time.monotonic() + PUBLISHED_WITHIN_S
    if not all(file.sealed for file in journal.log_files() if file.first <= last):
        journal.seal()
    end = max((file.last for file in journal.log_files() if file.first <= last), default=0)
    while journal.last_sequence < end and not stopping.wait(POLL_S):
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the last commits of partition {partition} wait for other members; try again"
            )
