"""`galileo query`, `read` and `count`: find and download observations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click
import pyarrow as pa

from galileo.cli.ccq import LABELS_SHOWN, show_labels
from galileo.cli.cursors import cursor_of
from galileo.cli.output import Output, counted
from galileo.cli.sampler_options import SamplerChoice, sampler_options
from galileo.cli.session import Session, in_session, require_complete_option
from galileo.cli.table_writer import FORMATS, STDOUT, format_of, writing
from galileo.client import BlockingLabelBatches, Client, Labels
from galileo.client.table_formats import rows_of
from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.labels import missing_of
from galileo.model.rows import row_options
from galileo.model.schema import Schema

F = TypeVar("F", bound=Callable[..., Any])


def output_options(what: str) -> Callable[[F], F]:
    """`--output` and `--format`, of a command that can write `what` to a file."""

    def decorated(command: F) -> F:
        output = click.option(
            "--output",
            "-o",
            metavar="FILE",
            help=f"Write all {what} to a file (.parquet, .geoparquet, .geojson, .arrow, .csv, "
            ".ndjson), or - for stdout.",
        )
        file_format = click.option(
            "--format",
            "file_format",
            type=click.Choice(FORMATS),
            help="Format of --output, if it can't be inferred from the file name.",
        )
        return output(file_format(command))

    return decorated


def limit_options(command: F) -> F:
    """`--limit` and `--all`: how much is asked for."""
    limit = click.option(
        "--limit",
        type=click.IntRange(0),
        help=f"Rows at most. [default: {LABELS_SHOWN} on the screen, else all]",
    )
    everything = click.option("--all", "everything", is_flag=True, help="Show all rows.")
    return limit(everything(command))


def limit_of(given: int | None, *, everything: bool) -> int | None:
    """The limit that was asked for.

    Raises:
        InputError: there is one, and all are asked for.
    """
    if given is not None and everything:
        raise InputError("expected --limit or --all, got both")
    return given


def check_format(output: str | None, file_format: str | None) -> None:
    """Raises InputError where there is a format and nothing is written in it."""
    if file_format is not None and output is None:
        raise InputError("--format needs --output; add --output FILE, or --output - for stdout")


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@limit_options
@sampler_options
@output_options("labels")
@require_complete_option
@in_session
def query(
    session: Session,
    *,
    dataset: str,
    query: str,
    limit: int | None,
    everything: bool,
    sampler: SamplerChoice,
    output: str | None,
    file_format: str | None,
    require_complete: bool,
) -> None:
    """List the labels of the blocks that match a CQL2 query.

    With --output they are written as they arrive, in constant memory. With --sampler the nodes
    return a sample; --sampler-file uploads one, if the nodes allow it.

    If nodes are unreachable the answer is partial, which is reported on standard error. With
    --output the exit status is 5 then.

    \b
    Example:
      galileo query nam "S_INTERSECTS(geometry, BBOX(-110, 35, -100, 42))"
      galileo query nam "temperature > 290" --output - --format csv | head
      galileo query nam --sampler reservoir --option n=1000 --seed 7
    """
    limit = limit_of(limit, everything=everything)
    check_format(output, file_format)
    options: dict[str, Any] = {"sampler": sampler.spec(), "require_complete": require_complete}
    with session.client() as client:
        if output is not None:
            batches = client.query_batches(dataset, query, limit=limit, **options)
            target = Target(output, file_format)
            _write_labels(session.output, batches, client.schema(dataset), target)
            return
        with session.output.counting(dataset, unit="labels") as come:
            # The screen says how many match in all.
            shown_max = limit if session.output.as_json else None
            labels = client.query(dataset, query, limit=shown_max, progress=come, **options)
    if session.output.as_json:
        session.output.value(
            {
                "labels": rows_of(labels.to_arrow()),
                "complete": labels.complete,
                "missing": labels.missing,
            }
        )
        session.output.warn_partial(labels.missing)
    else:
        shown = LABELS_SHOWN if limit is None and not everything else limit
        show_labels(session, labels, limit=len(labels) if shown is None else shown)


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Which observations to read."""

    dataset: str
    query: str
    columns: tuple[str, ...]
    order_by: str
    exact: bool
    require_complete: bool
    at: Cursor | None = None

    def table(self, client: Client, output: Output, *, limit: int | None) -> pa.Table:
        """The first of them, or all; a terminal shows how many have come."""
        with output.counting(self.dataset, unit="observations") as come:
            return self._table(client, limit=limit, progress=come)

    def _table(
        self, client: Client, *, limit: int | None, progress: Callable[[int], None]
    ) -> pa.Table:
        options: dict[str, Any] = {
            "columns": self.columns,
            "limit": limit,
            "order_by": self.order_by,
            "require_complete": self.require_complete,
            "progress": progress,
        }
        if self.exact:
            return client.select(self.dataset, self.query, at=self.at, **options)
        labels = client.query(self.dataset, self.query, require_complete=self.require_complete)
        return client.read(labels, exact=False, **options)


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@output_options("observations")
@click.option("--columns", metavar="NAME,NAME,...", help="Columns to read.  [default: all]")
@click.option(
    "--order-by",
    metavar="[-]COLUMN",
    help="Such as time: the earliest first; or -time: the latest first.  [default: any order]",
)
@limit_options
@click.option(
    "--whole-blocks", is_flag=True, help="Download all observations of the matching blocks."
)
@click.option(
    "--at",
    "at",
    metavar="CURSOR",
    help="The observations as they were at a cursor, such as one of `dataset show`.",
)
@require_complete_option
@in_session
def read(
    session: Session,
    *,
    dataset: str,
    query: str,
    output: str | None,
    file_format: str | None,
    columns: str | None,
    order_by: str | None,
    limit: int | None,
    everything: bool,
    whole_blocks: bool,
    at: str | None,
    require_complete: bool,
) -> None:
    """Download the observations that match a query.

    The nodes apply the limit, the columns and the order. With --output all observations are
    written as they arrive, in constant memory.

    If nodes are unreachable the answer is partial, which is reported on standard error. With
    --output the exit status is 5 then.

    \b
    Example:
      galileo read nam "temperature > 290" --output warm.parquet
      galileo read nam --columns time,temperature --order-by -time --limit 5
    """
    limit = limit_of(limit, everything=everything)
    check_format(output, file_format)
    if at is not None and whole_blocks:
        raise InputError("expected --at or --whole-blocks, got both")
    names = tuple(name.strip() for name in columns.split(",")) if columns else ()
    request = ReadRequest(dataset, query, names, order_by or "", not whole_blocks, require_complete)
    with session.client() as client:
        if at is not None:
            request = replace(request, at=cursor_of(client.schema(dataset), at))
        if output is not None:
            _write_rows(session.output, client, request, Target(output, file_format), limit=limit)
            return
        shown = limit
        if limit is None and not everything and not session.output.as_json:
            shown = LABELS_SHOWN
        # One more says whether there are more.
        table = request.table(client, session.output, limit=None if shown is None else shown + 1)
    _show_rows(session.output, table, limit=shown)


