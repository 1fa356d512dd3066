"""Simulated clusters: the same worlds each time, and more nodes take time off the scans."""

from __future__ import annotations

import statistics

import pytest
from evaluation.simulated import BUSY_SHARE, INTERVAL_S, Quiet, simulate


@pytest.mark.slow
def test_the_same_worlds_play_the_same() -> None:
    played = Quiet(2, seed=5).play()
    assert played == Quiet(2, seed=5).play()
    assert played != Quiet(2, seed=6).play()


@pytest.mark.slow
def test_more_nodes_share_the_scans_and_only_one_cannot_fail_over() -> None:
    taken = simulate((1, 4), worlds=1, row_s=1e-6)
    alone, four = taken.points
    assert (alone.failover_s, alone.messages_per_s) == ((), (0.0,))
    (failover_s,) = four.failover_s
    assert taken.failure_timeout_s / 2 < failover_s < taken.failure_timeout_s + 3 * INTERVAL_S
    slow, quick = (statistics.median(one.cached_s) for one in taken.points)
    assert INTERVAL_S / 2 < quick < slow < INTERVAL_S * (1.5 + BUSY_SHARE)
    # A single node is busy with all that comes in for the share that is meant, about.
    assert taken.rows_per_s * taken.row_s == pytest.approx(BUSY_SHARE, rel=0.25)
