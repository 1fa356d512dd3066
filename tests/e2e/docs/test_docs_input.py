"""The commands of docs/input.md for files of well-known sources, up to the first query."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pytest
import sensor_files
import xarray as xr
from click.testing import CliRunner

import galileo
from galileo.cli.main import main
from galileo.optional_imports import library

PAGE = Path(__file__).parents[3] / "docs" / "input.md"
FILES = {
    "46029.txt": """\
#YY  MM DD hh mm WDIR WSPD GST  WVHT   DPD   APD MWD   PRES  ATMP  WTMP  DEWP  VIS PTDY  TIDE
#yr  mo dy hr mn degT m/s  m/s     m   sec   sec degT   hPa  degC  degC  degC  nmi  hPa    ft
2022 06 05 13 00 280  3.0  4.0    MM    MM    MM  MM 1015.2    MM  13.9    MM   MM +1.6    MM
2022 06 05 12 50 270  3.0  4.0   0.5     7   3.5 100 1014.3    MM  13.8    MM   MM   MM    MM
""",
    "cwwcNDBCMet.csv": """\
station,time,latitude,longitude,wspd,wtmp
,UTC,degrees_north,degrees_east,m s-1,degree_C
"46029",2014-03-01T00:00:00Z,46.163,-124.487,5.1,10.5
"46029",2014-03-01T01:00:00Z,46.163,-124.487,NaN,10.6
""",
    "cwwcNDBCMet.csvp": """\
station,time (UTC),latitude (degrees_north),longitude (degrees_east),wspd (m s-1),wtmp (degree_C)
"46029",2014-03-01T02:00:00Z,46.163,-124.487,5.3,11.5
""",
    "query.txt": """\
#EventID | Time | Latitude | Longitude | Depth/km | Author | MagType | Magnitude | EventLocationName
3337497|2011-03-11T05:46:23.200000|38.2963|142.498|19.7|ISC|MW|9.09|NEAR EAST COAST OF HONSHU, JAPAN
3279407|2010-02-27T06:34:13.330000|-36.1485|-72.9327|28.1|ISC|MW|8.78|OFF COAST OF CENTRAL CHILE
""",
    "all_week.csv": """\
time,latitude,longitude,depth,mag,magType,net,id,updated,place,type,status
2018-02-07T23:39:31.140Z,33.49,-116.79,5.27,0.87,ml,ci,ci1,2018-02-07T23:43:07.380Z,"NE, CA",a,b
2018-02-07T23:35:32.980Z,60.0,-152.0,,2.1,ml,ak,ak2,2018-02-07T23:41:02.040Z,"Alaska",a,b
""",
    "nwis.rdb": """\
# Some of the data that you have obtained may not have received approval.
agency_cd\tsite_no\tdatetime\ttz_cd\t69928_00060\t69928_00060_cd
5s\t15s\t20d\t6s\t14n\t10s
USGS\t01646500\t2014-11-02 01:30\tEDT\t5850\tA
USGS\t01646500\t2014-11-02 01:30\tEST\t5860\tA
""",
    "asos.csv": """\
#DEBUG: Format Typ    -> onlycomma
station,valid,lon,lat,tmpf,dwpf,sknt,p01i,wxcodes
MWN,1993-03-12 06:00,-71.3035,44.2708,-12.10,M,70.00,T,-BLSN
DEN,1993-03-12 06:00,-104.66,39.83,28.00,M,6.00,0.01,M
""",
    "ais.csv": """\
MMSI,BaseDateTime,LAT,LON,SOG,COG,Heading,VesselName,IMO,CallSign,VesselType,Status,Length,Cargo
368084090,2024-01-01T00:00:00,29.93174,-89.99239,6.0,296.2,299.0,TUG ONE,,WDK1234,57,12,0,57
368140160,2024-01-01T00:00:01,30.33475,-87.14429,0.0,312.0,87.0,ANGEL,,WDL5339,36,,,
""",
    "ibtracs.csv": """\
SID,SEASON,NUMBER,BASIN,SUBBASIN,NAME,ISO_TIME,NATURE,LAT,LON,WMO_WIND,WMO_PRES
 ,Year, , , , , , ,degrees_north,degrees_east,kts,mb
2012296N14283,2012,78,NA,CS,SANDY,2012-10-22 15:00:00,TS,13.2,-78.2, ,\x20
2012296N14283,2012,78,NA,NA,SANDY,2012-10-25 06:00:00,TS,20.1,-75.9,100,954
2012166N09269,2012,44,EP,MM,CARLOTTA,2012-06-15 18:00:00,TS,15.1,-96.3,95,973
""",
    "openaq.csv": """\
