"""Events and effects for spilled and handed-off caches.

They belong to the vocabulary of `galileo.ccq.events`, whose rules are theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from galileo.ccq.model import Ccq
from galileo.ccq.packs import PackedLabels
from galileo.cursor import Cursor, Stretch

# --- files ---------------------------------------------------------------------------------------


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


# --- holders, as the coordinator sees them -------------------------------------------------------


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


# --- holders, as they see themselves -------------------------------------------------------------


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
