"""The root of the command line."""

from __future__ import annotations

import click

from galileo import __version__
from galileo.cli import (
    ccq,
    cluster,
    completion,
    data,
    exploration,
    explore,
    maintenance,
    retention,
    samplers,
    top,
)
from galileo.cli.session import PATIENCE, Session


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 done, 2 fix the input, 3 try again, 4 what was asked for is over, "
    "70 a bug or a broken disk, 130 Ctrl-C, 1 any other error.",
)
@click.version_option(__version__)
@click.option(
    "--node",
    "nodes",
    multiple=True,
    envvar="GALILEO_NODES",
    metavar="HOST:PORT",
    help="A node of the cluster; repeat it for others to try. [default: 127.0.0.1:7701]",
)
@click.option(
    "--patience",
    default=PATIENCE,
    show_default=True,
    help="How long to go on trying while nodes are away.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables and words.")
@click.pass_context
def main(context: click.Context, *, nodes: tuple[str, ...], patience: str, as_json: bool) -> None:
    """Galileo stores geospatial time series and keeps standing questions answered.

    \b
    Example:
      galileo up --nodes 3 &
      galileo ingest nam forecast.grib2 --create
      galileo query nam "t > 290 AND S_INTERSECTS(geometry, BBOX(-110, 35, -100, 42))"
    """
    context.obj = Session(nodes or ("127.0.0.1:7701",), patience=patience, as_json=as_json)


for command in (
    cluster.serve,
    cluster.evaluator,
    cluster.up,
    cluster.status,
    cluster.topology,
    cluster.drain,
    top.top,
    completion.completion,
    data.create,
    data.ingest,
    data.query,
    data.read,
    explore.sparql,
    exploration.explain,
    exploration.nearest,
    exploration.summarise,
    exploration.drill,
    exploration.estimate,
    retention.retention,
    maintenance.verify,
    maintenance.backup,
    maintenance.restore,
    ccq.ccq,
    samplers.sampler,
):
    main.add_command(command)
