"""Notifications of no cluster, for tests of what is made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pandas as pd
import pyarrow as pa

import galileo
from galileo.client.results import Notifications
from galileo.cursor import CommitRange
from galileo.model.channel import LEFT, MATCHES_SCHEMA
from galileo.model.schema import Schema
from galileo.worker.endpoints import Chunk

AIR = Schema("air", [galileo.Feature("pm10"), galileo.Feature("station", type="text")])


def notifications(
    matches: Sequence[tuple[Sequence[int], Sequence[str]]], *, execution: int = 7
) -> Notifications:
    """Of as many observations as the matches name; each match has rows and subscriptions."""
    count = 1 + max(row for rows, _ in matches for row in rows)
    columns = {
        "latitude": [47.0 + row for row in range(count)],
        "longitude": [8.0] * count,
        "time": [pd.Timestamp("2024-06-01T12:00Z")] * count,
        "pm10": [60.0 + row for row in range(count)],
        "station": [f"S{row}" for row in range(count)],
    }
    schema = AIR.observation_schema
    records = [
        {"rows": list(rows), "subscriptions": list(ids), LEFT: False} for rows, ids in matches
    ]
    return Notifications(
        partition=2,
        execution=execution,
        observations=pa.Table.from_pydict({n: columns[n] for n in schema.names}, schema=schema),
        matches=pa.Table.from_pylist(records, schema=MATCHES_SCHEMA).drop_columns([LEFT]),
        token="token",
    )


def chunk(
    matches: Sequence[tuple[Sequence[int], Sequence[str]]] = (((0, 1), ("anna", "bert")),),
    *,
    broker: str = "ops",
    offset: int = 0,
) -> Chunk:
    return Chunk(
        channel="smog",
        dataset="air",
        broker=broker,
        stream=f"smog/{broker}/2",
        offset=offset,
        notifications=notifications(matches),
    )


def nothing_but_gone() -> Chunk:
    """What is said about executions 3 to 7."""
    whole = notifications([((0,), ("anna",))], execution=0)
    rows, matches = whole.observations.slice(0, 0), whole.matches.slice(0, 0)
    gone = (CommitRange(2, 3, 7),)
    batch = dataclasses.replace(whole, observations=rows, matches=matches, gone=gone)
    return dataclasses.replace(chunk(), notifications=batch)
