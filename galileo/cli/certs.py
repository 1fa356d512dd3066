"""`galileo certs`: a private authority for the certificates of a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from galileo import private_ca
from galileo.cli.lazy import Group
from galileo.cli.output import failing_well
from galileo.cli.session import Session, json_option
from galileo.private_ca import Subject

_authority = click.argument("authority", type=click.Path(file_okay=False, path_type=Path))
_days = click.option("--days", default=private_ca.DAYS, show_default=True, help="Validity in days.")
_target = click.option(
    "--target",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the files.  [default: AUTHORITY/NAME]",
)


@click.group(cls=Group)
def certs() -> None:
    """Certificates: a private authority for the cluster's TLS.

    \b
    Example:
      galileo certs init authority --cluster plains
      galileo certs node authority storm-1 --host 10.0.0.11 --host storm-1.example
      galileo certs client authority ann
    """


@certs.command()
@_authority
@click.option("--cluster", default="galileo", show_default=True, help="Name of the cluster.")
@click.option(
    "--days",
    default=private_ca.AUTHORITY_DAYS,
    show_default=True,
    help="Validity in days.",
)
@json_option
@click.pass_obj
@failing_well
def init(session: Session, *, authority: Path, cluster: str, days: int) -> None:
    """Create an authority in the directory AUTHORITY; do not copy its key to the nodes.

    \b
    Example:
      galileo certs init authority --cluster plains
    """
    made = private_ca.make_authority(authority, cluster=cluster, days=days)
    session.output.value(
        {"authority": str(made), "key": str(authority / private_ca.AUTHORITY_KEY)},
        words=f"Wrote the authority of {cluster} to {authority}. Anyone with its key can make "
        "certificates of nodes.",
    )


@certs.command()
@_authority
@click.argument("name")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    help="Host name or address of the node; repeat it for others.",
)
@_target
@_days
@json_option
@click.pass_obj
@failing_well
def node(
    session: Session,
    *,
    authority: Path,
    name: str,
    hosts: tuple[str, ...],
    target: Path | None,
    days: int,
) -> None:
    """Create or renew the key and certificate of the node NAME.

    \b
    Example:
      galileo certs node authority storm-1 --host 10.0.0.11
    """
    _issue(session, authority, Subject("node", name, hosts, days=days), target=target)


@certs.command()
@_authority
@click.argument("name")
@_target
@_days
@json_option
@click.pass_obj
@failing_well
def client(session: Session, *, authority: Path, name: str, target: Path | None, days: int) -> None:
    """Create or renew the key and certificate of the client NAME.

    \b
    Example:
      galileo certs client authority ann --days 90
    """
    _issue(session, authority, Subject("client", name, days=days), target=target)


def _issue(session: Session, authority: Path, subject: Subject, *, target: Path | None) -> None:
    made = private_ca.issue(authority, subject, target=target or authority / subject.name)
    session.output.value(
        {
            "certificate": str(made / private_ca.CERTIFICATE),
            "key": str(made / private_ca.KEY),
            "authority": str(made / private_ca.AUTHORITY),
        },
        words=f"Wrote {subject.kind} certificate for {subject.name} to {made} "
        f"(valid {subject.days} days)",
    )
