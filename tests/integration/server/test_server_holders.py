"""Asking a holder over a real connection: its labels as they were, or the word that it has none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace

import grpc.aio
import pyarrow as pa
import pytest
from simulator.logs import SCHEMA, to_labels, to_paths

from galileo.ccq.events import CacheReadAnswered, CacheReadFailed, ReadHandedOffCache
from galileo.ccq.model import CcqDefinition
from galileo.ccq.pack_codec import to_bytes
from galileo.cursor import CommitRange, Cursor
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.model.schema import Schema
from galileo.packing import Compression
from galileo.rpc.internal import CachedRange, Internal, add_internal
from galileo.rpc.peers import GrpcPeers
from galileo.server.effect_executor import EffectExecutor
from galileo.wire.channel import server_options

CCQ = CcqDefinition("q", SCHEMA.name, "", 1.0, 0.0)
PATHS = [(p, s, row, row * s) for p in (0, 1) for s in (1, 2, 3) for row in range(5_000)]
REACHED = Cursor({0: 3, 1: 3})
GONE = (CommitRange(1, 4, 6),)


class Face:
    """Holds the labels of term 5, none of term 6, damaged ones of term 7, and nothing else."""

    async def held(
        self, ccq_id: str, *, term: int, after: Cursor, labels_max: int
    ) -> CachedRange | None:
        labels = to_labels(PATHS)
        assert labels is not None
        data = to_bytes(labels.after(after), Compression.NONE)
        answers = {5: data, 6: b"", 7: data[:-1]}
        return CachedRange(pa.py_buffer(answers[term]), REACHED, GONE) if term in answers else None


@pytest.fixture
async def work() -> AsyncIterator[EffectExecutor]:
    server = grpc.aio.server(options=server_options())
    add_internal(Internal(None, None, ccqs=Face()), server)  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    nodes = (NodeInfo("b", f"127.0.0.1:{port}"), NodeInfo("dead", "127.0.0.1:1"))
    topology = Topology("test", (Group("g", nodes),), even_ranges(1))
    peers = GrpcPeers(topology, is_dead=lambda name: name == "dead")

    async def narrowed(dataset: str, added: int) -> Schema:
        return {SCHEMA.name: SCHEMA}[dataset].narrowed(added)

    made = EffectExecutor(
        SimpleNamespace(name="a", narrowed=narrowed),  # type: ignore[arg-type]
        peers,
        evaluate=None,  # type: ignore[arg-type]
        is_dead=lambda name: False,
        spills=None,  # type: ignore[arg-type]
        records=None,  # type: ignore[arg-type]
    )
    yield made
    await peers.close()
    await server.stop(None)


def ask(term: int, *, after: Cursor, node: str = "b") -> ReadHandedOffCache:
    return ReadHandedOffCache(1, CCQ, node, term, after, 100)


async def test_read_handed_off_cache_returns_labels_after_the_cursor(work: EffectExecutor) -> None:
    answer = await work(ask(5, after=Cursor({0: 1})))
    assert isinstance(answer, CacheReadAnswered)
    assert to_paths(answer.labels) == [path for path in PATHS if path[:2] != (0, 1)]
    assert (answer.request, answer.reached, answer.gone) == (1, REACHED, GONE)


async def test_read_handed_off_cache_without_labels_returns_its_range(work: EffectExecutor) -> None:
    assert await work(ask(6, after=Cursor())) == CacheReadAnswered(1, None, REACHED, GONE)


@pytest.mark.parametrize(("term", "node"), [(4, "b"), (7, "b"), (5, "dead")])
async def test_read_handed_off_cache_absent_damaged_or_unreachable_fails(
    work: EffectExecutor, term: int, node: str
) -> None:
    assert await work(ask(term, after=Cursor(), node=node)) == CacheReadFailed(1)
