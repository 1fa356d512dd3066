"""Fetches for many CCQs of this node with one call.

Each step of the machine answers up to a thousand CCQs. Labels that cycles packed for many CCQs are
sent once, with the rows of each CCQ; nothing is unpacked here. Fetches of CCQs with another
coordinator are not forwarded: the answer names its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from galileo.ccq import events as ccq
from galileo.ccq.model import Ccq
from galileo.ccq.packs import KEPT_SHARE, Pack, PackedLabels, Piece
from galileo.ccq.state import dropped_failure
from galileo.clock import Clock
from galileo.config import LimitsSection
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import DeadlineExceeded, GalileoError, InputError, InvalidToken, Unavailable
from galileo.model.schema import Schema
from galileo.model.windows import WindowProgress
from galileo.node.storage_node import StorageNode
from galileo.packing import Compression, pack, unpack
from galileo.rpc.bulk_codec import ManyFetched, ManyUpdate, Update
from galileo.rpc.peers import GrpcPeers
from galileo.server.driver import Driver
from galileo.server.fetch_response import CursorInterner, SharedUpdates, apply_windows
from galileo.wire import token as tokens
from galileo.wire.codec import KeptRows

CCQS_MAX = 100_000
"""CCQs of one call."""
TOKENS_KEPT = 200_000
"""Issued tokens that are cached in decoded form."""
FEW_COMMITS = 64
RECHECK_S = 1.0
"""Interval after which waiting CCQs are checked again, without a finished cycle."""
ANSWER_TIMEOUT_S = 60.0

_Said: TypeAlias = tuple[str, Cursor, WindowProgress]


@dataclass(slots=True)
class _Ask:
    """A CCQ of the request.

    Attributes:
        place: its position in the request.
        error: why it cannot be answered.
        seen: the end of its cache when the machine last had no news for it.
    """

    place: int
    ccq_id: str
    cursor: Cursor = EMPTY_CURSOR
    progress: WindowProgress = tokens.NO_PROGRESS
    error: GalileoError | None = None
    seen: Cursor | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    ask: _Ask
    effect: ccq.AnswerFetch | ccq.RefuseFetch | ccq.RedirectFetch


class BulkFetches:
    """Fetches for many CCQs.

    Args:
        check: raises an error if a CCQ cannot be fetched now.
        fetches_per_step: CCQs that the machine is asked about in one event.
    """

    def __init__(
        self,
        node: StorageNode,
        driver: Driver,
        *,
        peers: GrpcPeers,
        clock: Clock,
        limits: LimitsSection,
        check: Callable[[str], None],
        fetches_per_step: int = 1_000,
    ) -> None:
        self._check = check
        self._node = node
        self._driver = driver
        self._peers = peers
        self._clock = clock
        self._limits = limits
        self._fetches_per_step = fetches_per_step
        self._issued: dict[str, _Said] = {}
        self._cursors = CursorInterner()

    async def fetch(
        self,
        ccq_ids: Sequence[str],
        given: Sequence[str | Cursor],
        *,
        wait_s: float,
        labels_max: int,
        include_query: bool,
        accept_shared_updates: bool = False,
    ) -> ManyFetched:
        """Updates of the CCQs that have new labels or an advanced token.

        Cursors can be given in place of tokens. Readers that accept shared updates get similar
        updates as one.

        Raises:
            InputError: there are too many CCQs, or the number of tokens differs.
        """
        if not len(given) == len(ccq_ids) <= CCQS_MAX:
            raise InputError(
                f"expected at most {CCQS_MAX:,} ids and as many tokens, got {len(ccq_ids):,} ids "
                f"and {len(given):,} tokens",
                parameter="tokens",
                bound=CCQS_MAX,
            )
        given = self._cursors.same(given)
        asks = [self._read(n, *one) for n, one in enumerate(zip(ccq_ids, given, strict=True))]
        bound = self._limits.answer_labels_max
        wanted = min(labels_max or bound, bound)
        deadline = self._clock.monotonic() + wait_s
        answers, is_cut = await self._until_news(asks, wanted, deadline)
        failures = [ManyUpdate(ask.place, ask.ccq_id, ask.error) for ask in asks if ask.error]
        sheets = SharedUpdates() if accept_shared_updates and not include_query else None
        updates = await asyncio.to_thread(
            self._updates, answers, include_query=include_query, sheets=sheets
        )
        for one in updates:
            if isinstance(one.outcome, Update) and one.outcome.windows is not None:
                self._driver.record_late(one.ccq_id, one.outcome.windows.late)
        return ManyFetched((*failures, *updates), is_cut, sheets.all() if sheets else ())

    # --- asking the machine ----------------------------------------------------------------------

    def _read(self, place: int, ccq_id: str, token: str | Cursor) -> _Ask:
        try:
            self._check(ccq_id)
            if isinstance(token, Cursor):
                return _Ask(place, ccq_id, token)
            said = self._issued.get(token)
            if said is not None and said[0] == ccq_id:
                return _Ask(place, *said)
            return _Ask(place, ccq_id, *(tokens.read(token, ccq_id=ccq_id) if token else ()))
        except GalileoError as error:
            return _Ask(place, ccq_id, error=error)

    async def _until_news(
        self, asks: Sequence[_Ask], labels_max: int, deadline: float
    ) -> tuple[list[_Answer], bool]:
        latest: dict[int, _Answer] = {}
        while True:
            over = self._driver.next_cycle()
            moved = [ask for ask in asks if ask.error is None and self._has_moved(ask)]
            answers, is_cut = await self._round(moved, labels_max)
            latest |= {answer.ask.place: answer for answer in answers}
            left_s = deadline - self._clock.monotonic()
            is_news = is_cut or any(ask.error for ask in asks) or any(map(self._is_news, answers))
            if is_news or left_s <= 0:
                return list(latest.values()), is_cut
            await asyncio.wait([over], timeout=min(left_s, RECHECK_S))

    def _has_moved(self, ask: _Ask) -> bool:
        """Whether the machine may have news since the last check."""
        led = self._driver.machine.coordinated.get(ask.ccq_id)
        if led is None or led.ccq.window is not None:
            return True
        is_same, ask.seen = ask.seen is led.evaluated, led.evaluated
        return not is_same or led.cycles.failure is not None

    async def _round(self, asks: Sequence[_Ask], labels_max: int) -> tuple[list[_Answer], bool]:
        """Fetches as many as fit; returns whether some were left out."""
        answers: list[_Answer] = []
        labels = 0
        for start in range(0, len(asks), self._fetches_per_step):
            if labels >= labels_max:
                return answers, True
            some = asks[start : start + self._fetches_per_step]
            for answer in await self._asked(some, labels_max - labels):
                answers.append(answer)
                effect = answer.effect
                if isinstance(effect, ccq.AnswerFetch) and effect.labels is not None:
                    labels += len(effect.labels)
        return answers, False

    async def _asked(self, asks: Sequence[_Ask], labels_max: int) -> list[_Answer]:
        def make(first: int) -> ccq.ContinuousEvent:
            return ccq.FetchesRequested(
                tuple(
                    ccq.FetchRequested(first + n, ask.ccq_id, ask.cursor, None, labels_max)
                    for n, ask in enumerate(asks)
                )
            )

        try:
            effects = await self._driver.ask_many(make, len(asks), timeout_s=ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"no answer of the machine within {ANSWER_TIMEOUT_S:g} s; try again",
                after_s=1.0,
            ) from error
        return [_Answer(ask, effect) for ask, effect in zip(asks, effects, strict=True)]

    # --- answering -------------------------------------------------------------------------------

    def _is_news(self, answer: _Answer) -> bool:
        effect = answer.effect
        if not isinstance(effect, ccq.AnswerFetch):
            return True
        if effect.labels is not None or effect.gone:
            return True
        record = self._driver.machine.state.record_table.get(effect.ccq_id)
        if record is None or record.ccq.window is None or effect.clock_us is None:
            return False
        closing_us = record.ccq.window.next_close_us(answer.ask.progress)
        return closing_us is not None and closing_us <= effect.clock_us

    def _updates(
        self, answers: Sequence[_Answer], *, include_query: bool, sheets: SharedUpdates | None
    ) -> list[ManyUpdate]:
        """Builds updates that are not shared; takes microseconds each, so call it in a thread."""
        making = _Making(_Shares(answers), include_query)
        if sheets is not None:
            answers = [one for one in answers if not self._is_in_sheet(one, making, sheets)]
        made = (self._update(one, making) for one in answers)
        return [update for update in made if update is not None]

    def _is_in_sheet(self, answer: _Answer, making: _Making, sheets: SharedUpdates) -> bool:
        """Adds an answer to a shared update, unless it has more than labels."""
        ask, effect = answer.ask, answer.effect
        if not isinstance(effect, ccq.AnswerFetch) or effect.gone or effect.missing or effect.more:
            return False
        record = self._driver.machine.state.record_table.get(ask.ccq_id)
        if record is None or not self._node.catalog.knows(record.ccq.dataset):
            return False
        if record.ccq.window is not None or ask.progress != tokens.NO_PROGRESS:
            return False
        if effect.labels is None and effect.cursor == ask.cursor:
            return True
        pieces = tuple(making.shares.pieces(effect.labels))
        if len(pieces) > 1 or any(one.rows is not None and len(one.rows[0]) != 1 for one in pieces):
            return False
        schema_json = making.schema_of(record.ccq, self._node)
        if schema_json is None:
            return False
        sheet = sheets.of(effect, schema_json)
        self._cursors.keep(sheet.cursor)
        sheet.places.append(ask.place)
        data, rows = (pieces[0].data, pieces[0].rows) if pieces else (b"", ((0,), (0,)))
        sheet.packs.append(data)
        sheet.starts.append(rows[0][0] if rows else 0)
        sheet.counts.append(rows[1][0] if rows else len(effect.labels or ()))
        return True

    def _update(self, answer: _Answer, making: _Making) -> ManyUpdate | None:
        """Builds an update; None if nothing is new and the token is unchanged."""
        ask, effect = answer.ask, answer.effect
        if isinstance(effect, ccq.RefuseFetch):
            return ManyUpdate(ask.place, ask.ccq_id, effect.failure.to_error())
        if isinstance(effect, ccq.RedirectFetch):
            try:
                address = self._peers.address(effect.coordinator)
            except Unavailable as unknown:
                return ManyUpdate(ask.place, ask.ccq_id, unknown)
            return ManyUpdate(ask.place, ask.ccq_id, address)
        record = self._driver.machine.state.record_table.get(ask.ccq_id)
        if record is None:
            error = Unavailable("the continuous query was purged meanwhile", after_s=0.2)
            return ManyUpdate(ask.place, ask.ccq_id, error)
        made = record.ccq
        try:
            progress, windows = apply_windows(made, ask.progress, effect)
        except InvalidToken as error:
            return ManyUpdate(ask.place, ask.ccq_id, error)
        if effect.cursor == ask.cursor and progress == ask.progress and effect.labels is None:
            return None
        if self._node.catalog.is_dropped(made.dataset):
            return ManyUpdate(ask.place, ask.ccq_id, dropped_failure(made).to_error())
        schema_json = making.schema_of(made, self._node)
        if schema_json is None:
            message = f"features of dataset {made.dataset!r} are not known here yet; try again"
            return ManyUpdate(ask.place, ask.ccq_id, Unavailable(message, after_s=0.2))
        update = Update(
            effect,
            tuple(making.shares.pieces(effect.labels)),
            self._issue(made.id, effect.cursor, progress, making.tokens),
            schema_json,
            made.query if making.include_query else "",
            windows,
        )
        return ManyUpdate(ask.place, ask.ccq_id, update)

    def _issue(
        self, ccq_id: str, cursor: Cursor, progress: WindowProgress, encoder: tokens.Encoder
    ) -> str:
        token = encoder.encode(ccq_id, cursor, progress)
        if len(self._issued) >= TOKENS_KEPT:
            self._issued.clear()
        self._issued[token] = ccq_id, cursor, progress
        return token


class _Shares:
    """The packs that are sent unchanged: those with enough relevant rows."""

    def __init__(self, answers: Sequence[_Answer]) -> None:
        self._rows: dict[int, KeptRows] = {}
        self._kept: dict[int, int] = {}
        self._packs: dict[int, list[Pack]] = {}
        self._rest: dict[int, Piece] = {}
        for answer in answers:
            labels = answer.effect.labels if isinstance(answer.effect, ccq.AnswerFetch) else None
            for one in labels.packs if labels is not None else ():
                rows = self._rows[id(one)] = _ranges(one)
                self._kept[id(one.data)] = self._kept.get(id(one.data), 0) + sum(rows[1])
                self._packs.setdefault(id(one.data), []).append(one)

    def pieces(self, labels: PackedLabels | None) -> Iterator[Piece]:
        for one in labels.packs if labels is not None else ():
            assert labels is not None
            rows = self._rows[id(one)]
            if sum(rows[1]) == one.rows:
                yield Piece(one.data, None)
            elif KEPT_SHARE * self._kept[id(one.data)] >= one.rows:
                yield Piece(one.data, rows)
            else:
                if id(one) not in self._rest:
                    self._pack_rest(id(one.data), labels.schema)
                yield self._rest[id(one)]

    def _pack_rest(self, number: int, schema: Schema) -> None:
        """Packs the relevant rows of all CCQs anew."""
        packs = self._packs[number]
        table = unpack(packs[0].data, schema.label_schema)
        ranges = [self._rows[id(one)] for one in packs]
        starts = np.array([start for one in ranges for start in one[0]], dtype=np.int64)
        counts = np.array([count for one in ranges for count in one[1]], dtype=np.int64)
        before = np.cumsum(counts) - counts
        at = np.arange(counts.sum()) + np.repeat(starts - before, counts)
        data, first = pack(table.take(pa.array(at)).combine_chunks(), Compression.NONE), 0
        for one, (_, sizes) in zip(packs, ranges, strict=True):
            rows = ((first,), (sum(sizes),)) if len(packs) > 1 else None
            self._rest[id(one)] = Piece(data, rows)
            first += sum(sizes)


@dataclass(slots=True)
class _Making:
    """Common state of the updates of one answer."""

    shares: _Shares
    include_query: bool
    tokens: tokens.Encoder = field(default_factory=tokens.Encoder)
    schemas: dict[tuple[str, int], str] = field(default_factory=dict)

    def schema_of(self, made: Ccq, node: StorageNode) -> str | None:
        """The schema of the labels of a CCQ; None if some of its features are not known here."""
        key = made.dataset, made.added
        if key not in self.schemas:
            schema = node.catalog.schema(made.dataset)
            if schema.added < made.added:
                return None
            self.schemas[key] = schema.narrowed(made.added).to_json()
        return self.schemas[key]


def _ranges(pack: Pack) -> KeptRows:
    """Like `Pack.ranges`; fast for few commits, which are usually adjacent."""
    if pack.commits.shape[1] > FEW_COMMITS:
        return pack.ranges()
    _, _, starts, counts = pack.commits.tolist()
    total = starts[0]
    for start, count in zip(starts, counts, strict=True):
        if start != total:
            return pack.ranges()
        total += count
    return (starts[0],), (total - starts[0],)
