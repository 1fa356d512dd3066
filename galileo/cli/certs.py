"""`galileo ca` and `galileo cert`: a private certificate authority for the TLS of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from galileo import private_ca
from galileo.cli.lazy import CommandGroup
from galileo.cli.session import Session, in_session
from galileo.errors import InputError
from galileo.private_ca import Subject

_authority = click.argument("authority", type=click.Path(file_okay=False, path_type=Path))


@click.group(cls=CommandGroup)
def ca() -> None:
    """A private certificate authority for the cluster's TLS.

    \b
    Example:
      galileo ca create authority --cluster plains
    """


@ca.command()
@_authority
@click.option("--cluster", default="galileo", show_default=True, help="Name of the cluster.")
@click.option(
    "--days",
    default=private_ca.AUTHORITY_DAYS,
    show_default=True,
    help="Validity in days.",
)
@in_session
def create(session: Session, *, authority: Path, cluster: str, days: int) -> None:
    """Create an authority in the directory AUTHORITY; do not copy its key to the nodes.

    \b
    Example:
      galileo ca create authority --cluster plains
    """
    certificate = private_ca.make_authority(authority, cluster=cluster, days=days)
    session.output.value(
        {"authority": str(certificate), "key": str(authority / private_ca.AUTHORITY_KEY)},
        words=f"Wrote the authority of {cluster} to {authority}. Anyone with its key can issue "
        "certificates of nodes.",
    )


@click.group(cls=CommandGroup)
def cert() -> None:
    """Certificates of nodes and clients.

    \b
    Example:
      galileo cert issue node authority storm-1 \\
          --host 10.0.0.11 --host storm-1.example
      galileo cert issue client authority ann
    """


@cert.command()
@click.argument("kind", type=click.Choice(["node", "client"]), metavar="node|client")
@_authority
@click.argument("name")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Host name or address of the node; repeat it for others.",
)
@click.option(
    "--target",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the files.  [default: AUTHORITY/NAME]",
)
@click.option("--days", default=private_ca.DAYS, show_default=True, help="Validity in days.")
@in_session
def issue(
    session: Session,
    *,
    kind: Literal["node", "client"],
    authority: Path,
    name: str,
    hosts: tuple[str, ...],
    target: Path | None,
    days: int,
) -> None:
    """Create or renew the key and certificate of the node or client NAME.

    A node needs at least one --host.

    \b
    Example:
      galileo cert issue node authority storm-1 --host 10.0.0.11
      galileo cert issue client authority ann --days 90
    """
    if (kind == "node") != bool(hosts):
        raise InputError(
            "the certificate of a node needs --host; add a name or address that clients connect to"
            if kind == "node"
            else "the certificate of a client has no --host; leave it out"
        )
    subject = Subject(kind, name, hosts, days=days)
    directory = private_ca.issue(authority, subject, target=target or authority / name)
    session.output.value(
        {
            "certificate": str(directory / private_ca.CERTIFICATE),
            "key": str(directory / private_ca.KEY),
            "authority": str(directory / private_ca.AUTHORITY),
        },
        words=f"Wrote {kind} certificate for {name} to {directory} (valid {days} days)",
    )
