"""An answer has every label between its token and its cursor, or names what it lacks.

Compared with the store: a former coordinator has evaluated the beginning and holds it, this one has
evaluated what follows, retention drops commits in between, and nodes cannot be reached.
"""

from __future__ import annotations

from ccq_driver import CCQ, Driver, only, path
from hypothesis import example, given
from hypothesis import strategies as st
from simulator.logs import to_labels, to_paths

from galileo.ccq.cache import LabelCache
from galileo.ccq.events import (
    AnswerCacheRead,
    AnswerFetch,
    Backfill,
    BackfillFinished,
    CacheReadAnswered,
    CacheReadFailed,
    CacheReadRequested,
    CommitsObserved,
    ConfirmSequences,
    CycleFinished,
    CycleResult,
    FetchRequested,
    ReadHandedOffCache,
    SequencesConfirmed,
    StartCycle,
)
from galileo.ccq.handed_off_cache import HandedOffCache
from galileo.ccq.model import Holder, Record
from galileo.cursor import EMPTY_CURSOR, Cursor

PARTITIONS = (0, 1)
TERM = 7
parts = st.sets(st.sampled_from(PARTITIONS)).map(tuple)


def cursors(most: int):
    number = st.integers(0, most)
    return st.tuples(number, number).map(lambda pair: Cursor(dict(enumerate(pair))))


class Store:
    """Commits of one label each, the first of which retention has dropped."""

    def __init__(self, ends: Cursor, dropped: Cursor) -> None:
        self.ends, self.dropped = ends, dropped

    def labels(self, after: Cursor, until: Cursor):
        return to_labels(
            [
                path(p, sequence)
                for p in PARTITIONS
                for sequence in range(max(after[p], self.dropped[p]) + 1, until[p] + 1)
            ]
        )


def without(cursor: Cursor, partitions: tuple[int, ...]) -> Cursor:
    return Cursor({p: sequence for p, sequence in cursor.items() if p not in partitions})


def answered(
    driver: Driver,
    effects: list,
    *,
    held: HandedOffCache | None,
    store: Store,
    away: tuple[int, ...],
) -> AnswerFetch:
    """The answer to a fetch, after all that the machine asks for."""
    while not (answers := only(effects, AnswerFetch)):
        (effect,) = effects
        if isinstance(effect, ConfirmSequences):
            asked = tuple(p for p in effect.partitions if p in away)
            done = SequencesConfirmed(effect.request, without(store.ends, away), asked)
        elif isinstance(effect, ReadHandedOffCache):
            done = CacheReadFailed(effect.request)
            if held is not None:
                read = CacheReadRequested(
                    effect.request, "q", TERM, effect.after, effect.labels_max
                )
                (answer,) = held.read(read)
                if isinstance(answer, AnswerCacheRead):
                    done = CacheReadAnswered(
                        effect.request, answer.labels, answer.reached, answer.gone
                    )
        else:
            assert isinstance(effect, Backfill)
            reached = without(effect.until, away)
            done = BackfillFinished(
                effect.request,
                store.labels(effect.after, effect.after.join(reached)),
                reached,
                missing=tuple(p for p in effect.until if p in away),
                gone=store.dropped,
            )
        effects = driver.feed(done)
    return answers[0]


@given(
    ends=cursors(6),
    evaluated=cursors(6),
    held=cursors(6),
    token=cursors(6),
    dropped_early=cursors(6),
    dropped=cursors(6),
    observed=parts,
    away=parts,
    is_held=st.booleans(),
)
@example(  # A holder that names what retention had dropped before it evaluated.
    ends=Cursor({0: 5, 1: 0}),
    evaluated=Cursor({0: 5, 1: 0}),
    held=Cursor({0: 4, 1: 0}),
    token=EMPTY_CURSOR,
    dropped_early=Cursor({0: 2}),
    dropped=EMPTY_CURSOR,
    observed=PARTITIONS,
    away=(),
    is_held=True,
)
@example(  # A token unconfirmed in one partition, and older than the cache in the other.
    ends=Cursor({0: 4, 1: 5}),
    evaluated=Cursor({0: 4, 1: 0}),
    held=Cursor({0: 3, 1: 0}),
    token=Cursor({0: 1, 1: 5}),
    dropped_early=EMPTY_CURSOR,
    dropped=EMPTY_CURSOR,
    observed=(0,),
    away=(1,),
    is_held=False,
)
def test_answer_has_all_labels_or_names_what_it_lacks(
    ends, evaluated, held, token, dropped_early, dropped, observed, away, is_held
):
    held, token, evaluated = held.meet(ends), token.meet(ends), evaluated.meet(ends)
    dropped_early = dropped_early.meet(held)
    store = Store(ends, dropped_early)
    cache = LabelCache(EMPTY_CURSOR)
    cache.append(store.labels(EMPTY_CURSOR, held), reached=held, gone=dropped_early)
    holder = HandedOffCache(CCQ, term=TERM, cache=cache, now=0.0) if is_held else None

    driver = Driver()
    range_of_holder = Holder("b", TERM, EMPTY_CURSOR, held)
    driver.learn(Record(CCQ, 2, ("a", "c", "b"), holders=(range_of_holder,)))
    store.dropped = dropped_early.join(dropped.meet(ends))
    known = Cursor({p: sequence for p, sequence in evaluated.items() if p in observed})
    driver.feed(CommitsObserved("d", known))
    for start in only(driver.tick(1.0), StartCycle):
        (item,) = start.items
        found = store.labels(item.after, item.after.join(known))
        result = CycleResult("q", item.term, item.after, found, known, gone=store.dropped)
        driver.feed(CycleFinished(start.cycle_id, (result,)))

    effects = driver.feed(FetchRequested(1, "q", token))
    answer = answered(driver, effects, held=holder, store=store, away=away)
    labels = to_paths(answer.labels)
    assert len(set(labels)) == len(labels)
    gone = {(one.partition, n) for one in answer.gone for n in range(one.first, one.last + 1)}
    for p in PARTITIONS:
        for sequence in range(token[p] + 1, answer.cursor[p] + 1):
            is_there = path(p, sequence) in labels
            assert is_there != ((p, sequence) in gone), "neither answered nor named, or both"
            assert is_there or sequence <= store.dropped[p]
        coordinated = driver.machine.coordinated["q"].evaluated
        if answer.cursor[p] < coordinated[p] and not answer.more:
            assert p in answer.missing
        if p in away and token[p] > max(held[p], known[p]):
            assert p in answer.missing, "no node has confirmed that"
