"""The thread that looks for clients that hang up outlives whatever connections come to."""

from __future__ import annotations

import selectors
import socket
import threading

import pytest

from galileo.rdf.disconnect_watcher import Disconnects

WITHIN_S = 60.0


@pytest.fixture
def disconnects():
    one = Disconnects()
    yield one
    one.close()


def noticed(disconnects: Disconnects) -> bool:
    ours, theirs = socket.socketpair()
    gone = threading.Event()
    with ours, disconnects.calling(ours, gone.set):
        theirs.close()
        return gone.wait(WITHIN_S)


def test_who_hangs_up_is_noticed(disconnects):
    assert noticed(disconnects)


def test_one_that_is_over_as_its_end_is_seen_ends_nothing_else(disconnects):
    """Between a look at a connection and what is made of it, it may be over and closed."""
    ours, theirs = socket.socketpair()
    calls: list[str] = []
    seen = selectors.SelectorKey(
        ours, ours.fileno(), selectors.EVENT_READ, lambda: calls.append("")
    )
    ours.close()
    disconnects._met(seen)
    again, other = socket.socketpair()
    with again, other, disconnects.calling(again, lambda: calls.append("")):
        assert again.fileno() == seen.fd, "the number is another's now"
        theirs.close()
        disconnects._met(seen)
    assert not calls
    assert noticed(disconnects)
