"""Random filters of `items` against PostGIS: pages of GeoJSON and files have its rows.

`scripts/differential --against gateway` runs it; it needs PostgreSQL with PostGIS and starts a
server of its own. A request has conditions on features, perhaps with a polygon or a distance in
another coordinate reference system, perhaps a box and an interval. PostGIS is asked the same in
SQL. Places are random numbers, so that none lies on an edge; conditions that ignore case are left
out, since its collation without a language has no other case of `é`.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pytest
import shapely
from conditions import Maker
from shapes import drawn

import galileo
from benchmarks import postgis
from galileo.model.times import iso

CASES = int(os.environ.get("GALILEO_DIFFERENTIAL_CASES", "1000"))
SEED = int(os.environ.get("GALILEO_DIFFERENTIAL_SEED", "1"))
BATCHES = 150
PAGE_ROWS = 300
DAY_US = 86_400_000_000
TIMEOUT_S = 120.0
EPSG_4326 = "http://www.opengis.net/def/crs/EPSG/0/4326"
COLUMNS = (
    "latitude float8, longitude float8, time timestamptz, t float8, n int8, "
    's text COLLATE "C", b bool, id int8'
)

pytestmark = pytest.mark.skipif(
    os.environ.get("GALILEO_DIFFERENTIAL_AGAINST") != "gateway",
    reason="runs a PostgreSQL server: scripts/differential --against gateway",
)


@pytest.fixture
def session():
    try:
        with postgis.running() as running:
            running.ask("SET client_encoding TO 'UTF8'")
            yield running
    except postgis.NoServer as error:
        pytest.skip(str(error))


def observations(maker, schema):
    """Some thousand observations at different places."""
    random = np.random.default_rng(SEED)
    table = pa.concat_tables([maker.observations(schema) for _ in range(BATCHES)])
    rows = table.num_rows
    columns = {
        "latitude": random.uniform(-90, 90, rows),
        "longitude": random.uniform(-180, 180, rows),
        "time": pa.array(random.integers(0, 9 * DAY_US, rows), pa.timestamp("us", "UTC")),
        "id": pa.array(np.arange(rows)),
    }
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(name), pa.array(values))
    return table


def loaded(session, table):
    """Makes a table of the server with the same rows."""
    names = ["latitude", "longitude", "time", "t", "n", "s", "b", "id"]
    with tempfile.TemporaryDirectory(prefix="postgis-gateway-") as directory:
        Path(directory).chmod(0o755)
        file = Path(directory) / "world.csv"
        pcsv.write_csv(table.select(names), file)
        session.ask(f"CREATE TABLE world ({COLUMNS})")
        session.ask(f"\\copy world FROM '{file}' CSV HEADER \nSELECT 1")
    session.ask("ALTER TABLE world ADD place geometry")
    session.ask("UPDATE world SET place = ST_SetSRID(ST_MakePoint(longitude, latitude), 4326)")


class Asker:
    """Random requests: parameters of `items`, and the condition in SQL."""

    def __init__(self, seed):
        self.maker = Maker(seed)
        self.random = np.random.default_rng(seed)

    def request(self):
        condition = self.maker.condition()
        while "lower(" in condition.sql or "isfinite(" in condition.sql:
            condition = self.maker.condition()
        cql2, sql = [condition.cql2], [condition.sql.replace("AS DOUBLE)", "AS float8)")]
        parameters = {}
        is_swapped = bool(self.random.random() < 0.5)
        place = self.random.choice([self.polygon, self.distance, None])
        if place is not None:
            for texts, text in zip((cql2, sql), place(is_swapped), strict=True):
                texts.append(text)
            parameters |= {"filter-crs": EPSG_4326} if is_swapped else {}
        word = str(self.random.choice([" AND ", " OR "]))
        parameters["filter"] = word.join(f"({text})" for text in cql2)
        sql = [word.join(f"({text})" for text in sql)]
        for more in (self.box, self.interval):
            if self.random.random() < 0.3:
                given, text = more()
                parameters |= given
                sql.append(text)
        return parameters, " AND ".join(f"({text})" for text in sql)

    def polygon(self, is_swapped):
        while (shape := drawn(self.random)) is None:
            pass
        shape = shapely.set_srid(shape, 4326)
        sql = " OR ".join(
            f"ST_Intersects('{shapely.to_wkb(shape, hex=True, include_srid=True)}'::geometry, "
            f"ST_Translate(place, {turn}, 0))"
            for turn in (-360, 0, 360)
        )
        return f"S_INTERSECTS(geometry, {text_of(shape, is_swapped)})", sql

    def distance(self, is_swapped):
        east, north = self.random.uniform((-180, -90), (180, 90)).tolist()
        radius_m = float(self.random.uniform(1e5, 9e6))
        text = text_of(shapely.Point(east, north), is_swapped)
        sql = (
            f"ST_DWithin(place::geography, ST_SetSRID(ST_MakePoint({east!r}, {north!r}), 4326)"
            f"::geography, {radius_m!r}, false)"
        )
        return f"DWITHIN(geometry, {text}, {radius_m!r})", sql

    def box(self):
        west, east = self.random.uniform(-180, 180, 2).tolist()
        south, north = sorted(self.random.uniform(-90, 90, 2).tolist())
        word = "AND" if west <= east else "OR"
        sql = (
            f"(longitude >= {west!r} {word} longitude <= {east!r}) "
            f"AND latitude BETWEEN {south!r} AND {north!r}"
        )
        if self.random.random() < 0.5:
            return {"bbox": f"{west!r},{south!r},{east!r},{north!r}"}, sql
        return {"bbox": f"{south!r},{west!r},{north!r},{east!r}", "bbox-crs": EPSG_4326}, sql

    def interval(self):
        start, end = (iso(int(at)) for at in np.sort(self.random.integers(0, 9 * DAY_US, 2)))
        return {"datetime": f"{start}/{end}"}, f"time >= '{start}' AND time <= '{end}'"


def text_of(shape, is_swapped):
    """Its WKT with all digits; some polygons are valid only with them."""
    if is_swapped:
        shape = shapely.transform(shape, lambda positions: positions[:, ::-1])
    return shapely.to_wkt(shape, rounding_precision=20)


def answer(url):
    """The body of an answer. A refusal fails the test and shows its body and the parameters."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
            return reply.read()
    except urllib.error.HTTPError as error:
        parameters = dict(parse_qsl(urlsplit(url).query))
        pytest.fail(f"{error}: {error.read().decode()}\n{parameters}", pytrace=False)


