"""Applies retention policies in the background: a look at all datasets every now and then.

One thread, apart from those that serve and from merging: reading headers and deleting files can
take a while, and nothing waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from galileo.cursor import ORIGIN, Cursor
from galileo.errors import GalileoError
from galileo.model.retention import Retention
from galileo.model.times import MICROS
from galileo.node.catalog import Catalog
from galileo.node.peers import HeldBack, RetentionReport
from galileo.node.retention_plan import PIECES, Bounds, Plan, Readers, plan
from galileo.node.shard import Shard

CHECK_S = 60.0
MIN_AGE_S = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetentionRunnerOptions:
    """When policies are applied.

    Args:
        check_s: between two looks.
        min_age_s: commits that are younger are dropped only where the policy may pass readers.
            Longer than a continuous query takes from its first scan until all nodes know of it.
        wall, monotonic: clocks; ages are measured by the first, held to the pace of the second.
    """

    check_s: float = CHECK_S
    min_age_s: float = MIN_AGE_S
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class _Settling:
    """What was committed at two moments; the earlier one has settled once the later has aged."""

    settled: Cursor
    seen: Cursor
    seen_at: float


class RetentionRunner:
    """Starts its thread at once; `stop` it before the journals are closed.

    Args:
        catalog: of the node.
        options: when.
        readers: called in this thread.
    """

    def __init__(
        self, catalog: Catalog, options: RetentionRunnerOptions, *, readers: Readers
    ) -> None:
        self._catalog = catalog
        self._options = options
        self._readers = readers
        self._started = options.monotonic()
        self._started_wall = options.wall()
        self._settling: dict[str, _Settling] = {}
        self._begun: dict[tuple[str, int], tuple[int, float]] = {}
        self._held: dict[str, tuple[HeldBack, ...]] = {}
        self._working = threading.Lock()
        self._stopping = threading.Event()
        self._observe()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the partition at hand; blocks until then."""
        self._stopping.set()
        self._thread.join()

    def held(self, dataset: str) -> tuple[HeldBack, ...]:
        """What readers held back when the dataset was last looked at."""
        return self._held.get(dataset, ())

    def apply(self, dataset: str) -> RetentionReport:
        """Does now what the dataset's policy demands; blocks.

        Raises:
            UnknownDataset: there is none of that name.
        """
        shard, policy = self._catalog.shard(dataset), self._catalog.retention(dataset).retention
        with self._working:
            self._observe()
            if policy is None:
                self._held.pop(dataset, None)
                return RetentionReport()
            report = self._carry_out(shard, self._plan(shard, policy))
            self._held[dataset] = report.held
            return report

    def _run(self) -> None:
        while not self._stopping.wait(self._options.check_s):
            for dataset in self._catalog.keys:
                if not self._stopping.is_set():
                    self._try(dataset)

    def _try(self, dataset: str) -> None:
        try:
            self.apply(dataset)
        except Exception:
            log.exception("retention of dataset %s failed; it is tried again", dataset)

    def _plan(self, shard: Shard, policy: Retention) -> Plan:
        dataset = shard.schema.key
        pieces = {p: journal.log_files() for p, journal in shard.own.items()}
        settled = self._settling[dataset].settled if dataset in self._settling else ORIGIN
        # Readers are listed after the files were listed, so that none of these is newer.
        bounds = Bounds(settled, self._readers(dataset))
        planned = plan(pieces, policy, bounds=bounds, now_us=self._now_us())
        seal = planned.seal | self._long_written(shard, policy)
        return Plan(seal, planned.drop, planned.held)

    def _now_us(self) -> int:
        """The time, but never further on than this process has lived: a wall clock that is set
        forward by mistake must not cost data.
        """
        lived = self._started_wall + self._options.monotonic() - self._started
        return int(min(self._options.wall(), lived) * MICROS)

    def _observe(self) -> None:
        """Records what is committed now, to know later which commits have settled."""
        now = self._options.monotonic()
        for dataset, shard in self._catalog.shards.items():
            before = self._settling.get(dataset)
            if before is None:
                self._settling[dataset] = _Settling(ORIGIN, shard.published(), now)
            elif now - before.seen_at >= self._options.min_age_s:
                self._settling[dataset] = _Settling(before.seen, shard.published(), now)

    def _long_written(self, shard: Shard, policy: Retention) -> frozenset[int]:
        """The partitions that have written to one file for a good part of the policy's age."""
        if policy.age_s is None:
            return frozenset()
        now, partitions = self._options.monotonic(), set()
        for partition, journal in shard.own.items():
            key, last = (shard.schema.key, partition), journal.log_files()[-1:]
            if not last or last[0].sealed:
                self._begun.pop(key, None)
                continue
            first, since = self._begun.setdefault(key, (last[0].first, now))
            if first != last[0].first:
                self._begun[key] = (last[0].first, now)
            elif now - since > policy.age_s / PIECES:
                partitions.add(partition)
        return frozenset(partitions)

    def _carry_out(self, shard: Shard, found: Plan) -> RetentionReport:
        files = commits = size = 0
        failures = []
        for partition in sorted({*found.seal, *found.drop}):
            if self._stopping.is_set():
                break
            if not shard.owns(partition):
                continue
            place = f"{shard.schema.key}/p{partition}"
            try:
                if partition in found.seal:
                    shard.journals[partition].seal()
                done = shard.drop(partition, found.drop[partition])
            except (OSError, GalileoError) as error:
                log.error("retention of %s failed: %s", place, error)
                failures.append(f"{place}: {error}")
                continue
            files, commits, size = files + done.files, commits + done.commits, size + done.bytes
            if done.files:
                log.info(
                    "retention dropped %d files of %s, %d bytes, commits up to %d",
                    *(done.files, place, done.bytes, done.until),
                )
        return RetentionReport(files, commits, size, found.held, tuple(failures))
