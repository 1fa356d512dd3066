"""Events and effects of the machine `galileo.ccq.machine.Continuous`: the driver's contract.

The driver feeds events and carries out the effects of each step *in their order*, one step's
before the next one's; it may save the records of a step before all else, together. `request` and
`cycle_id` are names that pair a question with its answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from galileo.ccq.messages import Message
from galileo.ccq.model import Ccq, Failure, Record
from galileo.ccq.packs import PackedLabels
from galileo.cursor import ORIGIN, Cursor, Stretch
from galileo.dht.membership import PeerDied, PeerRevived
from galileo.election.messages import UsageStatistics
from galileo.model.windows import ClockStep

# --- events: from the node -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordsLoaded:
    """The first event of a life: the records that storage kept from earlier ones, if any."""

    records: tuple[Record, ...]
    wall: float


@dataclass(frozen=True, slots=True)
class DatasetDropped:
    """The first `generations` datasets of a name were dropped; their CCQs end for good.

    Comes before RecordsLoaded for all that were dropped in earlier lives; again is harmless.
    """

    name: str
    generations: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; due about every 50 ms. `wall`: seconds since 1970."""

    wall: float


@dataclass(frozen=True, slots=True)
class UsageMeasured:
    """This node's own statistics, for the polls of others and its own elections."""

    usage: UsageStatistics


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Give away what this node coordinates and take nothing on, or (`is_on` false) no more so."""

    is_on: bool = True


@dataclass(frozen=True, slots=True)
class CommitsObserved:
    """Durable commits of a dataset are known up to here: from own commits and heartbeats.

    Attributes:
        clock: what is known of the dataset's event clock; none of it need be new.
    """

    dataset: str
    sequences: Cursor
    clock: tuple[ClockStep, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageArrived:
    sender: str
    message: Message


# --- events: from clients ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubmitRequested:
    """A CCQ whose initial result was computed; answered by AnswerSubmit or RefuseSubmit.

    Attributes:
        ccq: with an id chosen by who submits; the same CCQ may be submitted again.
        reached: frontier of the initial result.
        need_bytes: cache that the CCQ is expected to need.
        candidates: nodes that may hold matches; their groups are polled first.
        owned_max: that its owner may have alive; None: as many as there may be.
    """

    request: int
    ccq: Ccq
    reached: Cursor
    need_bytes: int = 0
    candidates: tuple[str, ...] = ()
    owned_max: int | None = None


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One CCQ of a batch, of which nothing was evaluated yet.

    Attributes:
        ccq: with an id chosen by who submits; the same CCQ may be submitted again.
        candidates: nodes that may hold matches; their groups are polled first.
    """

    ccq: Ccq
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchSubmitted:
    """Many CCQs at once; answered by AnswerBatch, or by RefuseSubmit for all of them.

    Attributes:
        items: all of one owner.
        owned_max: that it may have alive; None: as many as there may be.
    """

    request: int
    items: tuple[BatchItem, ...]
    owned_max: int | None = None


@dataclass(frozen=True, slots=True)
class FetchRequested:
    """Answered by one of AnswerFetch, RefuseFetch and RedirectFetch, sooner or later.

    Attributes:
        cursor: of the resume token: what the client has stored.
        wait_until: monotonic time until which to wait for news; None answers at once.
        labels_max: soft bound of the answer; one whole commit may exceed it.
        until_clock_us: an event clock that has come so far is news, too.
    """

    request: int
    ccq_id: str
    cursor: Cursor
    wait_until: float | None = None
    labels_max: int = 100_000
    until_clock_us: int | None = None


@dataclass(frozen=True, slots=True)
class FetchesRequested:
    """Many fetches at once, each answered as if it had come alone."""

    fetches: tuple[FetchRequested, ...]


