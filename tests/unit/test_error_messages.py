"""What people read when something is wrong: one message for each kind of mistake.

Other tests compare the class and details of errors. Messages about queries are in
`tests/unit/query/test_query_messages.py`, those of a client with a cluster in
`tests/e2e/client/test_client_messages.py`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import galileo
from galileo import config, rdf, samplers
from galileo.dht.topology import NodeInfo
from galileo.errors import GalileoError
from galileo.formats import Mapping, open_source
from galileo.geo import geohash, regions
from galileo.model.observations import normalise
from galileo.model.times import micros, seconds
from galileo.private_ca import Subject, issue
from galileo.sampler_package import SamplerArchive, sampler_archive
from galileo.storage.backup import restore
from galileo.storage.verify import verify
from galileo.wire import token
from galileo.wire.channel import open_blocking_channel
from galileo.wire.tls_credentials import TlsFiles

SCHEMA = galileo.Schema("nam", [galileo.Feature("temperature", "K")])
TIME = dt.datetime(2012, 3, 1, tzinfo=dt.UTC)
CLUSTER = {"groups": [{"name": "g", "nodes": [{"name": "a", "address": "127.0.0.1:1"}]}]}
NODE = {"node": {"name": "a", "directory": "/data"}, "cluster": CLUSTER}
RENAMED = ["lat", "longitude", "time", "Temprature"]
SQUARE = [[0, 0], [1, 1], [0, 1], [1, 0], [0, 0]]


def table(**columns: Any) -> pa.Table:
    place = {"latitude": [1.0], "longitude": [2.0], "time": [TIME], "temperature": [3.0]}
    return pa.table(place | columns)


def csv(path: Path, text: str, *mapping: str) -> Any:
    (path / "rows.csv").write_text(text)
    return list(open_source(path / "rows.csv", mapping=Mapping.parse(mapping)).batches())


MESSAGES: list[tuple[Callable[[Path], Any], str]] = [
    (
        lambda _: galileo.Schema("Nam", [galileo.Feature("t")]),
        "expected a dataset name of a-z, 0-9, '_', '.', '-' (at most 64), got 'Nam'",
    ),
    (lambda _: galileo.Feature("Time"), "the feature name 'Time' is taken by Galileo; use another"),
    (
        lambda _: galileo.Feature("t", type="double"),  # type: ignore[arg-type]
        "expected the type float, float32, int, text or bool for feature 't', got 'double'",
    ),
    (
        lambda _: galileo.Schema("nam", [galileo.Feature("t")], time_bucket="400d"),
        "expected a time_bucket from 1s to 366d, got '400d'",
    ),
    (
        lambda _: galileo.Retention(),
        "expected a retention with an age or a number of bytes, got neither",
    ),
    (
        lambda _: seconds("1 month"),
        "expected a duration such as '250ms', '10s', '1h30m', '7d' or '1y', got '1 month'",
    ),
    (lambda _: micros("soon"), "expected a time such as '2012-03-01T06:00:00Z', got 'soon'"),
    (
        lambda _: galileo.Window.sliding("6h", slide="4h"),
        "expected a size that is a whole multiple of the slide, so that each label is in as "
        "many windows as any other; got 6h and a slide of 4h",
    ),
    (
        lambda _: normalise(SCHEMA, table(latitude=[91.0])),
        "expected a latitude from -90 to 90 degrees, got 91.0 in row 0; nothing of this table "
        "was stored",
    ),
    (
        lambda _: normalise(SCHEMA, table(longitude=[None])),
        "expected degrees in column 'longitude', got null",
    ),
    (
        lambda _: normalise(SCHEMA, table(temperature=["warm"])),
        "expected float values in column 'temperature', got string; convert the column first",
    ),
    (
        lambda _: normalise(SCHEMA, table(time=[1])),
        "expected times in column 'time' (timestamp, date or ISO 8601 text), got int64; convert"
        " numbers first, for they do not say their unit",
    ),
    (
        lambda _: normalise(SCHEMA, table().rename_columns(RENAMED)),
        "expected the columns latitude, longitude, time, temperature for dataset 'nam'; "
        "missing: latitude, temperature; unknown: lat (did you mean latitude?), Temprature (did"
        " you mean temperature?). Rename or drop columns, or fill a missing feature with nulls",
    ),
    (
        lambda _: geohash.cell_from_text("9xa"),
        "expected a geohash of 3 characters from 0123456789bcdefghjkmnpqrstuvwxyz, got '9xa'; "
        "use lower case, without the letters a, i, l and o",
    ),
    (
        lambda _: regions.from_geojson({"type": "Polygon", "coordinates": [SQUARE]}),
        "expected a valid Polygon, got one with this fault: Self-intersection[0.5 0.5]; draw "
        "rings that neither cross themselves nor each other, parts apart",
    ),
    (
        lambda _: regions.from_box([0, 5, 1, 4]),
        "expected south of a box below its north, got 5 and 4",
    ),
    (
        lambda _: bool(galileo.f.count > 1),
        "a condition is true or false of each observation, not by itself: join conditions by &,"
        " | and ~, each in parentheses, instead of 'and', 'or' and 'not'; write .between(280, "
        "290) instead of 280 < f.x < 290, and .isin([...]) instead of 'in'",
    ),
    (
        lambda _: galileo.f.count > 1 & galileo.f.raining,
        "expected a condition on both sides of &, got 1; put comparisons in parentheses: (f.x >"
        " 1) & (f.y < 2)",
    ),
    (lambda path: open_source(path / "none.csv"), "there is no file at {path}/none.csv"),
    (
        lambda path: csv(path, "a,lon,time,t\n1,2,2020-01-01,3\n"),
        "found no column for the latitude, such as latitude, lat, y, among the columns a, lon, "
        "time, t; name it with mapping={'latitude': 'COLUMN'}, or give a value for all rows, such "
        "as mapping={'latitude': '39.1'}",
    ),
    (
        lambda path: csv(path, "lat,Lat,lon,time,t\n1,1,2,2020-01-01,3\n"),
        "several columns could be the latitude: lat, Lat; choose one, such as "
        "mapping={'latitude': 'lat'}",
    ),
    (
        lambda path: csv(path, "lat,lon,time,t\n1,2,1.3.2020,3\n"),
        "'time' has no time in line 2: expected ISO 8601 texts of the years 1 to 9999 in column "
        "'time', got '1.3.2020'; name the format of the times, as of strptime: "
        "CsvOptions(time_format=...); for seconds or milliseconds since 1970, use "
        "mapping={'time': 'epoch_s(time)'} or epoch_ms(time); a line of units is skipped by "
        "CsvOptions(units=True)",
    ),
    (
        lambda path: csv(path, "lat,lon,time,t\n1,2,2020-01-01,3\n10N,2,2020-01-01,3\n"),
        "expected float values in 'lat', got '10N' in line 3; correct the file, or give the "
        "feature another type",
    ),
    (
        lambda path: csv(path, "lat,lon,time,t\n1,2,2020-01-01,3\n", "u=tt"),
        "the file has no variable 'tt' (did you mean 't'?); its variables are t. Expressions "
        "combine them with + - * / and celsius_to_kelvin, coalesce, fahrenheit_to_kelvin, "
        "hypot, nullif, wind_speed",
    ),
    (
        lambda _: Mapping.parse(["temperature"]),
        "expected a mapping such as temperature=2t, got 'temperature'",
    ),
    (
        lambda _: samplers.load(samplers.sampler("unifrom")),
        "sampler 'unifrom' is not installed; did you mean 'uniform'? Installed: every, "
        "reservoir, stratified, thinning, uniform, weighted. Install its distribution on every "
        "node (the built-in ones: galileo-samplers)",
    ),
    (
        lambda _: samplers.load(samplers.sampler("uniform", share=0.1)),
        "sampler 'uniform' has no option 'share'; its options are fraction",
    ),
    (
        lambda _: samplers.load(samplers.sampler("uniform", fraction=2)),
        "expected a fraction above 0 and up to 1, got 2",
    ),
    (
        lambda path: sampler_archive(path / "gone.zip"),
        "cannot read {path}/gone.zip: No such file or directory",
    ),
    (
        lambda _: SamplerArchive.from_bytes(b""),
        "expected a zip archive, got bytes that fail: File is not a zip file",
    ),
    (
        lambda _: token.decode("bogus", ccq_id="q"),
        "'bogus' is no resume token; fetch with the token of the last answer, or with none to "
        "begin with the first one that is kept",
    ),
    (
        lambda _: rdf.sparql([], "ASK {}"),  # type: ignore[arg-type]
        "expected a label set or a graph, got list",
    ),
    (
        lambda _: NodeInfo("a", "localhost"),
        "expected host:port as address of node 'a', got 'localhost'",
    ),
    (
        lambda _: config.from_dict({**NODE, "node": {**NODE["node"], "lisen": "h:1"}}),
        "unknown key in [node]: 'lisen'; did you mean 'listen'? "
        "Known: address, directory, group, join, listen, name, rack, weight",
    ),
    (
        lambda _: config.from_dict({**NODE, "limits": {"ccqs_max": "many"}}),
        "expected int for limits.ccqs_max, got 'many'",
    ),
    (
        lambda _: config.from_dict({**NODE, "node": {**NODE["node"], "listen": "10.0.0.1:1"}}),
        "expected a loopback address to listen on, got '10.0.0.1:1': connections are not "
        "encrypted; name certificates in [tls], or set security.insecure = true to serve a trusted "
        "network without encryption",
    ),
    (
        lambda path: config.load(path / "absent.toml", environment={}),
        "cannot read the configuration file {path}/absent.toml: No such file or directory",
    ),
    (
        lambda _: open_blocking_channel("10.0.0.1:7701", TlsFiles(token="glt_x")),
        "expected TLS to send a token to 10.0.0.1:7701, or others on the network could read it;"
        " pass tls= to galileo.connect, or insecure=True if the network is trusted",
    ),
    (
        lambda path: issue(path, Subject("client", "ann"), target=path),
        "expected an authority in {path}, authority.pem and authority.key; make one by galileo "
        "ca create {path}",
    ),
    (
        lambda path: verify(path),
        "expected the directory of a node, got {path}; it is node.directory in the node's "
        "configuration",
    ),
    (
        lambda path: restore(path, path / "again", now=1.8e9),
        "expected a backup with a manifest.record, got {path}",
    ),
]


@pytest.mark.parametrize(("provoke", "message"), MESSAGES)
def test_error_of_mistake_has_message(
    provoke: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(GalileoError) as caught:
        provoke(tmp_path)
    assert str(caught.value).replace(str(tmp_path), "{path}") == message
