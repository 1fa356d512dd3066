"""`galileo config check`: whether nodes can be started with these files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from galileo import config as configuration
from galileo.cli import diagnosis
from galileo.cli.lazy import Group
from galileo.cli.output import EXIT_INPUT, handle_errors
from galileo.cli.session import Session, json_option
from galileo.dht import placement
from galileo.dht.rack_spread import rack_spread
from galileo.errors import ConfigError
from galileo.redaction import redacted


@click.group(cls=Group)
def config() -> None:
    """Configuration files of nodes.

    \b
    Example:
      galileo config check node-1.toml
    """


@config.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@json_option
@click.pass_obj
@handle_errors
def check(session: Session, *, files: tuple[Path, ...]) -> None:
    """Check FILES: every key and value, and whether their [cluster] tables are the same.

    Reports all problems, where a node would stop at the first. Warns if one node would store much
    more than the others, or if the racks do not suit the copies. Reads the files alone, not the
    environment. The exit status is 0 without problems, 2 with some.

    \b
    Example:
      galileo config check node-1.toml node-2.toml node-3.toml
      galileo config check node-1.toml --json | jq '.problems[].what'
    """
    problems_by_file = [(file, what) for file in files for what in _problems(file)]
    if not problems_by_file:
        problems_by_file = [(file, redacted(what)) for file, what in _differences(files)]
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
    loaded = [configuration.from_dict(configuration.read(file)) for file in files]
    racks = {one.node.name: one.node.rack for one in loaded if one.node.rack}
    topology = loaded[0].topology
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
        return [error.message]


def _differences(files: tuple[Path, ...]) -> list[tuple[Path, str]]:
    """Files of one cluster must agree about it, and no two are of one node."""
    loaded = [configuration.from_dict(configuration.read(file)) for file in files]
    first, named = loaded[0], {loaded[0].node.name: files[0]}
    differences = []
    for file, other in list(zip(files, loaded, strict=True))[1:]:
        if other.topology.fingerprint != first.topology.fingerprint:
            what = f"expected the [cluster] table of {files[0]}, which differs; nodes would refuse"
            differences.append((file, f"{what} each other"))
        elif other.topology.by_name.keys() != first.topology.by_name.keys():
            expected_names, names = (
                ", ".join(first.topology.by_name),
                ", ".join(other.topology.by_name),
            )
            differences.append(
                (file, f"expected the nodes of {files[0]}, {expected_names}; got {names}")
            )
        if other.node.name in named:
            what = f"expected node.name to be another than in {named[other.node.name]}"
            differences.append((file, f"{what}, got {other.node.name!r} in both"))
        named.setdefault(other.node.name, file)
    return differences
