"""Documents and problems of a gateway: what refers to each other agrees."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from generated_schemas import schemas
from hypothesis import given, settings

import galileo
from galileo import errors
from galileo.client.client_pool import ClientPool
from galileo.client.descriptions import DatasetDescription
from galileo.client.results import ChannelPartition
from galileo.cursor import EMPTY_CURSOR
from galileo.errors import ConfigError, InputError
from galileo.gateway import channel_documents, documents, edr_requests, parameters
from galileo.gateway.formats import MEDIA_TYPES, Encoders, TableEncoder
from galileo.gateway.openapi import openapi
from galileo.gateway.options import GatewayOptions
from galileo.gateway.problems import STATUSES, problem_of, status_of
from galileo.gateway.routes import ROUTES, path_parameters
from galileo.rdf.terms import STANDARD_NAME
from galileo.wire.tls_credentials import TlsFiles

URL = "http://gateway.example"
SCHEMA = galileo.Schema(
    "weather", [galileo.Feature("temperature", unit="K"), galileo.Feature("note", type="text")]
)
CHANNEL = galileo.Channel("hot", "weather", "temperature > :least").bound(
    SCHEMA, [("least", "float")], start={}, partitions=4
)
DESCRIBED = DatasetDescription(
    SCHEMA,
    observations=1,
    paths=1,
    bytes=1,
    bbox=(-110.0, 35.0, -100.0, 42.0),
    start=dt.datetime(2014, 3, 1, 6, tzinfo=dt.UTC),
    end=dt.datetime(2014, 3, 1, 7, tzinfo=dt.UTC),
    features=(),
)


def test_openapi_has_every_route_and_its_references_exist() -> None:
    document = openapi(URL)
    assert set(document["paths"]) == {route.path for route in ROUTES}
    for route in ROUTES:
        assert set(path_parameters(route)) == {
            part.strip("{}") for part in route.path.split("/") if part.startswith("{")
        }
        assert set(route.parameters) <= set(parameters.TABLE)
    for reference in references(document):
        place: Any = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]


def references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [found for item in value for found in references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if "$ref" in value else []
    return own + [found for item in value.values() for found in references(item)]


def test_links_of_documents_lead_to_routes() -> None:
    names = {"{collectionId}": "weather", "{channelId}": "hot"}
    paths = {route.path for route in ROUTES}
    for parameter, name in names.items():
        paths = {path.replace(parameter, name) for path in paths}
    collection = documents.collection(URL, DESCRIBED)
    described = [
        documents.landing(URL),
        documents.collections(URL, [DESCRIBED]),
        collection,
        *({"links": [query["link"]]} for query in collection["data_queries"].values()),
        channel_documents.listed(URL, [CHANNEL]),
        channel_documents.described(URL, CHANNEL),
    ]
    for document in described:
        for link in document["links"]:
            assert link["href"].removeprefix(URL).partition("?")[0] in paths
        for template in document.get("linkTemplates", ()):
            assert template["uriTemplate"].removeprefix(URL) in paths


def test_progress_of_a_channel_names_what_is_missing_and_what_fails() -> None:
    def partition(number: int, *, behind: int = 0, failure: str = "") -> ChannelPartition:
        facts = {"execution": 7, "subscriptions": 5, "index_bytes": 9, "took_s": 0.5}
        return ChannelPartition(
            number, "n", **facts, behind=behind, cut=EMPTY_CURSOR, executed_at=1.5, failure=failure
        )

    several = [partition(0, behind=3), partition(2, behind=4, failure="no room")]
    document = channel_documents.progress(CHANNEL, several)
    assert (document["subscriptions"], document["behind"]) == (10, 4)
    assert (document["failures"], document["missing"]) == (["no room"], [1, 3])
    assert not document["complete"]
    assert [one["failure"] for one in document["partitions"]] == [None, "no room"]
    assert document["partitions"][0]["executed"] == "1970-01-01T00:00:01.500000Z"
    every = channel_documents.progress(CHANNEL, [partition(number) for number in range(4)])
    assert (every["complete"], every["missing"], every["failures"]) == (True, [], [])


def test_collection_describes_its_queries_parameters_and_extent() -> None:
    document = documents.collection(URL, DESCRIBED)
    assert document["extent"]["spatial"]["bbox"] == [[-110.0, 35.0, -100.0, 42.0]]
    interval = ["2014-03-01T06:00:00Z", "2014-03-01T07:00:00Z"]
    assert document["extent"]["temporal"]["interval"] == [interval]
    assert set(document["data_queries"]) == {*edr_requests.QUERIES, "locations", "items"}
    for query in document["data_queries"].values():
        variables = query["link"]["variables"]
        assert variables["default_output_format"] in variables["output_formats"]
        assert {one["crs"] for one in variables["crs_details"]} == set(document["crs"])
    assert document["storageCrs"] in document["crs"]
    temperature = document["parameter_names"]["temperature"]
    assert temperature["unit"]["symbol"] == "K"
    assert temperature["data-type"] == "float"
    empty = replace(DESCRIBED, bbox=None, start=None, end=None)
    assert documents.collection(URL, empty)["extent"]["temporal"]["interval"] == [[None, None]]


def test_schema_document_names_every_column() -> None:
    document = documents.item_schema(URL, SCHEMA)
    columns = {*SCHEMA.observation_schema.names, "geometry"} - {"latitude", "longitude"}
    assert set(document["properties"]) == columns
    assert document["properties"]["temperature"]["x-ogc-unit"] == "K"


@settings(max_examples=10)
@given(schema=schemas)
def test_schema_document_says_what_describes_each_feature(schema: galileo.Schema) -> None:
    document = json.loads(json.dumps(documents.item_schema(URL, schema)))
    types = {"boolean": "bool", "string": "text", "integer": "int"}
    for feature in schema.features:
        members = document["properties"][feature.name]
        flags = {int(value): name for value, name in members.get("x-galileo-flags", {}).items()}
        read = galileo.Feature(
            members["title"],
            unit=members.get("x-ogc-unit", ""),
            type=types.get(members["type"], feature.type),
            indexed=feature.indexed,
            standard_name=members.get("x-ogc-definition", "").removeprefix(STANDARD_NAME),
            description=members.get("description", ""),
            flags=flags,
        )
        assert read == feature


def test_every_error_has_a_status() -> None:
    for kind, cls in errors.by_kind().items():
        status = status_of(cls("wrong"))
        assert 400 <= status < 600, kind
        assert (status < 500) == issubclass(
            cls, errors.InputError | errors.TerminalError | errors.Throttled
        ) or issubclass(cls, errors.ConfigError | errors.Cancelled), kind
    assert set(STATUSES) <= set(errors.by_kind())


@pytest.mark.parametrize(
    ("error", "status", "header"),
    [
        (errors.UnknownDataset("none"), 404, None),
        (errors.Unauthenticated("who?"), 401, ("www-authenticate", "Bearer")),
        (errors.Throttled("slower", after_s=2.5), 429, ("retry-after", "3")),
        (errors.IncompleteAnswer("away", missing=[1]), 503, ("retry-after", "1")),
        (errors.DataExpired("dropped"), 410, None),
    ],
)
def test_problem_of_an_error(
    error: errors.GalileoError, status: int, header: tuple[str, str] | None
) -> None:
    answer = problem_of(error)
    document = json.loads(bytes(answer.body))
    assert answer.status_code == document["status"] == status
    assert answer.media_type == "application/problem+json"
    assert (document["kind"], document["detail"]) == (error.kind, error.message)
    if header is not None:
        assert answer.headers[header[0]] == header[1]


def observations(rows: int) -> pa.Table:
    return pa.table(
        {
            "latitude": np.linspace(-80, 80, rows),
            "longitude": np.linspace(-170, 170, rows),
            "time": pa.array(range(rows), pa.timestamp("us", "UTC")),
            "temperature": pa.array([None, *range(1, rows)][:rows], pa.float64()),
            "note": pa.array([f'"{number}"\n' for number in range(rows)]),
        },
        schema=SCHEMA.observation_schema,
    )


async def encoded(format: str, table: pa.Table, *, pieces: int) -> bytes:
    async def tables() -> AsyncIterator[pa.Table]:
        size = max(1, -(-table.num_rows // pieces))
        for start in range(0, table.num_rows, size):
            yield table.slice(start, size)

    encoders = Encoders()
    encoder = TableEncoder(format, table.schema, members={"links": []})
    try:
        return b"".join([piece async for piece in encoder.encode(tables(), encoders)])
    finally:
        encoders.close()


READ: dict[str, Any] = {
    "parquet": lambda data: pyarrow.parquet.read_table(io.BytesIO(data)),
    "geoparquet": lambda data: pyarrow.parquet.read_table(io.BytesIO(data)),
    "arrow": lambda data: pyarrow.feather.read_table(io.BytesIO(data)),
}


@pytest.mark.parametrize("rows", [0, 1, 40_000])
@pytest.mark.parametrize("format", READ)
def test_encoded_tables_read_back_equal(format: str, rows: int) -> None:
    table = observations(rows)
    data = asyncio.run(encoded(format, table, pieces=7))
    assert READ[format](data).select(table.column_names).equals(table)


@pytest.mark.parametrize("rows", [0, 1, 40_000])
def test_encoded_text_reads_back_equal(rows: int) -> None:
    table = observations(rows)
    geojson = json.loads(asyncio.run(encoded("geojson", table, pieces=3)))
    assert geojson["numberReturned"] == len(geojson["features"]) == rows
    assert geojson["links"] == []
    notes = [feature["properties"]["note"] for feature in geojson["features"]]
    assert notes == table["note"].to_pylist()
    lines = asyncio.run(encoded("ndjson", table, pieces=3)).splitlines()
    assert [json.loads(line)["temperature"] for line in lines] == table["temperature"].to_pylist()
    csv = asyncio.run(encoded("csv", table, pieces=3))
    if rows:
        options = pyarrow.csv.ParseOptions(newlines_in_values=True)
        read = pyarrow.csv.read_csv(io.BytesIO(csv), parse_options=options)
        assert read["latitude"].to_pylist() == table["latitude"].to_pylist()
    assert csv.startswith(b'"latitude","longitude","time","temperature","note"\n')


def test_media_types_have_writers() -> None:
    for format in MEDIA_TYPES:
        TableEncoder(format, observations(1).schema, members={}).close()


def test_options_that_would_send_tokens_unencrypted_are_refused() -> None:
    nodes = ("127.0.0.1:7701",)
    with pytest.raises(ConfigError):
        GatewayOptions(nodes=nodes, host="0.0.0.0")
    with pytest.raises(ConfigError):
        GatewayOptions(nodes=nodes, certificate="a.pem")
    with pytest.raises(ConfigError):
        GatewayOptions(nodes=nodes, origins=("*",))
    GatewayOptions(nodes=nodes, host="0.0.0.0", insecure=True)


async def test_client_pool_keeps_few_clients_and_refuses_keys_with_a_token() -> None:
    with pytest.raises(InputError):
        ClientPool(["127.0.0.1:1"], keys=TlsFiles(token="secret"), patience_s=1.0)
    pool = ClientPool(["127.0.0.1:1"], keys=TlsFiles(), patience_s=1.0, clients_max=2)
    first = pool.client("a")
    assert pool.client("a") is first
    for token in "bc":
        assert pool.client(token) is not first
    assert len(pool) == 2
    await pool.close()


def test_openapi_of_deletions_requires_a_filter() -> None:
    paths = openapi(URL)["paths"]
    items = paths["/collections/{collectionId}/items"]
    names = [
        one.get("name") or one["$ref"].rpartition("/")[2] for one in items["delete"]["parameters"]
    ]
    assert names == ["collectionId", *parameters.DELETED_ITEMS]
    [required] = [one for one in items["delete"]["parameters"] if one.get("name") == "filter"]
    assert required["required"]
    assert [*items["delete"]["responses"]["200"]["content"]] == [documents.JSON]
    posted = {one["$ref"].rpartition("/")[2] for one in items["post"]["parameters"]}
    assert "If-Match" in posted
    item = paths["/collections/{collectionId}/items/{featureId}"]["delete"]
    assert {*item["responses"]} == {"204", "default"}
