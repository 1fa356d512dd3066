"""Calls beside the job: waited for a moment, taken over later, forgotten when they failed."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace

import pytest

from galileo.cursor import Cursor
from galileo.errors import Overloaded, SamplerFailed
from galileo.samplers import SamplerSpec
from galileo.spark import beside
from galileo.spark.beside import Beside, Call

SPEC = SamplerSpec("sent", {}, 1, archive="0" * 64)
THIRD = SamplerSpec("third", {}, 1, archive="2" * 64)
OTHER = SamplerSpec("other", {}, 1, archive="1" * 64)


@pytest.fixture
def calls():
    return Beside(threads=2)


def made(sample, reached=None, *, spec=SPEC):
    return lambda: Call(sample, spec=spec, owner="air", reached=reached or Cursor({0: 3}))


def test_a_quick_call_is_over_in_the_moment(calls, make_labels):
    labels = make_labels(0, range(1, 3))
    call = calls.begin(("quick",), made(lambda: labels))
    calls.settle([call], patience_s=20)
    assert call.over.is_set()
    assert calls.take(("quick",), call) is labels
    assert call.reached == Cursor({0: 3})


def test_a_slow_call_is_left_and_its_answer_found_later(calls, make_labels):
    labels, free, asked = make_labels(0, range(1, 3)), threading.Event(), []

    def slow():
        asked.append(1)
        assert free.wait(60)
        return labels

    first = calls.begin(("slow",), made(slow, Cursor({0: 2})))
    quick = calls.begin(("quick",), made(lambda: labels, spec=OTHER))
    calls.settle([first, quick], patience_s=0.05)
    assert (first.over.is_set(), quick.over.wait(60)) == (False, True)
    again = calls.begin(("slow",), made(slow, Cursor({0: 9})))
    assert again is first, "it is not asked twice from the same place"
    free.set()
    assert first.over.wait(60)
    assert calls.take(("slow",), first) is labels
    assert calls.take(("slow",), first) is labels, "another query may ask the same"
    assert first.reached == Cursor({0: 2})
    assert asked == [1]


def test_a_failed_call_is_told_once_and_tried_again(calls, make_labels):
    def fails():
        raise ValueError("no luck")

    for _ in range(2):
        call = calls.begin(("fails",), made(fails))
        assert call.over.wait(60)
        with pytest.raises(SamplerFailed, match="ValueError: no luck"):
            calls.take(("fails",), call)
    labels = make_labels(0, range(1, 2))
    call = calls.begin(("fails",), made(lambda: labels))
    assert call.over.wait(60)
    assert calls.take(("fails",), call) is labels


def test_our_own_errors_stay_what_they_are(calls):
    def busy():
        raise Overloaded("later")

    call = calls.begin(("busy",), made(busy))
    assert call.over.wait(60)
    with pytest.raises(Overloaded, match="later"):
        calls.take(("busy",), call)


def test_old_answers_make_room_and_running_calls_do_not(calls, make_labels, monkeypatch):
    monkeypatch.setattr(beside, "CALLS_MAX", 2)
    labels, free = make_labels(0, range(1, 2)), threading.Event()
    try:
        hanging = calls.begin(("hangs",), made(lambda: free.wait(60) and labels))
        for number in range(3):
            call = calls.begin((f"quick {number}",), made(lambda: labels, spec=OTHER))
            assert call.over.wait(60)
        assert calls.begin(("hangs",), made(lambda: labels)) is hanging
        also = calls.begin(("hangs, too",), made(lambda: free.wait(60) and labels, spec=OTHER))
        with pytest.raises(Overloaded, match="2 sent samplers run already"):
            calls.begin(("one more",), made(lambda: labels, spec=THIRD))
    finally:
        free.set()
    assert hanging.over.wait(60)
    assert also.over.wait(60)
    calls.begin(("one more",), made(lambda: labels))


def test_an_answer_is_there_for_who_asked_though_others_took_its_place(
    calls, make_labels, monkeypatch
):
    monkeypatch.setattr(beside, "CALLS_MAX", 2)
    labels = make_labels(0, range(1, 2))
    waits = calls.begin(("waits",), made(lambda: labels))
    assert waits.over.wait(60)
    for number in range(2):
        assert calls.begin((number,), made(lambda: labels)).over.wait(60)
    assert calls.take(("waits",), waits) is labels


def test_a_failure_does_not_forget_the_call_that_took_its_place(calls, make_labels, monkeypatch):
    def fails():
        raise Overloaded("later")

    monkeypatch.setattr(beside, "CALLS_MAX", 1)
    first = calls.begin(("same",), made(fails))
    assert first.over.wait(60)
    assert calls.begin(("other",), made(fails)).over.wait(60)
    second = calls.begin(("same",), made(lambda: make_labels(0, range(1, 2))))
    assert second.over.wait(60)
    with pytest.raises(Overloaded):
        calls.take(("same",), first)
    assert calls.begin(("same",), made(fails)) is second


def test_an_answer_that_nobody_took_outlives_those_that_were_taken(calls, make_labels, monkeypatch):
    monkeypatch.setattr(beside, "CALLS_MAX", 2)
    labels = make_labels(0, range(1, 2))
    seldom = calls.begin(("asks every minute",), made(lambda: labels))
    assert seldom.over.wait(60)
    for number in range(5):
        often = calls.begin((f"asks every second {number}",), made(lambda: labels, spec=OTHER))
        assert often.over.wait(60)
        assert calls.take((f"asks every second {number}",), often) is labels
    assert calls.begin(("asks every minute",), made(lambda: labels)) is seldom


def test_one_archive_leaves_threads_and_places_to_others(make_labels, monkeypatch):
    monkeypatch.setattr(beside, "CALLS_MAX", 8)
    calls, labels, free = Beside(threads=4), make_labels(0, range(1, 2)), threading.Event()
    greedy = [replace(SPEC, options={"number": number}) for number in range(5)]
    try:
        for number, spec in enumerate(greedy[:4]):
            calls.begin((number,), made(lambda: free.wait(60) and labels, spec=spec))
        with pytest.raises(Overloaded, match="4 calls of this sent sampler"):
            calls.begin((4,), made(lambda: labels, spec=greedy[4]))
        other = calls.begin(("other",), made(lambda: labels, spec=OTHER))
        assert other.over.wait(60), "two threads are left"
    finally:
        free.set()


def test_calls_of_one_process_take_one_thread(make_labels):
    calls, labels, free = Beside(threads=8), make_labels(0, range(1, 2)), threading.Event()
    at_work, most = [], []

    def sample():
        at_work.append(1)
        most.append(len(at_work))
        assert free.wait(60)
        at_work.pop()
        return labels

    alike = [calls.begin((number,), made(sample)) for number in range(3)]
    unlike = replace(SPEC, options={"of": 2})
    assert calls.begin(("unlike",), made(lambda: labels, spec=unlike)).over.wait(60)
    free.set()
    for call in alike:
        assert call.over.wait(60)
    assert most == [1, 1, 1]


def test_what_a_sampler_was_shown_is_not_kept_with_its_answer(calls, make_labels):
    class Shown:
        """Labels of a whole part."""

        def few(self):
            return make_labels(0, range(1, 2))

    shown = Shown()
    gone = weakref.ref(shown)
    call = calls.begin(("key",), made(shown.few))
    assert call.over.wait(60)
    del shown
    gc.collect()
    assert gone() is None
    assert len(calls.take(("key",), call)) == 10


def test_whatever_a_call_raises_its_thread_lives_on(make_labels):
    calls, labels = Beside(threads=1), make_labels(0, range(1, 2))

    def leaves():
        raise SystemExit(3)

    call = calls.begin(("leaves",), made(leaves))
    assert call.over.wait(60)
    with pytest.raises(SamplerFailed, match="SystemExit"):
        calls.take(("leaves",), call)
    assert calls.begin(("stays",), made(lambda: labels)).over.wait(60)
