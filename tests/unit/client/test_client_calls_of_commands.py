"""Names of commands that are no calls: the error says which call it is."""

from __future__ import annotations

import pytest

from galileo.cli.main import INSTEAD, main
from galileo.client import AsyncClient, Client
from galileo.client.arguments import CALLS_OF_COMMANDS


@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_attribute_with_the_name_of_a_command_names_the_call(kind: type) -> None:
    client = kind.__new__(kind)
    for command, call in CALLS_OF_COMMANDS.items():
        assert hasattr(kind, call)
        with pytest.raises(AttributeError, match=rf"{command!r}; the call .* is {call}\(\)$"):
            getattr(client, command)
    with pytest.raises(AttributeError) as caught:
        client.sumarise  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("sumarise", client)


def test_commands_in_place_of_which_others_are_named_do_not_exist() -> None:
    assert not set(INSTEAD) & set(main.commands)
