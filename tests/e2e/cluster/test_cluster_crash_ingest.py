"""Nodes die and come back in the middle of an ingest: what was acknowledged is there, once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fault_injection.ledger import Ledger, Producer, numbered_schema
from waiting import wait_until

import galileo

ROUNDS = 10
ROWS = 400


@pytest.fixture(scope="module")
def fragile() -> Iterator[galileo.LocalCluster]:
    with galileo.LocalCluster(nodes=3, groups=2) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ingest_through_ten_kills_stores_exactly_once(
    fragile: galileo.LocalCluster,
) -> None:
    client = fragile.client(timeout="60s")
    client.create_dataset(numbered_schema("numbered"))
    ledger = Ledger("numbered", rows=ROWS)
    producer = Producer(ledger, fragile.client(timeout="120s"))
    producer.start()
    for round_number in range(ROUNDS):
        enough = ledger.acknowledged + 2 * ROWS
        wait_until(
            lambda enough=enough: ledger.acknowledged >= enough or producer.failure is not None,
            what="two acknowledgements",
        )
        node = fragile.nodes[round_number % len(fragile.nodes)]
        node.kill()
        node.restart()
    producer.stop()

    audit = ledger.audit(client)
    assert audit.clean
    assert audit.found == audit.acknowledged == ledger.acknowledged > ROUNDS * ROWS
