"""Commands that are imported when they are used, so that help comes at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from galileo.cli import EXIT_INTERRUPTED
from galileo.cli.options import add_shared_options, given
from galileo.errors import InputError, MissingExtra
from galileo.optional_imports import library


@dataclass(frozen=True, slots=True)
class Later:
    """Where a command is, and what it does.

    Attributes:
        home: "module:name".
        help: the first sentence of its help, for the list of commands.
    """

    home: str
    help: str

    def load(self) -> Any:
        """Raises MissingExtra where it needs one that is not installed."""
        module, _, name = self.home.partition(":")
        return getattr(library(module, purpose="this command"), name)


FAIL = Later("galileo.cli.output:fail", "Ends a command with an error.")


class LazyCommands(MutableMapping[str, click.Command]):
    """Commands by name, as a group keeps them; one that is asked for is imported.

    Args:
        later: the commands.
        aliases: other names of some; lists do not show them.
    """

    def __init__(
        self, later: Mapping[str, Later], aliases: Mapping[str, str] | None = None
    ) -> None:
        self.later = dict(later)
        self._aliases = dict(aliases or {})
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        name = self._aliases.get(name, name)
        if name not in self._loaded:
            self._loaded[name] = self.later[name].load()
            add_shared_options(self._loaded[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self.later.pop(name, None)
        self._loaded.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self.later or name in self._loaded or name in self._aliases

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.later, *self._loaded]))

    def __len__(self) -> int:
        return len({*self.later, *self._loaded})


class Group(click.Group):
    """A group that lists its commands with whole first sentences."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.summary(name)) for name in self.list_commands(context)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def summary(self, name: str) -> str:
        """The first sentence of a command's help."""
        return self.commands[name].get_short_help_str(limit=1000)


class LazyGroup(Group):
    """A group whose list of commands imports none of those that it can name without."""

    def invoke(self, context: click.Context) -> Any:
        """Ctrl-C also comes while a command is imported, which takes seconds on a slow machine."""
        has_json = "--json" in context.args  # Not yet parsed where another option is wrong.
        try:
            return super().invoke(context)
        except click.UsageError as error:
            if has_json or "json" in given(context):
                given(context)["json"] = True
                FAIL.load()(InputError(error.format_message()))
            raise
        except KeyboardInterrupt:
            context.exit(EXIT_INTERRUPTED)
        except MissingExtra as error:  # Of a command; its own `failing_well` is not there yet.
            FAIL.load()(error)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """While a line is completed, no command where its extra is not installed."""
        try:
            return super().resolve_command(ctx, args)
        except MissingExtra:
            if not ctx.resilient_parsing:
                raise
            return None, None, []

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        named = [name for name in self.list_commands(context) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, context, incomplete)
        return [*(CompletionItem(name, help=self.summary(name)) for name in named), *options]

    def summary(self, name: str) -> str:
        later = self.commands.later if isinstance(self.commands, LazyCommands) else {}
        return later[name].help if name in later else super().summary(name)
