"""Windows against a loop over labels, before 1970 and after, wide and narrow, late and in time."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.errors import InputError
from galileo.model import windows
from galileo.model.times import micros
from galileo.model.windows import Told, Window, expanded, fold, runs

H = 3_600_000_000
MONTH = 30 * 24 * H


def late(window: Window, start: int, clock_us: int | None) -> bool:
    return clock_us is not None and start + window.size_us + window.lateness_us <= clock_us


class Naive:
    """A reader that keeps a dictionary of windows, and looks at label by label."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.clock_us: int | None = None
        self.held: dict[int, list[int]] = {}

    def take(self, buckets: list[int], *, clock_us: int | None) -> list[tuple[int, int, str]]:
        window, before = self.window, self.clock_us
        news: dict[int, int] = {}
        for bucket in buckets:
            start = bucket - bucket % window.slide_us
            while start + window.size_us > bucket:
                news[start] = news.get(start, 0) + 1
                start -= window.slide_us
        known = [c for c in (before, clock_us, *buckets) if c is not None]
        self.clock_us = max(known, default=None)
        changes = []
        for start in sorted({*self.held, *news}):
            is_over = late(window, start, self.clock_us)
            if late(window, start, before):
                changes.append((start, news[start], "reopened"))
            elif is_over:
                changes.append((start, news.get(start, 0), "closed"))
            elif start in news:
                changes.append((start, news[start], "open"))
            if is_over:
                self.held.pop(start, None)
            else:
                self.held[start] = []
        return changes


shapes = st.one_of(
    st.builds(
        lambda size, late: Window("tumbling", size, size, late),
        st.sampled_from([1, 7, H, 5 * H, 24 * H, MONTH]),
        st.sampled_from([0, 3, H, 24 * H]),
    ).filter(lambda w: True),
    st.builds(
        lambda slide, times, late: Window("sliding", slide * times, slide, late),
        st.sampled_from([1, 9, H, 24 * H]),
        st.integers(1, 40),
        st.sampled_from([0, 5, 2 * H, 30 * H]),
    ),
).map(lambda window: window) if False else None
