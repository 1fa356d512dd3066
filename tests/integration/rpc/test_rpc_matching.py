"""Continuous queries over real gRPC: registered once, matched by digest; corrupt requests fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from cycle_requests import cycle_request
from expected_errors import raises

from galileo.dht import placement
from galileo.errors import InputError, UnknownDataset
from galileo.labels import to_ipc
from galileo.query import parse
from galileo.spark.owners import OWNER, MatchReader
from galileo.wire.caller import Caller
from galileo.wire.v1 import cluster_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk

MATCH = OWNER.calls["match"]
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
    request = cycle_request(
        company.schema,
        queries,
        after=[[1] * len(partitions)],
        partitions=partitions,
        dataset="nam",
    )
    return replace(request, **changes)


async def matched(company, request):
    reader, caller = MatchReader(company.schema.label_schema), Caller()
    node = caller.connection(company.topology.by_name["a"].address)
    try:
        with node.exchange_parts(MATCH.path, MATCH.encode(request), part_s=60.0) as stream:
            async for message in stream:
                reader.take(MATCH.decode_answer(message))
    finally:
        await caller.close()
    return reader.matches


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


def column(*numbers, kind=np.int64):
    return np.array(numbers, dtype=kind)


INVALID = [
    {"partitions": column(kind=np.int32)},
    {"partitions": column(3, 1, kind=np.int32)},
    {"partitions": column(-1, kind=np.int32)},
    {"after": column(1, 2, 3, 4, 5, 6, 7)},
    {"cursors": column(0, 0, 0, 7, kind=np.int32)},
    {"cursors": column(0, 0, 0, -1, kind=np.int32)},
    {"cursors": column(0, kind=np.int32)},
    {"digests": column(1, 2, kind=np.uint8)},
    {"items": column(0, 1, 1, 2, kind=np.uint32)},
    {"samplers": column(0, 0, 0, 1, kind=np.uint32)},
    {"is_compressed": column(1, kind=np.bool_)},
    {"owners": column(0, kind=np.int32)},
    {"addresses": ()},
    {"committed": column(1)},
    {"schema_json": "{}"},
]


async def test_match_of_an_invalid_request_is_refused(filled):
    for changes in INVALID:
        with pytest.raises(InputError):
            await matched(filled, request_of(filled, TEXTS, **changes))


async def test_match_above_items_max_is_refused(filled):
    request = request_of(filled, TEXTS)
    request.check(items_max=4)
    with raises(InputError, bound=3):
        request.check(items_max=3)


async def test_match_of_an_unknown_dataset_is_refused(filled):
    with pytest.raises(UnknownDataset):
        await filled["b"].peers.register_queries("a", "name", ["true"])
    with pytest.raises(UnknownDataset):
        await matched(filled, request_of(filled, TEXTS, dataset="name"))
