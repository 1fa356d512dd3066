"""Sent samplers at real nodes: kept, spread, used where labels lie, revoked."""

from __future__ import annotations

import asyncio
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

from galileo.errors import (
    CorruptData,
    InputError,
    InvalidArchive,
    NotPermitted,
    SamplerFailed,
    SamplerRevoked,
    SandboxUnavailable,
    UnknownSampler,
)
from galileo.labels import LabelSet
from galileo.node import sampler_store
from galileo.node.cluster_scan import ScanEnd
from galileo.node.sampler_store import UploadOptions
from galileo.node.storage_node import NodeOptions
from galileo.query import parse
from galileo.sampler_package import SamplerArchive, sampler_archive
from galileo.sampler_runtime import unavailable_reason
from galileo.samplers import SamplerSpec, sampler
from galileo.testing.conformance import identities

Make = Callable[..., pa.Table]

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
    clock = cluster.clock
    await cluster.reconfigure(sending=UploadOptions(is_allowed=True, wall=clock.wall))
    return cluster


async def sampled(cluster: Any, spec: SamplerSpec, *, at: str = "a") -> LabelSet:
    parts = [part async for part in cluster[at].scans.sampled(parse("", cluster.schema), spec)]
    tables = [part for part in parts if not isinstance(part, ScanEnd)]
    nothing = cluster.schema.label_schema.empty_table()
    return LabelSet(cluster.schema, pa.concat_tables([nothing, *tables]))


def kept_at(cluster: Any) -> str:
    return "".join(node.name for node in cluster.nodes if node.samplers.news())


# --- keeping and spreading -----------------------------------------------------------------------


async def test_send_sampler_stores_it_at_all_nodes(open_cluster: Any, share: Any) -> None:
    sent = await open_cluster["b"].samplers.send(share.data, sent_by="ada@\nhost")
    assert (sent.digest, sent.name, sent.bytes) == (share.digest, "share", len(share.data))
    assert (sent.sent_by, sent.sent_at) == ("ada@host", open_cluster.clock.wall())
    for node in open_cluster.nodes:
        assert node.samplers.known() == (sent,)
    again = await open_cluster["c"].samplers.send(share.data, sent_by="eve")
    assert again == sent, "it was sent first by another"
    for name in "abc":
        await open_cluster.restart(name)
        assert open_cluster[name].samplers.known() == (sent,)
        assert await open_cluster[name].samplers.archive(share.digest, only_here=True) == share


async def test_ready_fetches_a_sampler_that_the_node_missed(open_cluster: Any, share: Any) -> None:
    open_cluster.network.away = {"c"}
    await open_cluster["a"].samplers.send(share.data, sent_by="")
    assert kept_at(open_cluster) == "ab"
    open_cluster.network.away = {"b"}
    await open_cluster["c"].samplers.ready(sampler(share))
    assert kept_at(open_cluster) == "abc"


async def test_send_sampler_refused_by_one_node_stores_nothing(
    open_cluster: Any, share: Any
) -> None:
    open_cluster.options = NodeOptions()
    await open_cluster.restart("b")
    with raises(NotPermitted, node="b", key="samplers.uploads"):
        await open_cluster["a"].samplers.send(share.data, sent_by="")
    with raises(NotPermitted, node="b", key="samplers.uploads"):
        await open_cluster["b"].samplers.send(share.data, sent_by="")
    assert kept_at(open_cluster) == ""


async def test_send_sampler_without_a_sandbox_is_refused(
    open_cluster: Any, share: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_store, "unavailable_reason", lambda: "there is no bwrap")
    with raises(SandboxUnavailable, node="a"):
        await open_cluster["a"].samplers.send(share.data, sent_by="")
    assert kept_at(open_cluster) == ""


