"""The way of a batch from the client to the owners of its rows, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from galileo.client import routing
from galileo.client.routing import TOPOLOGY_AGE_MIN_S, Router, _first_result
from galileo.dht import placement, topology_changes
from galileo.dht.topology import Group, Move, NodeInfo, Topology, even_ranges
from galileo.errors import (
    InvalidObservations,
    Overloaded,
    RangesChanged,
    TransientError,
    Unavailable,
)
from galileo.hashing import rows_digest
from galileo.labels import from_ipc
from galileo.model import paths
from galileo.model.schema import Feature, Schema
from galileo.model.table import Table, hashes_of, partitions_of, versions_of
from galileo.model.times import times_from_micros
from galileo.storage.commits import ranges_changed
from galileo.wire.caller import (
    AVOID_S,
    AvoidedAddresses,
    BackoffClock,
    Caller,
    CallOptions,
    Connection,
)
from galileo.wire.v1 import cluster_pb2, storage_pb2

SCHEMA = Schema("nam", [Feature("temperature")], geohash_precision=3, time_bucket="1d")
NODES = [NodeInfo(name, f"{name}:7701") for name in ("a", "b", "c", "d")]
TOPOLOGY = Topology("test", (Group("g", (*NODES[:2],)), Group("h", (*NODES[2:],))), even_ranges(2))


def observations(rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    times = times_from_micros(rng.integers(0, 10 * 86_400_000_000, rows))
    columns = [rng.uniform(-90, 90, rows), rng.uniform(-180, 180, rows)]
    arrays = [*map(pa.array, columns), times, pa.array(np.arange(rows, dtype=np.float64))]
    return pa.table(arrays, schema=SCHEMA.observation_schema)


async def _no_pause(delay_s: float) -> None:
    pass


@dataclass
class Nodes:
    """Nodes that take batches, as a caller; a node forwards rows that are not its own.

    Attributes:
        topology: that is true now.
        away: addresses that do not answer.
        overloaded: addresses whose nodes say that they are.
        taken: rows of each call, by the address that took them.
        tried: addresses that were called, also in vain.
        topologies_read: how often the topology was asked for.
        refuses: an address whose node refuses rows.
        now: seconds of the clock.
    """

    topology: Topology = TOPOLOGY
    options: CallOptions = field(default_factory=CallOptions)
    away: set[str] = field(default_factory=set)
    overloaded: set[str] = field(default_factory=set)
    taken: list[tuple[str, pa.Table]] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    heads: list[storage_pb2.IngestRequest] = field(default_factory=list)
    topologies_read: int = 0
    refuses: str = ""
    now: float = 10.0

    def __post_init__(self) -> None:
        self.avoided = AvoidedAddresses(lambda: self.now)

    call_owner = Caller.call_owner
    backoff = Caller.backoff
    clock = BackoffClock(sleep=_no_pause)

    async def call(
        self,
        attempt: Callable[[Connection], Awaitable[Any]],
        *,
        patience_s: float | None = None,
        first: str | None = None,
    ) -> Any:
        addresses = [node.address for node in self.topology.nodes]
        for address in dict.fromkeys([first or addresses[0], *addresses]):
            self.tried.append(address)
            try:
                return await attempt(Connection(_Channel(self, address), address))
            except TransientError:
                continue
        raise AssertionError("no node is left")

    def take(self, address: str, request: Any) -> storage_pb2.IngestReply:
        if address == self.refuses:
            raise InvalidObservations("no")
        if address in self.away:
            raise Unavailable("no answer", address=address)
        if address in self.overloaded:
            raise Overloaded("too many commits wait")
        self.heads.append(request.head)
        if 0 < request.head.range_epoch < self.topology.range_epoch:
            raise ranges_changed(self.topology.range_epoch)
        rows = from_ipc(request.observations, SCHEMA.observation_schema)
        self.taken.append((address, rows))
        owned = placement.split_by_owner(self.topology, SCHEMA, rows)
        mine = {node.address: node.name for node in self.topology.nodes}[address]
        own = owned[mine].num_rows if mine in owned else 0
        return storage_pb2.IngestReply(rows=rows.num_rows, forwarded_rows=rows.num_rows - own)


class _Channel:
    def __init__(self, nodes: Nodes, address: str) -> None:
        self._nodes, self._address = nodes, address

    def stub(self, stub: Any) -> _Channel:
        return self

    async def Ingest(self, request: Any, timeout: float) -> Any:
        return self._nodes.take(self._address, request)

    async def Topology(self, request: Any, timeout: float) -> Any:
        self._nodes.topologies_read += 1
        return cluster_pb2.TopologyReply(topology_json=self._nodes.topology.to_json())


@pytest.mark.parametrize("seed", range(5))
async def test_router_batch_is_sent_to_each_owner_once(seed: int) -> None:
    nodes, table = Nodes(), observations(500, seed)
    replies = await Router(nodes).ingest(SCHEMA, table, producer="p", batch=3)  # type: ignore[arg-type]
    cells, buckets = (
        paths.cells_from_table(SCHEMA, table),
        paths.buckets_from_table(SCHEMA, table),
    )
    partitions = placement.partitions_from_cells(TOPOLOGY, SCHEMA, cells, buckets).tolist()
    expected: dict[str, list[float]] = {}
    for row, partition in enumerate(partitions):
        address = TOPOLOGY.by_name[placement.owner(TOPOLOGY, partition)].address
        expected.setdefault(address, []).append(float(row))
    assert {a: rows.column("temperature").to_pylist() for a, rows in nodes.taken} == expected
    assert len(nodes.taken) == len(expected) > 1
    assert sum(reply.rows for reply in replies) == 500
    assert nodes.topologies_read == 1


async def test_router_ranges_that_never_fit_end_the_call_with_its_patience() -> None:
    """A node refuses each split, whatever topology the client reads."""
    pauses: list[float] = []

    async def pause(delay_s: float) -> None:
        pauses.append(delay_s)

    nodes = Nodes(options=CallOptions(ingest_patience_s=10.0))
    nodes.take = _refuse_ranges  # type: ignore[method-assign]
    nodes.clock = BackoffClock(monotonic=lambda: sum(pauses), sleep=pause)  # type: ignore[misc]
    with pytest.raises(RangesChanged):
        await Router(nodes).ingest(SCHEMA, observations(50), producer="p", batch=0)  # type: ignore[arg-type]
    assert 9.0 < sum(pauses) <= 10.0
    assert nodes.topologies_read == 1 + len(pauses), "each attempt has a topology of its own"


def _refuse_ranges(address: str, request: Any) -> storage_pb2.IngestReply:
    raise ranges_changed(1)


@pytest.mark.parametrize(("is_new", "first_epoch"), [(True, 1), (False, 1)])
async def test_router_ranges_changed_sends_the_whole_batch_again(
    is_new: bool, first_epoch: int
) -> None:
    nodes, table = Nodes(), observations(500)
    router = Router(nodes)  # type: ignore[arg-type]
    await router.ingest(SCHEMA, observations(10), producer="p", batch=0, is_new=is_new)
    proposed = topology_changes.propose_ranges(TOPOLOGY, (("", 1),))
    nodes.topology = topology_changes.activate_ranges(
        proposed, (("", 1),), known_version=proposed.version
    )
    nodes.taken.clear()
    replies = await router.ingest(SCHEMA, table, producer="p", batch=1, is_new=is_new)
    assert {address for address, _ in nodes.taken} <= {node.address for node in NODES[2:]}
    assert sum(reply.rows for reply in replies) == 500
    last = nodes.heads[-1]
    assert (last.range_epoch, last.first_epoch) == (2, first_epoch)
    await router.ingest(SCHEMA, table, producer="p", batch=2, is_new=is_new)
    assert nodes.heads[-1].first_epoch == (2 if is_new else 1)


async def test_split_by_owner_one_owner_is_same_table() -> None:
    alone = Topology("test", (Group("g", (NODES[0],)),), even_ranges(1))
    table = observations(50)
    assert placement.split_by_owner(alone, SCHEMA, table)["a"] is table
    assert placement.split_by_owner(alone, SCHEMA, table.slice(0, 0)) == {}


@pytest.mark.parametrize("seed", range(3))
def test_split_by_owner_with_known_partitions_is_that_of_computed_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = Table("shelters", {"id": "int"}, "id").spread(len(TOPOLOGY.partitions))
    rows = versions_of(table, pa.table({"id": rng.integers(0, 50, 200)}))
    places = partitions_of(table, hashes_of(table, rows))
    computed = placement.split_by_owner(TOPOLOGY, table, rows)
    assert placement.split_by_owner(TOPOLOGY, table, rows, partitions=places) == computed
    elsewhere = rng.permutation(places)
    parts = placement.split_by_owner(TOPOLOGY, table, rows, partitions=elsewhere)
    for node, part in parts.items():
        owned = [placement.owner(TOPOLOGY, place) == node for place in elsewhere.tolist()]
        assert part == rows.filter(pa.array(owned)), "the given partitions count"


async def test_router_stale_topology_is_read_again_rarely() -> None:
    nodes, now = Nodes(), 10.0
    router = Router(nodes, monotonic=lambda: now)  # type: ignore[arg-type]
    table = observations(500)
    await router.ingest(SCHEMA, table, producer="p", batch=0)
    other = next(node.name for node in NODES[:2] if node.name != placement.owner(TOPOLOGY, 0))
    nodes.topology = replace(TOPOLOGY, moved=(Move(0, 1, other),))
    await router.ingest(SCHEMA, table, producer="p", batch=1)
    assert nodes.topologies_read == 1, "it was read a moment ago"
    now += 2 * TOPOLOGY_AGE_MIN_S
    for batch in (2, 3, 4):
        await router.ingest(SCHEMA, table, producer="p", batch=batch)
        now += 2 * TOPOLOGY_AGE_MIN_S
    assert nodes.topologies_read == 2
    assert sum(rows.num_rows for _, rows in nodes.taken) == 5 * 500


async def test_router_finds_owners_by_the_topology_that_it_learned_last() -> None:
    nodes = Nodes()
    router = Router(nodes)  # type: ignore[arg-type]
    partitions = [*TOPOLOGY.partitions, 10_000]
    named = [TOPOLOGY.by_name[placement.owner(TOPOLOGY, p)].address for p in TOPOLOGY.partitions]
    assert await router.owners(partitions) == [*named, ""]
    other = next(node for node in NODES[:2] if node.address != named[0])
    nodes.topology = replace(TOPOLOGY, moved=(Move(0, 1, other.name),))
    assert await router.owners([0]) == named[:1]
    node = Connection(_Channel(nodes, NODES[3].address), NODES[3].address)
    assert await router.members(node) == [one.address for one in NODES]
    assert await router.owners([0]) == [other.address]
    assert nodes.topologies_read == 2


async def test_router_unreachable_owner_is_called_rarely() -> None:
    table = observations(500)
    owners = placement.split_by_owner(TOPOLOGY, SCHEMA, table)
    away = TOPOLOGY.by_name[max(owners)].address
    nodes = Nodes(away={away})
    router = Router(nodes, monotonic=lambda: nodes.now)  # type: ignore[arg-type]
    for batch in range(5):
        replies = await router.ingest(SCHEMA, table, producer="p", batch=batch)
        assert sum(reply.rows for reply in replies) == 500
    assert nodes.tried.count(away) == 1
    nodes.away.clear()
    nodes.now += 2 * AVOID_S
    nodes.taken.clear()
    await router.ingest(SCHEMA, table, producer="p", batch=5)
    assert away in dict(nodes.taken)


async def test_router_owner_that_was_overloaded_is_called_with_the_next_batch() -> None:
    table = observations(500)
    owners = placement.split_by_owner(TOPOLOGY, SCHEMA, table)
    busy = TOPOLOGY.by_name[max(owners)].address
    nodes = Nodes(overloaded={busy})
    router = Router(nodes, monotonic=lambda: 10.0)  # type: ignore[arg-type]
    await router.ingest(SCHEMA, table, producer="p", batch=0)
    assert busy not in dict(nodes.taken)
    nodes.overloaded.clear()
    nodes.taken.clear()
    await router.ingest(SCHEMA, table, producer="p", batch=1)
    assert busy in dict(nodes.taken)


async def test_router_error_of_owner_is_raised_after_all_answers() -> None:
    table = observations(500)
    owners = placement.split_by_owner(TOPOLOGY, SCHEMA, table)
    nodes = Nodes(refuses=TOPOLOGY.by_name[min(owners)].address)
    router = Router(nodes)  # type: ignore[arg-type]
    with pytest.raises(InvalidObservations):
        await router.ingest(SCHEMA, table, producer="p", batch=0)
    assert len(nodes.taken) == len(owners) - 1


async def fail(error: Exception) -> int:
    raise error


async def answer(delay_s: float) -> int:
    await asyncio.sleep(delay_s)
    return 7


async def test_first_result_of_hedged_calls_outlives_a_transient_error() -> None:
    away, bad = Unavailable("away"), InvalidObservations("no")

    async def first(*calls: Any) -> int:
        return await _first_result([asyncio.ensure_future(call) for call in calls])

    assert await first(fail(away), answer(0.01)) == 7
    assert await first(answer(0.01), fail(away)) == 7
    with pytest.raises(Unavailable):
        await first(fail(away), fail(away))
    with pytest.raises(InvalidObservations):
        await first(fail(bad), answer(60.0))


async def test_router_slow_owner_without_another_node_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing, "HEDGE_S", 0.01)
    alone = replace(TOPOLOGY, groups=(Group("g", (NODES[0],)),), ranges=even_ranges(1), replicas=3)
    nodes = Nodes(topology=alone)

    async def slow(attempt: Any, **_: Any) -> Any:
        await asyncio.sleep(0.05)
        return await attempt(Connection(_Channel(nodes, NODES[0].address), NODES[0].address))

    nodes.call = slow  # type: ignore[method-assign]
    replies = await Router(nodes).ingest(SCHEMA, observations(5), producer="p", batch=0)  # type: ignore[arg-type]
    assert [reply.rows for reply in replies] == [5]


@pytest.mark.parametrize("is_named", [True, False])
async def test_router_records_a_named_batch_before_its_rows(is_named: bool) -> None:
    nodes, table = Nodes(), observations(500)
    router = Router(nodes)  # type: ignore[arg-type]
    await router.ingest(SCHEMA, table, producer="p", batch=3, is_named=is_named)
    record, *parts = nodes.heads if is_named else [None, *nodes.heads]
    assert len(parts) == len(placement.split_by_owner(TOPOLOGY, SCHEMA, table))
    assert not any(head.digest for head in parts)
    if record is not None:
        assert (record.producer, record.batch, record.digest) == ("p", 3, rows_digest(table))
        home = placement.owner(TOPOLOGY, placement.home_of_producer(TOPOLOGY, SCHEMA, "p"))
        assert nodes.tried[1] == TOPOLOGY.by_name[home].address


async def test_router_batch_that_cannot_be_recorded_is_not_sent() -> None:
    nodes, table = Nodes(), observations(500)
    home = placement.owner(TOPOLOGY, placement.home_of_producer(TOPOLOGY, SCHEMA, "p"))
    nodes.refuses = TOPOLOGY.by_name[home].address
    with pytest.raises(InvalidObservations):
        await Router(nodes).ingest(SCHEMA, table, producer="p", batch=0, is_named=True)  # type: ignore[arg-type]
    assert not nodes.taken
