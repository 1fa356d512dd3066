"""Results of a channel that wait for a broker on real nodes, as users see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from executions import await_executed
from waiting import wait_until

import galileo
from galileo.cli.main import main

SETTINGS = {
    "storage": {"retention_check_s": 0.2, "retention_min_age_s": 0.2},
    "membership": {"failure_timeout_s": 60.0},
}
"""However busy this machine is, no node holds the other one dead."""
NOON = pd.Timestamp("2026-05-02T12:00Z")
QUIET = "100ms"


@pytest.fixture
def keeping(no_evaluator: dict[str, Any]) -> Iterator[galileo.LocalCluster]:
    settings = SETTINGS | {"evaluator": no_evaluator}
    with galileo.LocalCluster(nodes=2, settings=settings) as running:
        yield running


def observe(client: galileo.Client, numbers: list[int]) -> None:
    """Ingests observations whose values are their numbers, and waits until they are executed."""
    place = {"latitude": 1.0, "longitude": 1.0, "time": NOON}
    rows = pd.DataFrame([place | {"number": float(number)} for number in numbers])
    await_executed(client, "smog", client.ingest("air", rows).reached)


def follow(client: galileo.Client, broker: str) -> tuple[list[float], bool]:
    """Handles and acknowledges what a broker has not acknowledged, and whether some was gone."""
    numbers, is_gone = list[float](), False
    token = client.position("smog", broker)
    for batch in client.follow("smog", broker, token=token, wait=QUIET):
        numbers += batch.to_arrow()["number"].to_pylist()
        is_gone |= bool(batch.gone)
        client.acknowledge("smog", broker, batch.token)
    return sorted(numbers), is_gone


def facts(client: galileo.Client) -> list[dict[str, Any]]:
    datasets = [one for node in client.status().nodes for one in node.datasets]
    return [one for one in datasets if one["dataset"] == "smog"]


def held(client: galileo.Client) -> set[str]:
    """The brokers for which results wait."""
    parts = [part for one in facts(client) for part in one["held_back"]]
    return {broker for part in parts for broker in part["readers"]}


def dropped(client: galileo.Client) -> int:
    """Up to which execution results are deleted in all partitions."""
    return min(last for one in facts(client) for last in one["dropped"].values())


def run(cluster: galileo.LocalCluster, *words: str) -> Any:
    done = CliRunner().invoke(main, ["--node", cluster.addresses[0], *words, "--json"])
    assert done.stdout, (done.output, done.exc_info)
    return json.loads(done.output)


@pytest.mark.slow
def test_a_broker_that_is_away_for_longer_than_keep_misses_nothing(
    keeping: galileo.LocalCluster,
) -> None:
    client = keeping.client()
    client.create_dataset(galileo.Schema("air", [galileo.Feature("number")], geohash_precision=3))
    client.create_channel(
        galileo.Channel("smog", "air", "number > :least", period="100ms", keep="1s")
    )
    client.create_broker(galileo.Broker("mail", channels=["smog"], hold="1h"))
    client.create_broker(galileo.Broker("ops", channels=["smog"]))
    for broker in ("mail", "ops"):
        client.subscribe("smog", {"id": [broker], "least": [0.0]}, broker=broker)
    for number in (1, 2, 3):
        observe(client, [number])

    def is_held() -> bool:
        """Whether results wait; executions of what matches nothing begin further files."""
        observe(client, [0])
        return held(client) == {"mail"}

    wait_until(is_held)
    observe(client, [4])
    [mail, _] = run(keeping, "broker", "list")
    assert mail["held"][0]["channel"] == "smog"
    [finding] = [one for one in run(keeping, "doctor")["findings"] if "is behind" in one["what"]]
    assert "broker 'mail' of channel 'smog'" in finding["what"]
    assert follow(client, "mail") == ([1.0, 2.0, 3.0, 4.0], False)

    def is_dropped(after: int) -> bool:
        """Whether more is deleted."""
        observe(client, [0])
        return follow(client, "mail") == ([], False) and dropped(client) > after

    # A broker without a hold loses what is older than `keep`, once no broker holds it.
    wait_until(lambda: is_dropped(0) and not held(client))
    numbers, is_gone = follow(client, "ops")
    assert is_gone
    assert 1.0 not in numbers

    # The position of a broker advances while there is nothing for it.
    client.subscribe("smog", {"id": ["mail"], "least": [99.0]}, broker="mail")
    before, position = dropped(client), client.position("smog", "mail")
    for number in (5, 6):
        observe(client, [number])
    assert follow(client, "mail") == ([], False)
    assert client.position("smog", "mail") != position
    wait_until(lambda: is_dropped(before))
