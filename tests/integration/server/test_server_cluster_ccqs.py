"""Lists and counts of continuous queries, gathered from nodes of which some do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from expected_errors import raises

from galileo.ccq.model import Ccq, Record
from galileo.cursor import Cursor
from galileo.errors import Unavailable
from galileo.node.retention_plan import ReaderProgress
from galileo.rpc.continuous import CcqInfo
from galileo.server.cluster_ccqs import COUNTS_TTL_S, ClusterCcqs, merge

NAMES = ("a", "b", "c", "d", "e")
WALL = 1_000.0
CCQ = Ccq("q", "nam", "true", 1.0, WALL + 100.0, owner="ann")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL


class Peers:
    """The other nodes: their records, and the nodes that do not answer."""

    def __init__(self) -> None:
        self.records: dict[str, list[Record]] = {}
        self.silent: set[str] = set()
        self.asked = 0

    def address(self, node: str) -> str:
        return f"{node}:7701"

    def _check(self, node: str) -> None:
        self.asked += 1
        if node in self.silent:
            raise Unavailable("it does not answer")

    async def ccqs(self, node: str, *, dataset: str) -> list[CcqInfo]:
        self._check(node)
        return gatherer(self.records.get(node, ()), peers=self).here(dataset)

    async def ccq_counts(self, node: str) -> dict[str, int]:
        self._check(node)
        return {"ann": len(self.records.get(node, ()))}


def gatherer(
    records: Iterable[Record] = (), *, peers: Peers | None = None, clock: Clock | None = None
) -> ClusterCcqs:
    machine = SimpleNamespace(
        is_restored=True,
        records=tuple(records),
        coordinated={},
        state=SimpleNamespace(options=SimpleNamespace(record_replicas=3)),
    )
    nodes = [SimpleNamespace(name=name) for name in NAMES]
    node: Any = SimpleNamespace(name="a", topology=SimpleNamespace(nodes=nodes))
    driver: Any = SimpleNamespace(machine=machine)
    parts: Any = peers or Peers(), clock or Clock()
    return ClusterCcqs(driver, node, peers=parts[0], clock=parts[1])


def record(ccq_id: str = "q", *, term: int = 1, **more: Any) -> Record:
    return Record(replace(CCQ, id=ccq_id), term, f"node-{term}", **more)


async def test_list_merges_the_records_of_all_nodes() -> None:
    peers = Peers()
    peers.records = {"b": [record("q", term=2), record("r")], "c": [record("s")]}
    listed = await gatherer([record("q")], peers=peers).all()
    assert [(one.id, one.coordinator) for one in listed] == [
        ("q", "node-2"),
        ("r", "node-1"),
        ("s", "node-1"),
    ]


async def test_list_omits_what_any_node_knows_to_have_ended() -> None:
    peers = Peers()
    peers.records = {"b": [record(ended="cancelled", ended_at=WALL)], "c": [record(term=9)]}
    assert await gatherer([record()], peers=peers).all() == []


async def test_list_of_a_dataset_has_no_others() -> None:
    other = Record(replace(CCQ, id="r", dataset="other"), 1, "b")
    listed = await gatherer([record(), other]).all("other")
    assert [one.id for one in listed] == ["r"]


async def test_list_is_complete_while_fewer_nodes_are_silent_than_have_a_record() -> None:
    peers = Peers()
    peers.records = {"e": [record()]}
    peers.silent = {"b", "c"}
    assert [one.id for one in await gatherer(peers=peers).all()] == ["q"]
    peers.silent.add("d")
    with raises(Unavailable, nodes=["b", "c", "d"], after_s=1.0):
        await gatherer(peers=peers).all()


async def test_progress_is_unknown_when_a_node_is_silent() -> None:
    peers = Peers()
    peers.records = {"b": [record(retrieved=Cursor({0: 3}))]}
    ccqs = gatherer([record(retrieved=Cursor({1: 4}))], peers=peers)
    assert await ccqs.progress("nam") == [ReaderProgress("q", Cursor({0: 3, 1: 4}))]
    peers.silent = {"e"}
    assert await ccqs.progress("nam") is None


async def test_progress_from_a_thread_equals_progress() -> None:
    ccqs = gatherer([record()])
    assert ccqs.progress_from_thread("nam") is None, "the event loop is not known"
    ccqs.start()
    found = await asyncio.to_thread(ccqs.progress_from_thread, "nam")
    assert found == await ccqs.progress("nam")


async def test_counts_are_gathered_once_and_submissions_added() -> None:
    peers, clock = Peers(), Clock()
    peers.records = {"b": [record("q"), record("r")], "c": [record("s")]}
    ccqs = gatherer(peers=peers, clock=clock)
    assert (await ccqs.owned_by("ann"), await ccqs.owned_by("bob")) == (3, 0)
    for _ in range(2):
        ccqs.record_submitted("ann")
    assert (await ccqs.owned_by("ann"), await ccqs.total(), peers.asked) == (5, 5, 4)
    peers.records["d"] = [record("t"), record("u")]
    clock.now += COUNTS_TTL_S
    assert (await ccqs.owned_by("ann"), peers.asked) == (5, 8)


async def test_counts_include_what_is_being_submitted() -> None:
    ccqs = gatherer()
    with ccqs.submitting("ann"), ccqs.submitting("ann"):
        assert (await ccqs.owned_by("ann"), await ccqs.total()) == (2, 2)
    assert await ccqs.owned_by("ann") == 0


async def test_here_while_the_node_is_starting_is_unavailable() -> None:
    ccqs = gatherer()
    ccqs._machine.is_restored = False  # type: ignore[misc]
    with pytest.raises(Unavailable):
        ccqs.here()


def test_merge_joins_what_readers_have_retrieved() -> None:
    ccqs = gatherer()
    first = ccqs.info(record(term=2, retrieved=Cursor({0: 1})))
    second = ccqs.info(record(term=1, retrieved=Cursor({1: 2})))
    [merged] = merge([[first], [second]])
    assert (merged.term, merged.retrieved) == (2, Cursor({0: 1, 1: 2}))
