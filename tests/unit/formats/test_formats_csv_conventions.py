"""Files in the exact shape of well-known sources need no options, and others are as they were."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.errors import InputError
from galileo.formats import CsvOptions, Mapping, open_source, suggest_schema

ERDDAP = """\
station,time,latitude,longitude,wspd,wtmp,comment
,UTC,degrees_north,degrees_east,m s-1,degree_C,
"46029",2014-03-01T00:00:00Z,46.163,-124.487,5.1,10.5,"calm, clear"
"46029",2014-03-01T01:00:00Z,46.163,-124.487,NaN,10.6,
"""
ERDDAP_CSVP = """\
station,time (UTC),latitude (degrees_north),longitude (degrees_east),wspd (m s-1),"wtmp (degree_C)",note
46029,2014-03-01T00:00:00Z,46.163,-124.487,5.1,10.5,a
46029,2014-03-01T01:00:00Z,46.163,-124.487,NaN,10.6,b
"""  # noqa: E501
THREDDS = """\
time,station,latitude[unit="degrees_north"],longitude[unit="degrees_east"],Temperature_surface[unit="K"]
2014-03-01T00:00:00Z,A,40.0,-70.0,280.5
2014-03-01T06:00:00Z,A,40.0,-70.0,281.5
"""
FDSN_EVENTS = """\
#EventID | Time | Latitude | Longitude | Depth/km | Author | Catalog | Contributor | ContributorID | MagType | Magnitude | MagAuthor | EventLocationName
3337497|2011-03-11T05:46:23.200000|38.2963|142.498|19.7|ISC|ISC|ISC|16461282|MW|9.09|GCMT|NEAR EAST COAST OF HONSHU, JAPAN
3279407|2010-02-27T06:34:13.330000|-36.1485|-72.9327||ISC|ISC|ISC|14340585|MW|8.78|GCMT|OFF COAST OF CENTRAL CHILE
"""  # noqa: E501
FDSN_STATIONS = """\
#Network | Station | Latitude | Longitude | Elevation | SiteName | StartTime | EndTime
IU|ANMO|34.945910|-106.457200|1820.0|Albuquerque, New Mexico, USA|1989-08-29T00:00:00|2599-12-31T23:59:59
"""  # noqa: E501
NDBC = """\
#YY  MM DD hh mm WDIR WSPD GST  WVHT   DPD   APD MWD   PRES  ATMP  WTMP  DEWP  VIS PTDY  TIDE
#yr  mo dy hr mn degT m/s  m/s     m   sec   sec degT   hPa  degC  degC  degC  nmi  hPa    ft
2022 06 05 13 00 280  3.0  4.0    MM    MM    MM  MM 1015.2    MM  13.9    MM   MM +1.6    MM
2022 06 05 12 50 270  3.0  4.0   0.5     7   3.5 100 1015.3    MM  13.8    MM   MM   MM    MM
"""
NDBC_PAST = """\
#YY  MM DD hh mm WDIR WSPD GST  WVHT   DPD   APD MWD   PRES  ATMP  WTMP  DEWP  VIS  TIDE
#yr  mo dy hr mn degT m/s  m/s     m   sec   sec degT   hPa  degC  degC  degC   mi    ft
2012 01 01 00 00 150  2.7  3.5 99.00 99.00 99.00 999 1017.6   5.5   9.3   2.4 99.0 99.00
2012 01 01 01 00  99  2.9  3.8  1.20  9.00  6.10 270 9999.0 999.0   9.3 999.0  1.5 99.00
"""
NDBC_2005 = """\
YYYY MM DD hh mm  WD  WSPD GST  WVHT  DPD   APD  MWD  BAR    ATMP  WTMP  DEWP  VIS  TIDE
2005 01 01 00 00 150  2.7  3.5 99.00 99.00 99.00 999 1017.6   5.5   9.3   2.4 99.0 99.00
"""
USGS_QUAKES = """\
time,latitude,longitude,depth,mag,magType,nst,gap,dmin,rms,net,id,updated,place,type,status
2018-02-07T23:39:31.140Z,33.4923333,-116.7963333,5.27,0.87,ml,24,75,0.07055,0.19,ci,ci38104096,2018-02-07T23:43:07.380Z,"10km NE of Aguanga, CA",earthquake,automatic
2018-02-07T23:35:32.980Z,60.0,-152.0,,2.1,ml,,,,0.52,ak,ak018,2018-02-07T23:41:02.040Z,"Alaska",earthquake,automatic
"""  # noqa: E501
NWIS = """\
# ---------------------------------- WARNING ----------------------------------------
# Some of the data that you have obtained from this database may not be approved.
#
#            TS   parameter     Description
#         69928       00060     Discharge, cubic feet per second
#
agency_cd\tsite_no\tdatetime\ttz_cd\t69928_00060\t69928_00060_cd
5s\t15s\t20d\t6s\t14n\t10s
USGS\t01646500\t2014-11-02 00:30\tEDT\t5840\tA
USGS\t01646500\t2014-11-02 01:30\tEDT\t5850\tA
USGS\t01646500\t2014-11-02 01:30\tEST\t5860\tA
"""
NWIS_DAILY = """\
# daily values
agency_cd\tsite_no\tdatetime\t69928_00060_00003\t69928_00060_00003_cd
5s\t15s\t20d\t14n\t10s
USGS\t01646500\t2014-11-02\t5840\tA
"""
STATION = ("latitude=46.1", "longitude=-124.5")


def read(path: Path, text: str, *maps: str, **options: Any) -> tuple[pa.Table, dict[str, str]]:
    """The observations, and the units of the features of a new dataset."""
    path.write_text(text)
    source = open_source(path, mapping=Mapping.of(maps, csv=CsvOptions(**options)))
    table = pa.concat_tables(source.batches())
    units = {info.name: info.about.unit for info in source.variables() if info.about.unit}
    return table, units


def at(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[arg-type, misc]


def same(table: pa.Table, frame: pd.DataFrame) -> None:
    """Whether columns have the values that pandas reads, and no others are there."""
    names = [name for name in table.column_names if name not in ("latitude", "longitude", "time")]
    assert names == [*frame.columns]
    for name in names:
        values, expected = table.column(name).to_pylist(), frame[name].tolist()
        assert [v if v is not None else np.nan for v in values] == pytest.approx(
            expected, nan_ok=True
        ) or values == [None if pd.isna(value) else value for value in expected]


def test_erddap_csv_with_a_line_of_units(tmp_path: Path) -> None:
    table, units = read(tmp_path / "x.csv", ERDDAP)
    frame = pd.read_csv(io.StringIO(ERDDAP), skiprows=[1])
    same(table, frame.drop(columns=["time", "latitude", "longitude"]))
    assert table.column("latitude").to_pylist() == [46.163] * 2
    assert units == {"wspd": "m s-1", "wtmp": "degree_C"}


def test_erddap_csv_of_a_time_and_a_value(tmp_path: Path) -> None:
    table, units = read(tmp_path / "x.csv", "time,t\nUTC,K\n2014-03-01T00:00:00Z,280\n", *STATION)
    assert (table.column("t").to_pylist(), units) == ([280], {"t": "K"})


@pytest.mark.parametrize("name", ["x.csvp", "x.csv"])
def test_erddap_csvp_with_units_in_names(tmp_path: Path, name: str) -> None:
    table, units = read(tmp_path / name, ERDDAP_CSVP)
    assert table.column_names[3:] == ["station", "wspd", "wtmp", "note"]
    assert table.column("wspd").to_pylist() == [5.1, None]
    assert units == {"wspd": "m s-1", "wtmp": "degree_C"}


def test_thredds_csv_with_units_in_names(tmp_path: Path) -> None:
    table, units = read(tmp_path / "x.csv", THREDDS)
    assert table.column("temperature_surface").to_pylist() == [280.5, 281.5]
    assert units == {"Temperature_surface": "K"}


def test_units_of_ibtracs(tmp_path: Path) -> None:
    text = (
        "SID,SEASON,ISO_TIME,LAT,LON,WMO_WIND\n"
        " ,Year, ,degrees_north,degrees_east,kts\n"
        "1842298N11080,1842,1842-10-25 03:00:00,10.9,80.3,35\n"
    )
    table, units = read(tmp_path / "x.csv", text, "time=ISO_TIME", "wind=WMO_WIND")
    assert (table.column("wind").to_pylist(), units["WMO_WIND"]) == ([35], "kts")


def test_fdsn_events_and_stations(tmp_path: Path) -> None:
    table, _ = read(tmp_path / "events.txt", FDSN_EVENTS)
    names = FDSN_EVENTS.splitlines()[0].lstrip("#").split(" | ")
    frame = pd.read_csv(io.StringIO(FDSN_EVENTS), sep="|", names=names, skiprows=1)
    assert table.column("magnitude").to_pylist() == frame["Magnitude"].to_list()
    assert table.column("depth_km").to_pylist() == [19.7, None]
    assert table.column("time")[0].as_py() == at(2011, 3, 11, 5, 46, 23, 200_000)
    table, _ = read(tmp_path / "stations.txt", FDSN_STATIONS, "time=StartTime", "name=Station")
    assert table.column("name").to_pylist() == ["ANMO"]


def test_ndbc_recent_file(tmp_path: Path) -> None:
    table, units = read(tmp_path / "46029.txt", NDBC, *STATION)
    names = NDBC.splitlines()[0].lstrip("#").split()
    frame = pd.read_csv(
        io.StringIO(NDBC), sep=r"\s+", names=names, skiprows=2, na_values=["MM"]
    ).drop(columns=names[:5])
    frame.columns = frame.columns.str.lower()
    same(table, frame.dropna(axis="columns", how="all"))
    assert table.column("time").to_pylist() == [at(2022, 6, 5, 13), at(2022, 6, 5, 12, 50)]
    assert (units["WVHT"], units["PRES"]) == ("m", "hPa")


def test_ndbc_file_of_a_past_year(tmp_path: Path) -> None:
    table, _ = read(tmp_path / "46029h2012.txt", NDBC_PAST, *STATION)
    rows = table.drop_columns(["latitude", "longitude", "time"]).to_pylist()
    usual = {"wdir": 150, "wspd": 2.7, "gst": 3.5, "pres": 1017.6, "atmp": 5.5, "wtmp": 9.3}
    waves = dict.fromkeys(["wvht", "dpd", "apd", "mwd", "vis"])
    assert rows[0] == usual | waves | {"dewp": 2.4}
    assert rows[1] == {
        **{"wdir": 99, "wspd": 2.9, "gst": 3.8, "wvht": 1.2, "dpd": 9.0, "apd": 6.1, "mwd": 270},
        **{"pres": None, "atmp": None, "wtmp": 9.3, "dewp": None, "vis": 1.5},
    }


def test_ndbc_file_of_2005(tmp_path: Path) -> None:
    table, _ = read(tmp_path / "x.txt", NDBC_2005, *STATION)
    assert table.column("time").to_pylist() == [at(2005, 1, 1)]
    assert table.column("wtmp").to_pylist() == [9.3]


def test_years_of_two_digits_are_no_time_by_themselves(tmp_path: Path) -> None:
    text = "YY MM DD hh WD\n98 01 01 00 150\n"
    with raises(InputError, expected="coordinate", column="time"):
        read(tmp_path / "x.txt", text, *STATION)


def test_usgs_earthquakes(tmp_path: Path) -> None:
    table, _ = read(tmp_path / "all_week.csv", USGS_QUAKES)
    frame = pd.read_csv(io.StringIO(USGS_QUAKES))
    assert table.column("mag").to_pylist() == frame["mag"].to_list()
    assert table.column("place").to_pylist() == frame["place"].to_list()
    assert table.column("depth").to_pylist() == [5.27, None]
    assert table.column("time")[0].as_py() == at(2018, 2, 7, 23, 39, 31, 140_000)


@pytest.mark.parametrize("name", ["iv.rdb", "iv.txt"])
def test_nwis_times_are_those_of_their_zones(tmp_path: Path, name: str) -> None:
    """01:30 occurs twice in the night in which summer time ends."""
    table, _ = read(tmp_path / name, NWIS, *STATION)
    assert table.column("time").to_pylist() == [at(2014, 11, 2, h, 30) for h in (4, 5, 6)]
    assert table.column("site_no").to_pylist() == ["01646500"] * 3
    assert table.column("v_69928_00060").to_pylist() == [5840, 5850, 5860]
    table, _ = read(tmp_path / name, NWIS, *STATION, "flow=69928_00060")
    assert table.column("time").to_pylist() == [at(2014, 11, 2, h, 30) for h in (4, 5, 6)]


def test_nwis_days(tmp_path: Path) -> None:
    table, _ = read(tmp_path / "dv.rdb", NWIS_DAILY, *STATION)
    assert table.column("time").to_pylist() == [at(2014, 11, 2)]


def test_nwis_unknown_zone_is_refused(tmp_path: Path) -> None:
    with raises(InputError, expected="time_zone", column="tz_cd"):
        read(tmp_path / "iv.rdb", NWIS.replace("\tEST\t", "\tXST\t"), *STATION)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("latitude,longitude,time,timezone,t", "1,2,2020-01-01,UTC,3"),
        ("latitude,longitude,time,units,t", "1,2,2020-01-01,degrees_north,3"),
        ("latitude,longitude,time,zone (UTC),t", "1,2,2020-01-01,a,3"),
        ("latitude,longitude,time,level (degrees_north),t", "1,2,2020-01-01,a,3"),
    ],
)
def test_line_that_only_looks_like_units_is_data(tmp_path: Path, header: str, row: str) -> None:
    table, units = read(tmp_path / "x.csv", f"{header}\n{row}\n")
    assert (table.num_rows, table.column("t").to_pylist(), units) == (1, [3], {})


def test_name_with_parentheses_beside_usual_coordinates_is_kept(tmp_path: Path) -> None:
    text = "latitude,longitude,time,Temp (C)\n1,2,2020-01-01,3\n"
    table, units = read(tmp_path / "x.csv", text, "t=`Temp (C)` + 273.15")
    assert (table.column("t").to_pylist(), units) == ([276.15], {})


def test_mm_is_a_text_in_other_files(tmp_path: Path) -> None:
    text = "lat,lon,time,unit,t\n1,2,2020-01-01,MM,999\n"
    table, _ = read(tmp_path / "x.csv", text)
    assert table.select(["unit", "t"]).to_pylist() == [{"unit": "MM", "t": 999}]


def test_units_become_those_of_a_new_dataset(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(ERDDAP)
    schema = suggest_schema(open_source(path), "x")
    assert {f.name: f.unit for f in schema.features if f.unit} == {
        "wspd": "m s-1",
        "wtmp": "degree_C",
    }
