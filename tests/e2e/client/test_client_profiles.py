"""Where a client finds its cluster: arguments, the environment, profiles, defaults."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises

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


def test_resolve_without_settings_is_the_local_node(tmp_path: Path) -> None:
    nothing = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert resolve(Profile(), environment=nothing) == Profile(node=("127.0.0.1:7701",))


def test_profiles_path_by_default_is_in_the_home_directory() -> None:
    assert profiles_path({}) == Path.home() / ".config" / "galileo" / "config.toml"


def test_resolve_without_a_name_uses_the_default_profile(environment: dict[str, str]) -> None:
    found = resolve(Profile(), environment=environment)
    assert found == Profile(node=("storm-1:7701",), token_file="/secret/ann", timeout="2m")


def test_resolve_by_name_or_environment_chooses_the_profile(environment: dict[str, str]) -> None:
    assert resolve(Profile(), name="lab", environment=environment) == LAB
    assert resolve(Profile(), environment=environment | {"GALILEO_PROFILE": "lab"}) == LAB


def test_resolve_prefers_arguments_then_environment_then_profile(
    environment: dict[str, str],
) -> None:
    environment |= {"GALILEO_NODE": "a b:1,[::1]", "GALILEO_TLS": "/certs/env"}
    found = resolve(Profile(timeout="5s"), environment=environment)
    assert found == Profile(node=("a:7701", "b:1", "[::1]:7701"), tls="/certs/env", timeout="5s")
    given = resolve(Profile(node=("c",)), environment=environment)
    assert given.node == ("c:7701",)


def test_resolve_by_name_ignores_the_environment(environment: dict[str, str]) -> None:
    environment |= {"GALILEO_NODE": "a:1", "GALILEO_TLS": "/certs/env"}
    assert resolve(Profile(), name="lab", environment=environment) == LAB


@pytest.mark.parametrize(("node", "is_used"), [("storm-1", True), ("elsewhere", False)])
def test_resolve_uses_the_token_for_nodes_of_the_profile_only(
    environment: dict[str, str], node: str, is_used: bool
) -> None:
    found = resolve(Profile(node=(node,)), environment=environment)
    assert bool(found.token_file) is is_used
    assert found.timeout == "2m"


def test_resolve_of_a_named_profile_and_another_node_is_refused(
    environment: dict[str, str],
) -> None:
    """Without the credentials of the profile, the error of the node would mislead."""
    elsewhere = Profile(node=("elsewhere",))
    with raises(ConfigError, profile="lab") as caught:
        resolve(elsewhere, name="lab", environment=environment)
    assert re.search(
        "of profile 'lab' are for .* only, got the node elsewhere:7701", caught.value.message
    )
    given = resolve(replace(elsewhere, tls="/mine"), name="lab", environment=environment)
    assert (given.tls, given.token_file) == ("/mine", "")
    assert (
        resolve(elsewhere, name="lab", environment=environment | {"GALILEO_TLS": "/e"}).tls == "/e"
    )


def test_resolve_with_a_token_ignores_the_token_file(environment: dict[str, str]) -> None:
    given = Profile(token="glt_x")
    assert resolve(given, environment=environment).token_file == ""
    result = resolve(Profile(), environment=environment | {"GALILEO_TOKEN": "glt_y"})
    assert (result.token, result.token_file) == ("glt_y", "")
    assert "glt_y" not in repr(result)
    assert replace(result, token="").node == ("storm-1:7701",)


@pytest.mark.parametrize(
    ("text", "details"),
    [
        ("[default]\nnodes = 'a'", {"key": "nodes", "nearest": "node"}),
        ("[default]\nnode = 1", {"key": "node"}),
        ("[default]\ninsecure = 'yes'", {"key": "insecure"}),
        ("[default]\noutput = 'csv'", {"key": "output"}),
        ("default = 1", {"expected": "table"}),
        ("[default", {}),
    ],
)
def test_resolve_with_an_invalid_file_names_it(
    environment: dict[str, str], text: str, details: dict[str, Any]
) -> None:
    path = profiles_path(environment)
    path.write_text(text)
    with raises(ConfigError, **details) as caught:
        resolve(Profile(), environment=environment)
    assert str(path) in caught.value.message


def test_resolve_of_an_unknown_profile_is_refused(environment: dict[str, str]) -> None:
    with raises(ConfigError, profile="lap"):
        resolve(Profile(), name="lap", environment=environment)
