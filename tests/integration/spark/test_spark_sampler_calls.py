"""Background calls: waited for briefly, delivered later, removed when they failed."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace

import pytest
from expected_errors import raises

from galileo.cursor import Cursor
from galileo.errors import Overloaded, SamplerFailed
from galileo.samplers import SamplerSpec
from galileo.spark.uploaded_samplers import BackgroundCalls, Call

SPEC = SamplerSpec("sent", {}, 1, archive="0" * 64)
THIRD = SamplerSpec("third", {}, 1, archive="2" * 64)
OTHER = SamplerSpec("other", {}, 1, archive="1" * 64)


@pytest.fixture
def calls_max():
    """Tests override it."""
    return 128


@pytest.fixture
def calls(calls_max):
    return BackgroundCalls(threads=2, calls_max=calls_max)


def call_of(sample, reached=None, *, spec=SPEC):
    return lambda: Call(sample, spec=spec, owner="air", reached=reached or Cursor({0: 3}))


def test_wait_quick_call_is_done(calls, make_labels):
    labels = make_labels(0, range(1, 3))
    call = calls.start(("quick",), call_of(lambda: labels))
    calls.wait([call], timeout_s=20)
    assert call.done.is_set()
    assert calls.deliver(("quick",), call) is labels
    assert call.reached == Cursor({0: 3})


def test_start_same_key_returns_the_running_call(calls, make_labels):
    labels, free, calls_made = make_labels(0, range(1, 3)), threading.Event(), []

    def slow():
        calls_made.append(1)
        assert free.wait(60)
        return labels

    first = calls.start(("slow",), call_of(slow, Cursor({0: 2})))
    quick = calls.start(("quick",), call_of(lambda: labels, spec=OTHER))
    calls.wait([first, quick], timeout_s=0.05)
    assert (first.done.is_set(), quick.done.wait(60)) == (False, True)
    again = calls.start(("slow",), call_of(slow, Cursor({0: 9})))
    assert again is first, "the same key is called once"
    free.set()
    assert first.done.wait(60)
    assert calls.deliver(("slow",), first) is labels
    assert calls.deliver(("slow",), first) is labels, "another query can have the same key"
    assert first.reached == Cursor({0: 2})
    assert calls_made == [1]


def test_deliver_failed_call_is_removed(calls, make_labels):
    def fails():
        raise ValueError("no luck")

    for _ in range(2):
        call = calls.start(("fails",), call_of(fails))
        assert call.done.wait(60)
        with raises(SamplerFailed):
            calls.deliver(("fails",), call)
    labels = make_labels(0, range(1, 2))
    call = calls.start(("fails",), call_of(lambda: labels))
    assert call.done.wait(60)
    assert calls.deliver(("fails",), call) is labels


def test_deliver_galileo_error_keeps_its_class(calls):
    def busy():
        raise Overloaded("later")

    call = calls.start(("busy",), call_of(busy))
    assert call.done.wait(60)
    with raises(Overloaded):
        calls.deliver(("busy",), call)


@pytest.mark.parametrize("calls_max", [2])
def test_start_evicts_results_but_not_running_calls(calls, make_labels):
    labels, free = make_labels(0, range(1, 2)), threading.Event()
    try:
        hanging = calls.start(("hangs",), call_of(lambda: free.wait(60) and labels))
        for number in range(3):
            call = calls.start((f"quick {number}",), call_of(lambda: labels, spec=OTHER))
            assert call.done.wait(60)
        assert calls.start(("hangs",), call_of(lambda: labels)) is hanging
        also = calls.start(("hangs, too",), call_of(lambda: free.wait(60) and labels, spec=OTHER))
        with raises(Overloaded, bound=2):
            calls.start(("one more",), call_of(lambda: labels, spec=THIRD))
    finally:
        free.set()
    assert hanging.done.wait(60)
    assert also.done.wait(60)
    calls.start(("one more",), call_of(lambda: labels))


@pytest.mark.parametrize("calls_max", [2])
def test_deliver_evicted_call_has_its_result(calls, make_labels):
    labels = make_labels(0, range(1, 2))
    waits = calls.start(("waits",), call_of(lambda: labels))
    assert waits.done.wait(60)
    for number in range(2):
        assert calls.start((number,), call_of(lambda: labels)).done.wait(60)
    assert calls.deliver(("waits",), waits) is labels


@pytest.mark.parametrize("calls_max", [1])
def test_deliver_failure_keeps_a_newer_call_of_its_key(calls, make_labels):
    def fails():
        raise Overloaded("later")

    first = calls.start(("same",), call_of(fails))
    assert first.done.wait(60)
    assert calls.start(("other",), call_of(fails)).done.wait(60)
    second = calls.start(("same",), call_of(lambda: make_labels(0, range(1, 2))))
    assert second.done.wait(60)
    with pytest.raises(Overloaded):
        calls.deliver(("same",), first)
    assert calls.start(("same",), call_of(fails)) is second


@pytest.mark.parametrize("calls_max", [2])
def test_start_evicts_delivered_results_first(calls, make_labels):
    labels = make_labels(0, range(1, 2))
    seldom = calls.start(("asks every minute",), call_of(lambda: labels))
    assert seldom.done.wait(60)
    for number in range(5):
        often = calls.start((f"asks every second {number}",), call_of(lambda: labels, spec=OTHER))
        assert often.done.wait(60)
        assert calls.deliver((f"asks every second {number}",), often) is labels
    assert calls.start(("asks every minute",), call_of(lambda: labels)) is seldom


def test_start_limits_calls_of_one_archive(make_labels):
    calls = BackgroundCalls(threads=4, calls_max=8)
    labels, free = make_labels(0, range(1, 2)), threading.Event()
    greedy = [replace(SPEC, options={"number": number}) for number in range(5)]
    try:
        for number, spec in enumerate(greedy[:4]):
            calls.start((number,), call_of(lambda: free.wait(60) and labels, spec=spec))
        with raises(Overloaded, calls=4):
            calls.start((4,), call_of(lambda: labels, spec=greedy[4]))
        other = calls.start(("other",), call_of(lambda: labels, spec=OTHER))
        assert other.done.wait(60), "two threads are left"
    finally:
        free.set()


def test_start_calls_of_one_process_share_a_thread(make_labels):
    calls, labels, free = BackgroundCalls(threads=8), make_labels(0, range(1, 2)), threading.Event()
    at_work, most = [], []

    def sample():
        at_work.append(1)
        most.append(len(at_work))
        assert free.wait(60)
        at_work.pop()
        return labels

    alike = [calls.start((number,), call_of(sample)) for number in range(3)]
    unlike = replace(SPEC, options={"of": 2})
    assert calls.start(("unlike",), call_of(lambda: labels, spec=unlike)).done.wait(60)
    free.set()
    for call in alike:
        assert call.done.wait(60)
    assert most == [1, 1, 1]


def test_run_frees_the_input(calls, make_labels):
    class Shown:
        """Labels of a whole part."""

        def few(self):
            return make_labels(0, range(1, 2))

    shown = Shown()
    gone = weakref.ref(shown)
    call = calls.start(("key",), call_of(shown.few))
    assert call.done.wait(60)
    del shown
    gc.collect()
    assert gone() is None
    assert len(calls.deliver(("key",), call)) == 10


def test_run_system_exit_keeps_the_thread(make_labels):
    calls, labels = BackgroundCalls(threads=1), make_labels(0, range(1, 2))

    def leaves():
        raise SystemExit(3)

    call = calls.start(("leaves",), call_of(leaves))
    assert call.done.wait(60)
    with raises(SamplerFailed):
        calls.deliver(("leaves",), call)
    assert calls.start(("stays",), call_of(lambda: labels)).done.wait(60)
