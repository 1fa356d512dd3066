"""A cache with files against a dumb one: whatever is where, it holds what the log has."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from unittest import mock

import google_crc32c
import pyarrow as pa
import pytest
from cache_log import cursors, logs, paths_of
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from simulator.logs import SCHEMA, to_labels, to_paths

from galileo.ccq import cache as module
from galileo.ccq.cache import CachedLabels, CacheUsage, LabelCache
from galileo.ccq.pack_codec import from_bytes, to_bytes
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import CorruptData
from galileo.labels import LabelSet
from galileo.model.schema import Feature
from galileo.packing import Compression
from galileo.packs import PackedLabels, pack_labels

STEPS = (
    *("append", "append", "append", "spill", "spill", "written", "refused", "unload"),
    *("load", "lose", "drop", "advance", "shrink", "gather", "gathered"),
)
steps = st.lists(st.tuples(st.sampled_from(STEPS), cursors), max_size=24)


@dataclass
class Disk:
    """What is being written, and what is written."""

    number: int = 0
    writing: dict[int, bytes] = field(default_factory=dict)
    files: dict[int, bytes] = field(default_factory=dict)
    crowds: list[PackedLabels] = field(default_factory=list)

    def forget(self, tally: CacheUsage) -> None:
        for number in tally.discarded:
            del self.files[number]
        tally.discarded.clear()


@examples(80)
@given(logs, cursors, steps, cursors, st.integers(1, 30), st.integers(1, 12))
def test_cache_random_spills_equal_log(log, base, plan, after, labels_max, spilled):
    with mock.patch.multiple(module, SPILL_LABELS=spilled, CHUNKS_COMPACTED=3):
        cache, disk = LabelCache(base), Disk()
        for kind, cursor in plan:
            apply(cache, disk, kind, cursor, log)
            cache.check()
            assert (cache.cache_usage.bytes, cache.cache_usage.spilled_bytes) == (
                cache.bytes,
                cache.spilled_bytes,
            )
            disk.forget(cache.cache_usage)
        judge(cache, disk, log, after, labels_max)


def apply(cache: LabelCache, disk: Disk, kind: str, cursor: Cursor, log) -> None:
    base, until, held = cache.base, cache.until, len(cache)
    if kind == "append":
        cache.append(to_labels(paths_of(log, until, cursor)), reached=cursor)
    elif kind == "spill":
        labels = cache.spill(disk.number + 1)
        if labels is not None:
            disk.number += 1
            disk.writing[disk.number] = to_bytes(labels, Compression.NONE)
    elif kind in ("written", "refused") and disk.writing:
        number, data = disk.writing.popitem()
        if kind == "written":
            disk.files[number] = data
        cache.apply_spilled(number, len(data) if kind == "written" else None)
    elif kind in ("load", "lose") and cache.missing_spills():
        number = cache.missing_spills()[0].number
        found = from_bytes(disk.files[number], SCHEMA) if kind == "load" else None
        assert cache.load(number)
        assert not cache.load(number)
        cache.apply_loaded(number, found)
    elif kind == "unload":
        cache.unload()
    elif kind == "shrink":
        before = cache.bytes
        assert not cache.shrink() or cache.bytes < before
    elif kind == "drop":
        cache.drop(cursor)
    elif kind == "advance":
        cache.advance(cursor)
    elif kind == "gather":
        crowd = cache.compact()
        disk.crowds += [crowd] if crowd is not None else []
    elif kind == "gathered":
        for crowd in disk.crowds:
            cache.apply_compacted(crowd.compact(Compression.NONE))
        disk.crowds.clear()
    if kind in ("spill", "written", "refused", "load", "unload", "gather"):
        assert (cache.base, cache.until, len(cache)) == (base, until, held)


def judge(cache: LabelCache, disk: Disk, log, after: Cursor, labels_max: int) -> None:
    """Every answer is right, what is in files is asked for, and in the end all of it comes."""
    for _ in range(100):
        selection = cache.select(after, labels_max=labels_max)
        if selection.missing_spill is None:
            break
        assert selection == CachedLabels(
            None, after, whole=False, missing_spill=selection.missing_spill
        )
        found = from_bytes(disk.files[selection.missing_spill], SCHEMA)
        cache.apply_loaded(selection.missing_spill, found)
    assert selection.missing_spill is None
    assert sorted(to_paths(selection.labels)) == paths_of(log, after, selection.covered)
    for spill in cache.missing_spills():
        cache.apply_loaded(spill.number, from_bytes(disk.files[spill.number], SCHEMA))
    whole = cache.select(after, labels_max=10_000)
    assert whole.whole
    assert sorted(to_paths(whole.labels)) == paths_of(log, after, whole.covered)
    assert whole.covered == after.join(
        {p: s for p, s in cache.until.items() if after[p] >= cache.base[p]}
    )


def filled(*sequences: int) -> LabelCache:
    cache = LabelCache(EMPTY_CURSOR)
    for sequence in sequences:
        cache.append(to_labels([(0, sequence, 0, 7)]), reached=Cursor({0: sequence}))
    return cache


def test_cache_spill_dropped_while_written_is_discarded() -> None:
    cache = filled(1, 2)
    assert len(cache.spill(5) or ()) == 2
    assert cache.spilling == (5,)
    cache.drop(Cursor({0: 2}))
    cache.apply_spilled(5, 100)
    assert (
        cache.cache_usage.discarded,
        cache.cache_usage.bytes,
        cache.cache_usage.spilled_bytes,
    ) == ([5], 0, 0)


def test_cache_shrink_keeps_labels_being_spilled() -> None:
    cache = filled(1, 2)
    cache.spill(1)
    assert cache.spilling_bytes == cache.bytes > 0
    assert not cache.shrink()
    cache.append(to_labels([(0, 3, 0, 7)]), reached=Cursor({0: 3}))
    assert cache.shrink()
    assert (len(cache), cache.base) == (0, Cursor({0: 3}))


def test_cache_lost_spill_moves_base_to_its_end() -> None:
    cache = filled(1, 2)
    cache.spill(1)
    cache.apply_spilled(1, 100)
    cache.append(to_labels([(0, 3, 0, 7)]), reached=Cursor({0: 3}))
    cache.apply_loaded(1, None)
    assert (cache.base, len(cache), cache.cache_usage.discarded) == (Cursor({0: 2}), 1, [1])


def test_cache_clear_drops_memory_and_spills() -> None:
    cache = filled(1, 2, 3)
    cache.spill(1)
    cache.apply_spilled(1, 100)
    cache.apply_loaded(1, to_labels([(0, s, 0, 7) for s in (1, 2, 3)]))
    cache.clear()
    assert (
        cache.cache_usage.bytes,
        cache.cache_usage.spilled_bytes,
        cache.cache_usage.discarded,
    ) == (0, 0, [1])


@examples(30)
@given(
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), max_size=4),
    st.sampled_from([Compression.NONE, Compression.LZ4]),
)
def test_packs_to_bytes_random_labels_round_trip(commits, compression):
    packs = [
        to_labels([(1, sequence, row, value) for row, value in enumerate(values)])
        for sequence, values in enumerate(commits, start=1)
    ]
    labels = PackedLabels.concat(packs) or PackedLabels(SCHEMA, ())
    again = from_bytes(to_bytes(labels, compression), SCHEMA)
    assert to_paths(again) == to_paths(labels)
    behind = Cursor({1: 1})
    assert to_paths(again.after(behind)) == to_paths(labels.after(behind))


def test_packs_to_bytes_part_has_its_commits_only() -> None:
    labels = to_labels([(0, s, row, s) for s in (1, 2, 3) for row in range(40)])
    assert labels is not None
    some = labels.after(Cursor({0: 2}))
    again = from_bytes(to_bytes(some, Compression.NONE), SCHEMA)
    assert to_paths(again) == to_paths(some)
    assert again.is_whole


@pytest.mark.parametrize("at", [0, 5, 40, -1])
def test_packs_from_bytes_damaged_raises_corrupt_data(at: int) -> None:
    labels = to_labels([(0, 1, row, row) for row in range(20)])
    assert labels is not None
    data = bytearray(to_bytes(labels, Compression.NONE))
    data[at] ^= 4
    with pytest.raises(CorruptData):
        from_bytes(bytes(data), SCHEMA)
    with pytest.raises(CorruptData):
        from_bytes(b"", SCHEMA)


@pytest.mark.parametrize(
    ("at", "number"),
    [
        (0, 2**40),  # labels of the pack
        (0, 19),
        (24 + 8 * 4, -1),  # first label of the first commit
        (24 + 8 * 6, 2**40),  # labels of the first commit
        (24 + 8 * 6, 0),
    ],
)
def test_packs_from_bytes_invalid_number_raises_corrupt_data(at: int, number: int) -> None:
    labels = to_labels([(0, sequence, row, row) for sequence in (1, 2) for row in range(10)])
    assert labels is not None
    data = bytearray(to_bytes(labels, Compression.NONE)[:-4])
    struct.pack_into("<q", data, 12 + at, number)
    with raises(CorruptData, expected="labels_of_pack"):
        from_bytes(bytes(data) + struct.pack("<I", google_crc32c.value(bytes(data))), SCHEMA)


def test_packs_from_bytes_of_another_format_are_refused() -> None:
    body = bytearray(to_bytes(PackedLabels(SCHEMA, ()), Compression.NONE)[:-4])
    body[4] += 1
    with raises(CorruptData, expected="format_version"):
        from_bytes(bytes(body) + struct.pack("<I", google_crc32c.value(bytes(body))), SCHEMA)


def test_pack_table_other_labels_raises_corrupt_data() -> None:
    labels = to_labels([(0, 1, row, row) for row in range(20)])
    other = to_labels([(0, 1, row, row) for row in range(21)])
    assert labels is not None
    assert other is not None
    pack = replace(labels.packs[0], data=other.packs[0].data)
    with raises(CorruptData, expected="label_count"):
        pack.table(SCHEMA.label_schema)


def test_packs_with_added_features_are_read_with_as_many() -> None:
    wider = SCHEMA.with_features([Feature("gust")])
    plain = to_labels([(0, 1, row, row) for row in range(20)])
    assert plain is not None
    table = plain.labels().table
    rows = [row | {"gust": 0.5} for row in table.to_pylist()]
    labels = LabelSet(wider, pa.Table.from_pylist(rows, schema=wider.label_schema))
    packed = pack_labels(labels, Compression.NONE)
    assert packed is not None
    data = to_bytes(packed, Compression.NONE)
    assert from_bytes(data, wider).labels().table == labels.table
    for schema, others in ((SCHEMA, data), (wider, to_bytes(plain, Compression.NONE))):
        with pytest.raises(CorruptData):
            from_bytes(others, schema)