@dataclass(frozen=True, slots=True)
class FetchAbandoned:
    """No reader waits for the response to this fetch any more."""

    request: int


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Answered by AnswerCancel or RefuseCancel."""

    request: int
    ccq_id: str


# --- events: results of effects ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What one processing cycle found for one CCQ.

    Attributes:
        term: as in the item.
        after: as in the item.
        labels: sampled matches, packed; all of those with `after < sequence <= reached`, and no
            others. None: none.
        reached: for each partition, how far it is known; a partition that could not be asked
            is absent or stands at `after`.
        failure: why this CCQ failed (its sampler raised); then nothing is taken over.
        gone: up to where retention has dropped what lies past `after`; no labels are of there.
    """

    ccq_id: str
    term: int
    after: Cursor
    labels: PackedLabels | None
    reached: Cursor
    failure: Failure | None = None
    gone: Cursor = ORIGIN


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
    """The rescan of a Backfill.

    Attributes:
        labels: sampled matches; all of those with `after < sequence <= reached`. None: none.
        reached: for each partition of the effect, how far; may be less than asked for.
        missing: partitions that could not be asked.
        gone: as in `CycleResult`.
    """

    request: int
    labels: PackedLabels | None
    reached: Cursor
    missing: tuple[int, ...] = ()
    gone: Cursor = ORIGIN


@dataclass(frozen=True, slots=True)
class BackfillFailed:
    request: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class SequencesConfirmed:
    """What the owners of the partitions say, asked after the effect was given."""

    request: int
    sequences: Cursor
    unreachable: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PacksCompacted:
    """The labels of a CompactPacks in as few packs as may be; None where that failed."""

    ccq_id: str
    term: int
    labels: PackedLabels | None


# --- spilled packs: events and effects -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpillPacks:
    """Write these labels into a file; answered by PacksSpilled.

    Attributes:
        number: of the file, new in this life of the node. Files of earlier lives are worthless.
    """

    number: int
    ccq: Ccq
    labels: PackedLabels


@dataclass(frozen=True, slots=True)
class PacksSpilled:
    """The file of a SpillPacks is there and has so many bytes; None: it could not be written."""

    number: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class LoadPacks:
    """Read a file back; answered by PacksLoaded."""

    number: int
    ccq: Ccq


@dataclass(frozen=True, slots=True)
class PacksLoaded:
    """The labels of a file; None: it is lost or damaged."""

    number: int
    ccq_id: str
    labels: PackedLabels | None


@dataclass(frozen=True, slots=True)
class DropSpills:
    """These files are not needed any more."""

    numbers: tuple[int, ...]


# --- handed-off caches: at the coordinator -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadHandedOffCache:
    """Ask a node (perhaps this one) for what it holds of a CCQ past a token.

    Answered by CacheReadAnswered or CacheReadFailed.

    Attributes:
        term: in which the holder coordinated.
        after: the client's token.
        labels_max: the holder may stop once it has found so many.
    """

    request: int
    ccq: Ccq
    node: str
    term: int
    after: Cursor
    labels_max: int


