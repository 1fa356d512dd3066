"""Geometries in tables: from objects and files into a cluster and out again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import shapely
from click.testing import CliRunner, Result
from expected_errors import raises

import galileo
from galileo.cli.main import main
from galileo.client.geometry_objects import with_wkb
from galileo.errors import InputError, InvalidObservations, MessageTooLarge
from galileo.geo.regions import VERTICES_MAX

COLUMNS = {"id": "text", "place": "geometry", "beds": "int", "area": "geometry"}
PLACES = [shapely.Point(-105.25, 40.1), shapely.box(-110, 35, -100, 42), None]
PLACES_AT_SEA = [shapely.Point(3, 4), None, shapely.box(170, -10, 190, 10)]
IDS = ["a", "b", "c"]
BOXES = [[-110, 35, -100, 42], None, [170, -10, -170, 10]]
BOX_SHAPES = [shapely.box(-110, 35, -100, 42), None, shapely.box(170, -10, 190, 10)]


@pytest.fixture
def client(cluster: galileo.LocalCluster) -> Iterator[galileo.Client]:
    with cluster.client() as made:
        yield made


@pytest.fixture
def name(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    """An empty table with two columns of geometries."""
    name = fresh_name("shelters")
    client.create_table(galileo.Table(name, COLUMNS, key="id"))
    return name


def run(cluster: galileo.LocalCluster, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--node", cluster.addresses[0]])


def places_of(client: galileo.Client, name: str, column: str = "place") -> list[Any]:
    """The shapes of a column, by id."""
    rows = client.table(name).rows.sort_by("id")
    return shapely.from_wkb(rows.column(column).to_pylist()).tolist()


def frame(crs: Any = 4326) -> Any:
    data = {"id": IDS, "area": geopandas.GeoSeries(PLACES_AT_SEA, crs=crs)}
    return geopandas.GeoDataFrame(data, geometry=PLACES, crs=crs).rename_geometry("place")


def geojson(shapes: list[Any]) -> list[Any]:
    return [None if one is None else shapely.geometry.mapping(one) for one in shapes]


def as_polars(data: dict[str, Any]) -> Any:
    return pytest.importorskip("polars").DataFrame(data)


WKB = {"id": IDS, "place": shapely.to_wkb(PLACES), "area": shapely.to_wkb(PLACES_AT_SEA)}
WKT = {
    "id": IDS,
    "place": [None if one is None else one.wkt for one in PLACES],
    "area": [None if one is None else one.wkt for one in PLACES_AT_SEA],
}
SOURCES: dict[str, Callable[[], Any]] = {
    "GeoDataFrame": frame,
    "GeoDataFrame in metres": lambda: frame().to_crs(3857),
    "pandas of a GeoDataFrame": lambda: pd.DataFrame(frame()),
    "pandas of objects": lambda: pd.DataFrame({"id": IDS, "place": PLACES, "area": PLACES_AT_SEA}),
    "pandas of WKT": lambda: pd.DataFrame(WKT),
    "pandas of WKB": lambda: pd.DataFrame(WKB),
    "dict of objects": lambda: {"id": IDS, "place": PLACES, "area": np.array(PLACES_AT_SEA)},
    "dict of a GeoSeries": lambda: {"id": IDS, "place": frame().place, "area": PLACES_AT_SEA},
    "dict of WKT": lambda: WKT,
    "dict of WKB": lambda: WKB,
    "dict of GeoJSON": lambda: {
        "id": IDS,
        "place": geojson(PLACES),
        "area": [float("nan") if one is None else one for one in geojson(PLACES_AT_SEA)],
    },
    "dict of many kinds": lambda: {
        "id": IDS,
        "place": [PLACES[0], BOXES[0], pd.NA],
        "area": [shapely.to_geojson(PLACES_AT_SEA[0]), None, geojson(PLACES_AT_SEA)[2]],
    },
    "Arrow of WKB": lambda: pa.table(WKB),
    "Arrow of a GeoDataFrame": lambda: pa.table(frame().to_arrow(index=False)),
    "a stream of a GeoDataFrame": lambda: frame().to_arrow(index=False),
    "polars of WKT": lambda: as_polars(WKT),
    "polars of WKB": lambda: as_polars(WKB | {name: list(WKB[name]) for name in ("place", "area")}),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_geometries_come_in_every_form(
    client: galileo.Client, name: str, source: Callable[[], Any]
) -> None:
    assert client.upsert(name, source()).rows == 3
    for column, expected in (("place", PLACES), ("area", PLACES_AT_SEA)):
        for stored, shape in zip(places_of(client, name, column), expected, strict=True):
            assert (stored is None) == (shape is None)
            assert shape is None or stored.equals_exact(shape, 1e-8), column


@pytest.mark.parametrize(
    "boxes", [BOXES, [box and tuple(box) for box in BOXES]], ids=["lists", "tuples"]
)
def test_boxes_are_geometries(client: galileo.Client, name: str, boxes: Any) -> None:
    listed = pa.array(BOXES, pa.list_(pa.float64(), 4))
    for rows in (
        {"id": IDS, "place": boxes},
        pd.DataFrame({"id": IDS, "place": boxes}),
        pa.table({"id": IDS, "place": listed}),
    ):
        client.delete(name, IDS)
        client.upsert(name, rows)
        for stored, shape in zip(places_of(client, name), BOX_SHAPES, strict=True):
            assert (stored is None) == (shape is None)
            assert shape is None or stored.equals(shape)
    client.upsert(name, {"id": IDS[:2], "place": np.array([BOXES[0], BOXES[2]])})
    assert places_of(client, name)[1].equals(BOX_SHAPES[2])


def test_one_geometry_is_that_of_all_rows(client: galileo.Client, name: str) -> None:
    for place in (PLACES[0], PLACES[0].wkb, PLACES[0].wkt, geojson(PLACES)[0]):
        client.upsert(name, {"id": IDS, "place": place, "area": None})
        assert places_of(client, name) == [PLACES[0]] * 3


def test_rows_are_drawn_and_marked_as_geometries(client: galileo.Client, name: str) -> None:
    before = client.upsert(name, {"id": ["z"], "place": PLACES[0]}).reached
    client.upsert(name, frame())
    answer = client.table(name, keys=IDS)
    for drawn in (
        answer.to_geopandas(),
        galileo.to_geopandas(answer.rows),
        geopandas.GeoDataFrame.from_arrow(answer.rows),
    ):
        assert drawn.active_geometry_name == "place"
        assert drawn.crs == "OGC:CRS84"
        by_id = drawn.set_index("id").loc[IDS]
        assert by_id["place"].tolist() == PLACES
        assert by_id["area"].tolist() == PLACES_AT_SEA
        assert by_id["area"].crs == "OGC:CRS84"
    client.delete(name, ["a"])
    changed = client.changes(name, before).to_geopandas().set_index("id")
    assert bool(changed["deleted"]["a"])
    assert changed["place"]["a"] is None
    assert changed["place"]["b"] == PLACES[1]
    client.upsert(name, answer.rows.drop_columns(["beds"]))
    assert places_of(client, name)[:3] == PLACES


def test_a_table_without_geometries_is_not_drawn(
    client: galileo.Client, fresh_name: Callable[[str], str]
) -> None:
    plain = fresh_name("plain")
    client.create_table(galileo.Table(plain, {"id": "text"}, key="id"))
    with pytest.raises(InputError, match="a column of geometries"):
        client.table(plain).to_geopandas()
    with raises(InvalidObservations, unknown_columns=["area", "place"]):
        client.upsert(plain, frame())


def test_wrong_geometries_are_refused_with_their_row(client: galileo.Client, name: str) -> None:
    crossed = shapely.Polygon([(0, 0), (1, 1), (1, 0), (0, 1)])
    for places, details in (
        ([PLACES[0], None, crossed], {"expected": "valid_geometry", "row": 2}),
        ([PLACES[0], None, shapely.Point(1, 91)], {"expected": "degrees", "row": 2}),
        ([PLACES[0], "home", None], {"expected": "region", "row": 1}),
        ([PLACES[0], 7, None], {"expected": "region", "row": 1}),
        ([PLACES[0], {"type": "Point"}, None], {"expected": "region", "row": 1}),
        (
            [{"type": "Point", "coordinates": [1, 91]}, None, None],
            {"expected": "degrees", "row": 0},
        ),
        (frame(None).place, {"expected": "crs"}),
        ([1, 2, 3], {"expected": "column_type"}),
    ):
        with raises(InvalidObservations, column="place", **details):
            client.upsert(name, {"id": IDS, "place": places})
    assert len(client.table(name)) == 0


@pytest.mark.slow
def test_rows_of_many_large_geometries_are_sent_in_several_batches(
    client: galileo.Client, name: str, fresh_name: Callable[[str], str]
) -> None:
    angles = np.linspace(0, 2 * np.pi, VERTICES_MAX)[:-1]
    huge = shapely.Polygon(np.column_stack([np.cos(angles), np.sin(angles)]))
    ids = [f"k{number}" for number in range(40)]
    receipt = client.upsert(name, {"id": ids, "place": huge})
    assert receipt.batches > 1
    assert places_of(client, name) == [huge] * len(ids)
    wide = fresh_name("wide")
    many = {f"g{number}": "geometry" for number in range(45)}
    client.create_table(galileo.Table(wide, {"id": "text"} | many, key="id"))
    fits = {"id": ["a"]} | dict.fromkeys(list(many)[:39], huge)
    client.upsert(wide, fits)
    [row] = client.table(wide).rows.to_pylist()
    assert shapely.from_wkb(row["g38"]) == huge
    with raises(MessageTooLarge):
        client.upsert(wide, {"id": ["b"]} | dict.fromkeys(many, huge))
    assert len(client.table(wide)) == 1


def test_rows_that_are_no_frame_and_no_dict_stay_as_they_are() -> None:
    table = pa.table(WKB)
    assert with_wkb(table, ["place"]) is table
    twice = pd.DataFrame([["a", "b"]], columns=["place", "place"])
    assert with_wkb(twice, ["place"]) is twice


# --- the command line --------------------------------------------------------------------------


@pytest.mark.slow
def test_commands_show_geometries_and_write_files_that_are_read_again(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    fresh_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    name, source = fresh_name("shelters"), tmp_path / "shelters.csv"
    columns = [word for pair in COLUMNS.items() for word in ("--column", ":".join(pair))]
    done = run(cluster, "table", "create", name, *columns, "--key", "id")
    assert done.exit_code == 0, done.output
    digits = shapely.Point(-105.123456789012345, 0.0123456789012345)
    rows = [f'a,"{digits.wkt}",5,', f'b,"{PLACES[1].wkt}",2,"{PLACES_AT_SEA[2].wkt}"', "c,,,"]
    source.write_text("\n".join(["id,place,beds,area", *rows]))
    digits = shapely.from_wkt(digits.wkt)
    assert run(cluster, "table", "upsert", name, str(source)).exit_code == 0
    assert places_of(client, name) == [digits, PLACES[1], None]
    expected = client.table(name).rows.sort_by("id")

    shown = run(cluster, "table", "show", name)
    assert "POINT (-105.123457 0.012346)" in shown.output
    assert "POLYGON ((-100 35" in shown.output
    answer = json.loads(run(cluster, "table", "show", name, "--json").output)
    by_id = {row["id"]: row for row in answer["rows"]}
    assert by_id["a"]["place"] == {"type": "Point", "coordinates": [digits.x, digits.y]}
    assert by_id["b"]["area"]["type"] == "Polygon"
    assert by_id["c"]["place"] is None

    for suffix in ("csv", "ndjson", "parquet", "arrow", "geoparquet"):
        path = tmp_path / f"out.{suffix}"
        assert run(cluster, "table", "show", name, "-o", str(path)).exit_code == 0
        if suffix == "geoparquet":
            path = path.rename(tmp_path / "out.geo.parquet")
        client.delete(name, IDS)
        done = run(cluster, "table", "upsert", name, str(path))
        assert done.exit_code == 0, done.output
        assert client.table(name).rows.sort_by("id").equals(expected), suffix
    assert b"MULTI" not in (tmp_path / "out.csv").read_bytes()
    assert pa.csv.read_csv(tmp_path / "out.csv").column("place").type == pa.string()

    for file in ("out.parquet", "out.geo.parquet"):
        frame = geopandas.read_parquet(tmp_path / file).set_index("id").loc[IDS]
        assert (frame.active_geometry_name, frame.crs) == ("place", "OGC:CRS84")
        assert frame["place"].tolist() == [digits, PLACES[1], None]
        geo = json.loads(pq.read_metadata(tmp_path / file).metadata[b"geo"])
        assert geo["columns"]["place"]["geometry_types"] == ["Point", "Polygon"]
        assert geo["columns"]["place"]["bbox"] == [-110, digits.y, -100, 42]
        assert geo["columns"]["area"]["bbox"] == [170, -10, 190, 10]

    drawn = tmp_path / "out.geojson"
    assert run(cluster, "table", "show", name, "-o", str(drawn)).exit_code == 0
    features = {one["properties"]["id"]: one for one in json.loads(drawn.read_text())["features"]}
    assert features["a"]["geometry"]["coordinates"] == [digits.x, digits.y]
    assert features["a"]["properties"] == {"id": "a", "beds": 5, "area": None}
    assert features["b"]["properties"]["area"]["type"] == "Polygon"
    assert features["c"]["geometry"] is None

    piped = run(cluster, "table", "show", name, "-o", "-", "--key", "a")
    assert json.loads(piped.stdout.splitlines()[0])["place"]["type"] == "Point"
    after = run(cluster, "table", "changes", name, "--after", answer["cursor"], "--json")
    assert {row["id"] for row in json.loads(after.output)["rows"]} == set(IDS)


def test_a_long_geometry_is_shortened_on_the_screen(
    cluster: galileo.LocalCluster, client: galileo.Client, name: str
) -> None:
    line = shapely.LineString([(number / 7, number / 9) for number in range(500)])
    client.upsert(name, {"id": ["a"], "place": [line]})
    shown = run(cluster, "table", "show", name).output
    assert "LINESTRING (0 0, 0.142857 0.111111" in shown
    assert "…" in shown
    assert len(shown) < 1_000


def test_commands_refuse_files_in_other_coordinates(
    cluster: galileo.LocalCluster, name: str, tmp_path: Path
) -> None:
    frame().to_crs(3857).to_parquet(tmp_path / "metres.parquet")
    done = run(cluster, "table", "upsert", name, str(tmp_path / "metres.parquet"))
    assert done.exit_code == 2
    assert "Pseudo-Mercator" in done.output
    frame().to_parquet(tmp_path / "degrees.parquet")
    assert run(cluster, "table", "upsert", name, str(tmp_path / "degrees.parquet")).exit_code == 0
    frame().to_feather(tmp_path / "degrees.arrow", compression="uncompressed")
    assert run(cluster, "table", "upsert", name, str(tmp_path / "degrees.arrow")).exit_code == 0
