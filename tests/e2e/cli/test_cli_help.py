from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import wheel_smoke
from click.testing import CliRunner

import galileo
from galileo.cli.main import main
from galileo.cli.options import SharedOption

Found = tuple[str, click.Command]


def commands(group: click.Command, path: str = "galileo") -> Iterator[Found]:
    yield path, group
    if isinstance(group, click.Group):
        for name, command in sorted(group.commands.items()):
            yield from commands(command, f"{path} {name}")


ALL = dict(commands(main))
LEAVES = {
    path: command
    for path, command in ALL.items()
    if not isinstance(command, click.Group) or command.invoke_without_command
}


def is_run_itself(group: click.Group, words: list[str]) -> bool:
    """Whether these words run a group that is also a command, as in `galileo topology --json`."""
    return group.invoke_without_command and not (words and words[0] in group.commands)


@functools.cache
def help_of(path: str) -> str:
    done = CliRunner().invoke(main, [*path.split()[1:], "--help"])
    assert done.exit_code == 0
    return done.output


def examples(path: str) -> list[str]:
    """The command lines below "Example:", continuation lines joined."""
    _, _, rest = help_of(path).partition("Example:\n")
    block = re.split(r"\n\s*\n|\nOptions:", rest)[0]
    block = re.sub(r"\\\n\s*", "", block)
    return re.findall(r"^\s*(galileo (?:[^\"\n]|\"[^\"]*\")*)$", block, flags=re.MULTILINE)


def test_help_of_every_command_shows_an_example() -> None:
    assert [path for path in ALL if not examples(path)] == []
    shown = [(path, line) for path in LEAVES for line in examples(path)]
    assert [(path, line) for path, line in shown if not f"{line} ".startswith(f"{path} ")] == []


def test_help_examples_parse() -> None:
    for line in (line for path in ALL for line in examples(path)):
        words = shlex.split(re.split(r" [|&](?: |$)", line)[0])[1:]
        command: click.Command = main
        context = click.Context(main, info_name="galileo")
        while isinstance(command, click.Group) and not is_run_itself(command, words):
            name = words.pop(0)
            assert name in command.commands, line
            command = command.commands[name]
            context = click.Context(command, info_name=name, parent=context)
        _, rest, _ = command.make_parser(context).parse_args(words)
        assert rest == [], f"left over of {line!r}"


def test_help_describes_every_option() -> None:
    options = [
        (path, param)
        for path, command in ALL.items()
        for param in command.params
        if isinstance(param, click.Option)
    ]
    assert [(path, option.name) for path, option in options if not option.help] == []


def test_json_option_is_at_every_command_with_results() -> None:
    without = [
        path
        for path, command in LEAVES.items()
        if not any("--json" in p.opts for p in command.params if not isinstance(p, SharedOption))
    ]
    assert sorted(without) == ["galileo completion", "galileo evaluator", "galileo serve"]


def test_help_fits_80_columns() -> None:
    lines = [(path, line) for path in ALL for line in help_of(path).splitlines()]
    assert [(path, line) for path, line in lines if len(line) > 80] == []


def test_help_lists_commands_with_whole_sentences() -> None:
    groups = ALL.keys() - LEAVES.keys()
    assert [path for path in groups if "..." in help_of(path).partition("Commands:")[2]] == []


def test_version_option_prints_the_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "galileo", "--version"], capture_output=True, text=True, check=True
    )
    assert galileo.__version__ in done.stdout


def test_unknown_command_is_a_usage_error() -> None:
    done = CliRunner().invoke(main, ["qery"])
    assert done.exit_code == 2
    assert "No such command 'qery'" in done.stderr


def test_wheel_smoke_runs_every_command() -> None:
    run = {*wheel_smoke.COMMANDS, *wheel_smoke.WITH_EXTRA, *wheel_smoke.NODES_REFUSE}
    assert {f"galileo {name}" for name in run} == LEAVES.keys()
