"""Events and effects of the machine `galileo.ccq.machine.Continuous`.

The driver feeds events and executes the effects of each step in order. `request` pairs a request of
a client with its answer, `cycle_id` a cycle with its result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from galileo.ccq.model import CcqDefinition, Record
from galileo.ccq.placement import CcqChange
from galileo.cursor import EMPTY_CURSOR, CommitRange, Cursor
from galileo.dht.membership import PeerDied, PeerRevived
from galileo.election.election import Candidacy
from galileo.election.ranking import UsageStatistics
from galileo.errors import Failure
from galileo.model.windows import ClockStep
from galileo.packs import PackedLabels

# --- events: from the node -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; due about every 50 ms. `wall`: seconds since 1970-01-01 UTC."""

    wall: float


@dataclass(frozen=True, slots=True)
class UsageMeasured:
    """This node's own statistics."""

    usage: UsageStatistics


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The nodes of the cluster are these from now on, by group; this one is among them.

    Attributes:
        groups: the names of the nodes.
        racks: the rack of each node; empty: each node is a rack of its own.
    """

    groups: tuple[tuple[str, ...], ...]
    racks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Hand off all CCQs and take no others; `is_on` false ends that."""

    is_on: bool = True


@dataclass(frozen=True, slots=True)
class RecordsLearned:
    """Records as the leader of the system partition has said them, or a node that follows it."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class RecordsChanged:
    """What became of a ChangeRecords.

    Attributes:
        names: of its changes.
        records: as they are now; those of the other changes are not known.
        unknown: CCQs of which the cluster has no record.
    """

    names: tuple[str, ...]
    records: tuple[Record, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodesElected:
    """The result of an ElectNodes: the elected nodes by CCQ, the best first, perhaps none."""

    nodes: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class DatasetDropped:
    """The first `generations` datasets of a name were dropped; their CCQs end.

    Repetition is harmless.
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
class FetchRequested:
    """Answered by one of AnswerFetch, RefuseFetch and RedirectFetch, sooner or later.

    Attributes:
        cursor: of the resume token: what the client has stored.
        wait_until: monotonic time until which to wait for new labels; None answers at once.
        labels_max: soft bound of the answer; one whole commit may exceed it.
        until_clock_us: answer when the event clock reaches this, too.
        withdraws: the partitions in which commits between two cursors may withdraw labels; answer
            when such commits were evaluated, whether they have labels or not.
        is_reset: whether the client gets what counted at the cursor, and no labels from here.
    """

    request: int
    ccq_id: str
    cursor: Cursor
    wait_until: float | None = None
    labels_max: int = 100_000
    until_clock_us: int | None = None
    withdraws: Callable[[Cursor, Cursor], Collection[int]] | None = None
    is_reset: bool = False


@dataclass(frozen=True, slots=True)
class FetchAbandoned:
    """The client of this fetch is gone."""

    request: int


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
    ccq: CcqDefinition
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
    ccq: CcqDefinition


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
    ccq: CcqDefinition
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
    DatasetDropped
    | Ticked
    | UsageMeasured
    | DrainRequested
    | MembersChanged
    | CommitsObserved
    | RecordsLearned
    | RecordsChanged
    | NodesElected
    | PeerDied
    | PeerRevived
    | FetchRequested
    | FetchAbandoned
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
class ChangeRecords:
    """Have the leader of the system partition make these changes; answered by RecordsChanged."""

    changes: tuple[CcqChange, ...]


@dataclass(frozen=True, slots=True)
class ElectNodes:
    """Elect nodes for some CCQs; answered by NodesElected."""

    candidacies: tuple[Candidacy, ...]


@dataclass(frozen=True, slots=True)
class CycleItem:
    """One CCQ of a processing cycle: find its matches past `after` in these partitions."""

    ccq: CcqDefinition
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
    ccq: CcqDefinition
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

    ccq: CcqDefinition
    term: int
    labels: PackedLabels


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


Reply = AnswerFetch | RefuseFetch | RedirectFetch | AnswerCacheRead | RefuseCacheRead
"""Effects that answer the request whose number they have."""
Task = (
    ChangeRecords
    | ElectNodes
    | StartCycle
    | Backfill
    | ConfirmSequences
    | CompactPacks
    | SpillPacks
    | LoadPacks
    | ReadHandedOffCache
)
"""Effects that take long; an event has the result of each."""
ContinuousEffect = AbandonCycle | DropSpills | Task | Reply

Effects = list[ContinuousEffect]
