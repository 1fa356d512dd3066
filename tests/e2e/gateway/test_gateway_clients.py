"""Programs that know nothing of Galileo read a cluster through a gateway."""

from __future__ import annotations

import http.client
import itertools
import json
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import duckdb
import numpy as np
import pandas as pd
import pyarrow.feather
import pyogrio
import pytest
from parameters import keep_quick
from rdflib import Graph
from rdflib.plugins.stores.sparqlstore import SPARQLStore

import galileo
from galileo.cluster import free_ports
from galileo.local_services import LocalGateway

ROWS = 3_000
TIMEOUT_S = 120.0
SCHEMA = (
    galileo.Feature("temperature", unit="K"),
    galileo.Feature("station", type="text"),
    galileo.Feature("count", type="int", indexed=False),
)


@dataclass(frozen=True)
class Served:
    """A dataset, and a gateway in a process of its own."""

    gateway: LocalGateway
    client: galileo.Client
    dataset: str

    @property
    def url(self) -> str:
        return f"{self.gateway.url}/collections/{self.dataset}"

    def get(self, path: str, **headers: str) -> tuple[int, Any, bytes]:
        """Status, headers and body."""
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                return reply.status, reply.headers, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()


@pytest.fixture(scope="module")
def served(
    cluster: galileo.LocalCluster, gateway: LocalGateway, fresh_name: Callable[[str], str]
) -> Served:
    client = cluster.client()
    name = fresh_name("gateway")
    client.create_dataset(galileo.Schema(name, SCHEMA, geohash_precision=3))
    rng = np.random.default_rng(7)
    frame = pd.DataFrame(
        {
            "latitude": rng.uniform(-60, 60, ROWS),
            "longitude": rng.uniform(-180, 180, ROWS),
            "time": pd.Timestamp("2014-03-01T00:00Z") + pd.to_timedelta(np.arange(ROWS), "s"),
            "temperature": rng.normal(280, 10, ROWS),
            "station": np.resize(["KDEN", "KCYS", 'a "b"'], ROWS),
            "count": np.arange(ROWS),
        }
    )
    client.ingest(name, frame)
    return Served(gateway, client, name)


