"""Events and effects of the machine `galileo.ccq.machine.Continuous`, besides those of duties
(`galileo.election.events`).

`cycle_id` pairs a cycle with its result.
"""

from __future__ import annotations

from dataclasses import dataclass

from galileo.ccq.model import Ccq, Record
from galileo.ccq.packs import PackedLabels
from galileo.cursor import EMPTY_CURSOR, CommitRange, Cursor
from galileo.dht.membership import PeerDied, PeerRevived
from galileo.election.events import (
    AnswerSubmit,
    DrainRequested,
    MembersChanged,
    MessageArrived,
    PurgeRecord,
    RecordsLoaded,
    RefuseSubmit,
    SaveRecord,
    Send,
    Ticked,
    UsageMeasured,
)
from galileo.errors import Failure
from galileo.model.windows import ClockStep

# --- events: from the node -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DatasetDropped:
    """The first `generations` datasets of a name were dropped; their CCQs end.

    Comes before RecordsLoaded for all earlier drops; repetition is harmless.
    """

    name: str
    generations: int


@dataclass(frozen=True, slots=True)
class CommitsObserved:
    """Durable commits of a dataset up to these sequences, from own commits and heartbeats.

    Attributes:
        clock: known steps of the event clock, old ones too.
    """

    dataset: str
    sequences: Cursor
    clock: tuple[ClockStep, ...] = ()


# --- events: from clients ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubmitRequested:
    """A CCQ whose initial result was computed; answered by AnswerSubmit or RefuseSubmit.

    Attributes:
        ccq: its id was chosen by the client; the same CCQ may be submitted again.
        reached: frontier of the initial result.
        need_bytes: expected cache size.
        candidates: nodes that may hold matches; their groups are polled first.
    """

    request: int
    ccq: Ccq
    reached: Cursor
    need_bytes: int = 0
    candidates: tuple[str, ...] = ()

    @property
    def record(self) -> Record:
        return Record(self.ccq, term=0, coordinator="", retrieved=self.reached)


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One CCQ of a batch.

    Attributes:
        ccq: its id was chosen by the client; the same CCQ may be submitted again.
        candidates: nodes that may hold matches; their groups are polled first.
        reached: frontier of the initial result.
        need_bytes: expected cache size.
    """

    ccq: Ccq
    candidates: tuple[str, ...] = ()
    reached: Cursor = EMPTY_CURSOR
    need_bytes: int = 0

    @property
    def record(self) -> Record:
        return Record(self.ccq, term=0, coordinator="", retrieved=self.reached)


@dataclass(frozen=True, slots=True)
class BatchSubmitted:
    """CCQs that are submitted at the same time; answered by AnswerBatch, or one RefuseSubmit."""

    request: int
    items: tuple[BatchItem, ...]


@dataclass(frozen=True, slots=True)
class FetchRequested:
    """Answered by one of AnswerFetch, RefuseFetch and RedirectFetch, sooner or later.

    Attributes:
        cursor: of the resume token: what the client has stored.
        wait_until: monotonic time until which to wait for new labels; None answers at once.
        labels_max: soft bound of the answer; one whole commit may exceed it.
        until_clock_us: answer when the event clock reaches this, too.
    """

    request: int
    ccq_id: str
    cursor: Cursor
    wait_until: float | None = None
    labels_max: int = 100_000
    until_clock_us: int | None = None


@dataclass(frozen=True, slots=True)
class FetchAbandoned:
    """The client of this fetch is gone."""

    request: int


@dataclass(frozen=True, slots=True)
class FindRequested:
    """Find the record of a CCQ, wherever it is; answered by AnswerFind or RefuseFind."""

    request: int
    ccq_id: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Answered by AnswerCancel or RefuseCancel."""

    request: int
    ccq_id: str


# --- events: results of effects ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CycleResult:
    """The result of one processing cycle for one CCQ.

    Attributes:
        term: as in the item.
        after: as in the item.
        labels: sampled matches, packed; exactly those with `after < sequence <= reached`. None:
            none.
        reached: for each partition, the last evaluated commit; an unreachable partition is absent
            or stands at `after`.
        failure: why this CCQ failed (its sampler raised); then the result is not applied.
        gone: up to where retention has dropped what lies past `after`; no labels are of there.
    """

    ccq_id: str
    term: int
    after: Cursor
    labels: PackedLabels | None
    reached: Cursor
    failure: Failure | None = None
    gone: Cursor = EMPTY_CURSOR


