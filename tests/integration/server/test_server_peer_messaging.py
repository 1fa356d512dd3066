from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.clock import SystemClock
from galileo.cursor import EMPTY_CURSOR
from galileo.dht import topology_changes
from galileo.dht.membership import (
    ExchangeFailed,
    Gossip,
    GossipArrived,
    Membership,
    MembershipEffect,
    MembershipEvent,
)
from galileo.dht.node_states import RUN_BITS, Digest
from galileo.dht.register import Accepted, Ballot, Learn, Prepare, RegisterMessage, first_state
from galileo.errors import ConfigError, InputError
from galileo.model.schema import Feature
from galileo.model.system import SYSTEM_TABLES
from galileo.node.cluster_view import ClusterView
from galileo.query import parse
from galileo.rpc.gossip import GossipReply, GossipRequest, Heartbeat
from galileo.rpc.internal import PROTOBUF_VERSION, Internal
from galileo.rpc.peers import GOSSIP
from galileo.server import peer_messaging
from galileo.server.peer_messaging import (
    PeerMessenger,
    _take_batch,
)
from galileo.server.register_driver import STATE
from galileo.server.topology_register import TopologyRegister
from galileo.wire.typed_service import TypedService

TIMEOUT_S = 60.0

CLOCK = SystemClock()


class Register(TopologyRegister):
    """Passes messages on in place of processing them; those with a topology are processed."""

    received: Callable[[str, Any], None]

    async def receive(self, sender: str, message: RegisterMessage) -> None:
        if isinstance(message, Learn):
            await super().receive(sender, message)
        else:
            self.received(sender, message)


@dataclass
class Post:
    """The mail rooms of a and b, and what came out of them."""

    wire: Any
    now: float = 0.0
    runs: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    members: dict[str, Membership] = field(default_factory=dict)
    heartbeats: list[tuple[str, str]] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    messages: list[tuple[str, str, Any]] = field(default_factory=list)
    news: list[tuple[str, list[str]]] = field(default_factory=list)
    coordinating: set[str] = field(default_factory=set)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self, name: str) -> None:
        node = self.wire.nodes[name]
        run = node.store.epoch << RUN_BITS | next(self.runs)
        members = self.members[name] = Membership(name, "ab", run=run)

        def step(event: MembershipEvent) -> list[MembershipEffect]:
            if isinstance(event, GossipArrived) and event.gossip.digest is not None:
                self.heartbeats.append((name, event.node))
                self.arrived.set()
            elif isinstance(event, ExchangeFailed):
                self.failures.append((name, event.node))
            return members.step(event, self.now)

        def received(node: str, message: Any) -> None:
            self.messages.append((name, node, message))
            self.arrived.set()

        register = Register(
            name,
            node.live,
            store=node.store,
            clock=CLOCK,
            send=lambda *_: None,
            on_changed=lambda: None,
        )
        register.received = received
        self.wire.rooms[name] = PeerMessenger(
            node,
            self.wire,
            register=register,
            members=members,
            on_gossip=step,
            on_news=lambda datasets: self.news.append((name, list(datasets))),
            has_ccqs=lambda: name in self.coordinating,
            monotonic=lambda: self.now,
        )

    def __getitem__(self, name: str) -> PeerMessenger:
        room: PeerMessenger = self.wire.rooms[name]
        return room

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self.arrived.clear()
                await self.arrived.wait()

    async def heartbeat(self, sender: str, receiver: str) -> GossipRequest:
        """One heartbeat, once its reply has been taken in."""
        self.now += 10.0  # All synopses are due.
        await self[sender].update_synopses()
        before = len(self.wire.sent)
        self[sender].send_heartbeat(receiver)
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.wire.sent) == before:  # noqa: ASYNC110
                await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        request: GossipRequest = self.wire.sent[before][1]
        return request


