"""Reads of named ranges of commits at replicas that do not lead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from cycle_requests import cycle_request
from replica_nodes import (
    PARTITIONS,
    ROWS,
    SCHEMA,
    Host,
    World,
    await_whole,
    batch,
    range_task,
    rows_of,
    until,
)

from galileo.ccq import events as ccq
from galileo.ccq.model import CcqDefinition
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.cycle import Answers, CycleRequest
from galileo.dht.topology import Move
from galileo.errors import PartitionMoved
from galileo.node.cluster_scan import ScanEnd
from galileo.node.peers import PARTS_SCHEMA, ReadTask, ScanDone, ScanFailed, ScanLabels, ScanTask
from galileo.node.select import CursorRange
from galileo.node.storage_node import StorageNode
from galileo.query import parse
from galileo.server.cycle_executor import CycleExecutor
from galileo.spark.options import EvaluatorOptions
from galileo.spark.task import Job

BATCHES = 4
ALL = frozenset(range(PARTITIONS))
EVERYTHING = parse("", SCHEMA)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A world without faults, of which all nodes have the same commits in both partitions."""
    world = World(tmp_path, 0)
    await world.begin()
    world.is_calm = True
    await await_whole(world)
    for number in range(BATCHES):
        await world.send(number)
    await until(world, lambda: world.is_equal() and published(world.hosts["a"]).keys() == ALL)
    yield world
    await world.close()


def published(host: Host) -> Cursor:
    return host.node.catalog.shard("nam").published()


def follower(world: World, partition: int) -> Host:
    return next(host for host in world.hosts.values() if partition not in host.replicas.led)


async def scanned(node: StorageNode, bound: Cursor) -> int:
    rows = 0
    async for part in node.scans.between(
        EVERYTHING, partitions=ALL, after=EMPTY_CURSOR, until=bound
    ):
        if isinstance(part, ScanEnd):
            assert part == ScanEnd(bound, frozenset())
        else:
            rows += sum(part.column("rows").to_pylist())
    return rows


async def selected(node: StorageNode, bound: Cursor) -> int:
    commits = CursorRange(ALL, EMPTY_CURSOR, bound)
    tables = node.selection.select(parse("temperature > 0", SCHEMA), commits=commits)
    return sum([table.num_rows async for table in tables])


async def read(node: StorageNode, bound: Cursor) -> int:
    graph = node.catalog.shard("nam").graph
    parts = graph.scan(EVERYTHING, until=bound, partitions=ALL)
    task = ReadTask("nam", parts.select(PARTS_SCHEMA.names).cast(PARTS_SCHEMA), "")
    return sum([table.num_rows async for table in node.reading.read(task)])


async def matched(node: StorageNode, bound: Cursor) -> int:
    text = EVERYTHING.to_json()
    await node.matching.register_queries("nam", [text])
    answer = await node.matching.match(match_task(text, bound))
    return sum(sum(part.matches.rows.column("rows").to_pylist()) for part in answer.parts)


def match_task(text: str, committed: Cursor | None) -> CycleRequest:
    partitions = range(PARTITIONS)
    return cycle_request(
        SCHEMA,
        [text],
        after=[[0] * PARTITIONS],
        partitions=partitions,
        dataset="nam",
        committed=[] if committed is None else [committed[p] for p in partitions],
    )


@pytest.mark.parametrize("way", [scanned, selected, read, matched])
async def test_replica_named_range_is_answered_without_other_nodes(
    world: World, way: Callable[[StorageNode, Cursor], Coroutine[Any, Any, int]]
) -> None:
    bound = published(world.hosts["a"])
    world.network.nodes = {}
    for host in world.hosts.values():
        assert await way(host.node, bound) == BATCHES * ROWS


async def test_replica_range_that_it_has_not_published_comes_from_the_leader(world: World) -> None:
    behind = follower(world, 0)
    world.cut.add(behind.name)
    before = published(behind)
    number = BATCHES
    while (leader := world.leader_of(0)) is None or published(leader)[0] == before[0]:
        if leader is not None:
            await leader.node.ingest.ingest("nam", batch(number), producer="p", batch=number)
            number += 1
        await asyncio.sleep(0.02)
    bound = published(leader)
    assert published(behind)[0] < bound[0]
    task = range_task(0, 0, bound[0])
    (failed,) = [one async for one in behind.node.local_scans.scan([task])]
    assert isinstance(failed, ScanFailed)
    assert isinstance(failed.error, PartitionMoved)
    with pytest.raises(PartitionMoved):
        await behind.node.matching.match(match_task("", bound))
    assert await scanned(behind.node, Cursor({0: bound[0], 1: before[1]})) > 0


