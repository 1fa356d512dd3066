"""Errors: kinds are unique and complete, details travel with the message."""

from __future__ import annotations

import inspect
import pickle
from collections import Counter

import pytest

from galileo import errors
from galileo.errors import GalileoError, by_kind

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, GalileoError)
]
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


def test_remedies_for_command_line_name_no_python_call() -> None:
    for remedy in errors.REMEDIES.values():
        assert "()" not in remedy.command
        assert "connect" not in remedy.command
        assert "--" not in remedy.python