def ids_of_pages(url, parameters):
    """The ids of all pages, and the number of pages."""
    following, ids, pages = f"{url}?{urlencode({**parameters, 'limit': PAGE_ROWS})}", [], 0
    while following:
        page = json.loads(answer(following))
        ids += [feature["properties"]["id"] for feature in page["features"]]
        following = {link["rel"]: link["href"] for link in page["links"]}.get("next")
        pages += 1
    return sorted(ids), pages


def ids_of_file(url, parameters):
    given = urlencode({**parameters, "f": "csv", "properties": "id"})
    return sorted(pcsv.read_csv(io.BytesIO(answer(f"{url}?{given}")))["id"].to_pylist())


def test_items_of_random_filters_are_the_rows_of_postgis(cluster, fresh_name, session, capsys):
    asker, client = Asker(SEED), cluster.client(timeout="60s")
    schema, _ = asker.maker.world()
    schema = galileo.Schema(fresh_name("postgis"), schema.features, geohash_precision=3)
    client.create_dataset(schema)
    table = observations(asker.maker, schema)
    client.ingest(schema.name, table)
    loaded(session, table)
    counts = dict.fromkeys(("conditions", "selective", "pages", "observations"), 0)
    with cluster.gateway() as gateway:
        url = f"{gateway.url}/collections/{schema.name}/items"
        for case in range(CASES):
            parameters, sql = asker.request()
            rows = session.ask(f"SELECT id FROM world WHERE {sql} ORDER BY id")[1]
            expected = [int(row) for row in rows]
            paged, pages = ids_of_pages(url, parameters)
            about = f"case {case} of seed {SEED}: {parameters}\n{sql}"
            assert paged == expected, about
            assert ids_of_file(url, parameters) == expected, about
            counts["conditions"] += 1
            counts["selective"] += 0 < len(expected) < table.num_rows
            counts["pages"] += pages
            counts["observations"] += len(expected)
    assert counts["selective"] >= CASES // 3
    with capsys.disabled():
        print("\n" + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
