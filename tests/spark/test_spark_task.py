from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.errors import SamplerFailed, UnknownSampler
from galileo.labels import LabelSet
from galileo.samplers import SamplerSpec
from galileo.spark.task import cut, fair_share, sample

sizes = st.lists(st.integers(0, 200), max_size=8)


def naive_share(sizes: list[int], room: int) -> int:
    """The largest bound, found by trying them all."""
    return max(b for b in range(room + 1) if sum(min(s, b) for s in sizes) <= room)


@given(sizes, st.integers(0, 500))
def test_fair_share_is_the_largest_that_fits(sizes, room):
    assert fair_share(sizes, room=room) == naive_share(sizes, room)


commits = st.dictionaries(
    st.integers(0, 4), st.lists(st.integers(1, 9), min_size=1, max_size=6), max_size=4
)


@given(commits, st.integers(0, 3), st.integers(1, 3_000))
def test_cut_keeps_whole_commits_and_says_how_far_they_reach(
    make_labels, schema, commits, start, bytes_max
):
    """`commits`: for each partition the sizes of its commits after sequence `start`."""
    parts = [
        make_labels(p, range(start + 1 + i, start + 2 + i), rows=rows)
        for p, counts in commits.items()
        for i, rows in enumerate(counts)
    ]
    labels = LabelSet.concat(schema, parts)
    after = Cursor(dict.fromkeys(commits, start))
    reached = Cursor({**{p: start + len(counts) + 2 for p, counts in commits.items()}, 7: 3})
    kept, cursor = cut(labels, reached=reached, bytes_max=bytes_max)
    assert sorted(identities(kept)) == sorted(k for k in identities(labels) if k[1] <= cursor[k[0]])
    assert cursor.covers(after)
    assert reached.covers(cursor)
    size = labels.table.nbytes
    if size <= bytes_max:
        assert (len(kept), cursor) == (len(labels), reached)
    else:
        assert len(kept) <= max(first_commit(labels), len(labels) * bytes_max // size)
    assert len(kept) > 0 or len(labels) == 0


def identities(labels: LabelSet) -> list[tuple[int, int, int]]:
    columns = (labels.partitions, labels.sequences, labels.rows)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def first_commit(labels: LabelSet) -> int:
    """The size of the largest commit that may go first: one of the lowest sequence."""
    groups = groupby(identities(labels), key=lambda key: key[:2])
    sizes = defaultdict(int, {key: len(list(rows)) for key, rows in groups})
    return max(sizes.values())


def test_cut_advances_all_partitions_evenly(make_labels, schema):
    parts = [make_labels(p, range(1, 101)) for p in range(4)]
    labels = LabelSet.concat(schema, parts)
    bytes_max = labels.table.nbytes // 2
    _, cursor = cut(labels, reached=Cursor(dict.fromkeys(range(4), 100)), bytes_max=bytes_max)
    assert cursor == Cursor(dict.fromkeys(range(4), 50))


def test_repeated_cuts_lose_and_repeat_nothing(make_labels, schema):
    labels = LabelSet.concat(schema, [make_labels(p, range(1, 20), rows=p + 1) for p in range(3)])
    reached, cursor = Cursor(dict.fromkeys(range(3), 19)), Cursor()
    found = []
    while cursor != reached:
        rest = labels.after(cursor)
        kept, cursor = cut(rest, reached=reached, bytes_max=500)
        found += identities(kept)
    assert sorted(found) == sorted(identities(labels))


@pytest.fixture
def installed(sampler_path, monkeypatch):
    monkeypatch.syspath_prepend(str(sampler_path))


def run(labels, name, timeout_s=5.0, **options):
    return sample(labels, SamplerSpec(name, options, 1).to_json(), timeout_s=timeout_s)


@pytest.mark.usefixtures("installed")
def test_a_sampler_keeps_what_it_says(make_labels):
    labels = make_labels(0, range(1, 3))
    kept = run(labels, "everyother")
    assert kept.rows.tolist() == [1, 3, 5, 7, 9] * 2


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "says"),
    [("raises", "no idea"), ("exits", "SystemExit"), ("nomask", "booleans"), ("sleeps", "options")],
)
def test_a_sampler_that_fails(make_labels, name, says):
    with pytest.raises(SamplerFailed, match=says):
        run(make_labels(0, range(1, 3)), name)


@pytest.mark.usefixtures("installed")
def test_a_sampler_that_never_ends_is_stopped_and_other_alarms_stay(make_labels):
    before = signal.getsignal(signal.SIGALRM)
    timer = signal.getitimer(signal.ITIMER_REAL)
    started = time.monotonic()
    with pytest.raises(SamplerFailed, match=r"longer than 0\.2 s"):
        run(make_labels(0, range(1, 3)), "hangs", timeout_s=0.2)
    assert time.monotonic() - started < 5
    assert signal.getitimer(signal.ITIMER_REAL) == pytest.approx(timer, abs=5)
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.usefixtures("installed")
def test_without_a_main_thread_there_is_no_time_limit(make_labels):
    kept = []
    labels = make_labels(0, range(1, 3))
    thread = threading.Thread(
        target=lambda: kept.append(run(labels, "sleeps", timeout_s=0.01, seconds=0.1))
    )
    thread.start()
    thread.join(10)
    assert len(kept[0]) == 20


def test_an_unknown_sampler(make_labels):
    with pytest.raises(UnknownSampler, match="unheard-of"):
        run(make_labels(0, range(1, 2)), "unheard-of")
