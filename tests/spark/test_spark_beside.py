"""Calls beside the job: waited for a moment, taken over later, forgotten when they failed."""

from __future__ import annotations

import threading
import time

import pytest

from galileo.cursor import Cursor
from galileo.errors import Overloaded, SamplerFailed
from galileo.samplers import SamplerSpec
from galileo.spark import beside
from galileo.spark.beside import Beside, Call

SPEC = SamplerSpec("sent", {}, 1, archive="0" * 64)


@pytest.fixture
def calls():
    return Beside(threads=2)


def made(sample, reached=None):
    return lambda: Call(sample, spec=SPEC, reached=reached or Cursor({0: 3}))


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
    quick = calls.begin(("quick",), made(lambda: labels))
    started = time.monotonic()
    calls.settle([first, quick], patience_s=0.05)
    assert time.monotonic() - started < 10
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
            call = calls.begin((f"quick {number}",), made(lambda: labels))
            assert call.over.wait(60)
        assert calls.begin(("hangs",), made(lambda: labels)) is hanging
        also = calls.begin(("hangs, too",), made(lambda: free.wait(60) and labels))
        with pytest.raises(Overloaded, match="2 sent samplers run already"):
            calls.begin(("one more",), made(lambda: labels))
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
