"""What a node checks of a continuous query before it is run."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from galileo import request_id
from galileo.config import LimitsSection
from galileo.errors import MissingExtra, Unavailable
from galileo.model.schema import Feature, Schema
from galileo.query import Query, parse
from galileo.rpc.continuous import Submission
from galileo.server.continuous import ContinuousQueries

SCHEMA = Schema("nam", [Feature("temperature")])


class Node:
    name = "node-1"
    topology = SimpleNamespace(groups=("west",))

    async def named(self, dataset: str) -> Schema:
        return SCHEMA

    async def bind(self, text: str, schema: Schema, **_: Any) -> Query:
        return parse(text, schema)


async def test_submit_at_a_node_without_spark_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    unused: Any = None
    node: Any = Node()
    queries = ContinuousQueries(
        node,
        unused,
        records=unused,
        work=unused,
        peers=unused,
        clock=unused,
        limits=LimitsSection(),
        warm=lambda: pytest.fail("Spark was started"),
    )
    submission = Submission("ccq-1", SCHEMA.name, "temperature > 290", 1.0, 60.0, None, "none")
    with pytest.raises(MissingExtra) as refused:
        await queries.submit(submission)
    assert refused.value.details == {
        "extra": "spark",
        "package": "pyspark",
        "command": "pip install 'galileo-store[spark]'",
    }


async def test_scans_that_begin_together_are_parts_of_their_own_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unused: Any = None
    queries = ContinuousQueries(
        unused,
        unused,
        records=unused,
        work=unused,
        peers=unused,
        clock=unused,
        limits=LimitsSection(),
        warm=unused,
    )

    groups: list[int] = []

    async def evaluate(query: str, made: object) -> tuple[str, str]:
        return query, request_id.current()

    async def elect(items: tuple[str, ...]) -> list[str]:
        groups.append(len(items))
        return [f"outcome of {item}" for item in items]

    monkeypatch.setattr(queries, "_initial", evaluate)
    monkeypatch.setattr(queries, "_candidacy", lambda started: started.query)
    monkeypatch.setattr(queries, "_elect_group", elect)

    async def submit(name: Any) -> object:
        with request_id.serving(name):
            return await queries._scan_and_elect(name, unused, 9)

    submitted = await asyncio.gather(*map(submit, "abc"))
    assert submitted == [((name, name), f"outcome of {name}") for name in "abc"]
    assert groups == [3]


async def test_failed_scan_is_the_error_of_its_submission_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unused: Any = None
    queries = ContinuousQueries(
        unused,
        unused,
        records=unused,
        work=unused,
        peers=unused,
        clock=unused,
        limits=LimitsSection(),
        warm=unused,
    )

    async def evaluate(query: str, made: object) -> str:
        if query == "b":
            raise Unavailable("a node is away")
        return query

    async def elect(items: tuple[str, ...]) -> list[str]:
        return [f"outcome of {item}" for item in items]

    monkeypatch.setattr(queries, "_initial", evaluate)
    monkeypatch.setattr(queries, "_candidacy", lambda started: started.query)
    monkeypatch.setattr(queries, "_elect_group", elect)
    calls = (queries._scan_and_elect(name, unused, 9) for name in "abc")  # type: ignore[arg-type]
    first, failed, last = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, last) == (("a", "outcome of a"), ("c", "outcome of c"))
    assert isinstance(failed, Unavailable)
