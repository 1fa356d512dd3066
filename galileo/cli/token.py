"""`galileo token`: create, list and revoke tokens."""

from __future__ import annotations

import datetime as dt
import re
import time
from math import inf
from pathlib import Path

import click

from galileo.cli.lazy import CommandGroup
from galileo.cli.session import Session, in_session
from galileo.durable_files import replace_file
from galileo.errors import ConfigError, InputError
from galileo.model.quotas import KINDS, parse_quotas
from galileo.model.schema import nearest_name
from galileo.private_ca import DAYS_MAX
from galileo.rpc import token_store
from galileo.rpc.access import EVERY_DATASET, Principal, Role

DAY_S = 86_400.0
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?(e[0-9]+)?")

_file = click.option(
    "--principals",
    "path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of auth.token_file; copy it to each node.",
)


@click.group(cls=CommandGroup)
def token() -> None:
    """Tokens: create, list and revoke the credentials of users and nodes.

    \b
    Example:
      galileo token create ann --role reader --dataset "nam*" \\
          --principals principals.toml
    """


@token.command()
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    type=click.Choice([role.value for role in Role]),
    help="Role of the token; repeat it for others.",
)
@click.option(
    "--dataset",
    "datasets",
    multiple=True,
    help="Dataset, or pattern of datasets, it may use; repeat it for others.  [default: *]",
)
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    help="Broker of channels, or pattern of brokers, it may use and no others; repeat it for "
    "others. A subscriber has the broker of its own name without it.",
)
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    metavar="NAME=BOUND",
    help="Limit of one resource, such as ccqs_max=10; repeat it for others.",
)
@click.option("--days", type=click.FloatRange(0, DAYS_MAX, min_open=True), help="Validity in days.")
@_file
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the token, readable by its owner only; by default it is printed.",
)
@in_session
def create(
    session: Session,
    *,
    name: str,
    roles: tuple[str, ...],
    datasets: tuple[str, ...],
    brokers: tuple[str, ...],
    quotas: tuple[str, ...],
    days: float | None,
    path: Path,
    output: Path | None,
) -> None:
    """Create a token for NAME; it is shown only once.

    \b
    Example:
      galileo token create ann --role reader --principals principals.toml
      galileo token create bob --role reader --quota ccqs_max=10 --days 30 \\
          --principals principals.toml
      galileo token create mail --role subscriber --dataset smog \\
          --principals principals.toml
      galileo token create nodes --role node --output node.token \\
          --principals principals.toml
    """
    principal = Principal(
        name,
        frozenset(map(Role, roles)),
        datasets or EVERY_DATASET,
        tuple(sorted(_bounds(quotas).items())),
        inf if days is None else round(time.time() + days * DAY_S),
        brokers,
    )
    secret = token_store.add(path, principal)
    if output is not None:
        try:
            replace_file(output, secret.encode())
        except OSError:
            token_store.remove(path, name)  # Its token is lost.
            raise
        session.output.value(
            {"name": name, "file": str(output)}, words=f"Wrote the token of {name} to {output}."
        )
        return
    session.output.value({"name": name, "token": secret}, words=secret)


def _bounds(quotas: tuple[str, ...]) -> dict[str, float]:
    """What `--quota` says."""
    bounds: dict[str, float] = {}
    for text in quotas:
        name, _, bound = text.partition("=")
        if name not in KINDS:
            close = nearest_name(name, list(KINDS))
            hint = f"; did you mean {close!r}?" if close else "."
            raise InputError(
                f"unknown name in --quota: {name!r}{hint} Known: {', '.join(sorted(KINDS))}"
            )
        number = float(bound) if _NUMBER.fullmatch(bound) else 0.0
        bounds[name] = int(number) if KINDS.get(name) is int and number.is_integer() else number
    try:
        return parse_quotas(bounds, "--quota")
    except ConfigError as error:
        raise InputError(error.message) from None


def _shown(expires_at: float) -> str | None:
    if expires_at == inf:
        return None
    return dt.datetime.fromtimestamp(expires_at, dt.UTC).isoformat()


@token.command()
@click.argument("name")
@_file
@in_session
def revoke(session: Session, *, name: str, path: Path) -> None:
    """Revoke NAME's token; nodes reject it within two seconds.

    \b
    Example:
      galileo token revoke ann --principals principals.toml
    """
    token_store.remove(path, name)
    session.output.value({"revoked": name}, words=f"revoked the token of {name}")


@token.command("list")
@_file
@in_session
def list_(session: Session, *, path: Path) -> None:
    """List the names that have a token, with roles, datasets, brokers and quotas.

    \b
    Example:
      galileo token list --principals principals.toml
    """
    known = sorted(token_store.read(path).principals.values(), key=lambda principal: principal.name)
    rows = [
        {
            "name": principal.name,
            "roles": sorted(principal.roles),
            "datasets": list(principal.datasets),
            "brokers": list(principal.brokers),
            "quotas": dict(principal.quotas),
            "expires": _shown(principal.expires_at),
        }
        for principal in known
    ]
    session.output.rows(rows, title="Principals", empty="There are no tokens.")
