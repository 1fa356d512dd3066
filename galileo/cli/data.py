"""`galileo create`, `ingest`, `query`, `read`: observations in and out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from galileo.cli.ccq import LABELS_SHOWN, show_labels
from galileo.cli.output import Output, failing_well
from galileo.cli.session import Session, json_option
from galileo.cli.table_files import write_table
from galileo.client import Client, Receipt
from galileo.errors import UnknownDataset
from galileo.formats import Mapping, Source, open_source, suggest_schema
from galileo.model.schema import Feature, Schema

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
      galileo ingest nam nam.t00z.grib2 --create --map temperature=t@surface \\
          --map "wind_speed=hypot(10u, 10v)"
    """
    mapping = Mapping.parse(maps) if maps else None
    if only_list:
        _list_variables(session.output, files, mapping=mapping, file_format=file_format)
        return
    with session.client() as client:
        first = open_source(files[0], mapping=mapping, format=file_format)
        schema = _schema(
            client, dataset, first if make else None, precision=precision, bucket=bucket
        )
        for path in files:
            source = open_source(path, mapping=mapping, schema=schema, format=file_format)
            _ingest_file(session.output, client, source, dataset=dataset)


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@click.option("--limit", default=LABELS_SHOWN, show_default=True, help="Labels to show.")
@click.option("--out", type=click.Path(path_type=Path), help="Write all labels to a file instead.")
@json_option
@click.pass_obj
@failing_well
def query(session: Session, *, dataset: str, query: str, limit: int, out: Path | None) -> None:
    """Ask once: the labels of all blocks that match a CQL2 query.

    \b
    Example:
      galileo query nam "temperature > 290 AND S_INTERSECTS(geometry, BBOX(-110, 35, -100, 42))"
    """
    with session.client() as client:
        labels = client.query(dataset, query)
    if out is not None:
        write_table(labels.to_arrow(), out)
        session.output.value(
            {"labels": len(labels), "complete": labels.complete, "file": str(out)},
            words=f"{len(labels):,} labels written to {out}",
        )
    elif session.output.as_json:
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
@click.option("--out", type=click.Path(path_type=Path), help="CSV, Parquet or Arrow file.")
@click.option("--whole-blocks", is_flag=True, help="All observations of the matching paths.")
@click.option("--limit", default=LABELS_SHOWN, show_default=True, help="Rows to show.")
@json_option
@click.pass_obj
@failing_well
def read(
    session: Session,
    *,
    dataset: str,
    query: str,
    out: Path | None,
    whole_blocks: bool,
    limit: int,
) -> None:
    """Download the observations that match a query.

    \b
    Example:
      galileo read nam "temperature > 290" --out warm.parquet
    """
    with session.client() as client:
        labels = client.query(dataset, query)
        table = client.read(labels, exact=not whole_blocks)
    if out is not None:
        write_table(table, out)
        session.output.value(
            {"rows": table.num_rows, "complete": labels.complete, "file": str(out)},
            words=f"{table.num_rows:,} observations written to {out}",
        )
        return
    if session.output.as_json:
        session.output.value({"rows": table.to_pylist(), "complete": labels.complete})
        return
    session.output.rows(table.slice(0, limit).to_pylist())
    session.output.value(None, words=f"{table.num_rows:,} observations")


def _feature(text: str) -> Feature:
    name, _, rest = text.partition(":")
    unit, _, kind = rest.rpartition(":") if rest.count(":") else (rest, "", "")
    return Feature(name, unit=unit, type=kind or "float")  # type: ignore[arg-type]


def _schema(
    client: Client, dataset: str, suggested: Source | None, *, precision: int, bucket: str
) -> Schema:
    try:
        return client.schema(dataset)
    except UnknownDataset:
        if suggested is None:
            raise
    schema = suggest_schema(suggested, dataset, geohash_precision=precision, time_bucket=bucket)
    client.create_dataset(schema)
    return schema


def _ingest_file(output: Output, client: Client, source: Source, *, dataset: str) -> None:
    with output.progress(unit="rows") as bar:
        task = bar.add_task(source.path.name, total=source.rows)
        receipt: Receipt = client.ingest(
            dataset,
            _batches(source),
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


def _batches(source: Source) -> Iterator[pa.Table]:
    yield from source.batches()


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
