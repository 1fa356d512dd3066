"""Continuous queries over real gRPC: registered once, matched by digest; corrupt requests fail."""

from __future__ import annotations

import grpc
import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.dht import placement
from galileo.errors import InputError, UnknownDataset
from galileo.hashing import digest
from galileo.labels import to_ipc
from galileo.match_batch import to_bytes
from galileo.query import parse
from galileo.rpc.storage import match_task_from_pb
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.match_codec import MatchReplies, sequences_to_bytes
from galileo.wire.status import error_of_rpc
from galileo.wire.v1 import cluster_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk

TEXTS = ("true", "temperature > 280", "geohash LIKE '9%'", "station = 'x'")


@pytest.fixture
async def filled(company, make_observations):
    text = company.schema.to_json()
    await company["a"].cluster.CreateDataset(cluster_pb2.CreateDatasetRequest(schema_json=text))
    for batch in range(3):
        data = to_ipc(make_observations(200, seed=batch))
        request = Bulk(
            storage_pb2.IngestRequest(dataset="nam", producer="p", batch=batch), pa.py_buffer(data)
        )
        await company["a"].storage.Ingest(request)
    return company


def mine(company, node="a"):
    return sorted(placement.partitions_by_node(company.topology)[node])


def request_of(company, queries, **changes):
    partitions = mine(company)
    columns = {
        "dataset": "nam",
        "partitions": partitions,
        "after": sequences_to_bytes(np.array([[1] * len(partitions)])),
        "cursors": to_bytes(np.zeros(len(queries), dtype=np.uint32)),
        "digests": b"".join(map(digest, queries)),
    }
    return peers_pb2.MatchRequest(**{**columns, **changes})


async def matched(company, request):
    replies = MatchReplies(company.schema.label_schema)
    async for reply in company["a"].peer_storage.Match(request):
        replies.take(reply)
    return replies.answer


async def test_match_of_registered_queries_finds_them_by_digest(filled):
    schema = filled.schema
    queries = [parse(text, schema).to_json() for text in TEXTS]
    request = request_of(filled, queries)
    assert (await matched(filled, request)).unknown.tolist() == [0, 1, 2, 3]
    await filled["b"].peers.register_queries("a", "nam", queries)
    answer = await matched(filled, request)
    (part,) = answer.parts
    shard = filled["a"].node.catalog.shard("nam")
    expected = [
        shard.graph.scan(
            parse(text, schema),
            after=shard.published().meet(dict.fromkeys(mine(filled), 1)),
            partitions=frozenset(mine(filled)),
        ).num_rows
        for text in TEXTS
    ]
    assert part.matches.counts(len(TEXTS)).tolist() == expected
    assert expected[0] > expected[1] > 0
    assert part.reached == shard.published()


async def refusal(call):
    with pytest.raises(grpc.RpcError) as failed:
        await call
    return error_of_rpc(failed.value, asked="the test")


@pytest.mark.parametrize(
    "changes",
    [
        {"partitions": []},
        {"partitions": [3, 1]},
        {"partitions": [2**32 - 1]},
        {"after": b"123"},
        {"cursors": to_bytes(np.array([0, 0, 0, 7]))},
        {"cursors": to_bytes(np.array([0]))},
        {"digests": b"short"},
        {"committed": b"short"},
        {"committed": sequences_to_bytes(np.ones((2, 2), dtype=np.int64))},
    ],
)
async def test_match_of_an_invalid_request_is_refused(filled, changes):
    request = request_of(filled, TEXTS, **changes)
    assert isinstance(await refusal(matched(filled, request)), InputError)


async def test_match_above_items_max_is_refused(filled):
    request = request_of(filled, TEXTS)
    match_task_from_pb(request, items_max=4)
    with raises(InputError, bound=3):
        match_task_from_pb(request, items_max=3)


async def test_match_of_an_unknown_dataset_is_refused(filled):
    request = peers_pb2.RegisterQueriesRequest(dataset="name", queries_json=["true"])
    assert isinstance(
        await refusal(filled["a"].peer_storage.RegisterQueries(request)), UnknownDataset
    )
    refused = await refusal(matched(filled, request_of(filled, TEXTS, dataset="name")))
    assert isinstance(refused, UnknownDataset)
