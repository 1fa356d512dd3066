"""Clients that are dropped without `close`."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

import galileo


@pytest.mark.parametrize("is_used", [False, True])
def test_client_dropped_ends_its_thread(cluster: galileo.LocalCluster, is_used: bool) -> None:
    before = set(threading.enumerate())
    client = galileo.Client(cluster.addresses[0])
    if is_used:
        assert client.status().complete
    dropped = weakref.ref(client)
    threads = [one for one in set(threading.enumerate()) - before if one.name == "galileo-client"]
    assert len(threads) == 1
    del client
    gc.collect()
    assert dropped() is None
    threads[0].join(30)
    assert not threads[0].is_alive()
