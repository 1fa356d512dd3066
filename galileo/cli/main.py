"""The root of the command line."""

from __future__ import annotations

import click

from galileo import __version__
from galileo.cli import TIMEOUT
from galileo.cli.lazy import Later, LazyCommands, LazyGroup

SESSION = Later("galileo.cli.session:Session", "What every command has at hand.")
COMMANDS = {
    "backup": Later(
        "galileo.cli.maintenance:backup",
        "Copy a node's DIRECTORY to TARGET, which must not exist; the node may be running.",
    ),
    "ccq": Later(
        "galileo.cli.ccq:ccq", "Cached continuous queries: ask once, come back for what is new."
    ),
    "certs": Later(
        "galileo.cli.certs:certs", "Certificates: a private authority for the cluster's TLS."
    ),
    "completion": Later(
        "galileo.cli.completion:completion",
        "Print a script that completes commands and options in a SHELL.",
    ),
    "config": Later("galileo.cli.config:config", "Configuration files of nodes."),
    "create": Later("galileo.cli.data:create", "Create a dataset."),
    "datasets": Later(
        "galileo.cli.datasets:datasets",
        "List the datasets that you may use, or show the features of the one of that NAME.",
    ),
    "doctor": Later(
        "galileo.cli.doctor:doctor",
        "Examine a cluster, or the host of a node, and explain what is wrong.",
    ),
    "drain": Later(
        "galileo.cli.cluster:drain",
        "Hand a node's continuous queries to others, so that it can be stopped without a gap.",
    ),
    "drill": Later(
        "galileo.cli.exploration:drill",
        "List the children of a vertex of the metadata graph, with what hangs under each.",
    ),
    "estimate": Later(
        "galileo.cli.exploration:estimate",
        "Estimate how many paths match, from what one node knows of the whole cluster.",
    ),
    "evaluator": Later(
        "galileo.cli.serving:evaluator",
        "Run this host's Spark evaluator by hand; nodes start one themselves when they need it.",
    ),
    "explain": Later(
        "galileo.cli.exploration:explain",
        "Show how a query is answered: whom it asks, what each rules out and looks at.",
    ),
    "ingest": Later(
        "galileo.cli.ingest:ingest",
        "Ingest files of observations: CSV, GeoJSON, Parquet, Arrow, NetCDF, GRIB.",
    ),
    "move": Later(
        "galileo.cli.moving:move",
        "Move partitions to another node of their group, while everything goes on.",
    ),
    "nearest": Later(
        "galileo.cli.exploration:nearest",
        "Find the observations nearest to a point, of those that match a query exactly.",
    ),
    "query": Later(
        "galileo.cli.data:query", "Ask once: the labels of all blocks that match a CQL2 query."
    ),
    "read": Later("galileo.cli.data:read", "Download the observations that match a query."),
    "count": Later("galileo.cli.data:count", "Count the observations that match a query exactly."),
    "restore": Later(
        "galileo.cli.maintenance:restore",
        "Make a node's DIRECTORY, which must not exist, out of the backup SOURCE.",
    ),
    "retention": Later(
        "galileo.cli.retention:retention",
        "How long observations are kept: by their age, by the bytes they take, or by both.",
    ),
    "sampler": Later(
        "galileo.cli.samplers:sampler",
        "Samplers: which are installed or were sent, and the tools to write one.",
    ),
    "serve": Later("galileo.cli.serving:serve", "Run one node until it is told to stop."),
    "sparql": Later(
        "galileo.cli.explore:sparql", "Explore results as RDF; see docs/rdf.md for the terms."
    ),
    "status": Later(
        "galileo.cli.cluster:status",
        "Show every node: its state, load, data and continuous queries.",
    ),
    "summarise": Later(
        "galileo.cli.exploration:summarise",
        "Count observations under the paths that match, with statistics of a feature.",
    ),
    "token": Later("galileo.cli.token:token", "Tokens: who may do what, and how it is proved."),
    "top": Later(
        "galileo.cli.top:top",
        "Show nodes and continuous queries, and go on showing them until Ctrl-C.",
    ),
    "topology": Later(
        "galileo.cli.cluster:topology",
        "Show the groups, their nodes and their geohash ranges.",
    ),
    "up": Later("galileo.cli.cluster:up", "Run a cluster on this machine until Ctrl-C."),
    "verify": Later(
        "galileo.cli.maintenance:verify",
        "Check every byte that a node keeps in DIRECTORY; the node may be running.",
    ),
    "whoami": Later(
        "galileo.cli.cluster:whoami",
        "Show who you are to the cluster, and your quotas with what you use of them.",
    ),
}


@click.group(
    cls=LazyGroup,
    commands=LazyCommands(COMMANDS),
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
    "--timeout",
    default=TIMEOUT,
    show_default=True,
    help="Retry unreachable nodes for up to this long, such as 10s or 2m.",
)
@click.option(
    "--token-file",
    default="",
    metavar="FILE",
    help="File of the token that proves who calls; else GALILEO_TOKEN_FILE or GALILEO_TOKEN.",
)
@click.option(
    "--tls",
    default="",
    metavar="DIRECTORY",
    help="Certificate, key and authority, as galileo certs makes them; else GALILEO_TLS.",
)
@click.option(
    "--insecure", is_flag=True, help="The network is trusted: send the token to it without TLS."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables and words.")
@click.pass_context
def main(
    context: click.Context,
    *,
    nodes: tuple[str, ...],
    timeout: str,
    token_file: str,
    tls: str,
    insecure: bool,
    as_json: bool,
) -> None:
    """Galileo stores geospatial time series and keeps standing questions answered.

    \b
    Example:
      galileo up --nodes 3 &
      galileo ingest nam forecast.grib2 --create
      galileo query nam "t > 290 AND S_INTERSECTS(geometry, BBOX(-110, 35, -100, 42))"
    """
    chosen = nodes or ("127.0.0.1:7701",)
    context.obj = SESSION.load()(
        chosen,
        timeout=timeout,
        as_json=as_json,
        token_file=token_file,
        tls=tls,
        insecure=insecure,
    )
