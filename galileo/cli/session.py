"""What every command has at hand: where the cluster is, and where results go."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from galileo.cli import TIMEOUT
from galileo.cli.options import json_option as json_option
from galileo.cli.output import Output, handle_errors
from galileo.client import Client, Credentials
from galileo.client.profiles import Profile, resolve

F = TypeVar("F", bound=Callable[..., Any])


class Session:
    """The cluster's addresses and the output.

    Args:
        options: the shared options; those after the command are added before it runs.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    @functools.cached_property
    def profile(self) -> Profile:
        """What the options, the environment and the profile say.

        Raises:
            ConfigError: the file of profiles is wrong, or has no such profile.
        """
        return resolve(self._given(), name=self._options.get("profile", ""))

    def _given(self) -> Profile:
        options: Mapping[str, Any] = self._options
        return Profile(
            node=tuple(options.get("nodes", ())),
            token_file=options.get("token_file", ""),
            tls=options.get("tls", ""),
            insecure=options.get("insecure", False),
            timeout=options.get("timeout", ""),
            output="json" if options.get("json") else "",
        )

    @property
    def addresses(self) -> list[str]:
        return list(self.profile.node)

    @property
    def timeout(self) -> str:
        return self.profile.timeout or TIMEOUT

    @property
    def proof(self) -> Credentials:
        return self.profile.proof()

    @property
    def local_proof(self) -> Credentials:
        """For a cluster that the command starts itself, which no profile is about."""
        return self._given().proof()

    @functools.cached_property
    def output(self) -> Output:
        if self.profile.output == "json":
            self._options["json"] = True  # errors too
        return Output(as_json="json" in self._options, wide="wide" in self._options)

    def client(self) -> Client:
        """A client; close it by `with`."""
        return Client(*self.addresses, timeout=self.timeout, proof=self.proof)


def in_session(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command its `Session` and the option `--json`, and prints its errors."""
    return json_option(click.pass_obj(handle_errors(command)))


def require_complete_option(command: F) -> F:
    """`--require-complete`, of commands whose answer is partial while nodes are unreachable."""
    option = click.option(
        "--require-complete",
        is_flag=True,
        help="Fail with exit status 5 in place of a partial answer.",
    )
    decorated: F = option(command)
    return decorated