async def test_send_sampler_of_an_invalid_archive_is_refused(open_cluster: Any, share: Any) -> None:
    with raises(InvalidArchive):
        await open_cluster["a"].samplers.send(share.data[:-30], sent_by="")
    sent = await open_cluster["a"].samplers.send(share.data, sent_by="")
    other = type(sent)("0" * 64, "other", "x:Y", 10, "", 0.0)
    with raises(InputError, expected="0" * 64):
        await open_cluster["a"].samplers.keep(other, share.data)


async def test_send_sampler_above_bytes_max_is_refused_until_revoked(
    open_cluster: Any, made: Callable[..., SamplerArchive]
) -> None:
    first, second = made(CODE), made(CODE + "# other\n")
    bounded = UploadOptions(is_allowed=True, bytes_max=len(first.data) + 10)
    await open_cluster.reconfigure(sending=bounded)
    await open_cluster["a"].samplers.send(first.data, sent_by="")
    with raises(InputError, node="a", bound=256):
        await open_cluster["a"].samplers.send(second.data, sent_by="")
    await open_cluster["a"].samplers.send(first.data, sent_by="")
    await open_cluster["a"].samplers.revoke(first.digest)
    await open_cluster["a"].samplers.send(second.data, sent_by="")


async def test_ready_with_a_damaged_record_is_corrupt_data(open_cluster: Any, share: Any) -> None:
    await open_cluster["a"].samplers.send(share.data, sent_by="")
    await open_cluster.restart("a")
    path = open_cluster.directory / "a" / "records" / "sampler_code" / f"{share.digest}.record"
    stored = bytearray(path.read_bytes())
    stored[100] ^= 1
    path.write_bytes(stored)
    with pytest.raises(CorruptData):
        await open_cluster["a"].samplers.ready(sampler(share))


# --- using ---------------------------------------------------------------------------------------


