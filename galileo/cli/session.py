"""What every command has at hand: where the cluster is, and where results go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from galileo.cli import TIMEOUT
from galileo.cli.output import Output
from galileo.client import Client, Proof

F = TypeVar("F", bound=Callable[..., Any])


class Session:
    """The cluster's addresses and the output; a client is made when first asked for."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        as_json: bool,
        timeout: str = TIMEOUT,
        token_file: str = "",
        tls: str = "",
        insecure: bool = False,
    ) -> None:
        self.addresses = list(addresses)
        self.timeout = timeout
        self.proof = Proof(token_file=token_file, tls=tls, insecure=insecure)
        self.output = Output(as_json=as_json)

    def client(self) -> Client:
        """A client; close it by `with`."""
        return Client(*self.addresses, timeout=self.timeout, proof=self.proof)

    def use_json(self, as_json: bool) -> None:
        """`--json` may stand before or behind the command."""
        if as_json:
            self.output = Output(as_json=True)
            click.get_current_context().find_root().params["as_json"] = True


def json_option(command: F) -> F:
    """Lets `--json` stand behind the command too."""

    def chosen(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.find_object(Session).use_json(value)  # type: ignore[union-attr]

    option = click.option(
        "--json", is_flag=True, expose_value=False, callback=chosen, help="Print JSON."
    )
    decorated: F = option(command)
    return decorated


def require_complete_option(command: F) -> F:
    """`--require-complete`, of commands whose answer is partial while nodes are away."""
    option = click.option(
        "--require-complete",
        is_flag=True,
        help="Fail with exit status 5 where nodes are away, in place of a partial answer.",
    )
    decorated: F = option(command)
    return decorated
