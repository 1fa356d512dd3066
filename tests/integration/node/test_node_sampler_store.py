"""Sent samplers at real nodes: kept by the cluster, used where labels lie, revoked."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from expected_errors import raises
from node_cluster import make_observations

from galileo.cursor import Cursor
from galileo.dht.topology import SYSTEM
from galileo.errors import (
    InputError,
    InvalidArchive,
    NotPermitted,
    SamplerFailed,
    SamplerRevoked,
    SandboxUnavailable,
    TransientError,
    UnknownSampler,
)
from galileo.labels import LabelSet
from galileo.model.system import SAMPLERS
from galileo.node import sampler_rows, sampler_store, system_tables
from galileo.node.cluster_scan import ScanEnd
from galileo.node.sampler_rows import NOTHING, SamplerFacts
from galileo.node.storage_node import NodeOptions
from galileo.node.table_cleaner import TableCleaner
from galileo.query import parse
from galileo.sampler_package import SamplerArchive, sampler_archive
from galileo.sampler_runtime import unavailable_reason
from galileo.samplers import SamplerSpec, sampler
from galileo.testing.conformance import identities

CODE = """
from galileo.samplers import label_uniforms

class Share:
    def __init__(self, *, fraction=0.5):
        if fraction > 1:
            raise ValueError("no such fraction")
        self.fraction = fraction

    def sample(self, labels, *, seed):
        return label_uniforms(labels, seed=seed) < self.fraction
"""
OBSERVING = '''
import numpy as np

class Lottery:
    """Draws one label of everything among those with an observation in the north."""
    scope = "global"
    regroups = False
    needs_observations = True

    def sample(self, labels, *, observations, seed):
        number = observations.column("label").to_numpy()
        is_north = observations.column("latitude").to_numpy() > 20
        return np.bincount(number[is_north], minlength=len(labels)) > 0

    def merge(self, labels, *, seed):
        key = labels.partitions.astype(np.int64) << 40 | labels.sequences << 20 | labels.rows
        return key == key.min()
'''

pytestmark = pytest.mark.skipif(
    unavailable_reason() is not None,
    reason=f"sent code cannot be contained here: {unavailable_reason()}",
)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., SamplerArchive]:
    """`made(CODE)`: the archive of a file with this code."""
    home = tmp_path_factory.mktemp("sent")

    def archive(code: str, *, name: str = "share") -> SamplerArchive:
        path = Path(home) / f"{name}.py"
        path.write_text(code)
        return sampler_archive(path)

    return archive


@pytest.fixture
def share(made: Callable[..., SamplerArchive]) -> SamplerArchive:
    return made(CODE)


@pytest.fixture
async def open_cluster(cluster: Any) -> Any:
    """The three nodes, which take what is sent."""
    await cluster.reconfigure(samplers_are_allowed=True)
    for node in cluster.nodes:
        node.samplers._wall = cluster.clock.wall
    await cluster["a"].samplers.table.look_up("")  # The leader asks all nodes while it has no rows.
    return cluster


async def sampled(cluster: Any, spec: SamplerSpec, *, at: str = "a") -> LabelSet:
    parts = [part async for part in cluster[at].scans.sampled(parse("", cluster.schema), spec)]
    tables = [part for part in parts if not isinstance(part, ScanEnd)]
    nothing = cluster.schema.label_schema.empty_table()
    return LabelSet(cluster.schema, pa.concat_tables([nothing, *tables]))


def known_at(cluster: Any) -> str:
    """The nodes that know a sampler, without asking any other."""
    return "".join(sorted(node.name for node in cluster.nodes if node.samplers.known()))


async def followed(cluster: Any, name: str) -> None:
    """Has a node follow the table, once another one leads it."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(TransientError):
                return await cluster[name].samplers.table._follow()
            await asyncio.sleep(0.01)


async def hand_over(cluster: Any) -> str:
    """Has another node lead the system partition; returns the one that did."""
    before = cluster.leader
    async with asyncio.timeout(60):
        while cluster.leader == before:  # Until another node has all.
            await cluster[before].replicas.hand_over(30.0)
            await asyncio.sleep(0.01)
    await cluster[before].system.look_up("nam")
    return before


# --- keeping and spreading -----------------------------------------------------------------------


