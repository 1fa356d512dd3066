"""`galileo recover`: copies of partitions of which a majority is lost for good."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from galileo.cli.datasets import is_terminal
from galileo.cli.session import Session, in_session
from galileo.dht.topology import partition_name
from galileo.errors import InputError
from galileo.server import recovery as recoveries
from galileo.server.recovery import Recovery, SurvivingLog
from galileo.storage.partition_files import check_is_node
from galileo.storage.store import Store


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--lost",
    multiple=True,
    required=True,
    metavar="NODE",
    help="A node whose directory is lost for good; may be repeated.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@in_session
def recover(session: Session, *, directory: Path, lost: Sequence[str], yes: bool) -> None:
    """Go on with the copies in DIRECTORY of a stopped node after a majority of copies is lost.

    Observations that only lost nodes had are lost, acknowledged ones included; the command shows
    up to which sequence this node has each log, and asks. Never start a lost node on its old
    directory afterwards. Read docs/maintenance.md first.

    \b
    Example:
      galileo recover /var/lib/galileo --lost storm-1 --lost storm-2
    """
    if not yes and not is_terminal():
        raise InputError(
            "a recovery can lose observations, and there is no terminal to confirm it on; add --yes"
        )
    check_is_node(directory)
    with Store.open(directory, wall=time.time) as store:
        with session.output.progress(unit="commits") as bar:
            task = bar.add_task("reading the copies", total=None)
            plan = recoveries.plan(
                store, set(lost), now=time.time(), progress=lambda n: bar.advance(task, n)
            )
        if plan.is_empty:
            session.output.value(_facts(plan), words="there is nothing to recover")
            return
        if not session.output.as_json:
            session.output.rows([_row(log) for log in plan.logs], title="Copies that are left")
        if not yes and not _is_confirmed(plan):
            session.output.note("Nothing was changed.")
            click.get_current_context().exit(1)
        recoveries.carry_out(store, plan)
    session.output.value(
        _facts(plan),
        words=f"recovered {len(plan.states)} partitions. Start this node, wait until galileo "
        f"status shows it as up, then start {', '.join(lost)} on empty directories",
    )


def _row(log: SurvivingLog) -> dict[str, object]:
    return asdict(log) | {"survivors": ", ".join(log.survivors)}


def _is_confirmed(plan: Recovery) -> bool:
    partitions = ", ".join(map(partition_name, sorted(plan.states))) or "none"
    return click.confirm(
        f"Recover partitions {partitions}? Commits after the last ones shown are lost for good, "
        "unless another survivor has them.",
        err=True,
    )


def _facts(plan: Recovery) -> dict[str, object]:
    return {
        "partitions": sorted(plan.states),
        "topology": plan.register is not None,
        "logs": [asdict(log) for log in plan.logs],
    }
