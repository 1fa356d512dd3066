"""Updates of CCQs, and the codec of responses about many: what several share is encoded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from galileo.ccq.events import AnswerFetch
from galileo.ccq.packs import Piece
from galileo.cursor import Cursor
from galileo.errors import GalileoError, InputError
from galileo.model.windows import WindowChanges
from galileo.wire.codec import commit_ranges_to_pb, cursor_from_pb, cursor_to_pb, windows_to_pb
from galileo.wire.status import error_to_pb
from galileo.wire.v1 import continuous_pb2

PART_BYTES = 1 << 20
UPDATES_PER_PART = 2_000
ENTRY_BYTES = 10
"""Approximate size of a CCQ in a shared update."""


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """An update of a CCQ for a reader.

    Attributes:
        answer: of the CCQ's machine.
        pieces: the labels of the answer.
        token: the reader's position after the update.
        query_json: of the CCQ; empty if the reader knows it.
        windows: changes of the CCQ's windows; None if it has none.
    """

    answer: AnswerFetch
    pieces: Sequence[Piece]
    token: str
    schema_json: str
    query_json: str = ""
    windows: WindowChanges | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ManyUpdate:
    """The outcome for the CCQ at a `place` of the request.

    Attributes:
        outcome: an update, the address of the CCQ's coordinator, or an error.
    """

    place: int
    ccq_id: str
    outcome: Update | str | GalileoError


@dataclass(slots=True, eq=False)
class Sheet:
    """The update of CCQs that differ only in their labels.

    Attributes:
        cursor: of their tokens, which the reader builds.
        places: the positions of the CCQs in the request.
        packs: the packs with the labels of each, in `counts` rows from row `starts` on.
    """

    cursor: Cursor
    frontier: Cursor
    age_s: float
    interval_s: float
    schema_json: str
    places: list[int] = field(default_factory=list)
    packs: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class ManyFetched:
    """`is_cut`: whether some CCQs were left out for lack of room."""

    updates: Sequence[ManyUpdate]
    is_cut: bool
    sheets: Sequence[Sheet] = ()


class ManyParts:
    """Builds the messages of one answer."""

    def __init__(self) -> None:
        self._part = continuous_pb2.FetchManyPart()
        self._size = 0
        self._packs: dict[int, int] = {}
        self._cursors: dict[int, int] = {}
        self._schemas: dict[str, int] = {}

    def parts(self, fetched: ManyFetched) -> Iterator[continuous_pb2.FetchManyPart]:
        for update in fetched.updates:
            self._part.updates.append(self._update(update))
            if self._size >= PART_BYTES or len(self._part.updates) >= UPDATES_PER_PART:
                yield self._part
                self._part, self._size = continuous_pb2.FetchManyPart(), 0
        for sheet in fetched.sheets:
            self._part.sheets.append(self._sheet(sheet))
            if self._size >= PART_BYTES:
                yield self._part
                self._part, self._size = continuous_pb2.FetchManyPart(), 0
        self._part.is_cut = fetched.is_cut
        yield self._part

    def _sheet(self, sheet: Sheet) -> continuous_pb2.SharedUpdate:
        self._size += ENTRY_BYTES * len(sheet.places)
        return continuous_pb2.SharedUpdate(
            schema=self._schema(sheet.schema_json),
            cursor=self._cursor(sheet.cursor),
            frontier=self._cursor(sheet.frontier),
            age_s=sheet.age_s,
            interval_s=sheet.interval_s,
            ccqs=sheet.places,
            packs=[self._pack(data) if data else 0 for data in sheet.packs],
            starts=sheet.starts,
            counts=sheet.counts,
        )

    def _update(self, update: ManyUpdate) -> continuous_pb2.ManyUpdate:
        if isinstance(update.outcome, GalileoError):
            return continuous_pb2.ManyUpdate(ccq=update.place, error=error_to_pb(update.outcome))
        if isinstance(update.outcome, str):
            return continuous_pb2.ManyUpdate(ccq=update.place, coordinator=update.outcome)
        content, answer = update.outcome, update.outcome.answer
        message = continuous_pb2.ManyUpdate(
            ccq=update.place,
            token=content.token,
            cursor=self._cursor(answer.cursor),
            frontier=self._cursor(answer.frontier),
            age_s=answer.frontier_age_s,
            interval_s=answer.interval_s,
            more=answer.more,
            missing=answer.missing,
            schema=self._schema(content.schema_json),
            query_json=content.query_json,
        )
        for piece in content.pieces:
            starts, counts = piece.rows or ((), ())
            message.kept.add(pack=self._pack(piece.data), starts=starts, counts=counts)
        if answer.gone:
            message.gone.extend(commit_ranges_to_pb(answer.gone))
        if content.windows is not None:
            message.windows.CopyFrom(windows_to_pb(content.windows))
        self._size += len(content.query_json)
        return message

    def _pack(self, data: bytes) -> int:
        number = self._packs.get(id(data))
        if number is None:
            number = self._packs[id(data)] = len(self._packs)
            self._part.packed.append(data)
            self._size += len(data)
        return number

    def _cursor(self, cursor: Cursor) -> int:
        number = self._cursors.get(id(cursor))
        if number is None:
            number = self._cursors[id(cursor)] = len(self._cursors)
            self._part.cursors.append(cursor_to_pb(cursor))
        return number

    def _schema(self, schema_json: str) -> int:
        number = self._schemas.get(schema_json)
        if number is None:
            number = self._schemas[schema_json] = len(self._schemas)
            self._part.schemas_json.append(schema_json)
        return number


def given_tokens(request: continuous_pb2.FetchManyRequest) -> Sequence[str | Cursor]:
    """The token or cursor of each CCQ of a request.

    Raises:
        InputError: the numbers of cursors and CCQs differ.
    """
    if not request.stands:
        return request.tokens
    cursors = [cursor_from_pb(value) for value in request.cursors]
    if len(request.stands) != len(request.tokens) or max(request.stands) > len(cursors):
        raise InputError(
            f"expected for each of {len(request.tokens):,} tokens 0 or one of {len(cursors)} "
            f"cursors, got {len(request.stands):,} numbers up to {max(request.stands)}",
            parameter="stands",
        )
    both = zip(request.tokens, request.stands, strict=True)
    return [cursors[stand - 1] if stand else token for token, stand in both]