@dataclass(frozen=True, slots=True)
class CycleFinished:
    cycle_id: int
    results: tuple[CycleResult, ...]


@dataclass(frozen=True, slots=True)
class CycleFailed:
    cycle_id: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class BackfillFinished:
    """The result of a Backfill.

    Attributes:
        labels: sampled matches; all of those with `after < sequence <= reached`. None: none.
        reached: for each partition of the effect, how far; may be less than requested.
        missing: unreachable partitions.
        gone: as in `CycleResult`.
    """

    request: int
    labels: PackedLabels | None
    reached: Cursor
    missing: tuple[int, ...] = ()
    gone: Cursor = EMPTY_CURSOR


@dataclass(frozen=True, slots=True)
class BackfillFailed:
    request: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class SequencesConfirmed:
    """The last commits that the owners of the partitions report, after the effect."""

    request: int
    sequences: Cursor
    unreachable: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PacksCompacted:
    """The labels of a CompactPacks in as few packs as possible; None where that failed."""

    ccq_id: str
    term: int
    labels: PackedLabels | None


# --- spilled packs: events and effects -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpillPacks:
    """Write these labels into a file; answered by PacksSpilled.

    Attributes:
        number: of the file, unique since the node started. Files of earlier runs are obsolete.
    """

    number: int
    ccq: Ccq
    labels: PackedLabels


@dataclass(frozen=True, slots=True)
class PacksSpilled:
    """The size of the file of a SpillPacks; None: it could not be written."""

    number: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class LoadPacks:
    """Read a file back; answered by PacksLoaded."""

    number: int
    ccq: Ccq


@dataclass(frozen=True, slots=True)
class PacksLoaded:
    """The labels of a file; None: it is lost or corrupt."""

    number: int
    ccq_id: str
    labels: PackedLabels | None


@dataclass(frozen=True, slots=True)
class DropSpills:
    """Delete these files."""

    numbers: tuple[int, ...]


# --- handed-off caches: at the coordinator -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadHandedOffCache:
    """Read labels past a token from the holder of a CCQ (perhaps this node).

    Answered by CacheReadAnswered or CacheReadFailed.

    Attributes:
        term: in which the holder coordinated.
        after: the client's token.
        labels_max: the holder may stop after so many labels.
    """

    request: int
    ccq: Ccq
    node: str
    term: int
    after: Cursor
    labels_max: int


