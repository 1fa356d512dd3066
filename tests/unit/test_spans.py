"""Spans without OpenTelemetry: what is whose child, and that nothing happens where no one asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

import pytest

from galileo import spans
from galileo.spans import Fact, Kind


@dataclass
class Noted:
    name: str
    parent: str
    traceparent: str
    kind: Kind
    facts: dict[str, Fact]
    ended: list[str] = field(default_factory=list)

    def note(self, name: str, fact: Fact) -> None:
        self.facts[name] = fact

    def end(self, *, error: str = "", ended_ns: int | None = None) -> None:
        self.ended.append(error)


class Notes:
    """A recorder that keeps what it gets."""

    def __init__(self) -> None:
        self.all: list[Noted] = []
        self.begun_ns: list[int | None] = []

    def begin(
        self, name: str, *, parent: str, kind: Kind, begun_ns: int | None, facts: dict[str, Fact]
    ) -> Noted:
        self.begun_ns.append(begun_ns)
        traceparent = f"00-{1:032x}-{len(self.all) + 1:016x}-01"
        self.all.append(Noted(name, parent, traceparent, kind, facts))
        return self.all[-1]


@pytest.fixture
def notes() -> Iterator[Notes]:
    made = Notes()
    spans.record_with(made)
    yield made
    spans.record_with(None)


def test_span_nested_is_child(notes: Notes) -> None:
    with spans.span("a", size=3) as first:
        first.note("more", "x")
        with spans.child("b"):
            assert spans.trace_id() == f"{1:032x}"
    assert spans.current() == ""
    a, b = notes.all
    assert (a.parent, b.parent) == ("", a.traceparent)
    assert (a.facts, a.ended, b.ended) == ({"size": 3, "more": "x"}, [""], [""])


def test_span_child_without_parent_is_not_recorded(notes: Notes) -> None:
    with spans.child("alone"):
        assert spans.begun("alone too") is None
    assert notes.all == []


def test_span_error_ends_it_with_name(notes: Notes) -> None:
    with pytest.raises(ValueError, match="no"), spans.span("a"):
        raise ValueError("no")
    assert notes.all[0].ended == ["ValueError"]
    assert spans.current() == ""


def test_span_record_has_given_parent(notes: Notes) -> None:
    spans.record("fsync", parent="p", took_s=0.5, error="X", commits=2)
    assert (notes.all[0].parent, notes.all[0].ended) == ("p", ["X"])


def test_span_waited_begins_before_its_parts(notes: Notes) -> None:
    with spans.span("tick", waited_s=0.5):
        spans.record("due", parent=spans.current(), took_s=0.5)
    tick_ns, due_ns = notes.begun_ns
    assert tick_ns is not None
    assert due_ns is not None
    assert tick_ns <= due_ns
    with spans.span("next"):
        assert notes.begun_ns[-1] is None


async def test_span_concurrent_tasks_are_separate(notes: Notes) -> None:
    async def one(name: str) -> None:
        with spans.span(name):
            await asyncio.sleep(0)
            with spans.child(f"in {name}"):
                await asyncio.sleep(0)

    await asyncio.gather(one("a"), one("b"))
    by_name = {each.name: each for each in notes.all}
    assert by_name["in a"].parent == by_name["a"].traceparent
    assert by_name["in b"].parent == by_name["b"].traceparent


async def test_span_generator_closed_by_other_task_ends(notes: Notes) -> None:
    async def made() -> AsyncGenerator[int, None]:
        with spans.span("a"):
            yield 1

    generator = made()

    async def begun() -> None:
        await anext(generator)

    await asyncio.create_task(begun())
    await generator.aclose()
    assert len(notes.all[0].ended) == 1


def test_span_without_recorder_does_nothing() -> None:
    assert not spans.is_on()
    with spans.span("a") as nothing:
        nothing.note("x", 1)
        assert spans.current() == nothing.traceparent == ""
    assert spans.begun("b") is None
    spans.record("c", parent="", took_s=1.0)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "x",
        f"00-{0:032x}-{1:016x}-01",
        f"00-{1:032x}-{0:016x}-01",
        f"00-{1:032X}-{10:016X}-01",
        f"01-{1:032x}-{1:016x}-01",
        f"00-{1:032x}-{1:016x}-01\n",
        f"00-{1:032x}-{1:016x}-01-more",
    ],
)
def test_sound_traceparent_invalid_is_empty(text: str | None) -> None:
    assert spans.sound(text) == ""


def test_sound_traceparent_valid_is_unchanged() -> None:
    good = f"00-{1:032x}-{1:016x}-00"
    assert spans.sound(good) == good
