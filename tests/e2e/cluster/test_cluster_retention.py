"""Retention on real nodes, under a continuous query: it waits for readers or reports losses."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from expected_errors import raises
from waiting import wait_until

import galileo
from galileo import LocalCluster, Retention
from galileo.cli.main import main
from galileo.client import Client
from galileo.errors import DataExpired, TransientError, UnknownDataset
from galileo.generate import NamLike
from galileo.labels import LabelSet

PATIENCE_S = 300.0
patiently = functools.partial(wait_until, despite=(TransientError,))
FIRST_CYCLE_S = 120.0
SETTINGS = {
    "storage": {"retention_check_s": 0.3, "retention_min_age_s": 0.3},
    "membership": {"failure_timeout_s": 4.0},
}
"""A machine that is busy with something else makes no node miss another one."""
AGE = "1h"
"""Whatever the forecasts of 2014 hold is older."""


@pytest.fixture(scope="module")
def keeping(evaluator: dict[str, Any]) -> Iterator[LocalCluster]:
    settings = SETTINGS | {"evaluator": evaluator}
    with LocalCluster(nodes=3, groups=2, settings=settings) as running:
        yield running


def forecasts(count: int) -> list[pa.Table]:
    model = NamLike(seed=7, stride=24)
    stream = model.stream("2014-03-01T00:00:00Z", hours=1_000, rows_per_batch=300)
    return [table for table, _ in zip(stream, range(count), strict=False)]


def identities(labels: LabelSet) -> set[tuple[int, int, int]]:
    columns = (labels.partitions, labels.sequences, labels.rows)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def marks(client: Client, dataset: str) -> dict[int, int]:
    """Up to where retention has dropped each partition."""
    found = [one for node in client.status().nodes for one in node.datasets]
    return {
        partition: until
        for one in found
        if one["dataset"] == dataset
        for partition, until in one["dropped"].items()
    }


def policies(client: Client, dataset: str) -> list[object]:
    """Of each node that knows the dataset."""
    found = [one for node in client.status().nodes for one in node.datasets]
    return [one["retention"] for one in found if one["dataset"] == dataset]


def held_by(client: Client, dataset: str) -> set[str]:
    found = [one for node in client.status().nodes for one in node.datasets]
    held = [h for one in found if one["dataset"] == dataset for h in one["held_back"]]
    return {ccq for one in held for ccq in one["readers"]}


def covers(until: Mapping[int, int], reached: Mapping[int, int]) -> bool:
    return all(until.get(partition, 0) >= sequence for partition, sequence in reached.items())


@dataclass
class Reader:
    """Fetches a CCQ and keeps what came; the token of its last answer it has not shown yet."""

    client: Client
    ccq_id: str
    token: str
    got: set[tuple[int, int, int]] = field(default_factory=set)
    gone: set[tuple[int, int]] = field(default_factory=set)

    def fetch(self, wait: float) -> None:
        update = self.client.fetch(self.ccq_id, token=self.token, wait=wait)
        new = identities(update.labels)
        assert not new & self.got
        self.got |= new
        self.gone |= {(s.partition, n) for s in update.gone for n in range(s.first, s.last + 1)}
        self.token = update.token

    def until(self, expected: set[tuple[int, int, int]], timeout_s: float) -> None:
        """Fetches until all of this has come."""

        def has_all() -> bool:
            if not self.got >= expected:
                self.fetch(5.0)
            return self.got >= expected

        patiently(has_all, "the reader has it all", timeout_s=timeout_s)
        assert self.got == expected


@pytest.mark.slow
def test_retention_spares_readers_or_names_gone_commits(keeping: LocalCluster) -> None:
    client = keeping.client()
    schema = NamLike(seed=7, stride=24).schema("aging")
    client.create_dataset(schema, retention=Retention(AGE))
    assert client.retention("aging") == Retention(AGE)
    first, second, third = forecasts(3)
    ccq = client.submit("aging", "", interval="200ms", expiration="1h")

    one = client.ingest("aging", first, producer="one")
    expected = identities(client.query("aging"))
    labels = client.query("aging")
    assert len(expected) > 50
    reader = Reader(client, ccq.id, ccq.token)
    reader.until(expected, FIRST_CYCLE_S)  # the first cycle waits for Spark
    patiently(lambda: held_by(client, "aging") == {ccq.id}, "the reader holds it back")
    assert not covers(marks(client, "aging"), one.reached)

    reader.fetch(0.1)
    assert (reader.got, reader.gone) == (expected, set())
    patiently(lambda: covers(marks(client, "aging"), one.reached), "what was fetched goes")
    assert len(client.query("aging")) == 0
    with raises(DataExpired):
        client.read(labels)
    again = client.ingest("aging", first, producer="one")
    assert (again.duplicate_rows, again.reached) == (first.num_rows, one.reached)

    check_late_reader(client, ccq, one.reached)
    check_coordinator_killed(
        keeping, Reader(client, ccq.id, reader.token), (second, third), one.reached
    )


def check_late_reader(client: Client, ccq: galileo.Ccq, reached: Mapping[int, int]) -> None:
    """Another reader of the same query, from the start: all that it missed is named."""
    late = Reader(client, ccq.id, "")
    everything = {(p, n) for p, last in reached.items() for n in range(1, last + 1)}
    patiently(lambda: late.fetch(0.1) or late.gone >= everything, "it is reported")
    assert (late.got, late.gone) == (set(), everything)


def check_coordinator_killed(
    cluster: LocalCluster,
    reader: Reader,
    tables: tuple[pa.Table, pa.Table],
    reached: Mapping[int, int],
) -> None:
    """With `past_readers` what no cache holds is gone, and said to be; later commits come."""
    client = reader.client
    client.set_retention("aging", Retention(AGE, past_readers=True))
    lost = client.ingest("aging", tables[0], producer="two")
    patiently(lambda: covers(marks(client, "aging"), lost.reached), "unfetched commits go")
    [coordinator] = [one.coordinator for one in client.list_ccqs() if one.id == reader.ccq_id]
    cluster.node(coordinator).kill()
    cluster.node(coordinator).start()
    client.set_retention("aging", None)
    patiently(lambda: policies(client, "aging") == [None] * 3, "all nodes are back and know")
    client.ingest("aging", tables[1], producer="three")
    reader.until(identities(client.query("aging")), PATIENCE_S)
    # Labels of the first coordinator that were not fetched are lost with it.
    assert reader.gone == {
        (partition, number)
        for partition, last in lost.reached.items()
        for number in range(reached.get(partition, 0) + 1, last + 1)
    }


@pytest.mark.slow
def test_retention_commands_set_show_and_apply(keeping: LocalCluster) -> None:
    def run(*words: str, status: int = 0) -> str:
        result = CliRunner().invoke(main, ["--node", keeping.addresses[0], *words])
        assert result.exit_code == status, result.output
        return result.output

    client = keeping.client()
    client.create_dataset(NamLike(seed=7, stride=24).schema("policy"))
    assert "everything is kept" in run("retention", "show", "policy")
    words = run("retention", "set", "policy", "--age", "30d", "--size", "10GB")
    assert "kept for 30d and up to 10,000,000,000 bytes on each node, never past a reader" in words
    actual = json.loads(run("--json", "retention", "show", "policy"))
    policy = {"age_s": 30 * 86400.0, "bytes": 10**10, "past_readers": False}
    assert actual == {"retention": policy, "held_back": [], "readers": []}
    assert client.retention("policy") == Retention("30d", bytes=10**10)

    receipt = client.ingest("policy", forecasts(1)[0])
    run("retention", "set", "policy", "--age", "1h", "--past-readers")
    patiently(lambda: covers(marks(client, "policy"), receipt.reached), "it is dropped")
    reports = json.loads(run("retention", "apply", "policy", "--json"))
    assert sorted(one["node"] for one in reports) == ["node-1", "node-2", "node-3"]
    assert {one["files"] for one in reports} == {0}
    assert "node-1" in run("retention", "apply", "policy")
    nodes = json.loads(run("status", "--json"))["nodes"]
    [facts] = [one for one in nodes[0]["datasets"] if one["dataset"] == "policy"]
    assert facts["retention"]["past_readers"] is True
    assert facts["bytes_on_disk"] == 0

    run("retention", "set", "policy", "none")
    assert client.retention("policy") is None
    run("retention", "set", "policy", "none", "--age", "1d", status=2)
    run("retention", "set", "policy", status=2)
    run("retention", "set", "policy", "--size", "much", status=2)
    run("retention", "set", "nothing", "--age", "1d", status=2)
    with raises(UnknownDataset, dataset="nothing"):
        client.set_retention("nothing", None)
