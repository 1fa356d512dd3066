"""The root of the command line."""

from __future__ import annotations

import click

from galileo import __version__
from galileo.cli.lazy import LazyCommand, LazyCommands, LazyGroup
from galileo.cli.options import given, shared_options

SESSION = LazyCommand("galileo.cli.session:Session", "The cluster's addresses and the output.")
COMMANDS = {
    "aggregate": LazyCommand(
        "galileo.cli.aggregate:aggregate",
        "Group the matching observations, with counts and statistics of features.",
    ),
    "backup": LazyCommand(
        "galileo.cli.backup:backup",
        "Copy a node's DIRECTORY to TARGET, which must not exist; the node may be running.",
    ),
    "ca": LazyCommand(
        "galileo.cli.certs:ca", "A private certificate authority for the cluster's TLS."
    ),
    "broker": LazyCommand(
        "galileo.cli.brokers:broker",
        "Brokers of channels, and the sinks that workers push their notifications to.",
    ),
    "ccq": LazyCommand(
        "galileo.cli.ccq:ccq", "Continuous queries: submit, fetch, watch and cancel."
    ),
    "cert": LazyCommand("galileo.cli.certs:cert", "Certificates of nodes and clients."),
    "channel": LazyCommand(
        "galileo.cli.channels:channel",
        "Channels: continuous queries with parameters, their subscriptions and results.",
    ),
    "completion": LazyCommand(
        "galileo.cli.completion:completion",
        "Print a script that completes commands and options in a SHELL.",
    ),
    "config": LazyCommand("galileo.cli.config:config", "Configuration files of nodes."),
    "count": LazyCommand(
        "galileo.cli.data:count", "Count the observations that match a query exactly."
    ),
    "dataset": LazyCommand(
        "galileo.cli.datasets:dataset",
        "Datasets: create, extend, list, show, follow, clean and drop them.",
    ),
    "delete": LazyCommand(
        "galileo.cli.delete:delete",
        "Delete observations, by a condition or, of a keyed dataset, by a file of their keys.",
    ),
    "doctor": LazyCommand(
        "galileo.cli.doctor:doctor",
        "Examine a cluster, or the host of a node, and explain what is wrong.",
    ),
    "drain": LazyCommand(
        "galileo.cli.cluster:drain",
        "Hand a node's continuous queries to other nodes before it is stopped.",
    ),
    "estimate": LazyCommand(
        "galileo.cli.analytics:estimate",
        "Estimate how many paths match a query, from metadata that one node has.",
    ),
    "evaluator": LazyCommand(
        "galileo.cli.serve:evaluator",
        "Run this host's Spark evaluator; nodes start one when they need it.",
    ),
    "explain": LazyCommand(
        "galileo.cli.analytics:explain",
        "Show which nodes answer a query, and how much data each one prunes and scans.",
    ),
    "gateway": LazyCommand(
        "galileo.cli.gateway:gateway",
        "Serve the cluster over HTTP: a map, OGC API, files and SPARQL, until SIGTERM or SIGINT.",
    ),
    "graph": LazyCommand("galileo.cli.analytics:graph", "The metadata graph of a dataset."),
    "ingest": LazyCommand(
        "galileo.cli.ingest:ingest",
        "Ingest files of observations, such as CSV, Parquet, NetCDF or GRIB; - is standard input.",
    ),
    "latest": LazyCommand(
        "galileo.cli.aggregate:latest",
        "Find the newest matching observation of each cell, or of each value of a feature.",
    ),
    "nearest": LazyCommand(
        "galileo.cli.analytics:nearest",
        "Find the matching observations nearest to a point.",
    ),
    "node": LazyCommand(
        "galileo.cli.node:node", "Nodes of the cluster: list, add, remove, replace and scrub them."
    ),
    "page": LazyCommand(
        "galileo.cli.page:page",
        "List the observations that match, with their ids, a page at a time.",
    ),
    "partition": LazyCommand(
        "galileo.cli.partition:partition", "Partitions: move them between nodes."
    ),
    "query": LazyCommand(
        "galileo.cli.data:query", "List the labels of the blocks that match a CQL2 query."
    ),
    "read": LazyCommand("galileo.cli.data:read", "Download the observations that match a query."),
    "recover": LazyCommand(
        "galileo.cli.recover:recover",
        "Go on with the copies in DIRECTORY of a stopped node after a majority of copies is lost.",
    ),
    "restore": LazyCommand(
        "galileo.cli.backup:restore",
        "Create a node's DIRECTORY, which must not exist, from the backup SOURCE.",
    ),
    "retention": LazyCommand(
        "galileo.cli.retention:retention",
        "Retention: how long observations are kept, by age, by size or by both.",
    ),
    "sampler": LazyCommand(
        "galileo.cli.samplers:sampler",
        "Samplers: list, write, test, upload and revoke them.",
    ),
    "serve": LazyCommand(
        "galileo.cli.serve:serve", "Run one node until it receives SIGTERM or SIGINT."
    ),
    "sparql": LazyCommand(
        "galileo.cli.sparql:sparql",
        "Query results as RDF with SPARQL; see docs/rdf.md for the terms.",
    ),
    "stats": LazyCommand(
        "galileo.cli.analytics:stats",
        "Count the matching observations, with statistics and histograms of features.",
    ),
    "status": LazyCommand(
        "galileo.cli.cluster:status",
        "Show every node: its state, load, data and continuous queries.",
    ),
    "table": LazyCommand(
        "galileo.cli.tables:table",
        "Tables: create, fill, show and drop keyed rows, which are replaced and deleted.",
    ),
    "token": LazyCommand(
        "galileo.cli.token:token",
        "Tokens: create, list and revoke the credentials of users and nodes.",
    ),
    "top": LazyCommand(
        "galileo.cli.top:top",
        "Show nodes and continuous queries, refreshed until Ctrl-C.",
    ),
    "topology": LazyCommand(
        "galileo.cli.cluster:topology",
        "Show the groups, their nodes with their racks, and their geohash ranges.",
    ),
    "up": LazyCommand("galileo.cli.cluster:up", "Run a cluster on this machine until Ctrl-C."),
    "verify": LazyCommand(
        "galileo.cli.backup:verify",
        "Check every byte that a node keeps in DIRECTORY; the node may be running.",
    ),
    "worker": LazyCommand(
        "galileo.cli.worker:worker",
        "Push the notifications of channels for brokers with a sink, until SIGTERM or SIGINT.",
    ),
    "whoami": LazyCommand(
        "galileo.cli.cluster:whoami",
        "Show the user name the cluster knows you by, your quotas, and what you use of them.",
    ),
}


INSTEAD = {
    "shell": "there is no shell; use galileo read, or galileo.connect in Python",
    "sql": 'queries are CQL2, the part after WHERE: galileo read DATASET "temperature > 290"',
    "ls": "did you mean galileo dataset list?",
    "list": "did you mean galileo dataset list?",
    "datasets": "did you mean galileo dataset list?",
    "tables": "did you mean galileo table list?",
    "describe": "did you mean galileo dataset show?",
    "show": "did you mean galileo dataset show?",
    "create": "did you mean galileo dataset create?",
    "select": "did you mean galileo read?",
    "export": "did you mean galileo read DATASET --output FILE?",
    "drop": "did you mean galileo dataset drop?",
}
"""What to use in place of commands that other systems have."""


@click.group(
    cls=LazyGroup,
    instead=INSTEAD,
    commands=LazyCommands(COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"]},
    params=shared_options(),
    epilog="The options above may come before or after the command. Exit status: 0 done, 2 fix "
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
