"""Texts of other programs, each with the rows that it must give or the error that it must raise.

The files are in the directory `trial-inputs` of the sample data. Small texts of the important kinds
are here, so that they are tested without it.
"""

from __future__ import annotations

import datetime as dt
import os
import zoneinfo
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from galileo.errors import InputError
from galileo.formats import CsvOptions, Mapping, open_source
from galileo.formats.table_files import open_rows

SAMPLES = os.environ.get("GALILEO_SAMPLE_DATA")
FOLDERS = ("csv", "tab", "text", "user")
UTC = zoneinfo.ZoneInfo("UTC")
OTHER_SUFFIXES = (".nc", ".sh", ".py", ".png")
"""Of files in the folders that are no texts to read."""


@dataclass(frozen=True)
class Rows:
    """What a file of observations gives.

    Attributes:
        values: of some columns.
        rows: their number, where that is not the length of the columns.
        types: of all features, in order.
        maps, missing, options: how it has to be read.
    """

    values: dict[str, list[Any]] = field(default_factory=dict)
    rows: int | None = None
    types: str = ""
    maps: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    format: str | None = None
    skipped: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def check(self, path: Path) -> None:
        mapping = Mapping.of(self.maps, self.missing, CsvOptions(**self.options))
        source = open_source(path, mapping=mapping, format=self.format)
        tables = list(source.batches())
        assert source.skipped == self.skipped
        if not tables:
            assert self.rows == 0
            return
        table = pa.concat_tables(tables)
        for name, values in self.values.items():
            assert repr(table.column(name).to_pylist()) == repr(values), name
        expected = len(next(iter(self.values.values()))) if self.rows is None else self.rows
        assert table.num_rows == expected
        if self.types:
            types = [str(kind) for kind in table.schema.types[3:]]
            assert " ".join(types) == self.types


@dataclass(frozen=True)
class Refused:
    """An error that says these words."""

    words: str
    format: str | None = None

    def check(self, path: Path) -> None:
        with pytest.raises(InputError) as caught:
            list(open_source(path, format=self.format).batches())
        assert self.words in str(caught.value)


@dataclass(frozen=True)
class TableRows:
    """What a file of rows of a table gives, as values of its columns or as an error."""

    columns: dict[str, pa.DataType]
    values: dict[str, list[Any]] | str

    def check(self, path: Path) -> None:
        def read() -> pa.Table:
            return pa.concat_tables(open_rows(path, pa.schema(self.columns.items())))

        if isinstance(self.values, str):
            with pytest.raises(InputError) as caught:
                read()
            assert self.values in str(caught.value)
            return
        assert repr(read().to_pydict()) == repr(self.values)


