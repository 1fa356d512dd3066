"""`galileo serve`, `evaluator`: the processes of a node, which load all that a node is made of."""

from __future__ import annotations

from pathlib import Path

import click

from galileo import config as configuration
from galileo.cli.output import handle_errors
from galileo.cli.session import Session
from galileo.errors import InputError
from galileo.logging_setup import start_logging
from galileo.server.main import serve as serve_node
from galileo.server.malloc_tuning import configure_malloc
from galileo.spark import evaluator as spark_evaluator
from galileo.tracing import tracing

_config = click.option(
    "--config",
    "path",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file of the node; see docs/configuration.md.",
)
_overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a key of the file and the environment; repeat it for others.",
)


@click.command()
@click.option(
    "--config",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file of the node; see docs/configuration.md. Not needed with --join.",
)
@_overrides
@click.option(
    "--join",
    multiple=True,
    metavar="HOST:PORT",
    help="Join the cluster of this node; repeat it for others. Short for --set node.join=...",
)
@click.option("--name", default="", help="Short for --set node.name=NAME.")
@click.option("--directory", default="", help="Short for --set node.directory=DIRECTORY.")
@click.option("--listen", default="", metavar="HOST:PORT", help="Short for --set node.listen=...")
@click.option("--rack", default="", help="Short for --set node.rack=RACK.")
@click.option(
    "--insecure",
    is_flag=True,
    help="Serve other machines without TLS. Short for --set security.insecure=true.",
)
@click.pass_obj
@handle_errors
def serve(
    session: Session,
    *,
    path: Path | None,
    overrides: tuple[str, ...],
    join: tuple[str, ...],
    name: str,
    directory: str,
    listen: str,
    rack: str,
    insecure: bool,
) -> None:
    """Run one node until it receives SIGTERM or SIGINT.

    \b
    Example:
      galileo serve --config node-1.toml --set node.directory=/data/galileo
      galileo serve --join 10.0.0.11:7701 --name storm-4 --listen 10.0.0.14:7701 \\
        --directory /var/lib/galileo
    """
    if path is None and not join:
        raise InputError(
            "expected --config FILE, or --join HOST:PORT to join a running cluster, got neither"
        )
    given = {
        "node.join": ",".join(join),
        "node.name": name,
        "node.directory": directory,
        "node.listen": listen,
        "node.rack": rack,
        "security.insecure": "true" if insecure else "",
    }
    chosen = [f"{key}={value}" for key, value in given.items() if value]
    loaded = configuration.load(path, overrides=[*overrides, *chosen])
    configure_malloc()
    start_logging(loaded.logging.format, level=loaded.logging.level, node=loaded.node.name)
    with tracing(loaded.tracing, service="galileo-node", node=loaded.node.name):
        serve_node(loaded)


@click.command()
@_config
@_overrides
@click.pass_obj
@handle_errors
def evaluator(session: Session, *, path: Path, overrides: tuple[str, ...]) -> None:
    """Run this host's Spark evaluator; nodes start one when they need it.

    \b
    Example:
      galileo evaluator --config node-1.toml --set spark.master=local[4]
    """
    loaded = configuration.load(path, overrides=overrides)
    start_logging(loaded.logging.format, level=loaded.logging.level)
    options = loaded.evaluator_options
    with tracing(options.tracing, service="galileo-evaluator"):
        status = spark_evaluator.main(options)
    click.get_current_context().exit(status)
