"""Options that may stand before or after a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import galileo
from galileo.cli import EXIT_PIPE
from galileo.cli.main import main
from galileo.cli.session import Session


def parse(*words: str) -> Session:
    """The session of `galileo sampler list` with these words in its place."""
    found: list[Session] = []

    def keep(**ignored: Any) -> None:
        session = click.get_current_context().find_object(Session)
        assert session is not None
        found.append(session)

    command = main.commands["sampler"].commands["list"]  # type: ignore[attr-defined]
    body, command.callback = command.callback, keep
    try:
        done = CliRunner().invoke(main, list(words))
    finally:
        command.callback = body
    assert done.exit_code == 0, done.output
    return found[0]


OPTIONS = ("--node", "h", "--timeout", "1m", "--tls", "/t", "--insecure", "--json", "--wide")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_shared_options_before_or_after_a_command(at: int) -> None:
    words = ["sampler", "list"]
    session = parse(*words[:at], *OPTIONS, *words[at:])
    assert (session.addresses, session.timeout) == (["h:7701"], "1m")
    assert (session.proof.tls, session.proof.insecure) == ("/t", True)
    assert session.output.as_json


def test_shared_option_given_twice_uses_the_last() -> None:
    session = parse("--node", "a", "sampler", "--timeout", "1s", "list", "--node", "b:1")
    assert (session.addresses, session.timeout) == (["b:1"], "1s")


def test_profile_option_fills_missing_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "galileo").mkdir()
    (tmp_path / "galileo" / "config.toml").write_text(
        '[default]\nnode = "a"\n[lab]\nnode = "b"\noutput = "json"\n'
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert parse("sampler", "list").addresses == ["a:7701"]
    lab = parse("sampler", "list", "--profile", "lab")
    assert (lab.addresses, lab.output.as_json) == (["b:7701"], True)
    unknown = CliRunner().invoke(main, ["status", "--profile", "lap"])
    assert unknown.exit_code == 2
    assert "no profile 'lap'" in unknown.stderr
    assert repr(galileo.connect(profile="lab")) == repr(galileo.connect("b"))


def test_command_with_its_own_timeout_keeps_it() -> None:
    drain = main.commands["drain"]
    [own] = [one for one in drain.params if "--timeout" in one.opts]
    assert own.expose_value


def test_help_of_a_command_leaves_out_shared_options() -> None:
    result = CliRunner().invoke(main, ["topology", "--help"]).output
    assert "--token-file" not in result
    assert "--token-file" in CliRunner().invoke(main, ["--help"]).output


@pytest.mark.parametrize("words", [["sampler", "list"], ["sampler", "list", "--json"]])
@pytest.mark.slow
def test_closed_pipe_ends_a_command_quietly(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "galileo", *words],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (EXIT_PIPE, "")


def test_json_option_after_the_command_prints_errors_as_json() -> None:
    done = CliRunner().invoke(main, ["status", "--node", "a b", "--json"])
    assert done.exit_code == 2
    assert json.loads(done.stderr)["error"]["kind"] == "invalid_input"
