"""Compacts sealed segments of all partitions in the background, at a bounded rate.

It has a thread of its own, because a compaction can take minutes.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field, replace

from galileo import spans
from galileo.errors import GalileoError
from galileo.model.times import MICROS
from galileo.node.catalog import Catalog
from galileo.node.channel_shard import ChannelShard
from galileo.node.retention_plan import PIECES
from galileo.node.shard import Shard
from galileo.storage.compaction import CompactionOptions
from galileo.storage.journal import PartitionJournal

INTERVAL_S = 10.0
"""Seconds between two checks."""
RETRY_AFTER_S = 600.0
"""Seconds without compactions of a partition after a failed one."""
BYTES_PER_S = 32 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompactionRunnerOptions:
    """When segments are merged, and how much of the disk that may take.

    Args:
        merge: thresholds of one merge.
        bytes_per_s: of segments read, over all partitions; about as much is read again and less
            written.
        interval_s: seconds between two checks.
    """

    merge: CompactionOptions = field(default_factory=CompactionOptions)
    bytes_per_s: int = BYTES_PER_S
    interval_s: float = INTERVAL_S


class CompactionRunner:
    """Starts its thread at once; `stop` it before the journals are closed."""

    def __init__(self, catalog: Catalog, options: CompactionRunnerOptions) -> None:
        self._catalog = catalog
        self._options = options
        self._retry_at: dict[tuple[str, int], float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="merging", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cancels a running compaction, and ends the thread; blocks until then."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._options.interval_s):
            for dataset, shard in self._catalog.shards.items():
                merge = self._merge_options(shard)
                for partition, journal in sorted(shard.journals.items()):
                    self._merge((dataset, partition), journal, merge)

    def _merge_options(self, shard: Shard) -> CompactionOptions:
        """Limits the time span of files with a maximum age, since a file is dropped as a whole."""
        kept_us = self._kept_us(shard)
        if kept_us is None:
            return self._options.merge
        return replace(self._options.merge, span_us=round(kept_us / PIECES))

    def _kept_us(self, shard: Shard) -> float | None:
        """For how long the rows of a shard are kept; None: without a limit of age."""
        if isinstance(shard, ChannelShard):
            return shard.schema.keep_us
        policy = self._catalog.retention(shard.schema.key).retention
        return None if policy is None or policy.age_s is None else policy.age_s * MICROS

    def _merge(
        self, place: tuple[str, int], journal: PartitionJournal, merge: CompactionOptions
    ) -> None:
        if time.monotonic() < self._retry_at.get(place, 0.0):
            return
        try:
            started = time.monotonic()
            while not self._stopping.is_set() and journal.merge(merge, self._pace):
                now = time.monotonic()
                dataset, partition = place
                spans.record(
                    "merging", parent="", took_s=now - started, dataset=dataset, partition=partition
                )
                log.info("merged segments of %s/p%d", *place)
                started = now
        except (OSError, GalileoError) as error:
            self._retry_at[place] = time.monotonic() + RETRY_AFTER_S
            log.error("merging segments of %s/p%d failed: %s", *place, error)

    def _pace(self, size: int) -> bool:
        return not self._stopping.wait(size / self._options.bytes_per_s)