@pytest.fixture(autouse=True)
def _no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Synopses are brought up to date by the tests alone."""
    monkeypatch.setattr(peer_messaging, "SYNOPSIS_LOOK_S", 1e6)


@pytest.fixture
async def post(wire: Any, schema: Any) -> AsyncIterator[Post]:
    made = Post(wire)
    for name in "ab":
        made.open(name)
        wire.nodes[name].catalog.adopt(schema)
    running = [asyncio.create_task(room.run()) for room in wire.rooms.values()]
    yield made
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def settled(condition: Callable[[], bool]) -> None:
    """Returns when threads of the nodes have brought it about."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_messages_arrive_once_in_order(post: Post) -> None:
    sent = [*map(Prepare, range(50)), Accepted(3, "c")]
    for message in sent:
        post["a"].send("b", message)
    await post.until(lambda: len(post.messages) >= len(sent))
    assert post.messages == [("b", "a", message) for message in sent]
    assert post.heartbeats == []


async def test_messages_are_batched_up_to_the_bound(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_messaging, "MESSAGES_MAX", 20)
    for number in range(50):
        post["a"].send("b", Prepare(number))
    await post.until(lambda: len(post.messages) == 50)
    assert [len(request.messages) for _, request in post.wire.sent] == [20, 20, 10]


async def test_message_to_an_unreachable_peer_is_dropped(post: Post) -> None:
    post.wire.away.add("b")
    post["a"].send("b", Prepare(1))
    await post.heartbeat("a", "b")
    post.wire.away.clear()
    post["a"].send("b", Prepare(2))
    await post.until(lambda: bool(post.messages))
    assert post.messages == [("b", "a", Prepare(2))]


