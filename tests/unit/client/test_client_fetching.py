"""Which node a fetch asks."""

from __future__ import annotations

from typing import Any

import pytest

from galileo.client.fetching import Fetcher, request
from galileo.errors import DeadlineExceeded, NotOwner, Unavailable

COORDINATOR, ANY = "a:1", "any"


class Nodes:
    """A caller that notes whom it asks; the coordinator answers with an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked: list[str] = []

    async def ask(self, address: str, attempt: Any) -> None:
        self.asked.append(address)
        raise self.error

    async def call(self, attempt: Any) -> str:
        self.asked.append(ANY)
        return "an update"


@pytest.mark.parametrize(
    "error", [NotOwner("moved"), Unavailable("away"), DeadlineExceeded("silent")]
)
async def test_coordinator_that_does_not_answer_is_asked_once(error: Exception) -> None:
    nodes: Any = Nodes(error)
    fetcher = Fetcher(nodes)
    fetcher.cache_coordinator("q", COORDINATOR)
    for _ in range(2):
        assert await fetcher.fetch(request("q", "", wait_s=0.0, labels_max=0)) == "an update"
    assert nodes.asked == [COORDINATOR, ANY, ANY]