@dataclass(frozen=True, slots=True)
class CacheReadAnswered:
    """What a holder has for an ReadHandedOffCache.

    Attributes:
        labels: all of those with `after < sequence <= reached`. None: none.
        reached: for each partition, how far; the others stand at `after`.
        gone: of that, what retention had dropped before it was evaluated.
    """

    request: int
    labels: PackedLabels | None
    reached: Cursor
    gone: tuple[Stretch, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheReadFailed:
    """The holder does not answer, or does not have what was asked for."""

    request: int


# --- handed-off caches: at the holder ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CacheReadRequested:
    """Another coordinator of a CCQ asks for what this node holds; see ReadHandedOffCache.

    Answered by AnswerCacheRead or RefuseCacheRead.
    """

    request: int
    ccq_id: str
    term: int
    after: Cursor
    labels_max: int


@dataclass(frozen=True, slots=True)
class AnswerCacheRead:
    """As CacheReadAnswered, on the side of the holder."""

    request: int
    labels: PackedLabels | None
    reached: Cursor
    gone: tuple[Stretch, ...] = ()


@dataclass(frozen=True, slots=True)
class RefuseCacheRead:
    """This node does not hold that, or not any more."""

    request: int


ContinuousEvent = (
    RecordsLoaded
    | DatasetDropped
    | Ticked
    | UsageMeasured
    | DrainRequested
    | CommitsObserved
    | MessageArrived
    | PeerDied
    | PeerRevived
    | SubmitRequested
    | BatchSubmitted
    | FetchRequested
    | FetchesRequested
    | FetchAbandoned
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
class SaveRecord:
    """Keep this record over restarts, in place of an older one of the same CCQ.

    Attributes:
        durable: it must be on disk before any later effect is carried out. Otherwise it may be
            written whenever it suits, in order.
    """

    record: Record
    durable: bool


@dataclass(frozen=True, slots=True)
class PurgeRecord:
    ccq_id: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send this message, once; it may be lost."""

    to: str
    message: Message


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
    """The cycle took too long: stop its job if that is possible. Late results are still used."""

    cycle_id: int


@dataclass(frozen=True, slots=True)
class Backfill:
    """Rescan the log for a client whose token is older than the cache.

    Answered by BackfillFinished or BackfillFailed.

    Attributes:
        after: the client's token.
        until: per partition to rescan, how far; other partitions are not asked for.
        labels_max: the rescan may stop, at a commit boundary, once it has found so many.
    """

    request: int
    ccq: Ccq
    after: Cursor
    until: Cursor
    labels_max: int


@dataclass(frozen=True, slots=True)
class ConfirmSequences:
    """Ask the owners of these partitions how far they are; answered by SequencesConfirmed."""

    request: int
    dataset: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompactPacks:
    """Pack these labels of many small cycles anew, together; answered by PacksCompacted."""

    ccq: Ccq
    term: int
    labels: PackedLabels


@dataclass(frozen=True, slots=True)
class AnswerSubmit:
    request: int
    ccq_id: str
    coordinator: str
    term: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one CCQ of a batch.

    Attributes:
        coordinator: that runs it, in `term`; empty where it was refused.
        failure: why; then it may be submitted again, alone or with others.
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
class RefuseSubmit:
    request: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class AnswerFetch:
    """What is new for a client.

    Attributes:
        after: the cursor that was asked with.
        labels: every sampled match in (after, cursor]; of each partition in the order of its
            commits. None: there are none.
        cursor: of the new resume token; at or past `after` in each partition.
        frontier: how far the coordinator has evaluated.
        frontier_age_s: since it last knew of nothing beyond the frontier.
        interval_s: at which the CCQ is evaluated now; longer than its own while cycles are.
        missing: partitions that this answer could not consider.
        more: whether a further fetch would find more at once.
        gone: between the two cursors, what retention had dropped before it was evaluated.
        clock_us: the event clock at `cursor`, for a CCQ with windows; None: not known.
    """

    request: int
    ccq_id: str
    after: Cursor
    labels: PackedLabels | None
    cursor: Cursor
    frontier: Cursor = ORIGIN
    frontier_age_s: float = 0.0
    missing: tuple[int, ...] = ()
    more: bool = False
    gone: tuple[Stretch, ...] = ()
    clock_us: int | None = None
    interval_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RefuseFetch:
    request: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class RedirectFetch:
    """Another node coordinates the CCQ, as far as this one knows."""

    request: int
    coordinator: str


@dataclass(frozen=True, slots=True)
class AnswerCancel:
    request: int
    ccq_id: str


@dataclass(frozen=True, slots=True)
class RefuseCancel:
    request: int
    failure: Failure


ContinuousEffect = (
    SaveRecord
    | PurgeRecord
    | Send
    | StartCycle
    | AbandonCycle
    | Backfill
    | ConfirmSequences
    | CompactPacks
    | SpillPacks
    | LoadPacks
    | DropSpills
    | ReadHandedOffCache
    | AnswerCacheRead
    | RefuseCacheRead
    | AnswerSubmit
    | AnswerBatch
    | RefuseSubmit
    | AnswerFetch
    | RefuseFetch
    | RedirectFetch
    | AnswerCancel
    | RefuseCancel
)
