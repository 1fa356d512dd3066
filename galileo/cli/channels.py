"""`galileo channel`: continuous queries with parameters, and their subscriptions."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
import pyarrow as pa
import pyarrow.compute as pc

from galileo.cli.datasets import drop_stored
from galileo.cli.lazy import CommandGroup
from galileo.cli.options import EXISTING_FILE, FILE_OR_STDIN, csv_options
from galileo.cli.output import Output, counted, time_left, to_json
from galileo.cli.positions import PositionFile
from galileo.cli.session import Session, in_session
from galileo.cli.stored_rows import report_receipt
from galileo.cli.tables import store_files
from galileo.cli.watch_display import stop_when_reader_ends
from galileo.client import ChannelPartition, Client, Notifications
from galileo.client.json_lines import json_columns, json_lines, json_values
from galileo.errors import InputError
from galileo.formats import CsvOptions
from galileo.model.channel import ID, LEFT, Channel, New
from galileo.model.enrichment import Step, lookups_to_dict, step_from_dict, step_to_dict
from galileo.model.reader import reader_of
from galileo.model.schema import unknown_channel
from galileo.model.times import MICROS, duration_text

_READ_AS = {"float": pa.float64(), "int": pa.int64(), "bool": pa.bool_()}
"""The Arrow types of the parameters whose values are read before they are sent."""


@click.group(cls=CommandGroup)
def channel() -> None:
    """Channels: continuous queries with parameters, their subscriptions and results.

    \b
    Example:
      galileo channel create hot weather "temperature > :least" --period 5s
      galileo channel subscribe hot people.csv --broker mail
      galileo channel follow hot mail --resume mail.token
    """


@channel.command()
@click.argument("name")
@click.argument("dataset")
@click.argument("template")
@click.option(
    "--period", default="10s", show_default=True, help="Time between two executions, such as 5s."
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME",
    help="A column of the observations that are delivered.  [default: all]",
)
@click.option(
    "--keep", default="7d", show_default=True, help="For how long results are kept, such as 12h."
)
@click.option(
    "--new",
    type=click.Choice(get_args(New)),
    default="observations",
    show_default=True,
    help="What has to be new in a pair of an observation and a subscription.",
)
@click.option(
    "--leave", is_flag=True, help="With --new either: also deliver what does not match any more."
)
@click.option(
    "--age-max",
    metavar="DURATION",
    help="With --new none: how old observations may be at an execution, such as 1h.",
)
@click.option(
    "--enrich",
    multiple=True,
    metavar="STEP",
    help="Add rows of a table to the observations that are delivered: a step as JSON.",
)
@click.option(
    "--lookup",
    "lookups",
    multiple=True,
    metavar="TABLE=:NAME",
    help="A table whose columns TEMPLATE has, as TABLE.COLUMN, and the parameter with its key.",
)
@in_session
def create(
    session: Session,
    *,
    name: str,
    dataset: str,
    template: str,
    period: str,
    columns: tuple[str, ...],
    keep: str,
    new: New,
    leave: bool,
    age_max: str | None,
    enrich: tuple[str, ...],
    lookups: tuple[str, ...],
) -> None:
    """Create the channel NAME on DATASET; in TEMPLATE, a CQL2 query, parameters are :NAMES.

    A channel never changes. Observations that were stored before are matched with --new either or
    none alone. With --new none each execution delivers all that matches at that time. Steps of
    --enrich are lookup, within, near and nearest, with the arguments of galileo.Lookup, Within,
    Near and Nearest. In --lookup, a key of several columns is JSON, such as
    'limits={":station": "station", ":kind": "kind"}'.

    \b
    Example:
      galileo channel create hot weather "temperature > :least" --period 5s
      galileo channel create near ships "S_DWITHIN(geometry, :place, :metres)" \\
          --column ship --column time --keep 12h
      galileo channel create fences ships "S_INTERSECTS(geometry, :area)" \\
          --new either --leave
      galileo channel create now weather "temperature > :least" --period 10m \\
          --new none --age-max 1h
      galileo channel create rated weather "temperature > :least" \\
          --enrich '{"step": "lookup", "table": "ratings", "on": "station"}'
      galileo channel create close tweets \\
          "S_DWITHIN(geometry, officers.place, 500)" --lookup officers=:officer
    """
    created = Channel(
        name,
        dataset,
        template,
        period=period,
        columns=columns,
        keep=keep,
        new=new,
        leave=leave,
        age_max=age_max,
        enrich=[_step(text) for text in enrich],
        lookup=dict(map(_lookup, lookups)),
    )
    with session.client() as client:
        client.create_channel(created)
    session.output.value(created.to_dict(), words=f"created channel {name}")


@channel.command("list")
@in_session
def list_channels(session: Session) -> None:
    """List the channels that you may use.

    \b
    Example:
      galileo channel list
    """
    with session.client() as client:
        channels = client.channels()
    if session.output.as_json:
        session.output.value([_facts(one) for one in channels])
        return
    rows = [
        {
            "channel": one.name,
            "dataset": one.dataset,
            "template": one.template,
            "parameters": _parameters(one),
            "period": duration_text(one.period_s),
            "keep": duration_text(one.keep_us / MICROS),
        }
        for one in channels
    ]
    session.output.rows(rows, empty="There is no channel that you may use.")


@channel.command()
@click.argument("name")
@in_session
def show(session: Session, *, name: str) -> None:
    """Show the channel NAME: its definition, and how far its executions are.

    The subscriptions are those of the last executions. A partition is behind by the commits of the
    dataset that it has not matched yet.

    \b
    Example:
      galileo channel show hot
      galileo channel show hot --json | jq .behind
    """
    with session.client() as client:
        known = _known(client, name)
        partitions = client.describe_channel(name)
    missing = sorted({*range(known.partitions)} - {one.partition for one in partitions})
    if session.output.as_json:
        session.output.value(_facts(known) | _totals(partitions) | {"missing": missing})
    else:
        _show(session.output, known, partitions)
    if missing:
        session.output.note(
            f"galileo: nothing is known of {counted(len(missing), 'partition')} "
            f"({', '.join(map(str, missing))}), which have not been executed since their nodes "
            "began, or whose nodes are unreachable"
        )


@channel.command()
@click.argument("name")
@click.argument("files", nargs=-1, type=FILE_OR_STDIN)
@click.option("--broker", help="The broker of all of them, in place of a column.")
@click.option("--id", "subscription", metavar="ID", help="Store one subscription with this id.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the subscription ID.",
)
@csv_options
@in_session
def subscribe(
    session: Session,
    *,
    name: str,
    files: tuple[Path, ...],
    broker: str | None,
    subscription: str | None,
    settings: tuple[str, ...],
    csv: dict[str, Any],
) -> None:
    """Store subscriptions to the channel NAME, in place of those with the same ids.

    FILES are Parquet, Arrow, CSV or JSON lines, with the columns id and broker and one for each
    parameter; - is CSV on standard input. With --id it is a single subscription. Running the same
    command again does no harm.

    \b
    Example:
      galileo channel subscribe hot people.csv --broker mail
      galileo channel subscribe hot --id anna --set least=300 --broker mail
    """
    if bool(files) == (subscription is not None):
        raise InputError("expected FILES or --id, one of the two", parameter="id")
    if settings and subscription is None:
        raise InputError("--set needs --id; add it", parameter="set")
    with session.client() as client:
        store = partial(client.subscribe, name, broker=broker)
        if subscription is None:
            store = partial(store, csv=CsvOptions(**csv) if csv else None)
            store_files(session.output, files, store, noun="subscription")
            return
        receipt = store(_subscription(_known(client, name), subscription, settings))
    report_receipt(session.output, receipt, f"subscribed {subscription}")


@channel.command()
@click.argument("name")
@click.argument("ids", nargs=-1)
@click.option("--file", "path", type=EXISTING_FILE, help="A file with the column id.")
@csv_options
@in_session
def unsubscribe(
    session: Session, *, name: str, ids: tuple[str, ...], path: Path | None, csv: dict[str, Any]
) -> None:
    """Remove the subscriptions IDS from the channel NAME; unknown ids are ignored.

    \b
    Example:
      galileo channel unsubscribe hot anna bert
      galileo channel unsubscribe hot --file left.csv
    """
    if bool(ids) == (path is not None):
        raise InputError("expected IDS or --file, one of the two", parameter="ids")
    with session.client() as client, session.output.noting_warnings():
        given, options = list(ids) if path is None else path, CsvOptions(**csv) if csv else None
        receipt = client.unsubscribe(name, given, csv=options)
    report_receipt(session.output, receipt, f"unsubscribed: {counted(receipt.rows, 'id')}")


@channel.command()
@click.argument("name")
@click.argument("broker")
@click.option(
    "--token", default="", help="Token of the last notifications; else all that are kept."
)
@click.option(
    "--resume",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Begin with the token in FILE, if it exists, and store the token of each printed batch.",
)
@click.option(
    "--acknowledge",
    is_flag=True,
    help="Begin at the position of the broker in the cluster, and store it there.",
)
@click.option("--wait", help="End when nothing has come for so long, such as 5s.")
@click.option(
    "--limit", type=click.IntRange(1), help="End with the batch that reaches so many notifications."
)
@in_session
def follow(
    session: Session,
    *,
    name: str,
    broker: str,
    token: str,
    path: Path | None,
    acknowledge: bool,
    wait: str | None,
    limit: int | None,
) -> None:
    """Print the notifications of a BROKER of the channel NAME as they come, one on each line.

    Begins with all that are kept, or after a token. A batch has the notifications of one execution.
    At the end, also by Ctrl-C, standard error gets the token of the last printed batch.

    With --resume, the token of each batch is stored once the batch is printed. The same command
    continues without a gap. If it was killed between the two, the last batch comes once more.
    With --acknowledge, the cluster stores the token in place of a file.

    With --json, a line with the token follows the lines of each batch.

    \b
    Example:
      galileo channel follow hot mail --resume mail.token
      galileo channel follow hot mail --json --wait 5s | jq .subscription
    """
    if bool(token) + (path is not None) + acknowledge > 1:
        raise InputError(
            "expected one of --token, --resume and --acknowledge, got several", parameter="token"
        )
    with session.client() as client, stop_when_reader_ends():
        reader = reader_of(_known(client, name), broker)
        file = None if path is None else PositionFile(path, reader)
        token, count = file.token() if file else token, 0
        if acknowledge:
            token = client.position(name, broker)
        try:
            batches = client.follow(name, broker, token=token, wait=wait)
            for batch in session.output.going_on(batches):
                print_batch(session.output, batch)
                token, count = batch.token, count + len(batch)
                if file is not None:
                    file.save(token)
                if acknowledge:
                    client.acknowledge(name, broker, token)
                if limit is not None and count >= limit:
                    break
            if not count:
                session.output.note(
                    f"galileo: nothing came for broker {broker!r}; do subscriptions of {name} name "
                    "it?"
                )
        finally:
            if token:
                session.output.note(f"token: {token}")


@channel.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@in_session
def drop(session: Session, *, name: str, yes: bool) -> None:
    """Drop the channel NAME with its subscriptions and all results that are kept.

    This cannot be undone. Without a terminal to confirm it on, --yes is required.

    \b
    Example:
      galileo channel drop hot
    """
    drop_stored(session, _known, "channel", name, is_confirmed=yes)


def _known(client: Client, name: str) -> Channel:
    """The definition of a channel.

    Raises:
        UnknownDataset: there is none of the name.
    """
    channels = {one.name: one for one in client.channels()}
    if name not in channels:
        raise unknown_channel(name, sorted(channels))
    return channels[name]


def _step(text: str) -> Step:
    """A step of an enrichment. Raises InputError."""
    try:
        return step_from_dict(json.loads(text))
    except ValueError as error:
        raise InputError(
            f"expected a step as JSON, got {text!r:.100}: {error}", parameter="enrich"
        ) from error


def _lookup(text: str) -> tuple[str, Any]:
    """A table and the parameters that are its key. Raises InputError."""
    table, equals, on = text.partition("=")
    if not equals:
        raise InputError(f"expected TABLE=:NAME, got {text!r}", parameter="lookup")
    try:
        return table, json.loads(on) if on.startswith("{") else on
    except ValueError as error:
        raise InputError(
            f"expected the key of {table!r} as JSON, got {on!r:.100}: {error}", parameter="lookup"
        ) from error


def _facts(known: Channel) -> dict[str, Any]:
    return {
        "name": known.name,
        "dataset": known.dataset,
        "template": known.template,
        "parameters": dict(known.parameters),
        "columns": known.columns,
        "new": known.new,
        "leave": known.leave,
        "age_max_s": None if known.age_max_us is None else known.age_max_us / MICROS,
        "enrich": [step_to_dict(step) for step in known.enrich],
        "lookup": lookups_to_dict(known.lookup),
        "period_s": known.period_s,
        "keep_s": known.keep_us / MICROS,
    }


def _parameters(known: Channel) -> str:
    return ", ".join(f"{name}:{kind}" for name, kind in known.parameters)


def _news(known: Channel) -> str:
    """What its executions deliver."""
    if not known.is_repetitive:
        return f"delivers what is new: {known.new}{', and what leaves' if known.leave else ''}"
    age_max_us = known.age_max_us
    age = "" if age_max_us is None else f" and is at most {duration_text(age_max_us / MICROS)} old"
    return f"delivers all that matches{age}, each time"


def _totals(partitions: list[ChannelPartition]) -> dict[str, Any]:
    return {
        "subscriptions": sum(one.subscriptions for one in partitions),
        "behind": sum(one.behind for one in partitions),
        "partitions": partitions,
    }


def _show(output: Output, known: Channel, partitions: list[ChannelPartition]) -> None:
    totals, failed = _totals(partitions), [one for one in partitions if one.failure]
    steps = "".join(f"enriched by: {json.dumps(step_to_dict(step))}\n" for step in known.enrich)
    if known.lookup:
        steps = f"looks up: {json.dumps(lookups_to_dict(known.lookup))}\n{steps}"
    output.value(
        None,
        words=f"{known.name}: {known.template}\n"
        f"dataset {known.dataset}; every {duration_text(known.period_s)}; results are kept for "
        f"{duration_text(known.keep_us / MICROS)}\n"
        f"{_news(known)}\n"
        f"parameters: {_parameters(known)}\n"
        f"columns: {', '.join(known.columns) or 'all'}\n"
        f"{steps}{counted(totals['subscriptions'], 'subscription')} in "
        f"{counted(known.partitions, 'partition')}; {counted(totals['behind'], 'commit')} behind; "
        f"{len(failed):,} failed",
    )
    output.rows([_row(one) for one in partitions])
    for one in failed:
        output.value(None, words=f"partition {one.partition} failed: {one.failure}")


def _row(one: ChannelPartition) -> dict[str, Any]:
    ago = f"{time_left(max(0.0, time.time() - one.executed_at))} ago" if one.executed_at else ""
    return {
        "partition": one.partition,
        "node": one.node,
        "execution": one.execution,
        "subscriptions": one.subscriptions,
        "behind": one.behind,
        "executed": ago,
        "took": f"{1000 * one.took_s:,.0f} ms" if one.executed_at else "",
    }


def _subscription(known: Channel, subscription: str, settings: tuple[str, ...]) -> pa.Table:
    """A subscription as a row; what is wrong with its columns, the client says."""
    kinds, columns = dict(known.parameters), {ID: pa.array([subscription])}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"expected a parameter as NAME=VALUE, got {text!r}", parameter="set")
        kind, values = kinds.get(name, ""), pa.array([value])
        try:
            columns[name] = values.cast(_READ_AS[kind]) if kind in _READ_AS else values
        except pa.ArrowInvalid as error:
            such = ", such as 2012-03-01T06:00:00Z" if kind == "time" else ""
            raise InputError(
                f"expected a {kind} as {name!r}{such}, got {value!r}", parameter="set"
            ) from error
    return pa.table(columns)


def print_batch(output: Output, batch: Notifications) -> None:
    """Prints a line for each notification; as JSON also one with the token of all."""
    rows = batch.to_arrow()
    ids, observations = rows.column(0), rows.remove_column(0)
    left = None
    if LEFT in batch.matches.column_names:
        left = observations.column(observations.num_columns - 1)
        observations = observations.remove_column(observations.num_columns - 1)
    if output.as_json:
        ends = ["}"] if left is None else [',"left":', json_values(left), "}"]
        lines = pc.binary_join_element_wise(
            '{"subscription":',
            json_values(ids),
            ',"observation":',
            json_lines(observations),
            *ends,
            "",
        )
        end = {
            "token": batch.token,
            "partition": batch.partition,
            "execution": batch.execution,
            "gone": batch.gone,
        }
        output.lines([*lines.to_pylist(), to_json(end)])
        return
    for gone in batch.gone:
        output.note(
            f"galileo: gone: partition {gone.partition}, commits {gone.first} to {gone.last}: not "
            "kept any more when they were asked for"
        )
    if left is not None:
        ids = pc.binary_join_element_wise(ids, pc.if_else(left, "left", "entered"), " ")
    output.lines(_words(ids, observations).to_pylist())


def _words(ids: pa.ChunkedArray, observations: pa.Table) -> pa.Array:
    """Each notification as text: the subscription, then the columns of the observation."""
    parts = [ids.combine_chunks()]
    columns = zip(observations.column_names, json_columns(observations), strict=True)
    for number, (name, values) in enumerate(columns):
        parts += [f"{', ' if number else ': '}{name}=", pc.utf8_trim(values, '"')]
    return pc.binary_join_element_wise(*parts, "")