def at(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


def v(*values: Any) -> Rows:
    return Rows({"v": list(values)})


INT, TEXT, FLOAT, BOOL = pa.int64(), pa.string(), pa.float64(), pa.bool_()
TIME, GEOMETRY = pa.timestamp("us", "UTC"), pa.binary()
INF = float("inf")
PLACE = ("latitude=45.9", "longitude=-124")
GERMAN = {"decimal": ",", "time_format": "%d.%m.%Y %H:%M", "time_zone": "Europe/Berlin"}
RAIN = {"time": [at(2024, 2, 1, 12), at(2024, 2, 2, 12)], "niederschlag": [0.0, 1234.5]}

EXPECTED: dict[str, Rows | Refused | TableRows] = {
    "csv/blank_lines.csv": v(1.5, 2.5),
    "csv/bom.csv": v(1.5),
    "csv/bools.csv": Rows({"b": [True, False, True]}),
    "csv/case_dup.csv": Rows({"temp": [2], "temp_2": [1]}),
    "csv/comment_mid.csv": Refused("expected 4 fields, got 1 in line 3"),
    "csv/cr_only.csv": v(1.5, 2.5),
    "csv/crlf.csv": v(1.5, 2.5),
    "csv/dec_comma.csv": Rows({"latitude": [40.5], "v": [1.5]}, options={"decimal": ","}),
    "csv/dup_after_strip.csv": Refused("once, got v again"),
    "csv/fortran.csv": v("1.5D+02", "2.5D-01"),
    "csv/hash_header.csv": v(1.5),
    "csv/header_newline.csv": Rows({"temp_c": [1.5]}),
    "csv/header_only.csv": Refused("expected 1 to 256 variables"),
    "csv/hex.csv": v("0x1F", "0x20"),
    "csv/inf.csv": v(INF, -INF, 1.0),
    "csv/int19.csv": Rows(
        {"id": ["1234567890123456789", "9223372036854775807", "9223372036854775808"]}
    ),
    "csv/last_line_noeol.csv": v(1.5),
    "csv/lat_dms.csv": Refused("got '40N' in line 2"),
    "csv/lat_rounding.csv": v(1),
    "csv/latin1.csv": Rows({"place": ["Zürich"]}, options={"encoding": "latin-1"}),
    "csv/leading_zero.csv": Rows({"site_no": ["01646500", "07090002", "00060"]}),
    "csv/lon_rounding.csv": v(1),
    "csv/lon_rounding2.csv": v(1),
    "csv/mixed_int_float_text.csv": v("1", "2.5", "x"),
    "csv/namibia.csv": Rows({"country": ["NA", "DE", "M"]}),
    "csv/nan_case.csv": Rows({"v": [1.5]}, skipped=5),
    "csv/neg_zero.csv": v(-0.0, 0.0, -0.0),
    "csv/nul_byte.csv": Rows({"place": ["a\0b"]}),
    "csv/null_island.csv": Rows({"latitude": [0.0], "longitude": [0.0]}),
    "csv/plus_exp.csv": v(1500.0, 0.01, 7.0),
    "csv/quoted_na.csv": Rows({"country": ["NA", "DE", "null"]}),
    "csv/quotes_inside.csv": Rows({"place": ['a "b" c', "x,y\nz"]}),
    "csv/semicolon_in_text.csv": Rows({"a_b_c_d_e": [1]}),
    "csv/space_after_comma.csv": Refused("expected 4 fields, got 5 in line 2"),
    "csv/space_sep.csv": v(1),
    "csv/tab.csv": Rows({"place": ["a, b"]}),
    "csv/thousands.csv": v("1,234.5", "12"),
    "csv/trailing_comma.csv": Rows({"v": [1.5]}, types="double"),
    "csv/trailing_comma_rows.csv": Refused("expected 4 fields, got 5 in line 2"),
    "csv/units_row.csv": Rows({"wtmp": [3.5]}),
    "csv/units_row_nomsg.csv": Rows({"wtmp": [3.5]}, skipped=1),
    "csv/utf16.csv": v(1.5),
    "csv/yesno.csv": Rows({"b": ["yes", "no"]}),
    "csv/zero_one.csv": Rows({"flag": [0, 1, 1]}),
    "tab/csv_NA_key.csv": TableRows({"cc": TEXT, "v": INT}, {"cc": ["NA", "DE"], "v": [1, 2]}),
    "tab/csv_bom.csv": TableRows({"id": INT}, {"id": [1]}),
    "tab/csv_bools.csv": TableRows({"id": INT, "b": BOOL}, "got 'yes' in line 5"),
    "tab/csv_extra_col.csv": TableRows({"id": INT}, {"id": [1], "zz": ["2"]}),
    "tab/csv_floats.csv": TableRows(
        {"id": INT, "f": FLOAT}, {"id": [1, 2, 3, 4, 5], "f": [1.5, 1e5, INF, None, -0.0]}
    ),
    "tab/csv_leading_zero_key.csv": TableRows(
        {"site": TEXT, "v": INT}, {"site": ["01646500", "1646500"], "v": [1, 2]}
    ),
    "tab/csv_newline_in_text.csv": TableRows(
        {"id": INT, "t": TEXT}, {"id": [1, 2], "t": ["a\nb", "c"]}
    ),
    "tab/csv_null_words.csv": TableRows(
        {"id": INT, "t": TEXT},
        {"id": [1, 2, 3, 4, 5, 6], "t": ["NULL", "n/a", "NA", "nan", "", "x"]},
    ),
    "tab/csv_semicolon.csv": TableRows({"id": INT, "v": INT}, {"id": [1], "v": [2]}),
    "tab/csv_times.csv": TableRows(
        {"id": INT, "t": TIME},
        {
            "id": [1, 2, 3, 4, 5],
            "t": [at(2014, 3, 1), at(2014, 3, 1), at(2014, 3, 1, 12), None, at(1, 1, 1)],
        },
    ),
    "tab/nd_big_int.ndjson": TableRows(
        {"id": INT}, {"id": [9007199254740993, 9223372036854775807]}
    ),
    "tab/nd_geojson.ndjson": TableRows(
        {"id": INT, "g": GEOMETRY},
        {"id": [1, 2, 3], "g": ['{"type": "Point", "coordinates": [1, 2]}', None, "POINT (3 4)"]},
    ),
    "tab/nd_int_as_text.ndjson": TableRows({"id": INT}, {"id": [7]}),
    "tab/nd_mixed.ndjson": TableRows(
        {"id": INT, "t": TEXT, "f": FLOAT}, {"id": [1, 2], "t": ["a", None], "f": [1.0, 1.5]}
    ),
    "tab/nd_times.ndjson": TableRows(
        {"id": INT, "t": TIME},
        {"id": [1, 2, 3], "t": ["2014-03-01T00:00:00Z", "2014-03-01 00:00:00", None]},
    ),
    "tab/subs.csv": TableRows({"id": TEXT, "c": TEXT}, {"id": ["anna", "bert"], "c": ["NA", "DE"]}),
    "text/erddap.csv": Rows({"sea_surface_temperature": [10.5, None], "station": [44008, 44008]}),
    "text/erddap.csvp": Rows({"sst": [10.5]}),
    "text/fdsn_event.txt": Rows({"magnitude": [9.09, 8.78], "longitude": [142.498, -72.9327]}),
    "text/iem.csv": Rows(
        {"tmpf": [28.0, None], "p01i": [None, 0.01]}, missing=("T",), types="string double double"
    ),
    "text/ncss.csv": Rows({"temperature_isobaric": [280.5]}),
    "text/ndbc.txt": Rows(
        {"wdir": [90, None], "time": [at(2014, 3, 1), at(2014, 3, 1, 1)]}, maps=PLACE
    ),
    "text/wqp_sites.txt": Rows(
        {"huceightdigitcode": ["02040206", "02030105", "02040301", "02040301", "02040206"]},
        maps=("latitude=LatitudeMeasure", "longitude=LongitudeMeasure", "time=@2020-01-01"),
    ),
    "user/01_ndbc_mm.csv": Rows(rows=16, maps=(*PLACE, "wvht=WVHT"), skipped=43),
    "user/02_no_place.csv": Rows(rows=0, skipped=4),
    "user/03_geoparquet_points.parquet": Rows(
        {"col": [0, 3], "longitude": [30.0, 40.0], "latitude": [10.0, 40.0]},
        maps=("time=@2020-01-01",),
        skipped=2,
    ),
    "user/04_units_row.csv": Rows(
        {"latitude": [10.9, 10.9, 10.8], "number": [1, 1, 1]},
        maps=("time=ISO_TIME",),
    ),
    "user/05_decimal_comma.csv": Rows(RAIN, maps=("time=Datum",), options=GERMAN),
    "user/06_latin1.csv": Rows(
        RAIN, maps=("time=Datum",), options={**GERMAN, "encoding": "latin-1"}
    ),
    "user/07_dwd.txt": Rows(
        {
            "tt_tu": [-1.9, -2.0, None],
            "time": [at(2025, 1, 19), at(2025, 1, 19, 1), at(2025, 3, 5, 12)],
        },
        maps=("time=MESS_DATUM", "latitude=50.1", "longitude=8.6"),
        missing=("-999",),
        options={"time_format": "%Y%m%d%H"},
    ),
    "user/08_leading_zeros.csv": Rows(
        {"id": ["00123", "00456"], "v": ["12345678901234567890", "2"]}
    ),
    "user/09_json_array.json": Refused("JSON"),
    "user/10_ndbc_whitespace.txt": Rows(rows=10, maps=(*PLACE, "wspd=WSPD"), types="double"),
    "user/11_rolling_a.csv": Rows(rows=39, maps=PLACE),
    "user/11_rolling_b.csv": Rows(rows=41, maps=PLACE),
    "user/12_duplicate_keys.csv": TableRows(
        {"name": TEXT, "beds": INT}, {"name": ["A", "B", "A"], "beds": [1, 2, 3]}
    ),
    "user/13_leap_second.csv": Rows(
        {"t": [2], "time": [at(2024, 2, 29, 6, 30)]}, options={"bad_rows": "bad.csv"}
    ),
    "user/14_single_quotes_pst.csv": Rows(
        {
            "salt": [27.37, 27.03, 26.78, 26.73],
            "time": [at(2001, 8, 16, 3, m, 55) for m in (6, 7, 8, 9)],
        },
        maps=(
            "time=time PST",
            "latitude=46.2",
            "longitude=-123.9",
            "salt=`sandi.790.A.CTD [psu]`",
        ),
        options={"quote": "'", "time_zone": "-08:00"},
    ),
}


def files_of_folders() -> list[str]:
    root = Path(SAMPLES or "") / "trial-inputs"
    files = [path for folder in FOLDERS for path in sorted((root / folder).glob("*"))]
    return [str(p.relative_to(root)) for p in files if p.suffix not in OTHER_SUFFIXES]


@pytest.mark.parametrize("name", EXPECTED)
def test_foreign_file_gives_its_rows_or_its_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if SAMPLES is None:
        pytest.skip("no sample files: set GALILEO_SAMPLE_DATA to a directory that holds them")
    path = Path(SAMPLES).absolute() / "trial-inputs" / name
    monkeypatch.chdir(tmp_path)
    EXPECTED[name].check(path)


def test_each_foreign_file_has_an_expectation() -> None:
    if SAMPLES is None:
        pytest.skip("no sample files: set GALILEO_SAMPLE_DATA to a directory that holds them")
    assert files_of_folders() == sorted(EXPECTED)
