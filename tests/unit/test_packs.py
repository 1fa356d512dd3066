"""Packed labels against plain ones: what is decided by commits must not depend on the packing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from ccq_driver import Driver, only
from hypothesis import given
from hypothesis import strategies as st
from simulator.logs import Path, to_labels, to_paths

from galileo import packs as module
from galileo.ccq.events import (
    BackfillFinished,
    CommitsObserved,
    CycleFinished,
    CycleResult,
    FetchRequested,
    StartCycle,
)
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.labels import LabelSet, first_commits
from galileo.packing import Compression, unpack
from galileo.packs import PackedLabels, pack_labels
from galileo.wire.codec import kept_rows

PARTITIONS = (0, 1, 4)
cursors = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 6), max_size=3).map(Cursor)
paths = st.lists(
    st.tuples(st.sampled_from(PARTITIONS), st.integers(1, 6), st.integers(0, 9), st.just(7)),
    min_size=1,
    max_size=40,
    unique=True,
)


def plain(of: list[Path]) -> LabelSet:
    made = to_labels(of)
    assert made is not None
    return made.labels()


def in_small_packs(of: list[Path], rows: int) -> PackedLabels:
    made = pack_labels(plain(of), Compression.NONE, rows_max=rows)
    assert made is not None
    assert all(pack.rows <= rows for pack in made.packs)
    return made


@given(paths, cursors, cursors, st.integers(1, 9), st.integers(1, 12))
def test_packed_labels_random_slices_equal_plain_labels(of, after, until, rows, labels_max):
    labels = in_small_packs(of, rows)
    found, expected = labels.after(after).until(until), plain(of).after(after).until(until)
    assert len(found) == len(expected)
    assert to_paths(found) == list(map(tuple, places(expected)))
    assert found.is_whole == all(len(pack) == pack.rows for pack in found.packs)
    reached = Cursor(dict.fromkeys(PARTITIONS, 6))
    kept, cut = labels.cut(reached=reached, labels_max=labels_max)
    plainly, cut_plainly = first_commits(plain(of), reached=reached, labels_max=labels_max)
    assert cut == cut_plainly
    assert to_paths(kept) == places(plainly)


def places(labels: LabelSet) -> list[Path]:
    return to_paths(pack_labels(labels, Compression.NONE)) if len(labels) else []


@given(paths, cursors, st.sampled_from(Compression))
def test_packed_labels_to_bytes_has_no_excluded_label(of, after, compression):
    left = plain(of).after(after)
    sent = pack_labels(plain(of), compression)
    assert sent is not None
    schema = left.schema.label_schema
    tables = [unpack(data, schema) for data in sent.after(after).to_bytes(compression)]
    assert pa.concat_tables([schema.empty_table(), *tables]).equals(left.in_commit_order().table)


@given(paths, cursors, cursors, st.integers(1, 9))
def test_packed_labels_pieces_random_slice_equal_labels(of, after, until, rows):
    some = in_small_packs(of, rows).after(after).until(until)
    pieces = some.pieces()
    assert some.is_quick <= all(
        piece.data is pack.data for piece, pack in zip(pieces, some.packs, strict=True)
    )
    schema = some.schema.label_schema
    tables = [kept_rows(unpack(piece.data, schema), piece.rows) for piece in pieces]
    assert pa.concat_tables([schema.empty_table(), *tables]).equals(some.labels().table)


def test_packed_labels_pieces_mostly_used_pack_is_unchanged() -> None:
    labels = to_labels([(0, sequence, 0, 7) for sequence in range(1, 9)])
    assert labels is not None
    for left, whole in ((2, True), (1, False)):
        some = labels.after(Cursor({0: 8 - left}))
        [piece] = some.pieces()
        assert (piece.data is labels.packs[0].data) == some.is_quick == whole
        assert piece.rows == (([6], [2]) if whole else None)
    shared = PackedLabels(labels.schema, (replace(labels.packs[0], share=8),))
    assert not shared.after(Cursor({0: 1})).is_quick
    assert shared.after(Cursor({0: 1})).pieces()[0].rows is None


def test_packed_labels_to_bytes_part_is_compacted_if_compressed() -> None:
    labels = to_labels([(0, sequence, 0, 7) for sequence in range(1, 500)])
    assert labels is not None
    some = labels.after(Cursor({0: 400}))
    schema = labels.schema.label_schema
    (quick,), (small,) = (
        some.to_bytes(compression) for compression in (Compression.STREAM, Compression.LZ4)
    )
    assert len(small) < len(labels.packs[0].data) < len(quick)
    assert unpack(quick, schema).equals(unpack(small, schema))
    assert unpack(quick, schema).num_rows == len(some) == 99


def test_packed_labels_to_bytes_whole_pack_is_unchanged() -> None:
    labels = to_labels([(0, 1, 0, 7), (0, 2, 0, 7), (1, 1, 0, 7)])
    assert labels is not None
    assert labels.to_bytes()[0] is labels.packs[0].data
    assert labels.until(Cursor({0: 2, 1: 1})).to_bytes()[0] is labels.packs[0].data
    assert labels.after(Cursor({0: 1})).to_bytes()[0] is not labels.packs[0].data


@given(st.lists(paths, min_size=1, max_size=4), cursors)
def test_packed_labels_compact_random_parts_keeps_labels(parts, after):
    joined = PackedLabels.concat(to_labels(part).after(after) for part in parts)
    if joined is None:
        return
    together = joined.compact(Compression.LZ4)
    assert together is not None
    assert len(together.packs) == 1
    assert sorted(to_paths(together)) == sorted(to_paths(joined))


def test_packed_labels_no_labels_is_none() -> None:
    labels = to_labels([(0, 1, 0, 7)])
    assert labels is not None
    assert pack_labels(labels.labels().slice(0, 0), Compression.LZ4) is None
    assert PackedLabels.concat([None, labels.after(Cursor({0: 1}))]) is None


def test_pack_labels_beyond_bytes_max_is_split() -> None:
    labels = plain([(0, 1, row, row) for row in range(100)])
    made = pack_labels(labels, Compression.NONE, bytes_max=labels.table.nbytes // 4)
    assert made is not None
    assert 4 <= len(made.packs) <= 5
    assert made.labels().table.equals(labels.table)


def test_packed_labels_after_reads_commits_without_unpacking() -> None:
    """A million labels are searched in the time that their commits take."""
    labels = to_labels([(0, sequence, 0, 7) for sequence in range(1, 50)])
    assert labels is not None
    damaged = module.Pack(b"nothing", 49, labels.packs[0].commits)
    blind = PackedLabels(labels.schema, (damaged,))
    assert len(blind.after(Cursor({0: 40}))) == 9
    kept, cut = blind.cut(reached=Cursor({0: 49}), labels_max=10)
    assert (len(kept), cut) == (10, Cursor({0: 10}))
    assert np.array_equal(kept.packs[0].commits[1], np.arange(1, 11))


def test_machine_cycle_and_fetch_never_pack_or_unpack(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs on the event loop, where the labels of one answer would take many milliseconds."""
    driver = Driver()
    driver.lead(retrieved=Cursor({1: 2}))
    parts = [[(0, sequence, row, 7) for row in range(30)] for sequence in (1, 2, 3)]
    made = [to_labels(part) for part in parts]
    old = to_labels([(1, 1, 0, 7), (1, 2, 0, 7)])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the event loop is held up")

    with monkeypatch.context() as patch:
        for name in ("pack", "unpack", "pack_labels"):
            patch.setattr(module, name, refuse)
        for sequence, labels in enumerate(made, start=1):
            driver.feed(CommitsObserved("d", Cursor({0: sequence})))
            (start,) = only(driver.tick(float(sequence)), StartCycle)
            item, reached = start.items[0], Cursor({0: sequence})
            result = CycleResult("q", item.term, item.after, labels, reached)
            driver.feed(CycleFinished(start.cycle_id, (result,)))
        (cut,) = driver.feed(FetchRequested(1, "q", Cursor({1: 2}), labels_max=40))
        driver.feed(FetchRequested(2, "q", EMPTY_CURSOR))
        (joined,) = driver.feed(BackfillFinished(2, old, Cursor({1: 2})))
    assert to_paths(cut.labels) == parts[0]
    assert sorted(to_paths(joined.labels)) == sorted(
        [*parts[0], *parts[1], *parts[2], (1, 1, 0, 7), (1, 2, 0, 7)]
    )