async def test_outbox_when_full_drops_the_oldest(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_messaging, "OUTBOX_MAX", 5)
    post = Post(wire)
    post.open("a")
    post.open("b")
    for number in range(12):
        post["a"].send("b", Prepare(number))
    running = asyncio.create_task(post["a"].run())
    await post.until(lambda: len(post.messages) >= 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [message.ballot for _, _, message in post.messages] == [7, 8, 9, 10, 11]


async def test_heartbeat_spreads_sequences_and_clock(
    post: Post, make_observations: Callable[[int], pa.Table]
) -> None:
    a, b = post.wire.nodes["a"], post.wire.nodes["b"]
    await a.ingest.ingest("nam", make_observations(300), producer="p", batch=0)
    await post.heartbeat("a", "b")
    await post.until(lambda: bool(post.news))
    assert post.heartbeats == [("b", "a")]
    news = [("a", ["nam"]), ("b", ["nam"])]
    assert sorted(post.news) == news, "each owns partitions"
    assert b.view.sequences("nam") == a.catalog.shard("nam").published()
    assert sorted(b.view.event_clock("nam")) == sorted(a.catalog.shard("nam").event_clock())
    assert b.view.has_reported("a")
    assert a.view.has_reported("b"), "an exchange goes both ways"
    await post.heartbeat("a", "b")
    assert sorted(post.news) == news, "the second had nothing new"
    assert len(post.heartbeats) == 2


async def test_heartbeat_carries_own_entries_that_the_peer_lacks_only(
    post: Post, make_observations: Callable[[int], pa.Table], schema: Any
) -> None:
    a = post.wire.nodes["a"]
    a.catalog.adopt(type(schema)("gfs", schema.features))

    async def reported() -> list[str]:
        """The keys of the entries of a heartbeat, and of the message that completes it."""
        before = len(post.wire.sent)
        await post.heartbeat("a", "b")
        requests = [request for _, request in post.wire.sent[before:]]
        deltas = [delta for request in requests for delta in request.states.deltas]
        return [entry.key for delta in deltas for entry in delta.entries]

    stored = [*sorted(SYSTEM_TABLES), "gfs", "nam"]
    whole = ["address", "disk", "lone", *(f"commits/{key}" for key in stored)]
    assert [await reported() for _ in range(2)] == [whole, []]
    await a.ingest.ingest("nam", make_observations(300), producer="p", batch=0)
    post.wire.replies_lost.add("b")
    assert [await reported() for _ in range(2)] == [["commits/nam"]] * 2
    post.wire.replies_lost.clear()
    assert [await reported() for _ in range(2)] == [["commits/nam"], []]
    await a.drop("gfs", 1)
    assert await reported() == ["commits/gfs"]


async def test_heartbeat_out_of_order_is_ignored(
    post: Post, make_observations: Callable[[int], pa.Table]
) -> None:
    a, b = post.wire.nodes["a"], post.wire.nodes["b"]
    await post.heartbeat("a", "b")
    for batch in range(2):
        await a.ingest.ingest("nam", make_observations(300), producer="p", batch=batch)
        await post.heartbeat("a", "b")
    clock = b.view.event_clock("nam")
    early = next(request for _, request in post.wire.sent if "commits/nam" in str(request.states))
    await post["b"].receive(early)
    assert b.view.event_clock("nam") == clock
    assert post["b"]._reports["a"].sequences["nam"] == a.catalog.shard("nam").published()


async def test_heartbeat_after_a_restart_of_the_receiver_completes_its_report(
    post: Post, make_observations: Callable[[int], pa.Table], schema: Any
) -> None:
    a, b = post.wire.nodes["a"], post.wire.nodes["b"]
    for node in (a, b):
        node.catalog.adopt(type(schema)("gfs", schema.features))
    for dataset in ("nam", "gfs"):
        await a.ingest.ingest(dataset, make_observations(300), producer="p", batch=0)
    for _ in range(2):
        await post.heartbeat("a", "b")
    await a.ingest.ingest("nam", make_observations(10), producer="p", batch=1)
    b.store.epoch += 1
    b.view = ClusterView()
    post.open("b")
    await post.heartbeat("a", "b")
    await post.until(lambda: b.view.has_reported("a"))
    for dataset in ("nam", "gfs"):
        assert b.view.sequences(dataset) == a.catalog.shard(dataset).published()


async def test_partitions_that_a_node_leads_no_more_are_not_reported_as_lost(
    post: Post, make_observations: Callable[[int], pa.Table]
) -> None:
    """It has handed them over, and the others do not know the next leader yet."""
    a, b = post.wire.nodes["a"], post.wire.nodes["b"]
    await a.ingest.ingest("nam", make_observations(300), producer="p", batch=0)
    await post.heartbeat("a", "b")
    a.replicas.led = a.replicas.lone = frozenset()
    for _ in range(4):
        await post.heartbeat("a", "b")
    await post.until(lambda: len(post.heartbeats) >= 5)
    assert b.view.sequences("nam")
    assert not post["b"]._reports["a"].sequences["nam"]
    assert b.view.losses.known == []


@pytest.mark.parametrize("seed", range(6))
async def test_heartbeats_converge_after_losses_reordering_and_restarts(
    post: Post, make_observations: Callable[[int], pa.Table], schema: Any, seed: int
) -> None:
    rng = random.Random(seed)
    a, b = post.wire.nodes["a"], post.wire.nodes["b"]
    names = ["nam", "gfs", "hrrr"]
    for name in names[1:]:
        for node in (a, b):
            node.catalog.adopt(type(schema)(name, schema.features))

    async def commit() -> None:
        rows = make_observations(rng.randrange(1, 20))
        await a.ingest.ingest(rng.choice(names), rows, producer="p", batch=rng.getrandbits(40))

    async def deliver() -> None:
        post.wire.away = {"b"} if rng.random() < 0.3 else set()
        post.wire.replies_lost = {"b"} if rng.random() < 0.3 else set()
        await post.heartbeat("a", "b")

    async def repeat() -> None:
        """A late copy, also of an earlier run of the sender."""
        late = [request for _, request in post.wire.sent if request.sender == "a"]
        if late:
            await post["b"].receive(rng.choice(late))

    async def restart_sender() -> None:
        a.store.epoch = rng.choice([1, a.store.epoch + 1])  # 1: its disk was lost and replaced.
        post.open("a")
        running.append(asyncio.create_task(post["a"].run()))

    async def restart_receiver() -> None:
        b.store.epoch += 1
        b.view = ClusterView()
        post.open("b")

    running: list[asyncio.Task[None]] = []
    steps = [commit] * 4 + [deliver] * 6 + [repeat] * 2 + [restart_sender, restart_receiver]
    for _ in range(60):
        await rng.choice(steps)()
    post.wire.away, post.wire.replies_lost = set(), set()
    for _ in range(6):
        await post.heartbeat("a", "b")
    for name in names:
        shard = a.catalog.shard(name)
        own = shard.own_published()
        assert post["b"]._reports["a"].sequences[name] == own.sequences
        assert b.view.sequences(name) == own.sequences
        assert set(b.view.event_clock(name)) == set(own.clock)
        for partition, synopsis in shard.synopses().items():
            assert b.view.graph(shard.schema).version(partition) == synopsis.version
    assert b.view.has_reported("a")
    assert b.view.losses.known == []
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_synopses_with_features_that_the_peer_lacks_are_sent_until_it_knows_them(
    post: Post, make_observations: Callable[[int], pa.Table], schema: Any
) -> None:
    a, b = post.wire.nodes["a"], post.wire.nodes["b"]
    wider = schema.with_features([Feature("gust"), Feature("site", type="text")])
    a.catalog.adopt(wider)
    await a.ingest.ingest("nam", make_observations(300), producer="p", batch=0)
    published = a.catalog.shard("nam").own_published().sequences
    query = parse("gust > 0", wider)
    for _ in range(3):
        assert (await post.heartbeat("a", "b")).heartbeat.synopses
    assert not b.view.pruned_until(query, frozenset(published))
    b.catalog.adopt(wider)
    for _ in range(2):
        await post.heartbeat("a", "b")
    assert b.view.pruned_until(query, frozenset(published)) == published, "none has the feature"
    assert b.view.graph(wider).schema == wider


async def test_heartbeat_of_a_node_that_knows_fewer_features_brings_its_synopses(
    post: Post, make_observations: Callable[[int], pa.Table], schema: Any
) -> None:
    a, b = post.wire.nodes["a"], post.wire.nodes["b"]
    wider = schema.with_features([Feature("gust")])
    b.catalog.adopt(wider)
    await a.ingest.ingest("nam", make_observations(300), producer="p", batch=0)
    for _ in range(3):
        await post.heartbeat("a", "b")
    assert a.catalog.schema("nam") == schema
    pruned = b.view.pruned_until(parse("gust > 0", wider), frozenset(a.topology.partitions))
    published = a.catalog.shard("nam").own_published().sequences
    assert {p: pruned[p] for p in published} == dict(published)


async def test_heartbeat_of_a_node_that_missed_a_drop_omits_the_dataset(
    post: Post, make_observations: Callable[[int], pa.Table], schema: Any
) -> None:
    a, b = post.wire.nodes["a"], post.wire.nodes["b"]
    other = type(schema)("gfs", schema.features)
    for node in (a, b):
        node.catalog.adopt(other)
    for dataset in ("nam", "gfs"):
        await b.ingest.ingest(dataset, make_observations(300), producer="p", batch=0)
    await a.drop("nam", 1)
    a.catalog.adopt(schema.of_generation(1))
    for _ in range(4):
        await post.heartbeat("b", "a")
    await post.until(lambda: len(post.heartbeats) >= 4)
    assert a.catalog.keys == ["gfs", "nam@1"]
    assert {dataset for _, datasets in post.news for dataset in datasets} == {"gfs"}
    assert a.view.sequences("gfs") == b.catalog.shard("gfs").published(), "others arrive"
    assert (a.view.sequences("nam"), a.view.sequences("nam@1")) == (EMPTY_CURSOR, EMPTY_CURSOR)
    assert a.view.losses.known == []


async def test_heartbeat_carries_synopses_until_acknowledged(
    post: Post, make_observations: Callable[[int], pa.Table], schema: Any
) -> None:
    a, b = post.wire.nodes["a"], post.wire.nodes["b"]
    await a.ingest.ingest("nam", make_observations(300), producer="p", batch=0)
    mine = set(a.catalog.shard("nam").journals)
    post.wire.away.add("b")
    assert len((await post.heartbeat("a", "b")).heartbeat.synopses) == len(mine)
    post.wire.away.clear()
    post.wire.replies_lost.add("b")
    assert len((await post.heartbeat("a", "b")).heartbeat.synopses) == len(mine)
    post.wire.replies_lost.clear()
    assert len((await post.heartbeat("a", "b")).heartbeat.synopses) == len(mine)
    assert len((await post.heartbeat("a", "b")).heartbeat.synopses) == 0
    nothing = parse("temperature > 1000", schema)
    published = a.catalog.shard("nam").published()
    assert b.view.pruned_until(nothing, frozenset(mine)) == published
    await a.ingest.ingest("nam", make_observations(10), producer="p", batch=1)
    later = (await post.heartbeat("a", "b")).heartbeat.synopses
    assert 0 < len(later) <= len(mine)


async def test_synopses_are_updated_at_first_commit_then_per_interval(
    post: Post, make_observations: Callable[[int], pa.Table]
) -> None:
    a, room = post.wire.nodes["a"], post["a"]
    shard = a.catalog.shard("nam")
    await post.heartbeat("a", "b")
    updated = []
    for batch in range(16):
        await a.ingest.ingest("nam", make_observations(300), producer="p", batch=batch)
        post.now += 1.0 if batch else 10.0
        for _ in range(4):
            post.now += 0.2
            await room.update_synopses()
            if room._summaries["nam"].published is shard.own_published():
                updated.append(batch)
                break
    assert updated == [0, 3, 6, 9, 12, 15]
    await a.ingest.ingest("nam", make_observations(300), producer="p", batch=16)
    for is_updated in (False, True):
        await room.update_synopses()
        assert (room._summaries["nam"].published is shard.own_published()) == is_updated
        post.now += 1.0


async def test_heartbeat_sends_synopses_again_to_a_restarted_peer(
    post: Post, make_observations: Callable[[int], pa.Table]
) -> None:
    a = post.wire.nodes["a"]
    await a.ingest.ingest("nam", make_observations(300), producer="p", batch=0)
    mine = set(a.catalog.shard("nam").journals)
    counts = [len((await post.heartbeat("a", "b")).heartbeat.synopses) for _ in range(2)]
    assert counts == [len(mine), 0]
    post.open("b")
    counts = [len((await post.heartbeat("a", "b")).heartbeat.synopses) for _ in range(3)]
    assert counts == [0, len(mine), 0], "the first reply of a life says that it is another one"


async def test_heartbeat_bounds_the_bytes_of_synopses(
    post: Post, make_observations: Callable[[int], pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_messaging, "SYNOPSIS_BYTES_MAX", 1)
    a = post.wire.nodes["a"]
    await a.ingest.ingest("nam", make_observations(300), producer="p", batch=0)
    count = len(a.catalog.shard("nam").journals)
    sizes = [len((await post.heartbeat("a", "b")).heartbeat.synopses) for _ in range(count + 1)]
    assert sizes == [1] * count + [0], "each takes its turn"


async def receive(post: Post, request: GossipRequest) -> GossipReply:
    """The answer of a to a request of b."""
    return await post["a"].receive(*GOSSIP.decode(GOSSIP.encode(request)))


def request_of(post: Post, **parts: Any) -> GossipRequest:
    """A request of b, with the topology of a."""
    fingerprint = post.wire.nodes["a"].topology.fingerprint
    return GossipRequest("b", 0, fingerprint, **{"topology_version": 0, **parts})


async def test_gossip_of_an_unknown_sender_is_refused(post: Post) -> None:
    for sender in "za":
        with raises(InputError, node=sender):
            await receive(post, replace(request_of(post), sender=sender))


async def test_gossip_of_a_later_topology_is_not_processed_before_it_is_known(post: Post) -> None:
    states = post.members["b"].heartbeat("a")
    request = request_of(post, topology_version=2, heartbeat=Heartbeat(), states=states)
    reply = await receive(post, request)
    assert reply.is_behind
    assert post.heartbeats == []
    topology = topology_changes.pin(post.wire.nodes["a"].topology)
    chosen = first_state(["a", "b"], topology.to_json(), version=2)
    encoded = STATE.encode(Ballot(4096, chosen.chosen.entry))
    reply = await receive(post, replace(request, topology=encoded))
    assert not reply.is_behind
    assert reply.topology_version == 2
    assert post.heartbeats == [("a", "b")]


async def test_gossip_of_an_earlier_topology_is_answered_with_the_later_one(post: Post) -> None:
    a, b = post.wire.nodes["a"], post.wire.nodes["b"]
    chosen = first_state(["a", "b"], topology_changes.pin(a.topology).to_json(), version=2)
    await post["a"]._register.learn("a", STATE.encode(Ballot(4096, chosen.chosen.entry)))
    await post.heartbeat("b", "a")
    await settled(lambda: b.topology.version == 2)


async def test_gossip_with_another_topology_is_refused(post: Post) -> None:
    with raises(ConfigError, node="b", key="cluster"):
        await receive(post, replace(request_of(post), topology_fingerprint=1))


async def test_gossip_with_other_types_is_refused(post: Post) -> None:
    other = TypedService("other", Internal, version=PROTOBUF_VERSION + 1)
    with raises(ConfigError, method="gossip"):
        GOSSIP.decode(other.call(Internal.gossip).encode(request_of(post)))


async def test_gossip_with_a_new_address_relocates_the_sender(post: Post) -> None:
    """No configuration changes first; a late packet from before the restart is ignored."""
    a, b = post.wire.nodes["a"], post.wire.nodes["b"]
    await post.heartbeat("b", "a")
    early = [request for _, request in post.wire.sent]
    b.store.epoch += 1
    post.open("b")
    b.live.relocate("b", "127.0.0.1:99", epoch=post.members["b"].states.run)
    running = asyncio.create_task(post["b"].run())
    await post.heartbeat("b", "a")
    await settled(lambda: a.topology.by_name["b"].address == "127.0.0.1:99")
    for request in early:
        await receive(post, request)
    assert a.topology.by_name["b"].address == "127.0.0.1:99"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_gossip_with_an_invalid_digest_is_refused(post: Post) -> None:
    counts = np.zeros(2, np.uint32)
    digest = Digest(("a", "b"), np.zeros(1, np.uint64), counts, counts)
    with raises(InputError, expected=2):
        await receive(post, request_of(post, states=Gossip(digest)))


async def test_exchange_that_fails_is_reported_to_membership(post: Post) -> None:
    post.wire.away.add("b")
    await post.heartbeat("a", "b")
    assert post.failures == [("a", "b")]


async def test_gossip_with_an_unreadable_message_is_refused(post: Post) -> None:
    with raises(InputError):
        await receive(post, request_of(post, messages=(b'{"$":"Popen"}',)))
    assert post.messages == []
    post["b"].send("a", Prepare(1))
    await post.until(lambda: bool(post.messages))
    assert post.messages == [("a", "b", Prepare(1))]


async def test_heartbeat_says_whether_the_node_coordinates(post: Post) -> None:
    for are_there in (False, True, True, False):
        post.coordinating = {"a"} if are_there else set()
        await post.heartbeat("a", "b")
        assert post["b"].coordinates("a") is are_there
    post.coordinating = {"a"}
    await post.heartbeat("a", "b")
    post.open("b")
    for _ in range(2):
        await post.heartbeat("a", "b")
    assert post["b"].coordinates("a"), "a restarted node hears so again"
    assert not post["b"].coordinates("z")


def test_take_batch_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_messaging, "MESSAGES_BYTES_MAX", 10)
    outbox = deque([b"12345", b"123456", b"1", b"2"])
    assert _take_batch(outbox) == [b"12345", b"123456"]
    assert _take_batch(outbox) == [b"1", b"2"]
    assert _take_batch(deque([b"more than the bound"])) == [b"more than the bound"]