async def test_replica_matches_no_further_than_a_leader_has_published(world: World) -> None:
    text, known = EVERYTHING.to_json(), Cursor(dict.fromkeys(ALL, 1))
    for host in world.hosts.values():
        await host.node.matching.register_queries("nam", [text])
        answer = await host.node.matching.match(match_task(text, known))
        last = published(host)
        led = {p: last[p] for p in host.replicas.led}
        assert [part.reached for part in answer.parts] == [Cursor(known).join(led)]


async def test_replica_without_a_range_answers_nothing(world: World) -> None:
    host = follower(world, 0)
    task = range_task(0, 0, 1)
    unbounded = ScanTask(0, "nam", task.query_json, EMPTY_CURSOR, None, task.partitions)
    for one in (unbounded, range_task(0, 0, 0)):
        (failed,) = [answer async for answer in host.node.local_scans.scan([one])]
        assert isinstance(failed, ScanFailed)
        assert isinstance(failed.error, PartitionMoved)
    with pytest.raises(PartitionMoved):
        await host.node.matching.match(match_task("", None))


async def test_replica_refuses_until_it_joins_the_term_of_the_leader_that_it_knows(
    world: World,
) -> None:
    host, task = follower(world, 0), range_task(0, 0, 1)
    assert host.node.local_scans.readable(task) == {0}
    known = host.live.move_of(0)
    assert known is not None
    host.live.adopt([Move(0, known.number + (1 << 32), known.node)])
    assert host.node.local_scans.readable(task) == frozenset()


async def test_replica_that_begins_anew_amid_a_scan_does_not_end_the_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, last = follower(world, 0), published(world.hosts["a"])[0]
    graph = host.node.catalog.shard("nam").graph
    scan = graph.scan_pieces

    def scan_after_loss(*args: Any, **named: Any) -> Any:
        host.node.catalog.set_aside("nam", 0)
        return scan(*args, **named)

    monkeypatch.setattr(graph, "scan_pieces", scan_after_loss)
    answers = [one async for one in host.node.local_scans.scan([range_task(0, 0, last)])]
    assert isinstance(answers[-1], ScanFailed)
    assert isinstance(answers[-1].error, PartitionMoved)


async def test_replica_answers_equal_those_of_the_leader(world: World) -> None:
    last = published(world.hosts["a"])[0]
    task = range_task(0, 1, last)
    found = []
    for host in world.hosts.values():
        answers = [one async for one in host.node.local_scans.scan([task])]
        assert answers.pop() == ScanDone(0, Cursor({0: last}))
        found.append(rows_of([one.table for one in answers if isinstance(one, ScanLabels)]))
    assert found[0] == found[1] == found[2] != []


# --- cycles --------------------------------------------------------------------------------------


async def asked(host: Host, *, ahead: int = 0) -> dict[str, set[int]]:
    """The partitions of which a cycle asks each node; `ahead`: commits that it has only heard of.

    Raises:
        AssertionError: a query was registered at a node that is not asked.
    """
    registered: set[str] = set()
    sent: list[CycleRequest] = []

    async def evaluate(requests: Sequence[CycleRequest]) -> Answers:
        sent.extend(requests)
        return ((),)

    async def register(node: str, dataset: str, texts: Any) -> None:
        if texts:
            registered.add(node)

    last = published(host)
    host.node.view.update_sequences("nam", Cursor({0: last[0] + ahead, 1: last[1]}))
    cycles = CycleExecutor(
        host.node,
        evaluate=evaluate,
        register_queries=register,
        is_dead=lambda _: False,
        failure_of=lambda error: pytest.fail(repr(error)),
    )
    one = CcqDefinition("q", "nam", EVERYTHING.to_json(), interval_s=1.0, expires_at=1e9)
    await cycles.run(ccq.StartCycle(1, (ccq.CycleItem(one, 1, EMPTY_CURSOR, tuple(sorted(ALL))),)))
    names = {node.address: node.name for node in host.node.topology.nodes}
    job = Job(1, tuple(sent), 1, EvaluatorOptions(Path()))
    found = {names[one.address]: set(one.request.partitions.tolist()) for one in job.of_task(0)}
    assert registered == found.keys()
    return found


async def test_cycle_asks_no_other_node_where_the_own_one_has_what_is_committed(
    world: World,
) -> None:
    for host in world.hosts.values():
        assert await asked(host) == {host.name: ALL}


async def test_cycle_asks_the_leader_for_what_the_own_replica_has_not_published(
    world: World,
) -> None:
    host, leader = follower(world, 0), world.leader_of(0)
    assert leader is not None
    assert await asked(host, ahead=1) == {leader.name: {0}, host.name: {1}}
