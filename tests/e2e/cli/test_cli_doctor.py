"""`galileo doctor` and `galileo config check`, on real nodes and files."""

from __future__ import annotations

import json
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import galileo
from galileo.cli.main import main
from galileo.rpc.internal import PROTOCOL

TUTORIAL = Path(__file__).parents[3] / "docs" / "cluster.md"
WITHIN_S = 300.0
TEXT = """
[node]
name = "{name}"
directory = "{directory}"

[cluster]
groups = [{{name = "g", nodes = [
    {{name = "a", address = "127.0.0.1:7701"}},
    {{name = "b", address = "127.0.0.1:7702"}},
]}}]
"""


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def findings(done: Result) -> list[str]:
    return [one["what"] for one in json.loads(done.stdout)["findings"]]


@pytest.fixture(scope="module")
def pair() -> Iterator[galileo.LocalCluster]:
    # A machine that is busy with something else is no finding.
    settings = {"membership": {"failure_timeout_s": 5.0}}
    with galileo.LocalCluster(nodes=2, groups=1, settings=settings) as running:
        yield running


def test_doctor_examines_each_node(cluster: galileo.LocalCluster) -> None:
    result: dict[str, Any] = json.loads(
        run("--node", cluster.addresses[0], "doctor", "--json").stdout
    )
    examined = result["examined"]
    assert {one["address"] for one in examined} == set(cluster.addresses)
    assert {one["version"] for one in examined} == {galileo.__version__}
    assert {one["protocol"] for one in examined} == {PROTOCOL}
    assert len({one["topology_fingerprint"] for one in examined}) == 1
    assert all(one["disk_size_bytes"] > one["disk_free_bytes"] > 0 for one in examined)
    assert {one["failure"] for one in examined} == {""}


@pytest.mark.slow
def test_doctor_finds_a_killed_node(
    pair: galileo.LocalCluster,
) -> None:
    node = ("--node", pair.addresses[0])
    done = run(*node, "doctor", "--json")
    result: dict[str, Any] = json.loads(done.stdout)
    assert (done.exit_code, result["ok"]) == (0, True), result["findings"]
    assert "each partition has one copy" in findings(done)
    first, second = result["examined"]
    assert [first["name"], second["name"]] == ["node-1", "node-2"]
    assert first["version"] == second["version"] == galileo.__version__
    assert first["protocol"] == second["protocol"] == PROTOCOL
    assert first["topology_fingerprint"] == second["topology_fingerprint"]
    assert abs(first["clock_s"]) <= first["clock_within_s"] + 0.1
    assert first["disk_size_bytes"] > first["disk_free_bytes"] > 0
    assert first["sync_s"] > 0
    assert 0 < first["open_files"] < first["open_files_max"]
    assert first["java"] == ""

    pair.nodes[1].kill()
    deadline = time.monotonic() + WITHIN_S
    words = f"does not answer at {pair.addresses[1]}: connection refused"
    expected = [words, "each partition has one copy"]
    while findings(done := run(*node, "doctor", "--json")) != expected:
        assert time.monotonic() < deadline, findings(done)
        time.sleep(0.2)
    assert done.exit_code == 1
    done = run(*node, "doctor")
    assert done.exit_code == 1
    assert f"PROBLEM  node-2: {words}" in done.stdout
    assert "What to do: check that it runs there" in done.stdout
    assert "Examined 2 nodes: 1 problem," in done.stdout

    refused = run(*node, "--timeout", "1h", "drain", "node-2")
    assert refused.exit_code == 3
    assert "node 'node-2' is unreachable, so it cannot be drained" in refused.stderr