def sorted_by_count(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values("count").reset_index(drop=True)


@pytest.mark.slow
def test_gdal_reads_every_observation(served: Served) -> None:
    source = f"OAPIF:{served.gateway.url}"
    layers = {str(name): kind for name, kind in pyogrio.list_layers(source)}
    assert layers[served.dataset] == "Point"
    meta, _, geometry, columns = pyogrio.raw.read(source, layer=served.dataset)
    fields = dict(zip(meta["fields"], columns, strict=True))
    temperatures, counts = fields["temperature"], fields["count"]
    assert len(set(fields["id"])) == ROWS
    assert sorted(counts) == list(range(ROWS))
    expected = served.client.select(served.dataset).to_pandas()
    of_count = expected.set_index("count")
    assert np.allclose(temperatures, of_count.loc[list(counts), "temperature"])
    assert len(geometry) == ROWS


def test_gdal_reads_a_box(served: Served) -> None:
    west, south, east, north = bounds = (-100.0, -20.0, 30.0, 40.0)
    _, _, geometry, _ = pyogrio.raw.read(
        f"OAPIF:{served.gateway.url}", layer=served.dataset, bbox=bounds
    )
    box = galileo.within((west, south, east, north))
    assert len(geometry) == served.client.count(served.dataset, box) > 100


QGIS_PYTHON = "/usr/bin/python3"
QGIS_PROGRAM = """
import json, sys
from qgis.core import QgsApplication, QgsDataSourceUri, QgsFeatureRequest, QgsRectangle
from qgis.core import QgsVectorLayer, QgsVectorTileLayer

url, name, *bounds = sys.argv[1:]
app = QgsApplication([], False)
app.initQgis()
uri = QgsDataSourceUri()
uri.setParam("url", url)
uri.setParam("typename", name)
layer = QgsVectorLayer(uri.uri(False), name, "OAPIF")
counts = sorted(feature["count"] for feature in layer.getFeatures())
box = QgsFeatureRequest().setFilterRect(QgsRectangle(*map(float, bounds)))
in_box = sum(1 for _ in layer.getFeatures(box))
layer.setSubsetString('"temperature" > 290')
warm = sum(1 for _ in layer.getFeatures())
tiles = f"type=xyz&url={url}/collections/{name}/tiles/WebMercatorQuad/{{z}}/{{y}}/{{x}}"
is_valid = layer.isValid() and QgsVectorTileLayer(tiles, "tiles").isValid()
print(json.dumps([is_valid, layer.crs().authid(), counts, in_box, warm]))
del layer
app.exitQgis()
"""


@pytest.mark.slow
def test_qgis_reads_observations_a_box_and_a_filter(served: Served) -> None:
    installed = subprocess.run([QGIS_PYTHON, "-c", "import qgis.core"], capture_output=True)
    if installed.returncode:
        pytest.skip("QGIS is not installed: apt-get install python3-qgis")
    bounds = (-100.0, -20.0, 30.0, 40.0)
    done = subprocess.run(
        [QGIS_PYTHON, "-c", QGIS_PROGRAM, served.gateway.url, served.dataset, *map(str, bounds)],
        env={"PATH": "/usr/bin:/bin", "QT_QPA_PLATFORM": "offscreen"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    is_valid, system, counts, in_box, warm = json.loads(done.stdout)
    assert (is_valid, system) == (True, "EPSG:4326")
    assert counts == list(range(ROWS))
    assert in_box == served.client.count(served.dataset, galileo.within(bounds)) > 100
    assert warm == served.client.count(served.dataset, "temperature > 290") > 100


def test_pages_have_each_observation_of_the_first_once(
    served: Served, fresh_name: Callable[[str], str]
) -> None:
    """While others are ingested, which no page has."""
    rows = served.client.select(served.dataset)
    served = replace(served, dataset=fresh_name("paged"))
    served.client.create_dataset(galileo.Schema(served.dataset, SCHEMA, geohash_precision=3))
    served.client.ingest(served.dataset, rows)
    ids, counts, path = list[str](), list[int](), "/items?limit=700"
    while path:
        status, headers, body = served.get(path)
        assert (status, headers["Content-Type"]) == (200, "application/geo+json")
        page = json.loads(body)
        assert page["numberReturned"] == len(page["features"]) <= 700
        ids += [feature["id"] for feature in page["features"]]
        counts += [feature["properties"]["count"] for feature in page["features"]]
        links = {link["rel"]: link["href"] for link in page["links"]}
        path = links["next"].removeprefix(served.url) if "next" in links else ""
        served.client.ingest(served.dataset, rows.slice(0, 5))
    assert sorted(counts) == list(range(ROWS))
    assert len(set(ids)) == ROWS
    number = counts.index(42)
    status, _, body = served.get(f"/items/{ids[number]}")
    feature = json.loads(body)
    assert (status, feature["id"], feature["properties"]["count"]) == (200, ids[number], 42)
    assert {link["rel"] for link in feature["links"]} == {"self", "alternate", "collection"}


@pytest.mark.parametrize("name", ["p0.99999999.1", "nothing", "p3.17"])
def test_item_that_is_not_there_is_not_found(served: Served, name: str) -> None:
    assert served.get(f"/items/{name}")[0] == 404


def test_token_of_another_query_or_of_a_file_is_refused(served: Served) -> None:
    links = json.loads(served.get("/items?limit=1")[2])["links"]
    [following] = [link["href"] for link in links if link["rel"] == "next"]
    token = parse_qs(urlsplit(following).query)["after"][0]
    for path in (
        f"/items?limit=1&station=KDEN&after={quote(token)}",
        "/items?after=x",
        f"/items?f=csv&after={quote(token)}",
    ):
        assert served.get(path)[0] == 400, path


@pytest.mark.parametrize("format", ["csv", "parquet", "geoparquet", "arrow"])
def test_pandas_reads_files(served: Served, format: str) -> None:
    url = f"{served.url}/items?f={format}"
    if format == "csv":
        frame = pd.read_csv(url, parse_dates=["time"])
    elif format == "arrow":
        frame = pyarrow.feather.read_feather(pyarrow.BufferReader(served.get("/items?f=arrow")[2]))
    else:
        frame = pd.read_parquet(url)
    expected = served.client.select(served.dataset).to_pandas()
    read = sorted_by_count(frame[expected.columns])
    read["time"] = read["time"].astype(expected["time"].dtype)
    pd.testing.assert_frame_equal(read, sorted_by_count(expected))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ogrinfo") is None, reason="ogrinfo is not installed (gdal-bin)")
def test_ogrinfo_describes_a_filter(served: Served) -> None:
    layer = [f"OAPIF:{served.gateway.url}", served.dataset]
    command = ["ogrinfo", "-ro", "-so", *layer, "-where", "station = 'KDEN'"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S, text=True)
    assert f"Feature Count: {ROWS // 3}\n" in done.stdout
    assert "Geometry: Point\n" in done.stdout
    assert "temperature: Real" in done.stdout


def test_duckdb_reads_a_parquet_file(served: Served, tmp_path: Path) -> None:
    # It reads URLs only by an extension that it downloads.
    (tmp_path / "items.parquet").write_bytes(served.get("/items?f=parquet")[2])
    query = "SELECT station, count(*), sum(count) FROM read_parquet(?) GROUP BY ALL ORDER BY ALL"
    rows = duckdb.execute(query, [str(tmp_path / "items.parquet")]).fetchall()
    frame = served.client.select(served.dataset).to_pandas()
    expected = frame.groupby("station")["count"].agg(["count", "sum"]).itertuples()
    assert rows == sorted(map(tuple, expected))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_gets_geojson_of_a_filter(served: Served) -> None:
    text = "temperature > 290 AND station = 'KDEN'"
    command = ["curl", "-sSfG", f"{served.url}/items", "--data-urlencode", f"filter={text}"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S)
    features = json.loads(done.stdout)["features"]
    assert {feature["properties"]["station"] for feature in features} == {"KDEN"}
    counts = sorted(feature["properties"]["count"] for feature in features)
    expected = served.client.select(served.dataset, text)
    assert counts == sorted(expected["count"].to_pylist())
    assert counts


def test_items_parameters_select_observations(served: Served) -> None:
    def counted(parameters: str) -> int:
        status, _, body = served.get(f"/items?{parameters}")
        assert status == 200
        document = json.loads(body)
        assert document["numberReturned"] == len(document["features"])
        return int(document["numberReturned"])

    assert counted("limit=7") == 7
    assert counted("station=KCYS") == ROWS // 3
    until = "2014-03-01T00:00:09Z"
    assert counted(f"datetime=../{until}") == 10
    assert counted(f"datetime={until}") == 1
    across = "170,-60,-170,60"
    east, west = counted("bbox=170,-60,180,60"), counted("bbox=-180,-60,-170,60")
    assert counted(f"bbox={across}") == east + west > 50
    assert counted("filter=" + quote("temperature > 1000")) == 0
    status, headers, body = served.get("/items?limit=1&properties=station", Accept="text/csv")
    assert (status, headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert body.startswith(b'"latitude","longitude","time","station"\n')


def test_errors_are_problem_details(served: Served) -> None:
    for path, status, kind in (
        ("/items?limt=1", 400, "invalid_input"),
        ("/items?filter=temp>1", 400, "unknown_property"),
        ("/items?filter=temperature>", 400, "query_syntax"),
        ("x/items", 404, "unknown_dataset"),
    ):
        found, headers, body = served.get(path.replace(">", "%3E"))
        document = json.loads(body)
        assert (found, document["kind"]) == (status, kind), path
        assert headers["content-type"] == "application/problem+json"
        assert document["request"] == headers["galileo-request"]
    assert served.get("/nothing")[0] == 404
    assert served.get("/items", Host="evil.example")[0] == 421


def test_documents_describe_the_dataset(served: Served) -> None:
    where = urlsplit(served.gateway.url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=TIMEOUT_S)
    documents = {}
    for path in ("/", "/conformance", "/api", "/collections"):
        connection.request("GET", path)
        reply = connection.getresponse()
        documents[path] = json.loads(reply.read())
        assert (reply.status, reply.getheader("x-content-type-options")) == (200, "nosniff")
        assert "frame-ancestors 'none'" in str(reply.getheader("content-security-policy"))
    connection.request("POST", "/collections")
    assert connection.getresponse().status == 405
    connection.close()
    listed = {one["id"] for one in documents["/collections"]["collections"]}
    datasets = {name for name in listed if not name.startswith("ccq-")}  # Of other tests.
    assert datasets == {schema.name for schema in served.client.datasets()}
    queryables = json.loads(served.get("/queryables")[2])
    assert "temperature" in queryables["properties"]
    assert "count" not in queryables["properties"], "it is not indexed"
    assert "count" in json.loads(served.get("/schema")[2])["properties"]


def test_sparql_asks_the_labels_of_a_filter(served: Served) -> None:
    text = "SELECT (COUNT(?p) AS ?n) { ?p a g:Path }"
    parameters = f"query={quote(text)}&filter={quote('temperature > 295')}"
    status, _, body = served.get(f"/sparql?{parameters}")
    assert status == 200
    labels = served.client.query(served.dataset, "temperature > 295")
    [row] = json.loads(body)["results"]["bindings"]
    assert int(row["n"]["value"]) == len(labels) > 10
    assert served.get("/sparql?query=SELECT")[0] == 400


@pytest.mark.parametrize(
    ("method", "form"),
    keep_quick(
        itertools.product(["GET", "POST", "POST_FORM"], ["json", "xml", "csv", "tsv"]),
        *(("GET", "json"), ("POST", "xml")),
    ),
)
def test_sparql_answers_store_of_rdflib(served: Served, method: Any, form: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of rdflib's own making
        store = SPARQLStore(f"{served.url}/sparql", method=method, returnFormat=form)
        found = Graph(store).query(
            "SELECT ?s (COUNT(?p) AS ?n) { ?p f:station ?s } GROUP BY ?s",
            initNs={"f": galileo.rdf.FEATURE},
        )
        counts = {str(station): int(count) for station, count in found}  # type: ignore[misc,index]
    stations = served.client.query(served.dataset, "").to_arrow()["station"].to_pylist()
    assert counts == {station: stations.count(station) for station in set(stations)}


@pytest.mark.slow
def test_gateway_of_no_cluster_says_so(tmp_path: Any) -> None:
    gateway = LocalGateway(["127.0.0.1:1"], log=tmp_path / "log", timeout="1s")
    with gateway:
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(f"{gateway.url}/collections", timeout=TIMEOUT_S)
        with raised.value as error:
            assert error.code == 503
            assert error.headers["retry-after"] == "1"
            assert json.loads(error.read())["kind"] == "unavailable"


@pytest.mark.slow
def test_up_with_gateway_serves_until_interrupted() -> None:
    node_port, gateway_port = free_ports(2)
    command = [sys.executable, "-m", "galileo", "up", "--nodes", "1", "--port", str(node_port)]
    up = subprocess.Popen(
        [*command, "--gateway", "--gateway-port", str(gateway_port), "--json"],
        stdout=subprocess.PIPE,
    )
    with up:
        assert up.stdout is not None
        url = json.loads(up.stdout.readline())["gateway"]
        with urllib.request.urlopen(f"{url}/collections", timeout=TIMEOUT_S) as reply:
            assert json.loads(reply.read())["collections"] == []
        up.send_signal(signal.SIGINT)
        assert up.wait(TIMEOUT_S) == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/collections", timeout=TIMEOUT_S)
