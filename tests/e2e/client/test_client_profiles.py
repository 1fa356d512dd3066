"""Where a client finds its cluster: arguments, the environment, profiles, defaults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from galileo.client.profiles import Profile, profiles_path, resolve
from galileo.errors import ConfigError

TEXT = """
[default]
node = "storm-1"
token_file = "/secret/ann"
timeout = "2m"

[lab]
node = ["lab-1:7801", "lab-2"]
tls = "/certs/lab"
insecure = true
output = "json"
"""
LAB = Profile(node=("lab-1:7801", "lab-2:7701"), tls="/certs/lab", insecure=True, output="json")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "galileo").mkdir()
    (tmp_path / "galileo" / "config.toml").write_text(TEXT)
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_without_anything_it_is_the_node_on_this_machine(tmp_path: Path) -> None:
    nothing = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert resolve(Profile(), environment=nothing) == Profile(node=("127.0.0.1:7701",))


def test_the_file_is_in_the_home_directory_by_default() -> None:
    assert profiles_path({}) == Path.home() / ".config" / "galileo" / "config.toml"


def test_the_default_profile_is_used_where_nothing_is_said(environment: dict[str, str]) -> None:
    found = resolve(Profile(), environment=environment)
    assert found == Profile(node=("storm-1:7701",), token_file="/secret/ann", timeout="2m")


def test_a_profile_is_chosen_by_name_or_by_the_environment(environment: dict[str, str]) -> None:
    assert resolve(Profile(), name="lab", environment=environment) == LAB
    assert resolve(Profile(), environment=environment | {"GALILEO_PROFILE": "lab"}) == LAB


def test_arguments_come_before_the_environment_and_that_before_a_profile(
    environment: dict[str, str],
) -> None:
    environment |= {"GALILEO_NODE": "a b:1,[::1]", "GALILEO_TLS": "/certs/env"}
    found = resolve(Profile(timeout="5s"), environment=environment)
    assert found == Profile(node=("a:7701", "b:1", "[::1]:7701"), tls="/certs/env", timeout="5s")
    given = resolve(Profile(node=("c",)), environment=environment)
    assert given.node == ("c:7701",)


def test_a_profile_that_is_named_comes_before_the_environment(environment: dict[str, str]) -> None:
    environment |= {"GALILEO_NODE": "a:1", "GALILEO_TLS": "/certs/env"}
    assert resolve(Profile(), name="lab", environment=environment) == LAB


@pytest.mark.parametrize(("node", "is_used"), [("storm-1", True), ("elsewhere", False)])
def test_the_token_of_a_profile_is_for_its_own_nodes(
    environment: dict[str, str], node: str, is_used: bool
) -> None:
    found = resolve(Profile(node=(node,)), environment=environment)
    assert bool(found.token_file) is is_used
    assert found.timeout == "2m"


def test_a_token_takes_the_place_of_a_file_of_one(environment: dict[str, str]) -> None:
    given = Profile(token="glt_x")
    assert resolve(given, environment=environment).token_file == ""
    result = resolve(Profile(), environment=environment | {"GALILEO_TOKEN": "glt_y"})
    assert (result.token, result.token_file) == ("glt_y", "")
    assert "glt_y" not in repr(result)
    assert replace(result, token="").node == ("storm-1:7701",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[default]\nnodes = 'a'", "'nodes'; did you mean 'node'?"),
        ("[default]\nnode = 1", "a text or a list of texts for node"),
        ("[default]\ninsecure = 'yes'", "true or false for insecure"),
        ("[default]\noutput = 'csv'", "table or json for output"),
        ("default = 1", "to be a table"),
        ("[default", "are not TOML"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(
    environment: dict[str, str], text: str, said: str
) -> None:
    path = profiles_path(environment)
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve(Profile(), environment=environment)
    assert said in caught.value.message
    assert str(path) in caught.value.message


def test_an_unknown_profile_is_an_error_that_lists_the_known(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"no profile 'lap' in .*; profiles: default, lab"):
        resolve(Profile(), name="lap", environment=environment)
