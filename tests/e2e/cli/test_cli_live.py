"""What is shown again and again: redrawn on a terminal, one after the other elsewhere."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import galileo
from galileo.cli import live_display
from galileo.cli.live_display import Frame, Panel, refresh_loop
from galileo.cli.main import main
from galileo.cli.output import Output
from galileo.errors import Unavailable

Fresh = Callable[[str], str]
ESCAPE = "\x1b"
ON_A_TERMINAL = {"FORCE_COLOR": "1", "COLUMNS": "200"}


@pytest.fixture
def run(cluster: galileo.LocalCluster) -> Callable[..., Result]:
    def ran(*arguments: str, env: dict[str, str] | None = None) -> Result:
        done = CliRunner(env=env).invoke(main, ["--node", cluster.addresses[0], *arguments])
        assert done.exit_code == 0, done.output
        return done

    return ran


@pytest.fixture
def ccq(client: galileo.Client, fresh_name: Fresh) -> Iterator[galileo.Ccq]:
    name = fresh_name("live")
    client.create_dataset(galileo.Schema(name, [galileo.Feature("t", "K")], geohash_precision=3))
    columns = {"latitude": [1.0] * 30, "longitude": [2.0] * 30, "t": [float(n) for n in range(30)]}
    client.ingest(name, pa.table(columns | {"time": ["2014-03-01T00:00:00Z"] * 30}))
    made = client.submit(name, galileo.f.t > 1, interval="10m", expiration="1h")
    yield made
    client.cancel(made.id)


def test_top_once_prints_nodes_and_ccqs(
    run: Callable[..., Result], ccq: galileo.Ccq, client: galileo.Client
) -> None:
    result = run("top", "--once").output
    assert ESCAPE not in result
    assert "3 of 3 nodes are up" in result
    assert [node.name for node in client.status().nodes if node.name not in result] == []
    assert ccq.id in result
    assert ccq.coordinator in result


def test_rows_without_a_terminal_keep_long_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output(as_json=False).rows([{"id": "x" * 300, "query": "y" * 300}])
    result = capsys.readouterr().out
    assert "x" * 300 in result
    assert "y" * 300 in result
    assert max(len(line) for line in result.splitlines()) < 620


def test_top_with_json_prints_a_line_per_refresh(run: Callable[..., Result]) -> None:
    result = run("top", "--times", "2", "--interval", "10ms", "--json").output.splitlines()
    frames = [json.loads(line) for line in result]
    assert [frame["complete"] for frame in frames] == [True, True]
    assert len(frames[0]["nodes"]) == 3


def test_status_watch_without_a_terminal_prints_repeatedly(run: Callable[..., Result]) -> None:
    result = run("status", "--watch", "--times", "2", "--interval", "10ms").output
    assert ESCAPE not in result
    assert result.count("host CPU") == 2
    assert run("status").output.count("host CPU") == 1


def test_top_on_a_terminal_redraws(run: Callable[..., Result]) -> None:
    result = run("top", "--times", "2", "--interval", "10ms", env=ON_A_TERMINAL).output
    assert f"{ESCAPE}[1A" in result, "the cursor goes up to draw over the first"


@pytest.mark.slow
def test_status_watch_on_a_pseudo_terminal_redraws(cluster: galileo.LocalCluster) -> None:
    command = [sys.executable, "-m", "galileo", "--node", cluster.addresses[0]]
    command += ["status", "--watch", "--times", "2", "--interval", "10ms"]
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(command, stdout=theirs, env=environment | {"TERM": "xterm"})
    os.close(theirs)
    result = b""
    # The end of a terminal whose other side is closed is an error on Linux.
    while piece := read(ours):
        result += piece
    os.close(ours)
    assert process.wait(60) == 0
    assert b"\x1b[1A" in result
    assert "unreachable" not in result.decode()


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_ccq_watch_on_a_terminal_redraws(run: Callable[..., Result], ccq: galileo.Ccq) -> None:
    result = run(
        "ccq", "watch", ccq.id, "--from", "start", "--updates", "1", env=ON_A_TERMINAL
    ).output
    assert "28 labels in 1 update, the newest 20 shown" in result
    assert "token " in result
    assert ESCAPE in result


def test_ccq_watch_without_a_terminal_is_plain(
    run: Callable[..., Result], ccq: galileo.Ccq
) -> None:
    result = run("ccq", "watch", ccq.id, "--from", "start", "--updates", "1").output
    assert ESCAPE not in result
    assert "28 labels, the first 20 shown" in result


class Looks:
    """Returns the given values one after the other; raises those that are errors."""

    def __init__(self, *found: Frame | Exception) -> None:
        self.found = list(found)

    def __call__(self) -> Frame:
        one = self.found.pop(0)
        if isinstance(one, Exception):
            raise one
        return one


SCREEN = Frame((Panel([{"node": "n1"}], title="t"),), {"node": "n1"})


def test_refresh_loop_keeps_the_last_screen_during_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(live_display.time, "sleep", slept.append)
    looks = Looks(SCREEN, Unavailable("no node could be reached"), SCREEN)
    refresh_loop(Output(as_json=False), looks, every_s=300.0, times=3)
    result = capsys.readouterr().out
    assert result.count("n1") == 3
    assert result.count("no node could be reached") == 1
    assert len(slept) == 2
    assert all(200.0 < one <= 300.0 for one in slept)


def test_refresh_loop_with_a_failing_first_look_fails() -> None:
    with pytest.raises(Unavailable):
        refresh_loop(Output(as_json=False), Looks(Unavailable("away")), every_s=1.0)


def test_refresh_loop_with_json_prints_errors_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_display.time, "sleep", lambda _: None)
    looks = Looks(SCREEN, Unavailable("away"), SCREEN)
    refresh_loop(Output(as_json=True), looks, every_s=1.0, times=3)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == lines[2] == {"node": "n1"}
    assert lines[1] == {"error": {"kind": "unavailable", "message": "away"}}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_valid_in_its_shell(shell: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert "_GALILEO_COMPLETE" in done.output
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(done.output)
    subprocess.run([shell, "-n", str(script)], check=True)


@pytest.mark.slow
def test_completion_in_bash_completes_commands(tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    if shutil.which("bash") is None or not (programs / "galileo").exists():
        pytest.skip("bash or the galileo program is not installed")
    script = tmp_path / "script"
    script.write_text(CliRunner().invoke(main, ["completion", "bash"]).output)
    asked = (
        f"source {script}; COMP_WORDS=(galileo ccq wa); COMP_CWORD=2; "
        '_galileo_completion galileo; echo "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", asked], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "watch"


WAITING_IN_A_PIPE = """
import threading
from galileo.cli.watch_display import stop_when_reader_ends

try:
    with stop_when_reader_ends():
        print("begun", flush=True)
        threading.Event().wait()
except BrokenPipeError:
    raise SystemExit(7)
"""


@pytest.mark.parametrize("is_in_background", [False, True])
@pytest.mark.slow
def test_stop_when_reader_ends_stops_a_waiting_watch(is_in_background: bool) -> None:
    """Shells have a command in the background of a script ignore SIGINT."""
    command = [sys.executable, "-c", WAITING_IN_A_PIPE]
    if is_in_background:
        command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        try:
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "begun\n"
            waiting.stdout.close()
            assert waiting.wait(timeout=60) == 7
        finally:
            waiting.kill()
