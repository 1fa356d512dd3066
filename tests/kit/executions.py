"""Waits until a channel has executed commits."""

from __future__ import annotations

import time

import galileo
from galileo.cursor import Cursor

EXECUTED_S = 30.0


def await_executed(client: galileo.Client, channel: str, reached: Cursor) -> None:
    """Waits until all partitions of a channel have matched commits of its dataset."""
    [partitions] = [one.partitions for one in client.channels() if one.name == channel]
    deadline = time.monotonic() + EXECUTED_S
    while time.monotonic() < deadline:
        progress = client.describe_channel(channel)
        if len(progress) == partitions and all(one.cut.covers(reached) for one in progress):
            return
        time.sleep(0.05)
    raise AssertionError(f"not executed: {client.describe_channel(channel)}")
