"""The shard of a channel: the log of its executions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.graph.columns import Commits
from galileo.model.channel import Channel
from galileo.node.shard import Shard


class LastExecutions:
    """The index of a log of executions: the last one of each partition."""

    runs = 0

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}
        self._dropped = EMPTY_CURSOR

    def insert_many(
        self, batch: pa.RecordBatch, commits: Commits, counts: npt.NDArray[np.integer[Any]]
    ) -> None:
        """Takes commits of ascending sequences in each partition; those without paths are seals."""
        is_execution = np.asarray(counts) > 0
        partitions, sequences = commits.partition[is_execution], commits.sequence[is_execution]
        positions = zip(sequences.tolist(), batch.column("subscriptions").to_pylist(), strict=True)
        self._last.update(zip(partitions.tolist(), positions, strict=True))

    def last(self, partition: int) -> int:
        """The commit of the last execution; 0 if there is none."""
        return self._last.get(partition, (0, 0))[0]

    def subscriptions(self, partition: int) -> int:
        """The commit of the subscriptions that the last execution has seen."""
        return self._last.get(partition, (0, 0))[1]

    def remove(self, partition: int) -> None:
        """Removes a partition, which may be inserted again."""
        self._last.pop(partition, None)
        self._dropped = Cursor({p: s for p, s in self._dropped.items() if p != partition})

    def drop_before(self, partition: int, sequence: int) -> None:
        """Notes that the commits of a partition before a sequence are dropped."""
        self._dropped = self._dropped.join({partition: sequence - 1})

    @property
    def dropped(self) -> Cursor:
        """The commits that retention has removed."""
        return self._dropped

    def maintain(self) -> bool:
        """There is nothing to merge."""
        return False

    def memory_bytes(self) -> int:
        """Bytes of the index, which are few."""
        return 0


class ChannelShard(Shard):
    """The journals of one channel on this node."""

    schema: Channel
    index: LastExecutions

    def __init__(self, channel: Channel, **options: Any) -> None:
        super().__init__(channel, LastExecutions(), **options)