def _show_rows(output: Output, table: pa.Table, *, limit: int | None) -> None:
    missing, has_more = missing_of(table), limit is not None and table.num_rows > limit
    table = table.slice(0, limit)
    if output.as_json:
        facts = {"more": has_more, "complete": not missing, "missing": missing}
        output.value({"rows": rows_of(table), **facts})
    else:
        output.rows(rows_of(table))
        rows = counted(table.num_rows, "observation")
        words = f"{rows} shown; there are more, which --all shows" if has_more else rows
        output.value(None, words=words)
    output.warn_partial(missing)


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@in_session
def count(session: Session, *, dataset: str, query: str) -> None:
    """Count the observations that match a query exactly.

    The count is always complete: where nodes are away, the command fails with exit status 5.

    \b
    Example:
      galileo count nam "temperature > 290"
    """
    with session.client() as client, session.output.counting(dataset):
        counted = client.count(dataset, query)
    # Scripts read the plain number from a pipe.
    words = f"{counted:,}" if session.output.is_live else str(counted)
    session.output.value({"count": counted}, words=words)


@dataclass(frozen=True, slots=True)
class Target:
    """The output of a command, and its format; None: by the file name."""

    output: str
    format: str | None


def _write_labels(
    output: Output, batches: BlockingLabelBatches, schema: Schema, target: Target
) -> None:
    columns = Labels.empty(schema).to_arrow().schema
    with batches:
        tables = (labels.to_arrow() for labels in batches)
        write_tables(
            output, tables, columns, target=target, unit="labels", missing=lambda: _lacks(batches)
        )


def _write_rows(
    output: Output, client: Client, request: ReadRequest, target: Target, *, limit: int | None
) -> None:
    """Reads the observations of each batch of labels while the next one waits.

    With a limit or an order they are read together, since nodes find the first ones.
    """
    schema = client.schema(request.dataset)
    options = row_options(request.columns, limit, request.order_by)
    options.check(schema)
    columns = options.arrow_schema(schema)
    if limit is not None or request.order_by:
        table = request.table(client, output, limit=limit)
        missing = missing_of(table)
        write_tables(output, [table], columns, target=target, unit="rows", missing=lambda: missing)
        return
    if request.at is not None:
        pieces = client.select_batches(
            request.dataset, request.query, columns=request.columns, at=request.at
        )
        write_tables(output, pieces, columns, target=target, unit="rows", missing=tuple)
        return
    matches = client.query_batches(
        request.dataset, request.query, require_complete=request.require_complete
    )
    with matches as batches:
        tables = (
            table
            for labels in batches
            for table in client.read_batches(labels, exact=request.exact, columns=request.columns)
        )
        lacks = functools.partial(_lacks, batches)
        write_tables(output, tables, columns, target=target, unit="rows", missing=lacks)


def _lacks(batches: BlockingLabelBatches) -> tuple[int, ...]:
    """The missing partitions of an answer that was read to its end."""
    return () if batches.end is None else batches.end.missing


def write_tables(
    output: Output,
    tables: Iterable[pa.Table],
    columns: pa.Schema,
    *,
    target: Target,
    unit: str,
    missing: Callable[[], tuple[int, ...]],
) -> None:
    """Writes tables as they come, and says how many rows they had.

    If partitions are missing, the command ends with the exit status of an incomplete answer.

    Args:
        output: of the command.
        tables: to write.
        columns: of each.
        target: where to.
        unit: "labels", "rows", "groups" or "table rows".
        missing: called behind the last table.
    """
    rows, what = 0, "observations" if unit == "rows" else unit
    file_format = format_of(target.output, target.format)
    with (
        writing(target.output, columns, format=file_format) as writer,
        output.progress(unit=what) as bar,
    ):
        task = bar.add_task(target.output, total=None)
        for table in tables:
            writer.write(table)
            rows += table.num_rows
            bar.advance(task, table.num_rows)
        lacking = missing()
        writer.note_missing(lacking)
    words = f"{counted(rows, what.removesuffix('s'))} written to {target.output}"
    if target.output != STDOUT:
        facts = {unit: rows, "complete": not lacking, "missing": lacking, "file": target.output}
        output.value(facts, words=words)
    elif not output.as_json:
        click.echo(words, err=True)
    output.warn_partial(lacking)
    output.end_file()
