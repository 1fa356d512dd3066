"""Spans on their way to a real collector, and to one that is not there."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")

from collecting import Collector
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from galileo import request_id, spans
from galileo.cluster import free_ports
from galileo.tracing import Tracing, TracingOptions, start_tracing
from galileo.tracing.recording import CLOSE_TIMEOUT_S, EXPORT_TIMEOUT_S, QUEUE_MAX

Start = Callable[[str, float], Tracing]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.stop()


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Tracing] = []

    def begin(endpoint: str, ratio: float) -> Tracing:
        options = TracingOptions(endpoint, ratio)
        made = start_tracing(options, service="test", node="n-1")
        assert made is not None
        started.append(made)
        return made

    yield begin
    for one in started:
        one.close()
    assert not spans.is_on()


def test_spans_are_exported_with_parents_and_attributes(collector: Collector, start: Start) -> None:
    tracing = start(collector.endpoint, 1.0)
    with request_id.serving("r-1"), spans.span("a", kind="server", dataset="nam"):
        first = spans.current()
        spans.record("b", parent=first, took_s=0.25, commits=2)
    with spans.inside(first), pytest.raises(ZeroDivisionError), spans.child("c"):
        raise ZeroDivisionError
    tracing.close()
    exported = {one.name: one for one in collector.spans()}
    assert {one.trace for one in exported.values()} == {first[3:35]}
    assert exported["a"].facts == {"dataset": "nam", "request": "r-1"}
    assert (exported["a"].service, exported["a"].node) == ("test", "n-1")
    assert {exported["b"].parent, exported["c"].parent} == {exported["a"].id}
    assert exported["b"].took_s == pytest.approx(0.25, abs=1e-6)
    assert (exported["a"].is_error, exported["c"].is_error) == (False, True)


def test_spans_that_are_not_sampled_are_not_recorded(collector: Collector, start: Start) -> None:
    tracing = start(collector.endpoint, 0.0)
    with spans.span("a"):
        unchosen = spans.current()
    assert not is_chosen(unchosen)
    with spans.inside(unchosen), spans.span("b"):
        assert not is_chosen(spans.current())
    chosen = f"00-{7:032x}-{7:016x}-01"
    with spans.inside(chosen), spans.span("c"):
        assert is_chosen(spans.current())
    tracing.close()
    assert [(one.name, one.trace) for one in collector.spans()] == [("c", f"{7:032x}")]


def is_chosen(traceparent: str) -> bool:
    return bool(int(traceparent[-2:], 16) & 1)


def test_spans_are_sampled_by_the_ratio(collector: Collector, start: Start) -> None:
    tracing = start(collector.endpoint, 0.25)
    for _ in range(400):
        with spans.span("a"), spans.child("b"):
            pass
    tracing.close()
    exported = collector.spans()
    assert 50 < len([one for one in exported if one.name == "a"]) < 150
    assert len([one for one in exported if one.name == "b"]) == len(exported) / 2


def test_span_ids_leave_the_global_generator_untouched(collector: Collector, start: Start) -> None:
    start(collector.endpoint, 1.0)
    before = random.getstate()
    ids: set[str] = set()
    try:
        for _ in range(2):
            random.seed(7)
            seeded = random.getstate()
            with spans.span("a"), spans.child("b"):
                ids.add(spans.trace_id())
            assert random.getstate() == seeded
    finally:
        random.setstate(before)
    assert len(ids) == 2


@pytest.mark.parametrize("kind", ["absent", "silent"])
@pytest.mark.slow
def test_spans_without_a_collector_cost_no_time(
    kind: str, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absent: nothing listens. Silent: a socket that never answers."""
    attempts: list[int] = []
    export = OTLPSpanExporter.export

    def count(exporter: OTLPSpanExporter, batch: Any) -> Any:
        attempts.append(len(batch))
        return export(exporter, batch)

    monkeypatch.setattr(OTLPSpanExporter, "export", count)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1] if kind == "silent" else free_ports(1)[0]
        slowest_s, closing_s = slowest_and_closing_s(start(f"http://127.0.0.1:{port}", 1.0))
    assert slowest_s < EXPORT_TIMEOUT_S / 2
    assert closing_s < 2 * (CLOSE_TIMEOUT_S + EXPORT_TIMEOUT_S)
    attempts.clear()
    for exporting in [one for one in threading.enumerate() if one.name.startswith("Otel")]:
        exporting.join(120.0)
    assert not attempts, "spans are exported after the end"
    exported = [one for one in caplog.records if one.name.startswith("galileo")]
    assert len([one for one in exported if "cannot export spans" in one.getMessage()]) <= 1


def slowest_and_closing_s(tracing: Tracing) -> tuple[float, float]:
    """Of the slowest, but for a few that a machine may have kept from its processors."""
    took_s, threads = [], threading.active_count()
    for _ in range(3 * QUEUE_MAX):
        begun = time.perf_counter()
        with spans.span("a"):
            pass
        took_s.append(time.perf_counter() - begun)
    assert threading.active_count() <= threads + 1
    begun = time.perf_counter()
    tracing.close()
    return sorted(took_s)[-5], time.perf_counter() - begun


@pytest.mark.slow
def test_spans_are_exported_again_after_the_collector_returns(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="galileo.tracing.recording")
    [port] = free_ports(1)
    start(f"http://127.0.0.1:{port}", 1.0)

    def was_logged(words: str) -> Callable[[], bool]:
        return lambda: any(words in one.getMessage() for one in caplog.records)

    until(was_logged("cannot export spans"))
    collector = Collector(port)
    try:
        until(was_logged("exporting spans to"))
        assert collector.spans()
    finally:
        collector.stop()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        with spans.span("again"):
            time.sleep(0.05)
