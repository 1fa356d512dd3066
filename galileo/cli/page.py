"""`galileo page`: observations with their ids, a page at a time, and observations by id."""

from __future__ import annotations

import click

from galileo.cli.data import Target, check_format, output_options, write_tables
from galileo.cli.output import counted
from galileo.cli.session import Session, in_session, require_complete_option
from galileo.client.pages import Page
from galileo.client.table_formats import rows_of
from galileo.errors import InputError


@click.command()
@click.argument("dataset")
@click.argument("query", default="")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Rows.")
@click.option("--after", metavar="TOKEN", help="The page after the one that printed this token.")
@click.option("--id", "ids", metavar="ID", multiple=True, help="Read this observation; repeatable.")
@click.option("--columns", metavar="NAME,NAME,...", help="Columns to read.  [default: all]")
@output_options("rows of the page")
@require_complete_option
@in_session
def page(
    session: Session,
    *,
    dataset: str,
    query: str,
    limit: int,
    after: str | None,
    ids: tuple[str, ...],
    columns: str | None,
    output: str | None,
    file_format: str | None,
    require_complete: bool,
) -> None:
    """List the observations that match, with their ids, a page at a time.

    All pages together are what was stored when the first one was read. Ids never change; --id
    reads their observations.

    \b
    Example:
      galileo page nam "temperature > 290" --limit 10
      galileo page nam --id p3.17.42 --id p0.2.7
    """
    check_format(output, file_format)
    if ids and (query or after is not None):
        raise InputError("expected --id, or a query and --after, got both")
    names = tuple(name.strip() for name in columns.split(",")) if columns else ()
    with session.client() as client:
        if ids:
            found = Page(client.read_ids(dataset, ids, columns=names), None, ())
        else:
            found = client.select_page(
                dataset,
                query,
                limit=limit,
                columns=names,
                after=after,
                require_complete=require_complete,
            )
    if output is not None:
        _write(session, found, Target(output, file_format))
    else:
        _show(session, found)


def _write(session: Session, found: Page, target: Target) -> None:
    """Writes the page; the token of the next one goes to standard error."""
    write_tables(
        session.output,
        [found.table],
        found.table.schema,
        target=target,
        unit="rows",
        missing=lambda: found.missing,
    )
    if found.next is not None:
        click.echo(f"more with --after {found.next}", err=True)


def _show(session: Session, found: Page) -> None:
    if session.output.as_json:
        facts = {"next": found.next, "complete": found.complete, "missing": found.missing}
        session.output.value({"rows": rows_of(found.table), **facts})
    else:
        session.output.rows(rows_of(found.table))
        more = f"; more with --after {found.next}" if found.next is not None else ""
        session.output.value(None, words=f"{counted(len(found), 'observation')}{more}")
    session.output.warn_partial(found.missing)
