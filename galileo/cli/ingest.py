"""`galileo ingest`: files of observations into a dataset."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from galileo.cli.cursors import cursor_of, keyed_dataset, unchanged_since_option
from galileo.cli.options import STDIN, csv_options, readable
from galileo.cli.output import Output, counted
from galileo.cli.session import Session, in_session
from galileo.client import Client
from galileo.client.results import Receipt
from galileo.errors import InputError, listed
from galileo.formats import (
    Choice,
    CsvOptions,
    GridOptions,
    Mapping,
    Source,
    VariableInfo,
    open_source,
)
from galileo.formats.expressions import Literal, names
from galileo.formats.source import skipped_words
from galileo.formats.variables import format_names
from galileo.formats.zarr import is_zarr
from galileo.model.schema import Feature, Schema
from galileo.model.times import MICROS, duration_text

SAMPLED_MAX = 64
"""Variables of a file whose values a list shows: reading them costs time."""


@click.command()
@click.argument("dataset")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="FEATURE=SOURCE",
    help="Which variable, expression or constant becomes a feature or coordinate.",
)
@click.option(
    "--missing",
    multiple=True,
    metavar="[VARIABLE=]VALUE",
    help="A value that means a missing one, such as -9999; in all variables or in one.",
)
@click.option(
    "--rows",
    multiple=True,
    metavar="DIMENSION",
    help="A dimension of a NetCDF file, such as levels or members, whose every index makes rows; "
    "repeat it for several.  [default: those that the CF conventions declare]",
)
@click.option(
    "--reference-time",
    is_flag=True,
    help="Take the reference time and the lead time of forecasts as features.",
)
@click.option("--group", default="", help="The group of a NetCDF file to read.")
@click.option("--format", "file_format", help="File format, if neither bytes nor name show it.")
@click.option("--create", is_flag=True, help="Create the dataset from the first file.")
@click.option(
    "--index",
    metavar="NAME,...",
    help="Features that queries can use (with --create).  [default: the mapped features; "
    "without a mapping the first 32, except features that give each row a path of its own]",
)
@click.option(
    "--precision",
    type=int,
    help="Geohash characters of a block (with --create).  [default: 2 to 5, by the first rows]",
)
@click.option(
    "--bucket",
    help="Width of a block in time (with --create).  [default: 1h or more, by the first rows]",
)
@click.option(
    "--key",
    "key",
    multiple=True,
    metavar="FEATURE",
    help="A feature of the key, of type int, text or bool; repeat it for several (with --create).",
)
@unchanged_since_option("`dataset show` or `dataset changes`")
@click.option(
    "--list",
    "only_list",
    is_flag=True,
    help="List the variables of the files, store nothing. It needs no DATASET.",
)
@click.option(
    "--filter",
    "wanted",
    default="",
    metavar="TEXT",
    help="Only variables with TEXT in their name, role, units or description (with --list).",
)
@csv_options
@in_session
def ingest(
    session: Session,
    *,
    dataset: str,
    files: tuple[Path, ...],
    maps: tuple[str, ...],
    missing: tuple[str, ...],
    rows: tuple[str, ...],
    reference_time: bool,
    group: str,
    file_format: str | None,
    create: bool,
    index: str | None,
    precision: int | None,
    bucket: str | None,
    key: tuple[str, ...],
    unchanged_since: str | None,
    only_list: bool,
    wanted: str,
    csv: dict[str, Any],
) -> None:
    """Ingest files of observations, such as CSV, Parquet, NetCDF or GRIB; - is standard input.

    A directory stands for the Parquet files below it, or is a Zarr store; a pattern in quotation
    marks, such as 'days/*.csv', stands for the files that it matches.

    Running the same command again stores nothing twice: batches are known by the file's
    content, so an ingest that broke off is resumed by repeating it.

    In a keyed dataset an observation replaces the one with the same key. --create --key makes one.

    \b
    Example:
      galileo ingest nam nam.t00z.grib2 --create --map temperature=2t \\
          --map "wind_speed=hypot(10u, 10v)"
      galileo ingest snow snotel.csv --map depth="snow / 39.37" --missing -9999
      galileo ingest tower tower.csv --create \\
          --map latitude=39.1 --map longitude=-105.5
      galileo ingest nam.t00z.grib2 --list --filter wind
      galileo ingest buoys hour.csv --create --key station
      galileo ingest ocean R6901472_001.nc --create --rows N_LEVELS
      galileo ingest stations observations/ --create
      galileo ingest era5 era5.zarr --create
      galileo ingest storms ibtracs.csv --create --map time=ISO_TIME \\
          --map wind=WMO_WIND --bad-rows bad.csv
    """
    mapping = Mapping.of(maps, missing, CsvOptions(**csv), GridOptions(rows, group, reference_time))
    if only_list and (Path(dataset) == STDIN or Path(dataset).exists() or "*" in dataset):
        files = (Path(dataset), *files)
    if not files:
        raise click.UsageError("Missing argument 'FILES...'.")
    files = tuple(itertools.chain.from_iterable(map(_files_of, files)))
    if only_list:
        _list(session.output, files, mapping, file_format, wanted)
        return
    options: dict[str, Any] = {
        "create": create,
        "index": None if index is None else [name.strip() for name in index.split(",")],
        "precision": precision,
        "bucket": bucket,
        "key": key,
    }
    with session.client() as client, session.output.noting_warnings():
        if unchanged_since is not None:
            schema = keyed_dataset(client, dataset)
            options["unchanged_since"] = cursor_of(schema, unchanged_since)
        counts = Counter(path.name for path in files)
        for path in files:
            name = path.name if counts[path.name] == 1 else str(path)
            with readable(path, suffix=f".{file_format or 'csv'}") as file:
                source = open_source(file, mapping=mapping, format=file_format)
                where: dict[str, Any] = {"path": path, "name": name, "dataset": dataset}
                _ingest_file(session.output, client, source, **where, **options)


def _files_of(path: Path) -> Sequence[Path]:
    """The files that an argument stands for, in the order of their paths.

    Raises:
        InputError: a directory or a pattern has none.
    """
    is_directory = path.is_dir() and not is_zarr(path)
    if path == STDIN or (path.exists() and not is_directory):
        return [path]
    pattern = path / "**" / "*.parquet" if is_directory else path
    found = sorted(
        file
        for file in Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))
        if (file.is_file() or is_zarr(file))
        # Such as _temporary of Spark.
        if not any(part.startswith(("_", ".")) for part in {*file.parts} - {*path.parts})
    )
    if not found:
        raise InputError(f"expected a file at {pattern}, got none", expected="file")
    return found


def _ingest_file(
    output: Output,
    client: Client,
    source: Source,
    *,
    path: Path,
    name: str,
    dataset: str,
    **options: Any,
) -> None:
    with output.progress(unit="rows") as bar:
        task = bar.add_task(name, total=source.rows)
        receipt = client.ingest_file(
            dataset, source, progress=lambda rows: bar.advance(task, rows), **options
        )
    if receipt.created:
        _report_created(output, client.schema(dataset), source, receipt.choices)
        if (left_out := source.left_out()) and not source.mapping.features:
            words = f"galileo: not taken from {name}: {format_names(left_out)}"
            has_levels = source.format in ("netcdf", "zarr") and source.has_levels_left_out
            remedy = "; --rows DIMENSION takes the levels as rows, in a new dataset"
            output.note(words + remedy * has_levels)
    output.value(
        {
            "file": str(path),
            "rows": receipt.rows,
            "duplicate_rows": receipt.duplicate_rows,
            "skipped": receipt.skipped,
            "lacking": dict(receipt.lacking),
            "paths": receipt.paths,
            "reached": receipt.reached,
            "created": receipt.created,
            "choices": [asdict(choice) for choice in receipt.choices],
        },
        words=f"{name}: {_stored(receipt)}",
    )
    if receipt.skipped and not receipt.rows:
        raise InputError("expected an observation, got none: all rows were skipped")


def _stored(receipt: Receipt) -> str:
    """What was stored and skipped, for people."""
    words = f"{counted(receipt.rows, 'observation')} stored"
    if receipt.duplicate_rows:
        new = receipt.rows - receipt.duplicate_rows
        words = f"{new:,} new, {receipt.duplicate_rows:,} already stored"
    return words + (f"; skipped {skipped_words(receipt.lacking)}" if receipt.skipped else "")


def _report_created(
    output: Output, schema: Schema, source: Source, choices: Sequence[Choice]
) -> None:
    """Prints what was chosen for a new dataset, and what was left out."""
    count = len(schema.features)
    key = f", and the key {', '.join(schema.key_features)}" if schema.is_keyed else ""
    if not output.as_json:
        output.value(
            None,
            words=f"Created dataset {schema.name} ({counted(count, 'feature')}), with blocks of "
            f"{schema.geohash_precision} geohash characters and "
            f"{duration_text(schema.time_bucket_us / MICROS)}{key}: "
            + format_names([_described(feature) for feature in schema.features]),
        )
        for choice in choices:
            output.value(None, words=f"  {choice.option} {choice.value}: {choice.reason}")
        if options := listed([f"--{choice.option}" for choice in choices]):
            words = f"  To choose otherwise, drop the dataset and ingest again with {options}"
            output.value(None, words=words)
    sources = {variable.name: variable for variable in source.variables()}
    used = {name for binding in source.bindings for name in names(binding.expression or Literal(0))}
    for variable in (sources[name] for name in sources if name in used):
        if variable.type == "text" and variable.reason:
            output.note(
                f"galileo: {variable.name}: {variable.reason}, so it is text{_remedy(variable)}"
            )


def _described(feature: Feature) -> str:
    return f"{feature.name} {feature.type}" + ("" if feature.indexed else " (not indexed)")


def _remedy(variable: VariableInfo) -> str:
    """How to read a column of numbers and a few words as numbers."""
    words = "".join(f" --missing {shlex.quote(word)}" for word in variable.words)
    verb = "reads them" if len(variable.words) > 1 else "reads it"
    return f"; {words.strip()} {verb} as missing, in a new dataset" if words else ""


# --- listing ---------------------------------------------------------------------------------


def _list(
    output: Output, files: Sequence[Path], mapping: Mapping, file_format: str | None, wanted: str
) -> None:
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for path in files:
        with readable(path, suffix=f".{file_format or 'csv'}") as file:
            source = open_source(file, mapping=mapping, format=file_format, is_place_needed=False)
            rows += _variables(source, name=path.name, wanted=wanted)
            if source.place_error is not None:
                notes.append(f"galileo: {path}: {source.place_error.command_message}")
    if len(files) == 1 and not output.as_json:
        rows = [{name: row[name] for name in row if name != "file"} for row in rows]
    output.rows(rows, empty="The files offer no such variables.")
    for note in notes:
        output.note(note)


def _variables(source: Source, *, name: str, wanted: str) -> list[dict[str, Any]]:
    variables = [each for each in source.all_variables() if _contains(each, wanted.lower())]
    targets = _targets(source)
    samples = source.samples([each.name for each in variables[:SAMPLED_MAX]])
    return [
        {
            "file": name,
            "variable": each.name,
            "becomes": each.role or ", ".join(targets.get(each.name, [])),
            "type": "time" if each.role == "time" else each.type or "",
            "sample": samples.get(each.name, []),
            "units": each.about.unit,
            "dimensions": ", ".join(map(str, each.dims)),
            "description": each.about.description or each.reason,
        }
        for each in variables
    ]


def _contains(variable: VariableInfo, text: str) -> bool:
    texts = (variable.name, variable.role, variable.about.unit, variable.about.description)
    return any(text in each.lower() for each in texts)


def _targets(source: Source) -> dict[str, list[str]]:
    """By variable the features that use it."""
    targets: dict[str, list[str]] = defaultdict(list)
    try:
        bindings = source.bindings
    except InputError:
        if source.mapping.features:
            raise
        return targets  # Too many variables, or none, to make all of them features.
    for binding in bindings:
        for name in names(binding.expression) if binding.expression else ():
            targets[name].append(binding.feature)
    return targets
