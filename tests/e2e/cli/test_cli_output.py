"""What commands print of texts that are not theirs, and of files that they cannot use."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from galileo import cli
from galileo.cli.data import Target, write_tables
from galileo.cli.main import main
from galileo.cli.options import json_option
from galileo.cli.output import (
    EXIT_INPUT,
    Output,
    fold,
    handle_errors,
    size_of_bytes,
    table_of,
    time_left,
)
from galileo.errors import InputError, SamplerFailed

LOOKS_LIKE_MARKUP = ("[/b]", "[red]", "[bold]x[/bold]", "\\[a]", "[link=file:x]")


@pytest.mark.parametrize("text", LOOKS_LIKE_MARKUP)
def test_rows_show_markup_as_text(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).rows([{"name": text, text: 1}], title=f"of {text}")
    result = capsys.readouterr().out
    assert result.count(text) == 3


@pytest.mark.parametrize("text", LOOKS_LIKE_MARKUP)
def test_progress_shows_markup_as_text(text: str) -> None:
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
    result = b""
    try:
        while piece := os.read(ours, 65536):
            result += piece
    except OSError:
        pass  # The end of a terminal whose other side is closed.
    os.close(ours)
    assert process.wait(60) == 0
    assert text in result.decode()


def ending(error: Exception, *, as_json: bool) -> Result:
    """Of a command that raises an error."""

    @click.command()
    @json_option
    @handle_errors
    def fails() -> None:
        raise error

    return CliRunner().invoke(fails, ["--json"] if as_json else [])


@pytest.mark.parametrize("as_json", [False, True])
def test_errors_are_printed_without_secrets(as_json: bool) -> None:
    for error in (
        InputError("got glt_planted", value="glt_planted"),
        SamplerFailed("it raised", traceback="ValueError: glt_planted\n"),
    ):
        done = ending(error, as_json=as_json)
        assert "(a token)" in done.stderr
        assert "planted" not in done.output
        if as_json:
            assert json.loads(done.stderr)["error"]["kind"] == error.kind


def test_os_error_of_a_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(main, ["ca", "create", str(tmp_path / "file" / "authority")])
    assert done.exit_code == EXIT_INPUT
    result = " ".join(done.stderr.split())
    assert f"cannot use {tmp_path / 'file' / 'authority'}: Not a directory" in result


def test_os_error_without_a_file_is_raised() -> None:
    done = ending(OSError(5, "Input/output error"), as_json=False)
    assert isinstance(done.exception, OSError)


# --- what may not reach a terminal ---------------------------------------------------------------

CONTROLS = {
    "CSI": "\x1b[2J",
    "OSC ended by ST": "\x1b]0;owned\x1b\\",
    "OSC ended by BEL": "\x1b]52;c;bWFs\x07",
    "BEL": "\x07",
    "C1 CSI": "\x9b31m",
    "C1 OSC": "\x9d0;owned\x9c",
    "DEL": "\x7f",
    "carriage return": "good\rbad",
}


def raw_controls(text: str) -> list[str]:
    return [one for one in text if (ord(one) < 32 and one != "\n") or 127 <= ord(one) < 160]


@pytest.mark.parametrize("control", CONTROLS.values(), ids=CONTROLS)
@pytest.mark.parametrize("as_json", [False, True])
def test_stored_control_characters_are_not_printed(
    control: str, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output(as_json=as_json)
    stored = f"a{control}b"
    output.rows([{"name": stored, f"unit {stored}": [stored]}], title=stored)
    output.value({"sent_by": stored}, words=f"by {stored}")
    output.rows([], empty=stored)
    output.note(stored)
    result = capsys.readouterr()
    assert raw_controls(result.out + result.err) == []
    if as_json:
        rows, value, _ = map(json.loads, result.out.splitlines())
        assert (rows[0]["name"], value["sent_by"]) == (stored, stored)
    failed = ending(InputError(f"got {stored}"), as_json=as_json)
    assert raw_controls(failed.output) == []


# --- tables and the width of a terminal ----------------------------------------------------------


def table(rows: list[dict[str, object]], width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), soft_wrap=True)
    for part in table_of(rows, "", width=width):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_table_too_wide_leaves_out_and_names_columns() -> None:
    lines = table([{f"column-{n}": "x" * 10 for n in range(12)}], 80)
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == [f"column-{n}" for n in range(6)]
    assert "Not shown: column-6, column-7" in lines[3]
    assert "--wide" in " ".join(lines)


def test_table_that_fits_is_complete() -> None:
    assert table([{"id": "a", "rows": 1200}, {"id": "long", "rows": 3}], 80) == [
        "id     rows",
        "───────────",
        "a     1,200",
        "long      3",
    ]


def test_table_folds_long_cells_first() -> None:
    lines = table([{"id": "x" * 60, "rows": 1, "state": "up"}], 60)
    assert max(map(len, lines)) <= 60
    assert lines[0].split() == ["id", "rows", "state"]
    assert "".join(line.split()[0] for line in lines[2:4]) == "x" * 60


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e12, "2.5 TB")]
)
def test_size_of_bytes_is_short(count: float, words: str) -> None:
    assert size_of_bytes(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0s"), (45, "45s"), (3700, "1h1m"), (2 * 86400 + 3 * 3600, "2d3h")]
)
def test_time_left_is_short(seconds: float, words: str) -> None:
    assert time_left(seconds) == words


def test_table_of_numbers_with_a_missing_first_is_right_aligned() -> None:
    lines = table([{"rain": None, "x": "a"}, {"rain": 12.5, "x": "b"}, {"rain": 3, "x": "c"}], 80)
    assert lines[-1].split() == ["3", "c"]
    assert lines[-1].index("3") == lines[-2].index("12.5") + 3


def test_end_file_of_a_partial_answer_is_exit_status_5(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table, target = pa.table({"t": [1.0]}), Target(str(tmp_path / "t.csv"), None)
    for missing, status in (((), 0), ((2,), 5)):
        context = click.Context(click.Command("read"))
        options = {"target": target, "unit": "rows", "missing": lambda missing=missing: missing}
        with context, pytest.raises(click.exceptions.Exit) if status else contextlib.nullcontext():
            write_tables(Output(as_json=False), [table], table.schema, **options)
        shown = capsys.readouterr()
        assert shown.out == f"1 observation written to {target.output}\n"
        assert ("partition 2 is missing" in shown.err) == bool(status)
        assert Path(target.output).read_text().splitlines()[1:] == ["1"]


PLURAL = re.compile(r"(?<! of \{limit):,\} (?:of )?[a-z]+s\b")


def test_counts_of_things_are_not_always_plural() -> None:
    """Nouns behind a number come from `counted`, or stand before it: "1 observations" is wrong."""
    sources = [*Path(cli.__file__).parent.glob("*.py")]
    assert len(sources) > 30
    found = {
        f"{path.name}: {line.strip()}"
        for path in sources
        for line in path.read_text(encoding="utf-8").splitlines()
        if PLURAL.search(line)
    }
    assert found == set()


def test_table_note_names_few_of_many_columns() -> None:
    lines = table([{f"column-{n}": "x" * 10 for n in range(180)}], 80)
    note = " ".join(lines[3:])
    assert "Not shown: column-6, column-7" in note
    assert "column-13 and 166 more. Add --wide" in note
    assert len(lines[3:]) <= 3


def test_table_keeps_ccq_ids_in_one_line() -> None:
    lines = table([{"id": f"ccq-{'0' * 32}", "query": "x" * 30, "state": "running"}], 80)
    assert f"ccq-{'0' * 32}" in lines[2]


def test_fold_breaks_between_words_and_keeps_quoted_lines() -> None:
    quoted = "    temperature > 290 AND " + "humidity < 50 AND " * 4
    words = f"galileo: {'word ' * 30}end\n{quoted}"
    *folded, last = fold(words, width=80, indent="  ").split("\n")
    assert max(map(len, folded)) <= 80
    assert folded[1].startswith("  word")
    assert last == quoted
    assert fold("a short line", width=80, first="  ") == "  a short line"


def test_value_folds_words_at_the_terminal_width(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output(as_json=False, columns=40).value(
        None, words=f"{'word  ' * 9}\n  galileo {'x' * 60}\ntoken  {'y' * 30}"
    )
    *words, command, token = capsys.readouterr().out.splitlines()
    assert max(map(len, words)) <= 40
    assert " ".join(words).split() == ["word"] * 9
    assert (command, token) == (f"  galileo {'x' * 60}", f"token  {'y' * 30}")


@pytest.mark.parametrize(
    ("missing", "words"),
    [((1,), "partition 1 is missing, because its node"), ((1, 3), "partitions 1, 3 are missing")],
)
def test_warn_partial_names_partitions(
    missing: tuple[int, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Output(as_json=False).warn_partial(missing)
    assert words in capsys.readouterr().err
