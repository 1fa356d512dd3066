"""Ingest over HTTP: what a request stores, how often, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from gateway_serving import gateway, node, site
from proving import Tokens, auth_section

import galileo
from galileo.client import Credentials
from galileo.client.json_lines import json_lines
from galileo.gateway import edr, ingestion, request_bodies
from galileo.gateway.ingestion import REQUEST_TYPES
from galileo.gateway.options import GatewayOptions
from galileo.gateway.request_bodies import BODY_BYTES_MAX
from galileo.rpc.access import Role

FEATURES = [galileo.Feature("amount"), galileo.Feature("station", type="text")]
TIMEOUT_S = 60.0
PATH = "/collections/rain/items"


def table(rows: int, *, first: int = 0) -> pa.Table:
    numbers = range(first, first + rows)
    observations = pa.table(
        {
            "latitude": pa.array([40.0 + n % 100 / 100 for n in numbers], pa.float64()),
            "longitude": pa.array([8.0] * rows, pa.float64()),
            "time": pd.Timestamp("2014-03-01T06:00Z") + pd.to_timedelta(list(numbers), "s"),
            "amount": pa.array(numbers, pa.float64()),
            "station": [f"s{n % 5}" for n in numbers],
        }
    )
    return observations.cast(galileo.Schema("rain", FEATURES).observation_schema)


def encoded(format: str, data: pa.Table) -> bytes:
    sink = io.BytesIO()
    if format == "geojson":
        return galileo.to_geojson(data).encode()
    if format == "ndjson":
        return "\n".join(json_lines(data).to_pylist()).encode()
    if format == "csv":
        pyarrow.csv.write_csv(data, sink)
    elif format == "parquet":
        pyarrow.parquet.write_table(data, sink)
    else:
        with pa.ipc.new_stream(sink, data.schema) as writer:
            writer.write_table(data)
    return sink.getvalue()


class Served:
    """A gateway, and a client of its node."""

    def __init__(self, url: str, client: galileo.AsyncClient) -> None:
        self.url = url
        self.client = client

    async def post(
        self, body: bytes | list[bytes], media_type: str = "text/csv", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Status and document; a list is sent in chunks, without a length."""
        where = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        given = {"Host": where.netloc, "Content-Type": media_type, "Connection": "close"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, bytes):
            given.setdefault("Content-Length", str(len(body)))
            sent = [body]
        else:
            given["Transfer-Encoding"] = "chunked"
            sent = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in body] + [b"0\r\n\r\n"]
        path = given.pop("path", PATH)
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
        async with asyncio.timeout(TIMEOUT_S):
            writer.write("\r\n".join([*lines, "", ""]).encode())
            with contextlib.suppress(ConnectionError):
                for piece in sent:
                    writer.write(piece)
                    await writer.drain()
            answer = await reader.read()
        writer.close()
        head, _, text = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(text)

    async def text(self, path: str) -> str:
        def read() -> str:
            with urlopen(f"{self.url}{path}", timeout=TIMEOUT_S) as answer:
                return str(answer.read().decode())

        return await asyncio.to_thread(read)

    async def get(self, path: str) -> Any:
        return json.loads(await self.text(path))

    async def amounts(self) -> list[float]:
        stored = await self.client.select("rain", columns=["amount"])
        return sorted(stored.column("amount").to_pylist())


@contextlib.asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Served]:
    async with site(directory / "node", {}, galileo.Schema("rain", FEATURES)) as (url, client):
        yield Served(url, client)


