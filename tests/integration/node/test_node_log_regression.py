"""Commits that were reported and are not there any more."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.node.log_regression import REPORTS_MIN, LogRegression, LogRegressions

EXPECTED = {"air": Cursor({0: 5, 1: 7, 2: 9}), "rain": Cursor({1: 2})}


def report(losses: LogRegressions, reported: dict[str, Cursor], times: int = 1) -> None:
    for _ in range(times):
        losses.check_report("b", [1, 2, 3], reported=reported, expected=EXPECTED)


def test_log_regression_of_a_shorter_log_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    losses = LogRegressions()
    report(losses, {"air": Cursor({1: 7, 2: 9}), "rain": Cursor({1: 2})}, REPORTS_MIN)
    assert losses.known == []
    with caplog.at_level(logging.ERROR):
        report(losses, {"air": Cursor({1: 6, 2: 9})}, REPORTS_MIN + 2)
    found = [(one.dataset, one.partition, one.had, one.has) for one in losses.known]
    assert found == [("air", 1, 7, 6), ("rain", 1, 2, 0)]
    assert len(caplog.messages) == 2
    assert "partition 1 of dataset 'air' at node b had commit 7" in caplog.text
    report(losses, EXPECTED, REPORTS_MIN)
    assert len(losses.known) == 2, "that its numbers have caught up brings nothing back"


def test_log_regression_of_a_late_report_is_ignored() -> None:
    losses = LogRegressions()
    for _ in range(5):
        report(losses, {"air": Cursor({1: 3, 2: 9})}, REPORTS_MIN - 1)
        report(losses, EXPECTED)
    assert losses.known == []


def test_log_regression_checks_own_partitions_only() -> None:
    losses = LogRegressions()
    for _ in range(REPORTS_MIN):
        losses.check_report("c", [], reported={}, expected=EXPECTED)
    assert losses.known == []


def test_log_regression_after_a_full_restart_uses_retrieved_cursors() -> None:
    losses = LogRegressions()
    losses.expect("air", Cursor({1: 6}))
    losses.expect("air", Cursor({1: 4, 2: 5}))
    reported = {"air": Cursor({1: 6, 2: 3})}
    for _ in range(REPORTS_MIN):
        losses.check_report("b", [1, 2], reported=reported, expected={"air": Cursor({1: 6})})
    losses.check_own("a", [3], reported={})
    assert losses.known == [LogRegression("b", "air", 2, had=5, has=3)]


CURSORS = [EMPTY_CURSOR, Cursor({1: 1}), Cursor({1: 1}), Cursor({1: 2, 2: 1}), Cursor({2: 3})]
PARTITIONS = [frozenset({1}), frozenset({2}), frozenset({1, 2})]
REPORTS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("air", "rain"), st.sampled_from(CURSORS))
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("bc"),
            st.sampled_from(PARTITIONS),
            REPORTS,
            REPORTS,
            st.none() | st.sampled_from(CURSORS),
        ),
        max_size=20,
    )
)
def test_log_regression_skipping_equal_reports_finds_the_same(steps: list[Any]) -> None:
    losses, always = LogRegressions(), LogRegressions()
    for node, partitions, reported, expected, retrieved in steps:
        for each in (losses, always):
            if retrieved is not None:
                each.expect("air", retrieved)
            each.check_report(node, partitions, reported=reported, expected=expected)
        always._compared.clear()
        assert losses.known == always.known
