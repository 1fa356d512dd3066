"""Command groups that import a command at its first use, so that help is printed fast."""

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
class LazyCommand:
    """A command that is not imported yet.

    Attributes:
        home: "module:name".
        help: the first sentence of its help, for the list of commands.
    """

    home: str
    help: str

    def load(self) -> Any:
        """Imports the command; raises MissingExtra if it needs an extra that is not installed."""
        module, _, name = self.home.partition(":")
        return getattr(library(module, purpose="this command"), name)


FAIL = LazyCommand("galileo.cli.output:fail", "Ends a command with an error.")


class LazyCommands(MutableMapping[str, click.Command]):
    """The commands of a group by name; a command is imported at its first use."""

    def __init__(self, lazy: Mapping[str, LazyCommand]) -> None:
        self.lazy = dict(lazy)
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            self._loaded[name] = self.lazy[name].load()
            add_shared_options(self._loaded[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self.lazy.pop(name, None)
        self._loaded.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self.lazy or name in self._loaded

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.lazy, *self._loaded]))

    def __len__(self) -> int:
        return len({*self.lazy, *self._loaded})


class CommandGroup(click.Group):
    """A group that lists its commands with whole first sentences."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.summary(name)) for name in self.list_commands(context)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def summary(self, name: str) -> str:
        """The first sentence of a command's help."""
        return self.commands[name].get_short_help_str(limit=1000)


class LazyGroup(CommandGroup):
    """A group whose list of commands imports none of its lazy commands.

    Args:
        instead: what to use in place of commands that it does not have.
    """

    def __init__(self, *args: Any, instead: Mapping[str, str] | None = None, **words: Any) -> None:
        super().__init__(*args, **words)
        self._instead = instead or {}

    def invoke(self, context: click.Context) -> Any:
        """Ctrl-C also comes while a command is imported, which takes seconds on a slow machine."""
        has_json = "--json" in context.args  # Not yet parsed where another option is wrong.
        try:
            return super().invoke(context)
        except click.UsageError as error:
            explained = _explain_negative_number(error)
            if has_json or "json" in given(context):
                given(context)["json"] = True
                FAIL.load()(InputError(explained.format_message()))
            raise explained from None
        except KeyboardInterrupt:
            context.exit(EXIT_INTERRUPTED)
        except MissingExtra as error:  # Raised before the command's own `handle_errors` is loaded.
            FAIL.load()(error)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """During completion, no command if its extra is not installed."""
        if args[0] in self._instead and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}; {self._instead[args[0]]}")
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
        lazy = self.commands.lazy if isinstance(self.commands, LazyCommands) else {}
        return lazy[name].help if name in lazy else super().summary(name)


def _explain_negative_number(error: click.UsageError) -> click.UsageError:
    """Names the options that take numbers where one begins with "-" and was taken for an option."""
    if not isinstance(error, click.NoSuchOption) or not error.option_name[1:2].isdigit():
        return error
    parameters = error.ctx.command.params if error.ctx else []
    numeric = [
        parameter.opts[0] for parameter in parameters if parameter.type in (click.FLOAT, click.INT)
    ]
    if not numeric:
        return error
    return click.UsageError(
        f"expected an option, got the negative number {error.option_name}…; "
        f"options that take a number: {', '.join(numeric)}",
        error.ctx,
    )