async def test_send_sampler_makes_it_known_at_all_nodes(open_cluster: Any, share: Any) -> None:
    sent = await open_cluster["b"].samplers.send(share.data, sent_by="ada@\nhost")
    assert (sent.digest, sent.name, sent.bytes) == (share.digest, "share", len(share.data))
    assert (sent.sent_by, sent.sent_at) == ("ada@host", open_cluster.clock.wall())
    for node in open_cluster.nodes:
        assert node.samplers.known() == (sent,)
    again = await open_cluster["c"].samplers.send(share.data, sent_by="eve")
    assert again == sent, "it was sent first by another"
    for name in "abc":
        await open_cluster.restart(name)
        await followed(open_cluster, name)
        assert open_cluster[name].samplers.known() == (sent,)
        assert await open_cluster[name].samplers.archive(share.digest) == share


async def test_sampler_is_used_and_revoked_at_any_node_while_leaders_change(
    open_cluster: Any, share: Any
) -> None:
    """Sent at one node, used at another, revoked at a third; one node was away all the time."""
    away, sender = open_cluster.followers
    open_cluster.network.away = {away}
    await open_cluster[sender].samplers.send(share.data, sent_by="ada")
    assert known_at(open_cluster) == "".join(sorted({*"abc"} - {away}))
    open_cluster.network.away = set()
    user = await hand_over(open_cluster)
    for name in (away, user):
        assert await open_cluster[name].samplers.archive(share.digest) == share
    away, revoker = open_cluster.followers
    open_cluster.network.away = {away}
    gone, missed = await open_cluster[revoker].samplers.revoke(share.digest)
    assert (gone.name, gone.sent_by, missed) == ("share", "ada", (away,))
    open_cluster.network.away = set()
    await hand_over(open_cluster)
    await followed(open_cluster, away)
    for node in open_cluster.nodes:
        assert node.samplers.known() == (gone,)
        with raises(SamplerRevoked, digest=share.digest):
            await node.samplers.archive(share.digest)
        with raises(SamplerRevoked, digest=share.digest):
            await node.samplers.send(share.data, sent_by="eve")


async def test_archive_comes_from_any_copy_if_the_leader_does_not_answer(
    open_cluster: Any, share: Any
) -> None:
    await open_cluster["a"].samplers.send(share.data, sent_by="")
    follower, other = open_cluster.followers
    await open_cluster.restart(follower)
    await followed(open_cluster, follower)
    async with asyncio.timeout(60):
        while await open_cluster[other].samplers.table.attachment(share.digest) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    there = open_cluster[follower].samplers
    there.table._read_attachment = lambda digest: None  # As of a node without a copy.
    open_cluster.network.away = {open_cluster.leader}
    assert await there.archive(share.digest) == share
    assert (other, "own_sampler_archive") in open_cluster.network.calls


