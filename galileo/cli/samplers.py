"""`galileo sampler`: list, write, test, upload and revoke samplers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from galileo.cli.conformance import checks_of
from galileo.cli.lazy import CommandGroup
from galileo.cli.output import counted
from galileo.cli.sampler_options import option_of, option_option
from galileo.cli.sampler_template import write_template
from galileo.cli.session import Session, in_session
from galileo.client import UploadedSampler
from galileo.sampler_package import sampler_archive
from galileo.samplers import SamplerSpec, describe_installed
from galileo.testing.conformance import verdicts

EXIT_FAILED = 1


@click.group("sampler", cls=CommandGroup)
def sampler() -> None:
    """Samplers: list, write, test, upload and revoke them.

    \b
    Example:
      galileo sampler list
      galileo sampler new my_sampler
      galileo sampler test my_sampler
      galileo sampler upload my_sampler
    """


@sampler.command("list")
@in_session
def list_samplers(session: Session) -> None:
    """List the samplers that are installed on this machine; nodes have their own.

    \b
    Example:
      galileo sampler list --json
    """
    rows = describe_installed()
    session.output.rows(rows, empty="No samplers; pip install galileo-samplers has some.")


@sampler.command()
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Parent of its directory.  [default: .]",
)
@click.option(
    "--observations", is_flag=True, help="The sampler reads observations, not labels alone."
)
@in_session
def new(session: Session, *, name: str, directory: Path, observations: bool) -> None:
    """Write a new sampler: a Python distribution with ten lines to change, and its test.

    \b
    Example:
      galileo sampler new dry_hours
      galileo sampler new steep_hours --observations
    """
    files = write_template(name, directory, observing=observations)
    home = directory / name
    session.output.value(
        {"directory": str(home), "files": [str(path) for path in files]},
        words="\n".join(
            [
                *map(str, files),
                f"Change it, then\n  galileo sampler test {home}\n  pip install {home}",
            ]
        ),
    )


@sampler.command()
@click.argument("target")
@option_option
@click.option("--ignores-seed", is_flag=True, help="Expect the same sample for every seed.")
@in_session
def test(session: Session, *, target: str, options: tuple[str, ...], ignores_seed: bool) -> None:
    """Check that a sampler keeps the rules that exactly-once delivery needs.

    TARGET is the directory of a distribution with conformance tests, a Python file, or the name
    of an installed sampler. Options are for a sampler without a test of its own; it gets labels
    with the features temperature, level, station and raining. If a check fails, the exit status
    is 1.

    \b
    Example:
      galileo sampler test ./dry_hours
      galileo sampler test my_sampler.py --option fraction=0.2
      galileo sampler test reservoir --option n=20
    """
    spec = SamplerSpec(target, dict(option_of(text) for text in options), 0)
    rows = [
        {
            "sampler": checks.__name__,
            "check": verdict.check,
            "verdict": verdict.outcome,
            "message": verdict.message,
        }
        for checks in checks_of(target, spec=spec, seed_matters=not ignores_seed)
        for verdict in verdicts(checks)
    ]
    failed = [row for row in rows if row["verdict"] == "failed"]
    if session.output.as_json:
        session.output.rows(rows)
    else:
        # A message has no room in a narrow table, and is what matters where a check failed.
        session.output.rows([{k: row[k] for k in ("sampler", "check", "verdict")} for row in rows])
        lines = [f"failed: {row['check']}: {row['message']}" for row in failed]
        lines.append(f"{len(failed)} of {len(rows)} checks failed")
        session.output.value(None, words="\n".join(lines))
    if failed:
        click.get_current_context().exit(EXIT_FAILED)


@sampler.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@in_session
def upload(session: Session, *, file: Path) -> None:
    """Upload a sampler's code to the nodes, which store it under its digest.

    FILE is a Python file, a directory or a zip with one sampler. --sampler-file of `galileo query`
    and `galileo ccq submit` uploads, too.

    \b
    Example:
      galileo sampler upload my_sampler.py
    """
    archive = sampler_archive(file)
    with session.client() as client:
        uploaded = client.send_sampler(archive)
    words = f"{uploaded.digest}  {uploaded.name}, {counted(uploaded.bytes, 'byte')}"
    session.output.value(_row(uploaded), words=words)


@sampler.command()
@in_session
def uploads(session: Session) -> None:
    """List the uploaded samplers: who uploaded them and when, and what uses them.

    \b
    Example:
      galileo sampler uploads
    """
    with session.client() as client:
        rows = [_row(uploaded) for uploaded in client.sent_samplers()]
    session.output.rows(rows, empty="No samplers were uploaded.")


@sampler.command()
@click.argument("digest")
@in_session
def revoke(session: Session, *, digest: str) -> None:
    """Revoke an uploaded sampler permanently, at all nodes.

    DIGEST may be shortened to eight digits or more.

    \b
    Example:
      galileo sampler revoke 3f9a1c07
    """
    with session.client() as client:
        revoked = client.revoke_sampler(digest)
    words = f"{revoked.sampler.digest}  {revoked.sampler.name} is revoked"
    if revoked.sampler.ccq_ids:
        words += f"\nThese continuous queries fail now: {', '.join(revoked.sampler.ccq_ids)}"
    if revoked.away:
        words += (
            f"\nThese nodes are unreachable and will be informed later: {', '.join(revoked.away)}"
        )
    session.output.value(_row(revoked.sampler) | {"away": revoked.away}, words=words)


def _row(sampler: UploadedSampler) -> dict[str, Any]:
    return {
        "digest": sampler.digest,
        "name": sampler.name,
        "bytes": sampler.bytes,
        "sent_by": sampler.sent_by,
        "sent_at": _time(sampler.sent_at),
        "ccqs": ", ".join(sampler.ccq_ids),
        "revoked_at": _time(sampler.revoked_at),
    }


def _time(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
