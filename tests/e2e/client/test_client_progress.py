"""`progress=` counts what comes, each label and observation once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from synopses import wait_for_synopses

import galileo
from galileo.wire.caller import Caller


def test_progress_counts_labels_and_observations_once(
    client: galileo.Client, explored: Any
) -> None:
    found: list[int] = []
    labels = client.query(explored.name, progress=found.append)
    assert sum(found) == len(labels) > 0
    assert all(found)
    come: list[int] = []
    table = client.read(labels, progress=come.append)
    assert sum(come) == table.num_rows == len(explored.frame)
    selected: list[int] = []
    assert client.select(explored.name, progress=selected.append).num_rows == sum(selected)


async def test_progress_of_a_retried_call_counts_once(
    cluster: galileo.LocalCluster, explored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with galileo.AsyncClient(cluster.addresses[0]) as client:
        call = Caller.call
        calls: list[int] = []

        async def twice(self: Caller, attempt: Callable[..., Any], **how: Any) -> Any:
            calls.append(1)
            await call(self, attempt, **how)
            return await call(self, attempt, **how)

        found: list[int] = []
        monkeypatch.setattr(Caller, "call", twice)
        labels = await client.query(explored.name, progress=found.append)
        selected: list[int] = []
        table = await client.select(explored.name, progress=selected.append)
    assert calls
    assert sum(found) == len(labels)
    assert sum(selected) == table.num_rows


def test_progress_callback_error_ends_the_call(client: galileo.Client, explored: Any) -> None:
    def refuse(count: int) -> None:
        raise KeyError(count)

    with pytest.raises(KeyError):
        client.query(explored.name, progress=refuse)
    labels = client.query(explored.name)
    with pytest.raises(KeyError):
        client.read(labels, progress=refuse)
    assert client.count(explored.name) == len(explored.frame)


def test_every_query_call_takes_a_condition(
    cluster: galileo.LocalCluster, client: galileo.Client, explored: Any
) -> None:
    name, warm = explored.name, galileo.f.temperature > 280
    count = int((explored.frame["temperature"] > 280).sum())
    assert client.count(name, warm) == count == client.select(name, warm).num_rows
    assert len(client.query(name, warm)) == len(client.query(name, str(warm)))
    assert client.read(client.query(name, warm)).num_rows == count
    assert sum(len(batch) for batch in client.query_batches(name, warm)) == len(
        client.query(name, warm)
    )
    assert client.explain(name, warm).found == len(client.query(name, warm))
    assert client.summarise(name, warm, feature="temperature").observations == count
    wait_for_synopses(cluster, name)
    estimate = client.estimate(name, warm)
    assert estimate.low <= len(client.query(name, warm)) <= estimate.high
    near = client.nearest(name, warm, latitude=0.0, longitude=0.0, k=3)
    assert len(near) == 3
    assert client.count(name, galileo.f.wet) == int(explored.frame["wet"].sum())
    made = client.submit(name, warm, interval="10m", expiration="1h")
    assert len(made.initial) == len(client.query(name, warm))
    client.cancel(made.id)
