"""What describes features goes with every export that can carry it, and comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from generated_schemas import NUMBERS, schemas, schemas_of, tables
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rdflib import RDF, RDFS, Graph, Namespace, URIRef

from galileo.client.geo_files import write_geoparquet
from galileo.client.grids import to_xarray
from galileo.client.table_formats import WRITERS
from galileo.formats import Mapping, open_source, suggest_schema
from galileo.formats.csv_options import CsvOptions
from galileo.formats.memory import open_grid, open_table
from galileo.formats.source import Source
from galileo.model.feature_metadata import from_field, with_metadata
from galileo.model.schema import Feature, Schema
from galileo.rdf import terms, to_rdf

GALILEO = Namespace(terms.NS)

repeated = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
cases = schemas.flatmap(lambda schema: st.tuples(st.just(schema), tables(schema)))
number_cases = schemas_of(NUMBERS, by=lambda feature: feature.name.lower()).flatmap(
    lambda schema: st.tuples(st.just(schema), tables(schema))
)


def suggested(source: Source, schema: Schema, *, index: bool = True) -> Schema:
    """What --create makes of a file, with the names and the options of a schema."""
    return suggest_schema(
        source,
        schema.name,
        geohash_precision=schema.geohash_precision,
        time_bucket=schema.time_bucket_us / 1e6,
        index=[feature.name for feature in schema.indexed],
    )


def mapping_of(schema: Schema, **options: Any) -> Mapping:
    return Mapping.of({one.name: f"`{one.name}`" for one in schema.features}, **options)


def assert_same_rows(source: Source, schema: Schema, table: pa.Table) -> None:
    """Whether a file has the rows of a table but for those without a value."""
    read = pa.concat_tables(source.bound_to(schema).batches())
    features = [table.column(feature.name).is_valid() for feature in schema.features]
    has_value = np.logical_or.reduce([np.asarray(one) for one in features])
    assert read.cast(schema.observation_schema).equals(
        table.filter(pa.array(has_value)).cast(schema.observation_schema)
    )


@pytest.mark.parametrize("format", ["parquet", "geoparquet", "arrow"])
@repeated
@given(case=cases)
def test_files_with_types_bring_back_an_equal_schema(
    tmp_path: Path, format: str, case: tuple[Schema, pa.Table]
) -> None:
    schema, table = case
    path = tmp_path / f"rows.{format.replace('geo', '')}"
    with path.open("wb") as sink:
        writer = WRITERS[format](sink, table.schema)
        writer.write(table)
        writer.close()
    source = open_source(path, mapping=mapping_of(schema))
    assert suggested(source, schema) == schema
    assert_same_rows(source, schema, table)


@repeated
@given(case=cases)
def test_tables_in_memory_bring_back_an_equal_schema(case: tuple[Schema, pa.Table]) -> None:
    schema, table = case
    mapping = mapping_of(schema)
    source = Source(None, open_table(table, mapping), format="", mapping=mapping, schema=None)
    assert suggested(source, schema) == schema


@pytest.mark.parametrize("as_file", [False, True])
@repeated
@given(case=number_cases)
def test_netcdf_and_xarray_bring_back_an_equal_schema(
    tmp_path: Path, as_file: bool, case: tuple[Schema, pa.Table]
) -> None:
    schema, table = case
    dataset = to_xarray(table, schema)
    mapping = mapping_of(schema)
    if as_file:
        path = tmp_path / "rows.nc"
        dataset.to_netcdf(path)
        source = open_source(path, mapping=mapping)
    else:
        source = Source(None, open_grid(dataset, mapping), format="", mapping=mapping, schema=None)
    assert suggested(source, schema) == schema
    assert_same_rows(source, schema, table)


@repeated
@given(case=cases)
def test_csv_with_a_line_of_units_brings_back_the_units(
    tmp_path: Path, case: tuple[Schema, pa.Table]
) -> None:
    schema, table = case
    path = tmp_path / "rows.csv"
    with path.open("wb") as sink:
        writer = WRITERS["csv-units"](sink, table.schema)
        writer.write(table)
        writer.close()
    lines = path.read_text().splitlines()
    assert lines[1].startswith("degrees_north,degrees_east,UTC,")
    source = open_source(path, mapping=Mapping.of(None, csv=CsvOptions(units=True)))
    found = {variable.name: variable.about.unit for variable in source.variables()}
    assert found == {feature.name: feature.unit for feature in schema.features}
    assert_same_rows(source, schema, table)


@pytest.mark.parametrize("format", ["csv", "ndjson", "geojson"])
@repeated
@given(case=cases)
def test_files_without_types_bring_back_equal_rows(
    tmp_path: Path, format: str, case: tuple[Schema, pa.Table]
) -> None:
    schema, table = case
    path = tmp_path / f"rows.{format}"
    with path.open("wb") as sink:
        writer = WRITERS[format](sink, table.schema)
        writer.write(table)
        writer.close()
    assert_same_rows(open_source(path), schema, table)


def test_csv_has_no_line_of_units_unless_it_is_asked_for(tmp_path: Path) -> None:
    schema = Schema("air", [Feature("t", unit="K")])
    with (path := tmp_path / "rows.csv").open("wb") as sink:
        WRITERS["csv"](sink, with_metadata(schema.observation_schema, schema.features)).close()
    assert path.read_text() == '"latitude","longitude","time","t"\n'


def test_metadata_of_arrow_fields_are_attributes_of_cf(tmp_path: Path) -> None:
    qc = Feature("qc", type="int", flags={1: "good", 4: "bad"}, standard_name="quality_flag")
    schema = Schema("buoys", [Feature("t", unit="degC", description="sea surface"), qc])
    columns = with_metadata(schema.observation_schema, schema.features)
    assert columns.field("qc").metadata == {
        b"standard_name": b"quality_flag",
        b"flag_values": b"1 4",
        b"flag_meanings": b"good bad",
    }
    write_geoparquet(columns.empty_table(), tmp_path / "empty.parquet")
    read = pq.read_schema(tmp_path / "empty.parquet")
    assert from_field(read.field("t")).unit == "degC"
    assert from_field(read.field("t")).description == "sea surface"
    assert dict(from_field(read.field("qc")).flags) == qc.flags


@repeated
@given(schema=schemas)
def test_rdf_brings_back_what_describes_indexed_features(schema: Schema) -> None:
    graph = Graph(bind_namespaces="none").parse(data=to_rdf._dataset(schema).decode(), format="nt")
    root = URIRef(terms.VERTEX + schema.name)
    read = {}
    for iri in graph.objects(root, GALILEO.hasFeature):
        flags = {
            graph.value(flag, RDF.value).toPython(): str(graph.value(flag, RDFS.label))
            for flag in graph.objects(iri, GALILEO.flag)
        }
        name, unit = str(graph.value(iri, GALILEO.name)), str(graph.value(iri, GALILEO.unit) or "")
        standard_name = str(graph.value(iri, GALILEO.standardName) or "")
        description = str(graph.value(iri, RDFS.comment) or "")
        read[name] = (unit, standard_name.removeprefix(terms.STANDARD_NAME), description, flags)
        qudt = graph.value(iri, URIRef(terms.QUDT + "hasUnit"))
        known = terms.QUDT_UNITS.get(unit)
        assert qudt == (URIRef(terms.QUDT_UNIT + known) if known else None)
    assert read == {
        feature.name: (feature.unit, feature.standard_name, feature.description, feature.flags)
        for feature in schema.indexed
    }
    assert Schema.from_json(schema.to_json()) == schema
