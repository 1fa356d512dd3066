"""A task on a machine that cannot record traces."""

from __future__ import annotations

import sys

import pytest

from galileo.spark import task
from galileo.spark.tick import Tick, TickLimits
from galileo.tracing import TracingOptions


@pytest.fixture
def untraceable(monkeypatch):
    """A worker that lacks what traces need."""
    monkeypatch.delitem(sys.modules, "galileo.tracing.recording", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    task._traced.cache_clear()
    yield
    task._traced.cache_clear()


@pytest.mark.usefixtures("untraceable")
def test_it_is_done_without_them_and_that_is_told_once(monkeypatch, caplog):
    class Nodes:
        def fetch(self, *_, **__):
            return []

    monkeypatch.setattr(task, "_scanner", lambda _: Nodes())
    limits = TickLimits(1.0, 1.0, tracing=TracingOptions("http://127.0.0.1:4317"))
    tick = Tick(number=1, groups=(), shares=(), tasks=1, limits=limits)
    for _ in range(3):
        assert list(task.run(tick, 0)) == []
    (told,) = caplog.records
    assert "records no traces" in told.message
    assert "galileo-store[otel]" in told.message
