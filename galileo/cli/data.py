"""`galileo create`, `ingest`, `query`, `read`: observations in and out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import pyarrow as pa

from galileo.cli.ccq import LABELS_SHOWN, show_labels
from galileo.cli.output import Output, failing_well
from galileo.cli.sampler_options import SamplerChoice, sampler_options
from galileo.cli.session import Session, json_option
from galileo.cli.table_streams import FORMATS, STDOUT, format_of, writing
from galileo.client import Client, Labels, QueryEnd, Receipt
from galileo.errors import UnknownDataset
from galileo.formats import Mapping, Source, open_source, suggest_schema
from galileo.model.observations import normalise
from galileo.model.schema import Feature, Schema
from galileo.samplers import SamplerSpec

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("dataset")
@click.option(
    "--feature",
    "features",
    multiple=True,
    required=True,
    metavar="NAME[:UNIT[:TYPE]]",
    help="A feature, in the order of the graph's levels; TYPE is float, int, text or bool.",
)
@click.option("--precision", default=5, show_default=True, help="Geohash characters of a block.")
@click.option("--bucket", default="1h", show_default=True, help="Width of a block in time.")
@json_option
@click.pass_obj
@failing_well
def create(
    session: Session, *, dataset: str, features: tuple[str, ...], precision: int, bucket: str
) -> None:
    """Create a dataset.

    \b
    Example:
      galileo create stations --feature temperature:K --feature wind_speed:m/s --bucket 10m
    """
    schema = Schema(
        dataset,
        [_feature(text) for text in features],
        geohash_precision=precision,
        time_bucket=bucket,
    )
    with session.client() as client:
        client.create_dataset(schema)
    session.output.value(schema.to_dict(), words=f"dataset {dataset} is there")


@click.command()
@click.argument("dataset")
@click.argument("files", nargs=-1, required=True, type=_FILE)
@click.option("--map", "maps", multiple=True, metavar="FEATURE=SOURCE", help="See docs/input.md.")
@click.option("--format", "file_format", help="Of the files, where their names do not tell.")
@click.option("--create", "make", is_flag=True, help="Create the dataset from the first file.")
@click.option("--precision", default=5, show_default=True, help="With --create.")
@click.option("--bucket", default="1h", show_default=True, help="With --create.")
@click.option("--list", "only_list", is_flag=True, help="Show what the files offer, and stop.")
@json_option
@click.pass_obj
@failing_well
def ingest(
    session: Session,
    *,
    dataset: str,
    files: tuple[Path, ...],
    maps: tuple[str, ...],
    file_format: str | None,
    make: bool,
    precision: int,
    bucket: str,
    only_list: bool,
) -> None:
    """Ingest files of observations: CSV, GeoJSON, Parquet, Arrow, NetCDF, GRIB.

    Running the same command again stores nothing twice: batches are known by the file's
    content, so an ingest that broke off is resumed by repeating it.

    \b
    Example:
      galileo ingest nam nam.t00z.grib2 --create --map temperature=2t \\
          --map "wind_speed=hypot(10u, 10v)"
    """
    mapping = Mapping.parse(maps) if maps else None
    if only_list:
        _list_variables(session.output, files, mapping=mapping, file_format=file_format)
        return
    with session.client() as client:
        first = open_source(files[0], mapping=mapping, format=file_format)
        schema, is_new = _schema(
            client, dataset, first if make else None, precision=precision, bucket=bucket
        )
        for path in files:
            source = open_source(path, mapping=mapping, schema=schema, format=file_format)
            batches = source.batches()
            if is_new:
                batches = _create_once_readable(client, schema, batches)
                is_new = False
                _tell_created(session.output, schema)
            _ingest_file(session.output, client, source, dataset=dataset, batches=batches)


def _output_options(what: str) -> Callable[[F], F]:
    """`--output` and `--format`, of a command that can write `what` to a file."""

    def decorated(command: F) -> F:
        output = click.option(
            "--output",
            "--out",
            "output",
            metavar="FILE",
            help=f"Write all {what} to a file (.parquet, .geoparquet, .geojson, .arrow, .csv, "
            ".ndjson), or - for stdout.",
        )
        file_format = click.option(
            "--format",
            "file_format",
            type=click.Choice(FORMATS),
            help="Of --output, where its name does not tell.",
        )
        return output(file_format(command))

    return decorated


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=LABELS_SHOWN,
    show_default=True,
    help="Labels to show.",
)
@sampler_options
@_output_options("labels")
@json_option
@click.pass_obj
@failing_well
def query(
    session: Session,
    *,
    dataset: str,
    query: str,
    limit: int,
    sampler: SamplerChoice,
    output: str | None,
    file_format: str | None,
) -> None:
    """Ask once: the labels of all blocks that match a CQL2 query.

    With --output they are written as they come, however many there are. With --sampler they are
    thinned where they are stored; --sampler-file sends one along, where the nodes allow it.

    \b
    Example:
      galileo query nam "temperature > 290 AND S_INTERSECTS(geometry, BBOX(-110, 35, -100, 42))"
      galileo query nam "temperature > 290" --output - --format csv | head
      galileo query nam --sampler reservoir --option n=1000 --seed 7
    """
    chosen = sampler.spec()
    with session.client() as client:
        if output is not None:
            target = Target(output, file_format)
            _write_labels(session.output, client, (dataset, query), target, sampler=chosen)
            return
        with session.output.counting(dataset, unit="labels") as come:
            labels = client.query(dataset, query, sampler=chosen, progress=come)
    if session.output.as_json:
        session.output.value(
            {
                "labels": labels.to_arrow().to_pylist(),
                "complete": labels.complete,
                "missing": labels.missing,
            }
        )
    else:
        show_labels(session, labels, limit=limit)


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@_output_options("observations")
@click.option("--whole-blocks", is_flag=True, help="All observations of the matching paths.")
@click.option(
    "--limit", type=click.IntRange(0), default=LABELS_SHOWN, show_default=True, help="Rows to show."
)
@json_option
@click.pass_obj
@failing_well
def read(
    session: Session,
    *,
    dataset: str,
    query: str,
    output: str | None,
    file_format: str | None,
    whole_blocks: bool,
    limit: int,
) -> None:
    """Download the observations that match a query.

    With --output they are written as they come, however many there are.

    \b
    Example:
      galileo read nam "temperature > 290" --output warm.parquet
    """
    with session.client() as client:
        if output is not None:
            target = Target(output, file_format)
            _write_rows(session.output, client, dataset, query, target, exact=not whole_blocks)
            return
        with session.output.counting(dataset, unit="labels") as come:
            labels = client.query(dataset, query, progress=come)
        with session.output.counting(dataset, unit="observations") as come:
            table = client.read(labels, exact=not whole_blocks, progress=come)
    if session.output.as_json:
        session.output.value({"rows": table.to_pylist(), "complete": labels.complete})
        return
    session.output.rows(table.slice(0, limit).to_pylist())
    session.output.value(None, words=f"{table.num_rows:,} observations")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a command writes to, and the format that it was told."""

    output: str
    format: str | None


