from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from galileo.cli.main import main
from galileo.generate import NamLike
from galileo.model import paths
from galileo.model.observations import normalise
from galileo.storage.journal import Commit
from galileo.storage.store import Store


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's directory with three commits of forecasts."""
    weather = NamLike(stride=40)
    schema = weather.schema()
    with Store.open(tmp_path / "node", wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        store.create_dataset(schema)
        for batch, table in enumerate(weather.stream("2012-03-01", hours=3)):
            commit = Commit("model", batch, *paths.index(schema, normalise(schema, table)))
            store.journal("nam", 0).append([commit])
    return tmp_path / "node"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def flip_a_byte(directory: Path) -> Path:
    (path,) = directory.glob("journals/nam/0/*.segment")
    stored = bytearray(path.read_bytes())
    stored[200] ^= 1
    path.write_bytes(stored)
    return path


def test_verify_of_an_intact_node_finds_nothing(node: Path) -> None:
    result = run("verify", node)
    assert result.exit_code == 0
    assert "3 commits in 3 files" in result.output
    assert "no damage" in result.output
    actual = json.loads(run("verify", node, "--json").output)
    assert (actual["ok"], actual["commits"], actual["damages"]) == (True, 3, [])


def test_verify_of_a_damaged_node_exits_with_1(node: Path) -> None:
    path = flip_a_byte(node)
    result = run("verify", node)
    assert result.exit_code == 1
    assert "1 damaged place\n" in result.output
    actual = json.loads(run("--json", "verify", node).output)
    assert actual["ok"] is False
    (damage,) = actual["damages"]
    assert (damage["file"], damage["offset"]) == (str(path), 0)
    assert (damage["dataset"], damage["partition"], damage["sequence"]) == ("nam", 0, 1)


def test_verify_of_another_directory_is_refused(tmp_path: Path) -> None:
    result = run("verify", tmp_path)
    assert result.exit_code == 2
    assert "expected the directory of a node" in result.stderr


def test_backup_can_be_restored(node: Path, tmp_path: Path) -> None:
    result = run("backup", node, tmp_path / "backup")
    assert result.exit_code == 0
    assert f"3 commits in 3 files, {sizes(node):,.1f} MB" in result.output
    actual = json.loads(run("restore", tmp_path / "backup", tmp_path / "again", "--json").output)
    assert (actual["commits"], actual["directory"]) == (3, str(tmp_path / "again"))
    assert json.loads(run("verify", tmp_path / "again", "--json").output)["commits"] == 3
    linked = run("backup", node, tmp_path / "linked", "--link")
    assert linked.exit_code == 0


def sizes(node: Path) -> float:
    paths = (path for path in node.rglob("*") if path.is_file() and path.name != "lock")
    return sum(path.stat().st_size for path in paths) / 1e6


def test_backup_and_restore_over_existing_data_are_refused(node: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    result = run("backup", node, tmp_path / "there")
    assert result.exit_code == 2
    assert "does not exist yet" in result.stderr
    assert run("backup", node, tmp_path / "backup").exit_code == 0
    assert run("restore", tmp_path / "backup", node).exit_code == 2
