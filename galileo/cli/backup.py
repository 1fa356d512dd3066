"""`galileo verify`, `backup`, `restore`: a node's directory without its node."""

from __future__ import annotations

import time
from pathlib import Path

import click

from galileo.cli.output import counted
from galileo.cli.session import Session, in_session
from galileo.storage import backup as backups
from galileo.storage import verify as checks

EXIT_DAMAGED = 1

_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
_NEW = click.Path(path_type=Path)


@click.command()
@click.argument("directory", type=_DIRECTORY)
@in_session
def verify(session: Session, *, directory: Path) -> None:
    """Check every byte that a node keeps in DIRECTORY; the node may be running.

    Changes nothing. The exit status is 0 without damage, 1 with some.

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
    state = "no damage" if report.ok else counted(len(report.damages), "damaged place")
    torn = f"; {counted(report.torn_bytes, 'byte')} of torn tails" if report.torn_bytes else ""
    return (
        f"{counted(report.commits, 'commit')} in {counted(report.files, 'file')}, "
        f"{report.bytes / 1e6:,.1f} MB: "
        f"{state}{torn}"
    )


@click.command()
@click.argument("directory", type=_DIRECTORY)
@click.argument("target", type=_NEW)
@click.option(
    "--link", is_flag=True, help="Hard-link files that are final instead of copying them."
)
@in_session
def backup(session: Session, *, directory: Path, target: Path, link: bool) -> None:
    """Copy a node's DIRECTORY to TARGET, which must not exist; the node may be running.

    \b
    Example:
      galileo backup /data/galileo /backups/galileo-2012-03-01
    """
    with session.output.progress(unit="MB") as bar:
        task = bar.add_task("copying", total=checks.bytes_to_read(directory) / 1e6)
        manifest = backups.backup(
            directory,
            target,
            now=time.time(),
            link=link,
            progress=lambda n: bar.advance(task, n / 1e6),
        )
    _report(session, manifest, place=target)


@click.command()
@click.argument("source", type=_DIRECTORY)
@click.argument("directory", type=_NEW)
@in_session
def restore(session: Session, *, source: Path, directory: Path) -> None:
    """Create a node's DIRECTORY, which must not exist, from the backup SOURCE.

    Later commits are not in it; read docs/storage.md before you start a node of a running cluster
    with it.

    \b
    Example:
      galileo restore /backups/galileo-2012-03-01 /data/galileo
    """
    with session.output.progress(unit="MB") as bar:
        task = bar.add_task("copying", total=checks.bytes_to_read(source) / 1e6)
        manifest = backups.restore(
            source, directory, now=time.time(), progress=lambda n: bar.advance(task, n / 1e6)
        )
    _report(session, manifest, place=directory)


def _report(session: Session, manifest: backups.Manifest, *, place: Path) -> None:
    facts = {"directory": str(place), "created_at": manifest.created_at}
    facts |= {
        "commits": manifest.commits,
        "files": len(manifest.files),
        "bytes": manifest.total_bytes,
    }
    session.output.value(
        facts,
        words=f"{counted(manifest.commits, 'commit')} in {counted(len(manifest.files), 'file')}, "
        f"{manifest.total_bytes / 1e6:,.1f} MB: in {place}",
    )
