"""SPARQL queries of a gateway: callers share the time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from expected_errors import raises

from galileo.errors import Overloaded
from galileo.gateway import sparql
from galileo.gateway.sparql import SparqlRoutes

FAR_S = 300.0


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> SparqlRoutes:
    monkeypatch.setattr(sparql, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(sparql, "LOOK_S", 0.01)
    monkeypatch.setattr(sparql, "FIRST_TURN_S", 0.01)
    return SparqlRoutes(None, None)  # type: ignore[arg-type]  # Neither is asked.


async def endless() -> Any:
    await asyncio.Event().wait()


async def test_query_is_stopped_after_its_part_of_the_time_if_others_wait(
    queries: SparqlRoutes,
) -> None:
    turns, order = queries._turns, list[str]()

    async def greedy() -> None:
        async with turns.acquire("greedy", within_s=FAR_S):
            with raises(Overloaded, bound=0.05):
                await queries._within_share(asyncio.create_task(endless()))
            order.append("greedy")

    async def calm() -> None:
        async with turns.acquire("calm", within_s=FAR_S):
            order.append("calm")

    tasks = [asyncio.create_task(greedy()) for _ in range(2)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(calm()))
    await asyncio.wait(tasks[:1] + tasks[2:])
    assert order == ["greedy", "calm"]
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_query_of_the_only_caller_goes_on(queries: SparqlRoutes) -> None:
    query = asyncio.create_task(endless())
    async with queries._turns.acquire("alone", within_s=FAR_S):
        running = asyncio.create_task(queries._within_share(query))
        done, _ = await asyncio.wait([running], timeout=0.4)
        assert not done
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert query.cancelled(), "it ends with its request"