async def test_query_with_a_sent_sampler_samples_at_the_nodes(
    open_cluster: Any, share: Any, make_observations: Make
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
    open_cluster: Any, made: Callable[..., SamplerArchive], make_observations: Make
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
    revocations: list[tuple[str, str]] = []
    for node in open_cluster.nodes:
        node.samplers.on_revoked = lambda digest, name=node.name: revocations.append((name, digest))
    await open_cluster["a"].samplers.send(share.data, sent_by="")
    open_cluster.clock.now += 5
    gone, away = await open_cluster["b"].samplers.revoke(share.digest)
    assert (gone.name, gone.revoked_at, away) == ("share", open_cluster.clock.wall(), ())
    assert sorted(revocations) == [(name, share.digest) for name in "abc"]
    assert await open_cluster["b"].samplers.revoke(share.digest) == (gone, ())
    for name in "abc":
        for _ in range(2):
            node = open_cluster[name]
            assert [one.revoked_at > 0 for one in node.samplers.known()] == [True]
            for use in (
                node.samplers.ready(sampler(share)),
                node.samplers.send(share.data, sent_by=""),
                sampled(open_cluster, sampler(share), at=name),
            ):
                with raises(SamplerRevoked, digest=share.digest):
                    await use
            assert list((open_cluster.directory / name / "records").glob("*code/*.record")) == []
            await open_cluster.restart(name)


async def test_revoke_here_concurrently_keeps_its_facts(open_cluster: Any, share: Any) -> None:
    samplers = open_cluster["a"].samplers
    await samplers.send(share.data, sent_by="ada")
    revoked = await asyncio.gather(*(samplers.revoke_here(share.digest) for _ in range(2)))
    assert [(one.name, one.sent_by) for one in revoked] == [("share", "ada")] * 2
    await open_cluster.restart("a")
    (known,) = open_cluster["a"].samplers.known()
    assert (known.name, known.sent_by) == ("share", "ada")


@pytest.mark.slow
async def test_revoke_sampler_ends_running_queries(
    open_cluster: Any, share: Any, make_observations: Make
) -> None:
    """And its process ends, though it was lent out."""
    await open_cluster.ingest(make_observations(100))
    node = open_cluster["a"].samplers
    await node.send(share.data, sent_by="")
    chosen = await asyncio.to_thread(node.load, sampler(share), owner="nam")
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


async def test_apply_news_of_a_missed_revocation_revokes(open_cluster: Any, share: Any) -> None:
    await open_cluster["a"].samplers.send(share.data, sent_by="")
    open_cluster.network.away = {"c"}
    gone, away = await open_cluster["a"].samplers.revoke(share.digest)
    assert away == ("c",)
    there = open_cluster["c"].samplers
    await there.ready(sampler(share))
    for _ in range(2):
        assert await there.apply_news("a", share.digest, revoked_at=gone.revoked_at)
    with pytest.raises(SamplerRevoked):
        await there.ready(sampler(share))
    assert there.known()[0].revoked_at == gone.revoked_at


async def test_apply_news_fetches_new_samplers_only(open_cluster: Any, share: Any) -> None:
    open_cluster.network.away = {"c"}
    await open_cluster["a"].samplers.send(share.data, sent_by="")
    there = open_cluster["c"].samplers
    [(digest, revoked_at)] = open_cluster["a"].samplers.news().items()
    open_cluster.network.away = {"a"}
    assert not await there.apply_news("a", digest, revoked_at=revoked_at), "it is to come again"
    open_cluster.network.away = set()
    assert await there.apply_news("a", digest, revoked_at=revoked_at)
    assert await there.archive(share.digest, only_here=True) == share
    assert not await there.apply_news("a", "not a digest", revoked_at=1.0), "it is to come again"
    open_cluster.network.calls.clear()
    await there.apply_news("a", digest, revoked_at=0.0)
    assert open_cluster.network.calls == []


async def test_apply_news_of_an_unknown_revoked_sampler_names_its_digest(
    open_cluster: Any, share: Any
) -> None:
    there = open_cluster["c"].samplers
    assert await there.apply_news("a", share.digest, revoked_at=1.0)
    with raises(SamplerRevoked, digest=share.digest):
        await there.ready(sampler(share))


async def test_revoke_here_interrupted_is_completed_after_restart(
    open_cluster: Any, share: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    samplers = open_cluster["a"].samplers
    await samplers.send(share.data, sent_by="")

    def crash(digest: str) -> None:
        raise OSError("the power is gone")

    monkeypatch.setattr(samplers, "_delete", crash)
    with pytest.raises(OSError, match="power"):
        await samplers.revoke_here(share.digest)
    assert (open_cluster.directory / "a/records/sampler_code" / f"{share.digest}.record").exists()
    await open_cluster.restart("a")
    with pytest.raises(SamplerRevoked):
        await open_cluster["a"].samplers.ready(sampler(share))
    assert not list((open_cluster.directory / "a/records/sampler_code").iterdir())


async def test_send_sampler_concurrently_stores_it_once(open_cluster: Any, share: Any) -> None:
    senders = [open_cluster[name].samplers.send(share.data, sent_by=name) for name in "abcabc"]
    await asyncio.gather(*senders)
    for node in open_cluster.nodes:
        assert [one.digest for one in node.samplers.known()] == [share.digest]


async def test_sampler_news_during_changes_is_consistent(open_cluster: Any, share: Any) -> None:
    """Records change in threads, whatever the event loop goes through at that moment."""
    samplers = open_cluster["a"].samplers
    sent = await samplers.send(share.data, sent_by="")

    class Meanwhile:
        """A thread gets its turn whenever one is looked at."""

        revoked_at = property(lambda _: samplers._revoke(secrets.token_hex(32), 1.0) or 1.0)
        bytes = property(lambda _: samplers._revoke(sent.digest, 1.0) or 1)

    samplers._revoked = {"1" * 64: Meanwhile(), "2" * 64: Meanwhile()}
    assert samplers.news() == {sent.digest: 0.0, "1" * 64: 1.0, "2" * 64: 1.0}
    assert len(samplers.news()) > 3, "and was there the next time"
    samplers._kept = {"3" * 64: Meanwhile(), **samplers._kept}
    await samplers.would_keep(replace(sent, digest="4" * 64))
    assert sent.digest not in samplers._kept