def _write_labels(
    output: Output,
    client: Client,
    asked: tuple[str, str],
    target: Target,
    *,
    sampler: SamplerSpec | None,
) -> None:
    dataset, query = asked
    schema = client.schema(dataset)
    columns = Labels.empty(schema).to_arrow().schema
    with client.query_batches(dataset, query, sampler=sampler) as batches:
        tables = (labels.to_arrow() for labels in batches)
        rows = _write(output, tables, columns, target=target, unit="labels")
        _tell_written(output, batches.end, target, unit="labels", rows=rows)


def _write_rows(
    output: Output, client: Client, dataset: str, query: str, target: Target, *, exact: bool
) -> None:
    """Reads the observations of each batch of labels while the next one waits."""
    columns = client.schema(dataset).observation_schema
    with client.query_batches(dataset, query) as batches:
        tables = (table for labels in batches for table in client.read_batches(labels, exact=exact))
        rows = _write(output, tables, columns, target=target, unit="observations")
        _tell_written(output, batches.end, target, unit="observations", rows=rows)


def _write(
    output: Output, tables: Iterable[pa.Table], columns: pa.Schema, *, target: Target, unit: str
) -> int:
    """Writes tables as they come; how many rows they had."""
    rows = 0
    file_format = format_of(target.output, target.format)
    with (
        writing(target.output, columns, format=file_format) as writer,
        output.progress(unit=unit) as bar,
    ):
        task = bar.add_task(target.output, total=None)
        for table in tables:
            writer.write(table)
            rows += table.num_rows
            bar.advance(task, table.num_rows)
    return rows