async def test_ingest_every_format_stores_what_was_sent_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for number, (media_type, format) in enumerate(REQUEST_TYPES.items()):
            body = encoded(format, table(20, first=20 * number))
            for duplicates in (0, 20):
                status, receipt = await served.post(body, f"{media_type}; charset=utf-8")
                assert (status, receipt.get("observations")) == (201, 20), receipt
                assert receipt["duplicates"] == duplicates, "the content identifies it"
        count = 20 * len(REQUEST_TYPES)
        assert await served.amounts() == list(range(count))
        one = {"type": "Point", "coordinates": [8.0, 40.0]}
        values = {"time": "2014-03-02T06:00:00Z", "amount": count}
        body = json.dumps({"type": "Feature", "geometry": one, "properties": values}).encode()
        status, receipt = await served.post([body[:9], body[9:]], "application/geo+json")
        assert (status, receipt["observations"]) == (201, 1), "sent in chunks"
        assert await served.amounts() == list(range(count + 1))


async def test_ingest_key_identifies_a_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        body = encoded("csv", table(100))
        for key in ("buoys:7", '"buoys:7"'):
            status, receipt = await served.post(body, Idempotency_Key=key)
            assert (status, receipt["batch"]) == (201, "buoys:7")
        assert receipt["duplicates"] == 100
        as_parquet, parquet = encoded("parquet", table(100)), "application/vnd.apache.parquet"
        _, receipt = await served.post(as_parquet, parquet, Idempotency_Key="buoys:7")
        assert receipt["duplicates"] == 100, "the same observations in another format"
        await assert_conflicts(served, [table(99), table(101), table(5)], key="buoys:7")
        _, receipt = await served.post(body, Idempotency_Key="buoys:8")
        assert receipt["duplicates"] == 0, "another request"
        for key in ("buoys:x y", "é", "buoys:99999999999999999", "b" * 129, '"'):
            status, problem = await served.post(body, Idempotency_Key=key)
            assert (status, problem.get("details", {}).get("parameter")) == (
                400,
                "Idempotency-Key",
            ), (key, problem)
        assert len(await served.amounts()) == 200


