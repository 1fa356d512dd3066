"""Small files of others that once failed, each with its expected rows or refusal.

The files are not part of the repository; their important kinds are made in `test_foreign_columns`
and `test_arrow_types`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.errors import GalileoError, InputError, InvalidObservations
from galileo.formats import open_source, suggest_schema
from galileo.formats.mapping import Mapping
from galileo.formats.table_files import open_rows
from galileo.model.observations import normalise
from galileo.model.schema import Feature, Schema
from galileo.model.table import Table, versions_of
from galileo.model.times import column_micros, iso

PLACE, DAY = (40.0, -105.0), "2014-03-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Expected:
    """What a new dataset takes from a file: rows, or an error with these details."""

    mapping: str
    count: int = 0
    features: tuple[str, ...] = ()
    first: tuple[Any, ...] = ()
    error: type[GalileoError] | None = None
    details: tuple[tuple[str, Any], ...] = ()


def rows(
    count: int,
    features: list[str],
    place: tuple[float, float] | None = None,
    time: str | None = None,
    values: list[Any] | None = None,
    *,
    mapping: str = "",
) -> Expected:
    first = (place, time, values) if count else ()
    return Expected(mapping, count, tuple(features), first)


def refused(
    error: type[GalileoError], expected: str | None, row: int | None, *, mapping: str = ""
) -> Expected:
    return Expected(mapping, error=error, details=(("expected", expected), ("row", row)))


SECONDS, MILLISECONDS = "time=epoch_s(t)", "time=epoch_ms(t)"
STATION = "station-0-cfcd208495d565ef66e7dff9f98764da"
STATIONS = rows(5, ["s:text", "v:float"], (40.5, -105.25), DAY, [STATION, 0.0])
FILES: dict[str, Expected] = {
    "allnull/a.arrow": rows(1, ["v:float", "s:text"], PLACE, DAY, [1.0, "a"]),
    "allnull/a.csv": rows(1, ["v:float", "s:text"], PLACE, DAY, [1.0, "a"]),
    "allnull/a.geojson": rows(1, ["v:float", "s:text"], (2.0, 1.0), DAY, [1.0, "a"]),
    "allnull/a.ndjson": rows(1, ["v:float", "s:text"], PLACE, DAY, [1.0, "a"]),
    "allnull/a.parquet": rows(1, ["v:float", "s:text"], PLACE, DAY, [1.0, "a"]),
    "empty/e.csv": refused(InputError, "features", None),
    "empty/e.geojson": refused(InputError, "features", None),
    "empty/e.ndjson": refused(InputError, "features", None),
    "empty/e.parquet": rows(0, ["v:float"]),
    "empty/e0.ndjson": refused(InputError, "features", None),
    "empty/noeol.csv": refused(InputError, "features", None),
    "empty/nogeom.geojson": rows(0, ["v:int"]),
    "empty/nulls.geojson": refused(InputError, "features", None),
    "json/1e999.geojson": refused(InputError, "properties_of_one_type", None),
    "json/bbox_member.geojson": rows(1, ["v:float"], PLACE, DAY, [1.0]),
    "json/bool.geojson": rows(1, ["v:bool"], PLACE, DAY, [True]),
    "json/case_collide.geojson": rows(1, ["mag_2:float", "mag:float"], PLACE, DAY, [1.0, 2.0]),
    "json/crs_3857.geojson": refused(InputError, "crs", None),
    "json/crs_4326_latlon.geojson": rows(1, ["v:float"], PLACE, DAY, [1.0]),
    "json/date_prop.geojson": rows(2, ["v:text"], PLACE, DAY, ["2014-03-01T00:00:00Z"]),
    "json/date_prop_all.geojson": rows(2, ["v:text"], PLACE, DAY, ["2014-03-01"]),
    "json/dup_keys.geojson": refused(InputError, "properties_of_one_type", None),
    "json/elev_mixed.geojson": rows(2, ["v:float", "elevation:int"], PLACE, DAY, [1.0, 5]),
    "json/empty_coll.geojson": refused(InputError, "features", None),
    "json/empty_point.geojson": refused(InputError, "coordinates", None),
    "json/features_first.geojson": rows(1, ["v:float"], PLACE, DAY, [1.0]),
    "json/float_then_int.geojson": rows(2, ["v:float"], (40.5, -105.0), DAY, [1.5]),
    "json/geom_multipoint.geojson": refused(InputError, "points", None),
    "json/huge_int.geojson": rows(2, ["v:float"], PLACE, DAY, [1.2345678901234567e19]),
    "json/id_int_and_prop_id.geojson": rows(1, ["v:float", "id:text"], PLACE, DAY, [1.0, "p"]),
    "json/ids.geojson": rows(2, ["v:float", "id:text"], PLACE, DAY, [1.0, "a"]),
    "json/int_2^53.geojson": rows(2, ["v:int"], PLACE, DAY, [9007199254740993]),
    "json/int_2^53_with_float.geojson": rows(2, ["v:float"], PLACE, DAY, [9007199254740992.0]),
    "json/int_then_float.geojson": rows(2, ["v:float"], PLACE, DAY, [1.0]),
    "json/lat_prop_conflict.geojson": rows(1, ["v:float"], PLACE, DAY, [1.0]),
    "json/lat_prop_short.geojson": rows(
        1, ["v:float", "lat:float", "lon:float"], PLACE, DAY, [1.0, 50.0, 10.0]
    ),
    "json/lone_surrogate.geojson": refused(InputError, "properties_of_one_type", None),
    "json/missing_props.geojson": rows(2, ["v:float", "w:float"], PLACE, DAY, [1.0, None]),
    "json/nan_literal.geojson": rows(0, ["v:float"]),
    "json/nd_array_top.ndjson": rows(1, ["v:int"], PLACE, DAY, [1]),
    "json/nd_crlf.ndjson": rows(2, ["v:int"], PLACE, DAY, [1]),
    "json/nd_geojsonl.ndjson": refused(InputError, "json_lines", None),
    "json/nd_leadzero.ndjson": rows(1, ["site:text", "v:int"], PLACE, DAY, ["01646500", 1]),
    "json/nd_mixed_cols.ndjson": rows(2, ["v:int", "w:text"], PLACE, DAY, [1, None]),
    "json/nd_text_date.ndjson": rows(
        1, ["d:text", "v:int"], PLACE, DAY, ["2014-03-01T00:00:00Z", 1]
    ),
    "json/nd_time_float.ndjson": rows(1, ["v:int"], PLACE, "1970-01-17T03:07:12.000500Z", [1]),
    "json/nd_time_tz.ndjson": rows(1, ["v:int"], PLACE, "2014-02-28T18:30:00Z", [1]),
    "json/nested.geojson": rows(1, ["v:float"], PLACE, DAY, [1.0]),
    "json/null_geometry.geojson": rows(1, ["v:float"], PLACE, DAY, [1.0]),
    "json/null_props.geojson": rows(1, ["v:float"], PLACE, DAY, [1.0]),
    "json/polygon_mixed.geojson": refused(InputError, "properties_of_one_type", None),
    "json/str_vs_num.geojson": refused(InputError, "properties_of_one_type", None),
    "json/text_seq_RS.geojson": refused(InputError, "objects", None),
    "json/time_date.geojson": rows(2, ["v:float"], PLACE, DAY, [1.0]),
    "json/time_epoch_ms_float.geojson": rows(
        1, ["v:float"], PLACE, "2014-03-01T00:00:00.123500Z", [1.0]
    ),
    "json/time_epoch_ms_int.geojson": rows(
        1, ["v:float"], PLACE, "2014-03-01T00:00:00.123000Z", [1.0]
    ),
    "json/time_epoch_s_int.geojson": rows(1, ["v:float"], PLACE, "1970-01-17T03:07:12Z", [1.0]),
    "json/unicode_esc.geojson": rows(1, ["v:text"], PLACE, DAY, ["é😀"]),
    "parquet/data-polygon-encoding_native.parquet": refused(InputError, "points", None),
    "parquet/delta_length_byte_array.parquet": refused(InputError, "coordinate", None),
    "pq/NaT_int64_epoch_ms.parquet": refused(InvalidObservations, None, 0, mapping=MILLISECONDS),
    "pq/NaT_int64_epoch_s.parquet": refused(InvalidObservations, None, 0, mapping=SECONDS),
    "pq/all_lists.parquet": refused(InputError, "features", None),
    "pq/arrow_DELTA_BYTE_ARRAY.parquet": STATIONS,
    "pq/arrow_DELTA_LENGTH_BYTE_ARRAY.parquet": STATIONS,
    "pq/arrow_PLAIN.parquet": STATIONS,
    "pq/arrow_ext_uuid.arrow": rows(2, ["w:float"], PLACE, DAY, [1.0]),
    "pq/arrow_listview.arrow": rows(2, ["w:float"], PLACE, DAY, [1.0]),
    "pq/arrow_ree.arrow": rows(2, ["v:float", "w:float"], PLACE, DAY, [1.5, 1.0]),
    "pq/arrow_union.arrow": rows(2, ["w:float"], PLACE, DAY, [1.0]),
    "pq/arrow_views.arrow": rows(2, ["v:text"], PLACE, DAY, ["a"]),
    "pq/binary.parquet": rows(2, ["w:float"], PLACE, DAY, [1.0]),
    "pq/bool.parquet": rows(1, ["v:bool"], PLACE, DAY, [True]),
    "pq/case_collide.parquet": rows(2, ["temp_2:float", "temp:float"], PLACE, DAY, [1.0, 2.0]),
    "pq/collide_rev.parquet": rows(2, ["temp:float", "temp_2:float"], PLACE, DAY, [2.0, 1.0]),
    "pq/date32.parquet": rows(2, ["v:text", "w:float"], PLACE, DAY, ["2014-01-01", 1.0]),
    "pq/decimal.parquet": rows(1, ["v:float"], PLACE, DAY, [1.2345678901234568e16]),
    "pq/decimal0.parquet": rows(1, ["v:float"], PLACE, DAY, [1.2345678901234567e19]),
    "pq/dict.parquet": rows(2, ["v:text"], PLACE, DAY, ["a"]),
    "pq/dup_cols.parquet": refused(InputError, "unique", None),
    "pq/duration.parquet": rows(2, ["w:float"], PLACE, DAY, [1.0]),
    "pq/epoch_f64_precision.parquet": rows(
        1, ["v:float"], PLACE, "2014-03-01T00:00:00.123457Z", [1.0], mapping=SECONDS
    ),
    "pq/f16.parquet": rows(2, ["v:float32", "w:float"], PLACE, DAY, [1.5, 1.0]),
    "pq/int64max_ms.parquet": refused(InvalidObservations, None, 0, mapping=MILLISECONDS),
    "pq/int96.parquet": rows(2, ["v:float"], PLACE, DAY, [1.0]),
    "pq/lat_decimal.parquet": rows(1, ["v:float"], (40.1, -105.10000000000001), DAY, [1.0]),
    "pq/lat_expr.parquet": rows(
        1,
        ["latitude_value:float", "v:float"],
        (40.1234567, -105.0),
        DAY,
        [40.0, 1.0],
        mapping="latitude=e7/10000000",
    ),
    "pq/lat_f32.parquet": rows(
        1, ["v:float"], (40.099998474121094, -105.0999984741211), DAY, [1.0]
    ),
    "pq/lat_int.parquet": rows(1, ["v:float"], PLACE, DAY, [1.0]),
    "pq/lat_text.parquet": rows(1, ["v:float"], (40.1, -105.1), DAY, [1.0]),
    "pq/list_struct.parquet": rows(2, ["w:float"], PLACE, DAY, [1.0]),
    "pq/map.parquet": rows(2, ["w:float"], PLACE, DAY, [1.0]),
    "pq/neg_zero_nan.parquet": rows(2, ["v:float", "w:float"], PLACE, DAY, [-0.0, 1.0]),
    "pq/ns_as_ms.parquet": refused(InvalidObservations, None, 0, mapping=MILLISECONDS),
    "pq/null.parquet": rows(2, ["w:float"], PLACE, DAY, [1.0]),
    "pq/parts_2-digit.parquet": rows(1, ["v:float"], PLACE, "0014-03-01T00:00:00Z", [1.0]),
    "pq/parts_day_0.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/parts_float_fill.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/parts_frac_day.parquet": rows(1, ["v:float"], PLACE, "2014-03-01T18:00:00Z", [1.0]),
    "pq/parts_frac_year.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/parts_hour_24.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/parts_hour_5.5.parquet": rows(1, ["v:float"], PLACE, "2014-03-01T05:30:00Z", [1.0]),
    "pq/parts_inf.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/parts_neg_min.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/parts_sec_60.5.parquet": rows(1, ["v:float"], PLACE, "2014-03-01T06:00:00.500000Z", [1.0]),
    "pq/parts_year_-9999.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/parts_year_1000000000.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/parts_year_1000000000000.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/parts_year_1000000000000000.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/parts_year_20140301.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/parts_year_292277.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/parts_year_584555.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/parts_year_99999999.parquet": refused(InvalidObservations, "time_parts", 0),
    "pq/punct_collide.parquet": rows(2, ["pm2_5_2:float", "pm2_5:float"], PLACE, DAY, [1.0, 2.0]),
    "pq/reserved.parquet": rows(
        2, ["geohash_value:text", "geometry_value:float", "id:int"], PLACE, DAY, ["abc", 1.0, 1]
    ),
    "pq/suffix_collide.parquet": rows(
        2, ["t:float", "t_3:float", "t_2:float"], PLACE, DAY, [1.0, 2.0, 3.0]
    ),
    "pq/time32.parquet": rows(2, ["v:text", "w:float"], PLACE, DAY, ["01:02:03.000", 1.0]),
    "pq/time_date32.parquet": rows(1, ["v:float"], PLACE, DAY, [1.0]),
    "pq/time_dictionary.parquet": rows(1, ["v:float"], PLACE, "2014-03-01T06:00:00Z", [1.0]),
    "pq/time_epoch_ms_float.parquet": rows(
        1, ["v:float"], PLACE, "2014-03-01T00:00:00.123456Z", [1.0], mapping=MILLISECONDS
    ),
    "pq/time_epoch_s_float_big.parquet": refused(InvalidObservations, None, 0, mapping=SECONDS),
    "pq/time_epoch_s_nan.parquet": rows(
        1, ["v:float"], (41.0, -105.0), "2014-03-01T00:00:00.500000Z", [2.0], mapping=SECONDS
    ),
    "pq/time_epoch_s_overflow.parquet": refused(InvalidObservations, None, 0, mapping=SECONDS),
    "pq/time_epoch_s_overflow2.parquet": refused(InvalidObservations, None, 0, mapping=SECONDS),
    "pq/time_epoch_s_text.parquet": rows(
        1, ["v:float"], PLACE, "2014-03-01T00:00:00.250000Z", [1.0], mapping=SECONDS
    ),
    "pq/time_epoch_s_u64.parquet": rows(1, ["v:float"], PLACE, DAY, [1.0], mapping=SECONDS),
    "pq/time_int.parquet": rows(1, ["v:float"], PLACE, DAY, [1.0], mapping="time=epoch_s(time)"),
    "pq/time_large.parquet": rows(1, ["v:float"], PLACE, "2014-03-01T06:00:00Z", [1.0]),
    "pq/time_tz.parquet": rows(1, ["v:float"], PLACE, "2014-03-01T06:00:00Z", [1.0]),
    "pq/ts_ns_text.parquet": rows(
        2, ["v:text", "w:float"], PLACE, DAY, ["2014-03-01 00:00:00.123456789", 1.0]
    ),
    "pq/ts_tz_text.parquet": rows(
        2, ["v:text", "w:float"], PLACE, DAY, ["2014-01-01 05:00:00.000000-0700", 1.0]
    ),
    "pq/uint64.parquet": refused(InvalidObservations, None, 0),
    "pq/uint64_small.parquet": rows(2, ["v:int"], PLACE, DAY, [7]),
}
FOLDERS = sorted({name.partition("/")[0] for name in FILES})


@pytest.fixture
def inputs(sample_data: Path) -> Path:
    if not (sample_data / "trial-inputs").is_dir():
        pytest.skip("the sample files have no folder trial-inputs")
    return sample_data / "trial-inputs"


def test_each_file_has_an_expected_result(inputs: Path) -> None:
    present = {f"{name}/{path.name}" for name in FOLDERS for path in (inputs / name).iterdir()}
    assert present == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_file_gives_its_rows_or_is_refused(inputs: Path, name: str) -> None:
    expected, path = FILES[name], inputs / name

    def read() -> tuple[pa.Table, list[str], list[str]]:
        source = open_source(path, mapping=Mapping.parse(expected.mapping.split()))
        schema = suggest_schema(source, "x")
        batches = [normalise(schema, table) for table in source.bound_to(schema).batches()]
        table = pa.concat_tables([schema.observation_schema.empty_table(), *batches])
        features = [f"{feature.name}:{feature.type}" for feature in schema.features]
        return table, [feature.name for feature in schema.features], features

    if expected.error is not None:
        with raises(expected.error, **dict(expected.details)):
            read()
        return
    table, names, features = read()
    assert (table.num_rows, features) == (expected.count, list(expected.features))
    if table.num_rows:
        [row] = table.slice(0, 1).to_pylist()
        time = iso(int(column_micros(table.column("time"))[0]))
        place = (row["latitude"], row["longitude"])
        assert (place, time, [row[name] for name in names]) == expected.first


def test_rows_of_tables_are_read_or_refused(inputs: Path) -> None:
    path = inputs / "parquet" / "delta_length_byte_array.parquet"
    table = Table("t", {"FRUIT": "text"}, key="FRUIT")
    stored = versions_of(table, pa.concat_tables(open_rows(path, table.arrow_schema)))
    assert (stored.num_rows, stored.column("FRUIT")[0].as_py()) == (1000, "apple_banana_mango0")
    path = inputs / "parquet" / "data-polygon-encoding_native.parquet"
    table = Table("t", {"col": "int", "geometry": "geometry"}, key="col")
    with raises(InvalidObservations, column="geometry", expected="wkb"):
        versions_of(table, pa.concat_tables(open_rows(path, table.arrow_schema)))


def test_column_or_file_without_values_fits_an_existing_dataset(inputs: Path) -> None:
    feed = Schema("x", [Feature("v"), Feature("gust"), Feature("s", type="text")])
    for path in sorted((inputs / "allnull").iterdir()):
        [table] = open_source(path, schema=feed).batches()
        values = table.select(["v", "gust", "s"]).to_pylist()
        assert values == [{"v": 1.0, "gust": None, "s": "a"}], path
    for path in sorted((inputs / "empty").iterdir()):
        assert list(open_source(path, schema=Schema("x", [Feature("v")])).batches()) == [], path
