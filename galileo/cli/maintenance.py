"""`galileo verify`: what can be done with a node's directory, without its node."""

from __future__ import annotations

from pathlib import Path

import click

from galileo.cli.output import failing_well
from galileo.cli.session import Session, json_option
from galileo.storage import verify as checks

EXIT_DAMAGED = 1

_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("directory", type=_DIRECTORY)
@json_option
@click.pass_obj
@failing_well
def verify(session: Session, *, directory: Path) -> None:
    """Check every byte that a node keeps in DIRECTORY; the node may be running.

    Changes nothing. Ends with status 0 where all is well, 1 where something is damaged.

    \b
    Example:
      galileo verify galileo-data/node-1 --json | jq '.damages[].file'
    """
    with session.output.progress(unit="MB") as bar:
        task = bar.add_task("verifying", total=checks.bytes_to_read(directory) / 1e6)
        report = checks.verify(directory, progress=lambda size: bar.advance(task, size / 1e6))
    if session.output.as_json:
        session.output.value({"ok": report.ok} | {name: getattr(report, name) for name in _FIELDS})
    else:
        session.output.rows([_row(damage) for damage in report.damages], title="Damage")
        session.output.value(report, words=_summary(report))
    if not report.ok:
        click.get_current_context().exit(EXIT_DAMAGED)


_FIELDS = ("directory", "files", "bytes", "commits", "torn_bytes", "damages")


def _row(damage: checks.Damage) -> dict[str, object]:
    return {
        "dataset": damage.dataset,
        "partition": damage.partition,
        "sequence": damage.sequence,
        "file": damage.file,
        "offset": damage.offset,
        "what": damage.reason,
    }


def _summary(report: checks.Report) -> str:
    state = "all is well" if report.ok else f"{len(report.damages)} damaged places"
    torn = f"; {report.torn_bytes:,} bytes of torn tails" if report.torn_bytes else ""
    return (
        f"{report.commits:,} commits in {report.files:,} files, {report.bytes / 1e6:,.1f} MB: "
        f"{state}{torn}"
    )
