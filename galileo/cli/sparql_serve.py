"""`galileo sparql serve`: a SPARQL 1.1 Protocol endpoint."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from galileo.cli.output import handle_errors
from galileo.cli.session import Session, json_option, require_complete_option
from galileo.cli.sparql_sources import opened
from galileo.errors import GalileoError
from galileo.model.times import seconds
from galileo.rdf import Endpoint, EndpointOptions
from galileo.server.malloc_tuning import configure_malloc

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULTS = EndpointOptions()


def _endpoint_options(command: F) -> F:
    options: list[Any] = [
        click.option(
            "--host", default=_DEFAULTS.host, show_default=True, help="Address to listen on."
        ),
        click.option(
            "--port",
            default=_DEFAULTS.port,
            show_default=True,
            help="Port to listen on; 0 for a free one.",
        ),
        click.option(
            "--public",
            is_flag=True,
            help="Allow a host that is not loopback: unauthenticated access.",
        ),
        click.option(
            "--cors", default="", metavar="ORIGIN", help="Origin of web pages that may query."
        ),
        click.option(
            "--timeout",
            default=f"{_DEFAULTS.timeout_s:g}s",
            show_default=True,
            help="Time limit of a SPARQL query.",
        ),
        click.option(
            "--rows",
            default=_DEFAULTS.rows_max,
            show_default=True,
            help="Maximum rows of an answer.",
        ),
        click.option(
            "--queries",
            default=_DEFAULTS.queries_max,
            show_default=True,
            help="Max queued queries; excess get HTTP 503.",
        ),
        click.option(
            "--connections",
            default=_DEFAULTS.connections_max,
            show_default=True,
            help="Max concurrent connections; idle ones are closed first.",
        ),
        click.option(
            "--answers-mib",
            default=_DEFAULTS.answers_mib_max,
            show_default=True,
            help="Max MiB of responses in flight; slow clients are disconnected beyond it.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("source")
@click.option("--query", default="", help="CQL2 query; only its result is served.")
@click.option(
    "--spool",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the updates of a continuous query; a restart resumes from it.",
)
@_endpoint_options
@require_complete_option
@json_option
@click.pass_obj
@handle_errors
def serve(
    session: Session,
    *,
    source: str,
    query: str,
    spool: Path | None,
    host: str,
    port: int,
    public: bool,
    cors: str,
    timeout: str,
    rows: int,
    queries: int,
    connections: int,
    answers_mib: int,
    require_complete: bool,
) -> None:
    """Serve labels to any SPARQL client over HTTP, until Ctrl-C.

    SOURCE is as for `galileo sparql query`. The labels of a continuous query (ccq-...) are kept up
    to date; those of a dataset are read once at the start. Clients cannot change anything, and the
    server sends no requests elsewhere. See docs/rdf.md.

    \b
    Example:
      galileo sparql serve nam --query "temperature > 290" --port 7780
      galileo sparql serve ccq-8c1f... --spool hot.spool
    """
    configure_malloc()  # Else each thread's arena keeps what a large answer took.
    options = EndpointOptions(
        host=host,
        port=port,
        public=public,
        cors=cors,
        timeout_s=seconds(timeout),
        rows_max=rows,
        queries_max=queries,
        connections_max=connections,
        answers_mib_max=answers_mib,
    )

    def stale(error: GalileoError) -> None:
        words = error.command_message
        session.output.note(f"{source} no longer grows, its labels are still served: {words}")

    source_graph = opened(
        session,
        source,
        query=query,
        spool=spool,
        require_complete=require_complete,
        on_end=stale,
    )
    with source_graph as graph:
        graph.load()
        with Endpoint(graph, options) as endpoint:
            session.output.value({"url": endpoint.url}, words=f"serving {source} at {endpoint.url}")
            sys.stdout.flush()
            threading.Event().wait()