def _tell_written(
    output: Output, end: QueryEnd | None, target: Target, *, unit: str, rows: int
) -> None:
    missing = end.missing if end is not None else ()
    note = f"; partitions {list(missing)} are missing" if missing else ""
    words = f"{rows:,} {unit} written to {target.output}{note}"
    if target.output == STDOUT:
        if missing or not output.as_json:
            click.echo(words, err=True)
        return
    kind = "labels" if unit == "labels" else "rows"
    told = {kind: rows, "complete": not missing, "missing": missing, "file": target.output}
    output.value(told, words=words)


def _feature(text: str) -> Feature:
    name, _, rest = text.partition(":")
    unit, _, kind = rest.rpartition(":") if rest.count(":") else (rest, "", "")
    return Feature(name, unit=unit, type=kind or "float")  # type: ignore[arg-type]


def _schema(
    client: Client, dataset: str, suggested: Source | None, *, precision: int, bucket: str
) -> tuple[Schema, bool]:
    """The dataset's schema, and whether the dataset has yet to be created."""
    try:
        return client.schema(dataset), False
    except UnknownDataset:
        if suggested is None:
            raise
    schema = suggest_schema(suggested, dataset, geohash_precision=precision, time_bucket=bucket)
    return schema, True


def _create_once_readable(
    client: Client, schema: Schema, batches: Iterator[pa.Table]
) -> Iterator[pa.Table]:
    """Creates the dataset when the first batch has been read and fits; all batches.

    A schema is for ever. A file or mapping that turns out to be wrong must not leave one behind.
    """
    first = list(itertools.islice(batches, 1))
    for table in first:
        normalise(schema, table)
    client.create_dataset(schema)
    return itertools.chain(first, batches)


def _tell_created(output: Output, schema: Schema) -> None:
    """What became of the columns, above all their types, which nobody named."""
    if not output.as_json:
        told = [
            f"{feature.name} ({', '.join(filter(None, [feature.unit, feature.type]))}"
            f"{'' if feature.indexed else ', not indexed'})"
            for feature in schema.features
        ]
        listed = f"{', '.join(told[:-1])} and {told[-1]}" if len(told) > 1 else told[0]
        output.value(None, words=f"dataset {schema.name} is there, with {listed}")


def _ingest_file(
    output: Output,
    client: Client,
    source: Source,
    *,
    dataset: str,
    batches: Iterator[pa.Table],
) -> None:
    with output.progress(unit="rows") as bar:
        task = bar.add_task(source.path.name, total=source.rows)
        receipt: Receipt = client.ingest(
            dataset,
            batches,
            producer=source.digest(),
            progress=lambda rows: bar.advance(task, rows),
        )
    skipped = f", {source.skipped:,} points without a value skipped" if source.skipped else ""
    again = f", {receipt.duplicate_rows:,} of them stored before" if receipt.duplicate_rows else ""
    output.value(
        {
            "file": str(source.path),
            "rows": receipt.rows,
            "duplicate_rows": receipt.duplicate_rows,
            "skipped": source.skipped,
            "paths": receipt.paths,
            "reached": receipt.reached,
        },
        words=f"{source.path.name}: {receipt.rows:,} observations stored{again}{skipped}",
    )


def _list_variables(
    output: Output,
    files: Sequence[Path],
    *,
    mapping: Mapping | None,
    file_format: str | None,
) -> None:
    rows: list[dict[str, Any]] = []
    for path in files:
        source = open_source(path, mapping=mapping, format=file_format)
        rows += [
            {
                "file": path.name,
                "variable": variable.name,
                "units": variable.units,
                "dimensions": ", ".join(map(str, variable.dims)),
                "description": variable.description,
            }
            for variable in source.variables()
        ]
    output.rows(rows, empty="The files offer no variables.")
