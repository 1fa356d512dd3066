"""`galileo token`: whose tokens there are, and what each of them may do."""

from __future__ import annotations

import datetime as dt
import re
import time
from math import inf
from pathlib import Path

import click

from galileo.certificates import DAYS_MAX, write_secret
from galileo.cli.output import failing_well
from galileo.cli.session import Session, json_option
from galileo.errors import ConfigError, InputError
from galileo.model.quotas import KINDS, named
from galileo.rpc import principals
from galileo.rpc.access import EVERY_DATASET, Principal, Role

DAY_S = 86_400.0
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?(e[0-9]+)?")

_file = click.option(
    "--principals",
    "path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of access.principals; copy it to each node.",
)


@click.group()
def token() -> None:
    """Tokens: who may do what, and how it is proved.

    \b
    Example:
      galileo token new ann --role reader --dataset "nam*" --principals principals.toml
    """


@token.command()
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    type=click.Choice([one.value for one in Role]),
    help="What it is; repeat it for others.",
)
@click.option(
    "--dataset",
    "datasets",
    multiple=True,
    help="Name or pattern of what it may use; repeat it for others.  [default: *]",
)
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    metavar="NAME=BOUND",
    help="Most that it may use of one thing, such as ccqs_max=10; repeat it for others.",
)
@click.option(
    "--days", type=click.FloatRange(0, DAYS_MAX, min_open=True), help="After which it expires."
)
@_file
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the token, which only its owner can read; else it is printed.",
)
@json_option
@click.pass_obj
@failing_well
def new(
    session: Session,
    *,
    name: str,
    roles: tuple[str, ...],
    datasets: tuple[str, ...],
    quotas: tuple[str, ...],
    days: float | None,
    path: Path,
    out: Path | None,
) -> None:
    """Let NAME in, and tell its token once; it is kept nowhere else.

    \b
    Example:
      galileo token new ann --role reader --principals principals.toml
      galileo token new bob --role reader --quota ccqs_max=10 --days 30 --principals principals.toml
      galileo token new nodes --role node --principals principals.toml --out node.token
    """
    principal = Principal(
        name,
        frozenset(map(Role, roles)),
        datasets or EVERY_DATASET,
        tuple(sorted(_bounds(quotas).items())),
        inf if days is None else round(time.time() + days * DAY_S),
    )
    made = principals.add(path, principal)
    if out is not None:
        try:
            write_secret(out, made.encode())
        except OSError:
            principals.remove(path, name)  # Nobody will ever know its token.
            raise
        session.output.value({"name": name, "file": str(out)}, words=f"Its token is in {out}.")
        return
    session.output.value({"name": name, "token": made}, words=made)


def _bounds(quotas: tuple[str, ...]) -> dict[str, float]:
    """What `--quota` says."""
    told: dict[str, float] = {}
    for text in quotas:
        name, _, bound = text.partition("=")
        number = float(bound) if _NUMBER.fullmatch(bound) else 0.0
        told[name] = int(number) if KINDS.get(name) is int and number.is_integer() else number
    try:
        return named(told, "--quota")
    except ConfigError as error:
        raise InputError(error.message) from None


def _shown(expires_at: float) -> str | None:
    if expires_at == inf:
        return None
    return dt.datetime.fromtimestamp(expires_at, dt.UTC).isoformat()


@token.command()
@click.argument("name")
@_file
@json_option
@click.pass_obj
@failing_well
def revoke(session: Session, *, name: str, path: Path) -> None:
    """Make the token of NAME worth nothing; nodes notice within a second or two.

    \b
    Example:
      galileo token revoke ann --principals principals.toml
    """
    principals.remove(path, name)
    session.output.value({"revoked": name}, words=f"{name} has no token any more.")


@token.command("list")
@_file
@json_option
@click.pass_obj
@failing_well
def list_(session: Session, *, path: Path) -> None:
    """List who has a token, with roles, datasets and quotas of its own.

    \b
    Example:
      galileo token list --principals principals.toml
    """
    known = sorted(principals.read(path).principals.values(), key=lambda one: one.name)
    rows = [
        {
            "name": one.name,
            "roles": sorted(one.roles),
            "datasets": list(one.datasets),
            "quotas": dict(one.quotas),
            "expires": _shown(one.expires_at),
        }
        for one in known
    ]
    session.output.rows(rows, title="Principals", empty="Nobody has a token.")
