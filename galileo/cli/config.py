"""`galileo config check`: whether nodes can be started with these files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from galileo import config as configuration
from galileo.cli import diagnosis
from galileo.cli.lazy import CommandGroup
from galileo.cli.output import EXIT_INPUT
from galileo.cli.session import Session, in_session
from galileo.dht import placement
from galileo.dht.rack_spread import rack_spread
from galileo.dht.topology import Topology
from galileo.errors import ConfigError
from galileo.redaction import redacted


@click.group(cls=CommandGroup)
def config() -> None:
    """Configuration files of nodes.

    \b
    Example:
      galileo config check node-1.toml
    """


@config.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@in_session
def check(session: Session, *, files: tuple[Path, ...]) -> None:
    """Check FILES: every key and value, and whether their [cluster] tables are the same.

    Files with node.join need no [cluster] table, since their nodes get the topology of the cluster
    that they join. Reports all problems, where a node would stop at the first. Warns if one node
    would store much more than the others, or if the racks do not suit the copies. Reads the files
    alone, not the environment. The exit status is 0 without problems, 2 with some.

    \b
    Example:
      galileo config check node-1.toml node-2.toml node-3.toml
      galileo config check node-1.toml --json | jq '.problems[].what'
    """
    problems_by_file = [(file, what) for file in files for what in _problems(file)]
    wrong = {file for file, _ in problems_by_file}
    right = tuple(file for file in files if file not in wrong)
    problems_by_file += [(file, redacted(what)) for file, what in _differences(right)]
    warnings = [] if problems_by_file else _warnings(files)
    if session.output.as_json:
        problems = [{"file": str(file), "what": what} for file, what in problems_by_file]
        warned = {"warnings": warnings}
        session.output.value(
            {"ok": not problems_by_file, "files": files, "problems": problems} | warned
        )
    else:
        for file, what in [
            *problems_by_file,
            *((files[0], f"warning: {what}") for what in warnings),
        ]:
            session.output.value(None, words=f"{file}: {what}")
        if not problems_by_file:
            session.output.value(None, words=f"{_files(len(files))} checked, no problems")
    if problems_by_file:
        click.get_current_context().exit(EXIT_INPUT)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _warnings(files: tuple[Path, ...]) -> list[str]:
    """What is uneven at first, of files without problems; they have no moves."""
    loaded = _loaded(files)
    racks = {one.node.name: one.node.rack for one in loaded if one.node.rack}
    topology = next((one for one in loaded if not one.is_joining), loaded[0]).topology
    groups = tuple(
        replace(
            group,
            nodes=tuple(
                replace(node, rack=racks.get(node.name, node.rack)) for node in group.founders
            ),
        )
        for group in topology.groups
    )
    loads = placement.relative_loads(replace(topology, groups=groups))
    spreads = [rack_spread(group, replicas=topology.replicas) for group in groups]
    findings = [
        *diagnosis.unevenness(loads),
        *(one for spread in spreads if spread for one in diagnosis.rack_findings(spread)),
    ]
    return [f"{finding.what}; {finding.advice}" for finding in findings]


def _problems(file: Path) -> list[str]:
    try:
        return configuration.problems(configuration.read(file))
    except ConfigError as error:
        return [error.command_message]


def _differences(files: tuple[Path, ...]) -> list[tuple[Path, str]]:
    """Files of one cluster must agree about it, and no two are of one node.

    Nodes that join a cluster read its topology from other nodes, so their files have no [cluster].
    """
    named: dict[str, Path] = {}
    differences, described = [], list[tuple[Path, Topology]]()
    for file, loaded in zip(files, _loaded(files), strict=True):
        name, topology = loaded.node.name, loaded.topology
        if not loaded.is_joining:
            described.append((file, topology))
            first_file, first = described[0]
            names, expected_names = ", ".join(topology.by_name), ", ".join(first.by_name)
            if topology.fingerprint != first.fingerprint:
                what = f"expected the [cluster] table of {first_file}, which differs; nodes would"
                differences.append((file, f"{what} refuse each other"))
            elif names != expected_names:
                what = f"expected the nodes of {first_file}, {expected_names}; got {names}"
                differences.append((file, what))
        if name in named:
            what = f"expected node.name to be another than in {named[name]}"
            differences.append((file, f"{what}, got {name!r} in both"))
        named.setdefault(name, file)
    return differences


def _loaded(files: tuple[Path, ...]) -> list[configuration.Config]:
    return [configuration.from_dict(configuration.read(file)) for file in files]
