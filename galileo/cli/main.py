"""The root of the command line."""

from __future__ import annotations

import click

from galileo import __version__
from galileo.cli.lazy import Later, LazyCommands, LazyGroup
from galileo.cli.options import given, shared_options

SESSION = Later("galileo.cli.session:Session", "What every command has at hand.")
COMMANDS = {
    "backup": Later(
        "galileo.cli.maintenance:backup",
        "Copy a node's DIRECTORY to TARGET, which must not exist; the node may be running.",
    ),
    "ccq": Later("galileo.cli.ccq:ccq", "Continuous queries: submit, fetch, watch and cancel."),
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
        "List the datasets that you may use, or describe the one of that NAME.",
    ),
    "doctor": Later(
        "galileo.cli.doctor:doctor",
        "Examine a cluster, or the host of a node, and explain what is wrong.",
    ),
    "drain": Later(
        "galileo.cli.cluster:drain",
        "Hand a node's continuous queries to other nodes before it is stopped.",
    ),
    "drill": Later(
        "galileo.cli.exploration:drill",
        "List the children of a vertex of the metadata graph, with their counts.",
    ),
    "drop": Later(
        "galileo.cli.data:drop",
        "Drop a dataset with all of its observations, and end its continuous queries.",
    ),
    "estimate": Later(
        "galileo.cli.exploration:estimate",
        "Estimate how many paths match a query, from metadata that one node has.",
    ),
    "evaluator": Later(
        "galileo.cli.serving:evaluator",
        "Run this host's Spark evaluator; nodes start one when they need it.",
    ),
    "explain": Later(
        "galileo.cli.exploration:explain",
        "Show which nodes answer a query, and how much data each one prunes and scans.",
    ),
    "ingest": Later(
        "galileo.cli.ingest:ingest",
        "Ingest files of observations: CSV, GeoJSON, Parquet, Arrow, NetCDF, GRIB.",
    ),
    "move": Later(
        "galileo.cli.moving:move",
        "Move partitions to another node of their group, without downtime.",
    ),
    "nearest": Later(
        "galileo.cli.exploration:nearest",
        "Find the matching observations nearest to a point.",
    ),
    "query": Later(
        "galileo.cli.data:query", "List the labels of the blocks that match a CQL2 query."
    ),
    "read": Later("galileo.cli.data:read", "Download the observations that match a query."),
    "count": Later("galileo.cli.data:count", "Count the observations that match a query exactly."),
    "restore": Later(
        "galileo.cli.maintenance:restore",
        "Create a node's DIRECTORY, which must not exist, from the backup SOURCE.",
    ),
    "retention": Later(
        "galileo.cli.retention:retention",
        "Retention: how long observations are kept, by age, by size or by both.",
    ),
    "sampler": Later(
        "galileo.cli.samplers:sampler",
        "Samplers: list, write, test, upload and revoke them.",
    ),
    "serve": Later(
        "galileo.cli.serving:serve", "Run one node until it receives SIGTERM or SIGINT."
    ),
    "sparql": Later(
        "galileo.cli.explore:sparql",
        "Query results as RDF with SPARQL; see docs/rdf.md for the terms.",
    ),
    "status": Later(
        "galileo.cli.cluster:status",
        "Show every node: its state, load, data and continuous queries.",
    ),
    "summarise": Later(
        "galileo.cli.exploration:summarise",
        "Count the matching observations, with statistics and histograms of features.",
    ),
    "token": Later(
        "galileo.cli.token:token",
        "Tokens: create, list and revoke the credentials of users and nodes.",
    ),
    "top": Later(
        "galileo.cli.top:top",
        "Show nodes and continuous queries, refreshed until Ctrl-C.",
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
        "Show the user name the cluster knows you by, your quotas, and what you use of them.",
    ),
}


ALIASES = {"summarize": "summarise"}


@click.group(
    cls=LazyGroup,
    commands=LazyCommands(COMMANDS, ALIASES),
    context_settings={"help_option_names": ["-h", "--help"]},
    params=shared_options(),
    epilog="The options above may stand before or after the command. Exit status: 0 done, 2 fix "
    "the input, 3 try again, 4 the query or data has ended, 5 the answer is not complete, 70 a bug "
    "or a broken disk, 130 Ctrl-C, 141 the reader of a pipe ended, 1 any other error.",
)
@click.version_option(__version__)
@click.pass_context
def main(context: click.Context) -> None:
    """Galileo stores geospatial time series and runs continuous queries over them.

    \b
    Example:
      galileo up --nodes 3 &
      galileo ingest nam forecast.grib2 --create
      galileo query nam "S_INTERSECTS(geometry, BBOX(-110, 35, -100, 42))"
    """
    context.obj = SESSION.load()(given(context))
