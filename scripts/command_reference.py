"""Writes docs/commands.md from the command line itself; `--check` only compares."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from galileo.cli import EXIT_INTERRUPTED, EXIT_PIPE
from galileo.cli.main import main as galileo
from galileo.cli.output import (
    EXIT_INCOMPLETE,
    EXIT_INPUT,
    EXIT_INTERNAL,
    EXIT_TERMINAL,
    EXIT_TRANSIENT,
)

TARGET = Path(__file__).parents[1] / "docs" / "commands.md"

NO_REWRAP = "\b"
NO_REFERENCE = frozenset({"help", "version"})
WRITTEN_DEFAULT = re.compile(r"\s*\[default: (.*)\]$")
DOCUMENT = re.compile(r"\bdocs/([a-z]+\.md)")

INTRODUCTION = f"""\
# Commands

*Written by `scripts/command_reference.py` from the commands themselves; do not edit.*

The options of `galileo` itself may stand before or after every command. What they leave open
comes from the environment (`GALILEO_NODE`, `GALILEO_TOKEN_FILE`, `GALILEO_TOKEN`, `GALILEO_TLS`),
then from the [profile](client.md#profiles). One node is enough; the others are learnt from it.

With `--json` the result is one JSON value on standard output, one for each update with
`ccq watch`, one for each file with `ingest`; an error is
`{{"error": {{"kind", "message", "details"}}}}` on standard error.

On a terminal, a table shows as many columns as fit, the most important first; `--wide` shows all,
and so does a pipe. Control characters in stored texts are printed escaped, such as `\\x1b`.

A duration is `250ms`, `10s`, `2m`, `1h30m`, `7d`, `1 hour` or `10y`; a plain number is seconds.

| exit status | meaning |
|---|---|
| 0 | done |
| 1 | any other error |
| {EXIT_INPUT} | fix the input |
| {EXIT_TRANSIENT} | nothing is wrong with the request: try again |
| {EXIT_TERMINAL} | the continuous query, or the data, has ended |
| {EXIT_INCOMPLETE} | a complete answer is required, and nodes are unreachable |
| {EXIT_INTERNAL} | a bug, or a broken disk |
| {EXIT_INTERRUPTED} | Ctrl-C |
| {EXIT_PIPE} | the reader of a pipe has ended, as in `galileo read … \\| head -1`; no message |

[Errors](errors.md) lists the kinds.
"""


def reference() -> str:
    """The whole page."""
    context = click.Context(galileo, info_name="galileo")
    parts = [INTRODUCTION, *_section(context)]
    return "\n".join(parts)


def _section(context: click.Context) -> Iterator[str]:
    """One command, then those below it, by name."""
    command = context.command
    yield f"## {context.command_path}\n"
    text, example = _texts(command)
    yield f"{text}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```\n"
    if example:
        yield f"Example:\n\n```console\n{example}\n```\n"
    options = [one for one in command.params if isinstance(one, click.Option)]
    rows = [_row(one) for one in options if one.get_help_record(context) is not None]
    if rows := [row for row in rows if row]:
        yield "\n".join(["| option | default | meaning |", "|---|---|---|", *rows]) + "\n"
    if isinstance(command, click.Group):
        for name in sorted(command.list_commands(context)):
            below = command.get_command(context, name)
            assert below is not None
            yield from _section(click.Context(below, info_name=name, parent=context))


def _texts(command: click.Command) -> tuple[str, str]:
    """What a command does, and its example."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    plain = [text for text in paragraphs if not text.startswith(NO_REWRAP)]
    literal = [text for text in paragraphs if text.startswith(NO_REWRAP)]
    example = "\n".join(textwrap.dedent("\n".join(t.splitlines()[2:])) for t in literal)
    return _linked("\n\n".join(plain)), example


def _row(option: click.Option) -> str:
    if option.name in NO_REFERENCE:
        return ""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if not option.is_flag and not isinstance(option.type, click.Choice):
        names += f" `{option.metavar or option.type.name.upper()}`"
    return f"| {names} | {_default(option)} | {_meaning(option)} |"


def _default(option: click.Option) -> str:
    written = WRITTEN_DEFAULT.search(option.help or "")
    if written:
        return f"`{written[1]}`"
    return f"`{option.default}`" if option.show_default and option.default is not None else ""


def _meaning(option: click.Option) -> str:
    notes = [_linked(WRITTEN_DEFAULT.sub("", option.help or ""))]
    if isinstance(option.type, click.Choice):
        notes.append("One of " + ", ".join(f"`{choice}`" for choice in option.type.choices) + ".")
    if option.required:
        notes.append("Required.")
    if option.multiple:
        notes.append("May be repeated.")
    return " ".join(note for note in notes if note)


def _linked(text: str) -> str:
    return DOCUMENT.sub(r"[\g<0>](\1)", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    text = reference()
    if not given.check:
        TARGET.write_text(text)
        return 0
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    print(f"{TARGET} is not current: run scripts/command_reference.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
