"""docs/commands, from the command line itself."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator

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

DIRECTORY = "docs/commands"
OWNED = (f"{DIRECTORY}/*.md",)

NO_REWRAP = "\b"
NO_REFERENCE = frozenset({"help", "version"})
WRITTEN_DEFAULT = re.compile(r"\s*\[default: (.*)\]$")
DOCUMENT = re.compile(r"\bdocs/([a-z]+\.md)")

PAGES = {
    "data": ("Commands for data", "dataset table ingest delete retention"),
    "queries": (
        "Commands for queries",
        "query read page count aggregate latest nearest stats graph estimate explain sparql",
    ),
    "continuous": ("Commands for continuous queries", "ccq channel broker"),
    "samplers": ("Commands for samplers", "sampler"),
    "cluster": (
        "Commands for clusters",
        "up status top doctor whoami topology node partition drain backup restore verify recover",
    ),
    "nodes": (
        "Commands for the setup of nodes",
        "serve evaluator gateway worker config ca cert token completion",
    ),
}
"""A title and commands, by page. Commands of none are on the page "other"."""

WRITTEN = "*Written by `scripts/generate` from the commands themselves; do not edit.*"
INTRODUCTION = f"""\
The options of `galileo` itself may come before or after every command. Options that you leave out
come from the environment (`GALILEO_NODE`, `GALILEO_TOKEN_FILE`, `GALILEO_TOKEN`, `GALILEO_TLS`),
then from the [profile](../client.md#profiles). Name one node or several: the client learns the
addresses of the others from the first that answers.

With `--json` the result is one JSON value on standard output; `ccq watch` prints one for each
update, `channel follow` one for each notification and one with the token for each batch, `ingest`
one for each file. An error is `{{"error": {{"kind", "message", "details"}}}}` on
standard error.

On a terminal, a table shows as many columns as fit, the most important first; `--wide` shows all,
and so does a pipe. Control characters in stored texts are printed escaped, such as `\\x1b`.

A duration is `250ms`, `10s`, `2m`, `1h30m`, `7d`, `1 hour` or `10y`; a plain number is seconds.

## Exit status

| exit status | meaning |
|---|---|
| 0 | success |
| 1 | any other error |
| {EXIT_INPUT} | fix the input |
| {EXIT_TRANSIENT} | the request is valid: try again later |
| {EXIT_TERMINAL} | the continuous query has ended, or the data is deleted |
| {EXIT_INCOMPLETE} | a complete answer was required, and nodes are unreachable |
| {EXIT_INTERNAL} | a bug, or a broken disk |
| {EXIT_INTERRUPTED} | Ctrl-C |
| {EXIT_PIPE} | the reader of a pipe has ended, as in `galileo read … \\| head -1`; no message |

[Errors](../errors.md) lists the kinds of errors.
"""


def files() -> dict[str, str]:
    return {f"{DIRECTORY}/{name}": text for name, text in pages().items()}


def pages() -> dict[str, str]:
    """The text of each page, by the name of its file."""
    context = click.Context(galileo, info_name="galileo")
    listed = {file: (title, names.split()) for file, (title, names) in PAGES.items()}
    paged = {name for _, names in listed.values() for name in names}
    if rest := sorted(galileo.commands.keys() - paged):
        listed["other"] = ("Other commands", rest)
    texts = {"README.md": "\n".join(_index(context, listed))}
    for file, (title, names) in listed.items():
        sections = [part for name in names for part in _section(_below(context, name))]
        texts[f"{file}.md"] = "\n".join([f"# {title}\n", f"{WRITTEN}\n", *sections])
    return texts


def _index(context: click.Context, listed: dict[str, tuple[str, list[str]]]) -> Iterator[str]:
    """The page of what all commands share, with a link to each command."""
    yield f"# Commands\n\n{WRITTEN}\n"
    yield "| commands | |\n|---|---|"
    for file, (title, names) in listed.items():
        links = ", ".join(f"[`{name}`]({file}.md#galileo-{name})" for name in names)
        yield f"| [{title}]({file}.md) | {links} |"
    yield f"\n{INTRODUCTION}"
    yield from _section(context)


def _below(context: click.Context, name: str) -> click.Context:
    """The context of a command below another."""
    assert isinstance(context.command, click.Group)
    command = context.command.get_command(context, name)
    if command is None:
        raise LookupError(f"there is no command {name} any more; drop it from PAGES")
    return click.Context(command, info_name=name, parent=context)


def _section(context: click.Context) -> Iterator[str]:
    """One command, then those below it, by name; of `galileo` itself only its own options."""
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
    if isinstance(command, click.Group) and context.parent is not None:
        for name in sorted(command.list_commands(context)):
            yield from _section(_below(context, name))


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
    return DOCUMENT.sub(r"[\g<0>](../\1)", text)
