"""`galileo sparql`: query results as RDF."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from galileo import rdf
from galileo.cli.lazy import CommandGroup
from galileo.cli.output import Output, counted
from galileo.cli.session import Session, in_session, require_complete_option
from galileo.cli.sparql_sources import STDIN, opened
from galileo.cli.table_writer import write_table
from galileo.errors import InputError
from galileo.model.times import seconds
from galileo.rdf import SparqlResult
from galileo.rdf.graphs import ROWS_MAX, SUFFIXES, TIMEOUT_S
from galileo.rdf.sparql_result import SOLUTION_FORMATS

F = TypeVar("F", bound=Callable[..., Any])

_FORMATS = tuple(dict.fromkeys((*SOLUTION_FORMATS, *rdf.FORMATS)))
_OUTPUT = click.Path(dir_okay=False, path_type=Path)


class DefaultCommandGroup(CommandGroup):
    """A group that runs `query` if the first word is no command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["query", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=DefaultCommandGroup)
def sparql() -> None:
    """Query results as RDF with SPARQL; see docs/rdf.md for the terms.

    The word `query` may be left out.

    \b
    Example:
      galileo sparql query nam --query "temperature > 290" \\
          "SELECT ?cell (COUNT(*) AS ?n) WHERE { ?p g:geohash ?cell }
          GROUP BY ?cell ORDER BY DESC(?n) LIMIT 10"
    """


def _query_options(command: F) -> F:
    """The options of the query and of its answer."""
    options: list[Any] = [
        click.option("--query", default="", help="CQL2 query; SPARQL sees its result only."),
        click.option(
            "--file", "query_file", metavar="FILE", help="File of the SPARQL query; - for stdin."
        ),
        click.option(
            "--format", "form", type=click.Choice(_FORMATS), help="W3C format of the answer."
        ),
        click.option("--output", "-o", type=_OUTPUT, help="Write the answer to this file."),
        click.option("--blocks", is_flag=True, help="Print the ids of the blocks in the answer."),
        click.option(
            "--read",
            "read_file",
            type=_OUTPUT,
            help="Download the observations of the answer to this file.",
        ),
        click.option(
            "--timeout",
            default=f"{TIMEOUT_S:g}s",
            show_default=True,
            help="Time limit of the SPARQL query.",
        ),
        click.option(
            "--rows", default=ROWS_MAX, show_default=True, help="Maximum rows of the answer."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@sparql.command("query")
@click.argument("source")
@click.argument("sparql_query", default="")
@_query_options
@require_complete_option
@in_session
def query_source(
    session: Session,
    *,
    source: str,
    sparql_query: str,
    query: str,
    query_file: str | None,
    form: str | None,
    output: Path | None,
    blocks: bool,
    read_file: Path | None,
    timeout: str,
    rows: int,
    require_complete: bool,
) -> None:
    """Answer a SPARQL query over labels.

    SOURCE is a dataset, a continuous query (ccq-...), a spool (.spool) or an RDF file (.nt, .ttl,
    .rdf, .jsonld). The query is an argument, or in a file.

    --blocks and --read need an answer with vertices, blocks or path labels.

    \b
    Example:
      galileo sparql query nam --query "temperature > 290" \\
          "SELECT ?cell (COUNT(*) AS ?n) WHERE { ?p g:geohash ?cell }
          GROUP BY ?cell ORDER BY DESC(?n) LIMIT 10"
      galileo sparql query nam --file hottest.rq --format csv --output hottest.csv
      galileo sparql query nam "SELECT ?p { ?p f:t ?t } LIMIT 5" --read five.csv
    """
    text = _query_text(sparql_query, query_file)
    with (
        opened(session, source, query=query, require_complete=require_complete) as graph,
        session.output.noting_warnings(),
    ):
        result = graph.sparql(text, timeout_s=seconds(timeout), rows_max=rows)
    if blocks:
        named = result.blocks()
        session.output.value({"blocks": named}, words="\n".join(named))
    elif read_file is not None:
        _download(session, result, read_file)
    elif form is not None or output is not None:
        _write(session.output, result.serialise(form or ""), output)
    else:
        _show(session.output, result)


@sparql.command()
@click.argument("source")
@click.argument("path", type=_OUTPUT)
@click.option("--query", default="", help="CQL2 query; only its result is written.")
@require_complete_option
@in_session
def export(
    session: Session, *, source: str, path: Path, query: str, require_complete: bool
) -> None:
    """Write labels as RDF to a file, which can be queried again.

    PATH ends in .nt, .ttl, .rdf or .jsonld. SOURCE is as for `galileo sparql query`.

    \b
    Example:
      galileo sparql export nam warm.ttl --query "temperature > 290"
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"expected a file ending in {', '.join(SUFFIXES)}, got {path.name!r}")
    with opened(session, source, query=query, require_complete=require_complete) as graph:
        data = graph.serialise(format=SUFFIXES[path.suffix.lower()])
    _write(session.output, data, path)


@sparql.command()
@in_session
def ontology(session: Session) -> None:
    """Print the ontology of the classes and properties as Turtle.

    \b
    Example:
      galileo sparql ontology
    """
    if session.output.as_json:
        session.output.value({"turtle": rdf.ontology()})
    else:
        click.echo(rdf.ontology(), nl=False)


def _query_text(line: str, file: str | None) -> str:
    if bool(line) == (file is not None):
        raise InputError("expected a SPARQL query as an argument or by --file, but not both")
    if file is None:
        return line
    try:
        return sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"expected a file with a SPARQL query, got {file}: {error}") from error


def _download(session: Session, result: SparqlResult, path: Path) -> None:
    labels = result.labels()
    with session.client() as client:
        table = client.read(labels)
    write_table(table, path)
    facts = {"labels": len(labels), "rows": table.num_rows, "file": str(path)}
    facts |= {"complete": result.complete, "missing": result.missing}
    session.output.value(facts, words=f"{counted(table.num_rows, 'observation')} written to {path}")
    session.output.end_file()


def _write(output: Output, data: bytes, path: Path | None) -> None:
    if path is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    path.write_bytes(data)
    facts = {"file": str(path), "bytes": len(data)}
    output.value(facts, words=f"{counted(len(data), 'byte')} written to {path}")
    output.end_file()


def _show(output: Output, result: SparqlResult) -> None:
    if result.kind == "boolean":
        value = {"boolean": bool(result), "complete": result.complete, "missing": result.missing}
        output.value(value, words="yes" if result else "no")
    elif result.kind == "triples":
        value = {"ntriples": result.triples, "complete": result.complete, "missing": result.missing}
        output.value(value, words=result.triples)
    else:
        output.rows(result.rows, empty="No solutions.")
