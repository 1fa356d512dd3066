"""What commands print of texts that are not theirs, and of files that they cannot use."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from galileo.cli.main import main
from galileo.cli.output import EXIT_INPUT, Output, failing_well
from galileo.errors import InputError, SamplerFailed

LOOKS_LIKE_MARKUP = ("[/b]", "[red]", "[bold]x[/bold]", "\\[a]", "[link=file:x]")


@pytest.mark.parametrize("text", LOOKS_LIKE_MARKUP)
def test_a_table_shows_texts_as_they_are(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).rows([{"name": text, text: 1}], title=f"of {text}")
    told = capsys.readouterr().out
    assert told.count(text) == 3


@pytest.mark.parametrize("text", LOOKS_LIKE_MARKUP)
def test_a_progress_bar_shows_texts_as_they_are(text: str) -> None:
    program = (
        "import sys; from galileo.cli.output import Output\n"
        "with Output(as_json=False).progress(unit='rows') as bar: bar.add_task(sys.argv[1])"
    )
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-c", program, text], stderr=theirs, env=environment | {"TERM": "xterm"}
    )
    os.close(theirs)
    told = b""
    try:
        while piece := os.read(ours, 65536):
            told += piece
    except OSError:
        pass  # The end of a terminal whose other side is closed.
    os.close(ours)
    assert process.wait(60) == 0
    assert text in told.decode()


def ending(error: Exception, *, as_json: bool) -> Result:
    """Of a command that raises an error."""

    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    @failing_well
    def fails(as_json: bool) -> None:
        raise error

    return CliRunner().invoke(fails, ["--json"] if as_json else [])


@pytest.mark.parametrize("as_json", [False, True])
def test_errors_are_told_without_secrets_wherever_they_have_them(as_json: bool) -> None:
    for error in (
        InputError("got glt_planted", value="glt_planted"),
        SamplerFailed("it raised", traceback="ValueError: glt_planted\n"),
    ):
        done = ending(error, as_json=as_json)
        assert "(a token)" in done.stderr
        assert "planted" not in done.output
        if as_json:
            assert json.loads(done.stderr)["error"]["kind"] == error.kind


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(main, ["certs", "init", str(tmp_path / "file" / "authority")])
    assert done.exit_code == EXIT_INPUT
    told = " ".join(done.stderr.split())
    assert f"expected to be able to use {tmp_path / 'file' / 'authority'}: Not a directory" in told


def test_other_errors_of_the_system_stay_what_they_are() -> None:
    done = ending(OSError(5, "Input/output error"), as_json=False)
    assert isinstance(done.exception, OSError)
