"""The page about clusters, followed to the letter on three addresses of this machine."""

from __future__ import annotations

import configparser
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from waiting import wait_until

import galileo
from galileo.cli.main import main
from galileo.cluster import free_ports
from galileo.model.times import seconds

PAGE = "docs/cluster.md"
HOSTS = {"10.0.0.11": "127.0.0.1", "10.0.0.12": "127.0.0.2", "10.0.0.13": "127.0.0.3"}
NAMES = ["storm-1", "storm-2", "storm-3"]
WITHIN_S = 300.0
SEEN_WITHIN_S = 300.0


class Hosts:
    """The three hosts of the page: their files, and the node that each runs."""

    def __init__(self, page: Any, directory: Path) -> None:
        [self.port] = free_ports(1)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._directory = directory
        shown = [text for _, text in page.blocks("toml")][:3]
        assert len(shown) == 3
        for name, text in zip(NAMES, shown, strict=True):
            assert f'name = "{name}"' in text
            own = text.replace("/var/lib/galileo", str(directory / name))
            for documented, ours in HOSTS.items():
                own = own.replace(f"{documented}:7701", f"{ours}:{self.port}")
            self.config(name).write_text(own)

    def config(self, name: str) -> Path:
        return self._directory / f"{name}.toml"

    def address(self, name: str) -> str:
        return f"{list(HOSTS.values())[NAMES.index(name)]}:{self.port}"

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "galileo", "serve", "--config", str(self.config(name))]
        with (self._directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(60)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-1000:] for path in self._directory.glob("*.log"))


@pytest.fixture(scope="module")
def hosts(page: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    made = Hosts(page(PAGE), tmp_path_factory.mktemp("hosts"))
    try:
        # In any order, says the page.
        for name in reversed(NAMES):
            made.start(name)
        yield made
    finally:
        made.stop()


def states(hosts: Hosts, *asked: str) -> dict[str, str]:
    """What `galileo status` says of each node; nothing while no node answers."""
    nodes = [word for name in asked for word in ("--node", hosts.address(name))]
    done: Result = CliRunner().invoke(main, [*nodes, "--timeout", "1s", "status", "--json"])
    if done.exit_code:
        return {}
    return {node["name"]: node["state"] for node in json.loads(done.stdout)["nodes"]}


def await_states(hosts: Hosts, wanted: dict[str, str], *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while (found := states(hosts, "storm-1", "storm-3")) != wanted:
        assert time.monotonic() < deadline, f"{found}\n{hosts.logs()}"
        time.sleep(0.1)


@pytest.mark.slow
def test_cluster_page_sets_up_three_hosts_with_a_failure(hosts: Hosts) -> None:
    everywhere = dict.fromkeys(NAMES, "up")
    await_states(hosts, everywhere, within_s=WITHIN_S)
    schema = galileo.Schema("rain", [galileo.Feature("rain", "mm")], geohash_precision=2)
    rows = pd.DataFrame(
        {
            "latitude": [40.0, 41.0, 47.0, -10.0, 51.0],
            "longitude": [-120.0, -90.0, 8.0, 20.0, 0.0],
            "time": pd.to_datetime(["2014-03-01T06:00Z"] * 5),
            "rain": [1.0, 2.0, 3.0, 4.0, 5.0],
        }
    )
    with galileo.connect(hosts.address("storm-1"), timeout="60s") as client:
        client.create_dataset(schema)
        client.ingest("rain", rows)
        await_copies(client)
        done = CliRunner().invoke(main, ["--node", hosts.address("storm-1"), "doctor", "--json"])
        assert done.exit_code == 0, done.output
        assert "copy" not in done.output
        wait_until(lambda: leaders(client) == [5, 5, 6], "each node leads its share")
        answer = client.query("rain")
        assert answer.complete
        assert len(answer) == 5
        hosts.processes["storm-3"].kill()
        hosts.processes["storm-3"].wait()
        await_states(hosts, everywhere | {"storm-3": "unreachable"}, within_s=SEEN_WITHIN_S)
        others = client.query("rain")
        assert others.complete
        assert len(others) == 5
        client.ingest("rain", rows.head(1))
        hosts.start("storm-3")
        await_states(hosts, everywhere, within_s=WITHIN_S)
        await_copies(client)
        assert client.query("rain").complete
        assert client.select("rain").num_rows == 6


def leaders(client: galileo.Client) -> list[int]:
    """How many partitions each node leads, ascending."""
    return sorted(len(node.partitions) for node in client.status().nodes)


def await_copies(client: galileo.Client) -> None:
    wait_until(lambda: not client.status().under_replicated, "all copies are there")


def test_cluster_page_files_name_one_node_of_the_cluster(page: Callable[[str], Any]) -> None:
    first, *others = [tomllib.loads(text) for _, text in page(PAGE).blocks("toml")]
    [group] = first["cluster"]["groups"]
    assert [node["name"] for node in group["nodes"]] == [NAMES[0]]
    assert all("cluster" not in one and one["node"]["join"] for one in others)


def test_cluster_page_service_runs_a_valid_command(page: Callable[[str], Any]) -> None:
    [(_, unit)] = page(PAGE).blocks("ini")
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit)
    service = parser["Service"]
    program, *words = service["ExecStart"].split()
    assert os.path.basename(program) == "galileo"  # noqa: PTH119
    command = main.commands[words[0]]
    given, _, _ = command.make_parser(
        main.make_context("galileo", [], resilient_parsing=True)
    ).parse_args(words[1:])
    assert given == {"path": "/etc/galileo/node.toml"}
    assert service["Restart"] == "always"
    assert float(service["TimeoutStopSec"]) >= seconds("20s")