"location_id","sensors_id","location","datetime","lat","lon","parameter","units","value"
2178,3917,"Del Norte-2178","2024-01-01T01:00:00-07:00",35.1353,-106.5847,"pm25","µg/m³",8.2
2178,3917,"Del Norte-2178","2024-01-01T02:00:00-07:00",35.1353,-106.5847,"pm25","µg/m³",13.7
2178,3916,"Del Norte-2178","2024-01-01T01:00:00-07:00",35.1353,-106.5847,"o3","ppm",0.021
""",
}
ANSWERS = {
    "buoys": {"station": "46029", "wave_height": 0.5, "pressure": 1014.3},
    "sst": {"station": 46029, "wspd": 5.3, "wtmp": 11.5, "time": "2014-03-01T02:00:00Z"},
    "events": {"magnitude": 9.09, "depth_km": 19.7, "latitude": 38.2963},
    "quakes": {"place": "Alaska", "depth": None},
    "rivers": {"site": "01646500", "flow": 5860, "time": "2014-11-02T06:30:00Z"},
    "asos": {"station": "MWN", "wind": 70.0, "rain": None},
    "ais": {"mmsi": 368084090, "speed": 6.0, "name": "TUG ONE"},
    "storms": {"name": "SANDY", "basin": "NA", "wind": 100},
    "air": {"parameter": "pm25", "value": 13.7, "time": "2024-01-01T09:00:00Z"},
}
"""Of the one row that each query finds, some values."""


Frame: TypeAlias = pd.DataFrame


def write_sensor_files() -> None:
    sensor_files.write_argo(Path("R6901472_001.nc"))
    sensor_files.write_adcp(Path("41001.nc"))
    sensor_files.write_glider(Path("ru29_20240110T000000Z.nc"))
    sensor_files.write_stations(Path("stations.nc"))
    sensor_files.write_members(Path("ensemble.nc"))
    sensor_files.write_member_messages(Path("ensemble.grib2"))
    sensor_files.write_run(Path("run_00.nc"), start=0)
    sensor_files.write_run(Path("run_06.nc"), start=6)


def read_by_xarray(file: str) -> Frame:
    """A row for each value of a file, with names in lower-case letters."""
    with xr.open_dataset(file) as dataset:
        if "row_size" in dataset:
            counts = dataset["row_size"].values
            dataset = dataset.drop_vars("row_size")
            for name in ("lat", "lon", "station_name"):
                dataset[name] = ("obs", np.repeat(dataset[name].values, counts))
        if "juld" in map(str.lower, map(str, dataset)):
            dataset = dataset.rename(JULD="time")
        one_value = {dim: 0 for dim in ("N_HISTORY", "N_PARAM") if dim in dataset.dims}
        frame = dataset.isel(one_value).to_dataframe().reset_index()
    names = {"lat": "latitude", "lon": "longitude"}
    renamed: Frame = frame.rename(columns=lambda name: names.get(name.lower(), name.lower()))
    return renamed


def read_by_eccodes(file: str) -> Frame:
    eccodes, parts = library("eccodes", purpose="this test"), []
    with Path(file).open("rb") as opened:
        while (handle := eccodes.codes_grib_new_from_file(opened)) is not None:
            keys = {"latitude": "latitudes", "longitude": "longitudes", "t2m": "values"}
            part = {name: eccodes.codes_get_array(handle, key) for name, key in keys.items()}
            member = eccodes.codes_get(handle, "perturbationNumber")
            parts.append(pd.DataFrame(part).assign(member=member, time="2024-01-10T06:00"))
            eccodes.codes_release(handle)
    return pd.concat(parts).astype({"time": "datetime64[us]", "t2m": "float32"})


def read_runs() -> Frame:
    parts = []
    for start in (0, 6):
        frame = read_by_xarray(f"run_{start:02}.nc")
        lead = (frame["time"] - pd.Timestamp("2024-01-10") - pd.Timedelta(start, "h")).dt
        reference = pd.Timestamp("2024-01-10").timestamp() + 3600 * start
        parts.append(frame.assign(lead_time=lead.total_seconds() / 3600, reference_time=reference))
    return pd.concat(parts)


MEASURED: dict[str, tuple[Callable[[], Frame], list[str], Callable[[Frame], Any]]] = {
    "floats": (
        lambda: read_by_xarray("R6901472_001.nc"),
        ["pres", "temp", "psal", "temp_adjusted", "cycle_number"],
        lambda frame: (frame["pres"] < 100) & (frame["temp_qc"] == b"1"),
    ),
    "currents": (
        lambda: read_by_xarray("41001.nc"),
        ["u", "v", "depth"],
        lambda frame: (frame["depth"] < 60) & (frame["u"] > 10),
    ),
    "gliders": (
        lambda: read_by_xarray("ru29_20240110T000000Z.nc"),
        ["temperature", "salinity", "depth", "temperature_qc", "profile_id"],
        lambda frame: (frame["depth"] > 5) & (frame["temperature_qc"] == 1),
    ),
    "towns": (
        lambda: read_by_xarray("stations.nc"),
        ["temperature"],
        lambda frame: frame["station_name"].map(bytes.strip) == b"Alp",
    ),
    "members": (
        lambda: read_by_xarray("ensemble.nc"),
        ["t2m", "number"],
        lambda frame: (frame["number"] == 2) & (frame["t2m"] > 275),
    ),
    "perturbed": (
        lambda: read_by_eccodes("ensemble.grib2"),
        ["t2m", "member"],
        lambda frame: (frame["member"] == 2) & (frame["t2m"] > 272.5),
    ),
    "forecasts": (
        read_runs,
        ["t2m", "lead_time", "reference_time"],
        lambda frame: frame["lead_time"] < 6,
    ),
}
"""Of each dataset: what another library reads, the features to compare, and the query."""


@pytest.fixture
def no_datasets(client: galileo.Client) -> Iterator[None]:
    """Other pages use the names of the datasets for their own."""

    def drop() -> None:
        for name in {schema.name for schema in client.datasets()} & {*ANSWERS, *MEASURED}:
            client.drop_dataset(name)

    drop()
    yield
    drop()


def run_commands(cluster: galileo.LocalCluster, heading: str) -> dict[str, list[dict[str, Any]]]:
    """Runs the commands of a section; returns the rows of each query by its dataset."""
    section = PAGE.read_text().split(f"# {heading}\n")[1]
    block = re.search(r"```console\n(.*?)```", section, re.DOTALL)
    assert block is not None
    rows = {}
    nodes = [word for address in cluster.addresses for word in ("--node", address)]
    for line in block[1].splitlines():
        if not line.startswith("galileo"):
            continue
        words = [word.removesuffix(".gz") for word in shlex.split(line)[1:]]
        done = CliRunner().invoke(main, [*nodes, *words, "--json"])
        assert done.exit_code == 0, done.output
        if words[0] == "read":
            rows[words[1]] = json.loads(done.stdout)["rows"]
    return rows


@pytest.mark.usefixtures("no_datasets")
def test_commands_lead_from_a_file_to_its_first_query(
    cluster: galileo.LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    answers = {}
    for dataset, [row] in run_commands(cluster, "Files of well-known sources").items():
        answers[dataset] = {name: row[name] for name in ANSWERS[dataset]}
    assert answers == ANSWERS


@pytest.mark.usefixtures("no_datasets")
def test_commands_store_what_other_libraries_read_in_files_of_sensors_and_models(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sensor_files()
    answers = run_commands(cluster, "Files of sensors and models")
    assert answers.keys() == MEASURED.keys()
    for dataset, (read, features, matches) in MEASURED.items():
        wanted, names = read(), ["latitude", "longitude", "time", *features]
        wanted = wanted.dropna(subset=features[:2], how="all")
        stored = client.select(dataset).to_pandas()[names]
        stored["time"] = stored["time"].dt.tz_localize(None)
        expected = wanted[names].astype(dict(stored.dtypes))
        stored, expected = (
            each.sort_values(names, ignore_index=True) for each in (stored, expected)
        )
        pd.testing.assert_frame_equal(stored, expected)
        assert 0 < len(answers[dataset]) == matches(wanted).sum() < len(wanted), dataset


@pytest.mark.usefixtures("no_datasets")
def test_commands_name_dimensions_and_units_that_do_not_fit(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    sensor_files.write_adcp(Path("41001.nc"))
    client.create_dataset(galileo.Schema("currents", [galileo.Feature("u", unit="K")]))
    mistakes = {
        "ingest bins 41001.nc --create --rows dept": ("unknown_property", {"dimension": "dept"}),
        "ingest currents 41001.nc --map u=u@depth:26": (
            "incompatible_units",
            {"unit": "K", "got": "cm s-1", "feature": "u"},
        ),
    }
    for words, (kind, details) in mistakes.items():
        line = ["--node", cluster.addresses[0], "--json", *words.split()]
        done = CliRunner().invoke(main, line)
        assert done.exit_code == 2, done.output
        error = json.loads(done.stderr.splitlines()[-1])["error"]
        assert error["kind"] == kind, error
        assert details.items() <= error["details"].items()
    assert client.count("currents") == 0
    assert "bins" not in {schema.name for schema in client.datasets()}