async def test_restarted_node_that_is_cut_off_runs_nothing(
    open_cluster: Any, share: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have missed a revocation, although it has a copy of the archive."""
    await open_cluster["a"].samplers.send(share.data, sent_by="")
    follower = open_cluster.followers[0]
    open_cluster.network.away = {follower}
    await open_cluster[open_cluster.leader].samplers.revoke(share.digest)
    node = await open_cluster.restart(follower)
    open_cluster.network.away = {*"abc"}
    with monkeypatch.context() as patched:
        patched.setattr(system_tables, "PATIENCE_S", 0.1)
        for use in (node.samplers.facts, node.samplers.archive):
            with pytest.raises(TransientError):
                await use(share.digest)
    open_cluster.network.away = set()
    with raises(SamplerRevoked, digest=share.digest):
        await node.samplers.archive(share.digest)


async def test_send_sampler_is_refused_where_it_is_not_allowed(
    open_cluster: Any, share: Any
) -> None:
    open_cluster.options = NodeOptions()
    await open_cluster.restart("b")
    with raises(NotPermitted, node="b", key="samplers.uploads"):
        await open_cluster["b"].samplers.send(share.data, sent_by="")
    assert known_at(open_cluster) == ""
    await open_cluster["a"].samplers.send(share.data, sent_by="")
    with raises(NotPermitted, node="b", key="samplers.uploads"):
        await open_cluster["b"].samplers.load(sampler(share), owner="nam")


async def test_send_sampler_without_a_sandbox_is_refused(
    open_cluster: Any, share: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_store, "unavailable_reason", lambda: "there is no bwrap")
    with raises(SandboxUnavailable, node="a"):
        await open_cluster["a"].samplers.send(share.data, sent_by="")
    assert known_at(open_cluster) == ""


async def test_send_sampler_of_an_invalid_archive_is_refused(open_cluster: Any, share: Any) -> None:
    with raises(InvalidArchive):
        await open_cluster["a"].samplers.send(share.data[:-30], sent_by="")
    assert known_at(open_cluster) == ""


async def test_send_sampler_above_bytes_max_is_refused_until_revoked(
    open_cluster: Any, made: Callable[..., SamplerArchive], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = made(CODE), made(CODE + "# other\n")
    monkeypatch.setattr(sampler_rows, "BYTES_MAX", len(first.data) + 10)
    await open_cluster["a"].samplers.send(first.data, sent_by="")
    with raises(InputError, bound=256):
        await open_cluster["b"].samplers.send(second.data, sent_by="")
    await open_cluster["a"].samplers.send(first.data, sent_by="")
    await open_cluster["c"].samplers.revoke(first.digest)
    await open_cluster["b"].samplers.send(second.data, sent_by="")


async def test_archive_that_is_not_its_digest_is_refused(
    open_cluster: Any, made: Callable[..., SamplerArchive], share: Any
) -> None:
    other = made(CODE + "# other\n")
    facts = SamplerFacts(share.digest, "share", "share:Share", 10, "", 1.0)
    change = sampler_rows.KeepSampler(facts, pa.py_buffer(other.data))
    await open_cluster["a"].samplers.table.change(change)
    with raises(InputError, expected=share.digest):
        await open_cluster["b"].samplers.archive(share.digest)


async def test_cleaning_removes_the_archives_of_revoked_samplers(
    open_cluster: Any, made: Callable[..., SamplerArchive]
) -> None:
    open_cluster.journals = replace(open_cluster.journals, segment_bytes_max=4_096)
    for name in "abc":
        await open_cluster.restart(name)
    archives = [made(f"{CODE}# {secrets.token_hex(2_000)}\n") for _ in range(5)]
    for archive in archives[2:]:
        await open_cluster["a"].samplers.send(archive.data, sent_by="")
        await open_cluster["a"].samplers.revoke(archive.digest)
    for archive in archives[:2]:
        await open_cluster["a"].samplers.send(archive.data, sent_by="")
    leader = open_cluster[open_cluster.leader]
    shard = leader.catalog.shards[SAMPLERS.key]
    before = shard.journals[SYSTEM].bytes_on_disk
    settled = Cursor({SYSTEM: shard.published_sequence(SYSTEM)})
    cleaner = TableCleaner(leader.catalog)
    await asyncio.to_thread(cleaner.clean, shard, settled, is_over=lambda: False)
    assert shard.journals[SYSTEM].bytes_on_disk < before - 2 * len(archives[0].data)
    for name in "abc":
        await open_cluster.restart(name)
        await followed(open_cluster, name)
        assert await open_cluster[name].samplers.archive(archives[0].digest) == archives[0]
        assert [one.revoked_at > 0 for one in open_cluster[name].samplers.known()].count(True) == 3


# --- using ---------------------------------------------------------------------------------------


async def test_query_with_a_sent_sampler_samples_at_the_nodes(
    open_cluster: Any, share: Any
) -> None:
    for batch in range(3):
        await open_cluster.ingest(make_observations(100, seed=batch), batch=batch)
    await open_cluster["a"].samplers.send(share.data, sent_by="")
    expected = await sampled(open_cluster, SamplerSpec("uniform", {"fraction": 0.3}, 7))
    found = await sampled(open_cluster, sampler(share, seed=7, fraction=0.3), at="c")
    assert 0 < len(found) < 300
    assert set(identities(found)) == set(identities(expected))
    with raises(InputError):
        await sampled(open_cluster, sampler(share, share=0.3))
    with raises(SamplerFailed):
        await sampled(open_cluster, sampler(share, fraction=3))


@pytest.mark.slow
async def test_query_with_a_sent_sampler_that_observes_and_merges(
    open_cluster: Any, made: Callable[..., SamplerArchive]
) -> None:
    await open_cluster.ingest(make_observations(200))
    archive = made(OBSERVING, name="lottery")
    await open_cluster["a"].samplers.send(archive.data, sent_by="")
    [found] = identities(await sampled(open_cluster, sampler(archive), at="b"))
    labels = await open_cluster.ask()
    north = []
    for number, identity in enumerate(identities(labels)):
        rows = await open_cluster.read(labels.slice(number, number + 1))
        north += [identity] if max(rows.column("latitude").to_pylist()) > 20 else []
    assert found == min(north)


async def test_query_with_an_unsent_sampler_is_refused(open_cluster: Any, share: Any) -> None:
    with raises(UnknownSampler, digest=share.digest, remedy="send_sampler"):
        await sampled(open_cluster, sampler(share))
    with pytest.raises(UnknownSampler):
        await open_cluster["a"].samplers.revoke(share.digest)


# --- revoking ------------------------------------------------------------------------------------


async def test_revoke_sampler_refuses_every_later_use(open_cluster: Any, share: Any) -> None:
    revocations: list[tuple[str, frozenset[str]]] = []
    for node in open_cluster.nodes:
        node.samplers._on_revoked = lambda gone, name=node.name: revocations.append((name, gone))
    await open_cluster["a"].samplers.send(share.data, sent_by="")
    open_cluster.clock.now += 5
    gone, away = await open_cluster["b"].samplers.revoke(share.digest)
    assert (gone.name, gone.revoked_at, away) == ("share", open_cluster.clock.wall(), ())
    assert sorted(revocations) == [(name, {share.digest}) for name in "abc"]
    open_cluster.clock.now += 5
    assert await open_cluster["c"].samplers.revoke(share.digest) == (gone, ())
    assert len(revocations) == 3
    for name in "abc":
        for _ in range(2):
            node = open_cluster[name]
            assert [one.revoked_at > 0 for one in node.samplers.known()] == [True]
            for use in (
                node.samplers.load(sampler(share), owner="nam"),
                node.samplers.send(share.data, sent_by=""),
                sampled(open_cluster, sampler(share), at=name),
            ):
                with raises(SamplerRevoked, digest=share.digest):
                    await use
            await open_cluster.restart(name)
            await followed(open_cluster, name)


@pytest.mark.slow
async def test_revoke_sampler_ends_running_queries(open_cluster: Any, share: Any) -> None:
    """And its process ends, though it was lent out."""
    await open_cluster.ingest(make_observations(100))
    node = open_cluster["a"].samplers
    await node.send(share.data, sent_by="")
    chosen = await node.load(sampler(share), owner="nam")
    labels = await open_cluster.ask()
    assert len(chosen.sample(labels, seed=1)) == len(labels)

    async def revoke_during_a_call() -> None:
        with lease() as leased:
            assert leased.pid == process.pid
            await node.revoke(share.digest)

    lease = functools.partial(node._runtime.lease, share, sampler(share), owner="nam")
    with lease() as leased:
        process = psutil.Process(leased.pid)
    with raises(SamplerRevoked, digest=share.digest):
        await revoke_during_a_call()
    await asyncio.to_thread(process.wait, 20)
    with raises(SamplerRevoked, digest=share.digest):
        chosen.sample(labels, seed=1)


async def test_revocation_outlives_the_table(open_cluster: Any, share: Any) -> None:
    """A leader that lacks it learns it from a node that is still up."""
    gone = SamplerFacts(share.digest, "share", "share:Share", 10, "ada", 1.0, revoked_at=2.0)
    kept = replace(gone, digest="0" * 64, revoked_at=0.0)
    there = open_cluster[open_cluster.followers[0]]
    await there.samplers.learn({one.digest: one for one in (gone, kept)})
    await followed(open_cluster, there.name)
    assert there.samplers.known() == (gone,), "no node has the archive of the other one"
    assert await open_cluster["a"].samplers.table.look_up(share.digest) == gone
    assert await open_cluster["a"].samplers.table.look_up(kept.digest) == NOTHING


async def test_send_sampler_concurrently_stores_it_once(open_cluster: Any, share: Any) -> None:
    senders = [open_cluster[name].samplers.send(share.data, sent_by=name) for name in "abcabc"]
    sent = await asyncio.gather(*senders)
    assert len({*sent}) == 1
    for node in open_cluster.nodes:
        assert node.samplers.known() == (sent[0],)
