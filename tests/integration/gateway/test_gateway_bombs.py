"""Bodies that would become large are refused by a gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fault_injection.bombs import CHANNEL, DATASET, NOTES, TEXT_BODIES
from fault_injection.ledger import numbered_schema
from gateway_serving import site

import galileo

REFUSALS = {"400", "413", "415"}


@pytest.mark.slow
async def test_bodies_that_would_become_large_are_refused(
    tmp_path: Path, no_evaluator: dict[str, Any]
) -> None:
    sections = {"evaluator": no_evaluator}
    async with site(tmp_path, sections, numbered_schema(DATASET)) as (url, client):
        await client.create_dataset(NOTES)
        template = "temperature > :least"
        await client.create_channel(galileo.Channel(CHANNEL, dataset=DATASET, template=template))
        answers = {
            body.name: await asyncio.to_thread(body.send, urlsplit(url).netloc)
            for body in TEXT_BODIES
        }
        assert set(answers.values()) <= REFUSALS, answers
        assert await client.count(NOTES.name) == 0
