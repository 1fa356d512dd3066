"""Options that may stand before or after every command: how to reach the cluster, how to print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
"""The type of a file that a command reads."""

_GIVEN = "galileo.options"


def given(context: click.Context) -> dict[str, Any]:
    """The shared options that were given so far, by name; one for all commands of a line."""
    options: dict[str, Any] = context.meta.setdefault(_GIVEN, {})
    return options


class SharedOption(click.Option):
    """An option that each command takes and that only the root's help lists."""

    def __init__(self, *names: str, **words: Any) -> None:
        super().__init__(list(names), expose_value=False, callback=_remember, **words)

    def get_help_record(self, context: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(context) if context.parent is None else None


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """An option after the command wins over the same one before it."""
    if value:
        given(context)[str(parameter.name)] = value


def shared_options() -> list[click.Option]:
    """New objects, since each belongs to one command."""
    return [
        SharedOption(
            "--node",
            "nodes",
            multiple=True,
            metavar="HOST[:PORT]",
            help="A node of the cluster; repeat it for others to try.  [default: 127.0.0.1:7701]",
        ),
        SharedOption(
            "--profile",
            metavar="NAME",
            help="Profile of ~/.config/galileo/config.toml; else GALILEO_PROFILE, else default.",
        ),
        SharedOption(
            "--timeout",
            metavar="DURATION",
            help="Retry unreachable nodes for up to this long, such as 10s or 2m.  [default: 15s]",
        ),
        SharedOption(
            "--token-file", metavar="FILE", help="File of the token that proves who calls."
        ),
        SharedOption(
            "--tls",
            metavar="DIRECTORY",
            help="Certificate, key and authority, as galileo cert issue writes them.",
        ),
        SharedOption(
            "--insecure",
            is_flag=True,
            help="Allow sending the token over an unencrypted connection.",
        ),
        SharedOption("--json", is_flag=True, help="Print JSON instead of tables and text."),
        SharedOption(
            "--wide", is_flag=True, help="Show every column of a table, however wide it gets."
        ),
    ]


def add_shared_options(command: click.Command) -> None:
    """Adds what a command and those below it have no option of their own for."""
    taken = {name for parameter in command.params for name in parameter.opts}
    command.params += [option for option in shared_options() if not taken.intersection(option.opts)]
    if isinstance(command, click.Group):
        for below in command.commands.values():
            add_shared_options(below)


def json_option(command: F) -> F:
    """`--json` in a command's own help."""
    decorated: F = click.option(
        "--json", is_flag=True, expose_value=False, callback=_remember, help="Print JSON."
    )(command)
    return decorated
