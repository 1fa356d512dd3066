"""Help comes at once: what a command needs is imported when the command is used."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from galileo.cli import EXIT_INTERRUPTED
from galileo.cli.lazy import LazyCommand, LazyCommands, LazyGroup
from galileo.cli.main import COMMANDS, main
from galileo.errors import MissingExtra

HEAVY = ("grpc", "numpy", "pandas", "pyarrow", "pyspark", "rdflib", "rich", "shapely")
ONE = LazyCommand("galileo.cli.top:top", "Anything at all.")


def loaded(code: str, among: tuple[str, ...] = HEAVY) -> list[str]:
    """Which modules a fresh interpreter has after running some code."""
    result = f"import sys\n{code}\nprint([name for name in {among} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", result], capture_output=True, text=True, check=True
    )
    found: list[str] = eval(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_help_and_version_import_no_heavy_module(words: list[str]) -> None:
    code = f"from galileo.cli.main import main\nmain({words}, standalone_mode=False)"
    assert loaded(code) == []


def test_completion_imports_no_command() -> None:
    code = (
        "import click\n"
        "from galileo.cli.main import main\n"
        "found = main.shell_complete(click.Context(main), 'statu')\n"
        "assert [(one.value, one.help) for one in found] == [('status', "
        "'Show every node: its state, load, data and continuous queries.')], found\n"
        "assert len(main.shell_complete(click.Context(main), '')) > 20\n"
        "assert '--json' in [one.value for one in main.shell_complete(click.Context(main), '--')]"
    )
    assert loaded(code) == []


@pytest.mark.slow
def test_import_of_commands_leaves_out_spark() -> None:
    names = [name for name in COMMANDS if name not in ("serve", "evaluator")]
    code = f"from galileo.cli.main import main\n[main.commands[name] for name in {names}]"
    assert loaded(code, ("pyspark", "py4j", "matplotlib", "geopandas", "xarray")) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_lazy_command_help_equals_its_own(name: str) -> None:
    command = main.commands[name]
    assert command.name == name
    assert COMMANDS[name].help == command.get_short_help_str(limit=1000)


def test_list_of_commands_is_complete() -> None:
    result = CliRunner().invoke(main, ["--help"]).output.partition("Commands:\n")[2]
    named = [line.split()[0] for line in result.splitlines() if line[:3].strip()]
    assert [name for name in named if name in COMMANDS] == sorted(COMMANDS)


def test_lazy_command_is_loaded_once() -> None:
    commands = LazyCommands({"top": ONE})
    assert list(commands) == ["top"]
    assert "top" in commands
    assert "pot" not in commands
    assert commands["top"] is commands["top"] is main.commands["top"]
    with pytest.raises(KeyError):
        commands["pot"]


def test_lazy_group_commands_can_be_added_and_removed() -> None:
    @click.command()
    def plain() -> None:
        """Do something plain."""

    group = LazyGroup("group", commands=LazyCommands({"top": ONE}))
    group.add_command(plain)
    assert group.list_commands(click.Context(group)) == ["plain", "top"]
    result = CliRunner().invoke(group, ["--help"]).output
    assert "Do something plain." in result
    assert "Anything at all." in result
    assert len(group.commands) == 2
    del group.commands["top"]
    del group.commands["plain"]
    assert len(group.commands) == 0
    with pytest.raises(KeyError):
        del group.commands["plain"]


def test_completion_without_an_extra_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(later: LazyCommand) -> click.Command:
        raise MissingExtra("serve needs the extra 'server'")

    monkeypatch.setattr(LazyCommand, "load", load)
    group = LazyGroup("galileo", commands=LazyCommands({"serve": ONE}))
    complete = ShellComplete(group, {}, "galileo", "_GALILEO_COMPLETE")
    assert [item.value for item in complete.get_completions(["serve"], "")] == ["serve"]


def test_lazy_command_of_an_unknown_name_fails() -> None:
    with pytest.raises(AttributeError, match="no_such"):
        LazyCommand("galileo.cli.top:no_such", "").load()


# Where the tests run in the background, programs are started with Ctrl-C ignored.
INTERRUPTED_AT_AN_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "galileo.cli.data":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from galileo.cli.main import main
main(["query", "nam", "--output", "labels.csv"])
"""


def test_interrupt_during_import_exits_with_interrupted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT_AN_IMPORT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_INTERRUPTED, "", "")
