"""Queries by place, and coordinate reference systems, as unmodified clients use them."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pandas as pd
import pyogrio
import pytest
import shapely

import galileo
from galileo.gateway.edr_requests import LINE_VERTICES_MAX, POSITION_M, QUERIES
from galileo.geo.circles import EARTH_RADIUS_M
from galileo.local_services import LocalGateway

ROWS = 4_000
PLACES = 900
CASES = 12
TIMEOUT_S = 120.0
COVERAGE_JSON = "application/prs.coverage+json"
EPSG = "http://www.opengis.net/def/crs/EPSG/0/"
SCHEMA = (
    galileo.Feature("temperature", unit="K"),
    galileo.Feature("station", type="text"),
    galileo.Feature("count", type="int", indexed=False),
)


@dataclass(frozen=True)
class Served:
    """A dataset with stations at fixed places, all of it, and a gateway."""

    gateway: str
    client: galileo.Client
    dataset: str
    rows: pd.DataFrame

    @property
    def url(self) -> str:
        return f"{self.gateway}/collections/{self.dataset}"

    def get(self, path: str, **parameters: object) -> tuple[int, Any, bytes]:
        """Status, headers and body."""
        names = {name.replace("_", "-"): value for name, value in parameters.items()}
        url = f"{self.url}/{path}?{urlencode(names)}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
                return reply.status, reply.headers, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def coverages(self, path: str, **parameters: object) -> list[dict[str, Any]]:
        status, headers, body = self.get(path, **parameters)
        assert (status, headers["content-type"]) == (200, COVERAGE_JSON), body[:500]
        document = json.loads(body)
        return document["coverages"] if document["type"] == "CoverageCollection" else [document]

    def counts(self, path: str, **parameters: object) -> list[int]:
        return counts_of(self.coverages(path, **parameters))


def counts_of(coverages: list[dict[str, Any]]) -> list[int]:
    return sorted(
        value for coverage in coverages for value in coverage["ranges"]["count"]["values"]
    )


def observations() -> pd.DataFrame:
    """Of stations all over the earth, many of them near the antimeridian and a pole."""
    random = np.random.default_rng(11)
    latitude = random.uniform(-80, 80, PLACES)
    longitude = random.uniform(-180, 180, PLACES)
    latitude[:100], longitude[:50] = random.uniform(85, 90, 100), 180 - random.uniform(0, 3, 50)
    longitude[100:200] = (random.uniform(177, 183, 100) + 180) % 360 - 180
    latitude[100:200] = random.uniform(-10, 10, 100)
    at = random.integers(0, PLACES, ROWS)
    hours = pd.to_timedelta(random.integers(0, 240, ROWS), "h")
    return pd.DataFrame(
        {
            "latitude": latitude[at],
            "longitude": longitude[at],
            "time": pd.Timestamp("2014-03-01T00:00Z") + hours,
            "temperature": random.normal(280, 10, ROWS),
            "station": [f'{"KA/" if n % 2 else "é "}"{n}"' for n in at],
            "count": np.arange(ROWS),
        }
    )


@pytest.fixture(scope="module")
def served(
    cluster: galileo.LocalCluster, gateway: LocalGateway, fresh_name: Callable[[str], str]
) -> Served:
    client, name, rows = cluster.client(), fresh_name("edr"), observations()
    client.create_dataset(galileo.Schema(name, SCHEMA, geohash_precision=3))
    client.ingest(name, rows)
    return Served(gateway.url, client, name, rows)


def distances_m(rows: Any, longitude: Any, latitude: Any) -> np.ndarray:
    """By the law of haversines, for comparison."""
    east, north = np.radians(rows["longitude"] - longitude), np.radians(rows["latitude"])
    south = np.radians(latitude)
    half = np.sin((north - south) / 2) ** 2 + np.cos(north) * np.cos(south) * np.sin(east / 2) ** 2
    return np.asarray(2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(half)))


def star(random: np.random.Generator) -> shapely.Polygon:
    """A polygon with dents, perhaps across the antimeridian."""
    angles = np.sort(random.uniform(0, 2 * np.pi, 9))
    centre = random.uniform((-200, -60), (200, 60))
    reach = random.uniform(3, 28, 9)
    x, y = centre[0] + reach * np.cos(angles), centre[1] + reach * np.sin(angles)
    return shapely.Polygon(np.stack([x, np.clip(y, -90, 90)], axis=1))


@pytest.mark.slow
def test_areas_have_the_observations_that_shapely_finds(served: Served) -> None:
    random, found = np.random.default_rng(1), 0
    for _ in range(CASES):
        shape = star(random)
        inside = np.zeros(ROWS, dtype=bool)
        for turn in (-360, 0, 360):
            inside |= shapely.intersects_xy(
                shape, served.rows["longitude"] + turn, served.rows["latitude"]
            )
        expected = sorted(served.rows["count"][inside])
        wkt = shapely.to_wkt(shape, rounding_precision=-1)
        assert served.counts("area", coords=wkt, parameter_name="count") == expected, wkt
        _, _, body = served.get("area", coords=wkt, parameter_name="count", f="csv")
        assert sorted(pd.read_csv(io.BytesIO(body))["count"]) == expected, wkt
        found += len(expected)
    assert found > ROWS / 10


def test_cubes_and_radii_have_the_observations_that_numpy_finds(served: Served) -> None:
    random, rows, found = np.random.default_rng(2), served.rows, 0
    for _ in range(CASES):
        west, east = random.uniform(-180, 180, 2)
        south, north = np.sort(random.uniform(-90, 90, 2))
        x, y = rows["longitude"], rows["latitude"]
        inside = (x >= west) & (x <= east) if west <= east else (x >= west) | (x <= east)
        inside &= (y >= south) & (y <= north)
        expected = sorted(rows["count"][inside])
        bbox = f"{west!r},{south!r},{east!r},{north!r}".replace("np.float64(", "").replace(")", "")
        assert served.counts("cube", bbox=bbox, parameter_name="count") == expected, bbox
        radius_km = random.uniform(50, 3_000)
        point = f"POINT({east} {north})"
        near = distances_m(rows, float(east), float(north)) <= radius_km * 1000
        given = {"coords": point, "within": radius_km, "within_units": "km"}
        assert served.counts("radius", **given) == sorted(rows["count"][near]), given
        found += len(expected) + near.sum()
    assert found > ROWS


def test_corridors_have_the_observations_near_to_points_of_their_lines(served: Served) -> None:
    """Along meridians and the equator, on which degrees are even."""
    rows, along = served.rows, np.linspace(0, 1, 200)
    lines = [((-100.0, -40.0), (-100.0, 60.0)), ((150.0, 0.0), (210.0, 0.0))]
    lines += [((30.0, 70.0), (30.0, 90.0)), ((-179.0, -50.0), (-179.0, 50.0))]
    for start, end in lines:
        points = np.array(start) + np.outer(along, np.subtract(end, start))
        places = rows[["longitude", "latitude"]].to_dict("series")
        at = {name: column.to_numpy()[:, None] for name, column in places.items()}
        distance = distances_m(at, *points.T).min(axis=1)
        for width_km in (400, 2_000):
            near = distance <= width_km * 500
            doubtful = np.abs(distance - width_km * 500) < 5_000
            wkt = shapely.LineString([start, end]).wkt
            given = {"coords": wkt, "corridor_width": width_km, "width_units": "km"}
            answered = np.isin(rows["count"], served.counts("corridor", **given))
            assert (answered == near)[~doubtful].all(), given
            assert answered.sum() > 5
    place = rows.iloc[0]
    wkt = f"LINESTRING({place.longitude} {place.latitude - 1}, {place.longitude} {place.latitude})"
    counts = served.counts("trajectory", coords=wkt)
    assert set(rows["count"][rows["station"] == place.station]) <= set(counts)
    assert (distances_m(rows, place.longitude, place.latitude)[counts] < 130_000).all()


def test_position_has_the_whole_series_of_the_nearest_place(served: Served) -> None:
    random, rows = np.random.default_rng(4), served.rows
    answered = 0
    for number in random.integers(0, ROWS, CASES).tolist():
        place = rows.iloc[number]
        north = np.clip(place.latitude + random.uniform(-0.6, 0.6), -90, 90)
        point = (float(place.longitude), float(north))
        distance = distances_m(rows, *point)
        nearest = rows[distance == distance.min()]
        given = {"coords": f"POINT({point[0]} {point[1]})", "parameter_name": "count,temperature"}
        if distance.min() > POSITION_M:
            assert served.get("position", **given)[0] == 404
            continue
        coverages = served.coverages("position", **given)
        assert counts_of(coverages) == sorted(nearest["count"])
        for coverage in coverages:
            axes = coverage["domain"]["axes"]
            assert axes["x"]["values"] == [nearest["longitude"].iloc[0]]
            times = pd.to_datetime(axes["t"]["values"])
            assert times.is_monotonic_increasing
            of_count = rows.loc[coverage["ranges"]["count"]["values"]]
            assert list(times) == list(of_count["time"])
            values = coverage["ranges"]["temperature"]["values"]
            assert values == list(of_count["temperature"])
        answered += 1
    assert answered > CASES / 3


def test_position_of_several_points_and_an_interval(served: Served) -> None:
    first, second = (served.rows.iloc[number] for number in (0, 1))
    points = ", ".join(f"({one.longitude} {one.latitude})" for one in (first, second))
    interval = "2014-03-03T00:00:00Z/2014-03-06T00:00:00Z"
    rows = served.rows[served.rows["station"].isin([first.station, second.station])]
    start, end = (pd.Timestamp(at) for at in interval.split("/"))
    expected = rows["count"][(rows["time"] >= start) & (rows["time"] <= end)]
    given = {"coords": f"MULTIPOINT({points})", "datetime": interval}
    assert set(expected) <= set(served.counts("position", **given))
    assert len(served.counts("position", coords=f"MULTIPOINT({points})")) >= len(rows)


def test_locations_are_stations_with_their_observations(served: Served) -> None:
    status, _, body = served.get("locations")
    document = json.loads(body)
    assert status == 200
    of_station = served.rows.groupby("station")
    assert [one["id"] for one in document["features"]] == sorted(of_station.groups)
    first = of_station[["longitude", "latitude"]].first()
    for feature in document["features"]:
        box = shapely.geometry.shape(feature["geometry"])
        assert shapely.intersects_xy(box, *first.loc[feature["id"]])
        assert {"datetime", "parameter-name", "label", "edrqueryendpoint"} <= set(
            feature["properties"]
        )
    for feature in document["features"][:1] + document["features"][-1:]:
        url = feature["properties"]["edrqueryendpoint"]
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
            coverages = json.loads(reply.read())["coverages"]
        rows = of_station.get_group(feature["id"])
        assert counts_of(coverages) == sorted(rows["count"])
    assert served.get("locations/nowhere")[0] == 404


@pytest.mark.slow
def test_locations_of_a_dataset_without_stations_are_cells(
    served: Served, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("cells")
    features = [galileo.Feature("count", type="int"), galileo.Feature("id", type="int")]
    served.client.create_dataset(galileo.Schema(name, features, geohash_precision=3))
    rows = served.rows[:40][["latitude", "longitude", "time", "count"]]
    rows = rows.assign(id=rows["count"])
    served.client.ingest(name, rows)
    other = Served(served.gateway, served.client, name, rows)
    items = json.loads(other.get("items")[2])["features"]
    assert sorted(item["properties"]["id"] for item in items) == list(range(40))
    assert len({item["id"] for item in items}) == 40
    listed = json.loads(other.get("locations")[2])["features"]
    assert all(len(one["id"]) == 3 for one in listed)
    found = [count for one in listed for count in other.counts(f"locations/{one['id']}")]
    assert sorted(found) == list(range(40))
    assert set(other.counts(f"locations/{listed[0]['id'][:1]}")) <= set(found)
    assert other.get("locations/%25")[0] == other.get("locations/ab")[0] == 404


def test_formats_of_an_answer_have_the_same_observations(served: Served) -> None:
    given = {"coords": "POLYGON((-60 -60,60 -60,60 60,-60 60,-60 -60))"}
    expected = served.counts("area", **given)
    url = f"{served.url}/area?{urlencode(given)}"
    assert sorted(pd.read_csv(f"{url}&f=CSV")["count"]) == expected
    assert sorted(pd.read_parquet(f"{url}&f=parquet")["count"]) == expected
    _, headers, body = served.get("area", **given, f="GeoJSON")
    assert headers["content-type"] == "application/geo+json"
    features = json.loads(body)["features"]
    assert sorted(one["properties"]["count"] for one in features) == expected
    first = features[0]["properties"]
    assert first["parameter-name"] == [feature.name for feature in SCHEMA]
    assert first["label"] == first["station"]
    frame = pyogrio.read_dataframe(body, use_arrow=False)
    assert sorted(frame["count"]) == expected


def test_coordinates_are_in_the_system_that_crs_names(served: Served) -> None:
    place = served.rows[served.rows["latitude"].abs() < 60].iloc[0]
    x, y = mercator(np.array([[place.longitude, place.latitude]]))[0].tolist()
    points = {"EPSG:3857": (x, y), "EPSG:4326": (place.latitude, place.longitude)}
    expected = served.counts("position", coords=f"POINT({place.longitude} {place.latitude})")
    for crs, point in points.items():
        given = {"coords": f"POINT({point[0]} {point[1]})", "crs": crs}
        [coverage] = served.coverages("position", **given)
        assert counts_of([coverage]) == expected
        axes = coverage["domain"]["axes"]
        order = ("y", "x") if crs == "EPSG:4326" else ("x", "y")
        assert coverage["domain"]["referencing"][0]["coordinates"] == [*order]
        assert np.allclose([axes[name]["values"][0] for name in order], point)
        _, headers, body = served.get("items", filter=f"station = '{place.station}'", crs=crs)
        assert headers["content-crs"] == f"<{EPSG}{crs[5:]}>"
        for feature in json.loads(body)["features"]:
            assert np.allclose(feature["geometry"]["coordinates"], point)
        status, headers, body = served.get(f"items/{feature['id']}", crs=crs)
        assert (status, headers["content-crs"]) == (200, f"<{EPSG}{crs[5:]}>")
        assert np.allclose(json.loads(body)["geometry"]["coordinates"], point)


@pytest.mark.parametrize("options", [{}, {"CRS": "EPSG:3857"}])
@pytest.mark.slow
def test_gdal_reads_a_box_over_several_pages(served: Served, options: dict[str, str]) -> None:
    """Without the option, too, it names the systems of the box and of the answer."""
    corners, rows = np.array([[-150.0, -45.0], [150.0, 70.0]]), served.rows
    inside = rows["longitude"].between(*corners[:, 0])
    inside &= rows["latitude"].between(*corners[:, 1])
    bounds = mercator(corners) if options else corners
    meta, _, geometry, columns = pyogrio.raw.read(
        f"OAPIF:{served.gateway}",
        layer=served.dataset,
        bbox=tuple(bounds.ravel().tolist()),
        PAGE_SIZE="500",
        **options,
    )
    assert (meta["crs"] == "EPSG:3857") == bool(options)
    counts = dict(zip(meta["fields"], columns, strict=True))["count"]
    assert sorted(counts) == sorted(rows["count"][inside])
    assert len(counts) > 1_000
    points = rows.loc[counts][["longitude", "latitude"]].to_numpy()
    expected = mercator(points) if options else points
    assert np.allclose(shapely.get_coordinates(shapely.from_wkb(geometry)), expected)


def mercator(degrees: np.ndarray) -> np.ndarray:
    east, north = np.radians(degrees).T
    return np.stack([east, np.log(np.tan(np.pi / 4 + north / 2))], axis=1) * 6_378_137


NO_OWSLIB = "needs OWSLib, of the extra dev"
HOSTILE = {
    "coords": ["", "POINT", "POINT(1e999 0)", "POINT(0 91)", "POLYGON((0 0,1 1,1 0,0 1,0 0))", "%"],
    "bbox": ["", "1,2", "a,b,c,d", "nan,0,1,1", "0,1,0,-1", "-1e308,0,1e308,1"],
    "crs": ["", "EPSG:0", "\x00"],
    "f": ["", "xml"],
    "datetime": ["", "x", "/x", "9999-99-99"],
    "parameter_name": ["", "nothing", ","],
    "within": ["", "-1", "nan", "1e999"],
    "within_units": ["", "parsec"],
    "corridor_width": ["0", "inf", "x"],
    "nothing": ["1"],
}
SOUND: dict[str, dict[str, object]] = {
    "position": {"coords": "POINT(0 0)"},
    "area": {"coords": "POLYGON((0 0,1 0,1 1,0 0))"},
    "cube": {"bbox": "0,0,1,1"},
    "radius": {"coords": "POINT(0 0)", "within": 1, "within_units": "km"},
    "trajectory": {"coords": "LINESTRING(0 0,1 1)"},
    "corridor": {"coords": "LINESTRING(0 0,1 1)", "corridor_width": 1, "width_units": "km"},
    "locations": {},
    "items": {},
}


@pytest.mark.parametrize("path", SOUND)
def test_wrong_parameters_are_refused(served: Served, path: str) -> None:
    sound = SOUND[path]
    assert served.get(path, **sound)[0] in (200, 404)
    for name, values in HOSTILE.items():
        for value in values:
            status, headers, body = served.get(path, **{**sound, name: value})
            assert status == 400, (name, value, body)
            assert headers["content-type"] == "application/problem+json"


def test_large_requests_and_answers_are_refused_or_answered(served: Served) -> None:
    line = ",".join(f"{n / 100} {n % 7}" for n in range(LINE_VERTICES_MAX))
    assert served.get("trajectory", coords=f"LINESTRING({line})")[0] == 200
    assert served.get("trajectory", coords=f"LINESTRING({line},1 1)")[0] == 400
    wide = {"coords": "LINESTRING(-90 0,0 0,90 0)", "corridor_width": 1e9, "width_units": "km"}
    assert served.counts("corridor", **wide) == list(range(ROWS))


@pytest.mark.slow
def test_owslib_reads_the_dataset(served: Served) -> None:
    edr = pytest.importorskip("owslib.ogcapi.edr", reason=NO_OWSLIB)
    api = edr.EnvironmentalDataRetrieval(served.gateway, timeout=TIMEOUT_S)
    assert any("ogcapi-edr-1/1.1" in one for one in api.conformance()["conformsTo"])
    assert served.dataset in api.data()
    described = api.collection(served.dataset)
    assert set(described["data_queries"]) == {*QUERIES, "locations", "items"}
    place = served.rows.iloc[0]
    point = f"POINT({place.longitude} {place.latitude})"
    coverage = api.query_data(
        served.dataset, "position", coords=point, parameter_names=["count", "temperature"]
    )
    assert set(coverage["ranges"]) == {"count", "temperature"}
    box = api.query_data(served.dataset, "cube", bbox=[-20, -20, 20, 20])
    assert counts_of(box["coverages"]) == served.counts("cube", bbox="-20,-20,20,20")


def test_owslib_reads_features(served: Served) -> None:
    features = pytest.importorskip("owslib.ogcapi.features", reason=NO_OWSLIB)
    api = features.Features(served.gateway, timeout=TIMEOUT_S)
    assert served.dataset in api.feature_collections()
    items = api.collection_items(served.dataset, bbox=[-20, -20, 20, 20], limit=10_000)
    counts = sorted(feature["properties"]["count"] for feature in items["features"])
    assert counts == served.counts("cube", bbox="-20,-20,20,20")
    name = quote(items["features"][0]["id"])
    assert api.collection_item(served.dataset, name)["id"] == items["features"][0]["id"]
    assert "station" in api.collection_queryables(served.dataset)["properties"]