@dataclass(frozen=True, slots=True)
class CacheReadAnswered:
    """The answer of a holder to ReadHandedOffCache.

    Attributes:
        labels: all of those with `after < sequence <= reached`. None: none.
        reached: for each partition, how far; the others stand at `after`.
        gone: ranges of it that retention had dropped before they were evaluated.
    """

    request: int
    labels: PackedLabels | None
    reached: Cursor
    gone: tuple[CommitRange, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheReadFailed:
    """The holder does not answer, or does not have the labels."""

    request: int


# --- handed-off caches: at the holder ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CacheReadRequested:
    """The coordinator of a CCQ reads from the cache of this holder; see ReadHandedOffCache.

    Answered by AnswerCacheRead or RefuseCacheRead.
    """

    request: int
    ccq_id: str
    term: int
    after: Cursor
    labels_max: int


@dataclass(frozen=True, slots=True)
class AnswerCacheRead:
    """CacheReadAnswered, at the holder."""

    request: int
    labels: PackedLabels | None
    reached: Cursor
    gone: tuple[CommitRange, ...] = ()


@dataclass(frozen=True, slots=True)
class RefuseCacheRead:
    """This node does not hold the range, or not any more."""

    request: int


ContinuousEvent = (
    RecordsLoaded[Record]
    | DatasetDropped
    | Ticked
    | UsageMeasured
    | DrainRequested
    | MembersChanged
    | CommitsObserved
    | MessageArrived
    | PeerDied
    | PeerRevived
    | SubmitRequested
    | BatchSubmitted
    | FetchRequested
    | FetchAbandoned
    | FindRequested
    | CancelRequested
    | CycleFinished
    | CycleFailed
    | BackfillFinished
    | BackfillFailed
    | SequencesConfirmed
    | PacksCompacted
    | PacksSpilled
    | PacksLoaded
    | CacheReadAnswered
    | CacheReadFailed
    | CacheReadRequested
)


# --- effects -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CycleItem:
    """One CCQ of a processing cycle: find its matches past `after` in these partitions."""

    ccq: Ccq
    term: int
    after: Cursor
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StartCycle:
    """Evaluate all items in one job; answered by CycleFinished or CycleFailed."""

    cycle_id: int
    items: tuple[CycleItem, ...]


@dataclass(frozen=True, slots=True)
class AbandonCycle:
    """The cycle took too long: stop its job if possible. Late results are still used."""

    cycle_id: int


@dataclass(frozen=True, slots=True)
class Backfill:
    """Rescan the log for a client whose token is older than the cache.

    Answered by BackfillFinished or BackfillFailed.

    Attributes:
        after: the client's token.
        until: the partitions to rescan, and how far.
        labels_max: the rescan may stop, at a commit boundary, after so many labels.
    """

    request: int
    ccq: Ccq
    after: Cursor
    until: Cursor
    labels_max: int


@dataclass(frozen=True, slots=True)
class ConfirmSequences:
    """Ask the owners of these partitions for their last commits; answered by SequencesConfirmed."""

    request: int
    dataset: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompactPacks:
    """Pack these labels of many small cycles as one; answered by PacksCompacted."""

    ccq: Ccq
    term: int
    labels: PackedLabels


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one CCQ of a batch.

    Attributes:
        coordinator: that runs it, in `term`; empty if it was refused.
        failure: why it was refused; it may be submitted again.
    """

    ccq_id: str
    coordinator: str = ""
    term: int = 0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class AnswerBatch:
    """An outcome for each item, in their order."""

    request: int
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class AnswerFetch:
    """New labels for a client.

    Attributes:
        after: the cursor of the request.
        labels: every sampled match in (after, cursor]; of each partition in commit order. None:
            none.
        cursor: of the new resume token; at or past `after` in each partition.
        frontier: how far the coordinator has evaluated.
        frontier_age_s: seconds since the frontier was last known to be complete.
        interval_s: present time between evaluations; longer than the update interval while cycles
            are.
        missing: partitions that this answer does not cover.
        more: whether a further fetch would find more at once.
        gone: ranges between the two cursors that retention dropped before they were evaluated.
        clock_us: the event clock at `cursor`, for a CCQ with windows; None: not known.
    """

    request: int
    ccq_id: str
    after: Cursor
    labels: PackedLabels | None
    cursor: Cursor
    frontier: Cursor = EMPTY_CURSOR
    frontier_age_s: float = 0.0
    missing: tuple[int, ...] = ()
    more: bool = False
    gone: tuple[CommitRange, ...] = ()
    clock_us: int | None = None
    interval_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RefuseFetch:
    request: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class RedirectFetch:
    """Another node coordinates the CCQ."""

    request: int
    coordinator: str


@dataclass(frozen=True, slots=True)
class AnswerFind:
    request: int
    record: Record


@dataclass(frozen=True, slots=True)
class RefuseFind:
    request: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class AnswerCancel:
    request: int
    ccq_id: str


@dataclass(frozen=True, slots=True)
class RefuseCancel:
    request: int
    failure: Failure


Reply = (
    AnswerSubmit
    | AnswerBatch
    | RefuseSubmit
    | AnswerFetch
    | RefuseFetch
    | RedirectFetch
    | AnswerFind
    | RefuseFind
    | AnswerCancel
    | RefuseCancel
    | AnswerCacheRead
    | RefuseCacheRead
)
"""Effects that answer the request whose number they have."""
Task = (
    StartCycle
    | Backfill
    | ConfirmSequences
    | CompactPacks
    | SpillPacks
    | LoadPacks
    | ReadHandedOffCache
)
"""Effects that take long; an event has the result of each."""
ContinuousEffect = (
    SaveRecord[Record] | PurgeRecord | Send | AbandonCycle | DropSpills | Task | Reply
)

Effects = list[ContinuousEffect]
