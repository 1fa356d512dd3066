"""`galileo dataset`: create, extend, list, show, follow, clean and drop datasets."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from galileo.cli.cursors import changes_options, keyed_dataset
from galileo.cli.data import check_format, limit_of, limit_options, output_options
from galileo.cli.lazy import CommandGroup
from galileo.cli.output import Output, counted
from galileo.cli.retention import in_words
from galileo.cli.session import Session, in_session, require_complete_option
from galileo.cli.stored_rows import Shown, show_changes
from galileo.client import Client, DatasetDescription, DroppedDataset, FeatureDescription
from galileo.client.cleaning import CleaningReport
from galileo.errors import InputError, UnknownDataset
from galileo.model.channel import SUBSCRIPTIONS
from galileo.model.retention import Retention
from galileo.model.schema import Feature, Schema, features_from_json
from galileo.model.times import duration_text
from galileo.wire import token

MICROS = 1_000_000
CONCURRENT_DESCRIBES = 8
_ROWS = {"dataset": "observations", "table": "rows", "channel": "subscriptions"}
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@click.group(cls=CommandGroup)
def dataset() -> None:
    """Datasets: create, extend, list, show, follow, clean and drop them.

    \b
    Example:
      galileo dataset create stations --feature temperature:K
      galileo dataset add-feature stations gust:m/s
      galileo dataset list
      galileo dataset show stations
    """


@dataset.command()
@click.argument("name")
@click.option(
    "--feature",
    "features",
    multiple=True,
    required=True,
    metavar="NAME[:UNIT[:TYPE]]",
    help="A feature, in the order of the graph's levels; TYPE is float, float32, int, text "
    "or bool. Or all that describes it as JSON, as --json shows it.",
)
@click.option("--precision", default=5, show_default=True, help="Geohash length of a block.")
@click.option(
    "--bucket", default="1h", show_default=True, help="Time span of a block, such as 10m."
)
@click.option(
    "--key",
    "key",
    multiple=True,
    metavar="FEATURE",
    help="A feature of the key, of type int, text or bool; repeat it for several.",
)
@in_session
def create(
    session: Session,
    *,
    name: str,
    features: tuple[str, ...],
    precision: int,
    bucket: str,
    key: tuple[str, ...],
) -> None:
    """Create the dataset NAME.

    With --key it is a keyed dataset: an observation replaces the one of the same block with the
    same values of the key features. A dataset never changes its key.

    \b
    Example:
      galileo dataset create stations --feature temperature:K --feature wind:m/s
      galileo dataset create buoys --feature id::text --feature waves:m --key id
    """
    schema = Schema(
        name,
        [_feature(text) for text in features],
        geohash_precision=precision,
        time_bucket=bucket,
        key=key,
    )
    with session.client() as client:
        client.create_dataset(schema)
    session.output.value(schema.to_dict(), words=f"created dataset {name}")


@dataset.command("add-feature")
@click.argument("name")
@click.argument("features", nargs=-1, required=True, metavar="FEATURE[:UNIT[:TYPE]]...")
@in_session
def add_feature(session: Session, *, name: str, features: tuple[str, ...]) -> None:
    """Add features to the dataset NAME; TYPE is float, float32, int, text or bool.

    A feature may also be JSON, with flags and whatever else describes it.

    What is stored has null in them, and batches without them can be stored as before. A feature
    cannot be renamed or removed, and its type stays as it is.

    \b
    Example:
      galileo dataset add-feature stations gust:m/s
      galileo dataset add-feature stations visibility:m quality::text
      galileo dataset add-feature stations \\
          '{"name": "qc", "type": "int", "flags": {"1": "good", "4": "bad"}}'
    """
    new = [_feature(text) for text in features]
    with session.client() as client:
        schema = client.add_features(name, new)
    added = ", ".join(feature.name for feature in new)
    session.output.value(schema.to_dict(), words=f"added {added} to dataset {name}")


@dataset.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@in_session
def drop(session: Session, *, name: str, yes: bool) -> None:
    """Drop the dataset NAME with all of its observations, and end its continuous queries.

    This cannot be undone. Without a terminal to confirm it on, --yes is required.

    \b
    Example:
      galileo dataset drop stations
      galileo dataset drop stations --yes --json | jq .rows
    """
    with session.client() as client:
        _check_drop(session, client, client.schema, "dataset", name, is_confirmed=yes)
        dropped = client.drop_dataset(name)
    session.output.value(
        asdict(dropped),
        words=f"dropped dataset {name}: {counted(dropped.rows, 'observation')}, "
        f"{dropped.bytes / 1e6:,.1f} MB; continuous queries ended: {dropped.ccqs:,}",
    )
    _note_pending(session.output, dropped)


@dataset.command()
@click.argument("name")
@in_session
def clean(session: Session, *, name: str) -> None:
    """Erase the bytes of deleted and replaced observations of the dataset or table NAME now.

    All nodes rewrite their files. Older labels, cursors and pages expire. Ctrl-C ends the work and
    keeps what was erased. The exit code is 1 if a node did not answer or failed; then repeat the
    command. Backups keep the bytes.

    \b
    Example:
      galileo dataset clean buoys
    """
    reports: dict[str, CleaningReport] = {}
    with session.client() as client, session.output.progress(unit="partitions") as bar:
        task = bar.add_task("cleaning")
        for report in client.clean_dataset(name):
            reports[report.node] = report
            bar.update(
                task,
                completed=sum(one.partitions for one in reports.values()),
                total=sum(one.partitions_total for one in reports.values()),
            )
    session.output.rows(
        [
            {
                "node": one.node,
                "rows": one.rows,
                "files": one.files,
                "bytes": one.bytes,
                "problem": "; ".join(one.failures),
            }
            for _, one in sorted(reports.items())
        ],
        title=f"Cleaned {name}",
    )
    if any(one.failures or not one.is_over for one in reports.values()):
        click.get_current_context().exit(1)


def drop_stored(
    session: Session,
    find: Callable[[Client, str], object],
    kind: str,
    name: str,
    *,
    is_confirmed: bool,
) -> None:
    """Drops a table or a channel, and says so.

    Args:
        session: of the command.
        find: raises an error where there is none of a name.
        kind: "table" or "channel".
        name: of it.
        is_confirmed: whether --yes is given.
    """
    with session.client() as client:
        known = partial(find, client)
        _check_drop(session, client, known, kind, name, is_confirmed=is_confirmed)
        known(name)
        dropped = client.drop_dataset(name)
    session.output.value(asdict(dropped), words=f"dropped {kind} {name}")
    _note_pending(session.output, dropped)


def _note_pending(output: Output, dropped: DroppedDataset) -> None:
    """Names the nodes that drop later, if there are some."""
    if dropped.pending:
        pending = ", ".join(dropped.pending)
        output.note(f"galileo: unreachable nodes drop it later: {pending}")


def is_terminal() -> bool:
    """Whether standard input is a terminal, on which a question can be answered."""
    return sys.stdin.isatty()


def check_terminal(what: str) -> None:
    """Raises InputError if there is no terminal on which to confirm what cannot be undone."""
    if not is_terminal():
        raise InputError(
            f"{what} cannot be undone, and there is no terminal to confirm it on; add --yes"
        )


def confirm(session: Session, question: str, *, otherwise: str) -> None:
    """Asks about what cannot be undone; ends the command with words unless the answer is yes."""
    if not click.confirm(f"{question} This cannot be undone.", err=True):
        session.output.note(otherwise)
        click.get_current_context().exit(1)


def _check_drop(
    session: Session,
    client: Client,
    find: Callable[[str], object],
    kind: str,
    name: str,
    *,
    is_confirmed: bool,
) -> None:
    """Asks whether to drop something, unless that is confirmed; ends the command if not.

    Args:
        session: of the command.
        client: of the cluster.
        find: raises an error where there is none of a name.
        kind: "dataset", "table" or "channel".
        name: of it.
        is_confirmed: whether --yes is given.

    Raises:
        InputError: there is no terminal to ask on.
    """
    if is_confirmed:
        return
    check_terminal(f"dropping {kind} {name!r}")
    try:
        find(name)
    except UnknownDataset as error:
        error.details.pop("remedy", None)  # Its advice is to create the dataset first.
        raise
    stored = [each for node in client.status().nodes for each in node.datasets]
    counted = f"{name}{SUBSCRIPTIONS}" if kind == "channel" else name
    rows = sum(each["rows"] for each in stored if each["dataset"] == counted)
    question = f"Drop {kind} {name} with {rows:,} {_ROWS[kind]}?"
    confirm(session, question, otherwise="Nothing was dropped.")


def _feature(text: str) -> Feature:
    if text.startswith("{"):
        return features_from_json(f"[{text}]")[0]
    name, _, rest = text.partition(":")
    unit, _, kind = rest.rpartition(":") if rest.count(":") else (rest, "", "")
    return Feature(name, unit=unit, type=kind or "float")  # type: ignore[arg-type]


@dataset.command("list")
@require_complete_option
@in_session
def list_datasets(session: Session, *, require_complete: bool) -> None:
    """List the datasets that you may use, with their size, time and place.

    The numbers come from the metadata graphs; no observation is read. Time and place are those of
    whole blocks.

    \b
    Example:
      galileo dataset list
    """
    with session.client() as client:
        descriptions = _describe_all(client, require_complete=require_complete)
        retentions = _retentions(client) if descriptions else {}
    if session.output.as_json:
        session.output.value(
            [_facts(each, retentions.get(each.schema.name)) for each in descriptions]
        )
    else:
        rows = [_row(each) for each in descriptions]
        session.output.rows(rows, empty="There is no dataset that you may use.")
    session.output.warn_partial(sorted({p for each in descriptions for p in each.missing}))


@dataset.command()
@click.argument("name")
@require_complete_option
@in_session
def show(session: Session, *, name: str, require_complete: bool) -> None:
    """Show the dataset NAME: size, time, place, retention, and statistics of its features.

    The numbers come from the metadata graphs; no observation is read. Time and place are those of
    whole blocks. Features that are not indexed have no statistics. Of a keyed dataset it shows the
    key, and a cursor of what is there now.

    \b
    Example:
      galileo dataset show nam
      galileo dataset show nam --json | jq '.features[] | {name, maximum}'
    """
    with session.client() as client:
        description = client.describe(name, require_complete=require_complete)
        retention = client.retention(name)
        cursor = _present_cursor(client, description.schema, require_complete=require_complete)
    if session.output.as_json:
        session.output.value(_facts(description, retention) | cursor)
    else:
        _show(session.output, description, retention)
        for text in cursor.values():
            session.output.value(None, words=f"cursor: {text}")
    session.output.warn_partial(description.missing)


@dataset.command()
@click.argument("name")
@changes_options
@limit_options
@output_options("rows")
@in_session
def changes(
    session: Session,
    *,
    name: str,
    after: str,
    until: str | None,
    limit: int | None,
    everything: bool,
    output: str | None,
    file_format: str | None,
) -> None:
    """Show the keys of the keyed dataset NAME whose observations changed after a cursor.

    Each is shown with its last observation; of a deleted one there are place, time and key alone.

    \b
    Example:
      CURSOR=$(galileo dataset show buoys --json | jq -r .cursor)
      galileo dataset changes buoys --after "$CURSOR"
    """
    shown = Shown(limit_of(limit, everything=everything), everything, output, file_format)
    check_format(output, file_format)
    show_changes(session, keyed_dataset, name, after=after, until=until, shown=shown)


def _present_cursor(client: Client, schema: Schema, *, require_complete: bool) -> dict[str, str]:
    """The member `cursor`: what a keyed dataset has now; nothing of other datasets."""
    if not schema.is_keyed:
        return {}
    version = client.version(schema.name, require_complete=require_complete)
    return {"cursor": token.encode(schema.key, version.cursor)}


def _describe_all(client: Client, *, require_complete: bool) -> list[DatasetDescription]:
    """All datasets by name, CONCURRENT_DESCRIBES at a time."""

    def describe(name: str) -> DatasetDescription:
        return client.describe(name, require_complete=require_complete)

    names = sorted(schema.name for schema in client.datasets())
    with ThreadPoolExecutor(CONCURRENT_DESCRIBES) as threads:
        return list(threads.map(describe, names))


def _retentions(client: Client) -> dict[str, Retention | None]:
    """The retention of each dataset that has one, from the status of the nodes that answer."""
    return {
        status["dataset"]: Retention.from_dict(status["retention"])
        for node in client.status().nodes
        for status in node.datasets
        if status["retention"] is not None
    }


def _show(output: Output, described: DatasetDescription, retention: Retention | None) -> None:
    schema = described.schema
    place = ""
    if described.bbox is not None:
        west, south, east, north = described.bbox
        place = f"longitude {west:g} to {east:g}, latitude {south:g} to {north:g}\n"
    key = f"key {', '.join(schema.key_features)}; " if schema.is_keyed else ""
    words = (
        f"{schema.name}: blocks of {schema.geohash_precision} geohash characters and "
        f"{_bucket(described)}; {key}{in_words(retention)}\n"
        f"{counted(described.observations, 'observation')} in "
        f"{counted(described.paths, 'path')} and "
        f"{_in_bytes(described.bytes)}"
    )
    if described.start is not None and described.end is not None:
        words += f"\n{place}from {_in_time(described.start)} to {_in_time(described.end)}"
    output.value(None, words=words)
    output.rows([_feature_row(feature) for feature in described.features])


def _feature_row(feature: FeatureDescription) -> dict[str, Any]:
    unit = f" ({feature.unit})" if feature.unit else ""
    values = ", ".join(list(feature.values)[:3])
    flags = ", ".join(f"{value} {meaning}" for value, meaning in feature.flags.items())
    more = ", …" if len(feature.values) > 3 else ""
    return {
        "feature": f"{feature.name}{unit}",
        "type": feature.type if feature.indexed else f"{feature.type}, not indexed",
        "nulls": feature.nulls,
        "min": feature.minimum,
        "mean": feature.mean,
        "max": feature.maximum,
        "values": f"{feature.distinct:,}: {values}{more}" if feature.distinct else "",
        "description": "; ".join(filter(None, [feature.description, feature.standard_name, flags])),
    }


def _row(described: DatasetDescription) -> dict[str, Any]:
    """A row of two lines: where time and place begin, and where they end."""
    time, place = "", ""
    if described.bbox is not None and described.start is not None and described.end is not None:
        west, south, east, north = described.bbox
        last = described.end - dt.timedelta(microseconds=1)
        time = f"{described.start:%Y-%m-%d}\n{last:%Y-%m-%d}"
        place = f"{west:.4g} {south:.4g}\n{east:.4g} {north:.4g}"
    return {
        "dataset": described.schema.name,
        "rows": described.observations,
        "bytes": _in_bytes(described.bytes),
        "first, last": time,
        "bbox": place,
        "features": len(described.features),
    }


def _in_bytes(size: float) -> str:
    """Three digits and a decimal unit, such as 12.3 MB."""
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]}"


def _in_time(value: dt.datetime) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%SZ")


def _bucket(described: DatasetDescription) -> str:
    return duration_text(described.schema.time_bucket_us / MICROS)


def _facts(described: DatasetDescription, retention: Retention | None) -> dict[str, Any]:
    return {
        **described.schema.to_dict(),
        "features": described.features,
        "retention": retention.to_dict() if retention else None,
        "observations": described.observations,
        "paths": described.paths,
        "bytes": described.bytes,
        "bbox": described.bbox,
        "start": described.start,
        "end": described.end,
        "complete": described.complete,
        "missing": described.missing,
    }
