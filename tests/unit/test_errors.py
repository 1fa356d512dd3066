"""Errors: kinds are unique and complete, details travel with the message."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from galileo import errors
from galileo.errors import GalileoError, by_kind, listed

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, GalileoError)
]
ROOT = Path(errors.__file__).parents[1]
MODULES = sorted(
    path
    for pattern in ("galileo/**/*.py", "plugins/*/galileo*/**/*.py")
    for path in ROOT.glob(pattern)
    if path != Path(errors.__file__) and (ROOT / "galileo/cli") not in path.parents
)
OPTION = re.compile(r"[\s(;,]--[a-z]|^--[a-z-]+\s")
"""An option of a command within a text; the argument of a process is an option alone."""
BRANCHES = (
    errors.InputError,
    errors.NotOwner,
    errors.TransientError,
    errors.TerminalError,
    errors.InternalError,
)


def test_errors_every_class_has_own_kind() -> None:
    assert all("kind" in vars(cls) for cls in CLASSES)
    shared = [kind for kind, count in Counter(cls.kind for cls in CLASSES).items() if count > 1]
    assert shared == []


def test_by_kind_every_kind_gives_its_class() -> None:
    table = by_kind()
    assert {cls.kind: cls for cls in CLASSES}.items() <= table.items()
    assert all(table[cls.kind] is cls for cls in CLASSES)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_errors_every_class_is_on_one_branch(cls: type[GalileoError]) -> None:
    above = [branch for branch in BRANCHES if issubclass(cls, branch)]
    assert len(above) == (0 if cls is GalileoError else 1)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_errors_pickle_round_trip_keeps_message_and_details(cls: type[GalileoError]) -> None:
    error = cls("expected a, got b; do c", after_s=1.5, address="node-1:7070")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert (again.message, str(again)) == (error.message, error.message)
    assert again.details == {"after_s": 1.5, "address": "node-1:7070"}


def test_error_remedy_is_worded_for_python_and_command_line() -> None:
    error = errors.UnknownCcq("no node knows it", remedy="list_ccqs")
    assert str(error) == "no node knows it; list_ccqs() returns those that run"
    assert error.command_message == "no node knows it; galileo ccq list shows those that run"
    assert error.message == "no node knows it"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    unknown = errors.GalileoError("no", remedy="of a newer node")
    assert str(unknown) == unknown.command_message == "no"


def test_error_with_several_remedies_says_them_in_order_with_its_details() -> None:
    error = errors.InvalidObservations("no time", remedy="csv_times epoch", column="t")
    assert "--time-format; for seconds" in error.command_message
    assert error.command_message.endswith("--map 'time=epoch_s(t)' or epoch_ms(t)")
    assert str(error).endswith("mapping={'time': 'epoch_s(t)'} or epoch_ms(t)")
    assert error.http_message == "no time"


def test_remedies_for_command_line_name_no_python_call() -> None:
    for remedy in errors.REMEDIES.values():
        assert "()" not in remedy.command
        assert "connect" not in remedy.command
        assert not OPTION.search(remedy.python + remedy.http)


def test_messages_below_the_command_line_name_no_option_of_it() -> None:
    assert len(MODULES) > 400
    assert [
        (path, text) for path in MODULES for text in messages(path) if OPTION.search(text)
    ] == []


def messages(path: Path) -> Iterator[str]:
    """The texts of a module without its docstrings."""
    text = path.read_text()
    if "--" not in text:
        return
    nodes = list(ast.walk(ast.parse(text)))
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_messages_that_name_an_option_are_recognised() -> None:
    assert all(
        map(OPTION.search, ("start with --nodes ", "public (--public)", "--skip N", "a;--b c"))
    )
    assert not any(map(OPTION.search, ("--add-opens=java.base", "--map", "a--b", "-->", "a -- b")))


def test_remedies_of_errors_exist_and_their_details_are_given() -> None:
    calls = [
        {word.arg or "": word.value for word in call.keywords}
        for path in MODULES
        if "remedy=" in (text := path.read_text())
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
    ]
    for given in calls:
        for text in ast.walk(given.get("remedy", ast.Pass())):
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                for name in text.value.split():
                    assert fields(errors.REMEDIES[name]) <= set(given), name
    assert sum("remedy" in given for given in calls) > 20


def fields(remedy: errors.Remedy) -> set[str]:
    """The details that the words of a remedy need."""
    parsed = string.Formatter().parse(remedy.python + remedy.command + remedy.http)
    return {name.partition("[")[0] for _, name, _, _ in parsed if name is not None}


def test_listed_names_the_first_and_counts_the_others() -> None:
    assert (listed([]), listed([1, 2]), listed("abc", most=3)) == ("", "1, 2", "a, b, c")
    assert listed(range(5_000), most=2, text_of=hex) == "0x0, 0x1 and 4,998 more"
