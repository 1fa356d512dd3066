"""Cells, series and tiles of a gateway against loops over observations; GDAL reads the tiles."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyogrio
import pytest
import shapely
from gateway_serving import gateway, node, site
from proving import Tokens, auth_section

import galileo
from galileo.gateway.options import GatewayOptions
from galileo.gateway.tile_cache import VERSION_AGE_MAX_S
from galileo.rpc import token_store
from galileo.rpc.access import Role

ROWS = 3_000
TIMEOUT_S = 120.0
EXTENT, BUFFER = 4096, 64
STATISTICS = "t:mean,t:min,n:sum,n:max,station:count,wet:max"
FEATURES = (
    galileo.Feature("t", unit="K"),
    galileo.Feature("n", type="int"),
    galileo.Feature("station", type="text"),
    galileo.Feature("wet", type="bool"),
)
Row = dict[str, Any]


def observations(seed: int, rows: int = ROWS) -> pd.DataFrame:
    """Clusters, points on edges of cells and tiles, poles and the antimeridian; missing values."""
    rng = np.random.default_rng(seed)
    latitude = rng.normal(40, 0.3, rows)
    longitude = rng.normal(-105, 0.3, rows)
    far = rng.random(rows) < 0.5
    latitude[far], longitude[far] = (
        rng.uniform(-90, 90, far.sum()),
        rng.uniform(-180, 180, far.sum()),
    )
    edges = rng.random(rows) < 0.2
    latitude[edges] = rng.integers(-64, 65, edges.sum()) * (90 / 64)
    longitude[edges] = rng.integers(-128, 129, edges.sum()) * (180 / 128)
    return pd.DataFrame(
        {
            "latitude": latitude,
            "longitude": longitude,
            "time": pd.Timestamp("2014-03-01T00:00Z")
            + pd.to_timedelta(rng.integers(0, 10**6, rows), "s"),
            "t": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(280, 10, rows)),
            "n": rng.integers(-1000, 1000, rows),
            "station": rng.choice(["KDEN", "KCYS", "EDDB"], rows),
            "wet": rng.random(rows) < 0.5,
        }
    )


def geohash_of(row: Row, precision: int) -> str:
    """By bisection."""
    bounds, text = {"longitude": [-180.0, 180.0], "latitude": [-90.0, 90.0]}, ""
    axis, other, bits = "longitude", "latitude", list[int]()
    for _ in range(5 * precision):
        low, high = bounds[axis]
        middle = (low + high) / 2
        bits.append(int(row[axis] >= middle))
        bounds[axis] = [middle, high] if bits[-1] else [low, middle]
        axis, other = other, axis
    for start in range(0, len(bits), 5):
        text += "0123456789bcdefghjkmnpqrstuvwxyz"[
            int("".join(map(str, bits[start : start + 5])), 2)
        ]
    return text


def box_of(text: str) -> tuple[float, float, float, float]:
    bounds, axis = [[-180.0, 180.0], [-90.0, 90.0]], 0
    for letter in text:
        code = "0123456789bcdefghjkmnpqrstuvwxyz".index(letter)
        for bit in (16, 8, 4, 2, 1):
            middle = sum(bounds[axis]) / 2
            bounds[axis][0 if code & bit else 1] = middle
            axis = 1 - axis
    return bounds[0][0], bounds[1][0], bounds[0][1], bounds[1][1]


def grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, Row]:
    """Counts and the statistics of `STATISTICS`, in a loop."""
    members: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        members[key(row)].append(row)
    groups = {}
    for name, group in members.items():
        values = [row["t"] for row in group if not math.isnan(row["t"])]
        groups[name] = {
            "observations": len(group),
            "t_mean": sum(values) / len(values) if values else None,
            "t_min": min(values) if values else None,
            "n_sum": float(sum(row["n"] for row in group)),
            "n_max": max(row["n"] for row in group),
            "station_count": len(group),
            "wet_max": any(row["wet"] for row in group),
        }
    return groups


def check(found: dict[Any, Row], expected: dict[Any, Row]) -> None:
    assert found.keys() == expected.keys()
    for name, row in expected.items():
        assert found[name].keys() == row.keys()
        for column, value in row.items():
            near = value if value is None else pytest.approx(value, rel=1e-9)
            assert found[name][column] == near, (name, column)


class Site:
    """A gateway, and what it answers."""

    def __init__(self, url: str, rows: list[Row]) -> None:
        self.url = f"{url}/collections/air"
        self.rows = rows

    async def get(self, path: str, **headers: str) -> tuple[int, Any, bytes]:
        return await get(self.url + path, **headers)

    def such(self, test: Callable[[Row], bool]) -> list[Row]:
        return [row for row in self.rows if test(row)]


async def get(url: str, **headers: str) -> tuple[int, Any, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, headers=named)

    def ask() -> tuple[int, Any, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                return reply.status, reply.headers, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    return await asyncio.to_thread(ask)


@contextlib.asynccontextmanager
async def filled(directory: Path, frame: pd.DataFrame) -> Any:
    schema = galileo.Schema("air", FEATURES, geohash_precision=4, time_bucket="6h")
    async with site(directory, {}, schema) as (url, client):
        await client.ingest("air", frame)
        yield client, Site(url, frame.to_dict("records"))


QUERIES: list[tuple[str, Callable[[Row], bool]]] = [
    ("", lambda row: True),
    ("&station=KDEN", lambda row: row["station"] == "KDEN"),
    ("&filter=t%20%3E%20285%20OR%20n%20%3C%20-500", lambda row: row["t"] > 285 or row["n"] < -500),
    (
        "&datetime=2014-03-02T00:00:00Z/2014-03-05T01:02:03Z",
        lambda row: (
            pd.Timestamp("2014-03-02T00:00Z") <= row["time"] <= pd.Timestamp("2014-03-05T01:02:03Z")
        ),
    ),
]
TILES = ["WebMercatorQuad", "WorldCRS84Quad"]


def tile_box(tiles: str, zoom: int, row: int, column: int) -> tuple[float, float, float, float]:
    n = 2**zoom
    if tiles == "WorldCRS84Quad":
        size = 180 / n
        return (
            column * size - 180,
            90 - (row + 1) * size,
            (column + 1) * size - 180,
            90 - row * size,
        )
    north, south = (
        math.degrees(math.atan(math.sinh(math.pi * (1 - 2 * y / n)))) for y in (row, row + 1)
    )
    return column * 360 / n - 180, south, (column + 1) * 360 / n - 180, north


def tile_at(tiles: str, zoom: int, row: Row) -> tuple[int, int, int]:
    """The tile of a zoom with a place."""
    n = 2**zoom
    if tiles == "WorldCRS84Quad":
        x, y = (row["longitude"] + 180) / 180 * n, (90 - row["latitude"]) / 180 * n
        return zoom, min(int(y), n - 1), min(int(x), 2 * n - 1)
    latitude = math.radians(max(-85.0, min(85.0, row["latitude"])))
    y = (1 - math.asinh(math.tan(latitude)) / math.pi) / 2 * n
    return zoom, int(y), min(int((row["longitude"] + 180) / 360 * n), n - 1)


def expected_box(cell: str, tiles: str, zoom: int, row: int, column: int) -> Any:
    """The rectangle of a cell as GDAL reads it, y up."""
    n, (west, south, east, north) = 2**zoom, box_of(cell)

    def x(longitude: float) -> float:
        return (longitude + 180) / (180 if tiles == "WorldCRS84Quad" else 360) * n - column

    def y(latitude: float) -> float:
        if tiles == "WorldCRS84Quad":
            return (90 - latitude) / 180 * n - row
        radians = math.radians(max(-89.9, min(89.9, latitude)))
        return (1 - math.asinh(math.tan(radians)) / math.pi) / 2 * n - row

    left, top, right, bottom = (
        max(-BUFFER, min(EXTENT + BUFFER, round(EXTENT * value)))
        for value in (x(west), y(north), x(east), y(south))
    )
    return shapely.box(left, EXTENT - bottom, right, EXTENT - top)


def decoded(body: bytes, path: Path) -> tuple[dict[str, Row], dict[str, Any]]:
    """Attributes and geometries of the features of a tile by cell, as GDAL reads them."""
    if not body:
        return {}, {}
    path.write_bytes(body)
    assert [str(name) for name, _ in pyogrio.list_layers(path)] == ["air"]
    meta, _, geometry, columns = pyogrio.raw.read(path, layer="air", CLIP="NO")
    frame = pd.DataFrame(dict(zip(meta["fields"], columns, strict=True))).drop(columns="mvt_id")
    names = ["cell", "observations", *(s.replace(":", "_") for s in STATISTICS.split(","))]
    for name in names:
        if name not in frame:
            frame[name] = None
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    cells = [row.pop("cell") for row in rows]
    shapes = dict(zip(cells, shapely.from_wkb(geometry), strict=True))
    assert len(set(cells)) == len(cells) <= 4096
    return dict(zip(cells, rows, strict=True)), shapes


async def test_tiles_show_the_cells_that_a_loop_counts(tmp_path: Path) -> None:
    frame, choice = observations(1), random.Random(1)
    async with filled(tmp_path / "node", frame) as (_, at):
        shown = 0
        for number in range(20):
            tiles, (text, test) = TILES[number % 2], choice.choice(QUERIES)
            zoom = choice.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 19, 24])
            z, row, column = tile_at(tiles, zoom, choice.choice(at.rows))
            west, south, east, north = tile_box(tiles, z, row, column)
            path = f"/tiles/{tiles}/{z}/{row}/{column}?statistics={STATISTICS}{text}"
            status, headers, body = await at.get(path)
            assert status == 200, body
            assert headers["Content-Type"] == "application/vnd.mapbox-vector-tile"
            assert headers["Cache-Control"] == "private, no-cache"
            found, shapes = decoded(body, tmp_path / "tile.mvt")
            if not found:
                continue
            [precision] = {len(cell) for cell in found}

            def overlaps(cell: str) -> bool:
                w, s, e, n = box_of(cell)
                return w < east and e > west and s < north and n > south  # noqa: B023

            every = grouped(at.such(test), lambda row: geohash_of(row, precision))  # noqa: B023
            check(found, {cell: group for cell, group in every.items() if overlaps(cell)})
            for cell, shape in shapes.items():
                assert shape.equals(expected_box(cell, tiles, z, row, column)), (cell, path)
            shown += len(found)
        assert shown > 250


async def test_unchanged_tile_is_not_sent_again(tmp_path: Path) -> None:
    frame = observations(3, 500)
    async with filled(tmp_path / "node", frame) as (client, at):
        west, east = "/tiles/WorldCRS84Quad/0/0/0", "/tiles/WorldCRS84Quad/0/0/1"
        status, headers, body = await at.get(west)
        etag = headers["ETag"]
        for sent in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            status, headers, empty = await at.get(west, If_None_Match=sent)
            assert (status, headers["ETag"], empty) == (304, etag, b""), sent
        assert (await at.get(west, If_None_Match='"other"'))[::2] == (200, body)
        of_east = (await at.get(east))[1]["ETag"]
        assert of_east != etag
        await client.ingest("air", frame[frame["longitude"] < 0].head(1))
        await asyncio.sleep(VERSION_AGE_MAX_S)
        status, headers, changed = await at.get(west, If_None_Match=etag)
        assert status == 200
        before, after = (
            sum(row["observations"] for row in decoded(one, tmp_path / "t.mvt")[0].values())
            for one in (body, changed)
        )
        assert after == before + 1
        assert (await at.get(east, If_None_Match=of_east))[0] == 304, "its cells are the same"


HOSTILE = [
    ("/cells", 400),
    ("/cells?precision=0", 400),
    ("/cells?precision=1&precision=2", 400),
    ("/cells?precision=2&window=1x", 400),
    ("/cells?precision=2&statistics=t:mode", 400),
    ("/cells?precision=2&statistics=t", 400),
    ("/cells?precision=2&statistics=" + ",".join(f"f{n}:mean" for n in range(500)), 400),
    ("/cells?precision=2&filter=t%20%3E", 400),
    ("/cells?precision=2&bbox=1,2,3", 400),
    ("/cells?precision=2&limit=5", 400),
    ("/cells?precision=2&f=xml", 400),
    ("/cells?precision=12&window=0.000001s", 200),
    ("/series", 400),
    ("/latest", 400),
    ("/latest?by=window:1h", 400),
    ("/latest?by=bits:7", 400),
    ("/latest?by=cell:99", 400),
    ("/latest?by=wind", 400),
    ("/latest?by=station&precision=3", 400),
    ("/series?window=-1h", 400),
    ("/series?window=1h&precision=3", 400),
    ("/summary?bins=3", 400),
    ("/summary?feature=t&bins=0", 400),
    ("/summary?feature=t&bins=nan", 400),
    ("/summary?feature=station", 400),
    ("/estimate?quantiles=2&feature=t", 400),
    ("/estimate?quantiles=0.5", 400),
    ("/explain?filter=" + "(" * 1_000, 400),
    ("/tiles/WebMercatorQuad/1/2/0", 404),
    ("/tiles/WebMercatorQuad/25/0/0", 404),
    ("/tiles/WebMercatorQuad/3/-1/0", 400),
    ("/tiles/WebMercatorQuad/3/1e0/0", 400),
    ("/tiles/WebMercatorQuad/3/1/" + "9" * 5_000, 400),
    ("/tiles/Nothing/0/0/0", 404),
    ("/tiles/Nothing", 404),
    ("/tiles/WebMercatorQuad/0/0/0?bbox=1,2,3,4", 400),
    ("/tiles/WebMercatorQuad/0/0/0?f=png", 400),
    ("/tiles/WebMercatorQuad/0/0/0?statistics=t:mode", 400),
    ("/tiles/WebMercatorQuad/0/0/0?filter=nothing%20%3E%203", 400),
]


async def test_hostile_parameters_are_refused(tmp_path: Path) -> None:
    async with filled(tmp_path / "node", observations(4, 50)) as (_, at):
        for path, expected in HOSTILE:
            status, headers, body = await at.get(path)
            assert status == expected, (path, body)
            if status != 200:
                assert headers["Content-Type"] == "application/problem+json"
                assert headers["Cache-Control"] == "no-store"
        status, _, _ = await get(
            at.url.replace("/air", "/nothing") + "/tiles/WebMercatorQuad/0/0/0"
        )
        assert status == 404


async def test_tile_documents_lead_to_tiles(tmp_path: Path) -> None:
    async with filled(tmp_path / "node", observations(5, 50)) as (_, at):
        root = at.url.removesuffix("/collections/air")
        sets = json.loads((await get(f"{root}/tileMatrixSets"))[2])["tileMatrixSets"]
        assert [one["id"] for one in sets] == TILES
        tilesets = json.loads((await at.get("/tiles"))[2])["tilesets"]
        for name, matrix_set, tileset in zip(TILES, sets, tilesets, strict=True):
            definition = json.loads((await get(matrix_set["links"][0]["href"]))[2])
            assert definition["uri"] == tileset["tileMatrixSetURI"] == matrix_set["uri"]
            first = definition["tileMatrices"][0]
            width = first["matrixWidth"] * first["tileWidth"] * first["cellSize"]
            assert width == pytest.approx(-2 * first["pointOfOrigin"][0])
            links = {one["rel"].rpartition("/")[2]: one["href"] for one in tileset["links"]}
            assert json.loads((await get(links["tiling-scheme"]))[2]) == definition
            own = json.loads((await get(links["self"]))[2])
            assert [layer["id"] for layer in own["layers"]] == ["air"]
            template = links["item"]
            for part, value in (("Matrix", 0), ("Row", 0), ("Col", 0)):
                template = template.replace(f"{{tile{part}}}", str(value))
            assert template == f"{at.url}/tiles/{name}/0/0/0"
            assert (await get(template))[0] == 200
        collection = json.loads((await at.get(""))[2])
        assert f"{at.url}/tiles" in [link["href"] for link in collection["links"]]


async def test_tiles_are_for_those_who_may_read_the_dataset(tmp_path: Path) -> None:
    """Also if they are in the cache, because another caller has asked for them."""
    tokens = Tokens.of_all_roles(tmp_path / "principals.toml")
    tokens.add("ann", Role.READER, datasets=("rain",))
    auth = auth_section(tokens, tokens.tokens["node"])
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(node(tmp_path / "node", {"auth": auth}))
        writer = galileo.AsyncClient(address, timeout="60s", proof=tokens.proof("writer"))
        client = await stack.enter_async_context(writer)
        for name in ("rain", "wind"):
            await client.create_dataset(galileo.Schema(name, FEATURES))
            await client.ingest(name, observations(6, 20))
        options = GatewayOptions(nodes=(address,), port=0, patience_s=60.0)
        url = await stack.enter_async_context(gateway(options))
        ann, reader = (f"Bearer {tokens.tokens[name]}" for name in ("ann", "reader"))
        rain, wind = (
            f"{url}/collections/{name}/tiles/WorldCRS84Quad/0/0/0" for name in ("rain", "wind")
        )
        etags = [(await get(one, Authorization=reader))[1]["ETag"] for one in (rain, wind)]
        status, headers, body = await get(rain, Authorization=ann)
        assert (status, headers["ETag"]) == (200, etags[0])
        assert "Authorization" in headers["Vary"]
        for path in ("tiles/WorldCRS84Quad/0/0/0", "cells?precision=2", "summary", "explain"):
            for sent in ({}, {"If_None_Match": etags[1]}):
                of_wind = f"{url}/collections/wind/{path}"
                status, headers, body = await get(of_wind, Authorization=ann, **sent)
                assert (status, json.loads(body)["kind"]) == (403, "forbidden")
                assert (await get(of_wind, **sent))[0] == 401
        token_store.remove(tokens.path, "ann")
        await asyncio.sleep(VERSION_AGE_MAX_S)
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        while (await get(rain, Authorization=ann, If_None_Match=etags[0]))[0] != 401:
            assert asyncio.get_running_loop().time() < deadline, "a token that is gone still reads"
            await asyncio.sleep(0.1)
