"""`galileo completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from galileo.cli.output import handle_errors

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "galileo"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
@handle_errors
def completion(context: click.Context, *, shell: str) -> None:
    """Print a script that completes commands and options in a SHELL.

    Bash has to be 4.4 or newer. Write it where the shell looks for such: for bash
    ~/.local/share/bash-completion/completions/galileo, for zsh _galileo in a directory of fpath,
    for fish ~/.config/fish/completions/galileo.fish.

    \b
    Example:
      galileo completion bash
    """
    shell_class = get_completion_class(shell)
    assert shell_class is not None, shell
    completion = shell_class(
        context.find_root().command, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE"
    )
    click.echo(completion.source_template % completion.source_vars())
