"""`galileo doctor`: what is wrong with a cluster or with a host, and what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from galileo import config as configuration
from galileo.cli import diagnosis
from galileo.cli.diagnosis import Finding
from galileo.cli.retention import held_commits, held_results
from galileo.cli.session import Session, in_session
from galileo.client import Client, NodeStatus
from galileo.client.node_diagnostics import NodeReport, conditions
from galileo.errors import GalileoError
from galileo.model.times import seconds
from galileo.server.host_checks import HostCondition, host_condition

EXIT_PROBLEMS = 1
_INDENT = " " * 4


@click.command()
@click.option(
    "--config",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Examine this host for the node of a TOML file, instead of a cluster.",
)
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Examine this host for a node's directory, instead of a cluster.",
)
@in_session
def doctor(session: Session, *, path: Path | None, directory: Path | None) -> None:
    """Examine a cluster, or the host of a node, and explain what is wrong.

    Checks every node: whether it answers and is ready, its version, clock, free disk, disk speed,
    open files, Java, sampler sandbox, limits that are nearly reached, and continuous queries that
    fail or are overloaded. Names brokers whose sinks get nothing, or for which results are kept
    beyond their time. Warns if one node stores much more than the others, or if the racks do not
    suit the copies. The exit status is 1 if there is a problem, else 0. With access control it
    needs the token of an admin.

    \b
    Example:
      galileo doctor
      galileo doctor --json | jq '.findings[].what'
      galileo doctor --config node-1.toml
    """
    if path is not None or directory is not None:
        findings, examined = _of_host(path, directory)
        report: object = examined
        words = "this host"
    else:
        timeout_s, keys = seconds(session.timeout), session.proof.keys()
        reports = asyncio.run(conditions(session.addresses, patience_s=timeout_s, keys=keys))
        findings, report = diagnosis.of_cluster(reports) + _of_brokers(session, reports), reports
        words = _nodes(reports)
    _report(session, findings, examined=report, words=words)
    if any(finding.severity == "problem" for finding in findings):
        click.get_current_context().exit(EXIT_PROBLEMS)


def _of_brokers(session: Session, reports: Sequence[NodeReport]) -> list[Finding]:
    """Findings about brokers; few if the cluster does not answer, which is a finding anyway."""
    findings = list[Finding]()
    try:
        with session.client() as client:
            channels = [channel.name for channel in client.channels()]
            status = [report.status for report in reports if report.status is not None]
            findings = diagnosis.of_held(held_results(status, channels))
            findings += diagnosis.of_readers(held_commits(status, _readers(client, status)))
            brokers = client.brokers()
            pushed = [name for name in channels if any(broker.takes(name) for broker in brokers)]
            deliveries = [one for channel in pushed for one in client.deliveries(channel)]
    except GalileoError:
        return findings
    return [*diagnosis.of_brokers(brokers if pushed else [], deliveries), *findings]


def _readers(client: Client, nodes: Sequence[NodeStatus]) -> dict[str, list[str]]:
    """The names of the named readers of each dataset of which something is held back."""
    datasets = {schema.name for schema in client.datasets()}
    held = {one["dataset"] for node in nodes for one in node.datasets if one["held_back"]}
    return {name: [one.name for one in client.readers(name)] for name in sorted(held & datasets)}


def _of_host(path: Path | None, directory: Path | None) -> tuple[list[Finding], HostCondition]:
    """A directory alone is examined for all that a node may need."""
    if path is None:
        assert directory is not None, "there is one of both"
        host = host_condition(directory, takes_samplers=True)
        return diagnosis.of_host(str(directory), host), host
    loaded = configuration.load(path)
    name, expected = loaded.node.name, directory or Path(loaded.node.directory).absolute()
    there = next(place for place in (expected, *expected.parents) if _may_be_there(place))
    host = host_condition(there, takes_samplers=loaded.samplers.uploads == "sandboxed")
    missing = [] if there == expected else [diagnosis.missing(name, expected, examined=there)]
    return [*diagnosis.of_host(name, host), *missing], host


def _may_be_there(directory: Path) -> bool:
    """Whether it is a directory; True also on an error, which its examination reports."""
    try:
        return directory.is_dir()
    except OSError:
        return True


def _nodes(reports: Sequence[NodeReport]) -> str:
    return "1 node" if len(reports) == 1 else f"{len(reports)} nodes"


def _report(session: Session, findings: Sequence[Finding], *, examined: object, words: str) -> None:
    problems = sum(finding.severity == "problem" for finding in findings)
    if session.output.as_json:
        report = {"ok": not problems, "findings": list(findings), "examined": examined}
        session.output.value(report)
        return
    for finding in findings:
        where = f"{finding.node}: " if finding.node else ""
        fold = session.output.fold
        lines = [
            fold(f"{finding.severity.upper()}  {where}{finding.what}", indent=_INDENT),
            fold(f"It means: {finding.means}.", first=_INDENT, indent=_INDENT),
            fold(f"What to do: {finding.advice}.", first=_INDENT, indent=_INDENT),
            "",
        ]
        session.output.value(None, words="\n".join(lines))
    counts = [(problems, "problem"), (len(findings) - problems, "warning")]
    end = ", ".join(f"{n} {what}{'s' * (n != 1)}" for n, what in counts)
    session.output.value(None, words=f"Examined {words}: {end}.")