def test_doctor_with_a_config_examines_the_host(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(TEXT.format(name="a", directory=tmp_path))
    done = run("doctor", "--config", str(file), "--json")
    result = json.loads(done.stdout)
    assert result["ok"] is (done.exit_code == 0)
    assert result["examined"]["sync_s"] > 0
    assert result["examined"]["containment"] == "", "uploads are disabled"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node.toml"]


def test_doctor_without_a_limit_of_open_files_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    done = run("doctor", "--directory", str(tmp_path), "--json")
    assert json.loads(done.stdout)["examined"]["open_files_max"] > 1 << 30
    assert not [what for what in findings(done) if "files" in what]


def test_doctor_before_the_first_start_warns_of_the_directory(
    tmp_path: Path,
) -> None:
    file = tmp_path / "node.toml"
    file.write_text(TEXT.format(name="a", directory=tmp_path / "none" / "yet"))
    done = run("doctor", "--config", str(file), "--json")
    result = json.loads(done.stdout)
    assert result["examined"]["sync_s"] > 0
    [one] = [one for one in result["findings"] if "is not there" in one["what"]]
    assert str(tmp_path / "none" / "yet") in one["what"]
    assert one["severity"] == "warning"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node.toml"]


def test_doctor_of_an_impossible_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(TEXT.format(name="a", directory=tmp_path / ("long" * 100)))
    done = run("doctor", "--config", str(file))
    assert done.exit_code == 2
    assert "expected the directory of a node" in done.stderr


# --- configuration files ---------------------------------------------------------------------


def test_config_check_of_valid_files_finds_nothing(tmp_path: Path) -> None:
    files = []
    for name in "ab":
        files.append(tmp_path / f"{name}.toml")
        files[-1].write_text(TEXT.format(name=name, directory="/data"))
    done = run("config", "check", *map(str, files))
    assert (done.exit_code, done.stdout) == (0, "2 files checked, no problems\n")
    result = json.loads(run("config", "check", *map(str, files), "--json").stdout)
    assert result == {"ok": True, "files": [str(file) for file in files]} | {
        "problems": [],
        "warnings": [],
    }


def test_config_check_names_every_problem_with_its_file(tmp_path: Path) -> None:
    bad, gone, broken = tmp_path / "bad.toml", tmp_path / "gone.toml", tmp_path / "broken.toml"
    bad.write_text(TEXT.format(name="c", directory="") + "[limits]\nccq_max = 1\n[loging]\n")
    broken.write_text("[node\n")
    done = run("config", "check", str(bad), str(gone), str(broken))
    assert done.exit_code == 2
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [*[str(bad)] * 4, str(gone), str(broken)]
    assert "'ccq_max'; did you mean 'ccqs_max'?" in lines[0] + lines[1]
    assert "'loging'; did you mean 'logging'?" in lines[0] + lines[1]
    assert "node.name to be one of" in lines[2]
    assert "node.directory" in lines[3]
    assert "cannot read the configuration file" in lines[4]
    assert "expected TOML" in lines[5]


def test_config_check_of_differing_clusters_names_them(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    text = TEXT.format(name="a", directory="/data")
    first.write_text(text)
    second.write_text(text.replace("[cluster]", "[cluster]\npartitions_per_group = 8"))
    done = run("config", "check", str(first), str(second), "--json")
    assert done.exit_code == 2
    differs, twice = json.loads(done.stdout)["problems"]
    assert (differs["file"], twice["file"]) == (str(second), str(second))
    assert "nodes would refuse each other" in differs["what"]
    assert "got 'a' in both" in twice["what"]


def test_config_check_of_nodes_that_join_compares_the_files_that_describe_a_cluster(
    tmp_path: Path,
) -> None:
    """The files of docs/cluster.md: one describes the cluster, the others join it."""
    blocks = re.findall(r"```toml\n(\[node\].*?)```", TUTORIAL.read_text(), re.DOTALL)
    files = [tmp_path / f"{number}.toml" for number in range(3)]
    for file, text in zip(files, blocks, strict=True):
        file.write_text(text)
    for given in (files, files[::-1], files[1:]):
        done = run("config", "check", *map(str, given))
        assert (done.exit_code, done.stdout) == (0, f"{len(given)} files checked, no problems\n")
    files[2].write_text(blocks[2].replace("storm-3", "storm-1") + "[loging]\n")
    other = tmp_path / "other.toml"
    other.write_text(blocks[0].replace("partitions_per_group = 16", "partitions_per_group = 8"))
    twice = tmp_path / "twice.toml"
    twice.write_text(blocks[1])
    done = run("config", "check", *map(str, [*files, other, twice]), "--json")
    problems = json.loads(done.stdout)["problems"]
    assert done.exit_code == 2
    assert [(Path(one["file"]).stem, one["what"][:30]) for one in problems] == [
        ("2", problems[0]["what"][:30]),
        ("other", f"expected the [cluster] table of {files[0]}"[:30]),
        ("other", "expected node.name to be anoth"),
        ("twice", "expected node.name to be anoth"),
    ]
    assert "loging" in problems[0]["what"]


def test_config_check_of_racks_that_do_not_suit_the_copies_warns(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.toml" for name in "ab"]
    third = '{name = "c", address = "127.0.0.1:7703", rack = "r2"}, ]'
    for file in files:
        text = TEXT.format(name=file.stem, directory="/data").replace("\n]}", third + "}")
        text = text.replace("[cluster]", "[cluster]\npartitions_per_group = 6\nreplicas = 2")
        file.write_text(text.replace("[node]", '[node]\nrack = "r1"'))
    done = run("config", "check", *map(str, files), "--json")
    assert done.exit_code == 0
    [warning] = json.loads(done.stdout)["warnings"]
    assert warning.startswith("c has 1.5 times the copies that it would have without racks; ")
    for file in files:
        file.write_text(file.read_text().replace("replicas = 2", "replicas = 3"))
    [warning] = json.loads(run("config", "check", *map(str, files), "--json").stdout)["warnings"]
    assert warning.startswith("group g has 2 racks for 3 copies of each partition; ")


def test_config_check_of_uneven_groups_warns(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    text = TEXT.format(name="a", directory="/data")
    file.write_text(text)
    assert run("config", "check", str(file)).stdout == "1 file checked, no problems\n"
    lone = '{name = "h", nodes = [{name = "c", address = "127.0.0.1:7703"}]}'
    file.write_text(text.replace("]}]", "]}, " + lone + "]"))
    done = run("config", "check", str(file), "--json")
    assert done.exit_code == 0
    [warning] = json.loads(done.stdout)["warnings"]
    assert warning.startswith("c holds 1.5 times its fair share; ")
    shown = run("config", "check", str(file)).stdout
    assert f"{file}: warning: c holds 1.5 times its fair share" in shown
    assert "1 file checked, no problems" in shown
