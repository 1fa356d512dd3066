"""The watcher of disconnects survives errors of connections."""

from __future__ import annotations

import selectors
import socket
import threading

import pytest

from galileo.rdf.disconnect_watcher import DisconnectWatcher

WITHIN_S = 300.0


@pytest.fixture
def disconnects():
    one = DisconnectWatcher()
    yield one
    one.close()


def noticed(disconnects: DisconnectWatcher) -> bool:
    ours, theirs = socket.socketpair()
    gone = threading.Event()
    with ours, disconnects.calling(ours, gone.set):
        theirs.close()
        return gone.wait(WITHIN_S)


def test_disconnect_watcher_detects_disconnect(disconnects):
    assert noticed(disconnects)


def test_disconnect_watcher_ended_block_is_ignored(disconnects):
    """Between a look at a connection and what is made of it, it may be over and closed."""
    ours, theirs = socket.socketpair()
    calls: list[str] = []
    seen = selectors.SelectorKey(
        ours, ours.fileno(), selectors.EVENT_READ, lambda: calls.append("")
    )
    ours.close()
    disconnects._on_readable(seen)
    again, other = socket.socketpair()
    with again, other, disconnects.calling(again, lambda: calls.append("")):
        assert again.fileno() == seen.fd, "the number is another's now"
        theirs.close()
        disconnects._on_readable(seen)
    assert not calls
    assert noticed(disconnects)