@pytest.mark.slow
async def test_ingest_key_identifies_a_request_of_several_batches(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        body = encoded("csv", table(70_000))  # Two batches.
        for duplicates in (0, 70_000):
            _, receipt = await served.post(body, Idempotency_Key="buoys:7")
            assert receipt["duplicates"] == duplicates
        others = [table(rows) for rows in (65_536, 70_001, 200_000, 69_999)]
        await assert_conflicts(served, others, key="buoys:7")
        assert len(await served.amounts()) == 70_000


async def assert_conflicts(served: Served, others: list[pa.Table], *, key: str) -> None:
    """Each of the tables is refused under the key, and none of its rows is stored."""
    count = await served.client.count("rain")
    for other in others:
        status, problem = await served.post(encoded("csv", other), Idempotency_Key=key)
        assert (status, problem["kind"]) == (409, "batch_conflict")
        assert await served.client.count("rain") == count


async def test_ingest_of_features_that_another_client_added(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        before = encoded("csv", table(20))
        assert (await served.post(before))[0] == 201
        await served.client.add_features("rain", [galileo.Feature("gust", "m/s")])
        status, receipt = await served.post(before)
        assert (status, receipt["duplicates"]) == (201, 20)
        gusts = pa.array([float(number) for number in range(20)])
        after = table(20, first=20).append_column("gust", gusts)
        status, receipt = await served.post(encoded("csv", after))
        assert (status, receipt["observations"]) == (201, 20), receipt
        status, problem = await served.post(
            encoded("csv", after.rename_columns([*after.column_names[:-1], "gusts"]))
        )
        assert (status, problem["details"]["column"]) == (400, "gusts")
        assert await served.client.count("rain", "gust >= 15") == 5
        for document, name in (("schema", "amount"), ("queryables", "gust")):
            found = await served.get(f"/collections/rain/{document}")
            assert {name, "gust"} <= found["properties"].keys()
        page = await served.get("/collections/rain/items?filter=gust%20%3E%3D%2015&f=geojson")
        assert {one["properties"]["gust"] for one in page["features"]} == {*range(15, 20)}
        text = await served.text("/collections/rain/items?f=csv")
        assert text.splitlines()[0].endswith('"gust"')
        assert len(text.splitlines()) == 41


async def test_ingest_mistake_is_named_and_nothing_is_stored(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        good = encoded("csv", table(70_000))
        wrong = good + b"40,8,2014-03-01T06:00:00Z,much,s1\n"
        status, problem = await served.post(wrong)
        assert (status, problem["kind"]) == (400, "invalid_observations")
        assert problem["details"] == {"row": 70_000, "column": "amount"}
        assert "/proc" not in problem["detail"]
        for body, media_type, expected in (
            (b"", "text/csv", 400),
            (b"PAR1", "application/vnd.apache.parquet", 400),
            (b"\x1f\x8b123", "text/csv", 400),
            (good, "text/plain", 415),
            (good, "application/x-www-form-urlencoded", 415),
        ):
            status, problem = await served.post(body, media_type)
            assert status == expected, problem
            assert "/proc" not in problem["detail"]
        for headers, expected in (
            ({"Content_Encoding": "gzip"}, 415),
            ({"Content_Type": "text/csv; charset=iso-8859-1"}, 415),
            ({"Content_Type": "text/csv; header=absent"}, 415),
            ({"If_None_Match": "*"}, 400),
            ({"Content_Range": "bytes 0-9/90"}, 400),
            ({"Content_Crs": "<http://www.opengis.net/def/crs/EPSG/0/4326>"}, 400),
            ({"Content_Crs": "<http://www.opengis.net/def/crs/EPSG/0/25832>"}, 400),
        ):
            status, problem = await served.post(good, **headers)
            assert status == expected, (headers, problem)
            path = "/channels/none/subscriptions"
            status, problem = await served.post(good, **{**headers, "path": path})
            assert status == expected, (headers, problem)
        assert (await served.post(good, path=f"{PATH}?f=csv"))[0] == 400
        assert (await served.post(good, path="/collections/none/items"))[0] == 404
        assert await served.amounts() == []


@pytest.mark.parametrize("system", ["OGC/1.3/CRS84", "EPSG/0/4326", "EPSG/0/3857"])
async def test_ingest_stores_an_answer_at_its_places_whatever_its_system(
    tmp_path: Path, system: str
) -> None:
    uri = f"http://www.opengis.net/def/crs/{system}"
    async with serving(tmp_path) as served:
        assert (await served.post(encoded("csv", table(20))))[0] == 201
        body = (await served.text(f"{PATH}?crs={uri}")).encode()
        for _ in range(2):
            status, receipt = await served.post(
                body, "application/geo+json", Content_Crs=f"<{uri}>"
            )
            assert (status, receipt.get("observations")) == (201, 20), receipt
        assert receipt["duplicates"] == 20
        columns = ["amount", "latitude", "longitude"]
        stored = await served.client.select("rain", columns=columns)
        expected = [row for row in table(20).select(columns).to_pylist() for _ in range(2)]
        found = stored.sort_by("amount").select(columns).to_pylist()
        assert found == [pytest.approx(row) for row in expected]
        feature = {"type": "Feature", "properties": {"time": "2014-03-01T06:00Z", "amount": 1}}
        for place in ([91, 0], [None, 0], None) if system == "EPSG/0/4326" else ():
            point = {"type": "Point", "coordinates": place}
            wrong = json.dumps({**feature, "geometry": place and point}).encode()
            status, problem = await served.post(
                wrong, "application/geo+json", Content_Crs=f"<{uri}>"
            )
            assert status == 400, problem


async def test_ingest_of_no_observations_stores_none(tmp_path: Path) -> None:
    nothing = json.dumps({"type": "FeatureCollection", "features": []}).encode()
    async with serving(tmp_path) as served:
        for body, media_type in (
            (nothing, "application/geo+json"),
            (b"latitude,longitude,time,amount\n", "text/csv"),
        ):
            status, receipt = await served.post(body, media_type)
            assert (status, receipt.get("observations")) == (201, 0), receipt
        assert await served.amounts() == []


async def test_first_page_says_how_many_observations_there_are(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        assert (await served.post(encoded("csv", table(20))))[0] == 201
        pages = [await served.get(f"{PATH}?limit=7")]
        while following := [link for link in pages[-1]["links"] if link["rel"] == "next"]:
            pages.append(await served.get(following[0]["href"].removeprefix(served.url)))
        assert [page["numberReturned"] for page in pages] == [7, 7, 6]
        assert [page.get("numberMatched") for page in pages] == [20, None, None]
        assert (await served.get(f"{PATH}?f=json&station=s1"))["numberMatched"] == 4, "one page"
        assert "numberMatched" not in await served.get(f"{PATH}?limit=3&station=s1")


async def test_values_of_an_answer_in_coverage_json_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edr, "VALUES_MAX", 20)
    path = "/collections/rain/radius?coords=POINT(8%2040)&within=900&within-units=km"
    async with serving(tmp_path) as served:
        assert (await served.post(encoded("csv", table(10))))[0] == 201
        assert (await served.get(path))["type"] == "CoverageCollection"
        assert (await served.post(encoded("csv", table(1, first=10))))[0] == 201
        with pytest.raises(HTTPError) as refused:  # Each observation has two values.
            await served.get(path)
        refused.value.close()
        assert refused.value.code == 400
        assert (await served.get(f"{path}&parameter-name=amount"))["type"] == "CoverageCollection"


async def test_ingest_size_of_bodies_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_bodies, "BODY_BYTES_MAX", 100_000)
    monkeypatch.setattr(request_bodies, "BODIES_BYTES_MAX", 150_000)
    async with serving(tmp_path) as served:
        large = encoded("csv", table(10_000))
        status, problem = await served.post(large)
        assert (status, problem["title"]) == (413, "Request Entity Too Large"), problem
        pieces = [large[start : start + 10_000] for start in range(0, len(large), 10_000)]
        assert (await served.post(pieces))[0] == 413
        # Requests hold room for what has arrived, not for what they announce.
        where = urlsplit(served.url)
        head = f"POST {PATH} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: text/csv\r\n"
        dripping: list[asyncio.StreamWriter] = []
        for _ in range(4):
            _, waiting = await asyncio.open_connection(where.hostname, where.port)
            dripping.append(waiting)
            waiting.write(f"{head}Content-Length: 90000\r\n\r\nlatitude".encode())
            small = encoded("csv", table(1))
            assert (await served.post([small]))[0] == 201
            assert (await served.post(small))[0] == 201
        for waiting in dripping:
            waiting.close()
            await waiting.wait_closed()
        monkeypatch.setattr(ingestion, "OBSERVATIONS_MAX", 10)
        assert (await served.post(encoded("csv", table(11))))[0] == 400
    assert BODY_BYTES_MAX == 64 << 20


async def test_ingest_needs_the_rights_of_a_writer(tmp_path: Path) -> None:
    tokens = Tokens.of_all_roles(tmp_path / "principals.toml")
    tokens.add("ann", Role.WRITER, datasets=("wind",))
    auth = auth_section(tokens, tokens.tokens["node"])
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(node(tmp_path / "node", {"auth": auth}))
        proof: Credentials = tokens.proof("writer")
        client = await stack.enter_async_context(galileo.AsyncClient(address, proof=proof))
        await client.create_dataset(galileo.Schema("rain", FEATURES))
        options = GatewayOptions(nodes=(address,), port=0, patience_s=60.0)
        served = Served(await stack.enter_async_context(gateway(options)), client)
        body = encoded("csv", table(5))
        for name, expected in (("", 401), ("reader", 403), ("ann", 403), ("writer", 201)):
            headers = {"Authorization": f"Bearer {tokens.tokens[name]}"} if name else {}
            status, problem = await served.post(body, **headers)
            assert status == expected, problem
        assert len(await served.amounts()) == 5
